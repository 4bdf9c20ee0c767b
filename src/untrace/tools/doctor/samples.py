"""Inputs on which a program is examined: the given ones, some around them, and others over the range of their type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace.ir.types import Data
from untrace.tools.doctor.tape import is_float

MOST_NUMBERS = 60_000  # of all samples together
MOST_SAMPLES = 208
_NEAR = 300.0  # times the largest given number, or 1
_TINY = 1e-9
_SEVERAL = 4  # numbers
_LARGER, _SMALLER = 100.0, 1e-4  # times the largest given number of an array


@dataclass(frozen=True, slots=True)
class Samples:
    """`leaves`: one array for each input, with the samples as first axis; the first sample is the given one where `given`.
    `near`: whether a sample is one that may well be met: of the given signs and not of another order of magnitude.
    `positive`: whether what was given as positive is so. `plain`: whether it is one that a program meets sooner or later: inputs
    that are all zero, arrays that are equal, a matrix that is the identity. `likely`: near, all that was given as of one sign is
    so, and no array is far larger or smaller than it was given.
    """

    leaves: Sequence[Data]
    near: np.ndarray
    given: bool
    positive: np.ndarray
    plain: np.ndarray
    likely: np.ndarray

    @property
    def count(self) -> int:
        return len(self.near)

    def is_like_given(self, row: int) -> bool:
        """Whether all numbers of a sample have the signs and sizes of the given ones, to a power of ten."""
        with np.errstate(all="ignore"):
            ratios = [
                np.asarray(x)[row].astype(np.float64) / np.asarray(x)[0].astype(np.float64)
                for x in self.leaves
                if is_float(x.dtype)
            ]
        return self.given and all(((r >= 0.1) & (r <= 10)).all() for r in ratios)


def samples_of(leaves: Sequence[Data], seed: int = 0) -> Samples:
    """Samples around `leaves`, which are arrays or, where only their types are known, `ShapeDtypeStruct`s."""
    random = np.random.default_rng(seed)
    given = not any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves)
    bases = [_base(x, random) for x in leaves]
    floats = [i for i, x in enumerate(bases) if is_float(x.dtype)]
    count = _count(sum(int(np.size(bases[i])) for i in floats))
    if not floats:
        count = 1
    maker = _Maker([np.asarray(bases[i]).astype(np.float64) for i in floats], random, [bases[i].dtype for i in floats])
    rows = maker.rows(count)
    arrays: list[Data] = []
    for i, base in enumerate(bases):
        if i not in floats:
            arrays.append(jnp.broadcast_to(base, (count, *base.shape)))
            continue
        column = floats.index(i)
        with np.errstate(all="ignore"):
            arrays.append(np.stack([row[column] for row in rows]).astype(base.dtype))
    near = np.array([maker.is_near(row) for row in rows])
    positive = np.array([maker.is_positive(row) for row in rows])
    likely = near & np.array([not given or maker.is_signed(row) and maker.is_of_size(row) for row in rows])
    return Samples(arrays, near, given, positive, np.array(maker.plain), likely)


def _base(x: Data, random: np.random.Generator) -> Data:
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x if hasattr(x, "dtype") and jax_compat.is_key_dtype(x.dtype) else jnp.asarray(x)
    if jax_compat.is_key_dtype(x.dtype):
        return jnp.broadcast_to(jax.random.key(0, impl=jax_compat.key_impl_name(x)), x.shape)
    if is_float(x.dtype):
        return jnp.asarray(np.abs(random.standard_normal(x.shape)) + 0.1, x.dtype)
    return jnp.ones(x.shape, x.dtype)


def _count(numbers: int) -> int:
    return int(np.clip(MOST_NUMBERS // max(numbers, 1), 12, MOST_SAMPLES))


Row = list[np.ndarray]


def _is_mask(values: np.ndarray, bases: Row) -> bool:
    """Whether these are the numbers of a mask, or of labels: of 0 and 1, one for each element or row of another input, and no
    unit vector."""
    if values.size < 3 or not np.isin(values, (0.0, 1.0)).all() or not 1 < values.sum() < values.size:
        return False
    return any(b is not values and b.shape[: values.ndim] == values.shape for b in bases)


def _is_square(values: np.ndarray) -> bool:
    return values.ndim == 2 and len(values) > 1 and values.shape[0] == values.shape[1]


class _Maker:
    def __init__(self, bases: Row, random: np.random.Generator, dtypes: Sequence[np.dtype]) -> None:
        self._bases, self._random = bases, random
        self._positive = [bool(b.size and (b > 0).all()) for b in bases]
        # One positive number says little of where others may be; several do.
        several = sum(b.size for b in bases) > _SEVERAL and all(self._positive)
        self._surely = [p and (b.size > 2 or several) for p, b in zip(self._positive, bases, strict=True)]
        self._masks = [_is_mask(b, bases) for b in bases]
        self.plain: Sequence[bool] = ()  # of the rows that were made
        scales = [float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) for b in bases]
        self._scale = max(1.0, *scales) if scales else 1.0
        infos = [jnp.finfo(d) for d in dtypes]
        # Doubles need not go to their ends to be too large or too small for their squares.
        self._most = min([float(i.max) for i in infos], default=1.0)
        self._end = float(np.log(self._most))
        self._least = max([float(i.tiny) for i in infos], default=1.0)

    def rows(self, count: int) -> list[Row]:
        """The given one, and then kinds in turn, so that few samples have some of each."""
        if not self._bases:
            self.plain = [False] * count
            return [[]] * count
        kinds = [k for k, weight in self._kinds() for _ in range(weight)]
        self._random.shuffle(kinds)
        plain = self._plain()
        rows = [self._bases, *[*plain, *self._special()][: count // 3]]
        self.plain = [0 < n <= len(plain) and n < len(rows) for n in range(count)]
        while len(rows) < count:
            rows.append(kinds[len(rows) % len(kinds)]())
        return [rows[0], *map(self._masked, rows[1:count])]

    def _masked(self, row: Row) -> Row:
        """The numbers of masks and labels made others of 0 and 1, but for one row of four."""
        if not any(self._masks) or self._random.integers(4) == 0:
            return row
        return [
            self._random.integers(2, size=b.shape).astype(float) if m else b
            for b, m in zip(row, self._masks, strict=True)
        ]

    def is_near(self, row: Row) -> bool:
        sizes = np.concatenate([np.abs(values[values != 0]).reshape(-1) for values in row]) if row else np.zeros(0)
        below = any(p and (values < 0).any() for values, p in zip(row, self._surely, strict=True))
        large = sizes > max(_NEAR, 3 * self._end) * self._scale
        if any(m and not np.isin(values, (0.0, 1.0)).all() for values, m in zip(row, self._masks, strict=True)):
            return False
        return not below and not large.any() and not (sizes < _TINY).any()

    def is_positive(self, row: Row) -> bool:
        return not any(p and (values < 0).any() for values, p in zip(row, self._positive, strict=True))

    def is_signed(self, row: Row) -> bool:
        """Whether what was given as of one sign is so. One number says nothing of where others may be."""
        if sum(b.size for b in self._bases) < 2:
            return True
        return not any(
            (b > 0).all() and (values < 0).any() or (b < 0).all() and (values > 0).any()
            for values, b in zip(row, self._bases, strict=True)
            if b.size
        )

    def is_of_size(self, row: Row) -> bool:
        """Whether the largest number of each array is not many times the given one, nor next to nothing beside others. One
        number may be of any size."""
        if sum(b.size for b in self._bases) < 2:
            return True
        for values, b in zip(row, self._bases, strict=True):
            size, given = float(np.abs(values).max(initial=0)), float(np.abs(b).max(initial=0)) or 1.0
            if size > _LARGER * given or len(row) > 1 and 0 < size < _SMALLER * given:
                return False
        return True

    # ---------------------------------------------------------------- kinds of samples

    def _plain(self) -> list[Row]:
        bases = self._bases
        found: list[Row] = [[b * 0 for b in bases]]
        if len(bases) > 1:
            found += [[b * (i != j) for j, b in enumerate(bases)] for i in range(min(len(bases), 6))]
        vectors = [b for b in bases if b.size > 1]
        # Only two: a program of three points has to do where two are one, but nothing where all are.
        alike = next(((b, c) for i, b in enumerate(vectors) for c in vectors[i + 1 :] if b.shape == c.shape), None)
        if alike is not None:
            found.append([alike[0] if b is alike[1] else b for b in bases])
        if any(map(_is_square, bases)):
            found.append([np.eye(len(b)) if _is_square(b) else b for b in bases])
        return found

    def _special(self) -> list[Row]:
        bases = self._bases
        found: list[Row] = [[-b for b in bases], [b * 0 + 1 for b in bases]]
        if len(bases) > 1:
            found += [[b if i == j else b * 0 + 1 for j, b in enumerate(bases)] for i in range(min(len(bases), 4))]
        if any(b.size > 1 for b in bases):
            found += [[np.full(b.shape, s) for b in bases] for s in (0.3, 1.0, 100.0)]
            found += [[b * (np.arange(b.size).reshape(b.shape) != 0) for b in bases]]
        # Around where exp overflows, for whatever type.
        for size in (10.0, 20.0, 50.0, *[round(times * self._end, 1) for times in (1.01, 1.13, 2.25)]):
            found += [[np.full(b.shape, size) for b in bases], [np.full(b.shape, -size) for b in bases]]
        return found

    def _kinds(self) -> list[tuple[Callable[[], Row], int]]:
        return [
            (self._around, 3), (self._normal, 3), (self._scaled, 3), (self._moderate, 4), (self._wide, 4),
            (self._near_one, 2), (self._alike, 3), (self._offset, 2), (self._one_large, 2), (self._fraction, 2),
        ]  # fmt: skip

    def _sign(self, shape: tuple[int, ...], positive: bool) -> np.ndarray:
        how = self._random.integers(4)
        if positive and how < 3 or how == 0:
            return np.ones(shape)
        return -np.ones(shape) if how == 1 else self._random.choice([-1.0, 1.0], shape)

    def _signed(self, sizes: Row) -> Row:
        return [s * self._sign(s.shape, p) for s, p in zip(sizes, self._surely, strict=True)]

    def _around(self) -> Row:
        return [b * np.exp(0.5 * self._random.standard_normal(b.shape)) for b in self._bases]

    def _normal(self) -> Row:
        scale = self._random.choice([0.1, 1.0, 3.0, 10.0, 30.0, 100.0])
        return self._signed([np.abs(self._random.standard_normal(b.shape)) * scale for b in self._bases])

    def _scaled(self) -> Row:
        """The given numbers, all of another order of magnitude; or those of one input."""
        factor = 10.0 ** self._random.uniform(-8, 2.4)
        only = self._random.integers(2 * len(self._bases))
        return self._signed(
            [np.abs(b) * (factor if only >= len(self._bases) or only == i else 1) for i, b in enumerate(self._bases)]
        )

    def _moderate(self) -> Row:
        return self._signed([10.0 ** self._random.uniform(-7, 2.4, b.shape) for b in self._bases])

    def _wide(self) -> Row:
        """Over all exponents, together or each by itself."""
        low, high = np.log2(self._least), np.log2(self._most)
        together = self._random.integers(2)
        first = self._random.uniform(low, high)

        def exponents(b: np.ndarray) -> np.ndarray:
            spread = self._random.uniform(-1, 1, b.shape)
            return np.clip((first if together else self._random.uniform(low, high)) + spread, low, high - 1e-3)

        return self._signed([2.0 ** exponents(b) for b in self._bases])

    def _near_one(self) -> Row:
        step = 2.0 ** -self._random.uniform(1, 26)
        center = self._random.choice([1.0, 1.0, 0.5, 2.0]) * self._sign((), all(self._surely))
        return [center * (1 + step * self._random.choice([-1.0, 1.0], b.shape)) for b in self._bases]

    def _alike(self) -> Row:
        """Numbers that differ little, within an input and between them."""
        center = (
            self._random.choice([1.0, 10.0, 100.0]) * self._random.uniform(0.5, 2) * self._sign((), all(self._surely))
        )
        step = 2.0 ** -self._random.uniform(4, 22)
        return [center * (1 + step * self._random.standard_normal(b.shape)) for b in self._bases]

    def _offset(self) -> Row:
        center = 10.0 ** self._random.uniform(0, 2.3) * self._sign((), all(self._surely))
        return [center + self._random.standard_normal(b.shape) for b in self._bases]

    def _one_large(self) -> Row:
        found = [self._random.standard_normal(b.shape) for b in self._bases]
        for values in found:
            if values.size:
                values.reshape(-1)[self._random.integers(values.size)] = self._random.choice([-120.0, 50.0, 120.0])
        return found

    def _fraction(self) -> Row:
        return [self._random.uniform(0, 1, b.shape) for b in self._bases]
