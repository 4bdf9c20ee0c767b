"""jit and its options, shared functions, call and closed_call, scopes, hostile names."""

from __future__ import annotations

import functools

import jax
import jax.extend.core as jex
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.control import matrix, vector
from suite.registry import Program, case

NEW_CALLS = tuple(int(p) for p in jax.__version__.split(".")[:2]) >= (0, 11)


def closed_call(fn):
    """`fn` behind a `closed_call` equation (`eval_jaxpr` on newer lines)."""

    def wrapped(*args):
        jaxpr = jax.make_jaxpr(fn)(*args)
        if NEW_CALLS:
            return primitives.closed_call_p.bind(*args, call_jaxpr=jaxpr)[0]
        from jax.extend.linear_util import wrap_init

        run = wrap_init(lambda *a: [fn(*a)], debug_info=jaxpr.jaxpr.debug_info)
        return primitives.closed_call_p.bind(*args, subfuns=(run,), call_jaxpr=jaxpr)[0]

    return wrapped


def open_call(fn):
    """`fn` behind a `call` equation (`eval_jaxpr` on newer lines)."""

    def wrapped(*args):
        jaxpr = jax.make_jaxpr(fn)(*args)
        if NEW_CALLS:
            return primitives.call_p.bind(*args, call_jaxpr=jaxpr)[0]
        from jax.extend.linear_util import wrap_init

        run = wrap_init(lambda *a: [fn(*a)], debug_info=jaxpr.jaxpr.debug_info)
        return primitives.call_p.bind(*args, subfuns=(run,))[0]

    return wrapped


CALL = primitives.call_p.name
CLOSED_CALL = primitives.closed_call_p.name


@case(CALL, vmap=True)
def call_plain() -> Program:
    return lambda x: open_call(lambda v: jnp.sin(v) * 2)(x) + 1, (vector(),)


@case(CALL, "scan")
def call_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (open_call(lambda a, b: a * b)(c, x), c), c, xs)

    return fn, (jnp.float32(1.5), vector())


@case(CALL)
def call_gradient_inside() -> Program:
    return lambda x: jax.grad(lambda v: open_call(jnp.sin)(v).sum())(x), (vector(),)


@case(CALL)
def call_in_call() -> Program:
    def fn(x, y):
        return open_call(lambda a, b: open_call(jnp.cos)(a) + b)(x, y)

    return fn, (vector(), vector())


@case(CLOSED_CALL, vmap=True)
def closed_call_plain() -> Program:
    return lambda x: closed_call(lambda v: jnp.sin(v) * 2)(x) + 1, (vector(),)


@case(CLOSED_CALL)
def closed_call_with_const() -> Program:
    table = jnp.asarray(np.arange(6, dtype=np.float32))
    return lambda x: closed_call(lambda v: v + table)(x) * table, (vector(),)


@case(CLOSED_CALL, "cond")
def closed_call_in_cond() -> Program:
    def fn(p, x):
        return lax.cond(p > 0, closed_call(jnp.sin), jnp.cos, x)

    return fn, (jnp.float32(1.0), vector())


@case(CLOSED_CALL)
def closed_call_gradient_inside() -> Program:
    return lambda x: jax.grad(lambda v: closed_call(jnp.sin)(v).sum())(x), (vector(),)


# ----------------------------------------------------------------------------- jit


@case("jit", grad=True, vmap=True)
def jit_nested_names() -> Program:
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    @jax.jit
    def outer(x):
        return inner(x) * inner(x + 1)

    return lambda x: outer(x) + inner(x), (vector(),)


@case("jit", grad=True)
def jit_donate_argnums() -> Program:
    def fn(x, y):
        return jax.jit(lambda a, b: (a + b, a * 2), donate_argnums=(0,))(x * 1, y)

    return fn, (vector(), vector())


@case("jit")
def jit_donate_argnames() -> Program:
    @functools.partial(jax.jit, donate_argnames=("state",))
    def update(state, grads):
        return jax.tree.map(lambda s, g: s - 0.1 * g, state, grads)

    def fn(state, grads):
        return update({k: v * 1 for k, v in state.items()}, grads)

    return fn, ({"a": vector(), "b": matrix()}, {"a": vector(), "b": matrix()})


@case(grad=True, vmap=True)
def jit_inlined() -> Program:
    return lambda x: jax.jit(lambda v: jnp.sin(v) * v, inline=True)(x) + 1, (vector(),)


@case("jit", grad=True)
def jit_keep_unused() -> Program:
    def fn(x, y):
        return jax.jit(lambda a, b: a * 2, keep_unused=True)(x, y)

    return fn, (vector(), vector())


@case("jit")
def jit_unused_argument() -> Program:
    return lambda x, y: jax.jit(lambda a, b: a * 2)(x, y), (vector(), vector())


