"""What several stages ask of a pytree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """Whether a tree consists of those and named tuples."""
    if type(tree) is dict:
        return all(type(k) is str and is_simple(v) for k, v in tree.items())
    if type(tree) in (list, tuple) or is_namedtuple(tree):
        return all(map(is_simple, tree))
    return tree is None or jax.tree_util.all_leaves([tree])


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
