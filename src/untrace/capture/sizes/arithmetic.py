"""How a number may be computed of a size, and at which size it would show which of several ways it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Divisors and summands of sizes: strides, the width of a kernel, a place for a class token.
_DIVISORS = (2, 3, 4, 5, 6, 7, 8, 14, 16, 32)
_SUMMANDS = (0, 1, -1, 2, -2, 3, -3, 4, -4)
_LARGEST_FACTOR = 4  # of a size that something is added to as well
_FURTHER = range(1, 13)  # how much larger than the example's a size is that is tried
_AHEAD = range(1, 65)  # beyond the example's: where two ways that agree are one


@dataclass(frozen=True, slots=True)
class Way:
    """`factor * ((n + summand) // divisor) + plus` of a size `n`."""

    factor: int = 1
    summand: int = 0
    divisor: int = 1
    plus: int = 0

    def at(self, size: int) -> int:
        return self.factor * ((size + self.summand) // self.divisor) + self.plus


def ways(wanted: Sequence[int], sizes: Sequence[int]) -> Iterator[Way]:
    """The ways that give each of `wanted` from the size beside it, the plainest first. What is known at one size only may be
    that plus anything, so it is little."""
    pairs = list(zip(wanted, sizes, strict=True))
    number, size = pairs[0]
    factor = number // size if size else 0
    if factor and all(w == factor * n for w, n in pairs):
        yield Way(factor)
    summand = number - size
    is_known = len(set(sizes)) > 1 or abs(summand) <= max(_SUMMANDS)
    if summand and is_known and all(w == n + summand for w, n in pairs):
        yield Way(1, summand)
    yield from _linear(pairs)
    for divisor, summand in itertools.product(_DIVISORS, _SUMMANDS):
        part = (size + summand) // divisor
        factor = number // part if part > 0 else 0
        way = Way(factor, summand, divisor)
        if factor and all(way.at(n) == w for w, n in pairs):
            yield way


def _linear(pairs: Sequence[tuple[int, int]]) -> Iterator[Way]:
    """`2 * n + 1`: labels with a blank around each. Two sizes lie on some line; only few have small whole numbers."""
    (number, size), *rest = pairs
    other = next(((w, n) for w, n in rest if n != size), None)
    factor, remainder = divmod(number - other[0], size - other[1]) if other else (0, 0)
    plus = number - factor * size
    if remainder or not 1 < factor <= _LARGEST_FACTOR or not 0 < abs(plus) <= max(_SUMMANDS):
        return
    if all(w == factor * n + plus for w, n in pairs):
        yield Way(factor, plus=plus)


def is_one(found: Sequence[Way], sizes: Sequence[int]) -> bool:
    """Whether these are one way for all sizes beyond the last, as far as it was looked: of even ones, where all are even."""
    size, step = sizes[-1], math.gcd(*sizes)
    return len({tuple([way.at(size + k * step) for k in _AHEAD]) for way in found}) == 1


def telling_sizes(
    following: Mapping[int, Sequence[int]], groups: Sequence[Sequence[int]], multiples: Sequence[int]
) -> tuple[int, ...] | None:
    """Sizes of groups at which most numbers show which of the ways to compute them is theirs; None where all is told.

    following: numbers that follow the sizes, and what they are in the other traces. groups: the sizes of each group in all
    traces, that of the example second. multiples: what each group's sizes are multiples of.
    """
    olds = [sizes[1] for sizes in groups]
    open_ways: list[list[tuple[int, Way]]] = []
    for number, others in following.items():
        if any((number, *others) == tuple(sizes) for sizes in groups):
            continue
        found = [(g, way) for g, sizes in enumerate(groups) for way in ways((number, *others), sizes)]
        if len({(g, *[way.at(olds[g] + k * multiples[g]) for k in _AHEAD]) for g, way in found}) > 1:
            open_ways.append(found)
    told = {}
    for step in _FURTHER:
        sizes = tuple([old + step * multiple for old, multiple in zip(olds, multiples, strict=True)])
        told[sizes] = sum(len({way.at(sizes[g]) for g, way in found}) - 1 for found in open_ways)
    best = max(told, key=lambda sizes: told[sizes])
    return best if told[best] else None
