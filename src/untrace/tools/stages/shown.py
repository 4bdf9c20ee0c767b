"""What `untrace.stages` gives: all stages of a function, in a terminal, as a page, in a notebook."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from untrace._errors import OptionError
from untrace.prove.saving import save_page
from untrace.tools.stages import page
from untrace.tools.stages.model import NOTHING, Computation, Line, Stage

_MOST_LINES = 6  # of one stage, behind one line of the source
_WIDEST = 110


@dataclass(eq=False, frozen=True)
class Stages:
    """A function through every stage. `print(s)` shows them by the author's lines; `s.save("page.html")` side by side.

    `stages`: the texts, from the author's source to the HLO; `s["hlo"]` is one of them. `computations`: the equations of
    the program, whose numbers the lines of each stage have. `notes`: what could not be shown.
    """

    name: str
    stages: tuple[Stage, ...] = field(repr=False)
    computations: tuple[Computation, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __getitem__(self, key: str) -> Stage:
        """A stage by its key: "source", "jaxpr", "text", "stablehlo", "hlo"; "jaxpr0", "text0" of the function inside all
        transformations. Raises KeyError with the keys that there are."""
        for stage in self.stages:
            if stage.key == key:
                return stage
        raise KeyError(f"there is no stage {key!r}; there are {', '.join(stage.key for stage in self.stages)}")

    def linked(self, stage: str, number: int, other: str) -> list[int]:
        """The lines of another stage that compute what a line of `stage` computes: `s.linked("source", 12, "hlo")`.

        Raises KeyError for a stage or a line that is not there.
        """
        wanted = self[stage].at(number)
        numbers = wanted.computes or wanted.holds
        return [line.number for line in self[other].lines if line.number is not None and line.computes & numbers]

    def lines(self) -> Iterator[str]:
        """The text for a terminal: behind each line of the author's what it is in each other stage."""
        yield from self._summary()
        shown = [stage for stage in self.stages[1:] if not stage.same_as]
        width = max((len(stage.title) for stage in shown), default=0)
        for line in self.stages[0].lines:
            if not line.computes:
                if line.number is None and line.text:
                    yield from ("", line.text)
                continue
            flops = sum(self.computations[n].flops for n in line.computes)
            cost = f"{_counted(len(line.computes), 'equation')}{f', {in_words(flops)}flop' if flops else ''}"
            yield f"{line.number:5}  {line.text}    ({cost})"
            for stage in shown:
                found = list(_beginnings(stage, line.computes))
                for place, other in enumerate(found[:_MOST_LINES]):
                    name = stage.title if place == 0 else ""
                    yield f"       {name:{width}} {other.number or '':5}  {_short(other, line)}"
                if len(found) > _MOST_LINES:
                    yield f"       {'':{width}}        … {_counted(len(found) - _MOST_LINES, 'more line')}"

    def _summary(self) -> Iterator[str]:
        yield f"{self.name}: {_counted(len(self.computations), 'equation')}"
        width = max(len(stage.title) for stage in self.stages)
        for stage in self.stages:
            linked = NOTHING.union(*[line.computes for line in stage.lines])
            lines = _counted(sum(line.number is not None for line in stage.lines), "line")
            same = (
                f"the same as {stage.same_as}"
                if stage.same_as
                else f"{len(linked)} of the equations stand on its lines"
            )
            yield f"  {stage.title:{width}}  {lines:>13}  {same}"

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *[f"note: {note}" for note in self.notes]])

    def html(self) -> str:
        """The page: one file that opens from a disk, without a network."""
        return page.html(self.name, self.stages, self.computations, self.notes)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes the page to `path`, an `.html` file, whole or not at all; returns the path.

        Raises OutputExistsError where it exists, unless `overwrite`, and OptionError for a path that is none for a page.
        """
        if not os.fspath(path).endswith((".html", ".htm")):
            raise OptionError(f"a page is saved as an .html file, not as {os.fspath(path)!r}")
        return save_page(path, self.html(), overwrite)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which can neither read nor change the notebook around it."""
        return (
            f'<iframe sandbox="allow-scripts" style="width:100%;height:640px;border:1px solid #8884;border-radius:6px" '
            f'srcdoc="{html.escape(self.html())}"></iframe>'
        )


def _beginnings(stage: Stage, numbers: frozenset[int]) -> Iterator[Line]:
    """The lines that compute one of these; of an equation that JAX prints on several lines the first."""
    before = NOTHING
    for line in stage.lines:
        if line.computes & numbers and not (stage.language == "jaxpr" and line.computes == before):
            yield line
        before = line.computes


def _short(line: Line, source: Line) -> str:
    text = line.text.strip()
    text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    others = len(line.computes - source.computes)
    return f"{text}  (and {_counted(others, 'equation')} of other lines)" if others else text


def _counted(count: int, of: str) -> str:
    return f"{count:,} {of}{'' if count == 1 else 's'}"


def in_words(count: int) -> str:
    """12.3 M for 12345678."""
    for factor, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} "
