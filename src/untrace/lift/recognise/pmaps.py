"""Calls of `jax.pmap`, which JAX traces as a jitted `shard_map` over all devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from untrace import jax_compat

UNNAMED = "_internal_pmap_axis_name"  # what JAX calls an axis that its author gives no name. Source: jax/_src/pmap.py


def is_pmap(eqn: Any) -> bool:
    """Whether an equation is a call of `jax.pmap`, mapped over first axes, on the first devices."""
    if eqn.params.get("name") != "_fun" or not jax_compat.is_library_jaxpr(eqn.params["jaxpr"]):
        return False
    jaxpr, consts = jax_compat.open_jaxpr(eqn.params["jaxpr"])
    inner = jaxpr.eqns[0] if len(jaxpr.eqns) == 1 and not consts else None
    if inner is None or inner.primitive.name != "shard_map":
        return False
    if list(inner.invars) != list(jaxpr.invars) or list(inner.outvars) != list(jaxpr.outvars):
        return False
    if axes_of(inner.params) is None:
        return False
    body, _ = jax_compat.open_jaxpr(inner.params["jaxpr"])
    mapped = [v for v, axis in zip(body.invars, axes_of(inner.params) or (), strict=True) if axis is not None]
    sliced = [e.invars[0] for e in body.eqns if e.primitive.name == "squeeze"]
    made = {e.outvars[0] for e in body.eqns if e.primitive.name == "broadcast_in_dim"}
    return bool(mapped) and all(v in sliced for v in mapped) and all(v in made for v in body.outvars)


def axes_of(params: Any) -> Sequence[int | None] | None:
    """`in_axes` of a `shard_map` that a `jax.pmap` is; None for another one."""
    mesh, in_specs, out_specs = params["mesh"], params["in_specs"], params["out_specs"]
    names = tuple(mesh.axis_names)
    if len(names) != 1 or params["check_vma"] or any(tuple(s) != names for s in out_specs):
        return None
    if any(tuple(s) not in ((), names) for s in in_specs):
        return None
    devices = list(getattr(mesh, "devices", np.empty(0)).flat)
    if not devices or devices != jax.local_devices()[: len(devices)]:
        return None
    return [0 if tuple(s) else None for s in in_specs]
