"""Functions with a batching rule of their own, in the place of primitives that have one.

A written module carries their source (`targets.jax.runtime`).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax


def _unvmap(reduce, x):
    """`reduce(x)`; under vmap that of the whole batch, one result for all examples."""
    import jax.custom_batching

    def whole_batch(size, in_batched, batch):
        return _unvmap(reduce, batch), False

    function = jax.custom_batching.custom_vmap(lambda x: reduce(x))
    function.def_vmap(whole_batch)
    return function(x)


def _select_if_batched(pred, x, y):
    """`x`; under a vmap that maps over `pred`, `x` where `pred` and else `y`."""
    import jax.custom_batching

    def select(size, in_batched, pred, x, y):
        if not any(in_batched):
            return x, False
        several = [
            v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip((x, y), in_batched[1:], strict=True)
        ]
        if in_batched[0]:
            return jax.vmap(lax.select)(pred, *several), True
        return _select_if_batched(pred, *several), True

    function = jax.custom_batching.custom_vmap(lambda pred, x, y: x)
    function.def_vmap(select)
    return function(pred, x, y)


def _true_unless_batched(pred):
    """True; under a vmap that maps over `pred`, `pred`."""
    import jax.custom_batching

    function = jax.custom_batching.custom_vmap(lambda pred: jnp.full(pred.shape, True))
    function.def_vmap(
        lambda size, in_batched, pred: (pred, True) if in_batched[0] else (_true_unless_batched(pred), False)
    )
    return function(pred)
