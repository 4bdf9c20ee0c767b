"""Keys and random bits: Threefry, so that the same key gives the same numbers. A key is an array of two words.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011); jax/_src/prng.py.
"""

from __future__ import annotations

from typing import Any

from untrace.module.rules import DECLINE
from untrace.python.tree import Expr
from untrace.targets.eager.rules.parts import counting, is_threefry
from untrace.targets.numpy.rules.table import rule


@rule("random_seed")
def random_seed(w: Any, x: Any, *, impl: Any) -> Expr:
    return w.call(w.helper("_seeded"), x) if is_threefry(w.out_avals[0]) else DECLINE


@rule("random_bits")
def random_bits(w: Any, key: Any, *, bit_width: int, shape: Any) -> Expr:
    if not is_threefry(w.avals[0]):
        return DECLINE
    options = {} if bit_width == 32 else {"width": bit_width}
    return w.call(w.helper(counting("_random_bits")), key, tuple(shape), **options)


@rule("random_fold_in")
def random_fold_in(w: Any, key: Any, x: Any) -> Expr:
    return w.call(w.helper("_folded_in"), key, x) if is_threefry(w.avals[0]) else DECLINE
