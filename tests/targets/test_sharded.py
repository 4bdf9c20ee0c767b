"""Programs over a mesh come back as the same program, types and devices included."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import untrace

AXIS = (jax.sharding.AxisType.Auto,)


def mapped(function: Any) -> Any:
    mesh = jax.make_mesh((1,), ("i",), axis_types=AXIS)
    return jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=P("i"))


def test_constants_that_a_mapped_function_closes_over() -> None:
    table = jnp.asarray(np.arange(4, dtype=np.float32))
    d = untrace.decompile(mapped(lambda v: v + table * lax.axis_index("i")))(table)
    assert d.proof.level == "jaxpr", d.proof
    np.testing.assert_array_equal(d(table), table)


def test_a_bound_loop_inside_a_mesh_has_its_types() -> None:
    """The jaxpr of its body is traced on types that say the mesh, and over which axes they vary."""

    def step(carry: Any, x: Any) -> Any:
        return (carry[0] + lax.psum(x, "i") * x, carry[1]), carry[0]

    def function(v: Any) -> Any:
        (total, _), parts = lax.scan(step, (v[0] * 0, v[1]), v)
        return parts + total

    x = jnp.arange(3.0)
    d = untrace.decompile(mapped(function))(x)
    assert d.proof.at_least("hlo"), d.proof  # where JAX casts what a loop gets, is its own affair
    np.testing.assert_array_equal(d(x), mapped(function)(x))


def test_reshard_onto_devices() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    place = jax.sharding.NamedSharding(mesh, P("i"))
    with jax.set_mesh(mesh):
        d = untrace.decompile(lambda x: jnp.sin(jax.sharding.reshard(x, place)))(jnp.arange(4.0))
    assert d.proof.level == "jaxpr", d.proof


def test_pmap_is_pmap() -> None:
    """JAX traces it as a jitted shard_map; on one device here, the device's axis is of size one."""

    def step(a: Any, weights: Any) -> Any:
        total = lax.psum(a * weights, "i")
        return a / total, total

    def function(x: Any, weights: Any) -> Any:
        ratio, total = jax.pmap(step, axis_name="i", in_axes=(0, None))(x, weights)
        return jax.pmap(lambda row: jnp.sort(row))(ratio), total

    d = untrace.decompile(function)(jnp.ones((1, 3)), jnp.ones(3))
    assert d.proof.level == "jaxpr", d.proof
    assert 'jax.pmap(step, axis_name="i", in_axes=(0, None))(x, weights)' in d.source, d.source
    assert "jax.pmap(jnp.sort)(ratio)" in d.source and "def step(a, weights):" in d.source, d.source
    assert "shard_map" not in d.source
