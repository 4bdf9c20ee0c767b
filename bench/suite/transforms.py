"""Whole transformations as programs: derivatives of derivatives, maps of maps, Hessians, rules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from suite.control import matrix, vector
from suite.custom_rules import clip_gradient, safe_sqrt
from suite.registry import Program, case


def energy(w, x):
    """A scalar function with a loop, a branch and two custom rules in it."""
    h = lax.fori_loop(0, 2, lambda i, v: jnp.tanh(v * w), x)
    h = lax.cond(h.sum() > 1, lambda v: safe_sqrt(v + 1), lambda v: clip_gradient(v), h)
    return jnp.sum(h * h)


@case(grad=True, vmap=True)
def transform_grad() -> Program:
    return lambda w, x: jax.grad(energy, argnums=(0, 1))(w, x), (jnp.float32(0.7), vector())


@case(vmap=True)
def transform_value_and_grad_aux() -> Program:
    def fn(w, x):
        def loss(w):
            y = jnp.sin(w * x)
            return y.sum(), {"y": y, "norm": jnp.sum(y * y)}

        return jax.value_and_grad(loss, has_aux=True)(w)

    return fn, (jnp.float32(0.7), vector())


@case()
def transform_hessian() -> Program:
    def f(x):
        return jnp.sum(jnp.sin(x) * x) + jnp.prod(x)

    return lambda x: (jax.hessian(f)(x), jax.jacfwd(jax.grad(f))(x), jax.jacrev(jnp.cumsum)(x)), (vector(4),)


@case()
def transform_hvp() -> Program:
    def fn(x, v):
        return jax.jvp(jax.grad(lambda u: jnp.sum(safe_sqrt(u) * jnp.exp(u))), (x,), (v,))

    return fn, (vector(), vector())


@case(grad=True)
def transform_vmap_in_axes() -> Program:
    def fn(x, y, z):
        f = jax.vmap(lambda a, b, c: (a * b["k"] + c, a.sum()), (1, {"k": 0}, None), (0, 0))
        return f(x, {"k": y}, z)

    return fn, (matrix(4, 3), vector(3), jnp.float32(2))


@case(grad=True)
def transform_vmap_of_everything() -> Program:
    return lambda ws, x: jax.vmap(jax.grad(energy), (0, None))(ws, x), (vector(3), vector())


@case("scan", vmap=True)
def transform_vmap_of_scan_of_cond() -> Program:
    def fn(xs, ps):
        def one(x, p):
            return lax.scan(lambda c, e: (lax.cond(p > 0.5, jnp.sin, jnp.cos, c * e), c), jnp.float32(1), x)

        return jax.vmap(one)(xs, ps)

    return fn, (matrix(4, 3), vector(4))


@case()
def transform_spmd_axis_name() -> Program:
    def fn(x):
        return jax.vmap(jax.vmap(jnp.cumsum), in_axes=1, out_axes=-1)(x)

    return fn, (jnp.ones((2, 3, 4)),)


@case()
def transform_linearize() -> Program:
    def fn(x):
        y, lin = jax.linearize(lambda v: jnp.sin(v) * v[::-1], x)
        transpose = jax.linear_transpose(lin, x)
        return y, lin(x), transpose(y)

    return fn, (vector(),)


@case()
def transform_vjp_of_pytrees() -> Program:
    def fn(d):
        out, pull = jax.vjp(lambda t: {"o": t["a"] * t["b"].sum(), "p": t["b"]}, d)
        return out, pull(out)

    return fn, ({"a": vector(), "b": vector(3)},)


@case()
def transform_jit_of_grad_of_jit() -> Program:
    def fn(w, x):
        f = jax.jit(lambda w: jax.jit(energy)(w, x))
        return jax.jit(jax.grad(jax.jit(f)))(w), f(w)

    return fn, (jnp.float32(0.7), vector())


@case(grad=True)
def transform_third_derivative() -> Program:
    def f(x):
        return jnp.sin(x) * jnp.exp(x)

    return lambda x: jax.grad(jax.grad(jax.grad(f)))(x), (jnp.float32(0.4),)


@case()
def transform_jet() -> Program:
    from jax.experimental import jet

    def fn(x):
        return jet.jet(lambda v: jnp.sin(v) * v, (x,), ((jnp.ones_like(x), jnp.zeros_like(x)),))

    return fn, (vector(),)


@case(prints=False)
def transform_checkify() -> Program:
    from jax.experimental import checkify

    def f(x, i):
        checkify.check(i < 10, "index {i} too large", i=i)
        return jnp.log(x)[i]

    def fn(x, i):
        error, out = checkify.checkify(f, errors=checkify.float_checks | checkify.user_checks)(x, i)
        return out, error

    return fn, (vector(), jnp.int32(2))


@case()
def transform_checkify_every_kind() -> Program:
    """All four kinds of errors. Not batched: 0.10 numbers its checks anew in every trace."""
    from jax.experimental import checkify

    def f(x, i):
        checkify.check(jnp.all(x > 0), "not {}", x.min())
        return jnp.log(x)[i] / x, 7 // i

    def fn(x, i):
        error, out = checkify.checkify(f, errors=checkify.all_checks)(x, i)
        return error, out

    return fn, (vector(), jnp.int32(2))


@case("scan")
def transform_checkify_in_scan() -> Program:
    from jax.experimental import checkify

    def fn(x):
        def body(c, v):
            checkify.check(c < 100, "at {c}", c=c)
            return c + v, c

        error, out = checkify.checkify(lambda y: lax.scan(body, jnp.float32(0), y))(x)
        return out, error

    return fn, (vector(),)


@case("check", lowers=False, runs=False)
def transform_check_left_alone() -> Program:
    """A check that nobody makes functional: JAX traces it, and refuses to lower it."""
    from jax.experimental import checkify

    def fn(x):
        checkify.check(x[0] < 10, "too large: {x}", x=x[0])
        return x * 2

    return fn, (vector(),)


@case("check", "scan", lowers=False, runs=False)
def transform_check_in_scan() -> Program:
    from jax.experimental import checkify

    def fn(x):
        def body(c, v):
            checkify.check(c < 100, "at {c}", c=c)
            return c + v, c

        return lax.scan(body, jnp.float32(0), x)

    return fn, (vector(),)


@case("check", "jit", lowers=False, runs=False)
def transform_check_of_error() -> Program:
    from jax.experimental import checkify

    def f(x):
        checkify.debug_check(x[0] < 10, "too large: {x}", x=x[0])
        return jnp.log(x)

    def fn(x):
        error, out = checkify.checkify(jax.jit(f), errors=checkify.all_checks)(x)
        checkify.check_error(error)
        return jax.jit(f)(out)

    return fn, (vector(),)


@case(vmap=True)
def transform_eval_shape_and_disable_jit() -> Program:
    def fn(x):
        shape = jax.eval_shape(lambda v: v @ v.T, x)
        with jax.disable_jit():
            y = jax.jit(jnp.sin)(x)
        return y, jnp.zeros(shape.shape, shape.dtype)

    return fn, (matrix(),)


@case()
def transform_ode() -> Program:
    from jax.experimental.ode import odeint

    def fn(y0, t):
        return odeint(lambda y, t, k: -k * y, y0, t, jnp.float32(0.5), mxstep=20)

    return fn, (vector(2), jnp.linspace(0.0, 1.0, 3))


@case(grad=True)
def transform_sort_and_gather_gradients() -> Program:
    def fn(x, i):
        values, order = lax.sort_key_val(x, jnp.arange(6), dimension=0)
        return (
            values * x[order],
            lax.top_k(x, 2)[0],
            x.at[i].mul(2.0, mode="drop"),
            jnp.take(x, i, mode="fill", fill_value=7.0),
            jnp.median(x),
        )

    return fn, (vector(), jnp.array([1, 9, 3]))


@case(grad=True, vmap=True)
def transform_default_matmul_precision() -> Program:
    def fn(a, b):
        with jax.default_matmul_precision("highest"):
            return a @ b

    return fn, (matrix(), matrix(3, 2))
