"""Comparison by running: the same bits on sampled inputs, or how many ULPs apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace.prove.report import Proof
from untrace.prove.sample import CannotSample, sample_inputs

CLOSE_ULPS = 1024
"""Further apart than this, results are called different, not close; see `close_ulps`."""


def close_ulps(dtype: Any) -> float:
    """How many units in the last place results may be apart, and still be close: never more than a sixteenth of the number,
    which are few units of a narrow type."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return CLOSE_ULPS
    return min(CLOSE_ULPS, max(1.0, 1 / 16 / float(jnp.finfo(dtype).eps)))


@dataclass(frozen=True)
class Mismatch:
    """Two results of which one is finite and the other is not, or NaN and infinity: where, and for which inputs."""

    sample: int
    index: tuple[int, ...]
    first: Any
    second: Any
    inputs: tuple[Any, ...] = field(compare=False, default=())


@dataclass(frozen=True)
class LeafDifference:
    """How one output leaf differs over all samples.

    `max_ulp` is in units in the last place of the leaf's dtype (in ones for integers), `inf` where
    NaN meets a number; -0.0 and 0.0 are 0 apart, though their bits differ. `not_finite` is the first
    pair of values that no number of ULPs says anything about, `not_finite_count` how many there are
    in `not_finite_samples` of the samples, and `finite_ulp` the distance of all the others.
    `type_difference` says how shape, dtype or weak type differ, in words; `limit` how far apart values of that dtype are close.
    """

    path: str
    max_ulp: float = 0.0
    worst_sample: int = 0
    differing_samples: int = 0
    not_finite: Mismatch | None = None
    type_difference: str = ""
    not_finite_count: int = 0
    not_finite_samples: int = 0
    finite_ulp: float = 0.0
    limit: float = CLOSE_ULPS

    def __str__(self) -> str:
        if self.type_difference:
            return f"{self.path}: {self.type_difference}"
        m = self.not_finite
        if m is None:
            where = f"at sampled input {self.worst_sample}, in {_counted(self.differing_samples, 'sample')}"
            return f"{self.path}: up to {ulps(self.max_ulp)} apart, {where}"
        place = f"index {list(m.index)} of " if m.index else ""
        text = f"{self.path}: {m.second} where the original has {m.first}, first at {place}sampled input {m.sample}; "
        text += f"{_counted(self.not_finite_count, 'value')} in {_counted(self.not_finite_samples, 'sample')}"
        if self.finite_ulp:
            text += f"; where both are finite, up to {ulps(self.finite_ulp)} apart"
        return text


@dataclass(frozen=True)
class RunComparison:
    """What running both functions on `samples` inputs gave; no differences: the same bits."""

    differences: tuple[LeafDifference, ...]
    samples: int

    @property
    def max_ulp(self) -> float:
        return max((d.max_ulp for d in self.differences), default=0.0)

    @property
    def close(self) -> bool:
        """Whether all differences are small and none is between finite and not finite."""
        return all(not d.type_difference and d.not_finite is None and d.max_ulp <= d.limit for d in self.differences)


@jax_compat.quiet_callbacks()
def compare_runs(
    first: Callable[..., Any],
    second: Callable[..., Any],
    leaves: Sequence[Any],
    *,
    samples: int = 64,
    seed: int = 0,
    paths: Sequence[str] | None = None,
) -> RunComparison:
    """Runs two functions of flat leaves, jitted, on the same sampled inputs, and compares.

    `paths` names the output leaves. Raises CannotSample, and whatever the functions raise.
    """
    f, g = jax.jit(first), jax.jit(second)
    found: dict[int, LeafDifference] = {}
    count = 0
    for number, inputs in enumerate(sample_inputs(leaves, samples=samples, seed=seed)):
        if not number:  # the first calls compile, and XLA does that without Python's lock
            with ThreadPoolExecutor(2) as pool:
                outs, others = pool.map(lambda h, xs=inputs: _outcome(h, xs), (f, g))
        else:
            outs, others = _outcome(f, inputs), _outcome(g, inputs)
        if outs is None and others is None:
            continue  # a program may refuse an input (a solver that does not converge): then both must
        if outs is None or others is None:
            text = "raises in one and not in the other"
            return RunComparison((LeafDifference("output", type_difference=text),), count + 1)
        count += 1
        if len(outs) != len(others):
            text = f"{len(outs)} leaves in one, {len(others)} in the other"
            return RunComparison((LeafDifference("output", type_difference=text),), count)
        for i, (x, y) in enumerate(zip(outs, others, strict=True)):
            path = paths[i] if paths is not None else f"output {i}"
            update_difference(found, i, path, number, x, y, inputs)
    if not count:
        # Nothing was compared. The first error says more than a sentence of ours.
        jax.block_until_ready(f(*next(iter(sample_inputs(leaves, samples=1, seed=seed)))))
    return RunComparison(tuple(found[i] for i in sorted(found)), count)


def _outcome(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any] | None:
    """The leaves of `function(*inputs)`; None where running it raises."""
    try:
        return jax.block_until_ready(jax.tree_util.tree_leaves(function(*inputs)))
    except Exception:  # the user's program: a callback of it may raise anything
        return None


