"""Programs that the tests of comparing compare."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

X = jnp.arange(6.0).reshape(2, 3)
Y = jnp.ones((2, 3))


# ---------------------------------------------------------------- a program equals itself


def _scan(x, y):
    w, v = jnp.sin(y[0]), jnp.cos(y[1])
    return lax.scan(lambda c, a: (c * w + a, c @ v), x[0], x)


def _while(x, y):
    limit, factor = x.sum(), y[0] * 2
    return lax.while_loop(lambda c: c.sum() < limit, lambda c: c * factor, x[1])


def _cond(x, y):
    return lax.cond(x[0, 0] > 0, lambda a: a @ y.T, lambda a: a @ x.T, y)


def _switch(x, y):
    return lax.switch(x[0, 0].astype(int), [jnp.sin, lambda a: a * y, lambda a: -a], x)


def _jit(x, y):
    @jax.jit
    def inner(a, b):
        return jnp.where(a > b, a, b).sum(axis=0)

    return inner(x, y) + inner(y, x)


def _remat(x, y):
    policy = jax.checkpoint_policies.save_only_these_names("h")
    f = jax.checkpoint(lambda a: jnp.sin(jnp.cos(a) * y), policy=policy)
    return jax.grad(lambda a: f(a).sum())(x)


def _keys(x, y):
    key = jax.random.key(3)
    a, b = jax.random.split(key)
    return jax.random.normal(a, (3,)), jax.random.uniform(b), jax.random.key_data(key)


def _linear_algebra(x, y):
    m = x @ x.T + jnp.eye(2)
    return jnp.linalg.solve(m, y), jnp.linalg.cholesky(m), jnp.linalg.svd(m)


def _solver(x, y):
    matvec, solve = (lambda v: v * y[0]), (lambda _, b: b / y[0])
    return jax.grad(lambda b: lax.custom_linear_solve(matvec, b, solve, solve).sum())(x[0])


def _relu(x, y):
    return jax.grad(lambda a: (jax.nn.relu(a @ y.T) ** 2).sum())(x), jax.nn.softmax(x)


def _refs(x, y):
    ref = jax.new_ref(x)
    ref[0] = y[1]
    ref[1] += 2.0
    return jax.freeze(ref)


def _indexing(x, y):
    return x[jnp.array([1, 0])], x.at[0].add(y[1]), lax.dynamic_slice(x, (0, 1), (1, 2))


def _constants(x, y):
    c = np.array([np.nan, -0.0, np.inf], np.float32)
    return x + c, y * np.float32(np.nan), y + jnp.asarray([1, 2, 3], jnp.bfloat16)


PROGRAMS = [
    _scan, _while, _cond, _switch, _jit, _remat, _keys, _linear_algebra, _solver, _relu, _refs,
    _indexing, _constants,
]  # fmt: skip
