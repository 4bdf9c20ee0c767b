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

_MOST_FIELDS = 4  # that are tried one by one, where all at once matter


def with_idle_fields_changed(example: Captured, trace: Callable[[Arguments], Captured]) -> Arguments | None:
    """The example's arguments with other numbers, words and truth values in the static fields that make no difference.

    None where there is no such field. trace: traces the function on other arguments.
    """
    leaves, tree = jax.tree_util.tree_flatten((example.args, example.kwargs))
    fields: list[Field] = []
    _changed(tree, None, fields)
    if not fields:
        return None

    def is_idle(chosen: Sequence[Field]) -> bool:
        try:
            arguments = jax.tree_util.tree_unflatten(_changed(tree, chosen, []), leaves)
            return Comparer().same(example.jaxpr, trace(arguments).jaxpr)
        except Exception:  # whatever a class makes of fields that it never had
            return False

    idle = fields if is_idle(fields) else []
    if not idle and 1 < len(fields) <= _MOST_FIELDS:
        idle = [field for field in fields if is_idle([field])]
    if not idle or len(idle) < len(fields) and len(idle) > 1 and not is_idle(idle):
        return None
    args, kwargs = jax.tree_util.tree_unflatten(_changed(tree, idle, []), leaves)
    return args, kwargs


def _changed(tree: Any, chosen: Sequence[Field] | None, found: list[Field]) -> Any:
    """The tree with those fields changed (all: None); `found` gets all fields that there are."""
    count = -1

    def other(value: Any, way: Field) -> Any:
        if isinstance(value, tuple):
            items = [other(item, (*way, i)) for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if type(value) not in (bool, int, float, str):
            return value
        found.append(way)
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
