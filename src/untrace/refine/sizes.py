"""One more set of arguments, of sizes drawn anew: what holds at two sizes on purpose does not at a third."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax

TracedCall: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], dict[int | str, Any]]
"""Traced arguments, as types, and static ones by place or name."""

_LEAST, _MOST = 7, 9999


def with_another_size(calls: Sequence[TracedCall]) -> TracedCall | None:
    """Like the first of `calls`, where each dimension that differs between the first two has a third size; None where none
    does. The same pair of sizes gives the same third one."""
    if len(calls) < 2:
        return None
    (args, kwargs, static), (others, other_kwargs, _) = calls[:2]
    leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
    beside, other_tree = jax.tree_util.tree_flatten((others, other_kwargs))
    if tree != other_tree or any(len(x.shape) != len(y.shape) for x, y in zip(leaves, beside, strict=True)):
        return None
    drawn: dict[tuple[int, int], int] = {}
    source = random.SystemRandom()

    def size(a: int, b: int) -> int:
        if a == b:
            return a
        return drawn.setdefault((a, b), source.randint(_LEAST, _MOST))

    new = [
        jax.ShapeDtypeStruct(
            tuple(map(size, x.shape, y.shape)), x.dtype, weak_type=bool(getattr(x, "weak_type", False))
        )
        for x, y in zip(leaves, beside, strict=True)
    ]
    if not drawn:
        return None
    return *jax.tree_util.tree_unflatten(tree, new), static