def update_difference(
    found: dict[int, LeafDifference], i: int, path: str, number: int, x: Any, y: Any, inputs: Any
) -> None:
    """Adds what sample `number` says about output leaf `i` to `found`."""
    old = found.get(i)
    if old is not None and old.type_difference:
        return
    types = type_difference(x, y)
    if types:
        found[i] = LeafDifference(path, type_difference=types, worst_sample=number)
        return
    a, b = _plain(x), _plain(y)
    if same_bits(a, b):
        return
    distances = ulps_apart(a, b)
    worst = float(distances.max()) if distances.size else 0.0
    old = old or LeafDifference(path, -1.0)
    beyond = _beyond_ulps(a, b)
    count = int(np.count_nonzero(beyond))
    mismatch = old.not_finite
    if count and mismatch is None:
        index = tuple(int(k) for k in np.argwhere(beyond)[0])
        mismatch = Mismatch(number, index, a[index], b[index], tuple(inputs))
    finite = distances[~beyond]
    found[i] = LeafDifference(
        path,
        max(worst, old.max_ulp),
        number if worst > old.max_ulp else old.worst_sample,
        old.differing_samples + 1,
        mismatch,
        not_finite_count=old.not_finite_count + count,
        not_finite_samples=old.not_finite_samples + bool(count),
        finite_ulp=max(old.finite_ulp, float(finite.max()) if finite.size else 0.0),
        limit=close_ulps(a.dtype),
    )


def type_difference(x: Any, y: Any) -> str:
    """How the types of two results differ, in words; empty when they do not."""
    for name, a, b in (
        ("shape", tuple(x.shape), tuple(y.shape)),
        ("dtype", x.dtype, y.dtype),
        ("weak type", bool(getattr(x, "weak_type", 0)), bool(getattr(y, "weak_type", 0))),
    ):
        if a != b:
            return f"{name} {a} against {b}"
    return ""


def _plain(value: Any) -> np.ndarray:
    if jax_compat.is_key(value):
        value = jax.random.key_data(value)
    return np.asarray(value)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one type hold the same bits, any NaN equal to any other."""
    if a.tobytes() == b.tobytes():
        return True
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return False
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        return same_bits(a.real.copy(), b.real.copy()) and same_bits(a.imag.copy(), b.imag.copy())
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b))) and a[~nan].tobytes() == b[~nan].tobytes()


def ulps_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """f64 array: the number of representable values between two arrays of one dtype and shape.

    0 between NaNs and between zeros of either sign, inf between NaN and a number; the larger one of
    the real and imaginary parts of complex numbers; the plain difference of integers.
    """
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        real = ulps_apart(a.real.copy(), b.real.copy())
        return np.maximum(real, ulps_apart(a.imag.copy(), b.imag.copy()))
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        if a.dtype == bool or a.dtype.itemsize < 8:
            return np.abs(a.astype(np.int64) - b.astype(np.int64)).astype(np.float64)
        return _unsigned_distance(np.where(a > b, a, b), np.where(a > b, b, a))
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    low, high = _ordered(a), _ordered(b)
    distance = _unsigned_distance(np.maximum(low, high), np.minimum(low, high))
    distance = np.where(nan_a != nan_b, np.inf, distance)
    return np.where(nan_a & nan_b, 0.0, distance)


def _unsigned_distance(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    # Modulo 2^64 the difference is right whatever the signs, where one of 64 bits would overflow.
    return (high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64)


def _ordered(a: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats, one apart for neighbours, zeros of both signs at one."""
    if a.dtype.itemsize == 1:  # 8 bits and less: formats differ in layout, so they are counted out
        every = np.arange(256, dtype=np.uint8).view(a.dtype).astype(np.float64)
        every = np.unique(every[~np.isnan(every)])
        values = a.astype(np.float64)
        return np.searchsorted(every, np.where(np.isnan(values), 0.0, values))
    signed = {2: np.int16, 4: np.int32, 8: np.int64}[a.dtype.itemsize]
    bits = np.ascontiguousarray(a).reshape(a.shape).view(signed).astype(np.int64)
    magnitude = bits & np.int64(np.iinfo(signed).max)
    return np.where(bits < 0, -magnitude, magnitude)


def _beyond_ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where only one of two arrays is finite, or both are not, and differ: no number of ULPs says how far that is."""
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return np.zeros(a.shape, bool)
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        return np.asarray(_beyond_ulps(a.real.copy(), b.real.copy()) | _beyond_ulps(a.imag.copy(), b.imag.copy()))
    only_one = np.isfinite(a) != np.isfinite(b)
    both_not = ~np.isfinite(a) & ~np.isfinite(b) & ~(np.isnan(a) & np.isnan(b)) & (a != b)
    return np.asarray(only_one | both_not)


def weaker_proof(
    original: Callable[..., Any],
    written: Callable[..., Any],
    leaves: Sequence[Any],
    why: str,
    notes: Sequence[str] = (),
    *,
    samples: int = 64,
) -> Proof:
    """`bits`, `close` or `unproven` for two functions of flat leaves, from running them.

    `why` says why no stronger level was reached; it becomes part of the detail.
    """
    notes = tuple(notes)
    try:
        runs = compare_runs(original, written, leaves, samples=samples)
    except CannotSample as error:
        return Proof("unproven", f"{why}; {error}", notes)
    except Exception as error:  # the functions are the user's
        return Proof("unproven", f"{why}; running failed: {type(error).__name__}: {error}", notes)
    return proof_of_runs(runs, why, notes)


def proof_of_runs(runs: RunComparison, why: str, notes: Sequence[str] = ()) -> Proof:
    """The proof level that a comparison by running supports."""
    on = f"on {runs.samples} sampled inputs"
    reason = f"; {why}" if why else ""
    if not runs.differences:
        return Proof("bits", on + reason, tuple(notes))
    if runs.close:
        return Proof("close", f"within {ulps(runs.max_ulp)} {on}{reason}", tuple(notes))
    return Proof("unproven", f"the results differ, {runs.differences[0]}{reason}", tuple(notes))


def ulps(count: float) -> str:
    """A distance in words: `3 ULP`."""
    return f"{count:.0f} ULP" if count < 1e6 else f"{count:.1e} ULP"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
