"""Records as text for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from untrace.tools.probe import COTANGENT, VALUE
from untrace.tools.records import Record
from untrace.tools.statistics import is_float

_WIDEST = 64  # characters of a statement


def lines_of(records: Iterable[Record]) -> Iterator[str]:
    """A line for each record, and one before those of each function and turn; each function is one step further in."""
    for row in rows_of(records):
        if isinstance(row, Head):
            yield f"{'  ' * (row.depth - 1)}▸ {row.label}"
        else:
            said = f"{'  ' * (row.depth + row.inner)}{row.said}"
            yield "".join((said, *[f"   {x}" for x in (row.numbers,) if x], *[f"  {x}" for x in (row.end,) if x]))


@dataclass(frozen=True, slots=True)
class Head:
    """A function that begins, or a turn of a loop: so many functions are around it."""

    depth: int
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """A statement, or one of its arrays, which is `inner` steps further in than the function, in which `depth` others are
    around it. `end`: the author's line, and whether it was computed again."""

    depth: int
    inner: int
    said: str
    numbers: str = ""
    end: str = ""


def rows_of(records: Iterable[Record]) -> Iterator[Head | Row]:
    """What there is to show of records, in their order."""
    layout = _Layout()
    for record in records:
        yield from layout.of(record)


class _Layout:
    """Remembers between records which functions and turns the last one was in, and which statement has been said."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._statement: tuple[object, ...] = ()
        self._parts: set[str] = set()

    def of(self, record: Record) -> Iterator[Head | Row]:
        yield from self._heads(_labels(record))
        depth = max(len(record.frames) - 1, 0)
        end = "  ".join(word for word in ("(again)" if record.again else "", record.author) if word)
        statement = record.line, record.statement
        if record.kind != VALUE or not record.statement:
            inner = int(self._statement == statement and bool(self._parts))
            yield Row(depth, inner, record.shown_name, described(record))
        elif _has_one_part(record):
            self._statement, self._parts = statement, set()
            yield Row(depth, 0, _cut(record.statement), described(record), end)
        else:
            if statement != self._statement or record.name in self._parts:
                self._statement, self._parts = statement, set()
                yield Row(depth, 0, _cut(record.statement), "", end)
            self._parts.add(record.name)
            yield Row(depth, 1, record.name, described(record))

    def _heads(self, labels: list[str]) -> Iterator[Head]:
        pairs = zip(labels, self._labels, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(labels), len(self._labels)))
        self._labels = labels
        for depth in range(max(same, 1), len(labels)):
            self._statement = ()
            yield Head(depth, labels[depth])


def _labels(record: Record) -> list[str]:
    """The functions that were running, each with the turn of a loop whose body it is."""
    turns: dict[int, list[tuple[int, int | None]]] = {}
    for turn, depth in zip(record.turns, record.depths, strict=True):
        turns.setdefault(min(depth, len(record.frames) - 1), []).append(turn)
    return [frame.function + _turn(turns.get(depth, ())) for depth, frame in enumerate(record.frames)]


def _has_one_part(record: Record) -> bool:
    """Whether the array is all that the statement gives, as far as one sees."""
    return record.name == "return" or record.statement.startswith((f"{record.name} ", f"{record.name}:"))


def _turn(turns: Sequence[tuple[int, int | None]]) -> str:
    if not turns:
        return ""
    said = [f"{turn} of {count}" if count is not None else str(turn) for turn, count in turns]
    return f"  turn {', '.join(said)}"


def _cut(text: str) -> str:
    safe = "".join(c if c.isprintable() else "?" for c in text)
    return safe if len(safe) <= _WIDEST else safe[: _WIDEST - 1] + "…"


def described(record: Record) -> str:
    """The type and the numbers of a record: a scalar in full."""
    said, found = [record.type], record.statistics
    if record.shape == () and record.value is not None and record.value.ndim == 0:
        said.append(str(record.value[()]))
    elif found.mean is not None and found.least is not None and found.most is not None:
        if record.type.startswith("bool"):
            said.append(f"true {found.mean:.3g}")
        elif found.least == found.most and found.is_finite:
            said.append(f"all {_number(found.most)}")
        else:
            said += [f"mean {found.mean:.3g}", f"min {_number(found.least)}", f"max {_number(found.most)}"]
    if found.bars and not record.type.startswith("bool"):
        said.append(found.bars)
    known = {"0", "-0"} if found.least == found.most == 0 else set()
    known |= {"nan", "+inf", "-inf"} if record.shape == () else set()
    said += [f"{word}: {count}" for word, count in found.counts.items() if word not in known]
    if record.batch:
        said.append(f"vmap over axis {', '.join(map(str, record.batch))}")
    return "  ".join(said)


def _number(value: float | int) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def beside(records: Iterable[Record]) -> list[Record]:
    """The records with each cotangent behind the value that it belongs to: of several passings of one place the last value
    has the first cotangent. Those without a value come last."""
    every = list(records)
    waiting: dict[tuple[object, ...], list[Record]] = {}
    for record in every:
        if record.kind == COTANGENT:
            waiting.setdefault(_place(record), []).append(record)
    values: dict[tuple[object, ...], list[Record]] = {}
    for record in every:
        if record.kind == VALUE and not record.again:
            values.setdefault(_place(record), []).append(record)
    behind: dict[int, list[Record]] = {}
    for place, cotangents in waiting.items():
        for value, cotangent in zip(reversed(values.get(place, [])), cotangents, strict=False):
            behind.setdefault(value.index, []).append(cotangent)
    placed = {c.index for some in behind.values() for c in some}
    found: list[Record] = []
    for record in every:
        if record.index not in placed:
            found += [record, *behind.get(record.index, [])]
    return found


def _place(record: Record) -> tuple[object, ...]:
    return record.passing, record.name, record.frames, tuple([t for t, _ in record.turns])


def as_json(record: Record) -> str:
    """A record as one line of JSON, without its value but for a scalar's; numbers that JSON lacks are strings."""
    s = record.statistics
    found = {
        "index": record.index, "name": record.name, "kind": record.kind, "function": record.function,
        "frames": [[f.function, f.line] for f in record.frames], "turns": [list(t) for t in record.turns], "depths": list(record.depths),
        "occurrence": list(record.occurrence), "line": record.line, "statement": record.statement, "author": record.author,
        "type": record.type, "shape": list(record.shape), "batch": list(record.batch), "again": record.again,
        "size": s.size, "mean": _json(s.mean), "min": _json(s.least), "max": _json(s.most), "nan": s.nans,
        "plus_inf": s.plus_infs, "minus_inf": s.minus_infs, "zero": s.zeros, "minus_zero": s.minus_zeros,
        "subnormal": s.subnormals, "histogram": list(s.histogram), "digest": record.digest, "passing": record.passing,
    }  # fmt: skip
    if record.value is not None and record.value.ndim == 0:
        found["value"] = _scalar(record.value)
    return json.dumps(found, ensure_ascii=False, allow_nan=False)


def _scalar(value: np.ndarray) -> object:
    if value.dtype == np.bool_:
        return bool(value)
    if is_float(value.dtype):
        return _json(float(value))
    return int(value) if value.dtype.kind in "iu" else str(value)


def _json(number: float | int | None) -> object:
    return number if number is None or isinstance(number, int) or np.isfinite(number) else str(number)
