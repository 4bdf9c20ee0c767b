"""Reductions, cumulative operations and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Expr
from untrace.targets.eager.rules import reductions
from untrace.targets.eager.rules.parts import Window, start_of
from untrace.targets.numpy.rules.elementwise import ELEMENTWISE
from untrace.targets.numpy.rules.table import NUMPY, rule

_LEAST_PRECISE = 4  # bytes of a float in which sums are made

_COMPARISONS = ("np.greater_equal", "np.less_equal")  # at least, at most


def axis_of(w: Any, axes: Sequence[int], ndim: int) -> dict[str, object]:
    """`axis=...` as one writes it; nothing for all axes."""
    if len(axes) == ndim:
        return {}
    return {"axis": axes[0] if len(axes) == 1 else tuple(axes)}


def _summed(method: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
        return _in_sum_type(w, x, method, axis_of(w, axes, w.avals[0].ndim))

    return reduce


def _in_sum_type(w: Any, x: Expr, method: str, options: Mapping[str, Any]) -> Expr:
    """A sum or a product in the type that JAX has: of narrow floats it is made in float32."""
    kind = np.dtype(w.avals[0].dtype)
    if kind.kind in "iub" and kind.itemsize < 8:
        return w.call(Attribute(x, method), **options, dtype=w.dtype(kind))
    if kind.kind not in "iubc" and kind.itemsize < _LEAST_PRECISE:
        wide = w.call(Attribute(x, method), **options, dtype=w.dtype(np.float32))
        return w.call(Attribute(wide, "astype"), w.dtype(kind))
    return w.call(Attribute(x, method), **options)


def _largest(method: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
        if any(w.avals[0].shape[a] == 0 for a in axes):  # NumPy has none of nothing
            out = w.out_avals[0]
            start = np.full((), start_of(out.dtype, method))
            return w.np("full", tuple(out.shape), w.source(start.item()), w.dtype(out.dtype))
        return w.call(Attribute(x, method), **axis_of(w, axes, w.avals[0].ndim))

    return reduce


rule("reduce_sum")(_summed("sum"))
rule("reduce_prod")(_summed("prod"))
rule("reduce_max")(_largest("max"))
rule("reduce_min")(_largest("min"))


def _logical(method: str, ufunc: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
        options = axis_of(w, axes, w.avals[0].ndim)
        if w.avals[0].dtype == np.bool_:
            return w.call(Attribute(x, method), **options)
        return w.np(f"{ufunc}.reduce", x, axis=options.get("axis"))

    return reduce


rule("reduce_and")(_logical("all", "bitwise_and"))
rule("reduce_or")(_logical("any", "bitwise_or"))


@rule("reduce_xor")
def reduce_xor(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
    return w.np("bitwise_xor.reduce", x, axis=axis_of(w, axes, w.avals[0].ndim).get("axis"))


@rule("argmax")
def argmax(w: Any, x: Any, *, axes: Sequence[int], index_dtype: Any) -> Expr:
    return w.call(Attribute(w.call(Attribute(x, "argmax"), axis=axes[0]), "astype"), w.dtype(index_dtype))


@rule("argmin")
def argmin(w: Any, x: Any, *, axes: Sequence[int], index_dtype: Any) -> Expr:
    return w.call(Attribute(w.call(Attribute(x, "argmin"), axis=axes[0]), "astype"), w.dtype(index_dtype))


def _cumulative(name: str, typed: bool = False) -> Any:
    def accumulate(w: Any, x: Any, *, axis: int, reverse: bool) -> Expr:
        x = w.np("flip", x, axis) if reverse else x
        options = {"dtype": w.dtype(w.avals[0].dtype)} if typed and np.dtype(w.avals[0].dtype).kind in "iub" else {}
        made = w.np(name, x, axis=axis, **options)
        return w.np("flip", made, axis) if reverse else made

    return accumulate


rule("cumsum")(_cumulative("cumsum", typed=True))
rule("cumprod")(_cumulative("cumprod", typed=True))
rule("cummax")(_cumulative("maximum.accumulate"))
rule("cummin")(_cumulative("minimum.accumulate"))
rule("cumlogsumexp")(_cumulative("logaddexp.accumulate"))


def _is_ufunc(path: str) -> bool:
    return path == "np.where" or isinstance(getattr(np, path.removeprefix("np."), None), np.ufunc)


def _windows(method: str) -> Any:
    def reduce(
        w: Any, x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
        window_dilation: Any,
    ) -> Expr:  # fmt: skip
        dtype, rank = np.dtype(w.avals[0].dtype), w.avals[0].ndim
        if 0 in w.out_avals[0].shape or not rank or dtype.kind == "c" and method != "sum":
            return DECLINE
        start, axis = start_of(dtype, method), tuple(range(-rank, 0))
        window = Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
        windows = window.views(w, x, w.bound(start, w.avals[0]))
        return (
            _in_sum_type(w, windows, method, {"axis": axis})
            if method == "sum"
            else w.call(Attribute(windows, method), axis=axis)
        )

    return reduce


for _method in ("sum", "max", "min"):
    rule(f"reduce_window_{_method}")(_windows(_method))


reductions.register(NUMPY, ELEMENTWISE, _is_ufunc, _COMPARISONS)


@rule("select_and_gather_add")
def select_and_gather_add(
    w: Any, tangents: Any, x: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any,
) -> Expr:  # fmt: skip
    window = Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
    choice = window.choice(w, w.avals[1], select_prim, _COMPARISONS)
    if choice is None:
        return DECLINE
    return w.call(w.helper("_taken_of_chosen"), tangents, x, *choice[:3], tuple(w.out_avals[0].shape), *choice[3:])
