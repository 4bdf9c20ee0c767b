"""What tells some leaves of a tree from the others by where they are: all kernels, but for those of the normalisations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

# The words on the way from a tree to a leaf, outermost first: its keys, names of its fields, places in its lists.
Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class Selection:
    """The leaves whose last word is one of `last`, or is none of it if `others` (without words: whatever it is); and of these
    those on whose way a word of `within` stands, also as a part of a word, and none of `without`."""

    last: tuple[str, ...] = ()
    others: bool = False
    within: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def has(self, words: Words) -> bool:
        """Whether a leaf is one of them."""
        if self.last and (words[-1] in self.last) is self.others:
            return False
        found = [word for word in (*self.within, *self.without) if any(word in other for other in words)]
        return (not self.within or not set(found).isdisjoint(self.within)) and set(found).isdisjoint(self.without)

    @property
    def is_of_words(self) -> bool:
        """Whether nothing but plain words tells them."""
        return all(word.isidentifier() for word in (*self.last, *self.within, *self.without))


_MOST = 4  # words of one selection: a reader would rather see the leaves


def selection(ways: Sequence[Words], selected: Collection[int]) -> Selection | None:
    """The shortest selection of just the leaves at the places `selected`; None where there is none of a few words.

    ways: the words of each leaf, in the order of the leaves.
    """
    if not all(ways):
        return None
    for candidate in _candidates(ways, selected):
        if candidate.is_of_words and all(
            candidate.has(words) is (place in selected) for place, words in enumerate(ways)
        ):
            return candidate
    return None


def _candidates(ways: Sequence[Words], selected: Collection[int]) -> Iterator[Selection]:
    chosen = [words for place, words in enumerate(ways) if place in selected]
    others = [words for place, words in enumerate(ways) if place not in selected]
    ends, other_ends = _ends(chosen), _ends(others)
    inside = list(dict.fromkeys(word for words in chosen for word in words[:-1]))
    outside = list(dict.fromkeys(word for words in others for word in words[:-1]))
    by_end = [Selection(ends), Selection(other_ends, others=True)]
    by_end.sort(key=lambda s: len(s.last))
    yield from (s for s in by_end if len(s.last) <= _MOST)
    for count in (1, 2):
        yield from (Selection(within=words) for words in itertools.combinations(inside, count))
        yield from (Selection(without=words) for words in itertools.combinations(outside, count))
    if len(ends) < _MOST:
        yield from (Selection(ends, without=(word,)) for word in outside)
        yield from (Selection(ends, within=(word,)) for word in inside)


def _ends(ways: Sequence[Words]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words[-1] for words in ways))
