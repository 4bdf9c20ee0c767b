"""Sample inputs for abstract values: random ones, and edge values on which rewrites go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from untrace import jax_compat


class CannotSample(Exception):
    """There is no way to make values of a type; the message names it."""


@dataclass(frozen=True)
class LeafType:
    """What must be sampled: arrays, or Python scalars (`scalar`: bool, int, float or complex)."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    scalar: type | None = None

    @classmethod
    def of(cls, value: Any) -> LeafType:
        """The type of an array, a Python scalar, a ShapeDtypeStruct or an abstract value."""
        if type(value) in (bool, int, float, complex):
            return cls((), jnp.result_type(type(value)), True, type(value))
        if jax_compat.is_ref(value) or jax_compat.is_ref_aval(value):
            raise CannotSample(f"inputs of type {value} (refs) are not sampled")
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None:
            raise CannotSample(f"inputs of type {type(value).__name__} are not sampled")
        if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return cls(tuple(shape), dtype, bool(getattr(value, "weak_type", False)))


def is_concrete(value: Any) -> bool:
    """Whether `value` is data rather than a type."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))


def sample_inputs(leaves: Sequence[Any], *, samples: int = 64, seed: int = 0) -> Iterator[list[Any]]:
    """`samples` lists of concrete values for `leaves`, the same ones for the same seed.

    The first holds the leaves themselves where they are concrete. The next are zeros, ones, edge
    values everywhere, here and there; the rest random at several scales. Raises CannotSample.
    """
    types = [LeafType.of(leaf) for leaf in leaves]
    for index in range(samples):
        generator = np.random.default_rng([seed, index])
        drawn = [draw(t, index, generator) for t in types]
        if index == 0:
            drawn = [leaf if is_concrete(leaf) else value for leaf, value in zip(leaves, drawn, strict=True)]
        yield drawn


def draw(kind: LeafType, index: int, generator: np.random.Generator) -> Any:
    """One value of a type; `index` chooses the recipe."""
    if jax.dtypes.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return _keys(kind, generator)
    if kind.dtype == jax.dtypes.float0:
        return np.zeros(kind.shape, kind.dtype)
    array = _numbers(kind, index, generator)
    if kind.scalar is not None:
        return kind.scalar(array.item())
    value = jnp.asarray(array)
    return jax_compat.weakly_typed(value) if kind.weak_type else value


def distinct(value: Any, generator: np.random.Generator) -> Any:
    """A value, or where some numbers in it are equal, as many others; itself where its type has not so many."""
    if jax.dtypes.issubdtype(getattr(value, "dtype", None), jax.dtypes.extended):
        return value
    array = jax_compat.as_numpy(value)
    if np.unique(array).size == array.size:
        return value
    numbers = generator.permutation(array.size).reshape(array.shape)
    if array.dtype.itemsize == 2 and jnp.issubdtype(array.dtype, jnp.floating):  # which has few whole numbers
        numbers = (np.ones((), array.dtype).view(np.uint16) + numbers).astype(np.uint16).view(array.dtype)
    numbers = numbers.astype(array.dtype)
    return jnp.asarray(numbers) if np.unique(numbers).size == array.size else value


def _keys(kind: LeafType, generator: np.random.Generator) -> Any:
    name = jax_compat.key_impl_name(kind)
    width = jax.random.key_data(jax.random.key(0, impl=name)).shape
    words = generator.integers(0, 2**32, (*kind.shape, *width), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=name)


def _numbers(kind: LeafType, index: int, generator: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(kind.dtype)
    shape = kind.shape
    if dtype == np.bool_:
        if index in (1, 2):
            return np.full(shape, index == 2)
        return generator.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = np.float32 if dtype == np.complex64 else np.float64
        real = _numbers(LeafType(shape, part), index, generator)
        imaginary = _numbers(LeafType(shape, part), index, generator)
        both = np.empty(shape, dtype)
        both.real, both.imag = real, imaginary
        return both
    edges = integer_edges(dtype) if jnp.issubdtype(dtype, jnp.integer) else float_edges(dtype)
    with np.errstate(all="ignore"):
        if index in (1, 2):
            return np.full(shape, index - 1).astype(dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            # Mostly small: integers are indices, lengths and labels.
            low = max(int(info.min), -2 if index % 2 else 0)
            values = generator.integers(low, min(int(info.max), 7) + 1, shape).astype(dtype)
        else:
            scale = (1.0, 1.0, 1e-3, 1e3, 30.0, 1e-6)[index % 6]
            values = generator.standard_normal(shape) * scale
            if index % 3 == 0:  # in the domain of log and sqrt
                values = np.abs(values)
            values = np.asarray(values).astype(dtype)
    share = {3: 1.0, 4: 0.3, 5: 0.1}.get(index, 0.1 if index % 8 == 7 else 0.0)
    if share:
        picked = edges[generator.integers(0, len(edges), shape)]
        values = np.where(generator.random(shape) < share, picked, values).astype(dtype)
    return np.asarray(values)


def float_edges(dtype: Any) -> np.ndarray:
    """Zeros of both signs, ones, the largest, the smallest normal and sub-normal, inf and NaN."""
    info = jnp.finfo(dtype)
    limits = [float(info.max), float(info.tiny), float(info.smallest_subnormal), float(info.eps)]
    values = [0.0, 1.0, 0.5, 2.0, np.inf, np.nan, *limits]
    with np.errstate(all="ignore"):
        both = np.array([*values, *(-v for v in values)], np.float64).astype(dtype)
    return both


def integer_edges(dtype: Any) -> np.ndarray:
    info = jnp.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    values = [0, 1, high, high - 1, low, low + 1] + ([-1] if low < 0 else [])
    wide = np.uint64 if high > 2**63 - 1 else np.int64
    return np.array(values, wide).astype(dtype)
