"""Runs a program on its samples, finds out what its results ought to be, and which of them are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from untrace.ir.nodes import Function
from untrace.tools.doctor import exact
from untrace.tools.doctor.samples import Samples
from untrace.tools.doctor.tape import Quantity, Tape, computed, is_float, taped
from untrace.tools.doctor.ulps import Truth, errors, truth_of, worst

# A result that is off by more than this many ULP is looked at.
LIMIT = 16.0
# By how much more than its inputs' own last bits explain.
_EXPLAINED = 16.0
_STRICTLY = 1.5
_DRAWS = 6
_NOTHING = 2.0**-20  # beside 1, and beside what is there further away
_MOST_ROWS = 48


@dataclass(slots=True)
class Examination:
    """What came out on all samples. Of each sample: `errors`, the worst of its results in ULP; `unexplained`, the same of
    those that the last bits of the inputs do not explain; `truths` by result, None of those that are no floats; `undefined`:
    where the exact program has no value and a limit, or bounds, stand for it; `bounded`: where it is bounds only;
    `without_value`: where nothing stands for it and the program gives NaN; `endless`: where it grows without bounds there. `conditions`: what
    the last bits of the inputs make of them."""

    tape: Tape
    samples: Samples
    truths: Sequence[Truth | None]
    errors: np.ndarray
    unexplained: np.ndarray
    undefined: np.ndarray
    bounded: np.ndarray
    without_value: np.ndarray
    endless: np.ndarray
    conditions: _Conditions

    @property
    def is_infinite(self) -> np.ndarray:
        """Samples for which a result is infinite in exact numbers."""
        found = np.zeros(self.samples.count, bool)
        for truth in self.truths:
            if truth is not None:
                found |= worst(truth.known & np.isinf(truth.low[0])).astype(bool)
        return found

    @property
    def no_digit(self) -> float:
        """So many ULP are all of a result."""
        return max([1 / float(jnp.finfo(q.dtype).eps) for q in self.tape.results if q.is_float], default=np.inf)

    def spread(self, rows: Sequence[int], most: int) -> list[int]:
        """Some of the rows: the given one, and others of all sizes of errors."""
        if len(rows) <= most:
            return list(rows)
        order = sorted(rows, key=lambda n: (n != 0, -min(self.unexplained[n], 1e300)))
        places = np.unique(np.linspace(0, len(order) - 1, most).astype(int))
        return [order[i] for i in places]

    def leave_out(self, rows: np.ndarray) -> None:
        """Says nothing of some of the samples: nothing is wrong there."""
        self.truths = [None if t is None else _without(t, rows) for t in self.truths]
        for values in (self.errors, self.unexplained, self.undefined, self.bounded, self.without_value):
            values[rows] = 0

    def errors_of(self, function: Function, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Those of another program for the same; and which samples are off by more than `limit` and what the inputs' last
        bits explain, which is taken more strictly than of the program itself."""
        results = computed(function, self.samples.leaves, self.samples.count)
        by_result = [
            None if truth is None else errors(values, truth, quantity.dtype)
            for values, truth, quantity in zip(results, self.truths, self.tape.results, strict=True)
        ]
        found = _worst_of(by_result, self.samples.count)
        unexplained = found > limit
        rows = np.flatnonzero(unexplained & (found > self.errors) & ~self.undefined)[:_MOST_ROWS]
        if len(rows):
            unexplained[rows] = _unexplained(self.conditions, rows, by_result, limit, _STRICTLY) > 0
        return found, unexplained


def _worst_of(by_result: Sequence[np.ndarray | None], count: int) -> np.ndarray:
    found = np.zeros(count)
    for values in by_result:
        if values is not None:
            found = np.maximum(found, worst(values))
    return found


