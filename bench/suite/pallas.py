"""Pallas kernels in interpret mode: grids, block specs, scratch, several outputs, aliases."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from suite.control import matrix, vector
from suite.registry import Program, case

call = functools.partial(pl.pallas_call, interpret=True)


def out(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    """The type of an output."""
    return jax.ShapeDtypeStruct(shape, dtype)


def table(*shape: int) -> jax.Array:
    """`f32[shape]`: 0, 1, 2, … divided by 7."""
    return jnp.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7)


@case("pallas_call", vmap=True)
def pallas_add() -> Program:
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    return call(kernel, out_shape=out(6)), (vector(), vector())


@case("pallas_call")
def pallas_grid_and_blocks() -> Program:
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...])

    def fn(x, y):
        return call(
            kernel,
            out_shape=out(8, 8),
            grid=(2, 4),
            in_specs=[
                pl.BlockSpec((4, 3), lambda i, j: (i, 0)),
                pl.BlockSpec((3, 2), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((4, 2), lambda i, j: (i, j)),
        )(x, y)

    return fn, (table(8, 3), table(3, 8))


@case("pallas_call", "program_id")
def pallas_program_id() -> Program:
    def kernel(x_ref, o_ref):
        i = pl.program_id(0)
        o_ref[...] = x_ref[...] * i + pl.num_programs(0)

    fn = call(
        kernel,
        out_shape=out(8),
        grid=(4,),
        in_specs=[pl.BlockSpec((2,), lambda i: (i,))],
        out_specs=pl.BlockSpec((2,), lambda i: (i,)),
        name="scaled",
    )
    return fn, (vector(8),)


@case("pallas_call")
def pallas_several_outputs() -> Program:
    def kernel(x_ref, s_ref, c_ref):
        s_ref[...] = jnp.sin(x_ref[...])
        c_ref[...] = jnp.cos(x_ref[...]).astype(jnp.bfloat16)

    def fn(x):
        return call(kernel, out_shape=(out(6), out(6, dtype=jnp.bfloat16)))(x)

    return fn, (vector(),)


@case("pallas_call")
def pallas_aliased_output() -> Program:
    def kernel(x_ref, o_ref):
        o_ref[0] = x_ref[1] * 10

    def fn(x):
        return call(kernel, out_shape=out(6), input_output_aliases={0: 0})(x + 0)

    return fn, (vector(),)


@case("pallas_call", "while")
def pallas_loops_and_conds() -> Program:
    def kernel(n_ref, x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)

        def body(i, total):
            row = x_ref[i]

            @pl.when(i % 2 == 0)
            def _():
                o_ref[...] += row

            return total + lax.cond(i > 1, lambda: row.sum(), lambda: 0.0)

        total = lax.fori_loop(0, n_ref[0], body, jnp.float32(0))
        o_ref[0] = total

    return call(kernel, out_shape=out(3)), (jnp.array([4], jnp.int32), matrix(4, 3))


@case("pallas_call")
def pallas_accumulates_over_grid() -> Program:
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...].sum(axis=0, keepdims=True)

    fn = call(
        kernel,
        out_shape=out(1, 3),
        grid=(4,),
        in_specs=[pl.BlockSpec((2, 3), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 3), lambda i: (0, 0)),
    )
    return fn, (table(8, 3),)


@case("pallas_call")
def pallas_scratch() -> Program:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref, o_ref, scratch):
        scratch[...] = x_ref[...] * 2
        o_ref[...] = scratch[...] + 1

    fn = call(kernel, out_shape=out(4, 3), scratch_shapes=[pltpu.VMEM((4, 3), jnp.float32)])
    return fn, (matrix(),)


@case("pallas_call")
def pallas_squeezed_and_blocked_dims() -> Program:
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...].T

    fn = call(
        kernel,
        out_shape=out(2, 3, 4),
        grid=(2,),
        in_specs=[pl.BlockSpec((pl.Squeezed(), 4, 3), lambda b: (b, 0, 0))],
        out_specs=pl.BlockSpec((None, 3, 4), lambda b: (b, 0, 0)),
    )
    return fn, (table(2, 4, 3),)


@case("pallas_call", "scan")
def pallas_in_scan() -> Program:
    def kernel(c_ref, x_ref, o_ref):
        o_ref[...] = c_ref[...] * 0.5 + x_ref[...]

    def fn(c, xs):
        step = call(kernel, out_shape=out(3), name="step")
        return lax.scan(lambda c, x: (step(c, x), c.sum()), c, xs)

    return fn, (vector(3), matrix())


@case("pallas_call", "custom_vjp_call", grad=True)
def pallas_with_custom_gradient() -> Program:
    def forward(x_ref, o_ref):
        o_ref[...] = jnp.exp(x_ref[...])

    def backward(y_ref, g_ref, o_ref):
        o_ref[...] = y_ref[...] * g_ref[...]

    @jax.custom_vjp
    def exp(x):
        return call(forward, out_shape=out(6))(x)

    exp.defvjp(
        lambda x: (exp(x),) * 2,
        lambda y, g: (call(backward, out_shape=out(6))(y, g),),
    )
    return lambda x: exp(x) * 2, (vector(),)


@case("pallas_call")
def pallas_differentiated() -> Program:
    """A kernel has a forward derivative; JAX makes it by differentiating the body."""

    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.sin(x_ref[...]) * x_ref[...]

    def fn(x):
        return jax.jvp(call(kernel, out_shape=out(6)), (x,), (x,))

    return fn, (vector(),)


@case("pallas_call", "jit")
def pallas_constants_in_jit() -> Program:
    """Closed-over scalars and an iota in the kernel; a name that is no identifier."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.5 + lax.broadcasted_iota(jnp.int32, (4, 3), 1)

    return jax.jit(call(kernel, out_shape=out(4, 3), name="a kernel\nimport os")), (matrix(),)


@case("pallas_call")
def pallas_dynamic_slices() -> Program:
    def kernel(i_ref, x_ref, o_ref):
        i = i_ref[0]
        o_ref[pl.ds(0, 2), :] = x_ref[pl.ds(i, 2), :]
        o_ref[2, :] = x_ref[i, :]
        o_ref[pl.ds(3, 1), ::2] = x_ref[pl.ds(0, 1), ::2]
        o_ref[3, 1] = x_ref[i, 1]

    return call(kernel, out_shape=out(4, 3)), (jnp.array([1], jnp.int32), matrix())
