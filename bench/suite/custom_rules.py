"""custom_jvp and custom_vjp: non-differentiable arguments, symbolic zeros, closures, nesting."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.control import matrix, vector
from suite.registry import Program, case


@jax.custom_jvp
def safe_sqrt(x):
    """`sqrt(x)` whose derivative is capped: 0.5 instead of infinity at zero."""
    return jnp.sqrt(jnp.maximum(x, 0.0))


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    y = safe_sqrt(x)
    return y, t * jnp.where(y > 0.5, 0.5 / y, 0.5)


@jax.custom_vjp
def clip_gradient(x):
    """`sin(x)`; the cotangent is clipped to [-1, 1] and scaled by 3."""
    return jnp.sin(x)


def _clip_gradient_fwd(x):
    return jnp.sin(x), jnp.cos(x)


def _clip_gradient_bwd(c, g):
    return (3.0 * jnp.clip(g, -1.0, 1.0) * c,)


clip_gradient.defvjp(_clip_gradient_fwd, _clip_gradient_bwd)


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_plain() -> Program:
    return lambda x: safe_sqrt(x) * 2, (vector(),)


@case("custom_jvp_call", "scan", grad=True, vmap=True)
def custom_jvp_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (safe_sqrt(c) + x, safe_sqrt(x)), c, xs)

    return fn, (jnp.float32(1.0), vector())


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_defjvps() -> Program:
    @jax.custom_jvp
    def f(x, y):
        return x * jnp.sin(y)

    f.defjvps(lambda t, ans, x, y: 2 * t * jnp.sin(y), lambda t, ans, x, y: t * ans)
    return lambda x, y: f(x, y) + 1, (vector(), vector())


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_defjvps_none() -> Program:
    @jax.custom_jvp
    def f(x, y):
        return x + y * y

    f.defjvps(None, lambda t, ans, x, y: 3 * t * y)
    return f, (vector(), vector())


@case("custom_jvp_call", grad=True)
def custom_jvp_nondiff_argnums() -> Program:
    @functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
    def power(f, x, n):
        return f(x) ** n

    @power.defjvp
    def power_jvp(f, n, primals, tangents):
        (x,), (t,) = primals, tangents
        return power(f, x, n), 10.0 * n * f(x) * t

    return lambda x: power(jnp.sin, x, 3) + power(jnp.cos, x, 2), (vector(),)


@case("custom_jvp_call", grad=True)
def custom_jvp_symbolic_zeros() -> Program:
    @jax.custom_jvp
    def f(x, y):
        return x * y

    def rule(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        zero = jax.custom_derivatives.SymbolicZero
        total = jnp.zeros_like(x)
        if type(tx) is not zero:
            total = total + 2 * tx * y
        if type(ty) is not zero:
            total = total + 5 * ty * x
        return x * y, total

    f.defjvp(rule, symbolic_zeros=True)
    return lambda x, y: (f(x, y), f(x, lax.stop_gradient(y)), f(3.0, y)), (
        jnp.float32(1.5),
        jnp.float32(2.5),
    )


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_integer_input() -> Program:
    @jax.custom_jvp
    def take(x, i):
        return x[i]

    @take.defjvp
    def take_jvp(primals, tangents):
        x, i = primals
        return x[i], 7 * tangents[0][i]

    return take, (vector(), jnp.int32(2))


@case("custom_jvp_call", grad=True)
def custom_jvp_closure() -> Program:
    """The rule and the function close over a constant array and over a tracer."""
    table = np.arange(6, dtype=np.float32)

    def fn(x, w):
        @jax.custom_jvp
        def f(x):
            return x * table + 1

        @f.defjvp
        def f_jvp(primals, tangents):
            return f(primals[0]), tangents[0] * (table + 2)

        return f(x) * w

    return fn, (vector(), jnp.float32(2.0))


@case("custom_jvp_call", grad=True)
def custom_jvp_second_derivative() -> Program:
    def fn(x):
        return jax.grad(lambda v: jax.grad(lambda u: safe_sqrt(u) * u)(v) * v)(x)

    return fn, (jnp.float32(0.8),)


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_pytrees() -> Program:
    @jax.custom_jvp
    def f(d):
        return {"p": d["a"] * d["b"][0], "q": d["b"][1]}

    @f.defjvp
    def f_jvp(primals, tangents):
        (d,), (t,) = primals, tangents
        return f(d), {"p": 2 * t["a"] + t["b"][0], "q": t["b"][1] * d["a"].sum()}

    return f, ({"a": vector(), "b": [vector(), jnp.float32(2.0)]},)


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_of_library() -> Program:
    """Library functions with rules of their own."""

    def fn(x):
        return jax.nn.relu(x), jax.nn.softplus(x), jnp.sinc(x), jax.nn.silu(x), jax.nn.gelu(x)

    return fn, (matrix(),)


@case("custom_jvp_call", "while", vmap=True)
def custom_jvp_in_while() -> Program:
    def fn(x):
        def loop(x):
            return lax.while_loop(lambda s: s > 1.1, lambda s: safe_sqrt(s), x)

        return jax.jvp(loop, (x,), (x,))

    return fn, (jnp.float32(9.0),)


@case("custom_jvp_call", grad=True, vmap=True)
def custom_jvp_in_custom_jvp() -> Program:
    @jax.custom_jvp
    def outer(x):
        return safe_sqrt(x) + safe_sqrt(x * 2)

    @outer.defjvp
    def outer_jvp(primals, tangents):
        y, t = jax.jvp(safe_sqrt, primals, tangents)
        return outer(primals[0]), t * 3 + y

    return outer, (vector(),)


@case("custom_jvp_call", grad=True)
def custom_jvp_bfloat16() -> Program:
    return lambda x: safe_sqrt(x), (vector().astype(jnp.bfloat16),)


@case("custom_vjp_call", grad=True, vmap=True)
def custom_vjp_plain() -> Program:
    return lambda x: clip_gradient(x) * x, (vector(),)


@case("custom_vjp_call", "scan", grad=True, vmap=True)
def custom_vjp_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (clip_gradient(c) + x, c), c, xs)

    return fn, (jnp.float32(0.2), vector())


@case("custom_vjp_call", "cond", grad=True, vmap=True)
def custom_vjp_in_cond() -> Program:
    def fn(p, x):
        return lax.cond(p > 0, clip_gradient, jnp.cos, x)

    return fn, (jnp.float32(0.5), vector())


@case("custom_vjp_call", grad=True)
def custom_vjp_nondiff_argnums() -> Program:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def apply(f, scale, x):
        return f(x) * scale

    apply.defvjp(
        lambda f, scale, x: (f(x) * scale, (x,)),
        lambda f, scale, res, g: (g * scale * 2 * f(res[0]),),
    )
    return lambda x: apply(jnp.tanh, 3.0, x) + apply(jnp.sin, 2.0, x), (vector(),)


@case("custom_vjp_call", grad=True)
def custom_vjp_symbolic_zeros() -> Program:
    @jax.custom_vjp
    def f(x, y):
        return x * y, x + y

    def fwd(x, y):
        return (x.value * y.value, x.value + y.value), (x.value, y.value, y.perturbed)

    def bwd(res, g):
        x, y, perturbed = res
        zero = jax.custom_derivatives.SymbolicZero
        g0 = jnp.zeros_like(x) if isinstance(g[0], zero) else g[0]
        g1 = jnp.zeros_like(x) if isinstance(g[1], zero) else g[1]
        return g0 * y + 4 * g1, g0 * x if perturbed else jnp.zeros_like(y)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return lambda x, y: (f(x, y)[0], f(x, 2.0)), (jnp.float32(1.5), jnp.float32(2.5))


@case("custom_vjp_call", grad=True, vmap=True)
def custom_vjp_integer_input() -> Program:
    @jax.custom_vjp
    def take(x, i):
        return x[i] * 2

    def bwd(res, g):
        n, i = res
        return jnp.zeros(6).at[i].set(g * n), None

    take.defvjp(lambda x, i: (x[i] * 2, (5.0, i)), bwd)
    return lambda x, i: take(x, i), (vector(6), jnp.int32(1))


@case("custom_vjp_call", grad=True)
def custom_vjp_closure() -> Program:
    """The backward rule closes over an array that is no residual."""
    table = jnp.asarray(np.linspace(-1, 1, 6, dtype=np.float32))

    def fn(x, w):
        @jax.custom_vjp
        def f(x):
            return jnp.sum(x * table)

        f.defvjp(lambda x: (f(x), None), lambda _, g: (g * table * 4,))
        return f(x * w)

    return fn, (vector(), jnp.float32(0.5))


@case(grad=True)
def custom_vjp_second_derivative() -> Program:
    def fn(x):
        return jax.grad(lambda v: jax.grad(clip_gradient)(v) * v)(x)

    return fn, (jnp.float32(0.4),)


@case("custom_vjp_call", grad=True, vmap=True)
def custom_vjp_pytrees() -> Program:
    @jax.custom_vjp
    def layer(params, x):
        return {"y": x @ params["w"] + params["b"], "norm": jnp.sum(x)}

    def bwd(res, g):
        params, x = res
        dw = jnp.outer(x, g["y"]) * 0.5
        return {"w": dw, "b": g["y"]}, g["y"] @ params["w"].T + g["norm"]

    layer.defvjp(lambda p, x: (layer(p, x), (p, x)), bwd)
    return layer, ({"w": matrix(3, 4), "b": vector(4)}, vector(3))


@case("custom_vjp_call", grad=True, vmap=True)
def custom_vjp_none_cotangent() -> Program:
    @jax.custom_vjp
    def f(x, y):
        return x * y

    f.defvjp(lambda x, y: (x * y, y), lambda y, g: (g * y * 2, None))
    return f, (vector(), vector())


@case("custom_vjp_call", "remat2", grad=True)
def custom_vjp_in_checkpoint() -> Program:
    def fn(x):
        return jax.checkpoint(lambda v: clip_gradient(jnp.sin(v)) * v)(x)

    return fn, (vector(),)


@case("custom_vjp_call", grad=True)
def custom_vjp_optimize_remat() -> Program:
    @jax.custom_vjp
    def f(x):
        return jnp.exp(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.exp(x) * 2,), optimize_remat=True)
    return lambda x: f(x) + 1, (vector(),)


@case(grad=True)
def custom_gradient_decorator() -> Program:
    @jax.custom_gradient
    def f(x):
        return x**2, lambda g: (g * x * 5,)

    return lambda x: f(x) + 1, (vector(),)


@case("custom_vjp_call", "jit", grad=True, vmap=True)
def custom_vjp_called_thrice() -> Program:
    """One rule, three calls of two shapes, one within a jitted function."""

    def fn(x, m):
        return clip_gradient(x), clip_gradient(m), jax.jit(clip_gradient)(x * 2)

    return fn, (vector(), matrix())


@case("custom_lin", grad=False)
def custom_lin_dead() -> Program:
    """Forward derivative of a custom_vjp function whose tangent is not used: JAX runs that."""
    return lambda x: jax.jvp(clip_gradient, (x,), (x,))[0] * 2, (vector(),)


@case("custom_lin", "jit")
def custom_lin_dead_in_jit() -> Program:
    def fn(x):
        return jax.jit(lambda v: jax.jvp(clip_gradient, (v,), (v,))[0])(x) + 1

    return fn, (vector(),)


@case("custom_lin", "jit")
def custom_lin_dead_behind_a_call() -> Program:
    """The tangent is a result of the inner function; it is the outer one that does not use it."""

    def fn(x):
        inner = jax.jit(lambda v: jax.jvp(clip_gradient, (v,), (v,)))
        return inner(x)[0] + 1

    return fn, (vector(),)


@case("custom_lin", "scan")
def custom_lin_dead_in_scan() -> Program:
    def fn(xs):
        def body(c, x):
            return c + jax.jvp(clip_gradient, (x,), (c,))[0], x

        return lax.scan(body, jnp.float32(0), xs)

    return fn, (vector(),)


@case("custom_lin", runs=False, lowers=False, refused=True)
def custom_lin_alive() -> Program:
    """Traces, but JAX refuses to run it: forward mode does not exist for a custom_vjp function."""
    return lambda x: jax.jvp(clip_gradient, (x,), (x,)), (vector(),)
