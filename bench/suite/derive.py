"""Gradients and batches of any program, so that an original and its copy are derived alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def is_inexact(leaf: Any) -> bool:
    """Whether a leaf is a real or complex floating-point number or array (never a PRNG key)."""
    return jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.inexact)


def gradient(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function: the derivative of the sum of all inexact outputs by every inexact argument leaf.

    It takes what `fn` takes and returns the cotangents in the order of the leaves. `fn` is jitted
    before it is differentiated: without that JAX differentiates the small jitted functions of
    `jax.numpy` one by one, which are gone from the traced program, and then adds cotangents in
    another order. So the derivative is that of the traced program.
    """

    def derivative(*args: Any, **kwargs: Any) -> list[Any]:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        chosen = [index for index, leaf in enumerate(leaves) if is_inexact(leaf)]

        def of_chosen(*values: Any) -> list[Any]:
            full = list(leaves)
            for index, value in zip(chosen, values, strict=True):
                full[index] = value
            new_args, new_kwargs = jax.tree_util.tree_unflatten(tree, full)
            out = jax.tree_util.tree_leaves(fn(*new_args, **new_kwargs))
            return [leaf for leaf in out if is_inexact(leaf)]

        out, pull_back = jax.vjp(jax.jit(of_chosen), *[leaves[index] for index in chosen])
        return list(pull_back([jnp.ones_like(leaf) for leaf in out]))

    return derivative


def batched(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` mapped over the leading axis of every leaf of its arguments; see `batch`."""

    def mapped(*args: Any, **kwargs: Any) -> Any:
        return jax.vmap(lambda a, k: fn(*a, **k))(args, kwargs)

    return mapped


def batch(tree: Any) -> Any:
    """Every leaf stacked with a second one; the floats of the second are an eighth larger.

    Weakly typed leaves stay weak; both of theirs are the same.
    """

    def stack(leaf: Any) -> Any:
        leaf = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
        # `stack` would make a weak type strong, and another program of it. Keys have no such flag.
        if getattr(leaf, "weak_type", False):
            return jnp.broadcast_to(leaf, (2, *leaf.shape))
        other = leaf * jnp.asarray(1.125, leaf.dtype) if is_inexact(leaf) else leaf
        return jnp.stack([leaf, other])

    return jax.tree_util.tree_map(stack, tree)
