"""Shapes: what moves numbers and computes nothing. Where JAX is told to put them (`sharding`) changes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Literal
from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Expr, List, Subscript, Text, Tuple
from untrace.targets.torch.rules.table import rule


def is_key(aval: Any) -> bool:
    """Whether a value is of keys, whose words are an axis more."""
    return jax_compat.is_key_dtype(aval.dtype)


@rule("reshape")
def reshape(w: Any, x: Any, *, new_sizes: Sequence[int], dimensions: Any, sharding: Any) -> Expr:
    if dimensions is not None:
        x = w.method(x, "permute", *dimensions)
    if is_key(w.avals[0]):
        return w.method(x, "reshape", (*new_sizes, 2))
    if len(new_sizes) == 1 and w.avals[0].size:
        return w.method(x, "reshape", -1)
    return w.method(x, "reshape", tuple(new_sizes))


@rule("squeeze")
def squeeze(w: Any, x: Any, *, dimensions: Sequence[int]) -> Expr:
    return w.method(x, "squeeze", dimensions[0] if len(dimensions) == 1 else tuple(dimensions))


@rule("expand_dims")
def expand_dims(w: Any, x: Any, *, dimensions: Sequence[int]) -> Expr:
    for axis in sorted(dimensions):
        x = w.method(x, "unsqueeze", axis)
    return x


@rule("transpose")
def transpose(w: Any, x: Any, *, permutation: Sequence[int]) -> Expr:
    if is_key(w.avals[0]):
        permutation = (*permutation, len(permutation))
    rank = len(permutation)
    if rank > 1 and tuple(permutation) == (*range(rank - 2), rank - 1, rank - 2):
        return Attribute(x, "T" if rank == 2 else "mT")
    return w.method(x, "permute", *permutation) if rank > 1 else x


@rule("broadcast_in_dim")
def broadcast_in_dim(
    w: Any, x: Any, *dynamic: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any
) -> Expr:
    if dynamic:
        return DECLINE
    atom, old = w.equation.inputs[0], tuple(w.avals[0].shape)
    if type(atom) is Literal and not is_key(w.avals[0]):
        value, dtype = np.asarray(atom.value), w.dtype(w.out_avals[0].dtype)
        if value == 0 and not np.signbit(value.real):
            return w.torch("zeros", tuple(shape), dtype=dtype)
        if value == 1:
            return w.torch("ones", tuple(shape), dtype=dtype)
        return w.torch("full", tuple(shape), x if atom.aval.weak_type else value.item(), dtype=dtype)
    if is_key(w.avals[0]):
        shape, old, broadcast_dimensions = (*shape, 2), (*old, 2), (*broadcast_dimensions, len(shape))
    grows = any(
        n != old[broadcast_dimensions.index(d)] if d in broadcast_dimensions else n != 1 for d, n in enumerate(shape)
    )
    index: list[Expr] = [Text(":") if d in broadcast_dimensions else Text("None") for d in range(len(shape))]
    while grows and index and index[0].flat() == "None":  # PyTorch puts those in front itself
        index.pop(0)
    while index and index[-1].flat() == ":" and any(i.flat() == "None" for i in index):
        index.pop()
    if any(i.flat() == "None" for i in index):
        x = Subscript(x, Tuple(index) if len(index) > 1 else index[0])
    return w.method(x, "expand", tuple(shape)) if grows else x


@rule("concatenate")
def concatenate(w: Any, *operands: Any, dimension: int) -> Expr:
    return w.torch("cat", List(operands), **({"dim": dimension} if dimension else {}))


@rule("pad")
def pad(w: Any, x: Any, value: Any, *, padding_config: Sequence[tuple[int, int, int]]) -> Expr:
    known = getattr(w.equation.inputs[1], "value", None)
    if known is None or any(inside for _, _, inside in padding_config) or w.avals[0].dtype == np.bool_:
        return w.call(w.helper("_padded"), x, w.tensor(1, value), tuple(tuple(map(int, p)) for p in padding_config))
    pairs = [(int(low), int(high)) for low, high, _ in padding_config]
    while len(pairs) > 1 and pairs[0] == (0, 0):
        pairs.pop(0)
    number = np.asarray(known).item()
    options = {} if number == 0 and not np.signbit(number) else {"value": number}
    return w.functional("pad", x, tuple(n for pair in pairs[::-1] for n in pair), **options)


@rule("rev")
def rev(w: Any, x: Any, *, dimensions: Sequence[int]) -> Expr:
    return w.method(x, "flip", dimensions[0] if len(dimensions) == 1 else tuple(dimensions)) if dimensions else x


@rule("iota")
def iota(w: Any, *dynamic: Any, dtype: Any, shape: Sequence[int], dimension: int, sharding: Any) -> Expr:
    if dynamic:
        return DECLINE
    made = w.torch("arange", shape[dimension], dtype=w.dtype(dtype))
    if len(shape) == 1:
        return made
    index = [Text(":"), *[Text("None")] * (len(shape) - 1 - dimension)]
    return w.method(Subscript(made, Tuple(index)) if len(index) > 1 else made, "expand", tuple(shape))


@rule("split")
def split(w: Any, x: Any, *, sizes: Sequence[int], axis: int) -> Expr:
    return w.torch("split", x, list(map(int, sizes)), **({"dim": axis} if axis else {}))


@rule("empty", "empty2")
def empty(w: Any, *, dtype: Any, shape: Sequence[int] = (), out_sharding: Any = None, memory_space: Any = None) -> Expr:
    return w.torch("zeros", tuple(shape), dtype=w.dtype(dtype))


@rule("stack")
def stack(w: Any, *operands: Any, axis: int) -> Expr:
    return w.torch("stack", List(operands), **({"dim": axis} if axis else {}))


@rule("unstack")
def unstack(w: Any, x: Any, *, axis: int) -> Expr:
    return w.method(x, "unbind", axis)


@rule("tile")
def tile(w: Any, x: Any, *, reps: Sequence[int]) -> Expr:
    return DECLINE if is_key(w.avals[0]) else w.method(x, "tile", tuple(reps))
