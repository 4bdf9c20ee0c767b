"""Which operation makes a result wrong, and why.

To blame is the first operation that is wrong with right operands, and *matters*: what it computed, put into the exact program
in its place, makes the result wrong too. What is wrong because of it only hands it on. The causes are those of Herbie
(src/core/explain.rkt; Saiki, Tatlock and others, arXiv 2503.11884).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from untrace.tools.doctor import exact
from untrace.tools.doctor.examine import LIMIT, Examination
from untrace.tools.doctor.tape import Quantity, Step
from untrace.tools.doctor.ulps import errors, lost, truth_of, worst

# A condition number above the first is perhaps, above the second surely the cause.
PERHAPS, SURELY = 32.0, 100.0

OVERFLOW = "overflow"
UNDERFLOW = "underflow"
CANCELLATION = "cancellation"
SENSITIVITY = "sensitivity"
NAN = "nan-rescue"
ROUNDING = "rounding"


@dataclass(frozen=True, slots=True)
class Blamed:
    """One operation on one sample. `cause`: one of the words above; `detail` says it with the numbers. `error`: of the worst
    result, in ULP. `slight`: whether it only magnifies a little what its operands are off by, or adds up what many are."""

    step: Step
    row: int
    cause: str
    detail: str
    error: float
    slight: bool


def blame(found: Examination, rows: np.ndarray) -> list[Blamed]:
    """Who is to blame on these samples, which are wrong; in the program's order for each."""
    return _Court(found, rows).verdicts()


class _Court:
    def __init__(self, found: Examination, rows: np.ndarray) -> None:
        self._found, self._rows = found, rows
        self._steps = found.tape.steps
        self._tainted: dict[Quantity, np.ndarray] = {}  # of each of the rows
        self._needed = self._ancestors()

    def _ancestors(self) -> set[Quantity]:
        """What the results depend on."""
        needed = set(self._found.tape.results)
        for step in reversed(self._steps):
            if any(q in needed for q in step.outputs):
                needed.update(step.inputs)
        return needed

    def verdicts(self) -> list[Blamed]:
        blamed: list[Blamed] = []
        rows = self._rows
        none = np.zeros(len(rows), bool)
        for number, step in enumerate(self._steps):
            if not any(q in self._needed for q in step.outputs):
                continue
            tainted = none.copy()
            for q in step.inputs:
                tainted |= self._tainted.get(q, none)
            for quantity in step.outputs:
                if not quantity.is_float or quantity.exact is quantity.computed:
                    if tainted.any():
                        self._tainted[quantity] = tainted
                    continue
                off, is_lost = self._wrong(quantity, step.name in _ALGORITHMS)
                undefined = self._undefined(step, quantity)
                suspect = (off > LIMIT) | is_lost | undefined if step.name not in _PASSING else none
                guilty = none.copy()
                asked = np.flatnonzero(suspect & ~tainted)
                if len(asked):
                    guilty[asked] = self._matters(number, quantity, asked, step.name in _ALGORITHMS) | undefined[asked]
                for place in np.flatnonzero(guilty):
                    cause, detail, slight = _cause(step, quantity, int(rows[place]))
                    error = float(self._found.errors[rows[place]])
                    blamed.append(Blamed(step, int(rows[place]), cause, detail, error, slight))
                wrong = guilty | tainted & (suspect | (step.name in _PASSING))
                if step.name in _ALGORITHMS:  # its small numbers are nobody's fault
                    wrong = wrong | (self._wrong(quantity, False)[0] > LIMIT)
                if wrong.any():
                    self._tainted[quantity] = wrong
        return blamed

    def _wrong(self, quantity: Quantity, as_a_whole: bool) -> tuple[np.ndarray, np.ndarray]:
        """Of each sample the worst error, and whether something was lost. as_a_whole: in ULP of its largest number."""
        values, truth = np.asarray(quantity.computed)[self._rows], truth_of(np.asarray(quantity.exact)[self._rows])
        high = truth.low[0]
        if as_a_whole:
            with np.errstate(all="ignore"):
                size = worst(np.abs(np.where(truth.known, high, 0))) * float(jnp.finfo(quantity.dtype).eps)
                off = worst(np.abs(np.where(truth.known, np.asarray(values, np.float64) - high, 0)))
                return np.nan_to_num(off / np.where(size == 0, 1, size), nan=np.inf), np.zeros(len(off), bool)
        return worst(errors(values, truth, quantity.dtype)), worst(lost(values, high, quantity.dtype)).astype(bool)

    def _undefined(self, step: Step, quantity: Quantity) -> np.ndarray:
        """Samples for which the exact program has no value either, and this makes the first NaN."""
        rows = self._rows
        made = (
            worst(np.isnan(np.asarray(quantity.computed, np.float64)[rows])).astype(bool) & self._found.undefined[rows]
        )
        for q in step.inputs:
            if q.is_float:
                made &= ~worst(np.isnan(np.asarray(q.computed, np.float64)[rows])).astype(bool)
        return made

    def _matters(self, number: int, quantity: Quantity, asked: np.ndarray, as_a_whole: bool) -> np.ndarray:
        """Whether the results of the exact program are wrong with what is wrong of the computed value in it."""
        rows = self._rows[asked]
        value, right = np.asarray(quantity.computed)[rows], np.asarray(quantity.exact)[rows]
        put = exact.exact_of(value) if right.dtype == object else value.astype(np.float64)
        if not as_a_whole:
            truth = truth_of(right)
            bad = (errors(value, truth, quantity.dtype) > LIMIT) | lost(value, truth.low[0], quantity.dtype)
            put = np.where(bad | np.isnan(value.astype(np.float64)), put, right)
        known = self._found.tape.replayed({quantity: put}, rows, number + 1)
        matters = np.zeros(len(rows), bool)
        for result, truth in zip(self._found.tape.results, self._found.truths, strict=True):
            if truth is not None and result in known:
                values = exact.parts_of(known[result])[0]
                off = worst(errors(values, truth.rows(rows), result.dtype))
                matters |= off > np.minimum(np.maximum(LIMIT, self._found.errors[rows] / 16), 1e6)
        return matters


