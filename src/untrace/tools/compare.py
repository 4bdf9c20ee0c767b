"""Two runs beside each other: where they begin to differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from untrace.tools.records import Record
from untrace.tools.statistics import precision


@dataclass(frozen=True, slots=True)
class Pair:
    """One statement in two runs.

    `bits`: the significant bits in which the arrays agree, -log2(largest deviation / largest value) of the finite numbers;
    infinity where they are equal, 0 where NaNs, infinities or shapes are not the same ones; None where values were not kept
    and are not equal. `differs`: by what was asked for.
    """

    left: Record
    right: Record
    bits: float | None
    deviation: float | None
    differs: bool

    def __str__(self) -> str:
        left, right = self.left, self.right
        types = left.type if left.type == right.type else f"{left.type} and {right.type}"
        if self.bits is None:
            said = "differ; their values were not kept"
        elif self.bits == math.inf:
            said = "equal"
        else:
            off = "" if self.deviation is None else f", off by up to {self.deviation:.3g}"
            said = f"agree in {max(self.bits, 0):.1f} bits{off}"
        return f"{left.place}: {left.shown_name}   {types}   {said}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The statements that two runs have both, in the order of the first one. `alone`: records that only one of them has.
    `is_partial`: whether turns of loops were left out, in which they may differ.

    True in a condition where no statement differs, none is alone, and there is one.
    """

    pairs: tuple[Pair, ...]
    alone: tuple[tuple[Record, ...], tuple[Record, ...]]
    is_partial: bool = False

    def __bool__(self) -> bool:
        return bool(self.pairs) and self.first is None and not any(self.alone)

    @property
    def first(self) -> Pair | None:
        """The first statement that differs."""
        return next((pair for pair in self.pairs if pair.differs), None)

    def lines(self, most: int = 40) -> Iterator[str]:
        """A sentence for the first difference, a table of what differs after it, and what stands alone."""
        first = self.first
        if not self.pairs:
            yield "nothing was compared: the two runs have no statement of the same name and function"
        elif first is None:
            equal = sum(pair.bits == math.inf for pair in self.pairs)
            yield f"no statement differs: {len(self.pairs)} compared, {equal} of them equal in every bit"
        else:
            left = first.left
            yield f"the first statement that differs: {left.statement or left.name}"
            yield f"  {first}"
            rest = [pair for pair in self.pairs if pair.left.index > left.index]
            yield f"after it {sum(p.differs for p in rest)} of {len(rest)} differ" + (":" if rest else "")
            yield from table(rest[:most])
            if len(rest) > most:
                yield f"  … {len(rest) - most} more"
        for which, records in zip(("first", "second"), self.alone, strict=True):
            if records:
                names = ", ".join(dict.fromkeys(f"{r.function}: {r.shown_name}" for r in records[:8]))
                yield f"only the {which} run has {len(records)}: {names}{' …' if len(records) > 8 else ''}"
        if self.is_partial:
            yield "turns of loops were left out, in which they may differ before: turns= takes more"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def table(pairs: Iterable[Pair]) -> Iterator[str]:
    """The pairs as lines of columns: bits, the largest deviation, names and places."""
    yield f"  {'bits':>6}  {'deviation':>10}  name and place"
    for pair in pairs:
        bits = "?" if pair.bits is None else "equal" if pair.bits == math.inf else f"{max(pair.bits, 0):.1f}"
        off = "" if pair.deviation is None or pair.bits == math.inf else f"{pair.deviation:.3g}"
        yield f"  {bits:>6}  {off:>10}  {pair.left.shown_name}   {pair.left.place}"


def compare_records(
    left: Iterable[Record], right: Iterable[Record], bits: float | None, is_partial: bool = False
) -> Comparison:
    """The two runs aligned by kind, functions, names, turns and occurrence. bits: a statement differs that agrees in fewer;
    None: in any bit, where both have one dtype, and in fewer bits than the less precise has, where they have two.
    is_partial: whether turns of loops were left out."""
    others = {record.key: record for record in right}
    pairs, alone = [], []
    for record in left:
        other = others.pop(record.key, None)
        if other is None:
            alone.append(record)
        else:
            pairs.append(_pair(record, other, bits))
    return Comparison(tuple(pairs), (tuple(alone), tuple(others.values())), is_partial)


def _pair(left: Record, right: Record, least: float | None) -> Pair:
    same_type = left.type == right.type
    if same_type and left.digest == right.digest:
        return Pair(left, right, math.inf, 0.0, False)
    if left.shape != right.shape:
        return Pair(left, right, 0.0, None, True)
    if left.value is None or right.value is None:
        return Pair(left, right, None, None, True)
    found, deviation = significant_bits(left.value, right.value)
    if least is None:
        precisions = [p for p in map(precision, (left.value.dtype, right.value.dtype)) if p is not None]
        least = math.inf if same_type else min(precisions, default=math.inf)
        return Pair(left, right, found, deviation, found < least)
    return Pair(left, right, found, deviation, found < least)


def significant_bits(reference: np.ndarray, other: np.ndarray) -> tuple[float, float | None]:
    """(-log2 of the largest deviation, by the largest value of `reference`; the largest deviation) of arrays of one shape.

    0 and None where a NaN or an infinity is in one of them alone; infinity where both are equal as numbers.
    """
    if reference.size == 0:
        return math.inf, 0.0
    wide = np.complex128 if "c" in (reference.dtype.kind, other.dtype.kind) else np.float64
    a, b = reference.astype(wide), other.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return 0.0, None
    a, b = a[finite], b[finite]
    with np.errstate(over="ignore"):
        deviation = float(np.max(np.abs(a - b), initial=0.0))
    largest = float(np.max(np.abs(a), initial=0.0))
    if deviation == 0.0:
        is_equal = reference.dtype == other.dtype and reference.dtype.kind in "iu" and (reference != other).any()
        return (53.0 if is_equal else math.inf), 0.0
    if largest == 0.0 or not math.isfinite(deviation):
        return 0.0, deviation
    return math.log2(largest) - math.log2(deviation), deviation
