"""Shardings in a program: constraints, device_put, reshard, explicit meshes, custom layouts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from suite.collectives import mesh, mesh_2d
from suite.control import matrix, vector
from suite.registry import Program, case


def along(*spec, size: int = 4) -> NamedSharding:
    """A sharding over the one-dimensional mesh."""
    return NamedSharding(mesh(size), P(*spec))


@case("sharding_constraint", devices=4, grad=True, vmap=True)
def constraint_plain() -> Program:
    def fn(x):
        return lax.with_sharding_constraint(jnp.sin(x), along("i")) * 2

    return fn, (vector(8),)


@case("sharding_constraint", "scan", devices=4, grad=True)
def constraint_in_scan() -> Program:
    def fn(c, xs):
        def body(c, x):
            return lax.with_sharding_constraint(jnp.tanh(c + x), along("i")), c

        return lax.scan(body, c, xs)

    return fn, (vector(8), matrix(3, 8))


@case("sharding_constraint", "jit", devices=4, grad=True)
def constraint_2d_in_jit() -> Program:
    def fn(x, w):
        @jax.jit
        def layer(x, w):
            x = lax.with_sharding_constraint(x, NamedSharding(mesh_2d(), P("x", None)))
            y = x @ w
            return lax.with_sharding_constraint(y, NamedSharding(mesh_2d(), P("x", "y")))

        return layer(layer(x, w), w)

    return fn, (matrix(4, 4), matrix(4, 4))


@case("sharding_constraint", devices=4)
def constraint_tuple_axes() -> Program:
    def fn(tree):
        spec = NamedSharding(mesh_2d(), P(("x", "y"), None))
        return lax.with_sharding_constraint(tree, {"a": spec, "b": spec})

    return fn, ({"a": matrix(8, 3), "b": matrix(4, 4)},)


@case("sharding_constraint", devices=4)
def constraint_unconstrained_dim() -> Program:
    def fn(x):
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh_2d(), P("x", P.UNCONSTRAINED)))

    return fn, (matrix(4, 4),)


@case("sharding_constraint", "cond", devices=4)
def constraint_in_cond() -> Program:
    def fn(p, x):
        def yes(v):
            return lax.with_sharding_constraint(v + 1, along("i"))

        return lax.cond(p > 0, yes, jnp.sin, x)

    return fn, (jnp.float32(1), vector(8))


@case("jit", devices=4)
def jit_in_out_shardings() -> Program:
    @functools.partial(jax.jit, in_shardings=(along("i"), None), out_shardings=along(None))
    def inner(x, y):
        return x * y.sum()

    return lambda x, y: inner(x + 1, y), (vector(8), vector(3))


@case("device_put", grad=True, vmap=True)
def device_put_plain() -> Program:
    return lambda x: jax.device_put(jnp.sin(x)) * 2, (vector(),)


@case("device_put", devices=4)
def device_put_sharding() -> Program:
    def fn(x):
        return jax.device_put(x * 2, along("i")), jax.device_put(x, along(None))

    return fn, (vector(8),)


@case("device_put", "scan", grad=True)
def device_put_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (jax.device_put(c * x), c), c, xs)

    return fn, (jnp.float32(1), vector())


@case("device_put")
def device_put_device() -> Program:
    def fn(x):
        device = jax.devices()[0]
        return jax.device_put({"a": x, "b": x + 1}, SingleDeviceSharding(device))

    return fn, (vector(),)


@case("device_put")
def device_put_memory_space() -> Program:
    return lambda x: jax.device_put(x, jax.memory.Space.Device) + 1, (vector(),)


@case("optimization_barrier", grad=True, vmap=True)
def barrier_plain() -> Program:
    def fn(x, y):
        a, b = lax.optimization_barrier((jnp.sin(x), y))
        return a * b

    return fn, (vector(), vector())


@case("optimization_barrier", "scan", grad=True)
def barrier_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (lax.optimization_barrier(c * x), c), c, xs)

    return fn, (jnp.float32(1), vector())


@case("optimization_barrier", "cond")
def barrier_in_cond() -> Program:
    def fn(p, x):
        return lax.cond(
            p,
            lambda v: lax.optimization_barrier({"a": v, "n": v.sum()}),
            lambda v: {"a": v, "n": v[0]},
            x,
        )

    return fn, (jnp.bool_(True), vector())


@case(devices=4)
def reshard_explicit() -> Program:
    """A mesh with explicit axes: shardings are part of the types."""
    explicit = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))

    def fn(x):
        return jnp.sin(jax.reshard(x, NamedSharding(explicit, P("i")))) * 2

    return fn, (jax.device_put(vector(8), NamedSharding(explicit, P())),)


@case(devices=4)
def arguments_are_sharded() -> Program:
    x = jax.device_put(matrix(8, 4), along("i", None))
    w = jax.device_put(matrix(4, 2), along(None, None))
    return lambda x, w: jnp.tanh(x @ w).sum(0), (x, w)


@case(devices=4, grad=True)
def explicit_sharding_in_types() -> Program:
    """Arguments on an explicit mesh: `dot_general` carries an `out_sharding`."""
    explicit = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    a = jax.device_put(matrix(4, 4), NamedSharding(explicit, P("x", None)))
    b = jax.device_put(matrix(4, 4), NamedSharding(explicit, P(None, "y")))
    return lambda a, b: jnp.sin(a @ b).sum(1), (a, b)
