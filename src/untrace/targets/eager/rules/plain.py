"""Primitives that compute nothing, and those that every library of arrays spells the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from untrace.capture.callbacks import callback_of
from untrace.module.interface.callback_arguments import callback_arguments
from untrace.module.rules import DECLINE, RuleTable
from untrace.python.tree import Attribute, Call, Expr, Slice, Subscript, Tuple
from untrace.targets.eager.rules.parts import counting, is_threefry


def register(table: RuleTable) -> None:
    """Gives a target's table these rules."""
    for names, rule in _RULES.items():
        table.rule(*names.split())(rule)


def _same(w: Any, x: Any) -> Expr:
    return x


def _pvary(w: Any, x: Any, *, axes: Any) -> Expr:
    return x


def _reshard(w: Any, x: Any, *, dst_sharding: Any, concrete_mesh: Any) -> Expr:
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


def _threefry2x32(w: Any, a: Any, b: Any, x: Any, y: Any) -> Expr:
    return w.call(w.helper("_threefry"), a, b, x, y)


def _iota_2x32_shape(w: Any, *, shape: Any) -> Expr:
    return w.call(w.helper("_counted"), tuple(shape))


def _random_wrap(w: Any, x: Any, *, impl: Any) -> Expr:
    return x if is_threefry(w.out_avals[0]) else DECLINE


def _random_split(w: Any, key: Any, *, shape: Any) -> Expr:
    return w.call(w.helper(counting("_split")), key, tuple(shape)) if is_threefry(w.avals[0]) else DECLINE


def _debug_print(
    w: Any,
    *operands: Any,
    fmt: str,
    has_placeholders: bool,
    in_tree: Any,
    logging_record: Any,
    np_printoptions: Any,
    ordered: bool,
    partitioned: bool,
    static_args: Any,
) -> Expr:
    info = callback_of(w.equation.origin)
    if info.flat_reason or info.logging or info.print_options:
        return DECLINE
    args, kwargs = callback_arguments(info, operands, w.source)
    text = w.source(fmt)
    return Call("print", [Call(Attribute(text, "format"), args, kwargs) if args or kwargs else text])


_RULES: dict[str, Callable[..., Any]] = {
    "copy copy_p random_clone random_unwrap": _same, "pvary": _pvary, "reshard": _reshard, "name": _name,
    "sharding_constraint": _sharding_constraint, "optimization_barrier": _optimization_barrier, "device_put": _device_put,
    "platform_index": _platform_index, "slice": _slice, "threefry2x32": _threefry2x32,
    "iota_2x32_shape": _iota_2x32_shape, "random_wrap": _random_wrap, "random_split": _random_split,
    "debug_print": _debug_print,
}  # fmt: skip
# Of them those that do not do the same with each element of arrays as with numbers.
NOT_ELEMENTWISE = frozenset(
    "debug_print device_put iota_2x32_shape optimization_barrier platform_index random_split random_wrap slice threefry2x32".split()
)
