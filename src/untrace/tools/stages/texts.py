"""The stages that are Python or jaxprs: the author's source, the program as JAX prints it, what untrace writes."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Sequence

from untrace import jax_compat
from untrace._api import Decompiled
from untrace._places import place_of
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance
from untrace.tools.stages.matching import Matcher
from untrace.tools.stages.model import NOTHING, Line, Stage, indented_folds, safe, with_what_folds_hold
from untrace.tools.stages.program import Numbered


def author_stage(program: Numbered) -> Stage:
    """The functions of the author's in which the program was made, those of each file in its order."""
    computes: dict[tuple[str, int], set[int]] = {}
    holds: dict[tuple[str, int], set[int]] = {}
    for number, sites in enumerate(program.sites):
        for site in sites:
            for frame in site.user_frames or site.frames[-1:]:
                into = computes if frame is site.frame else holds
                for line in _lines_of(frame):
                    into.setdefault((frame.file, line), set()).add(number)
    lines: list[Line] = []
    folds: list[tuple[int, int]] = []
    for file in dict.fromkeys(f.file for sites in program.sites for site in sites for f in site.user_frames):
        text = linecache.getlines(file)
        shown = sorted({line for f, line in (*computes, *holds) if f == file})
        if not text or not shown:
            continue
        lines.append(Line(f"# {safe(place_of(file, '')[:-1])}", None))
        for start, end in _definitions(text, shown):
            lines.append(Line("", None))
            first = len(lines)
            for number in range(start, end + 1):
                own = frozenset(computes.get((file, number), ()))
                rest = NOTHING.union(holds.get((file, number), ()), *[program.inside[n] for n in own]) - own
                lines.append(Line(safe(text[number - 1].rstrip("\n")), number, own, rest))
            folds += [(first + a, first + b) for a, b in python_folds([line.text for line in lines[first:]])]
    return Stage("source", "source", "python", with_what_folds_hold(lines, folds), tuple(folds))


def _lines_of(frame: Frame) -> Iterable[int]:
    start, end = frame.position[:2]
    return range(start, (end or start) + 1) if start else ()


def _definitions(text: Sequence[str], shown: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) lines of the functions and statements that those lines are in: of a class the methods."""
    try:
        body = ast.parse("".join(text)).body
    except SyntaxError:
        return [(shown[0], shown[-1])]
    found: dict[tuple[int, int], None] = {}
    for line in shown:
        statements: Sequence[ast.stmt] = body
        while True:
            inside = [s for s in statements if _start(s) <= line <= (s.end_lineno or s.lineno)]
            if not inside or not isinstance(inside[0], ast.ClassDef):
                break
            found[_start(inside[0]), inside[0].lineno] = None
            statements = inside[0].body
        if inside:
            found[_start(inside[0]), inside[0].end_lineno or inside[0].lineno] = None
    return sorted(found)


def _start(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *[d.lineno for d in decorators]])


def python_folds(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(first, last) lines of functions and classes, from 0."""
    begins = [text.lstrip().startswith(("def ", "async def ", "class ")) for text in texts]
    found = []
    for start, end in indented_folds(texts, begins):
        while end > start and not texts[end].strip():
            end -= 1
        found.append((start, end))
    return tuple(found)


def jaxpr_stage(key: str, title: str, program: Numbered, known: Sequence[frozenset[int]] | None = None) -> Stage:
    """The program as JAX prints it. known: for each of its equations what it is called here; None: by its own number."""
    lines = []
    for number, (text, marks) in enumerate(jax_compat.printed_with_marks(program.jaxpr), 1):
        own = frozenset(marks) if known is None else NOTHING.union(*[known[mark] for mark in marks])
        lines.append(Line(safe(text), number, own))
    texts = [line.text for line in lines]
    folds = indented_folds(texts, ["{ lambda" in text or text.rstrip().endswith("[") for text in texts])
    return Stage(key, title, "jaxpr", with_what_folds_hold(lines, folds), folds)


def written_stage(
    key: str, title: str, text: Decompiled, matcher: Matcher, provenance: Provenance, values: dict[int, tuple[str, ...]]
) -> Stage:
    """What untrace writes. values: what a run gave, by the lines of the text."""
    traced = Numbered(text.source_map.jaxpr, provenance)
    behind = matcher.behind(traced.equations, traced.origins, traced.jaxpr)
    computes: dict[int, set[int]] = {}
    holds: dict[int, set[int]] = {}
    for entry in text.source_map:
        number = traced.number_of(entry.equation)
        numbers = NOTHING if number is None else behind[number]
        for place, span in enumerate(entry.calls):
            into = computes if place == len(entry.calls) - 1 else holds
            for line in range(span.line, span.end_line + 1):
                into.setdefault(line, set()).update(numbers)
    lines = []
    for number, line in enumerate(text.source.rstrip("\n").split("\n"), 1):
        own = frozenset(computes.get(number, ()))
        rest = frozenset(holds.get(number, ())) - own
        lines.append(Line(safe(line), number, own, rest, values.get(number, ())))
    folds = python_folds([line.text for line in lines])
    return Stage(key, title, "python", with_what_folds_hold(lines, folds), folds)
