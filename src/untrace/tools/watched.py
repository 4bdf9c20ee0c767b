"""What `untrace.watch` gives: a run, statement by statement."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from untrace._errors import OptionError
from untrace.ir.types import PyTree
from untrace.tools import render
from untrace.tools.compare import Comparison, compare_records
from untrace.tools.folded import run_as_html
from untrace.tools.probe import VALUE
from untrace.tools.records import Record
from untrace.tools.saving import read_run, save_run


@dataclass(eq=False)
class Watched:
    """The values of a run, statement by statement. `print(w)` shows them.

    `result`: what the function gave, its own pytree; None of a run that was loaded. `source`: the text whose statements these are. `notes`: what was
    left out.
    """

    name: str
    result: PyTree = field(repr=False)
    source: str = field(repr=False)
    notes: tuple[str, ...] = ()
    _records: Sequence[Record] = field(repr=False, default=())
    _non_finite: Record | None = field(repr=False, default=None)
    _skipped: int = field(repr=False, default=0)  # values of turns of loops that are left out

    def records(self) -> list[Record]:
        """All records, in the order in which they were computed."""
        return list(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def all(self, name: str) -> list[Record]:
        """The records of a variable, as `w["hidden"]` names it, its parts (`params` has `params['w']`) and derivatives too."""
        if not isinstance(name, str):
            raise OptionError(f"a value of a run has a name, w['hidden']; {name!r} is none")
        function, _, short = name.rpartition(".")
        return [
            r
            for r in self._records
            if (r.name == short or r.name.startswith((f"{short}[", f"{short}.")))
            and (not function or r.function == function or r.function.endswith(f".{function}"))
            or r.name == name
        ]

    def __getitem__(self, name: str) -> Any:
        """The last value of a variable, `w["hidden"]`, or `w["layer.hidden"]` of one function's, as a NumPy array; of one with
        parts a dict of these by name. Raises KeyError where there is none, with those that are, OptionError where the value was not kept.
        """
        found = [r for r in self.all(name) if r.kind == VALUE]
        if not found:
            names = ", ".join(sorted({r.name for r in self._records})[:30])
            raise KeyError(f"no statement gave {name!r} a value; there are {names}")
        last = {r.name: r for r in found}
        for record in last.values():
            if record.value is None:
                raise OptionError(
                    f"the value of {record.name} was not kept: give watch a larger keep=, in bytes, or fewer names in only="
                )
        values = {name: record.value for name, record in last.items()}
        return next(iter(values.values())) if len(values) == 1 else values

    def where_first_nonfinite(self) -> Record | None:
        """The record of the first statement that gave a NaN or an infinity; None where none did. Turns of loops that were not
        chosen were looked at for that, too."""
        return self._non_finite

    def compare(self, other: Watched, bits: float | None = None) -> Comparison:
        """This run beside another one: of other arguments, another dtype, device or precision, or of an edited text.

        They are aligned by names and turns. bits: a statement differs that agrees in fewer significant bits; None: that
        differs at all, or, where the dtypes do, in fewer bits than the less precise one has.
        """
        if not isinstance(other, Watched) or bits is not None and not bits > 0:
            raise OptionError(
                "a run is compared with another one, in so many significant bits: compare(other, bits=12)"
            )
        return compare_records(self._records, other, bits, bool(self._skipped or other._skipped))

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes the records and the values that were kept to `path`, an `.npz` file; returns the path. `untrace.load_run`
        reads it, in another process too. Raises OptionError, OutputExistsError."""
        return save_run(path, self.name, self._records, self.notes, self._skipped, overwrite)

    def lines(self) -> Iterator[str]:
        """The text for a terminal, line by line: each cotangent stands behind its value."""
        return render.lines_of(render.beside(self._records))

    def json_lines(self) -> Iterator[str]:
        """A line of JSON for each record, in the order in which they were computed."""
        return map(render.as_json, self._records)

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *[f"note: {note}" for note in self.notes]])

    def _repr_html_(self) -> str:
        """For notebooks: tables of the statements, in functions and turns that fold."""
        return run_as_html(self.name, render.beside(self._records), self.notes)


def load_run(path: str | os.PathLike[str]) -> Watched:
    """A run that `Watched.save` wrote, without its result. Raises OptionError where the file is none."""
    name, records, notes, skipped = read_run(path)
    non_finite = next((r for r in records if not r.statistics.is_finite), None)
    return Watched(name, None, "", notes, records, non_finite, skipped)
