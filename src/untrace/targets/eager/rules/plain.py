"""Primitives that compute nothing, and those that every library of arrays spells the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE, RuleTable
from untrace.python.tree import Expr, Slice, Subscript, Tuple


def register(table: RuleTable) -> None:
    """Gives a target's table these rules."""
    for names, rule in _RULES.items():
        table.rule(*names.split())(rule)


def _same(w: Any, x: Any) -> Expr:
    return x


def _pvary(w: Any, x: Any, *, axes: Any) -> Expr:
    return x


def _name(w: Any, x: Any, *, name: str) -> Expr:
    return x


def _sharding_constraint(
    w: Any, x: Any, *, sharding: Any, layout: Any, context_mesh: Any, unconstrained_dims: Any
) -> Expr:
    return x


def _optimization_barrier(w: Any, *operands: Any) -> Expr:
    return Tuple(operands)


def _device_put(w: Any, *operands: Any, devices: Any, srcs: Any, copy_semantics: Any) -> Expr:
    return Tuple(operands)


def _platform_index(w: Any, *, platforms: Sequence[Any]) -> Expr:
    """Which of the branches for platforms is that for a CPU, or for all others."""
    places = [i for i, names in enumerate(platforms) if names is not None and "cpu" in names]
    others = [i for i, names in enumerate(platforms) if names is None]
    return w.module.values.numpy_scalar(np.int32((places or others)[0])) if places or others else DECLINE


def _slice(w: Any, x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Expr:
    parts: list[Expr] = []
    for start, limit, stride, size in zip(
        start_indices, limit_indices, strides or [1] * len(start_indices), w.avals[0].shape, strict=True
    ):
        first = None if start == 0 else w.source(start)
        last = None if limit == size else w.source(limit)
        parts.append(Slice(first, last, None if stride == 1 else w.source(stride)))
    while len(parts) > 1 and parts[-1].flat() == ":":
        parts.pop()
    return Subscript(x, parts[0] if len(parts) == 1 else Tuple(parts))


_RULES: dict[str, Callable[..., Any]] = {
    "copy copy_p random_clone random_unwrap": _same, "pvary": _pvary, "name": _name,
    "sharding_constraint": _sharding_constraint, "optimization_barrier": _optimization_barrier, "device_put": _device_put,
    "platform_index": _platform_index, "slice": _slice,
}  # fmt: skip
