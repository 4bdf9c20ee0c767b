"""What the doctor found, as data, as text and as HTML."""

from __future__ import annotations

import ast
import json
import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from untrace import _html
from untrace._api import Decompiled
from untrace.prove.saving import save_module
from untrace.python import helpers

# How much it matters, the most first.
SEVERITIES = ("error", "warning", "minor", "far")
_MEANS = {
    "error": "a result is NaN, infinite, zero or has no right digit",
    "warning": "a result loses digits",
    "minor": "there is a better way to write it; the last bits of the inputs alone would do as much",
    "far": "only on inputs of quite another size than the given ones",
}


@dataclass(frozen=True)
class Finding:
    """One statement whose numbers go wrong, and matter.

    `statement`: the line of the written text (`line`, from 1) in which it first happens; `place`: `model.py:12 (loss)` of the
    author. `cause`: "overflow", "underflow", "cancellation", "sensitivity", "nan-rescue", "rounding" or "dead gradient";
    `causes`: all that were found there. `detail`: what happened on the input `example`. `symptom`: what came out, "nan", "inf", "0" (of a
    derivative: "dead gradient") or "wrong". `severity`: "error", "warning", "minor" or "far". `error`: of the result, in
    ULP. `advice`: what is wrong with the way it is written; `repaired`: the statement as it should be, both None where the
    doctor knows none that holds.
    """

    statement: str
    place: str
    line: int | None
    cause: str
    causes: tuple[str, ...]
    detail: str
    symptom: str
    severity: str
    example: str
    error: float
    advice: str | None = None
    repaired: str | None = None

    def __str__(self) -> str:
        where = ", ".join(x for x in (self.place, f"line {self.line} of the text" if self.line else "") if x)
        lines = [f"{self.severity}: {self.cause} in `{self.statement}`" + (f"  ({where})" if where else "")]
        off = "" if math.isinf(self.error) else f", {_ulps(self.error)} off"
        lines.append(f"    {self.detail}; the result is {self.symptom}{off} for {self.example}")
        if self.causes[1:]:
            lines.append(f"    elsewhere: {', '.join(self.causes[1:])}")
        if self.advice:
            lines.append(f"    {self.advice}")
        if self.repaired:
            first, *rest = self.repaired.split("\n")
            lines.append(f"    write: {first}")
            lines += [f"           {line}" for line in rest]
        return "\n".join(lines)


@dataclass(frozen=True)
class Range:
    """Inputs of one size: how many there were, and the worst results on them, in ULP: as written, and repaired."""

    inputs: str
    count: int
    written: float
    repaired: float


@dataclass(frozen=True)
class Diagnosis:
    """What `untrace.doctor` found in a function. True in a condition when it found nothing.

    `findings`: statements that go wrong, the worst first. `source`: the module with all repairs in it, None where there
    are none. `name`: the function. `text`: the module as it was examined, "" where nothing was found. `ranges`: the errors by
    the size of the inputs. `remarks`: what else there is to know: what goes wrong only far away, or too little to matter.
    `precision`: what the program computes with. `inputs`: on how many inputs it was examined. `repairs`: the names of those
    in `source`; `proof`: of what `source` is; `arrays`: its large constants.
    """

    name: str
    precision: str
    inputs: int
    findings: tuple[Finding, ...]
    source: str | None
    text: str
    ranges: tuple[Range, ...]
    remarks: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    proof: str = ""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        number = len(self.findings)
        what = "nothing wrong" if not number else f"{number} finding{'s' * (number > 1)}"
        on = f"{self.inputs} input{'s' * (self.inputs != 1)}"
        if self.inputs:
            yield f"{self.name}: {what} on {on}, {self.precision} beside exact arithmetic"
        else:
            yield f"{self.name}: nothing was examined"
        for finding in self.findings:
            yield ""
            yield str(finding)
        if self.ranges:
            yield ""
            yield from _table(self.ranges, self.source is not None)
        for remark in self.remarks:
            yield f"note: {remark}"
        if self.source is not None:
            yield ""
            yield "repaired:"
            yield ""
            text, rest = helpers.parted(self.source)
            yield text.rstrip("\n")
            if rest:
                yield "\n\n# ... and the helpers of its guard"

    def to_json(self) -> str:
        """All of it as JSON; an error that is infinite is the string "inf"."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "arrays"}
        return json.dumps(_plain(values), indent=1)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str | None:
        """Writes the repaired module to `path`, its large constants beside it; None where there is none to write.

        Raises OutputExistsError where a file exists, unless `overwrite`.
        """
        return None if self.source is None else save_module(path, self.source, dict(self.arrays), overwrite)

    def _repr_html_(self) -> str:
        """For notebooks: the findings, the errors by ranges, the text with the lines that go wrong, the repaired source."""
        head = _html.element("b", next(self._lines()))
        parts = [_html.element("div", *_shown(finding)) for finding in self.findings]
        if self.ranges:
            heads, *rows = _columns(self.ranges, self.source is not None)
            parts.append(_html.table(rows, heads))
        parts += [_html.element("div", f"note: {remark}", kind="dim") for remark in self.remarks]
        if self.text:
            marked = [f.line for f in self.findings if f.line]
            parts.append(_html.folded("the text that was examined", _html.code(self.text, marked=marked)))
        if self.source is not None:
            title = ", ".join((f"repaired: {', '.join(self.repairs)}", *[p for p in (self.proof,) if p]))
            parts.append(_html.folded(title, *_html.codes(*helpers.parted(self.source)), is_open=True))
        return _html.display(head, *parts)


def _shown(finding: Finding) -> Iterator[_html.Markup]:
    """A finding in HTML: its severity, its statement, and the rest of what it says below."""
    what, *rest = str(finding).split("\n")
    yield _html.element("span", finding.severity, kind=finding.severity)
    yield _html.joined([what.removeprefix(finding.severity)])
    yield _html.element("pre", "\n".join(rest))


def _plain(value: object) -> object:
    """A value in JSON's own types."""
    if isinstance(value, (Finding, Range)):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return "inf" if isinstance(value, float) and not math.isfinite(value) else value


