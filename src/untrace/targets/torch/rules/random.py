"""Keys and random bits: Threefry, so that the same key gives the same numbers. A key is a tensor of two words.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011); jax/_src/prng.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Expr
from untrace.targets.eager.rules.parts import counting, is_threefry
from untrace.targets.torch.rules.table import rule


def _seed(w: Any, place: int, x: Expr) -> list[Any]:
    """A number as `_seeded` takes it: as a tensor, and whether it has 64 bits."""
    number = w.tensor(place, x)
    return [number, True] if np.dtype(w.avals[place].dtype).itemsize == 8 else [number]


@rule("random_seed")
def random_seed(w: Any, x: Any, *, impl: Any) -> Expr:
    return w.call(w.helper("_seeded"), *_seed(w, 0, x)) if is_threefry(w.out_avals[0]) else DECLINE


@rule("random_bits")
def random_bits(w: Any, key: Any, *, bit_width: int, shape: Any) -> Expr:
    if not is_threefry(w.avals[0]) or bit_width == 64:
        return DECLINE
    made = w.call(
        w.helper(counting("_random_bits")), key, tuple(shape), **({} if bit_width == 32 else {"width": bit_width})
    )
    return made if bit_width == 32 else w.cast(made, w.out_avals[0].dtype)


@rule("random_fold_in")
def random_fold_in(w: Any, key: Any, x: Any) -> Expr:
    return w.call(w.helper("_folded_in"), key, *_seed(w, 1, x)) if is_threefry(w.avals[0]) else DECLINE
