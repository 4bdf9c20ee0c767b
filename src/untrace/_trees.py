"""What several stages ask of a pytree."""

from __future__ import annotations

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
