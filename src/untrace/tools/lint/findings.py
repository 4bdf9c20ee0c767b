"""What the linter found, as data, as text, as JSON and as HTML."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from untrace._places import place_of

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class LintFinding:
    """One line of the author's with one of JAX's sharp bits.

    `rule`: its name, as `# untrace: ignore[rule]` has it. `file`, `line`: the place, the line from 1; `source`: what stands
    there. `message`: what happens. `cost`: numbers, by what they count: "equations" (of the program that are there because
    of it), "bytes", "turns" (of a loop), "flops", "programs" (that are compiled), "elements". `change`: what to write instead.
    """

    rule: str
    file: str
    line: int
    source: str
    message: str
    cost: Mapping[str, int]
    change: str

    @property
    def place(self) -> str:
        """`model.py:12`."""
        return place_of(self.file, self.line)

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.rule}: {self.message}"]
        if self.source:
            lines.append(f"    {self.source}")
        if self.cost:
            lines.append(f"    cost: {', '.join(_counted(what, count) for what, count in self.cost.items())}")
        first, *rest = self.change.split("\n")
        return "\n".join([*lines, f"    write: {first}", *[f"           {line}" for line in rest]])


@dataclass(frozen=True)
class LintReport(Sequence[LintFinding]):
    """What `untrace.lint` found in a function: a sequence of findings, by file and line; false in a condition where there are none.

    `name`: the function. `findings`: the same as a tuple. `ignored`: how many findings comments in the source have silenced.
    `notes`: what was not looked at, and comments that silence nothing that there is.
    """

    name: str
    findings: tuple[LintFinding, ...]
    ignored: int = 0
    notes: tuple[str, ...] = field(default=())

    @overload
    def __getitem__(self, index: int) -> LintFinding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LintFinding, ...]: ...
    def __getitem__(self, index: int | slice) -> LintFinding | tuple[LintFinding, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for finding in self.findings:
            yield f"{finding}\n"
        count = len(self.findings)
        ignored = f", {self.ignored} silenced by comments" if self.ignored else ""
        yield f"{self.name}: {count or 'no'} finding{'s' * (count != 1)}{ignored}"
        for note in self.notes:
            yield f"note: {note}"

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def _repr_html_(self) -> str:
        """For notebooks: the text, escaped."""
        return f"<pre>{html.escape(str(self))}</pre>"


def _counted(what: str, count: int) -> str:
    if what == "bytes":
        return in_units(count)
    return f"{count:,} {what if count != 1 else what.removesuffix('s')}"


def in_units(count: int) -> str:
    """A number of bytes for a reader: `4 MiB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"
