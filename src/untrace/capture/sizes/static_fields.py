"""Static fields of pytrees on which a program does not depend: found out by tracing it with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef, default_registry

from untrace.capture.function import Captured
from untrace.jaxprs.equal.comparer import Comparer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Field = tuple[int, ...]  # number of the node in the tree, and the way through the tuples of its static data

_MOST_TRACES = 10  # in search of them


def with_idle_fields_changed(example: Captured, trace: Callable[[Arguments], Captured]) -> Arguments | None:
    """The example's arguments with other numbers, words and truth values in the static fields that make no difference.

    None where there is no such field. trace: traces the function on other arguments.
    """
    leaves, tree = jax.tree_util.tree_flatten((example.args, example.kwargs))
    kinds: dict[Field, type] = {}
    _changed(tree, None, kinds)
    fields = list(kinds)
    if not fields:
        return None

    def is_idle(chosen: Sequence[Field]) -> bool:
        try:
            arguments = jax.tree_util.tree_unflatten(_changed(tree, chosen, {}), leaves)
            return Comparer().same(example.jaxpr, trace(arguments).jaxpr)
        except Exception:  # whatever a class makes of fields that it never had
            return False

    left = _MOST_TRACES

    def idle_among(several: Sequence[Field]) -> list[Field]:
        """Those of the fields that alone, or with others, make no difference: all, or of each half."""
        nonlocal left
        left -= 1
        if left < 0 or not several:
            return []
        if is_idle(several):
            return list(several)
        half = len(several) // 2
        return [*idle_among(several[:half]), *idle_among(several[half:])] if half else []

    idle = fields if is_idle(fields) else []
    if not idle and len(fields) > 1:  # sizes, words, switches: what is of one type is more often of one kind
        idle = [
            f for kind in dict.fromkeys(kinds.values()) for f in idle_among([f for f in fields if kinds[f] is kind])
        ]
    if not idle or len(idle) < len(fields) and len(idle) > 1 and not is_idle(idle):
        return None
    args, kwargs = jax.tree_util.tree_unflatten(_changed(tree, idle, {}), leaves)
    return args, kwargs


def _changed(tree: Any, chosen: Sequence[Field] | None, found: dict[Field, type]) -> Any:
    """The tree with those fields changed (all: None); `found` gets what type each field that there is has."""
    count = -1

    def other(value: Any, way: Field) -> Any:
        if isinstance(value, tuple):
            items = [other(item, (*way, i)) for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if type(value) not in (bool, int, float, str):
            return value
        found[way] = type(value)
        if chosen is not None and way not in chosen:
            return value
        if type(value) is bool:
            return not value
        return value + "_other" if type(value) is str else value + 1

    def visit(node: Any) -> Any:
        nonlocal count
        count += 1
        data = node.node_data()
        if data is None:
            return node
        kind, fixed = data
        number = count
        children = [visit(child) for child in node.children()]
        if kind not in (dict, list, tuple, type(None)) and fixed is not None:
            fixed = other(fixed, (number,))
        return PyTreeDef.from_node_data_and_children(default_registry, (kind, fixed), children)

    return visit(tree)
