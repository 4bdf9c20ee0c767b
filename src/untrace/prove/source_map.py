"""The source map of a written text: which of its expressions computes which equation, and which of the author's that was.

The text is traced once more, and its trace laid over the original's, as for the proof. JAX keeps for each equation the
calls that led to it: those in the text are its spans, those in the author's files its origin. So what the printer did
(functions merged, statements made a loop, calls kept) needs no bookkeeping: whatever ran, is on the map.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any

import jax

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace._places import place_of
from untrace.jaxprs.equal.pairs import paired_equations
from untrace.provenance.frames import Frame, Position
from untrace.provenance.sites import Provenance


@dataclass(frozen=True, slots=True)
class Span:
    """An expression in a file. Lines count from 1, columns from 0, in characters; the end is behind the last one.

    `function`: the function that it stands in. `file`: "" for the written text.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    function: str
    file: str = ""

    def __str__(self) -> str:
        place = place_of(self.file, str(self.line)) if self.file else f"line {self.line}"
        return f"{place}:{self.column} ({self.function})"

    @property
    def text(self) -> str:
        """The expression of the author's, "" where the file is not to be had."""
        lines = [linecache.getline(self.file, n) for n in range(self.line, self.end_line + 1)]
        if not self.file or not all(lines):
            return ""
        lines[-1] = lines[-1][: self.end_column]
        lines[0] = lines[0][self.column :]
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class Mapped:
    """One equation of the program.

    `path`: its place: the number of an equation, that of a jaxpr inside it, the number of an equation there, and so on.
    `calls`: the expressions of the text that compute it, from the entry inwards: the call of a function, then the
    expression in that function. In a loop of the text each turn has equations of its own, with the same calls.
    `author`: the author's own expression; None where JAX does not know. `backward`: whether it belongs to a backward pass,
    of what stands there. `equation`: JAX's object.
    """

    path: tuple[int, ...]
    calls: tuple[Span, ...]
    author: Span | None
    backward: bool
    equation: Any = field(repr=False, compare=False)

    @property
    def span(self) -> Span | None:
        """The innermost expression of the text; None of what JAX puts in by itself."""
        return self.calls[-1] if self.calls else None

    @property
    def primitive(self) -> str:
        return str(self.equation.primitive.name)


@dataclass(frozen=True)
class SourceMap:
    """The equations of a program, in its order, each with its expressions in the text and in the author's files.

    The program is the original's; where the text was proven to be a simplified one, the simplified one. An equation inside
    a function that is shared comes once for each place where it is. `jaxpr`: that program, closed.
    """

    entries: tuple[Mapped, ...]
    jaxpr: Any = field(repr=False)

    @cached_property
    def _by_line(self) -> dict[int, list[Mapped]]:
        found: dict[int, list[Mapped]] = {}
        for entry in self.entries:
            lines = {n for span in entry.calls for n in range(span.line, span.end_line + 1)}
            for line in lines:
                found.setdefault(line, []).append(entry)
        return found

    def __iter__(self) -> Iterator[Mapped]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def at(self, line: int, column: int | None = None) -> list[Mapped]:
        """What a line of the text computes, by itself and in the functions that it calls; of an expression on that line,
        where a column is given."""
        found = self._by_line.get(line, [])
        if column is None:
            return list(found)
        return [entry for entry in found if any(_holds(span, line, column) for span in entry.calls)]

    def authors(self, line: int) -> list[Span]:
        """The author's expressions behind a line of the text, each once, in the order in which they are computed."""
        return list(dict.fromkeys(entry.author for entry in self.at(line) if entry.author is not None))

    def annotated(self, source: str) -> str:
        """The text, with what of the author's each line computes itself behind it: `# model.py:12  x @ w`."""
        own: dict[int, dict[tuple[str, int], Span]] = {}
        for entry in self.entries:
            if entry.span is None or entry.author is None:
                continue
            places = own.setdefault(entry.span.line, {})
            known = places.get((entry.author.file, entry.author.line))
            if known is None or _holds(entry.author, known.line, known.column):  # the widest of a line
                places[entry.author.file, entry.author.line] = entry.author
        lines = source.split("\n")
        width = max((len(lines[n - 1]) for n in own), default=0)
        for number, spans in own.items():
            said = "; ".join(
                f"{place_of(s.file, str(s.line))}  {' '.join(s.text.split())}".rstrip() for s in spans.values()
            )
            safe = "".join(c if c.isprintable() else "?" for c in said)
            lines[number - 1] = f"{lines[number - 1]:{width}}  # {safe}"
        return "\n".join(lines)

    def of(self, file: str, line: int) -> list[Mapped]:
        """What a line of the author's computes: `of("model.py", 12)`, by the end of the file's path."""
        return [
            entry
            for entry in self.entries
            if entry.author is not None
            and entry.author.line <= line <= entry.author.end_line
            and (entry.author.file == file or entry.author.file.endswith("/" + file))
        ]


