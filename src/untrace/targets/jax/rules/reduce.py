"""Reductions, cumulative ones and windows. Source: jax/_src/lax/{lax,windowed_reductions}.py, control_flow/loops.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.lax
import numpy as np

from untrace.ir.nodes import Function
from untrace.module.library_calls import number
from untrace.module.rules import DECLINE, Whole
from untrace.python.tree import Call, Expr, Lambda, Name, Star, Text, Tuple
from untrace.targets.jax.rules.table import rule


def _reduction(name: str) -> Callable[..., Any]:
    def reduction(w: Any, x: Any, *, axes: Any, out_sharding: Any = None) -> Any:
        if out_sharding is not None:
            return DECLINE
        return w.lax(name, x, axes)

    return reduction


for _name in "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor".split():
    if hasattr(jax.lax, _name):
        rule(_name)(_reduction(_name))


@rule("argmax")
def argmax(w: Any, x: Any, *, axes: Any, index_dtype: Any) -> Any:
    return w.lax("argmax", x, axes[0], w.module.values.dtype(index_dtype))


@rule("argmin")
def argmin(w: Any, x: Any, *, axes: Any, index_dtype: Any) -> Any:
    return w.lax("argmin", x, axes[0], w.module.values.dtype(index_dtype))


def _cumulative(name: str) -> Callable[..., Any]:
    def cumulative(w: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        return w.lax(name, x, axis=axis, reverse=reverse) if reverse else w.lax(name, x, axis=axis)

    return cumulative


for _name in "cumsum cumprod cummax cummin cumlogsumexp".split():
    rule(_name)(_cumulative(_name))


def reducer(w: Any, function: Function, arity: int) -> Expr:
    """A reducer for `arity` operands: the written function itself, or `lambda a, b: f(*a, *b)` for tuples."""
    name = Name(w.module.function(function))
    if arity == 1:
        return name
    return Lambda(["a", "b"], Call(name, [Star(Name("a")), Star(Name("b"))]))


@rule("reduce")
def reduce(w: Any, *operands: Any, computation: Any, jaxpr: Function, dimensions: Any) -> Any:
    half = len(operands) // 2
    if half == 1:
        call = w.lax("reduce", operands[0], operands[1], reducer(w, jaxpr, 1), dimensions)
        return Whole(call)
    return w.lax("reduce", Tuple(operands[:half]), Tuple(operands[half:]), reducer(w, jaxpr, half), dimensions)


def _window_kwargs(params: dict[str, Any]) -> dict[str, Any]:
    """The dilations, left out where they are 1 everywhere (the function's default)."""
    return {k: v for k, v in params.items() if any(n != 1 for n in v)}


@rule("reduce_window")
def reduce_window(
    w: Any,
    *operands: Any,
    jaxpr: Function,
    consts: Any,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    base_dilation: Any,
    window_dilation: Any,
) -> Any:
    half = len(operands) // 2
    if consts:
        return DECLINE
    dilations = _window_kwargs({"base_dilation": base_dilation, "window_dilation": window_dilation})
    rest = (reducer(w, jaxpr, half), window_dimensions, window_strides, padding)
    if half == 1:
        return Whole(w.lax("reduce_window", operands[0], operands[1], *rest, **dilations))
    return w.lax("reduce_window", Tuple(operands[:half]), Tuple(operands[half:]), *rest, **dilations)


def _monoid_window(function: str, identity: Callable[[Any], Any]) -> Callable[..., Any]:
    def window(
        w: Any,
        x: Any,
        *,
        window_dimensions: Any,
        window_strides: Any,
        padding: Any,
        base_dilation: Any,
        window_dilation: Any,
    ) -> Any:
        start = identity(w.avals[0].dtype)
        if start is None:
            return DECLINE
        dilations = _window_kwargs({"base_dilation": base_dilation, "window_dilation": window_dilation})
        if w.module.idiomatic and jax.dtypes.issubdtype(start.dtype, np.floating):
            start = number(w, float(start))
        else:
            start = w.module.values.numpy_scalar(start)
        if w.module.idiomatic and not any(p for pair in padding for p in pair):
            padding = "VALID"
        return w.lax("reduce_window", x, start, Text(function), window_dimensions, window_strides, padding, **dilations)

    return window


def _zero(dtype: Any) -> Any:
    return np.zeros((), dtype)[()]


def _extreme(sign: int) -> Callable[[Any], Any]:
    def extreme(dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        if jax.dtypes.issubdtype(dtype, np.floating):
            return np.asarray(sign * np.inf, dtype)[()]
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return np.asarray(info.max if sign > 0 else info.min, dtype)[()]
        return None

    return extreme


rule("reduce_window_sum")(_monoid_window("lax.add", _zero))
rule("reduce_window_max")(_monoid_window("lax.max", _extreme(-1)))
rule("reduce_window_min")(_monoid_window("lax.min", _extreme(+1)))
