"""How far a computed value is from the exact one, in units in the last place, and what was lost on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from untrace.ir.types import DType
from untrace.tools.doctor import exact


@dataclass(frozen=True, slots=True)
class Truth:
    """What a result ought to be: at each place from `low` to `high`, each the sum of two arrays of float64. They are the same
    but where there is no limit and only bounds are known; `known` is False where nothing is."""

    low: tuple[np.ndarray, np.ndarray]
    high: tuple[np.ndarray, np.ndarray]
    known: np.ndarray

    def rows(self, rows: np.ndarray | int) -> Truth:
        low, high = ((a[rows], b[rows]) for a, b in (self.low, self.high))
        return Truth(low, high, np.asarray(self.known[rows]))


def truth_of(values: np.ndarray) -> Truth:
    parts = exact.parts_of(values)
    return Truth(parts, parts, ~np.isnan(parts[0]))


def errors(computed: np.ndarray, truth: Truth, dtype: DType) -> np.ndarray:
    """The error of each number in ULP of `dtype`; inf for a NaN or an infinity that is none. Nothing is wrong where the
    truth is not known, and with zero or an infinity for what is too small or too large for the type."""
    info = jnp.finfo(dtype)
    most, tiny, eps = float(info.max), float(info.tiny), float(info.eps)
    values = np.asarray(computed).astype(np.float64)
    with np.errstate(all="ignore"):
        too_low = (truth.low[0] - values) + truth.low[1]
        too_high = (values - truth.high[0]) - truth.high[1]
        distance = np.maximum(np.maximum(too_low, too_high), 0)
        near = np.where(too_low > 0, truth.low[0], truth.high[0])
        unit = eps * 2.0 ** np.floor(np.log2(np.clip(np.abs(near), tiny, most)))
        found = distance / unit
        over = (np.abs(near) > most * (1 + eps / 4)) | np.isinf(near)
        # Of doubles, what exceeds them stands in the second part.
        rest = np.where(too_low > 0, truth.low[1], truth.high[1])
        over |= (np.abs(near) >= most) & (np.abs(rest) > most * eps / 4)
        found = np.where(
            over, np.where((np.abs(values) >= most) & (np.sign(values) == np.sign(near)), 0, np.inf), found
        )
        found = np.where(~over & ~np.isfinite(values), np.inf, found)
        found = np.where((np.abs(near) < tiny) & (np.abs(values) <= tiny), 0, found)
    return np.where(truth.known, found, 0.0)


def lost(computed: np.ndarray, high: np.ndarray, dtype: DType) -> np.ndarray:
    """Where a number is an infinity or zero only because the exact one is too large or too small for the type."""
    tiny = float(jnp.finfo(dtype).tiny)
    values = np.asarray(computed).astype(np.float64)
    with np.errstate(all="ignore"):
        over = np.isinf(values) & np.isfinite(high)
        under = (np.abs(values) < tiny) & (high != 0) & (np.abs(high) < tiny)
    return over | under


def worst(values: np.ndarray) -> np.ndarray:
    """The largest of each sample."""
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    return rows.max(axis=1) if rows.size else np.zeros(len(values))
