"""Loops made by the library: map, associative_scan, cumulative reductions, platform branches."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

from suite.control import matrix, vector
from suite.registry import Program, case


@case("scan", grad=True, vmap=True)
def map_plain() -> Program:
    return lambda xs: lax.map(lambda x: jnp.sin(x) * x.sum(), xs), (matrix(),)


@case("scan", grad=True)
def map_batch_size() -> Program:
    return lambda xs: lax.map(lambda x: jnp.sin(x) * x.sum(), xs, batch_size=2), (matrix(5),)


@case("scan", grad=True)
def map_batch_size_even() -> Program:
    def fn(a, b):
        return lax.map(lambda t: {"s": t[0] * t[1]}, (a, b), batch_size=3)

    return fn, (vector(6), vector(6))


@case("scan")
def map_over_nothing() -> Program:
    return lambda xs: lax.map(jnp.sin, xs), (jnp.zeros((0, 2), jnp.float32),)


@case(grad=True, vmap=True)
def associative_scan_add() -> Program:
    return lambda x: lax.associative_scan(jnp.add, x), (vector(7),)


@case(grad=True)
def associative_scan_pair() -> Program:
    def fn(a, b):
        def combine(left, right):
            return left[0] * right[0], left[1] * right[0] + right[1]

        return lax.associative_scan(combine, (a, b), reverse=True, axis=1)

    return fn, (matrix(2, 8), matrix(2, 8))


@case(grad=True, vmap=True)
def cumulative_reverse() -> Program:
    def fn(x):
        return (
            lax.cumsum(x, 1, reverse=True),
            lax.cumprod(x, 0),
            lax.cummax(x, 0, reverse=True),
            lax.cumlogsumexp(x, 1),
        )

    return fn, (matrix(),)


@case("platform_index", "cond", grad=True)
def platform_dependent() -> Program:
    def fn(x):
        return lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.tan, default=jnp.cos)

    return fn, (vector(),)


@case("platform_index", vmap=True)
def platform_dependent_in_scan() -> Program:
    def fn(xs):
        def body(c, x):
            return lax.platform_dependent(c, x, cpu=lambda a, b: a + b, default=jnp.multiply), c

        return lax.scan(body, jnp.float32(0), xs)

    return fn, (vector(),)


@case("while", "cond")
def bisect_root() -> Program:
    """A bisection: a while loop whose body chooses."""

    def fn(lo, hi, c):
        def body(s):
            a, b = s
            m = (a + b) / 2
            return lax.cond(m * m * m > c, lambda: (a, m), lambda: (m, b))

        return lax.while_loop(lambda s: s[1] - s[0] > 1e-4, body, (lo, hi))

    return fn, (jnp.float32(0), jnp.float32(4), jnp.float32(9))


@case("scan", grad=True)
def rnn_value_and_grad() -> Program:
    def fn(params, xs, target):
        def loss(p):
            def cell(h, x):
                h = jnp.tanh(h @ p["w"] + x @ p["u"] + p["b"])
                return h, h

            _, hs = lax.scan(cell, jnp.zeros(3), xs)
            return jnp.mean((hs - target) ** 2)

        return jax.value_and_grad(loss)(params)

    params = {"w": matrix(3, 3), "u": matrix(2, 3), "b": vector(3)}
    return fn, (params, matrix(5, 2), matrix(5, 3))


@case("scan", "cond", grad=True)
def scan_of_cond_gradient() -> Program:
    def fn(x, flags):
        def body(c, f):
            return lax.cond(f, jnp.sin, lambda v: v * v, c), c

        return jax.grad(lambda x: lax.scan(body, x, flags)[0])(x)

    return fn, (jnp.float32(0.3), jnp.array([True, False, True]))


@case("scan", vmap=True)
def newton_steps() -> Program:
    def fn(x):
        def f(x):
            return jnp.exp(x) - 2 * x - 1.5

        return lax.fori_loop(0, 5, lambda i, x: x - f(x) / jax.grad(f)(x), x)

    return fn, (jnp.float32(1.2),)


@case("cond", grad=True, vmap=True)
def select_of_two_conds() -> Program:
    """The same two branches in two conds: their jaxprs may be shared."""

    def up(v):
        return v * 2

    def down(v):
        return v / 2

    def fn(a, b, x):
        return lax.cond(a > 0, up, down, lax.cond(b > 0, up, down, x))

    return fn, (jnp.float32(1), jnp.float32(-1), vector())


def evaluated_for_strong_types(fn: Callable[[jax.Array], jax.Array]) -> Program:
    """`fn` traced for a weakly typed number, and its jaxpr evaluated on a strongly typed one, as closure conversion does."""
    traced = jax.make_jaxpr(fn)(1.5)

    def again(x):
        (out,) = jaxpr_as_fun(traced)(x * 2)
        return out + x

    return again, (jnp.float32(0.7),)


@case("cond", grad=True)
def cond_with_other_weak_types() -> Program:
    return evaluated_for_strong_types(lambda x: lax.cond(x > 1, lambda v: v * 2, lambda v: jnp.sin(v), x))


@case("jit", grad=True, vmap=True)
def jit_with_other_weak_types() -> Program:
    return evaluated_for_strong_types(lambda x: jax.jit(lambda v: jnp.sin(v) * 2)(x))