def _ulps(error: float) -> str:
    return f"{error:.3g} ULP"


def _table(ranges: Sequence[Range], is_repaired: bool) -> Iterator[str]:
    """The worst errors by the size of the inputs, as lines."""
    rows = list(_columns(ranges, is_repaired))
    width = max(len(row[0]) for row in rows)
    for inputs, *errors, bar in rows:
        yield "  ".join((f"{inputs:{width}}", *[f"{e:>10}" for e in errors], bar)).rstrip()


def _columns(ranges: Sequence[Range], is_repaired: bool) -> Iterator[tuple[str, ...]]:
    """A head, and the worst errors by the size of the inputs, with a bar for each: its length is the logarithm."""
    yield ("inputs", "worst ULP", *["repaired"] * is_repaired, "")
    for r in ranges:
        bar = _bar(r.written, r.repaired if is_repaired else r.written)
        yield (r.inputs, _short(r.written), *[_short(r.repaired)] * is_repaired, bar)


def _short(error: float) -> str:
    return "all" if math.isinf(error) else f"{error:.3g}"


def _bar(written: float, repaired: float) -> str:
    """What is left after the repair, and what went away."""
    left, whole = _length(repaired), _length(written)
    return "█" * left + "░" * max(whole - left, 0)


def _length(error: float) -> int:
    return 24 if math.isinf(error) else max(0, min(24, round(math.log2(max(error, 1.0)))))


def line_in(text: Decompiled | None, file: str, line: int, names: Sequence[str]) -> int | None:
    """The line of the text that computes what stands on a line of the author's, of these primitives where there are any."""
    if text is None or not file:
        return None
    entries = [
        e for e in text.source_map if e.span is not None and e.author is not None
        and e.author.file == file and e.author.line <= line <= e.author.end_line
    ]  # fmt: skip
    for entry in [e for name in names for e in entries if e.primitive == name] + entries:
        assert entry.span is not None
        return entry.span.line
    return None


def statements_of(text: Decompiled, file: str, line: int) -> str:
    """The statements of the text that compute what stands on a line of the author's, as they stand there."""
    numbers = {
        e.span.line
        for e in text.source_map
        if e.span is not None and e.author is not None and e.author.file == file
        and e.author.line <= line <= e.author.end_line
    }  # fmt: skip
    found: dict[tuple[int, int], None] = {}
    for number in sorted(numbers):
        around = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(ast.parse(text.source))
            if isinstance(node, ast.stmt) and not hasattr(node, "body")
            and node.lineno <= number <= (node.end_lineno or node.lineno)
        ]  # fmt: skip
        found.update(dict.fromkeys(around[-1:]))
    lines = text.source.split("\n")
    return "\n".join(textwrap.dedent("\n".join(lines[first - 1 : last])) for first, last in found)
