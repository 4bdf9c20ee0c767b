"""How parameter values that only JAX knows are written: shardings, meshes, policies, primitives, trees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from untrace import jax_compat
from untrace.python.tree import Attribute, Call, Expr, Text, Tuple
from untrace.python.values import Unwritable, Values


def _writer(kind: Any) -> Callable[[Callable[[Values, Any], Expr]], Callable[[Values, Any], Expr]]:
    """Registers the writer of a class (subclasses too); a class that this JAX lacks is passed over."""

    def register(function: Callable[[Values, Any], Expr]) -> Callable[[Values, Any], Expr]:
        if kind is not None:
            kinds = kind if isinstance(kind, tuple) else (kind,)
            jax_compat.VALUE_WRITERS.extend((k, function) for k in kinds)
        return function

    return register


@_writer(jax.sharding.PartitionSpec)
def partition_spec(values: Values, spec: Any) -> Expr:
    values.modules.add("PartitionSpec")
    unreduced = [(k, values.source(v)) for k in ("unreduced", "reduced") if (v := getattr(spec, k, None))]
    return Call("PartitionSpec", [values.source(p) for p in jax_compat.partitions(spec)], unreduced)


@_writer(jax.sharding.NamedSharding)
def named_sharding(values: Values, sharding: Any) -> Expr:
    values.modules.add("jax")
    kind = sharding.memory_kind
    kwargs = (
        [("memory_kind", values.source(kind))] if kind not in (None, jax_compat.default_memory_kind(sharding)) else []
    )
    return Call("jax.sharding.NamedSharding", [values.source(sharding.mesh), values.source(sharding.spec)], kwargs)


@_writer(jax.sharding.SingleDeviceSharding)
def single_device_sharding(values: Values, sharding: Any) -> Expr:
    values.modules.add("jax")
    (device,) = sharding.device_set
    return Call("jax.sharding.SingleDeviceSharding", [_device(values, device)])


@_writer(jax.Device)
def _device(values: Values, device: Any) -> Expr:
    values.modules.add("jax")
    devices = jax.devices(device.platform)
    if device not in devices:
        raise Unwritable(f"the device {device}, which is not among jax.devices()")
    where = f"jax.devices()[{devices.index(device)}]"
    if device.platform != jax.default_backend():
        where = f"jax.devices({device.platform!r})[{devices.index(device)}]"
    return Text(where)


@_writer(jax.sharding.Mesh)
def mesh(values: Values, mesh: Any) -> Expr:
    """The mesh over the same devices by index, of `jax.devices()`."""
    values.modules.update(("jax", "np"))
    devices = list(mesh.devices.flat)
    every = jax.devices()
    if any(d not in every for d in devices):
        raise Unwritable("a mesh of devices that are not among jax.devices()")
    places = [every.index(d) for d in devices]
    names = values.source(tuple(mesh.axis_names))
    if places == list(range(len(places))):
        flat = f"jax.devices()[:{len(places)}]"
    else:
        flat = "[jax.devices()[i] for i in " + values.source(places).flat() + "]"
    shape = values.source(tuple(mesh.devices.shape)).flat()
    array = Text(f"np.array({flat}).reshape({shape})")
    return Call("jax.sharding.Mesh", [array, names], _axis_types(values, mesh))


@_writer(jax.sharding.AbstractMesh)
def abstract_mesh(values: Values, mesh: Any) -> Expr:
    values.modules.add("jax")
    sizes, names = tuple(mesh.axis_sizes), tuple(mesh.axis_names)
    if any(t.name == "Manual" for t in mesh.axis_types):
        # Inside shard_map: the mesh there knows its devices, and no literal could say them.
        return Call("jax.sharding.get_abstract_mesh")
    if getattr(mesh, "abstract_device", None) is not None:
        values.modules.add("np")
        count = 1
        for size in sizes:
            count *= size
        array = Text(f"np.array(jax.devices()[:{count}]).reshape({values.source(sizes).flat()})")
        concrete = Call("jax.sharding.Mesh", [array, values.source(names)], _axis_types(values, mesh))
        return Attribute(concrete, "abstract_mesh")
    return Call("jax.sharding.AbstractMesh", [values.source(sizes), values.source(names)], _axis_types(values, mesh))


def _axis_types(values: Values, mesh: Any) -> list[tuple[str, Expr]]:
    types = getattr(mesh, "axis_types", None)
    if not types or all(t.name == "Auto" for t in types):
        return []
    return [("axis_types", Tuple([Text(f"jax.sharding.AxisType.{t.name}") for t in types]))]


@_writer(jax_compat.PRIMITIVE_TYPE)
def primitive(values: Values, prim: Any) -> Expr:
    path = jax_compat.public_primitive(prim)
    if path is None:
        raise Unwritable(f"the primitive {prim} has no public place")
    values.modules.add(path.split(".")[0])
    # `import jax.extend.core.primitives` binds `jax`; the attribute path below it is then complete.
    values.modules.add("jax.extend")
    return Text(path)


@_writer(jax_compat.POLICY_TYPES)
def policy(values: Values, policy: Any) -> Expr:
    """A checkpoint policy: a function of `jax.checkpoint_policies`, or a call of one of its makers."""
    values.modules.add("jax")
    made = jax_compat.policy_call(policy)
    if made is None:
        return values.path_to(policy)
    maker, args, kwargs = made
    if args is None:
        return Text(f"jax.checkpoint_policies.{maker}")
    named = [(k, values.source(v)) for k, v in kwargs.items()]
    return Call(f"jax.checkpoint_policies.{maker}", [values.source(a) for a in args], named)


@_writer(type(jax.sharding.PartitionSpec.UNCONSTRAINED))
def unconstrained(values: Values, value: Any) -> Expr:
    values.modules.add("jax")
    return Text("jax.sharding.PartitionSpec.UNCONSTRAINED")


@_writer(functools.partial)
def partial(values: Values, value: Any) -> Expr:
    values.modules.add("functools")
    args = [values.source(a) for a in (value.func, *value.args)]
    return Call("functools.partial", args, [(k, values.source(v)) for k, v in value.keywords.items()])
