"""Keys and random bits: Threefry, so that the same key gives the same numbers. A key is an array of two words.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011); jax/_src/prng.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from untrace import jax_compat
from untrace.targets.c.arrays import Array, num, plus, times
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import INDEX, Expr, Op
from untrace.targets.c.rules.elementwise import cast, elementwise
from untrace.targets.c.rules.table import Declined, rule

_WORD = np.dtype(np.uint32)
_COST = 20  # operations: what is read twice is computed once


def _by_place() -> None:
    if not jax_compat.splits_bits_by_place():
        raise Declined("random numbers with `jax_threefry_partitionable` switched off")


def _flat(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The number of an element."""
    if math.prod(shape) >= 1 << 31:
        raise Declined("so many random numbers at once")
    found: Expr = num(0, INDEX)
    for i, n in zip(index, shape, strict=True):
        found = plus(times(found, n), i)
    return found


def _word(a: Expr, b: Expr, x: Expr, y: Expr, which: int) -> Expr:
    return Op("threefry", (a, b, x, y, num(which, INDEX)), _WORD)


def _words(key: Array, index: tuple[Expr, ...], shape: Sequence[int]) -> tuple[Expr, Expr, Expr]:
    """The two words of a key, and the number of an element of what is made of it."""
    rank = len(key.shape) - 1
    at = index[:rank]
    one, other = [key.at((*at, num(k, INDEX))) for k in (0, 1)]
    return one, other, cast(_flat(index[rank : rank + len(shape)], shape), _WORD)


@rule("threefry2x32")
def _threefry(b: Builder, k: Array, m: Array, x: Array, y: Array) -> list[Array]:
    given = [b.often(a, "word") for a in (k, m, x, y)]
    made = [elementwise(b, _WORD, lambda *a, w=w: _word(a[0], a[1], a[2], a[3], w), *given, cost=_COST) for w in (0, 1)]
    return made


@rule("random_wrap")
def _wrap(b: Builder, x: Array, *, impl: object) -> Array:
    return x


@rule("random_unwrap", "random_clone")
def _unwrap(b: Builder, x: Array) -> Array:
    return x


@rule("random_seed")
def _seed(b: Builder, x: Array, *, impl: object) -> Array:
    x = b.often(x, "seed")
    return Array((*x.shape, 2), _WORD, lambda index: _seeded(x, index[:-1], index[-1]), 1)


def _seeded(x: Array, index: tuple[Expr, ...], which: Expr) -> Expr:
    low, high = cast(x.at(index), _WORD), num(0, _WORD)
    if x.dtype.itemsize > _WORD.itemsize:
        wide = np.dtype(np.uint64)
        high = cast(Op(">>", (cast(x.at(index), wide), num(32, wide)), wide), _WORD)
    return Op("?:", (Op("==", (which, num(0, INDEX)), np.dtype(bool)), high, low), _WORD)


@rule("random_bits")
def _bits(b: Builder, key: Array, *, bit_width: int, shape: Sequence[int]) -> Array:
    _by_place()
    key = b.often(key, "key")
    dtype = np.dtype(f"u{bit_width // 8}")

    def at(index: tuple[Expr, ...]) -> Expr:
        one, other, place = _words(key, index, shape)
        high, low = [_word(one, other, num(0, _WORD), place, w) for w in (0, 1)]
        if bit_width > 32:
            return Op("|", (Op("<<", (cast(high, dtype), num(32, dtype)), dtype), cast(low, dtype)), dtype)
        return cast(Op("random_word", (one, other, place), _WORD), dtype)

    return Array((*key.shape[:-1], *shape), dtype, at, _COST)


@rule("random_split")
def _split(b: Builder, key: Array, *, shape: Sequence[int]) -> Array:
    _by_place()
    key = b.often(key, "key")

    def at(index: tuple[Expr, ...]) -> Expr:
        one, other, place = _words(key, index, shape)
        return Op("threefry", (one, other, num(0, _WORD), place, index[-1]), _WORD)

    return Array((*key.shape[:-1], *shape, 2), _WORD, at, _COST)


@rule("random_fold_in")
def _fold_in(b: Builder, key: Array, x: Array) -> Array:
    key, x = b.often(key, "key"), b.often(x, "number")
    shape = np.broadcast_shapes(key.shape[:-1], x.shape)

    def at(index: tuple[Expr, ...]) -> Expr:
        outer = index[:-1]
        one, other = [key.at((*outer[len(outer) - len(key.shape) + 1 :], num(k, INDEX))) for k in (0, 1)]
        words = [_seeded(x, outer[len(outer) - len(x.shape) :], num(k, INDEX)) for k in (0, 1)]
        return Op("threefry", (one, other, words[0], words[1], index[-1]), _WORD)

    return Array((*shape, 2), _WORD, at, _COST)
