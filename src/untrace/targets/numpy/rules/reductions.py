"""Reductions, cumulative operations and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Expr
from untrace.targets.numpy.rules.table import rule

_LEAST_PRECISE = 4  # bytes of a float in which sums are made


def axis_of(w: Any, axes: Sequence[int], ndim: int) -> dict[str, object]:
    """`axis=...` as one writes it; nothing for all axes."""
    if len(axes) == ndim:
        return {}
    return {"axis": axes[0] if len(axes) == 1 else tuple(axes)}


def _summed(method: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], **_: Any) -> Expr:
        kind, options = np.dtype(w.avals[0].dtype), axis_of(w, axes, w.avals[0].ndim)
        if kind.kind in "iub" and kind.itemsize < 8:
            options["dtype"] = w.dtype(kind)
        elif kind.kind not in "iubc" and kind.itemsize < _LEAST_PRECISE:
            wide = w.call(Attribute(x, method), **options, dtype=w.dtype(np.float32))
            return w.call(Attribute(wide, "astype"), w.dtype(kind))
        return w.call(Attribute(x, method), **options)

    return reduce


def _largest(method: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], **_: Any) -> Expr:
        if any(w.avals[0].shape[a] == 0 for a in axes):
            return DECLINE
        return w.call(Attribute(x, method), **axis_of(w, axes, w.avals[0].ndim))

    return reduce


rule("reduce_sum")(_summed("sum"))
rule("reduce_prod")(_summed("prod"))
rule("reduce_max")(_largest("max"))
rule("reduce_min")(_largest("min"))


def _logical(method: str, ufunc: str) -> Any:
    def reduce(w: Any, x: Any, *, axes: Sequence[int], **_: Any) -> Expr:
        options = axis_of(w, axes, w.avals[0].ndim)
        if w.avals[0].dtype == np.bool_:
            return w.call(Attribute(x, method), **options)
        return w.np(f"{ufunc}.reduce", x, axis=options.get("axis"))

    return reduce


rule("reduce_and")(_logical("all", "bitwise_and"))
rule("reduce_or")(_logical("any", "bitwise_or"))


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


def _windows(method: str, empty: str) -> Any:
    def reduce(
        w: Any, x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
        window_dilation: Any, **_: Any,
    ) -> Expr:  # fmt: skip
        if any(d != 1 for d in (*base_dilation, *window_dilation)) or np.dtype(w.avals[0].dtype).kind != "f":
            return DECLINE
        windows = w.call(
            w.helper("_windows"), x, tuple(window_dimensions), tuple(window_strides), tuple(map(tuple, padding)),
            float(empty),
        )  # fmt: skip
        return w.call(Attribute(windows, method), axis=tuple(range(-len(window_dimensions), 0)))

    return reduce


rule("reduce_window_sum")(_windows("sum", "0"))
rule("reduce_window_max")(_windows("max", "-inf"))
rule("reduce_window_min")(_windows("min", "inf"))
