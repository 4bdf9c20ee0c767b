"""Indices: JAX clamps or drops what lies outside, where NumPy raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from untrace import jax_compat
from untrace.ir.calls import replaces
from untrace.module.rules import DECLINE
from untrace.python.tree import Expr, Subscript, Text, Tuple
from untrace.targets.eager.rules.parts import fill_of
from untrace.targets.numpy.rules.table import rule


@rule("dynamic_slice")
def dynamic_slice(w: Any, x: Any, *starts: Any, slice_sizes: Sequence[int]) -> Expr:
    if jax_compat.is_key_dtype(w.avals[0].dtype):  # whose words are an axis more
        return w.call(w.helper("_sliced"), x, Tuple([*starts, Text("0")]), (*slice_sizes, 2))
    return w.call(w.helper("_sliced"), x, Tuple(starts), tuple(slice_sizes))


@rule("dynamic_update_slice")
def dynamic_update_slice(w: Any, x: Any, update: Any, *starts: Any) -> Expr:
    if jax_compat.is_key_dtype(w.avals[0].dtype):
        starts = (*starts, Text("0"))
    return w.call(w.helper("_updated"), x, update, Tuple(starts))


@rule("gather")
def gather(
    w: Any, x: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any,
    indices_are_sorted: bool, unique_indices: bool,
) -> Expr:  # fmt: skip
    d, options = dimension_numbers, {}
    rows = _rows(w, x, indices, d, slice_sizes)
    if rows is not None and mode in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS):
        return rows
    offsets, sizes = tuple(d.offset_dims), tuple(slice_sizes)
    if jax_compat.is_key_dtype(w.avals[0].dtype):
        offsets, sizes = (*offsets, w.out_avals[0].ndim), (*sizes, 2)
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        if jax_compat.is_key_dtype(w.avals[0].dtype):
            return DECLINE
        fill = fill_of(w.avals[0].dtype, fill_value)
        options["fill"] = Text("np.nan") if fill != fill else fill
    elif mode not in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS):
        return DECLINE
    if d.operand_batching_dims:
        options["batched"] = tuple(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
    return w.call(
        w.helper("_gathered"), x, indices, offsets, tuple(d.collapsed_slice_dims), tuple(d.start_index_map), sizes, **options,
    )  # fmt: skip


def _rows(w: Any, x: Expr, indices: Expr, d: Any, slice_sizes: Sequence[int]) -> Expr | None:
    """`np.take(x, i, axis=0, mode="clip")` for whole rows along one axis."""
    shape, batch = w.avals[0].shape, w.avals[1].ndim - 1
    if (
        len(d.start_index_map) != 1
        or d.operand_batching_dims
        or tuple(d.collapsed_slice_dims) != tuple(d.start_index_map)
    ):
        return None
    axis = d.start_index_map[0]
    is_whole = all(n == m or i == axis for i, (n, m) in enumerate(zip(slice_sizes, shape, strict=True)))
    if not is_whole or tuple(d.offset_dims) != (*range(axis), *range(axis + batch, batch + len(shape) - 1)):
        return None
    index: Expr = Subscript(indices, Text("..., 0"))
    if type(indices) is Subscript and type(indices.index) is Tuple:  # as it was before it had that axis
        words = [part.flat() for part in indices.index.elements]
        if words[-1] == "None" and set(words[:-1]) == {":"}:
            index = indices.value
    return w.np("take", x, index, axis=axis, mode="clip")


_UFUNCS = {
    "scatter": "", "scatter-add": "add", "scatter_add": "add", "scatter-mul": "multiply", "scatter_mul": "multiply",
    "scatter-min": "minimum", "scatter_min": "minimum", "scatter-max": "maximum", "scatter_max": "maximum",
    "scatter-sub": "subtract", "scatter_sub": "subtract",
}  # fmt: skip


def _scatter(ufunc: str) -> Any:
    def scatter(
        w: Any, x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, update_jaxpr: Any = None,
        update_consts: Any = (), indices_are_sorted: bool, unique_indices: bool,
    ) -> Expr:  # fmt: skip
        d, options = dimension_numbers, {}
        if jax_compat.is_key_dtype(w.avals[0].dtype) or not ufunc and not replaces(update_jaxpr):
            return DECLINE
        if mode == lax.GatherScatterMode.CLIP:
            options["clip"] = True
        if d.operand_batching_dims:
            options["batched"] = tuple(zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True))
        if ufunc:
            w.module.modules.add("np")
            options["combine"] = Text(f"np.{ufunc}")
        return w.call(
            w.helper("_scattered"), x, indices, updates, tuple(d.update_window_dims), tuple(d.inserted_window_dims),
            tuple(d.scatter_dims_to_operand_dims), **options,
        )  # fmt: skip

    return scatter


for _name, _ufunc in _UFUNCS.items():
    rule(_name)(_scatter(_ufunc))