# ---------------------------------------------------------------- causes


def _cause(step: Step, quantity: Quantity, row: int) -> tuple[str, str, bool]:
    """One of the words, the sentence with the numbers, and whether it is slight."""
    computed = np.asarray(quantity.computed)[row : row + 1].astype(np.float64)
    truth = truth_of(np.asarray(quantity.exact)[row : row + 1])
    off = errors(computed, truth, quantity.dtype) + np.where(lost(computed, truth.low[0], quantity.dtype), 1e30, 0)
    off = np.where(np.isnan(computed), np.inf, off)
    place = int(np.argmax(off.reshape(-1)))
    value, wanted = float(computed.reshape(-1)[place]), float(truth.low[0].reshape(-1)[place])
    operands = [_element(np.asarray(q.computed)[row], computed.shape[1:], place) for q in step.inputs]
    shown = _operation(step.name, operands)
    tells = f"{shown} is {_number(value)}" + ("" if np.isnan(wanted) else f", exactly {_number(wanted)}")
    if np.isnan(value):
        return (
            NAN,
            f"{tells}: it has no value of its own" if np.isnan(wanted) else f"{tells}{_trap(step, row, place)}",
            False,
        )
    if np.isinf(value):
        if any(x is not None and np.isinf(x) for x in operands):
            return NAN, tells, False
        return OVERFLOW, f"{shown} is {_number(value)}: too large for its type" if np.isinf(wanted) else tells, False
    info_tiny = abs(value) < 1e-37 and abs(wanted) < 1e-37
    if value == 0 and info_tiny or lost(computed, truth.low[0], quantity.dtype).reshape(-1)[place]:
        return UNDERFLOW, f"{shown} is {_number(value)}, exactly {_number(wanted)}", False
    ratio = _cancelled(step, row, place, wanted)
    if ratio is not None:
        # A sum of right operands is wrong by nothing else; one of many, by the rounding of all.
        word = CANCELLATION if ratio > (PERHAPS if step.name in _LONG_SUMS else 4.0) else ROUNDING
        return word, f"{tells}: what is added is {_number(ratio)} times as large as what is left", ratio < PERHAPS
    condition = _condition(step, row)
    if condition > PERHAPS:
        return SENSITIVITY, f"{tells}: a change of its operand makes {_number(condition)} times the change", False
    return ROUNDING, tells, True


