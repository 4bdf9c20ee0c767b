"""Sorting. Source: jax/_src/lax/lax.py."""

from __future__ import annotations

from typing import Any

from untrace.module.rules import DECLINE, Whole
from untrace.python.tree import Tuple
from untrace.targets.jax.rules.table import rule


@rule("sort")
def sort(w: Any, *operands: Any, dimension: int, is_stable: bool, num_keys: int) -> Any:
    kwargs: dict[str, Any] = {"dimension": dimension}
    if not is_stable:
        kwargs["is_stable"] = False
    if num_keys != 1:
        kwargs["num_keys"] = num_keys
    if len(operands) == 1:
        return Whole(w.lax("sort", operands[0], **kwargs))
    return w.lax("sort", Tuple(operands), **kwargs)


@rule("top_k")
def top_k(w: Any, x: Any, *, k: int, axis: int) -> Any:
    last = len(w.avals[0].shape) - 1
    return w.lax("top_k", x, k) if axis == last else w.lax("top_k", x, k, axis=axis)


@rule("approx_top_k")
def approx_top_k(
    w: Any,
    x: Any,
    *,
    k: int,
    reduction_dimension: int,
    recall_target: float,
    is_max_k: bool,
    reduction_input_size_override: int,
    aggregate_to_topk: bool,
) -> Any:
    kwargs: dict[str, Any] = {"reduction_dimension": reduction_dimension, "recall_target": recall_target}
    if reduction_input_size_override != -1:
        kwargs["reduction_input_size_override"] = reduction_input_size_override
    if not aggregate_to_topk:
        return DECLINE
    return w.lax("approx_max_k" if is_max_k else "approx_min_k", x, k, **kwargs)
