"""What several stages ask of a pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax


def is_plain(tree: Any) -> bool:
    """Whether a tree consists of dicts with strings as keys, lists and tuples."""
    if type(tree) is dict:
        return all(type(k) is str and is_plain(v) for k, v in tree.items())
    if type(tree) in (list, tuple):
        return all(map(is_plain, tree))
    return tree is None or jax.tree_util.all_leaves([tree])


def is_simple(tree: Any) -> bool:
    """Whether a tree consists of those, named tuples and dataclasses that are made of their fields."""
    if type(tree) is dict:
        return all(type(k) is str and is_simple(v) for k, v in tree.items())
    if type(tree) in (list, tuple):
        return all(map(is_simple, tree))
    if (parts := parts_by_name(tree)) is not None:
        return all(map(is_simple, parts.values()))
    return tree is None or jax.tree_util.all_leaves([tree])


def parts_by_name(node: Any) -> Mapping[str, object] | None:
    """The children of a named tuple, or of a dataclass that is made of its fields; None of anything else."""
    cls = type(node)
    if is_namedtuple(node):
        return dict(zip(cls._fields, node, strict=True))
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.init or hasattr(cls, "__post_init__"):
        return None
    found = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda part: part is not node)
    fields = {f.name for f in dataclasses.fields(cls)}
    parts = {getattr(path[0], "name", ""): child for path, child in found if len(path) == 1}
    return parts if len(parts) == len(found) and parts.keys() <= fields else None


def is_namedtuple(node: Any) -> bool:
    return isinstance(node, tuple) and type(node) is not tuple and hasattr(node, "_fields")


_GONE = object()


def part_of_tree(tree: Any, kept: Sequence[bool]) -> Any:
    """A tree without some of its leaves, of which one at least stays. What loses one is a tuple of the rest, or the one thing
    that is left."""
    return _part(tree, iter(kept))


def _part(node: Any, kept: Iterator[bool]) -> Any:
    if jax.tree_util.all_leaves([node]):
        return node if next(kept) else _GONE
    children = list(jax.tree_util.default_registry.flatten_one_level(node)[0]) if node is not None else []
    parts = [_part(child, kept) for child in children]
    if all(part is child for part, child in zip(parts, children, strict=True)):
        return node
    rest = [part for part in parts if part is not _GONE]
    return rest[0] if len(rest) == 1 else tuple(rest) if rest else _GONE
