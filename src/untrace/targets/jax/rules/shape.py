"""Shape primitives: broadcast, reshape, transpose, slice, pad, concatenate, iota. Source: jax/_src/lax/{lax,slicing}.py."""

from __future__ import annotations

from typing import Any

from untrace.module.rules import DECLINE
from untrace.python.tree import List, Tuple
from untrace.targets.jax.rules.table import rule


@rule("broadcast_in_dim")
def broadcast_in_dim(w: Any, x: Any, *dynamic: Any, shape: Any, broadcast_dimensions: Any, sharding: Any) -> Any:
    if dynamic or sharding is not None or (len(w.avals[0].shape) == len(shape) and w.avals[0].shape == shape):
        return DECLINE
    return w.lax("broadcast_in_dim", x, shape, broadcast_dimensions)


@rule("reshape")
def reshape(w: Any, x: Any, *dynamic: Any, new_sizes: Any, dimensions: Any, sharding: Any) -> Any:
    if dynamic or sharding is not None or (dimensions is None and w.avals[0].shape == new_sizes):
        return DECLINE
    if dimensions is None:
        return w.lax("reshape", x, new_sizes)
    return w.lax("reshape", x, new_sizes, dimensions)


@rule("squeeze")
def squeeze(w: Any, x: Any, *, dimensions: Any) -> Any:
    return w.lax("squeeze", x, dimensions) if dimensions else DECLINE


@rule("transpose")
def transpose(w: Any, x: Any, *, permutation: Any) -> Any:
    if tuple(permutation) == tuple(range(len(permutation))):
        return DECLINE
    return w.lax("transpose", x, permutation)


@rule("rev")
def rev(w: Any, x: Any, *, dimensions: Any) -> Any:
    return w.lax("rev", x, dimensions)


@rule("slice")
def slice_(w: Any, x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    if not any(start_indices) and tuple(limit_indices) == w.avals[0].shape and strides is None:
        return DECLINE
    if strides is None:
        return w.lax("slice", x, start_indices, limit_indices)
    return w.lax("slice", x, start_indices, limit_indices, strides)


@rule("dynamic_slice")
def dynamic_slice(w: Any, x: Any, *indices: Any, slice_sizes: Any) -> Any:
    # Negative indices were already dealt with by equations of their own.
    starts = [w.avals[1 + i] for i in range(len(indices))]
    if any(a.shape for a in starts):
        return DECLINE
    return w.lax("dynamic_slice", x, Tuple(indices), slice_sizes, allow_negative_indices=False)


@rule("dynamic_update_slice")
def dynamic_update_slice(w: Any, x: Any, update: Any, *indices: Any) -> Any:
    return w.lax("dynamic_update_slice", x, update, Tuple(indices), allow_negative_indices=False)


@rule("pad")
def pad(w: Any, x: Any, padding_value: Any, *, padding_config: Any) -> Any:
    return w.lax("pad", x, padding_value, padding_config)


@rule("concatenate")
def concatenate(w: Any, *operands: Any, dimension: int) -> Any:
    if len(operands) == 1:
        return DECLINE
    return w.lax("concatenate", List(operands), dimension)


@rule("split")
def split(w: Any, x: Any, *, sizes: Any, axis: int) -> Any:
    if w.module.is_numpy(x):
        return DECLINE  # JAX 0.12 would make an array of it, which is another constant than the one that others read
    return w.lax("split", x, sizes, axis)


@rule("iota")
def iota(w: Any, *dynamic: Any, dtype: Any, shape: Any, dimension: int, sharding: Any) -> Any:
    if dynamic or sharding is not None:
        return DECLINE
    dtype = w.module.values.dtype(dtype)
    if len(shape) == 1:
        return w.lax("iota", dtype, shape[0])
    return w.lax("broadcasted_iota", dtype, shape, dimension)


@rule("empty")
def empty(w: Any, *, shape: Any, dtype: Any, out_sharding: Any) -> Any:
    if out_sharding is not None:
        return DECLINE
    return w.lax("empty", shape, w.module.values.dtype(dtype))
