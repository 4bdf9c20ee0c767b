"""Callbacks into Python: pure, io (ordered or not), debug; their vmap methods and effects."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from suite.control import vector
from suite.registry import Program, case


def like(x) -> jax.ShapeDtypeStruct:
    """The type of `x`, as callbacks want it."""
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def host_sin(x):
    """`sin` on the host."""
    return np.sin(np.asarray(x)).astype(np.asarray(x).dtype)


def host_log(*args, **kwargs) -> None:
    """Takes anything and returns nothing."""


class Counter:
    """A host counter, so that the order of calls shows in the results."""

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, x):
        self.total = self.total * 2 + float(x)
        return np.float32(self.total)


@case("pure_callback")
def pure_callback_plain() -> Program:
    return lambda x: jax.pure_callback(host_sin, like(x), x) * 2, (vector(),)


@case("pure_callback", vmap=True)
def pure_callback_sequential() -> Program:
    def fn(x):
        return jax.pure_callback(host_sin, like(x), x, vmap_method="sequential")

    return fn, (vector(),)


@case("pure_callback", vmap=True)
def pure_callback_sequential_unrolled() -> Program:
    def fn(x):
        return jax.pure_callback(host_sin, like(x), x, vmap_method="sequential_unrolled")

    return fn, (vector(),)


@case("pure_callback", vmap=True)
def pure_callback_expand_dims() -> Program:
    def fn(x):
        def host(a, b):
            return (np.asarray(a) + np.asarray(b)).astype(np.float32)

        return jax.pure_callback(host, like(x), x, jnp.float32(2), vmap_method="expand_dims")

    return fn, (vector(),)


@case("pure_callback", vmap=True)
def pure_callback_broadcast_all() -> Program:
    def fn(x):
        return jax.pure_callback(host_sin, like(x), x, vmap_method="broadcast_all")

    return fn, (vector(),)


@case("pure_callback")
def pure_callback_pytrees() -> Program:
    def host(tree, *, scale):
        return {"s": np.float32(tree["a"].sum() * scale), "t": (np.asarray(tree["b"]) + 1,)}

    def fn(tree):
        types = {"s": jax.ShapeDtypeStruct((), jnp.float32), "t": (like(tree["b"]),)}
        return jax.pure_callback(host, types, tree, scale=3.0)

    return fn, ({"a": vector(), "b": jnp.arange(3)},)


@case("pure_callback", "custom_jvp_call", grad=True)
def pure_callback_with_rule() -> Program:
    """A host function made differentiable by a custom rule."""

    @jax.custom_jvp
    def sine(x):
        return jax.pure_callback(host_sin, like(x), x, vmap_method="broadcast_all")

    @sine.defjvp
    def sine_jvp(primals, tangents):
        return sine(*primals), jnp.cos(primals[0]) * tangents[0]

    return lambda x: sine(x) * x, (vector(),)


@case("pure_callback", "scan")
def pure_callback_in_scan() -> Program:
    def fn(c, xs):
        def body(c, x):
            return c + jax.pure_callback(host_sin, like(x), x), c

        return lax.scan(body, c, xs)

    return fn, (jnp.float32(0), vector())


@case("io_callback", "scan", deterministic=True, prints=True)
def io_callback_ordered() -> Program:
    counter = Counter()

    def fn(xs):
        io_callback(lambda: setattr(counter, "total", 0.0), None, ordered=True)

        def body(c, x):
            return c + 1, io_callback(counter.add, like(x), x, ordered=True)

        return lax.scan(body, 0, xs)

    return fn, (vector(),)


@case("io_callback", prints=True)
def io_callback_unordered() -> Program:
    def fn(x):
        y = io_callback(host_sin, like(x), x)
        io_callback(host_log, None, x, 3)
        return y + 1

    return fn, (vector(),)


@case("io_callback", "cond", "while", prints=True)
def io_callback_in_branches() -> Program:
    def fn(n):
        def body(i):
            lax.cond(
                i % 2 == 0,
                lambda: io_callback(host_log, None, i, ordered=True),
                lambda: None,
            )
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    return fn, (jnp.int32(4),)


@case("io_callback", vmap=True, prints=True)
def io_callback_batched() -> Program:
    return lambda x: io_callback(host_sin, like(x), x), (vector(),)


@case("debug_callback", grad=True, vmap=True, prints=True)
def debug_callback_plain() -> Program:
    def fn(x):
        jax.debug.callback(host_log, x, x.sum())
        return jnp.sin(x)

    return fn, (vector(),)


@case("debug_callback", "scan", prints=True)
def debug_callback_ordered_in_scan() -> Program:
    def fn(c, xs):
        def body(c, x):
            jax.debug.callback(host_log, c, tag=x, ordered=True)
            return c + x, c

        return lax.scan(body, c, xs)

    return fn, (jnp.float32(0), vector())


@case("debug_callback", "cond", prints=True)
def debug_callback_in_cond() -> Program:
    def fn(x):
        def warn(v):
            jax.debug.callback(host_log, v)
            return v * 2

        return lax.cond(x[0] > 0, warn, jnp.sin, x)

    return fn, (vector(),)


@case(grad=True, vmap=True, prints=True)
def debug_print_plain() -> Program:
    def fn(x):
        jax.debug.print("x = {x}, sum {s:.3f} {{braces}}", x=x, s=x.sum())
        return x * 2

    return fn, (vector(),)


@case("scan", prints=True)
def debug_print_ordered_in_loop() -> Program:
    def fn(x):
        def body(i, c):
            jax.debug.print("step {} of {}", i, c.sum(), ordered=True)
            return c * 1.5

        return lax.fori_loop(0, 3, body, x)

    return fn, (vector(),)


@case(prints=True)
def debug_print_hostile_text() -> Program:
    def fn(x):
        jax.debug.print('"""\nimport os # {}\\', x)
        jax.debug.print("no arguments, 100 %")
        return x

    return fn, (vector(),)


@case("jit", prints=True)
def debug_print_in_jit_and_grad() -> Program:
    def fn(x):
        @jax.jit
        def loss(v):
            jax.debug.print("v {}", v, ordered=False)
            return (v * v).sum()

        return jax.grad(loss)(x)

    return fn, (vector(),)
