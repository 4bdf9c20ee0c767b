"""Keeps how primitives of equinox behave under `vmap`, where that is not how JAX maps what they
compute.

Without `vmap`, `unvmap_any` is `jnp.any` and `select_if_vmap(pred, x, y)` is `x`. Under `vmap` the
first is one condition of the whole batch (so that a loop goes on, or an error is raised, for all),
and the second selects: the values themselves depend on it. Both become functions with a batching
rule of their own (`jax.custom_batching.custom_vmap`), which a written module has as helper routines.
Lowering inlines them, so the StableHLO stays that of the original.

A `custom_vmap` function cannot be transposed. Where a value is a tangent, the selection is therefore
a plain `lax.select` by a condition that is True unless it is batched. Source of the primitives:
equinox/_unvmap.py and equinox/internal/_loop/common.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from untrace import jax_compat
from untrace.jaxprs.expand import batched

_REDUCTIONS = {"unvmap_any": jnp.any, "unvmap_all": jnp.all, "unvmap_max": jnp.max}


def batched_function(eqn: Any, linear: bool) -> Callable[..., list[Any]] | None:
    """A function of the equation's operands that batches as the primitive does; None for a primitive
    that JAX batches alike.

    linear: whether the function must be differentiable and transposable by JAX's own rules.
    """
    name = eqn.primitive.name
    if name not in (*_REDUCTIONS, "select_if_vmap"):
        return None
    if jax_compat.library_of(eqn.primitive) != "equinox":
        return None
    if name in _REDUCTIONS:
        reduction = _REDUCTIONS[name]
        return lambda x: [batched._unvmap(reduction, x)]
    if linear:
        return lambda pred, x, y: [lax.select(batched._true_unless_batched(pred), x, y)]
    return lambda pred, x, y: [batched._select_if_batched(pred, x, y)]


def helper_of(rule: Any) -> tuple[str, Any] | None:
    """(helper routine, its reduction or None) whose batching rule `rule` is; None for another rule."""
    if getattr(rule, "__module__", "") != batched.__name__:
        return None
    name = rule.__qualname__.partition(".")[0]
    cells = dict(zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True))
    return name, cells["reduce"].cell_contents if "reduce" in cells else None
