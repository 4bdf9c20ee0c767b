"""Reductions and what is made of them: sums, means, maxima, arg-reductions, cumulative ones."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from untrace.ir.nodes import Equation, Literal
from untrace.lift.recognise.engine import Guess, Matcher, idiom
from untrace.provenance.arguments import last_name

_REDUCTIONS = {
    "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod", "reduce_or": "any",
    "reduce_and": "all", "argmax": "argmax", "argmin": "argmin",
}  # fmt: skip
# Functions that take an axis as their last argument by place.
_WITH_AXIS_LAST = frozenset({*_REDUCTIONS.values(), "mean", "var", "std", "softmax", "log_softmax", "logsumexp"})


def said_axis(m: Matcher, equation: Equation) -> int | None:
    """The axis in the author's call that made an equation, where he has a number for it."""
    frames = m.site(equation).frames
    node = frames[-1].node if frames else None
    if not isinstance(node, ast.Call):
        return None
    given = [k.value for k in node.keywords if k.arg == "axis"]
    if not given and last_name(node.func) in _WITH_AXIS_LAST:
        given = node.args[-1:]
    match given:
        case [ast.Constant(value=int() as axis)] if type(axis) is int:
            return axis
        case [ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as axis))]:
            return -axis
    return None


def axis_arguments(axes: Any, rank: int, keepdims: bool = False, said: int | None = None) -> Iterator[dict[str, Any]]:
    """Keyword arguments for a reduction over `axes`, as a person would write them; first as it was `said`, for arrays of other
    ranks may be reduced by the same call."""
    axes = tuple(sorted(int(a) for a in axes))
    kept = {"keepdims": True} if keepdims else {}
    if said is not None and -rank <= said < rank and axes == (said % rank,):
        yield {"axis": said, **kept}
    if axes == tuple(range(rank)):
        yield kept
    if len(axes) == 1:
        yield {"axis": axes[0] - rank if axes[0] == rank - 1 and rank > 1 else axes[0], **kept}
    else:
        yield {"axis": axes, **kept}


def reduced(m: Matcher, equation: Equation) -> tuple[Any, Any]:
    """(operand, axes) of a reduction, the operand before what `jnp` converts."""
    return equation.inputs[0], equation.origin.params["axes"]


@idiom(*_REDUCTIONS, small=True)
def _reduce(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x, axes = reduced(m, equation)
    name = _REDUCTIONS[equation.callee.name]
    rank = len(x.aval.shape)
    inner = m.through(x, "convert_element_type")
    dtype = equation.outputs[0].aval.dtype if equation.outputs[0] is not None else None
    for operand in (x,) if inner is None else (inner, x):
        if dtype is None or name not in ("sum", "prod") or _may_be_of_sum(dtype, operand.aval.dtype):
            for kwargs in axis_arguments(axes, rank, said=said_axis(m, equation)):
                yield Guess("method." + name, (operand,), kwargs)
    if name == "sum" and inner is not None and dtype is not None:
        for kwargs in axis_arguments(axes, rank, said=said_axis(m, equation)):
            yield Guess("method.sum", (inner,), {**kwargs, "dtype": dtype})


def _may_be_of_sum(dtype: Any, inner: Any) -> bool:
    """Whether numbers of type `inner` may have a sum of type `dtype`: small integers are made larger ones."""
    if not isinstance(inner, np.dtype) or inner.kind not in "biufc":
        return True
    return dtype == jax.dtypes.canonicalize_dtype(np.zeros(0, inner).sum().dtype)


@idiom("broadcast_in_dim", "reshape", small=True)
def _kept_dimensions(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`x.sum(-1, keepdims=True)`: the reduction, and its result with the lost axes put back."""
    inside = m.producer(equation.inputs[0], *_REDUCTIONS) if len(equation.inputs) == 1 else None
    if inside is not None:
        x, axes = reduced(m, inside)
        for kwargs in axis_arguments(axes, len(x.aval.shape), keepdims=True, said=said_axis(m, equation)):
            yield Guess("method." + _REDUCTIONS[inside.callee.name], (x,), kwargs)


@idiom("div")
def _mean(m: Matcher, equation: Equation) -> Iterator[Guess]:
    total = equation.inputs[0]
    plain = m.producer(total, "reduce_sum")
    kept = None if plain is not None else m.through(total, "broadcast_in_dim", "reshape")
    inside = plain or (m.producer(kept, "reduce_sum") if kept is not None else None)
    if inside is None:
        return
    x, axes = reduced(m, inside)
    shape, count = x.aval.shape, equation.inputs[1]
    if not axes or type(count) is Literal and count.value != math.prod([shape[a] for a in axes]):
        return
    inner = m.through(x, "convert_element_type")
    for operand in (x,) if inner is None else (inner, x):
        for kwargs in axis_arguments(axes, len(shape), keepdims=plain is None, said=said_axis(m, equation)):
            yield Guess("method.mean", (operand,), kwargs)


@idiom("convert_element_type")
def _mean_of_low_precision(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """Means and sums of bfloat16 and float16 are taken in float32 and converted back."""
    before = m.producer(equation.inputs[0], "div", "reduce_sum", "broadcast_in_dim", "reshape")
    if before is None:
        return
    if before.callee.name == "div":
        for guess in _mean(m, before):
            yield guess
    elif before.callee.name == "reduce_sum":
        x, axes = reduced(m, before)
        inner = m.through(x, "convert_element_type")
        if inner is not None:
            for kwargs in axis_arguments(axes, len(x.aval.shape), said=said_axis(m, before)):
                yield Guess("method.sum", (inner,), kwargs)
    else:
        for guess in _kept_dimensions(m, before):
            inner = m.through(guess.args[0], "convert_element_type")
            yield guess if inner is None else Guess(guess.path, (inner,), guess.kwargs)


@idiom("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", small=True)
def _cumulative(m: Matcher, equation: Equation) -> Iterator[Guess]:
    params = equation.origin.params
    kwargs: dict[str, Any] = {"axis": int(params["axis"])}
    if params["reverse"]:
        kwargs["reverse"] = True
    yield Guess("lax." + equation.callee.name, (equation.inputs[0],), kwargs)
