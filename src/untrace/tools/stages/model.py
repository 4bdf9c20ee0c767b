"""The stages of a function as lines of text, and which computations stand on which lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a stage.

    `number`: how it is counted; None of a line that is none of the text. `computes`: the numbers of the equations that this
    line stands for. `holds`: of those that it leads to: in the functions that it calls, in the loop that it begins. `values`:
    what a run gave there.
    """

    text: str
    number: int | None
    computes: frozenset[int] = NOTHING
    holds: frozenset[int] = NOTHING
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One text of the program. `key`: what it is called in a link. `language`: "python", "jaxpr", "mlir" or "hlo".

    `folds`: first and last lines, from 0, of functions and what else can be folded. `same_as`: the title of the stage that
    it says the same as; "" of one that changes something.
    """

    key: str
    title: str
    language: str
    lines: tuple[Line, ...]
    folds: tuple[tuple[int, int], ...] = ()
    same_as: str = ""

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def at(self, number: int) -> Line:
        """The line that is counted so. Raises KeyError where there is none."""
        for line in self.lines:
            if line.number == number:
                return line
        raise KeyError(f"{self.title} has no line {number}")


@dataclass(frozen=True, slots=True)
class Computation:
    """An equation of the program.

    `name`: of the primitive. `type`: of what it gives. `place`: the author's line, "" where it is not known. `backward`:
    whether it is part of a backward pass. `flops`: floating-point operations by its definition, in all turns of the loops
    around it, as far as their number is known. `inside`: the numbers of the equations in its bodies.
    """

    number: int
    name: str
    type: str
    place: str
    backward: bool
    flops: int
    inside: frozenset[int] = NOTHING


_MOST_CHARACTERS = 2000  # of a line; what is longer holds an array


def safe(text: str) -> str:
    """A line that shows as what it is: no tabs, nothing that moves the cursor or turns the direction of writing, no end of
    a line that is very long."""
    text = text.expandtabs(4)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]} … {len(text):,} characters"
    return text if text.isprintable() else "".join([c if c.isprintable() else "\ufffd" for c in text])


def with_what_folds_hold(lines: Sequence[Line], folds: Sequence[tuple[int, int]]) -> tuple[Line, ...]:
    """The lines, of which the first of a fold leads to what all lines in it compute."""
    found = list(lines)
    for start, end in folds:
        inner = NOTHING.union(*[line.computes | line.holds for line in lines[start : end + 1]])
        first = found[start]
        found[start] = Line(
            first.text, first.number, first.computes, first.holds | (inner - first.computes), first.values
        )
    return tuple(found)


def indented_folds(texts: Sequence[str], begins: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """(first, last) lines of blocks: from a line that `begins` one, over those that stand further in, to the one that closes
    it, `}` or `)` at its own depth."""
    depths = [len(text) - len(text.lstrip()) for text in texts]
    found = []
    open_blocks: list[int] = []
    for place, text in enumerate(texts):
        if not text.strip():
            continue
        while open_blocks and depths[place] <= depths[open_blocks[-1]]:
            start = open_blocks.pop()
            closes = depths[place] == depths[start] and text.lstrip().startswith(("}", ")", "]", "in "))
            end = place if closes else place - 1
            while not texts[end].strip():
                end -= 1
            if end > start:
                found.append((start, end))
        if begins[place]:
            open_blocks.append(place)
    last = max((i for i, text in enumerate(texts) if text.strip()), default=0)
    found += [(start, last) for start in open_blocks if last > start]
    return tuple(sorted(found))
