"""A run as HTML: tables of statements, in functions and turns that fold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from untrace import _html
from untrace.tools.records import Record
from untrace.tools.render import Head, Row, rows_of

_MOST = 2000  # rows


@dataclass(eq=False)
class _Group:
    """A function that ran, or a turn, with what ran in it."""

    label: str
    parts: list[Row | _Group] = field(default_factory=list)


def run_as_html(name: str, records: Iterable[Record], notes: Iterable[str]) -> str:
    """The first rows of a run, as a notebook shows them."""
    rows = list(itertools.islice(rows_of(records), _MOST + 1))
    said = [*notes, *[f"only the first {_MOST} rows are shown; print() has all" for _ in rows[_MOST:]]]
    remarks = [_html.element("div", f"note: {note}", kind="dim") for note in said]
    return _html.display(_html.element("b", name), *_shown(_grouped(rows[:_MOST]), 0), *remarks)


def _grouped(rows: Iterable[Head | Row]) -> _Group:
    path = [_Group("")]
    for row in rows:
        if isinstance(row, Head):
            group = _Group(row.label)
            del path[row.depth :]
            path[-1].parts.append(group)
            path.append(group)
        else:
            del path[row.depth + 1 :]
            path[-1].parts.append(row)
    return path[0]


def _shown(group: _Group, depth: int) -> list[_html.Markup]:
    found = []
    for is_row, parts in itertools.groupby(group.parts, key=lambda part: isinstance(part, Row)):
        if is_row:
            found.append(_html.table(_cells(part) for part in parts if isinstance(part, Row)))
        else:
            for part in parts:
                assert isinstance(part, _Group)
                # What the entry calls is open, what lies deeper is a click away.
                found.append(_html.folded(part.label, *_shown(part, depth + 1), is_open=depth == 0))
    return found


def _cells(row: Row) -> tuple[str, str, str]:
    said = _html.element("code", row.said, kind="dim" if row.inner else "")
    return _html.joined(("\u2003" * row.inner, said)), row.numbers, _html.element("span", row.end, kind="dim")
