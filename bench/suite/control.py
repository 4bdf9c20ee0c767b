"""while, scan, cond and what is made of them: every option, forwarding, constants, nesting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.registry import Program, case


def vector(n: int = 6) -> jax.Array:
    """`f32[n]`: values in (0, 1), none of them special."""
    return jnp.asarray(np.random.RandomState(0).uniform(0.1, 0.9, n).astype(np.float32))


def matrix(n: int = 4, m: int = 3) -> jax.Array:
    """`f32[n, m]`: values in (-1, 1)."""
    return jnp.asarray(np.random.RandomState(1).uniform(-1, 1, (n, m)).astype(np.float32))


# ---------------------------------------------------------------------------- scan


@case("scan", grad=True, vmap=True)
def scan_plain() -> Program:
    def fn(carry, xs):
        return lax.scan(lambda c, x: (c * 0.5 + jnp.sin(x), c * x), carry, xs)

    return fn, (vector(3), matrix())


@case("scan", grad=True, vmap=True)
def scan_reverse() -> Program:
    def fn(carry, xs):
        return lax.scan(lambda c, x: (jnp.tanh(c + x), c), carry, xs, reverse=True)

    return fn, (vector(3), matrix())


@case("scan", grad=True)
def scan_unrolled() -> Program:
    def fn(carry, xs):
        a = lax.scan(lambda c, x: (c + x * x, c * x), carry, xs, unroll=2)
        b = lax.scan(lambda c, x: (c - x, jnp.exp(c)), carry, xs, unroll=True)
        return a, b

    return fn, (vector(3), matrix(5))


@case("scan", grad=True, vmap=True)
def scan_length_only() -> Program:
    def fn(x):
        return lax.scan(lambda c, _: (c * 1.5, c + 1), x, None, length=5)

    return fn, (vector(2),)


@case("scan", vmap=True)
def scan_carry_forwarded() -> Program:
    """One part of the carry never changes; another is only passed on."""

    def fn(a, b, xs):
        return lax.scan(lambda c, x: ((c[0], c[0] + c[1]), c[1] * x), (a, b), xs)

    return fn, (jnp.float32(2.0), jnp.float32(0.5), vector())


@case("scan", grad=True)
def scan_xs_forwarded() -> Program:
    """`xs` go to `ys` unchanged, once twice."""

    def fn(c, xs):
        return lax.scan(lambda c, x: (c + x, (x, x, c)), c, xs)

    return fn, (jnp.float32(0.0), vector())


@case("scan", grad=True, vmap=True)
def scan_no_carry() -> Program:
    def fn(xs):
        return lax.scan(lambda c, x: (c, jnp.cos(x)), None, xs)

    return fn, (matrix(),)


@case("scan", grad=True, vmap=True)
def scan_no_ys() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (jnp.sin(c) * x, None), c, xs)[0]

    return fn, (jnp.float32(0.7), vector())


@case("scan", grad=True, vmap=True)
def scan_dict_carry() -> Program:
    def fn(c, xs):
        def body(c, x):
            new = {"m": c["m"] + x["g"], "n": c["n"] + 1, "w": (c["w"][0] * 0.9, c["w"][1])}
            return new, {"out": new["m"] * c["w"][0], "step": c["n"]}

        return lax.scan(body, c, xs)

    carry = {"m": vector(3), "n": jnp.int32(0), "w": (jnp.float32(1.0), vector(2))}
    return fn, (carry, {"g": matrix()})


@case("scan", grad=True)
def scan_split_transpose() -> Program:
    def fn(w, xs):
        def body(c, x):
            return jnp.tanh(c @ w + x), c

        return lax.scan(body, jnp.zeros(3), xs, _split_transpose=True)

    return fn, (matrix(3, 3), matrix(4, 3))


@case("scan", grad=True)
def scan_zero_length() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (c + x, c * x), c, xs)

    return fn, (jnp.float32(1.0), jnp.zeros((0,), jnp.float32))


@case("scan", grad=True, vmap=True)
def scan_consts() -> Program:
    """The body closes over a tracer, over an array constant and over a Python number."""
    table = jnp.asarray(np.arange(12, dtype=np.float32).reshape(4, 3))

    def fn(w, xs):
        return lax.scan(lambda c, x: (c * w + table[0], x @ table.T + 2.5), w, xs)

    return fn, (vector(3), matrix())


@case("scan", grad=True, vmap=True)
def scan_nested() -> Program:
    def fn(c, xs):
        def outer(c, row):
            c, ys = lax.scan(lambda a, x: (a * 0.9 + x, a * c), c, row)
            return c, (ys.sum(), c)

        return lax.scan(outer, c, xs)

    return fn, (jnp.float32(0.3), matrix())


@case("scan", grad=True)
def scan_counter() -> Program:
    """A scan over `arange`, with an index into another array."""

    def fn(x):
        return lax.scan(lambda c, i: (c + x[i] * i, (i, x[-1 - i])), 0.0, jnp.arange(4))

    return fn, (vector(),)


@case("scan")
def scan_weak_carry() -> Program:
    def fn(xs):
        return lax.scan(lambda c, x: (c + 1, x + c), 0, xs)

    return fn, (jnp.arange(3, dtype=jnp.int16),)


@case("scan", grad=True)
def scan_second_derivative() -> Program:
    def loss(w, xs):
        return lax.scan(lambda c, x: (jnp.sin(c * w + x), None), w, xs)[0]

    return lambda w, xs: jax.grad(jax.grad(loss))(w, xs), (jnp.float32(0.4), vector(4))


@case("scan", grad=True)
def scan_jvp_and_linearize() -> Program:
    def fn(c, xs):
        def step(c):
            return lax.scan(lambda c, x: (jnp.sin(c) + x, c * x), c, xs)

        out, lin = jax.linearize(step, c)
        return out, lin(jnp.ones_like(c)), jax.jvp(step, (c,), (c,))

    return fn, (vector(2), vector(4))


# --------------------------------------------------------------------------- while


@case("while", vmap=True)
def while_plain() -> Program:
    def fn(x):
        return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 1.5), (0, x))

    return fn, (vector(),)


@case("while", vmap=True)
def while_both_consts() -> Program:
    """The condition and the body each close over values of their own, and over one together."""

    def fn(x, limit, step):
        def cond(c):
            return (c[1].sum() < limit) & (c[0] < 100)

        def body(c):
            return c[0] + 1, c[1] + step * limit

        return lax.while_loop(cond, body, (0, x))

    return fn, (vector(3), jnp.float32(20.0), jnp.float32(0.25))


@case("while")
def while_cond_const_only() -> Program:
    def fn(n):
        return lax.while_loop(lambda i: i < n, lambda i: i * 2, 1)

    return fn, (jnp.int32(100),)


@case("while")
def while_dict_carry() -> Program:
    def fn(x):
        def body(s):
            return {"i": s["i"] + 1, "x": s["x"] / 2, "hist": s["hist"].at[s["i"]].set(s["x"])}

        init = {"i": 0, "x": x, "hist": jnp.zeros(8)}
        return lax.while_loop(lambda s: s["x"] > 0.1, body, init)

    return fn, (jnp.float32(3.0),)


@case("while", vmap=True)
def while_nested_in_scan() -> Program:
    def fn(xs):
        def body(c, x):
            y = lax.while_loop(lambda v: v < 10.0, lambda v: v * 2 + c, x)
            return c + 0.5, y

        return lax.scan(body, jnp.float32(0.5), xs)

    return fn, (vector(),)


@case("while", vmap=True)
def while_nested_while() -> Program:
    def fn(n, x):
        def outer(s):
            i, x = s
            _, x = lax.while_loop(lambda t: t[0] < i, lambda t: (t[0] + 1, t[1] + i), (0, x))
            return i + 1, x

        return lax.while_loop(lambda s: s[0] < n, outer, (0, x))

    return fn, (jnp.int32(4), jnp.float32(0.5))


@case("while")
def while_jvp() -> Program:
    """Forward derivatives through a while loop; reverse ones do not exist."""

    def fn(x):
        def loop(x):
            return lax.while_loop(lambda s: s < 10.0, lambda s: s * s + x, x)

        return jax.jvp(loop, (x,), (jnp.ones_like(x),)), jax.jacfwd(loop)(x)

    return fn, (jnp.float32(1.5),)


@case("while")
def while_collatz() -> Program:
    def fn(n):
        def body(s):
            n, k = s
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1

        return lax.while_loop(lambda s: s[0] != 1, body, (n, 0))[1]

    return lambda ns: jax.vmap(fn)(ns), (jnp.arange(1, 9, dtype=jnp.int32),)


@case("while")
def while_never_entered() -> Program:
    return lambda x: lax.while_loop(lambda s: False, lambda s: s + 1, x), (vector(),)


# ----------------------------------------------------------------------------- fori


@case("scan", grad=True, vmap=True)
def fori_static_bounds() -> Program:
    return lambda x: lax.fori_loop(0, 4, lambda i, c: c * x + i, x), (vector(3),)


@case("while", vmap=True)
def fori_dynamic_bounds() -> Program:
    def fn(a, b, x):
        return lax.fori_loop(a, b, lambda i, c: c + x * i, x)

    return fn, (jnp.int32(1), jnp.int32(5), vector(3))


@case("scan", grad=True)
def fori_unrolled() -> Program:
    return lambda x: lax.fori_loop(2, 8, lambda i, c: jnp.sin(c) + i, x, unroll=3), (vector(3),)


@case("scan")
def fori_reversed_bounds() -> Program:
    return lambda x: lax.fori_loop(5, 2, lambda i, c: c + 1, x), (vector(3),)


@case("scan", grad=True)
def fori_updates_in_place() -> Program:
    def fn(x):
        return lax.fori_loop(1, 6, lambda i, a: a.at[i].add(a[i - 1] * 0.5), x)

    return fn, (vector(),)


# ----------------------------------------------------------------------------- cond


@case("cond", grad=True, vmap=True)
def cond_plain() -> Program:
    def fn(p, x):
        return lax.cond(p > 0, lambda v: jnp.sin(v), lambda v: v * 2.0, x)

    return fn, (jnp.float32(1.0), vector())


@case("cond", grad=True)
def cond_no_operand() -> Program:
    def fn(p, x):
        return lax.cond(p, lambda: x + 1, lambda: x * x)

    return fn, (True, vector())


@case("cond", grad=True, vmap=True)
def cond_closures() -> Program:
    """The branches close over different tracers and constants."""
    table = np.linspace(0, 1, 6, dtype=np.float32)

    def fn(p, x, y):
        return lax.cond(p > 0.5, lambda a: a * x + table, lambda a: a - y, x)

    return fn, (jnp.float32(0.2), vector(), jnp.float32(3.0))


@case("cond", grad=True)
def cond_pytrees() -> Program:
    def fn(p, tree):
        def true(t):
            return {"a": t["a"] + 1, "b": (t["b"][1], t["b"][0])}

        return lax.cond(p, true, lambda t: t, tree)

    return fn, (jnp.bool_(False), {"a": vector(), "b": (jnp.float32(1.0), jnp.float32(2.0))})


@case("cond", grad=True, vmap=True)
def cond_nested() -> Program:
    def fn(x):
        def inner(v):
            return lax.cond(v[0] > 0.5, jnp.cos, jnp.tanh, v)

        return lax.cond(x.sum() > 1, inner, lambda v: lax.cond(v[1] > 0, inner, jnp.exp, v), x)

    return fn, (vector(),)


@case("cond", "scan", "while", grad=False, vmap=True)
def cond_in_while_in_scan() -> Program:
    def fn(xs):
        def step(c, x):
            def body(s):
                i, v = s
                return i + 1, lax.cond(i % 2 == 0, lambda a: a * x, lambda a: a + c, v)

            _, y = lax.while_loop(lambda s: s[0] < 3, body, (0, x))
            return c + y, y

        return lax.scan(step, jnp.float32(0), xs)

    return fn, (vector(),)


@case("cond", grad=True)
def cond_constant_outputs() -> Program:
    """A branch returns a literal, another a closed-over constant, a third value is forwarded."""
    const = np.float32(7.5)

    def fn(p, x):
        return lax.cond(p, lambda v: (1.0, v, const), lambda v: (2.0, v, v[0]), x)

    return fn, (jnp.bool_(True), vector())


@case(grad=True)
def switch_one_branch() -> Program:
    return lambda i, x: lax.switch(i, [jnp.sin], x), (jnp.int32(0), vector())


@case("cond", grad=True, vmap=True)
def switch_two_branches() -> Program:
    return lambda i, x: lax.switch(i, [jnp.sin, jnp.cos], x), (jnp.int32(1), vector())


@case("cond", grad=True, vmap=True)
def switch_five_branches() -> Program:
    def fn(i, x, y):
        branches = [
            lambda a, b: a,
            lambda a, b: b,
            lambda a, b: a * b,
            lambda a, b: jnp.sin(a) @ b * jnp.ones(6),
            lambda a, b: lax.fori_loop(0, 3, lambda _, c: c * a, b),
        ]
        return lax.switch(i, branches, x, y)

    return fn, (jnp.int32(3), vector(), vector() + 1)


@case("cond", vmap=True)
def switch_out_of_range() -> Program:
    return lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), (jnp.int32(9), vector())
