"""Whether the numbers of a program follow its sizes at further ones, down to the smallest: what the example's and one large
size tell may be so by chance, or only from some size on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from untrace._errors import UntraceError
from untrace.capture.function import Captured
from untrace.capture.sizes.arithmetic import Way, sizes_at_a_step, telling_sizes, ways
from untrace.capture.sizes.correspondence import Correspondence, Different, correspondence

_MOST_FURTHER = 3  # traces that tell ways to compute a number apart
_MOST_SMALLER = 5  # traces in search of the smallest size
_LADDER = 16  # what sizes in another order are multiples of, as strided ones are (`sizes._MOST_HALVED`)
_SHARES = (0.8, 0.4, 0.1, 0.02)  # of the way to sizes at which it is another program
_NEARBY = (1, 2, 3)
_MOST_ALONE = 4  # groups for which it is searched by itself


def followed_numbers(every: Sequence[Captured]) -> Correspondence:
    """How the numbers of traces correspond, of those with calls where JAX differentiates an array of one row otherwise."""
    try:
        return correspondence(*[c.jaxpr for c in every])
    except Different:
        called = [c.traced_calls.jaxpr for c in every if c.traced_calls is not None]
        if len(called) < len(every):
            raise
        return correspondence(*called)


class Chance(Different):
    """A division gave a number at the sizes before and does not at one more: those before do not tell what it is."""


class Followed:
    """The numbers of a program, and what they follow in traces at several sizes.

    found: how they correspond in `every` trace. sizes: of each group of dimensions the sizes in all of them, first those that
    stand for nothing else, then the example's. multiples: what each group's sizes are multiples of. trace: the program at
    other sizes of the groups.
    """

    def __init__(
        self,
        found: Correspondence,
        sizes: Sequence[Sequence[int]],
        multiples: Sequence[int],
        every: Sequence[Captured],
        trace: Callable[[Sequence[int]], Captured],
    ) -> None:
        self._found, self._every, self._trace, self._multiples = found, list(every), trace, multiples
        self._sizes = [list(of) for of in sizes]

    def takes(self, sizes: Sequence[int]) -> bool:
        """Whether the program takes these sizes. Then its numbers there count from here on. Raises Different where it is
        another program there, or numbers do not follow the sizes as before."""
        before = self._found.following()
        try:
            more = self._trace(sizes)
        except UntraceError:
            return False
        found = followed_numbers([*self._every, more])
        after = found.following()
        if before is None or after is None or after.keys() != before.keys():
            raise Different
        if found.fractions.keys() != self._found.fractions.keys():
            raise Different
        bases = [_bases(at) for at in zip(*[[*of, n] for of, n in zip(self._sizes, sizes, strict=True)], strict=True)]
        for number, seen in after.items():
            known = [(of, way) for of in zip(*bases, strict=True) if (way := _way((number, *seen[:-1]), of[:-1]))]
            plain = [(of, way) for of, way in known if way.divisor == 1]
            if known and not any(_way((number, *seen), of) for of, _ in plain or known):
                raise Different if plain else Chance
        self._found = found
        self._every.append(more)
        for of, n in zip(self._sizes, sizes, strict=True):
            of.append(n)
        return True

    def _is_the_same(self, sizes: Sequence[int]) -> bool:
        """Whether the program takes these sizes, and is the same one there."""
        try:
            return self.takes(sizes)
        except Different:
            return False

    def least(self) -> tuple[int, ...]:
        """Of each group the smallest size from which on the program is the same one, as far as was tried: 2, for an array
        of one row is broadcast, where the example has more; else what halving finds, of all groups at once and then of
        those that alone may be the smallest. Raises Different where it is another one at larger sizes than the example's."""
        smallest = [min(of[1:]) for of in self._sizes]
        lows = [min(n, max(multiple, 2)) for n, multiple in zip(smallest, self._multiples, strict=True)]
        spans = [n - low for n, low in zip(smallest, lows, strict=True)]
        if not any(spans) or self._is_the_same(lows):
            return tuple(lows)
        found = self._halved(lows, spans)
        if found == smallest:  # its numbers may follow nothing, but by chance
            self.takes([of[1] + multiple for of, multiple in zip(self._sizes, self._multiples, strict=True)])
        for number, low in enumerate(lows[:_MOST_ALONE]):
            alone = [*found[:number], low, *found[number + 1 :]]
            if len(lows) > 1 and found[number] > low and self._is_the_same(alone):
                found = alone
        return tuple(found)

    def _halved(self, lows: Sequence[int], spans: Sequence[int]) -> list[int]:
        """The same of all groups at once. spans: by how much the examples are larger than the lowest sizes."""
        bad, good = 0, max(spans)  # by how much the sizes are larger than the lowest

        def at(more: int) -> list[int]:
            several = zip(lows, spans, self._multiples, strict=True)
            return [low + min(more, span) // multiple * multiple for low, span, multiple in several]

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

    def most(self, far: Sequence[Sequence[int]]) -> tuple[int | None, ...]:
        """Of each group the largest size up to which the program is the same one, None where no size was found at which it
        is another. far: sizes to try, the largest first. Raises Different where these say that nothing is known."""
        is_another = False
        for sizes in far:
            try:
                if self.takes(sizes):
                    break
            except Chance:
                raise
            except Different:
                is_another = True
        found: list[int | None] = [max(of) if is_another else None for of in self._sizes]
        for number in range(len(found)) if is_another and len(found) <= _MOST_ALONE else ():
            alone = [far[0][number] if n == number else of[1] for n, of in enumerate(self._sizes)]
            if len(found) > 1 and self._is_the_same(alone):
                found[number] = None
        return tuple(found)

    def most_before(self, far: Sequence[int]) -> tuple[int | None, ...]:
        """The same of a program that is another one at the sizes `far`: the largest of some on the way to those."""
        near = [of[0] for of in self._sizes]

        def between(share: float) -> list[int]:
            several = zip(near, far, self._multiples, strict=True)
            return [a + int(share * (b - a)) // multiple * multiple for a, b, multiple in several]

        return self.most([far, *[between(share) for share in _SHARES]])

    def follows_nearby(self) -> None:
        """Tries sizes right beside the example's: near ones may be one program by chance, where each is another. Raises
        Different where these are."""
        for step in _NEARBY:
            near = [of[1] + step * multiple for of, multiple in zip(self._sizes, self._multiples, strict=True)]
            if not self.takes(near):
                raise Different

    def turned(self) -> None:
        """Tries sizes in the other order, far from each other and with common factors: a decision between two sizes
        (`max(n, d)`, `n // d`, `gcd(n, d)`) is no number that follows one of them. Raises Different where there is one."""
        order = sorted(range(len(self._sizes)), key=lambda g: -self._sizes[g][0])
        if len(order) < 2:
            return
        ladder = [_LADDER * n for n in ((3, 12) if len(order) == 2 else range(1, len(order) + 1))]
        longer = max(1, *[-(-of[1] // ladder[order.index(g)]) for g, of in enumerate(self._sizes)])
        wanted = [ladder[order.index(g)] * longer for g in range(len(order))]
        self.takes([-(-n // multiple) * multiple for n, multiple in zip(wanted, self._multiples, strict=True)])

    def told_apart(self) -> None:
        """Traces the program at as many sizes as it takes to tell what the numbers are: 18 of 19 rows and 2002 of 2003 are all
        but the last, or an even number of them. Raises Different where they follow the sizes in no way."""
        for _ in range(_MOST_FURTHER):
            wanted = telling_sizes(self._found.following() or {}, self._sizes, self._multiples)
            if wanted is None or not self.takes(wanted):
                break
        for before in (True, False):
            wanted = sizes_at_a_step(self._found.following() or {}, self._sizes, self._multiples, before)
            if wanted is not None:
                self.takes(wanted)

    @property
    def numbers(self) -> Correspondence:
        """How the numbers correspond in all these traces."""
        return self._found


def _bases(sizes: Sequence[int]) -> list[int]:
    """What a number may be computed of: a size, and the sum and the product of two."""
    pairs = list(itertools.combinations_with_replacement(sizes, 2))
    return [*sizes, *[a + b for a, b in pairs], *[a * b for a, b in pairs]]


def _way(wanted: Sequence[int], sizes: Sequence[int]) -> Way | None:
    return next(ways(wanted, sizes), None)
