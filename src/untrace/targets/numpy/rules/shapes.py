"""Shapes: what moves numbers and computes nothing. Where JAX is told to put them (`sharding`) changes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Literal
from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Expr, List, Subscript, Text, Tuple
from untrace.targets.numpy.rules.table import rule


@rule("reshape")
def reshape(w: Any, x: Any, *, new_sizes: Sequence[int], dimensions: Any, sharding: Any) -> Expr:
    if dimensions is not None:
        x = w.call(Attribute(x, "transpose"), *dimensions)
    if jax_compat.is_key_dtype(w.avals[0].dtype):
        return w.call(Attribute(x, "reshape"), (*new_sizes, 2))
    if len(new_sizes) == 1 and w.avals[0].size:
        return w.call(Attribute(x, "reshape"), -1)
    return w.call(Attribute(x, "reshape"), tuple(new_sizes))


@rule("squeeze")
def squeeze(w: Any, x: Any, *, dimensions: Sequence[int]) -> Expr:
    if len(dimensions) == w.avals[0].ndim and not jax_compat.is_key_dtype(w.avals[0].dtype):
        return w.call(Attribute(x, "reshape"), Tuple([]))
    return w.call(Attribute(x, "squeeze"), dimensions[0] if len(dimensions) == 1 else tuple(dimensions))


@rule("expand_dims")
def expand_dims(w: Any, x: Any, *, dimensions: Sequence[int]) -> Expr:
    return w.np("expand_dims", x, tuple(dimensions))


@rule("transpose")
def transpose(w: Any, x: Any, *, permutation: Sequence[int]) -> Expr:
    if jax_compat.is_key_dtype(w.avals[0].dtype):
        permutation = (*permutation, len(permutation))
    if tuple(permutation) == tuple(range(len(permutation)))[::-1]:
        return Attribute(x, "T")
    return w.call(Attribute(x, "transpose"), *permutation)


@rule("broadcast_in_dim")
def broadcast_in_dim(
    w: Any, x: Any, *dynamic: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any
) -> Expr:
    if dynamic:
        return DECLINE
    atom, old = w.equation.inputs[0], w.avals[0].shape
    if type(atom) is Literal:
        value, dtype = np.asarray(atom.value), w.dtype(w.out_avals[0].dtype)
        if value == 0 and not np.signbit(value.real):
            return w.np("zeros", tuple(shape), dtype)
        return w.np("ones", tuple(shape), dtype) if value == 1 else w.np("full", tuple(shape), x)
    if jax_compat.is_key_dtype(w.avals[0].dtype):  # whose words are an axis more
        shape, old, broadcast_dimensions = (*shape, 2), (*old, 2), (*broadcast_dimensions, len(shape))
    if not old:
        return w.np("full", tuple(shape), x)
    grows = any(
        n != old[broadcast_dimensions.index(d)] if d in broadcast_dimensions else n != 1 for d, n in enumerate(shape)
    )
    index: list[Expr] = [Text(":") if d in broadcast_dimensions else Text("None") for d in range(len(shape))]
    while grows and index and index[0].flat() == "None":  # NumPy puts those in front itself
        index.pop(0)
    while index and index[-1].flat() == ":" and any(i.flat() == "None" for i in index):
        index.pop()
    if any(i.flat() == "None" for i in index):
        x = Subscript(x, Tuple(index) if len(index) > 1 else index[0])
    return w.np("broadcast_to", x, tuple(shape)) if grows else x


@rule("concatenate")
def concatenate(w: Any, *operands: Any, dimension: int) -> Expr:
    return w.np("concatenate", List(operands), **({"axis": dimension} if dimension else {}))


@rule("pad")
def pad(w: Any, x: Any, value: Any, *, padding_config: Sequence[tuple[int, int, int]]) -> Expr:
    if all(low >= 0 and high >= 0 and not inside for low, high, inside in padding_config):
        return w.np("pad", x, tuple((low, high) for low, high, _ in padding_config), constant_values=value)
    return w.call(w.helper("_padded"), x, value, tuple(tuple(map(int, p)) for p in padding_config))


@rule("rev")
def rev(w: Any, x: Any, *, dimensions: Sequence[int]) -> Expr:
    if tuple(dimensions) == (0,):
        return Subscript(x, Text("::-1"))
    return w.np("flip", x, dimensions[0] if len(dimensions) == 1 else tuple(dimensions))


@rule("iota")
def iota(w: Any, *dynamic: Any, dtype: Any, shape: Sequence[int], dimension: int, sharding: Any) -> Expr:
    if dynamic:
        return DECLINE
    made = w.np("arange", shape[dimension], dtype=w.dtype(dtype))
    if len(shape) == 1:
        return made
    index = [Text(":"), *[Text("None")] * (len(shape) - 1 - dimension)]
    return w.np("broadcast_to", Subscript(made, Tuple(index)) if len(index) > 1 else made, tuple(shape))


@rule("split")
def split(w: Any, x: Any, *, sizes: Sequence[int], axis: int) -> Expr:
    places = [int(n) for n in np.cumsum(sizes)[:-1]]
    return w.np("split", x, places, **({"axis": axis} if axis else {}))


@rule("empty", "empty2")
def empty(w: Any, *, dtype: Any, shape: Sequence[int] = (), out_sharding: Any = None, memory_space: Any = None) -> Expr:
    return w.np("zeros", tuple(shape), w.dtype(dtype))


@rule("stack")
def stack(w: Any, *operands: Any, axis: int) -> Expr:
    return w.np("stack", List(operands), **({"axis": axis} if axis else {}))


@rule("unstack")
def unstack(w: Any, x: Any, *, axis: int) -> Expr:
    """The results are the parts themselves: an array unpacks into those on its first axis."""
    return w.np("moveaxis", x, axis, 0) if axis else x


@rule("tile")
def tile(w: Any, x: Any, *, reps: Sequence[int]) -> Expr:
    return DECLINE if jax_compat.is_key_dtype(w.avals[0].dtype) else w.np("tile", x, tuple(reps))
