"""Mutable arrays: get, swap, addupdate, freeze, indexers, in loops, in calls, in kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.control import matrix, vector
from suite.registry import Program, case


@case("new_ref", "get", "swap", "freeze", grad=True, vmap=True)
def ref_plain() -> Program:
    def fn(x):
        r = jax.new_ref(x)
        r[...] = jnp.sin(r[...])
        return jax.freeze(r)

    return fn, (vector(),)


@case("addupdate", "get", grad=True)
def ref_addupdate() -> Program:
    def fn(x):
        r = jax.new_ref(x * 1)
        r[0] += 2.0
        jax.ref.addupdate(r, (slice(1, 3),), x[1:3])
        return r[...] * 2

    return fn, (vector(),)


@case("addupdate", "scan", grad=True)
def ref_addupdate_in_scan() -> Program:
    def fn(x):
        r = jax.new_ref(jnp.zeros(()))

        def body(c, v):
            jax.ref.addupdate(r, (), v * c)
            return c + v, c

        out = lax.scan(body, jnp.float32(0), x)
        return r[...], out

    return fn, (vector(),)


@case("addupdate", "jit")
def ref_addupdate_in_jit() -> Program:
    def fn(x):
        r = jax.new_ref(x * 1)

        @jax.jit
        def bump(r, v):
            jax.ref.addupdate(r, (1,), v)
            r[2] = r[1]

        bump(r, x[0])
        bump(r, x[3])
        return jax.freeze(r)

    return fn, (vector(),)


@case("get", "swap")
def ref_indexers() -> Program:
    """Every kind of index: int, tracer, slice, strided slice, dynamic slice, array, mixed."""

    def fn(x, i):
        r = jax.new_ref(x * 1)
        a = r[0]
        b = r[i]
        c = r[1:3, 2]
        d = r[:, ::2]
        e = r[jax.ds(i, 2), :]
        f = r[jnp.array([0, 2, 1]), i]
        g = r[..., 1]
        r[i, 0] = 7.0
        r[jax.ds(0, 2), 1:3] = e[:, :2]
        r[:, -1] = b[:4]
        old = jax.ref.swap(r, (slice(None), 0), jnp.ones(4))
        return a, b, c, d, e, f, g, old, r[...]

    return fn, (matrix(4, 5), jnp.int32(1))


@case("get", "swap", "scan", grad=True)
def ref_in_fori_loop() -> Program:
    def fn(x):
        r = jax.new_ref(x * 1)

        def body(i, c):
            r[i] = r[i] * c + i
            return c + r[i]

        total = lax.fori_loop(0, 4, body, jnp.float32(1))
        return total, jax.freeze(r)

    return fn, (vector(),)


@case("get", "swap", "while")
def ref_in_while() -> Program:
    def fn(x):
        r = jax.new_ref(x)

        def body(i):
            r[...] = r[...] * 2
            return i + 1

        n = lax.while_loop(lambda i: i < 3, body, 0)
        return n, r[...]

    return fn, (vector(),)


@case("get", "swap", "cond")
def ref_in_cond() -> Program:
    def fn(p, x):
        r = jax.new_ref(x * 1)

        def yes():
            r[0] = 5.0
            return r[1]

        out = lax.cond(p > 0, yes, lambda: r[2])
        return out, jax.freeze(r)

    return fn, (jnp.float32(1), vector())


@case("get", "swap", "scan")
def ref_as_scan_xs() -> Program:
    """A scan over arrays whose body makes and frees references of its own."""

    def fn(xs):
        def body(c, row):
            r = jax.new_ref(row * 1)
            r[0] = c
            return r[1] + c, jax.freeze(r)

        return lax.scan(body, jnp.float32(0), xs)

    return fn, (matrix(),)


@case("get", "swap", "jit")
def ref_two_of_them() -> Program:
    def fn(x, y):
        a, b = jax.new_ref(x * 1), jax.new_ref(y * 1)

        @jax.jit
        def exchange(a, b):
            t = a[...]
            a[...] = b[...]
            b[...] = t

        exchange(a, b)
        return jax.freeze(a), b[...]

    return fn, (vector(), vector() * 2)


@case("get", "swap")
def ref_argument() -> Program:
    """The function takes a reference and changes it in place."""

    def fn(r, x):
        old = r[0]
        r[0] = x[1]
        r[1] += old
        return x * old

    return fn, (jax.new_ref(vector()), vector())


@case("new_ref", "freeze", "custom_vjp_call")
def ref_with_custom_rule() -> Program:
    def fn(x):
        r = jax.new_ref(jax.nn.relu(x))
        r[1:3] = jax.nn.logsumexp(x) * jnp.ones(2)
        from suite.custom_rules import clip_gradient

        return clip_gradient(jax.freeze(r))

    return fn, (vector(),)


@case("empty_ref", "freeze")
def ref_empty() -> Program:
    def fn(x):
        r = jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype))
        r[...] = x * 2
        return jax.freeze(r)

    return fn, (vector(),)


@case("swap")
def ref_dtypes() -> Program:
    def fn(i, b, c):
        r, s, t = jax.new_ref(i), jax.new_ref(b), jax.new_ref(c)
        r[0] += 1
        s[...] = ~s[...]
        t[1] = t[0] * 1j
        return r[...], s[...], t[...]

    return fn, (
        jnp.arange(3, dtype=jnp.int8),
        jnp.array([True, False]),
        jnp.array([1 + 2j, 3 - 1j], jnp.complex64),
    )


@case("get", grad=True)
def ref_gradient_accumulator() -> Program:
    """Gradients are stashed into a reference in the middle of a program."""

    def fn(x):
        r = jax.new_ref(jnp.zeros_like(x))

        def loss(v):
            return jnp.sum(jnp.sin(v) * v)

        g = jax.grad(loss)(x)
        r[...] += g
        r[...] += g * g
        return jax.freeze(r)

    return fn, (vector(),)


@case("run_state")
def ref_run_state() -> Program:
    from jax.experimental.pallas import run_state

    def fn(x):
        def body(refs):
            a, b = refs
            b[...] = a[...] * 2
            a[0] = b[1]

        return run_state(body)((x, jnp.zeros_like(x)))

    return fn, (vector(),)


@case("run_state", "scan")
def ref_run_state_of_loop() -> Program:
    """References inside `run_state`, written by a loop."""
    from jax.experimental.pallas import run_state

    def fn(x):
        def body(refs):
            a, b = refs

            def step(i, _):
                b[i] = a[i] * i + b[i - 1]

            lax.fori_loop(1, 4, step, None)

        return run_state(body)((x, jnp.ones_like(x)))

    return fn, (vector(4),)


@case("swap", vmap=True)
def ref_matmul_tiles() -> Program:
    """A blocked product that accumulates into a reference."""

    def fn(a, b):
        out = jax.new_ref(jnp.zeros((4, 4)))

        def body(k, _):
            i, j = k // 2, k % 2
            left = lax.dynamic_slice(a, (2 * i, 0), (2, 3))
            right = lax.dynamic_slice(b, (0, 2 * j), (3, 2))
            out[jax.ds(2 * i, 2), jax.ds(2 * j, 2)] = left @ right

        lax.fori_loop(0, 4, body, None)
        return jax.freeze(out)

    return fn, (matrix(4, 3), jnp.asarray(np.arange(12, dtype=np.float32).reshape(3, 4)))
