"""Indices: JAX clamps or drops what lies outside, where PyTorch raises; and orders.

Source of what JAX does with NaN and ties: jax/_src/lax/lax.py, `sort` and `top_k`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from untrace.ir.calls import replaces
from untrace.module.rules import DECLINE, Whole
from untrace.python.tree import Attribute, Expr, Text, Tuple, Unary
from untrace.targets.eager.rules.parts import fill_of, is_float
from untrace.targets.torch.rules.shapes import is_key
from untrace.targets.torch.rules.table import rule


@rule("dynamic_slice")
def dynamic_slice(w: Any, x: Any, *starts: Any, slice_sizes: Sequence[int]) -> Expr:
    if is_key(w.avals[0]):  # whose words are an axis more
        return w.call(w.helper("_sliced"), x, Tuple([*starts, Text("0")]), (*slice_sizes, 2))
    return w.call(w.helper("_sliced"), x, Tuple(starts), tuple(slice_sizes))


@rule("dynamic_update_slice")
def dynamic_update_slice(w: Any, x: Any, update: Any, *starts: Any) -> Expr:
    if is_key(w.avals[0]):
        starts = (*starts, Text("0"))
    return w.call(w.helper("_updated"), x, update, Tuple(starts))


@rule("gather")
def gather(
    w: Any, x: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any,
    indices_are_sorted: bool, unique_indices: bool,
) -> Expr:  # fmt: skip
    d, options = dimension_numbers, {}
    offsets, sizes = tuple(d.offset_dims), tuple(slice_sizes)
    if is_key(w.avals[0]):
        offsets, sizes = (*offsets, w.out_avals[0].ndim), (*sizes, 2)
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        if is_key(w.avals[0]):
            return DECLINE
        fill = fill_of(w.avals[0].dtype, fill_value)
        w.module.modules.add("torch")
        options["fill"] = Text("torch.nan") if fill != fill else fill
    elif mode not in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS):
        return DECLINE
    if d.operand_batching_dims:
        options["batched"] = tuple(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
    return w.call(
        w.helper("_gathered"), x, indices, offsets, tuple(d.collapsed_slice_dims), tuple(d.start_index_map), sizes, **options,
    )  # fmt: skip


_REDUCTIONS = {"": "", "add": "sum", "sub": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def _scatter(kind: str) -> Any:
    def scatter(
        w: Any, x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, update_jaxpr: Any = None,
        update_consts: Any = (), indices_are_sorted: bool, unique_indices: bool,
    ) -> Expr:  # fmt: skip
        d, options = dimension_numbers, {}
        dtype = w.avals[0].dtype
        if is_key(w.avals[0]) or not kind and not replaces(update_jaxpr):
            return DECLINE
        if kind in ("min", "max", "mul") and np.issubdtype(dtype, np.complexfloating):
            return DECLINE
        if mode == lax.GatherScatterMode.CLIP:
            options["clip"] = True
        if d.operand_batching_dims:
            options["batched"] = tuple(zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True))
        if kind:
            options["reduce"] = _REDUCTIONS[kind]
        updates = w.tensor(2, updates)
        updates = Unary("-", updates) if kind == "sub" else updates
        made = w.call(
            w.helper("_scattered"), w.tensor(0, x), indices, updates, tuple(d.update_window_dims),
            tuple(d.inserted_window_dims), tuple(d.scatter_dims_to_operand_dims), **options,
        )  # fmt: skip
        return w.wrapped(made, dtype) if kind in ("add", "sub", "mul") else made

    return scatter


for _kind in _REDUCTIONS:
    rule(*([f"scatter-{_kind}", f"scatter_{_kind}"] if _kind else ["scatter"]))(_scatter(_kind))


@rule("sort")
def sort(w: Any, *operands: Any, dimension: int, is_stable: bool, num_keys: int) -> Any:
    if any(np.issubdtype(a.dtype, np.complexfloating) for a in w.avals[:num_keys]):
        return DECLINE
    if len(operands) == 1:
        # Zeros of either sign are equal and stay in their order.
        options = {"stable": True} if is_float(w.avals[0]) else {}
        made = w.method(operands[0], "sort", dim=dimension, **options)
        return Whole(Attribute(made, "values"))
    return w.call(w.helper("_sorted_together"), *operands, dim=dimension, keys=num_keys)


@rule("top_k")
def top_k(w: Any, x: Any, *, k: int, axis: int = -1, is_stable: bool = True) -> Expr:
    return w.call(w.helper("_top"), x, k, axis)
