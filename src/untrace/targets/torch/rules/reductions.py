"""Reductions, cumulative operations and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Expr, Text
from untrace.targets.eager.rules import reductions
from untrace.targets.eager.rules.parts import Window, start_of
from untrace.targets.torch.rules.elementwise import ELEMENTWISE, FUNCTIONS
from untrace.targets.torch.rules.table import TORCH, rule

_COMPARISONS = ("torch.ge", "torch.le")  # at least, at most


def _over(w: Any, axes: Sequence[int]) -> dict[str, object]:
    """`dim=...` as one writes it; nothing for all axes."""
    if len(axes) == w.avals[0].ndim:
        return {}
    return {"dim": axes[0] if len(axes) == 1 else tuple(axes)}


def _typed(w: Any) -> dict[str, Expr]:
    """Sums of integers in their own type."""
    kind = np.dtype(w.avals[0].dtype)
    return {"dtype": w.dtype(kind)} if kind.kind in "iub" and kind.name != "int64" else {}


@rule("reduce_sum")
def reduce_sum(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
    if not axes:
        return x
    return w.wrapped(w.method(x, "sum", **_over(w, axes), **_typed(w)), w.avals[0].dtype)


@rule("reduce_prod")
def reduce_prod(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
    if not axes:
        return x
    if len(axes) == w.avals[0].ndim:
        return w.wrapped(w.method(x, "prod", **_typed(w)), w.avals[0].dtype)
    for axis in sorted(axes, reverse=True):
        x = w.method(x, "prod", dim=axis, **_typed(w))
    return w.wrapped(x, w.avals[0].dtype)


def _largest(method: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
        if np.issubdtype(w.avals[0].dtype, np.complexfloating):
            return DECLINE
        if any(w.avals[0].shape[a] == 0 for a in axes):  # PyTorch has none of nothing
            out = w.out_avals[0]
            return w.torch("full", tuple(out.shape), start_of(out.dtype, method[1:]), dtype=w.dtype(out.dtype))
        return w.method(x, method, **_over(w, axes)) if axes else x

    return reduce


rule("reduce_max")(_largest("amax"))
rule("reduce_min")(_largest("amin"))


def _logical(method: str, function: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
        if not axes:
            return x
        if w.avals[0].dtype == np.bool_ and method:
            return w.method(x, method, **_over(w, axes))
        if any(not w.avals[0].shape[a] for a in axes):
            return DECLINE
        w.module.modules.add("torch")
        return w.call(w.helper("_folded"), Text(f"torch.{function}"), x, tuple(axes))

    return reduce


rule("reduce_and")(_logical("all", "bitwise_and"))
rule("reduce_or")(_logical("any", "bitwise_or"))
rule("reduce_xor")(_logical("", "bitwise_xor"))


def _place(method: str) -> Any:
    def find(w: Any, x: Any, *, axes: Sequence[int], index_dtype: Any) -> Expr:
        if w.avals[0].dtype == np.bool_:
            x = w.cast(x, np.uint8)
        return w.cast(w.method(x, method, dim=axes[0]), index_dtype)

    return find


rule("argmax")(_place("argmax"))
rule("argmin")(_place("argmin"))


def _cumulative(name: str) -> Any:
    def accumulate(w: Any, x: Any, *, axis: int, reverse: bool) -> Expr:
        dtype = w.avals[0].dtype
        if name in ("cummax", "cummin") and np.issubdtype(dtype, np.complexfloating):
            return DECLINE
        x = w.method(x, "flip", axis) if reverse else x
        made = w.method(x, name, dim=axis, **(_typed(w) if name in ("cumsum", "cumprod") else {}))
        if name in ("cummax", "cummin"):
            made = Attribute(made, "values")
        made = w.wrapped(made, dtype) if name in ("cumsum", "cumprod") else made
        return w.method(made, "flip", axis) if reverse else made

    return accumulate


for _name in ("cumsum", "cumprod", "cummax", "cummin"):
    rule(_name)(_cumulative(_name))
rule("cumlogsumexp")(_cumulative("logcumsumexp"))


def _windows(method: str) -> Any:
    def reduce(
        w: Any, x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
        window_dilation: Any,
    ) -> Expr:  # fmt: skip
        dtype, rank = np.dtype(w.avals[0].dtype), w.avals[0].ndim
        if 0 in w.out_avals[0].shape or not rank or dtype.kind == "c" and method != "sum":
            return DECLINE
        window = Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
        start = w.bound(start_of(dtype, method.removeprefix("a")), w.avals[0])
        windows = window.views(w, x, start)
        options = _typed(w) if method == "sum" else {}
        made = w.method(windows, method, dim=tuple(range(-rank, 0)), **options)
        return w.wrapped(made, dtype) if method == "sum" else made

    return reduce


for _primitive, _method in {"sum": "sum", "max": "amax", "min": "amin"}.items():
    rule(f"reduce_window_{_primitive}")(_windows(_method))


reductions.register(TORCH, ELEMENTWISE, FUNCTIONS.__contains__, _COMPARISONS)


@rule("select_and_gather_add")
def select_and_gather_add(
    w: Any, tangents: Any, x: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any,
) -> Expr:  # fmt: skip
    window = Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
    choice = window.choice(w, w.avals[1], select_prim, _COMPARISONS)
    return DECLINE if choice is None else w.call(w.helper("_taken_of_chosen"), tangents, x, *choice)
