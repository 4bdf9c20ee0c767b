"""How a number may be computed of a size, and at which size it would show which of several ways it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Divisors and summands of sizes: strides, the width of a kernel, a place for a class token.
_DIVISORS = (2, 3, 4, 5, 6, 7, 8, 14, 16, 32)
_LARGEST_SUMMAND = 4
_MOST_ADDED = 3  # times the divisor
_LARGEST_FACTOR = 4  # of a size that something is added to as well
_FURTHER = range(1, 33)  # how much larger than the example's a size is that is tried
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
    is_known = len(set(sizes)) > 1 or abs(summand) <= _LARGEST_SUMMAND
    if summand and is_known and all(w == n + summand for w, n in pairs):
        yield Way(1, summand)
    yield from _linear(pairs)
    for divisor in _DIVISORS:
        yield from _divided(pairs, divisor)


def _divided(pairs: Sequence[tuple[int, int]], divisor: int) -> Iterator[Way]:
    """All ways with this divisor, those that add least first: which of them it is, only further sizes tell."""
    (number, size), *rest = pairs
    other = next(((w, n) for w, n in rest if n != size), None)
    if other is not None:
        factor = round(divisor * (number - other[0]) / (size - other[1]))
    else:
        factor = number // (size // divisor) if size >= divisor else 0
    if factor < 1 or any(w % factor for w, _ in pairs):
        return
    starts = [divisor * (w // factor) - n for w, n in pairs]
    summands = range(max(starts), min(starts) + divisor)
    if summands and min(map(abs, summands)) <= _MOST_ADDED * divisor:
        yield from [Way(factor, summand, divisor) for summand in sorted(summands, key=abs)]


def _linear(pairs: Sequence[tuple[int, int]]) -> Iterator[Way]:
    """`2 * n + 1`: labels with a blank around each. Two sizes lie on some line; only few have small whole numbers."""
    (number, size), *rest = pairs
    other = next(((w, n) for w, n in rest if n != size), None)
    factor, remainder = divmod(number - other[0], size - other[1]) if other else (0, 0)
    plus = number - factor * size
    if remainder or not 1 < factor <= _LARGEST_FACTOR or not 0 < abs(plus) <= _LARGEST_SUMMAND:
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


def sizes_at_a_step(
    following: Mapping[int, Sequence[int]],
    groups: Sequence[Sequence[int]],
    multiples: Sequence[int],
    before: bool,
) -> tuple[int, ...] | None:
    """Sizes at which most numbers that are parts of sizes are one more than `before`, or right before that: what is no such part
    is another number at one of the two. None where there are no parts."""
    parts: list[list[Way]] = [[] for _ in groups]
    for number, others in following.items():
        several = [list(ways((number, *others), sizes)) for sizes in groups]
        if all(found[0].divisor > 1 for found in several if found):
            for of, found in zip(parts, several, strict=True):
                of.extend(found[:1])
    if not any(parts):
        return None
    wanted = []
    for of, sizes, multiple in zip(parts, groups, multiples, strict=True):
        steps = [sizes[1] + k * multiple for k in _FURTHER]
        at_one = [sum((n + way.summand + before) % way.divisor == 0 for way in of) for n in steps]
        wanted.append(steps[at_one.index(max(at_one))])
    return tuple(wanted)
