"""Reductions, cumulative operations and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from untrace.ir.nodes import Function
from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Expr, List, Name, Text
from untrace.targets.eager.elementwise import is_elementwise
from untrace.targets.numpy.rules.elementwise import ELEMENTWISE, is_float
from untrace.targets.numpy.rules.table import rule

_LEAST_PRECISE = 4  # bytes of a float in which sums are made


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


def _start(dtype: Any, method: str) -> Any:
    """What a sum, a maximum or a minimum of nothing is."""
    if method == "sum":
        return 0
    if dtype == np.bool_:
        return method == "min"
    if jax.dtypes.issubdtype(dtype, np.floating):
        return -np.inf if method == "max" else np.inf
    info = jax.numpy.iinfo(dtype)
    return int(info.min if method == "max" else info.max)


def _largest(method: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], out_sharding: Any = None) -> Expr:
        if any(w.avals[0].shape[a] == 0 for a in axes):  # NumPy has none of nothing
            out = w.out_avals[0]
            start = np.full((), _start(out.dtype, method))
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


@rule("reduce")
def reduce(
    w: Any,
    *operands: Any,
    computation: Any = None,
    jaxpr: Function,
    dimensions: Sequence[int],
    out_sharding: Any = None,
) -> Expr:
    return _reduced(w, operands, jaxpr, tuple(dimensions))


def _reduced(w: Any, operands: Sequence[Expr], function: Function, axes: tuple[int, ...]) -> Expr:
    """Arrays reduced by a function of numbers, which is called with arrays."""
    if not is_elementwise(function, ELEMENTWISE, _is_ufunc):
        return DECLINE
    half = len(operands) // 2
    name = Name(w.module.function(function))
    return w.call(w.helper("_reduced"), name, List(operands[:half]), List(operands[half:]), axes)


def _is_ufunc(path: str) -> bool:
    return path == "np.where" or isinstance(getattr(np, path.removeprefix("np."), None), np.ufunc)


@dataclass(frozen=True, slots=True)
class _Window:
    """How windows lie: their sizes and steps, what is around the array, and the gaps in it and in them."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    spread: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(sizes: Any, strides: Any, padding: Any, spread: Any, dilation: Any) -> _Window:
        pairs = tuple(map(tuple, padding))
        return _Window(tuple(sizes), tuple(strides), pairs, tuple(spread), tuple(dilation))


def _views(w: Any, x: Expr, start: Any, window: _Window) -> Expr:
    """The windows of an array, with `start` around it."""
    options = {} if set(window.spread) == {1} else {"spread": window.spread}
    if set(window.dilation) != {1}:
        options["dilation"] = window.dilation
    return w.call(w.helper("_windows"), x, window.sizes, window.strides, window.padding, start, **options)


def _windows(method: str) -> Any:
    def reduce(
        w: Any, x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
        window_dilation: Any,
    ) -> Expr:  # fmt: skip
        dtype, rank = np.dtype(w.avals[0].dtype), w.avals[0].ndim
        if 0 in w.out_avals[0].shape or not rank or dtype.kind == "c" and method != "sum":
            return DECLINE
        start, axis = _start(dtype, method), tuple(range(-rank, 0))
        window = _Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
        windows = _views(w, x, float(start) if is_float(w.avals[0]) else start, window)
        return (
            _in_sum_type(w, windows, method, {"axis": axis})
            if method == "sum"
            else w.call(Attribute(windows, method), axis=axis)
        )

    return reduce


for _method in ("sum", "max", "min"):
    rule(f"reduce_window_{_method}")(_windows(_method))


@rule("reduce_window")
def reduce_window(
    w: Any, *operands: Any, jaxpr: Function, consts: Any, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any,
) -> Expr:  # fmt: skip
    half, rank = len(operands) // 2, w.avals[0].ndim
    if consts or 0 in w.out_avals[0].shape or not rank:
        return DECLINE
    window = _Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
    views = [_views(w, x, start, window) for x, start in zip(operands[:half], operands[half:], strict=True)]
    return _reduced(w, [*views, *operands[half:]], jaxpr, tuple(range(-rank, 0)))


def _choice(w: Any, aval: Any, select_prim: Any, window: _Window) -> list[Any] | None:
    """What says which element of each window is chosen; None where that is for others to say."""
    name, method = {"ge": ("np.greater_equal", "max"), "le": ("np.less_equal", "min")}[str(select_prim.name)]
    if np.dtype(aval.dtype).kind == "c" or 0 in aval.shape:
        return None
    if any(n < 0 for pair in window.padding for n in pair):
        return None
    if any(n != 1 for n in (*window.spread, *window.dilation)):
        return None
    worst = _start(aval.dtype, method)
    return [window.sizes, window.strides, window.padding, Text(name), float(worst) if is_float(aval) else worst]


@rule("select_and_scatter_add")
def select_and_scatter_add(
    w: Any, source: Any, x: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any
) -> Expr:
    """The derivative of pooling: each number goes to the element that its window has chosen."""
    choice = _choice(w, w.avals[1], select_prim, _Window.of(window_dimensions, window_strides, padding, (), ()))
    return DECLINE if choice is None else w.call(w.helper("_added_to_chosen"), source, x, *choice)


@rule("select_and_gather_add")
def select_and_gather_add(
    w: Any, tangents: Any, x: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any,
) -> Expr:  # fmt: skip
    window = _Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
    choice = _choice(w, w.avals[1], select_prim, window)
    if choice is None:
        return DECLINE
    return w.call(w.helper("_taken_of_chosen"), tangents, x, *choice[:3], tuple(w.out_avals[0].shape), *choice[3:])
