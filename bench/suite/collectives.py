"""Collectives over named axes: under vmap, pmap and shard_map, and differentiated."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from suite.control import matrix, vector
from suite.registry import Program, case


def mesh(size: int = 4) -> Mesh:
    """A mesh of `size` devices along `i`, automatic axes."""
    return jax.make_mesh((size,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size])


def mesh_2d() -> Mesh:
    """A mesh of 2 × 2 devices along `x` and `y`."""
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


ALONG_I = P("i")


def sharded(fn, in_specs=ALONG_I, out_specs=ALONG_I, size=4, **options):
    """`fn` under `shard_map` over `size` devices."""
    return jax.shard_map(fn, mesh=mesh(size), in_specs=in_specs, out_specs=out_specs, **options)


# ------------------------------------------------------------------ vmap, named axis


@case(grad=True)
def vmap_axis_psum() -> Program:
    """Under vmap a named reduction becomes an ordinary one."""
    return lambda x: jax.vmap(lambda v: v / lax.psum(v, "i"), axis_name="i")(x), (matrix(),)


@case()
def vmap_axis_all() -> Program:
    def fn(x):
        def each(v):
            i = lax.axis_index("i")
            return (
                lax.pmax(v, "i"),
                lax.pmean(v, "i") * i,
                lax.all_gather(v, "i"),
                lax.ppermute(v, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
            )

        return jax.vmap(each, axis_name="i")(x)

    return fn, (matrix(4, 3),)


@case()
def vmap_axis_nested() -> Program:
    def fn(x):
        def each(v):
            return lax.psum(v, ("a", "b")) + lax.axis_index("a") * lax.psum(v, "b")

        return jax.vmap(jax.vmap(each, axis_name="b"), axis_name="a")(x)

    return fn, (matrix(4, 3),)


@case("psum", jax=(0, 10))
def jaxpr_axis_env_psum() -> Program:
    """psum alone, with the axis bound by a pmap around it."""
    return lambda x: jax.pmap(lambda v: lax.psum(v, "i"), axis_name="i")(x), (matrix(1, 3),)


# --------------------------------------------------------------------------- pmap


def pmapped(fn, **options):
    """`fn` under `pmap` with the axis `i` over the first two devices."""
    return jax.pmap(fn, axis_name="i", devices=jax.devices()[:2], **options)


@case("psum", devices=4)
def pmap_psum() -> Program:
    return lambda x: pmapped(lambda v: lax.psum(v, "i") * 2)(x), (matrix(2, 3),)


@case("pmax", "pmin", devices=4)
def pmap_pmax_pmin() -> Program:
    def fn(x):
        return pmapped(lambda v: (lax.pmax(v, "i"), lax.pmin(v.sum(), "i")))(x)

    return fn, (matrix(2, 3),)


@case("all_gather", "axis_index", devices=4)
def pmap_all_gather() -> Program:
    def fn(x):
        return pmapped(lambda v: lax.all_gather(v, "i", tiled=True) + lax.axis_index("i"))(x)

    return fn, (matrix(2, 3),)


@case("all_to_all", "ppermute", devices=4)
def pmap_all_to_all() -> Program:
    def fn(x):
        def each(v):
            return lax.all_to_all(v, "i", 0, 0), lax.ppermute(v, "i", [(0, 1), (1, 0)])

        return pmapped(each)(x)

    return fn, (jnp.arange(12.0).reshape(2, 2, 3),)


@case("reduce_scatter", devices=4)
def pmap_psum_scatter() -> Program:
    def fn(x):
        return pmapped(lambda v: lax.psum_scatter(v, "i", tiled=True))(x)

    return fn, (jnp.arange(16.0).reshape(2, 8),)


@case("psum", "scan", devices=4)
def pmap_psum_in_scan() -> Program:
    def fn(x):
        def each(v):
            return lax.scan(lambda c, e: (c + lax.psum(e, "i"), c), jnp.float32(0), v)

        return pmapped(each)(x)

    return fn, (matrix(2, 3),)


@case("psum", devices=4)
def pmap_gradient() -> Program:
    def fn(w, x):
        def loss(w, x):
            return jnp.mean(jnp.tanh(x @ w) ** 2)

        def step(w, x):
            return w - 0.1 * lax.pmean(jax.grad(loss)(w, x), "i")

        return pmapped(step, in_axes=(None, 0), out_axes=0)(w, x)

    return fn, (vector(3), jnp.arange(12.0).reshape(2, 2, 3))


@case(devices=4)
def pmap_out_axes_and_static() -> Program:
    def fn(x, y):
        def each(a, b, n):
            return a * n + b, b

        mapped = jax.pmap(
            each,
            static_broadcasted_argnums=2,
            in_axes=(1, None, None),
            out_axes=(0, None),
            devices=jax.devices()[:2],
            axis_name="q",
        )
        return mapped(x, y, 3)

    return fn, (matrix(3, 2), vector(3))


# ---------------------------------------------------------------------- shard_map


@case("shard_map", "psum", devices=4)
def shard_psum_unchecked() -> Program:
    fn = sharded(lambda v: lax.psum(v, "i"), out_specs=P(), check_vma=False)
    return fn, (vector(8),)


@case("shard_map", devices=4, grad=True)
def shard_psum_checked() -> Program:
    return sharded(lambda v: lax.psum(jnp.sin(v), "i"), out_specs=P()), (vector(8),)


@case("psum", devices=4)
def shard_psum_groups() -> Program:
    fn = sharded(lambda v: lax.psum(v, "i", axis_index_groups=[[0, 1], [2, 3]]), check_vma=False)
    return fn, (vector(8),)


@case("psum", "cond", devices=4)
def shard_psum_in_cond() -> Program:
    def each(p, v):
        return lax.cond(p > 0, lambda a: lax.psum(a, "i"), lambda a: a * 4.0, v)

    fn = sharded(each, in_specs=(P(), P("i")), out_specs=P("i"), check_vma=False)
    return fn, (jnp.float32(1), vector(8))


@case("pmax", "pmin", devices=4)
def shard_pmax_pmin() -> Program:
    fn = sharded(lambda v: (lax.pmax(v, "i"), lax.pmin(v, "i")), out_specs=P(), check_vma=False)
    return fn, (vector(8),)


@case("pmax", "scan", devices=4)
def shard_pmax_in_scan() -> Program:
    def each(v):
        return lax.scan(lambda c, e: (jnp.maximum(c, lax.pmax(e, "i")), c), v[0], v)

    return sharded(each, out_specs=(P(), P("i")), check_vma=False), (vector(8),)


@case("pmin", "jit", devices=4)
def shard_pmin_in_jit() -> Program:
    fn = sharded(lambda v: v - jax.jit(lambda a: lax.pmin(a, "i"))(v), check_vma=False)
    return fn, (vector(8),)


@case("pmax", "pmin", devices=4)
def shard_pmax_checked() -> Program:
    """With replication checked."""
    return sharded(lambda v: v * lax.pmax(v, "i") + lax.pmin(v, "i")), (vector(8),)


@case("axis_index", "pvary", devices=4)
def shard_axis_index() -> Program:
    return sharded(lambda v: v * lax.axis_index("i") + jnp.arange(2)), (vector(8),)


@case("axis_index", devices=4)
def shard_axis_index_2d() -> Program:
    def each(v):
        return v + lax.axis_index("x") * 10 + lax.axis_index(("x", "y")) + lax.axis_size("y")

    fn = jax.shard_map(each, mesh=mesh_2d(), in_specs=P("x", "y"), out_specs=P("x", "y"))
    return fn, (jnp.arange(16.0).reshape(4, 4),)


@case("all_gather", devices=4, grad=True)
def shard_all_gather() -> Program:
    fn = sharded(lambda v: lax.all_gather(v, "i", axis=1), out_specs=P("i"))
    return fn, (matrix(4, 3),)


@case("all_gather", devices=4, grad=True)
def shard_all_gather_tiled() -> Program:
    def each(v):
        return lax.all_gather(jnp.sin(v), "i", axis=0, tiled=True).sum() * v

    return sharded(each, check_vma=False), (matrix(4, 3),)


@case("all_to_all", devices=4, grad=True)
def shard_all_to_all() -> Program:
    fn = sharded(lambda v: lax.all_to_all(v, "i", split_axis=1, concat_axis=0, tiled=True))
    return fn, (jnp.arange(32.0).reshape(8, 4),)


@case("all_to_all", "scan", devices=4)
def shard_all_to_all_in_scan() -> Program:
    def each(v):
        return lax.fori_loop(0, 2, lambda i, a: lax.all_to_all(a, "i", 1, 1, tiled=True) + i, v)

    return sharded(each), (jnp.arange(32.0).reshape(8, 4),)


@case("ppermute", devices=4, grad=True)
def shard_ppermute() -> Program:
    ring = [(i, (i + 1) % 4) for i in range(4)]
    return sharded(lambda v: lax.ppermute(v * v, "i", ring) - v), (vector(8),)


@case("ppermute", "while", devices=4)
def shard_ppermute_in_while() -> Program:
    """A ring reduction written by hand."""
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def each(v):
        def body(s):
            k, moving, total = s
            moving = lax.ppermute(moving, "i", ring)
            return k + 1, moving, total + moving

        return lax.while_loop(lambda s: s[0] < 3, body, (0, v, v))[2]

    return sharded(each), (vector(8),)


@case("ppermute", devices=4)
def shard_ppermute_partial() -> Program:
    return sharded(lambda v: lax.ppermute(v, "i", [(0, 3), (2, 1)])), (vector(8),)


@case("reduce_scatter", devices=4, grad=True)
def shard_psum_scatter() -> Program:
    fn = sharded(lambda v: lax.psum_scatter(v, "i", scatter_dimension=1, tiled=True))
    return fn, (jnp.arange(32.0).reshape(4, 8),)


@case("reduce_scatter", devices=4)
def shard_psum_scatter_untiled() -> Program:
    fn = sharded(lambda v: lax.psum_scatter(v[0], "i", scatter_dimension=0)[None])
    return fn, (jnp.arange(32.0).reshape(4, 4, 2),)


@case("pvary", devices=4, grad=True)
def shard_pvary() -> Program:
    """A replicated weight meets varying data."""

    def each(w, v):
        return lax.psum((lax.pcast(w, "i", to="varying") * v).sum(), "i")

    fn = sharded(each, in_specs=(P(), P("i")), out_specs=P())
    return fn, (jnp.float32(2.0), vector(8))


@case("pvary", "scan", devices=4)
def shard_pvary_in_scan() -> Program:
    def each(w, v):
        init = lax.pcast(jnp.zeros(()), "i", to="varying")
        return lax.scan(lambda c, e: (c + e * w, c), init, v)[1]

    return sharded(each, in_specs=(P(), P("i"))), (jnp.float32(2.0), vector(8))


@case("shard_map", devices=4, grad=True)
def shard_mlp_data_parallel() -> Program:
    def fn(params, x):
        def each(params, x):
            def loss(p):
                return lax.pmean(jnp.mean(jnp.tanh(x @ p["w"] + p["b"]) ** 2), "i")

            return jax.value_and_grad(loss)(params)

        return sharded(each, in_specs=(P(), P("i")), out_specs=P())(params, x)

    return fn, ({"w": matrix(3, 2), "b": vector(2)}, matrix(8, 3))


@case("shard_map", devices=4)
def shard_partial_auto() -> Program:
    """Only one of two mesh axes is manual."""

    def each(v):
        return v * lax.axis_size("x") + lax.psum(v, "x")

    fn = jax.shard_map(each, mesh=mesh_2d(), in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    return jax.jit(fn), (jnp.arange(16.0).reshape(4, 4),)


@case("shard_map", devices=4, vmap=True)
def shard_nested_in_scan() -> Program:
    def fn(c, xs):
        step = sharded(lambda a, b: a + lax.pmean(b, "i"), in_specs=(P("i"), P("i")))
        return lax.scan(lambda c, x: (step(c, x), c.sum()), c, xs)

    return fn, (vector(8), matrix(3, 8))


@case("shard_map", devices=4)
def shard_decorated() -> Program:
    specs = {"in_specs": (P("x", "y"), P("y")), "out_specs": P("x")}

    @functools.partial(jax.shard_map, mesh=mesh_2d(), **specs)
    def matvec(a, v):
        return lax.psum(a @ v, "y")

    return matvec, (matrix(4, 6), vector(6))


@case("shard_map", devices=4)
def shard_consts() -> Program:
    table = jnp.asarray(np.arange(2, dtype=np.float32))
    return sharded(lambda v: v + table * lax.axis_index("i")), (vector(8),)


RAGGED_NOTE = "XLA on CPU has no ragged-all-to-all; JAX traces and lowers it."


def ragged(values, output):
    """`ragged_all_to_all` that sends one row to every device."""
    ones = jnp.ones(4, jnp.int32)
    offsets = jnp.arange(4, dtype=jnp.int32)
    index = jnp.full(4, lax.axis_index("i"), jnp.int32)
    return lax.ragged_all_to_all(values, output, offsets, ones, index, ones, axis_name="i")


@case("ragged_all_to_all", devices=4, runs=False, notes=RAGGED_NOTE)
def shard_ragged_all_to_all() -> Program:
    fn = sharded(ragged, in_specs=(P("i"), P("i")), check_vma=False)
    return fn, (vector(16), jnp.zeros(16))


@case("ragged_all_to_all", "scan", devices=4, runs=False, notes=RAGGED_NOTE)
def shard_ragged_in_scan() -> Program:
    def each(v, out):
        return lax.fori_loop(0, 2, lambda _, o: ragged(v, o), out)

    return sharded(each, in_specs=(P("i"), P("i")), check_vma=False), (vector(16), jnp.zeros(16))


@case("ragged_all_to_all", "jit", devices=4, runs=False, grad=True, notes=RAGGED_NOTE)
def shard_ragged_gradient() -> Program:
    def each(v, out):
        return jax.jit(lambda a, b: ragged(jnp.sin(a), b))(v, out)

    return sharded(each, in_specs=(P("i"), P("i")), check_vma=False), (vector(16), jnp.zeros(16))
