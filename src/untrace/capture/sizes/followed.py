"""Whether the numbers of a program follow its sizes at further ones, down to the smallest: what the example's and one large
size tell may be so by chance, or only from some size on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from untrace._errors import UntraceError
from untrace.capture.function import Captured
from untrace.capture.sizes.arithmetic import telling_sizes, ways
from untrace.capture.sizes.correspondence import Correspondence, Different, correspondence
from untrace.capture.sizes.dimensions import Place

_MOST_FURTHER = 2  # traces that tell ways to compute a number apart
_MOST_SMALLER = 5  # traces in search of the smallest size
_MOST_ALONE = 4  # groups for which it is searched by itself


@dataclass(frozen=True, slots=True)
class Group:
    """Dimensions of the inputs that are of one size: `old` in the example, `size` where it stands for nothing else.

    `least`: the smallest size of all examples. `multiple`: what both are multiples of, where that is part of the program (an image that is halved).
    """

    places: tuple[Place, ...]
    least: int
    old: int
    size: int
    multiple: int = 1


def followed_numbers(every: Sequence[Captured]) -> Correspondence:
    """How the numbers of traces correspond, of those with calls where JAX differentiates an array of one row otherwise."""
    try:
        return correspondence(*[c.jaxpr for c in every])
    except Different:
        called = [c.traced_calls.jaxpr for c in every if c.traced_calls is not None]
        if len(called) < len(every):
            raise
        return correspondence(*called)


class Followed:
    """The numbers of a program, and what they follow in traces at several sizes.

    found: how they correspond in `every` trace, of which the first is at the sizes of `groups` and the second is the
    example's. trace: the program at other sizes of them.
    """

    def __init__(
        self,
        found: Correspondence,
        groups: Sequence[Group],
        every: Sequence[Captured],
        trace: Callable[[Sequence[Group]], Captured],
    ) -> None:
        self._found, self._groups, self._every, self._trace = found, groups, list(every), trace

    def _sizes(self) -> list[list[int]]:
        """Of each group the sizes in all traces."""
        places = [g.places[0] for g in self._groups]
        return [[one.jaxpr.in_avals[leaf].shape[axis] for one in self._every] for leaf, axis in places]

    def _takes(self, sizes: Sequence[int]) -> bool:
        """Whether the program takes these sizes. Then its numbers there count from here on. Raises Different where it is
        another program there, or numbers do not follow the sizes as before."""
        before = self._found.following()
        try:
            more = self._trace([replace(g, size=n) for g, n in zip(self._groups, sizes, strict=True)])
        except UntraceError:
            return False
        found = followed_numbers([*self._every, more])
        after = found.following()
        if before is None or after is None or after.keys() != before.keys():
            raise Different
        known = self._sizes()
        for number, seen in after.items():
            if any(_is_way((number, *seen[:-1]), of) for of in known) and not any(
                _is_way((number, *seen), [*of, n]) for of, n in zip(known, sizes, strict=True)
            ):
                raise Different
        self._found = found
        self._every.append(more)
        return True

    def _is_the_same(self, sizes: Sequence[int]) -> bool:
        """Whether the program takes these sizes, and is the same one there."""
        try:
            return self._takes(sizes)
        except Different:
            return False

    def least(self) -> tuple[int, ...]:
        """Of each group the smallest size from which on the program is the same one, as far as was tried: 2, for an array
        of one row is broadcast, where the example has more; else what halving finds, of all groups at once and then of
        those that alone may be the smallest. Raises Different where it is another one at larger sizes than the example's."""
        lows = [min(g.least, max(g.multiple, 2)) for g in self._groups]
        spans = [g.least - low for g, low in zip(self._groups, lows, strict=True)]
        if not any(spans) or self._is_the_same(lows):
            return tuple(lows)
        found = self._halved(lows, spans)
        if found == [g.least for g in self._groups]:
            self._takes([g.old + g.multiple for g in self._groups])  # its numbers may follow nothing, but by chance
        for number, low in enumerate(lows[:_MOST_ALONE]):
            alone = [*found[:number], low, *found[number + 1 :]]
            if len(lows) > 1 and found[number] > low and self._is_the_same(alone):
                found = alone
        return tuple(found)

    def _halved(self, lows: Sequence[int], spans: Sequence[int]) -> list[int]:
        """The same of all groups at once. spans: by how much the examples are larger than the lowest sizes."""
        bad, good = 0, max(spans)  # by how much the sizes are larger than the lowest

        def at(more: int) -> list[int]:
            several = zip(lows, spans, self._groups, strict=True)
            return [low + min(more, span) // g.multiple * g.multiple for low, span, g in several]

        for _ in range(_MOST_SMALLER):
            if good - bad < 2:
                break
            middle = good - 1 if good == max(spans) else (bad + good) // 2
            if self._is_the_same(at(middle)):
                good = middle
            elif good == max(spans):
                break
            else:
                bad = middle
        return at(good)

    def told_apart(self) -> Correspondence:
        """How the numbers correspond in as many traces as it takes to tell what they are: 18 of 19 rows and 2002 of 2003
        are all but the last, or an even number of them. Raises Different where they follow the sizes in no way."""
        for _ in range(_MOST_FURTHER):
            multiples = [g.multiple for g in self._groups]
            wanted = telling_sizes(self._found.following() or {}, self._sizes(), multiples)
            if wanted is None or not self._takes(wanted):
                break
        return self._found


def _is_way(wanted: Sequence[int], sizes: Sequence[int]) -> bool:
    return next(ways(wanted, sizes), None) is not None