@case("jit", grad=True)
def jit_static_args() -> Program:
    @functools.partial(jax.jit, static_argnums=(1,), static_argnames=("mode",))
    def power(x, n, *, mode):
        return x**n if mode == "plain" else jnp.sin(x) * n

    def fn(x):
        return power(x, 2, mode="plain") + power(x, 3, mode="sin") + power(x, 2, mode="plain")

    return fn, (vector(),)


@case("jit", grad=True, vmap=True)
def jit_shared_many_times() -> Program:
    @jax.jit
    def layer(w, x):
        return jnp.tanh(x @ w)

    def fn(w, x):
        for _ in range(6):
            x = layer(w, x)
        return x

    return fn, (matrix(3, 3), matrix(2, 3))


@case("jit", grad=True)
def jit_closes_over_tracer() -> Program:
    def fn(x, y):
        @jax.jit
        def inner(z):
            return z * x + y

        return inner(x) + inner(y)

    return fn, (vector(), vector())


@case("jit")
def jit_consts_twice() -> Program:
    table = jnp.asarray(np.arange(6, dtype=np.float32))

    @jax.jit
    def f(x):
        return x + table

    return lambda x: f(x) * f(x * table), (vector(),)


@case("jit")
def jit_no_arguments() -> Program:
    return lambda: jax.jit(lambda: jnp.arange(3) * 2)(), ()


@case("jit")
def jit_no_results() -> Program:
    def fn(x):
        jax.jit(lambda v: None)(x)
        return x

    return fn, (vector(),)


@case("jit", grad=True)
def jit_forwarded_results() -> Program:
    def fn(x, y):
        return jax.jit(lambda a, b: (b, a, a, a + b))(x, y)

    return fn, (vector(), vector())


@case("jit")
def jit_same_name_other_shape() -> Program:
    def f(x):
        return x.sum() * 2

    g = jax.jit(f)

    def also_f(x):
        return x.max() - 1

    also_f.__name__ = "f"
    return lambda x, m: (g(x), g(m), jax.jit(also_f)(x)), (vector(), matrix())


def hostile(name: str) -> Program:
    """A jitted function, a scope and a call under a name that tries to become code."""

    def inner(x):
        return jnp.sin(x) + 1

    inner.__name__ = name
    inner.__qualname__ = name

    def fn(x):
        with jax.named_scope(name):
            return jax.jit(inner)(x) * 2

    return fn, (vector(),)


@case("jit", grad=True)
def hostile_keyword() -> Program:
    return hostile("lambda")


@case("jit")
def hostile_newline() -> Program:
    return hostile("f\nimport os\nos.system('true')")


@case("jit")
def hostile_quotes() -> Program:
    return hostile('"""\nimport os\n"""')


@case("jit")
def hostile_shadows_jnp() -> Program:
    return hostile("jnp")


@case("jit")
def hostile_shadows_builtin() -> Program:
    return hostile("list")


@case("jit")
def hostile_unicode() -> Program:
    return hostile("ﬁ_Ünï_变量_\u202e")


@case("jit")
def hostile_empty_and_digits() -> Program:
    return hostile("1 + 1")


@case("jit", grad=True, vmap=True)
def named_scopes_nested() -> Program:
    def fn(x):
        with jax.named_scope("encoder"):
            with jax.named_scope("layer/0"):
                x = jnp.sin(x)
            with jax.named_scope("layer/1"):
                x = jax.jit(lambda v: jnp.cos(v))(x)
        return jax.named_call(jnp.tanh, name="head")(x)

    return fn, (vector(),)


@case("composite", grad=False)
def composite_plain() -> Program:
    def fn(x):
        return lax.composite(lambda v, *, eps: v * eps, "my.scale", version=2)(x, eps=0.5)

    return fn, (vector(),)


@case("composite", "scan")
def composite_in_scan() -> Program:
    cube = lax.composite(lambda v: v * v * v, "my.cube")
    return lambda c, xs: lax.scan(lambda c, x: (cube(c) + x, c), c, xs), (
        jnp.float32(0.1),
        vector(),
    )


@case("composite", "jit")
def composite_several_results() -> Program:
    def fn(x, y):
        pair = lax.composite(lambda a, b: (a + b, {"d": a - b}), "my.pair")
        return jax.jit(lambda a, b: pair(a, b))(x, y)

    return fn, (vector(), vector())


def jaxpr_const() -> Program:
    """`jaxpr_as_fun` of a jaxpr with constants."""
    closed = jax.make_jaxpr(lambda x: x * np.arange(6.0, dtype=np.float32))(vector())
    return lambda x: jex.jaxpr_as_fun(closed)(x)[0], (vector(),)


case(grad=True, vmap=True)(jaxpr_const)