def _trap(step: Step, row: int, place: int) -> str:
    for q in step.inputs:
        values = np.asarray(q.exact)
        if values.dtype == object:
            x = _element(values[row], np.shape(np.asarray(step.outputs[0].computed)[row]), place)
            if type(x) is int and x == 0:
                return "; the zero is that of a branch that was not taken"
    return ""


def _element(values: np.ndarray, shape: Sequence[int], place: int):
    """The number of an operand that stands where a result's does; None where they are of other shapes."""
    if np.shape(values) == tuple(shape):
        return np.asarray(values).reshape(-1)[place]
    return np.asarray(values).reshape(-1)[0] if np.size(values) == 1 else None


# Whose results are right as a whole, or not at all: a small eigenvalue beside a large one has no digits of its own.
_ALGORITHMS = frozenset(
    "cholesky lu eigh eig svd qr householder_product geqrf triangular_solve tridiagonal_solve tridiagonal schur hessenberg fft"
    " custom_linear_solve".split()
)
# What hands on numbers as they are.
_PASSING = frozenset(
    "select_n neg abs max min clamp reduce_max reduce_min choice element stack sort copy reshape broadcast_in_dim squeeze"
    " expand_dims transpose rev slice concatenate pad gather dynamic_slice dynamic_update_slice split".split()
)
_LONG_SUMS = ("reduce_sum", "cumsum", "dot_general", "conv_general_dilated")
_SIGNS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/"}


def _operation(name: str, operands: Sequence[float | None]) -> str:
    shown = ["..." if x is None or np.iscomplexobj(x) else _number(float(x)) for x in operands]
    if name in _SIGNS and len(shown) == 2:
        return f"{shown[0]} {_SIGNS[name]} {shown[1]}"
    return f"{name}({', '.join(shown)})"


def _number(x: float) -> str:
    return f"{x:.6g}"


def _cancelled(step: Step, row: int, place: int, wanted: float) -> float | None:
    """By how much the largest operand of a sum exceeds it; None of what is no sum."""
    if step.name in ("add", "sub", "add_any"):
        shape = np.shape(np.asarray(step.outputs[0].computed)[row])
        parts = [exact.parts_of(np.asarray(q.exact)[row : row + 1])[0][0] for q in step.inputs]
        sizes = [abs(float(x)) for p in parts if (x := _element(p, shape, place)) is not None]
        return max(sizes, default=0.0) / abs(wanted) if wanted else np.inf
    if step.name in _LONG_SUMS:
        moved = [
            exact.magnitudes(np.asarray(q.exact)[row : row + 1]) if q.is_float else np.asarray(q.exact)[row : row + 1]
            for q in step.inputs
        ]
        total = exact.parts_of(np.asarray(step.replay(moved, np.array([row]))[0]))[0].reshape(-1)[place]
        return abs(total / wanted) if wanted else np.inf
    return None


def _condition(step: Step, row: int) -> float:
    """The relative condition number of one operation."""
    rows = np.array([row])
    args = [np.asarray(q.exact)[row : row + 1] for q in step.inputs]
    random = np.random.default_rng(0)
    found = 0.0
    for i, q in enumerate(step.inputs):
        if q.is_float and args[i].dtype == object and not q.structural:
            moved = [exact.relatively_moved(a, random, 0) if j == i else a for j, a in enumerate(args)]
            before, after = step.replay(args, rows)[0], step.replay(moved, rows)[0]
            change = exact.relative_change(before, after)
            found = max(found, float(np.max(np.nan_to_num(change, posinf=1e300), initial=0)))
    return found