def examine(function: Function, samples: Samples) -> Examination:
    """Runs `function` on all samples. Raises CaptureError where its loops are too long to be followed."""
    exact.set_digits(_precision(function))
    tape = taped(function, samples.leaves, samples.count)
    truths: list[Truth | None] = [truth_of(np.asarray(q.exact)) if q.is_float else None for q in tape.results]
    undefined, bounded, endless = _with_limits(tape, truths)
    if tape.unfinished is not None:
        truths = [None if t is None else _without(t, tape.unfinished) for t in truths]
    by_result = [
        None if t is None else errors(q.computed, t, q.dtype) for q, t in zip(tape.results, truths, strict=True)
    ]
    worst_errors = _worst_of(by_result, samples.count)
    unexplained, conditions = worst_errors.copy(), _Conditions(tape)
    bad = np.flatnonzero((worst_errors > LIMIT) & ~undefined)
    order = np.argsort(~samples.near[bad], kind="stable")
    bad = bad[order]
    if len(bad):
        few = bad[:_MOST_ROWS]
        unexplained[bad] = 0
        unexplained[few] = _unexplained(conditions, few, by_result)
    nothing = np.zeros(samples.count, bool)
    for quantity, truth in zip(tape.results, truths, strict=True):
        if truth is not None:
            nothing |= worst(np.isnan(np.asarray(quantity.computed, np.float64)) & ~truth.known).astype(bool)
    return Examination(
        tape, samples, truths, worst_errors, unexplained, undefined, bounded, nothing, endless, conditions
    )


def _precision(function: Function) -> np.dtype:
    floats = [p.aval.dtype for p in function.params if is_float(p.aval.dtype)]
    floats += [a.dtype for a in function.result_avals if is_float(a.dtype)]
    wide = any(np.dtype(d).itemsize == 8 for d in floats)
    return np.dtype(np.float64 if wide else np.float32)


def _without(truth: Truth, rows: np.ndarray) -> Truth:
    known = truth.known.copy()
    known[rows] = False
    return Truth(truth.low, truth.high, known)


# ---------------------------------------------------------------- where the exact program has no value