def _holds(span: Span, line: int, column: int) -> bool:
    start, end = (span.line, span.column), (span.end_line, span.end_column)
    return start <= (line, column) < end


def source_map(
    text: Any, file: str, args: Any, kwargs: Any, original: Any, form: Callable[[Any], Any], provenance: Provenance
) -> SourceMap:
    """The map of `text(*args, **kwargs)`, a function of the module in `file`, over the jaxpr that it comes back as.

    form: makes of the text's trace what is compared with that.
    """
    with jax_compat.fresh_caches()():  # what was traced for the proof has no places
        again = jax.make_jaxpr(text)(*args, **kwargs)
    places = _Places(file, provenance)
    calls: dict[tuple[int, ...], tuple[Span, ...]] = {}
    authors: dict[tuple[int, ...], Span | None] = {}
    found: list[Mapped] = []
    for path, theirs, ours in paired_equations(original, form(again)):
        own = places.in_text(ours)
        outer = calls.get(path[:-2], ())
        calls[path] = own if own[:1] == outer[:1] else outer + own
        # What JAX traces by itself begins there: the way to it is that of the equation around it.
        authors[path] = places.of_author(theirs) or authors.get(path[:-2])
        backward = provenance.site(theirs).phase == "backward"
        found.append(Mapped(path, calls[path], authors[path], backward, theirs))
    return SourceMap(tuple(sorted(found, key=lambda entry: entry.path)), original)


class _Places:
    """Spans of equations, those of one place once."""

    def __init__(self, file: str, provenance: Provenance) -> None:
        self._file, self._provenance = file, provenance
        self._positions: IdentityMap[CodeType, Sequence[Position]] = IdentityMap()
        self._frames: dict[Any, tuple[Span, ...]] = {}

    def in_text(self, eqn: Any) -> tuple[Span, ...]:
        """The calls in the text that led to an equation of its trace, from the entry inwards."""
        traceback, _ = jax_compat.equation_source(eqn)
        found = self._frames.get(traceback)
        if found is None:
            codes, offsets = jax_compat.raw_frames(traceback)
            frames = [Frame(c, at, False, self._positions) for c, at in zip(codes, offsets, strict=True)]
            spans = [_span(frame, "") for frame in reversed(frames) if frame.file == self._file]
            found = self._frames[traceback] = tuple([s for s in spans if s is not None and s.function != "<module>"])
        return found

    def of_author(self, eqn: Any) -> Span | None:
        frame = self._provenance.site(eqn).frame
        return None if frame is None else _span(frame, frame.file)


def _span(frame: Frame, file: str) -> Span | None:
    line, end_line, column, end_column = frame.position
    if line is None or column is None:
        return None
    return Span(
        line,
        _characters(frame.file, line, column),
        end_line,
        _characters(frame.file, end_line, end_column),
        frame.function,
        file,
    )


def _characters(file: str, line: int, column: int) -> int:
    """A column that counts bytes, in characters."""
    text = linecache.getline(file, line)
    return column if text.isascii() else len(text.encode()[:column].decode(errors="ignore"))
