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
