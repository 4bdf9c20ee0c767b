"""Meshes, shardings and devices: in types, in parameters, in whole programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from untrace.jax_compat.inner_jaxprs import bodies_in, is_plain, with_inner_jaxprs
from untrace.jax_compat.jaxprs import DROP_TYPE, open_jaxpr
from untrace.jax_compat.rebuilding import rebuilt_jaxpr, substituted


def varying_axes(aval: Any) -> frozenset[str]:
    """Mesh axes over which a value inside shard_map varies."""
    vma = getattr(aval, "vma", None)
    if vma is None:
        vma = getattr(getattr(aval, "mat", None), "varying", None)
    return frozenset(vma) if vma else _NO_AXES


_NO_AXES: frozenset[str] = frozenset()


def without_mesh(closed: Any, plain: Callable[[Any], Any]) -> Any:
    """A jaxpr without what its types and equations say of a mesh, as the body of a `shard_map` with `check_vma=False` where
    there is none: over which axes values vary, and that they lie on one device.

    plain: gives the open jaxpr that stands for a collective, None for what stays.
    """
    jaxpr, _ = open_jaxpr(closed)
    new = {v: _without_mesh(v) for v in jaxpr.invars}
    eqns: list[Any] = []

    def add(eqn: Any) -> None:
        invars = substituted(eqn.invars, new)
        if eqn.primitive.name == "pvary":
            new.update(zip(eqn.outvars, invars, strict=True))
            return
        inner = plain(eqn)
        if inner is not None:
            new.update(zip(inner.invars, invars, strict=True))
            for each in inner.eqns:
                add(each.replace(source_info=eqn.source_info))
            new.update(zip(eqn.outvars, substituted(inner.outvars, new), strict=True))
            return
        params = {k: None if is_manual_sharding(v) else v for k, v in eqn.params.items()}
        new.update((v, _without_mesh(v)) for v in eqn.outvars)
        eqn = eqn.replace(invars=invars, outvars=substituted(eqn.outvars, new), params=params)
        eqns.append(with_inner_jaxprs(eqn, lambda inner: without_mesh(inner, plain)))

    for eqn in jaxpr.eqns:
        add(eqn)
    return rebuilt_jaxpr(closed, eqns, substituted(jaxpr.outvars, new), invars=[new[v] for v in jaxpr.invars])


def _without_mesh(variable: Any) -> Any:
    return variable if type(variable) is DROP_TYPE else type(variable)(type_without_mesh(variable.aval))


def type_without_mesh(aval: Any) -> Any:
    if not isinstance(aval, jax.core.ShapedArray):
        return aval
    return jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


def is_unspecified(sharding: Any) -> bool:
    """Whether a sharding parameter says nothing (`UnspecifiedValue` has no public name)."""
    return type(sharding).__name__ == "UnspecifiedValue"


def is_auto_axes(spec: Any) -> bool:
    return type(spec).__name__ == "AUTO"


def partitions(spec: Any) -> tuple[Any, ...]:
    """The entries of a PartitionSpec (iterating over one is deprecated on newer lines)."""
    return tuple(getattr(spec, "_partitions", None) or spec)


def default_memory_kind(sharding: Any) -> str | None:
    """The memory kind that a sharding has when none is asked for; None over an abstract mesh."""
    if isinstance(sharding.mesh, jax.sharding.AbstractMesh):
        return None
    return next(iter(sharding.mesh.devices.flat)).default_memory().kind


def has_typed_mesh(aval: Any) -> bool:
    """Whether an abstract value's sharding is on a mesh with manual or explicit axes, which its type then depends on."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return any(t.name in ("Manual", "Explicit") for t in getattr(mesh, "axis_types", None) or ())


def speaks_of_devices(closed: Any) -> bool:
    """Whether types or parameters in a program are of a mesh or of devices: it is another program on others."""
    for jaxpr in bodies_in(closed):
        if any(has_typed_mesh(v.aval) for v in jaxpr.invars):
            return True
        for eqn in jaxpr.eqns:
            if any(has_typed_mesh(v.aval) for v in eqn.outvars):
                return True
            # Of a jitted function that is the mesh around it, and no fact of the program.
            if any(_is_of_devices(value) for key, value in eqn.params.items() if key != "ctx_mesh"):
                return True
    return False


def _is_of_devices(value: Any) -> bool:
    if is_plain(value):
        return False
    if isinstance(value, jax.sharding.Sharding):
        return not is_trivial_sharding(value)
    if isinstance(value, (tuple, list)):
        return any(map(_is_of_devices, value))
    if isinstance(value, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        return bool(value.axis_names)
    return isinstance(value, jax.Device)


def is_trivial_sharding(sharding: Any) -> bool:
    """Whether a sharding is over a mesh without axes: what 0.10 writes where there is no mesh."""
    mesh = getattr(sharding, "mesh", None)
    return mesh is not None and not getattr(mesh, "axis_names", ("?",))


def is_manual_sharding(sharding: Any) -> bool:
    """Whether a sharding names no axis of a mesh of which all axes are manual."""
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    types = getattr(mesh, "axis_types", None) or ()
    return spec is not None and bool(types) and all(t.name == "Manual" for t in types) and all(p is None for p in spec)
