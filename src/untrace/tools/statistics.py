"""What there is to say of an array in a few numbers. In pieces: an array needs no copy of itself in another dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

_PIECE = 1 << 18  # elements
_BINS = 8
_BARS = "▁▂▃▄▅▆▇█"

Number = float | int | complex


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts and moments of the numbers of an array.

    `mean`, `least`, `most` are those of the finite ones (of complex numbers: of their absolute values; of bools the mean is
    the share of True), None where there are none. `nans`, `plus_infs`, `minus_infs`, `zeros` (without -0), `minus_zeros`
    and `subnormals` count elements; a complex one counts where a part of it is so. `histogram`: how many finite ones are in
    each eighth from `least` to `most`.
    """

    size: int
    mean: float | None = None
    least: float | int | None = None
    most: float | int | None = None
    nans: int = 0
    plus_infs: int = 0
    minus_infs: int = 0
    zeros: int = 0
    minus_zeros: int = 0
    subnormals: int = 0
    histogram: tuple[int, ...] = ()

    @property
    def is_finite(self) -> bool:
        return not (self.nans or self.plus_infs or self.minus_infs)

    @property
    def counts(self) -> dict[str, int]:
        """The counts that are not 0, by what is said of them."""
        found = {
            "nan": self.nans, "+inf": self.plus_infs, "-inf": self.minus_infs, "0": self.zeros, "-0": self.minus_zeros,
            "subnormal": self.subnormals,
        }  # fmt: skip
        return {word: count for word, count in found.items() if count}

    @property
    def bars(self) -> str:
        """The histogram as a line of bars; "" of less than four numbers, or of equal ones."""
        if sum(self.histogram) < 4 or self.least == self.most:
            return ""
        top = max(self.histogram)
        return "".join(_BARS[math.ceil(n * (len(_BARS) - 1) / top)] for n in self.histogram)


def is_float(dtype: np.dtype) -> bool:
    """Whether numbers of a dtype are real ones with a fraction; bfloat16 and its like too."""
    return dtype.kind == "f" or dtype.kind == "V" and _limits(dtype) is not None


def precision(dtype: np.dtype) -> int | None:
    """How many significant bits numbers of a dtype have; None of those that are exact."""
    if dtype.kind == "c":
        dtype = np.dtype(f"f{dtype.itemsize // 2}")
    limits = _limits(dtype)
    return None if limits is None else int(limits.nmant) + 1


def _limits(dtype: np.dtype) -> ml_dtypes.finfo | None:
    try:
        return ml_dtypes.finfo(dtype)
    except ValueError:
        return None


def statistics(array: np.ndarray) -> Statistics:
    """The statistics of an array of any dtype that JAX has; of what is no number only the size."""
    flat = array.reshape(-1)
    if flat.dtype == np.bool_ or flat.dtype.kind in "iu" or _is_small_integer(flat.dtype):
        return _of_exact(flat)
    if flat.dtype.kind == "c" or is_float(flat.dtype):
        return _of_floats(flat)
    return Statistics(array.size)


def _is_small_integer(dtype: np.dtype) -> bool:
    return dtype.kind == "V" and dtype.name.startswith(("int", "uint"))


def _pieces(flat: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, flat.size, _PIECE):
        yield flat[start : start + _PIECE]


def _of_exact(flat: np.ndarray) -> Statistics:
    if not flat.size:
        return Statistics(0)
    if flat.dtype.kind == "V":
        flat = flat.astype(np.int64)
    least, most = flat.min().item(), flat.max().item()
    mean = float(flat.mean(dtype=np.float64))
    zeros = 0 if flat.dtype == np.bool_ else flat.size - int(np.count_nonzero(flat))
    return Statistics(flat.size, mean, least, most, zeros=zeros, histogram=_histogram(flat, float(least), float(most)))


def _of_floats(flat: np.ndarray) -> Statistics:
    is_complex = flat.dtype.kind == "c"
    part = np.dtype(f"f{flat.dtype.itemsize // 2}") if is_complex else flat.dtype
    limits = _limits(part)
    smallest = float(limits.smallest_normal) if limits is not None else 0.0
    nans = plus = minus = zeros = minus_zeros = subnormals = count = 0
    total, least, most = 0.0, math.inf, -math.inf
    for piece in _pieces(flat):
        size = piece.size
        wide = (piece.view(part) if is_complex else piece).astype(np.float64)
        finite = np.isfinite(wide)
        small = np.abs(wide) < smallest
        if not finite.all():
            nans += _elements(np.isnan(wide), size)
            plus += _elements(wide == math.inf, size)
            minus += _elements(wide == -math.inf, size)
        if small.any():
            negative = np.signbit(wide)
            zero = wide == 0
            zeros += _elements(zero & ~negative, size) if not is_complex else int(np.count_nonzero(piece == 0))
            minus_zeros += _elements(zero & negative, size) if not is_complex else 0
            subnormals += _elements(small & ~zero, size)
        if is_complex:
            finite = finite.reshape(size, 2).all(axis=1)
            wide = np.hypot(wide[::2], wide[1::2])
        kept = wide if finite.all() else wide[finite]
        if kept.size:
            count += kept.size
            total += float(kept.sum())
            least, most = min(least, float(kept.min())), max(most, float(kept.max()))
    counts = nans, plus, minus, zeros, minus_zeros, subnormals
    if not count:
        return Statistics(flat.size, None, None, None, *counts)
    return Statistics(flat.size, total / count, least, most, *counts, _histogram(flat, least, most))


def _elements(holds: np.ndarray, size: int) -> int:
    """How many elements it holds of; of complex ones each has two parts."""
    return int(np.count_nonzero(holds if holds.size == size else holds.reshape(size, 2).any(axis=1)))


def _histogram(flat: np.ndarray, least: float, most: float) -> tuple[int, ...]:
    width = most - least
    if flat.size < 4 or width == 0 or not math.isfinite(width):
        return ()
    counts = np.zeros(_BINS, np.int64)
    for piece in _pieces(flat):
        wide = np.abs(piece).astype(np.float64) if piece.dtype.kind == "c" else piece.astype(np.float64)
        wide = wide[np.isfinite(wide)]
        places = np.clip((wide - least) / width * _BINS, 0, _BINS - 1).astype(np.int64)
        counts += np.bincount(places, minlength=_BINS)
    return tuple(counts.tolist())