def _with_limits(tape: Tape, truths: list[Truth | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Puts limits in the place of values that the exact program does not have (0 / 0, 0 * log(0)): what it has beside the
    input, where that is bounded. Gives which samples these are, for which of them there are only bounds, and where there are
    none."""
    undefined, bounded, endless = np.zeros((3, tape.samples), bool)
    for quantity, truth in zip(tape.results, truths, strict=True):
        if truth is not None:
            undefined |= worst(~truth.known & ~exact.is_unknown(np.asarray(quantity.exact))).astype(bool)
    rows = np.flatnonzero(undefined)[:_MOST_ROWS]
    undefined[:] = False
    for apart in (False, True) if len(rows) else ():
        _put_limits(tape, truths, rows, apart, (undefined, bounded, endless))
        missing = [~t.known[rows] for t in truths if t is not None]
        rows = rows[np.any([worst(m).astype(bool) for m in missing], axis=0) & ~endless[rows]]
        if not len(rows):
            break
    return undefined, bounded, endless


def _put_limits(
    tape: Tape,
    truths: list[Truth | None],
    rows: np.ndarray,
    apart: bool,
    masks: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Puts limits in the place of what has no value in some samples. apart: a difference that is 0 however the inputs are moved
    (a point's distance from itself) is moved as well. masks: what `_with_limits` gives."""
    undefined, bounded, endless = masks
    around, wider = (
        [_moved(tape, rows, draw, by, apart) for draw in range(_DRAWS)] for by in (exact.beside, exact.further)
    )
    for i, truth in enumerate(truths):
        if truth is None:
            continue
        quantity = tape.results[i]
        if not any(quantity in known for known in around):
            continue
        most = float(jnp.finfo(quantity.dtype).max)
        near, far = (np.stack([exact.parts_of(known[quantity])[0] for known in draws]) for draws in (around, wider))
        (low, high, known), (far_low, far_high, _) = _hull(near, most), _hull(far, most)
        # A logarithm grows so slowly that it seems to have an end.
        grows = (low > np.maximum(far_high * 1.1, 1)) & (far_low > 0) | (high < np.minimum(far_low * 1.1, -1)) & (
            far_high < 0
        )
        endless[rows] |= worst(grows & ~truth.known[rows]).astype(bool)
        # A root shrinks so slowly that it seems to stop before 0.
        size, far_size = (np.maximum(np.abs(a), np.abs(b)) for a, b in ((low, high), (far_low, far_high)))
        shrinks = (size < _NOTHING) & (size < _NOTHING * far_size)
        low, high = np.where(shrinks, 0.0, low), np.where(shrinks, 0.0, high)
        known &= ~grows
        missing = ~truth.known[rows] & known & ~exact.is_unknown(np.asarray(quantity.exact)[rows])
        known_now = truth.known.copy()
        known_now[rows] |= missing
        truths[i] = Truth(_put(truth.low, rows, missing, low), _put(truth.high, rows, missing, high), known_now)
        undefined[rows] |= worst(missing).astype(bool)
        wide = missing & (high - low > 1e-5 * np.maximum(np.abs(low), np.abs(high)))
        bounded[rows] |= worst(wide).astype(bool)


def _put(
    parts: tuple[np.ndarray, np.ndarray], rows: np.ndarray, where: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    first = parts[0].copy()
    first[rows] = np.where(where, values, first[rows])
    return first, parts[1]


def _hull(values: np.ndarray, most: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least and the largest of the draws (first axis) that have a value, and where they are bounds of something."""
    finite = np.isfinite(values)
    low = np.where(finite, values, np.inf).min(axis=0)
    high = np.where(finite, values, -np.inf).max(axis=0)
    known = (finite.sum(axis=0) >= 2) & ~np.isinf(values).any(axis=0)
    known &= (np.abs(low) < most) & (np.abs(high) < most)
    # What goes to zero with the input is zero there.
    vanishing = known & (np.maximum(np.abs(low), np.abs(high)) < exact.vanishing())
    low, high = np.where(vanishing, 0.0, low), np.where(vanishing, 0.0, high)
    # Beyond the square root of what is near zero it grows without bounds.
    known &= np.maximum(np.abs(low), np.abs(high)) < 1e12
    return np.where(known, low, np.nan), np.where(known, high, np.nan), known


def _moved(
    tape: Tape, rows: np.ndarray, draw: int, by: exact.Moving, apart: bool = False
) -> Mapping[Quantity, np.ndarray]:
    """The exact values where each input is moved a little; `apart`: and each difference that is 0."""
    random = np.random.default_rng(draw)
    moved = {
        q: by(np.asarray(q.exact)[rows], random, draw)
        for q in (*tape.inputs, *tape.constants)
        if q.is_float and (q.exact is not q.computed)
    }
    if apart:
        for quantity in [q for step in tape.steps if step.name == "sub" for q in step.outputs if q.is_float]:
            values = np.asarray(quantity.exact)[rows]
            is_zero = np.asarray(values == 0, bool)
            if is_zero.any():
                moved[quantity] = np.where(is_zero, by(values, random, draw), values)
    return tape.replayed(moved, rows)


# ---------------------------------------------------------------- what the inputs explain


class _Conditions:
    """By how much a change in the last bit of the inputs changes the results: of each sample once, when it is asked for."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._known = np.zeros(tape.samples, bool)
        self._found = [np.zeros(np.shape(q.computed)) for q in tape.results]

    def of(self, rows: np.ndarray) -> list[np.ndarray]:
        new = rows[~self._known[rows]]
        if len(new):
            for draw in range(_DRAWS):
                known = _moved(self._tape, new, draw, exact.relatively_moved)
                for quantity, found in zip(self._tape.results, self._found, strict=True):
                    if quantity in known and quantity.is_float:
                        change = exact.relative_change(np.asarray(quantity.exact)[new], known[quantity])
                        found[new] = np.maximum(found[new], change)
            self._known[new] = True
        return [found[rows] for found in self._found]


def _unexplained(
    conditions: _Conditions,
    rows: np.ndarray,
    by_result: Sequence[np.ndarray | None],
    limit: float = LIMIT,
    explained: float = _EXPLAINED,
) -> np.ndarray:
    """The worst errors that are larger than what a change in the last bit of the inputs makes."""
    found = np.zeros(len(rows))
    for errors_here, condition in zip(by_result, conditions.of(rows), strict=True):
        if errors_here is not None:
            here = errors_here[rows]
            with np.errstate(over="ignore"):
                found = np.maximum(found, worst(np.where(here > limit + explained * condition, here, 0)))
    return found
