"""Programs that the tests of several targets write: derivatives, loops, choices, indices, pytrees, keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def loss(params, x, y):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((h - y) ** 2)


PARAMS = {"w": floats(3, 4), "b": floats(4)}
X, Y = floats(5, 3), floats(5, 4)


def simulate(x0, v0, dt):
    def step(carry, _):
        x, v = carry
        v = v - dt * jnp.sin(x)
        x = x + dt * v
        return (x, v), x

    (x, v), path = lax.scan(step, (x0, v0), None, length=20)
    return path, v


def running(x):
    def step(total, element):
        total = 0.9 * total + element
        return total, total * element

    return lax.scan(step, jnp.zeros(x.shape[1:]), x, reverse=True)


def kmeans(points, centers):
    def goes_on(state):
        centers, old, turn = state
        return (turn < 10) & (jnp.sum((centers - old) ** 2) > 1e-6)

    def turn(state):
        centers, _, turn = state
        distances = jnp.sum((points[:, None] - centers[None]) ** 2, -1)
        own = jax.nn.one_hot(jnp.argmin(distances, 1), centers.shape[0])
        return (own.T @ points) / jnp.maximum(own.sum(0)[:, None], 1.0), centers, turn + 1

    centers, _, turns = lax.while_loop(goes_on, turn, (centers, centers + 1.0, 0))
    return centers, turns


def newton(x):
    return lax.fori_loop(0, 6, lambda i, y: 0.5 * (y + x / y), x)


def chosen(x):
    return lax.cond(jnp.sum(x) > 0, lambda x: jnp.sin(x) * 2, lambda x: x - 1, x)


def switched(i, x):
    return lax.switch(i, [lambda x: x + 1.0, lambda x: x * x, lambda x: -x], x)


def nested(x):
    def outer(total, row):
        def inner(i, t):
            return lax.cond(t > 1.0, lambda t: t * 0.5, lambda t: t + row[i], t)

        total = lax.fori_loop(0, row.shape[0], inner, total)
        return total, total

    return lax.scan(outer, jnp.float32(0.0), x)


def swapped(a, b):
    return lax.fori_loop(0, 3, lambda i, ab: (ab[1], ab[0] + ab[1]), (a, b))


def softplus(x):
    return jnp.log1p(jnp.exp(x))


class State(NamedTuple):
    position: Any
    velocity: Any


def moved(state, dt):
    return State(state.position + dt * state.velocity, state.velocity * 0.99)


def attention(q, k, v):
    scores = q @ k.T / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape, bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ v


def looked_up(table, tokens):
    return jax.nn.gelu(jnp.asarray(table)[tokens]).sum(axis=-1)


def scattered(x, index, value):
    return jnp.asarray(x).at[index].add(value)


PROGRAMS = {
    "loss": (loss, (PARAMS, X, Y)),
    "gradient": (jax.grad(loss), (PARAMS, X, Y)),
    "value_and_gradient": (jax.value_and_grad(loss), (PARAMS, X, Y)),
    "scan": (simulate, (floats(), floats(), np.float32(0.1))),
    "scan_gradient": (jax.grad(lambda a, b: jnp.sum(simulate(a, b, 0.1)[0])), (floats(), floats())),
    "scan_reversed": (running, (floats(6, 3),)),
    "while": (kmeans, (floats(40, 2), floats(3, 2))),
    "fori": (newton, (np.float32(2.0),)),
    "cond": (chosen, (floats(4),)),
    "switch": (switched, (np.int32(1), floats(4))),
    "nested": (nested, (floats(4, 3),)),
    "swapped": (swapped, (floats(), floats())),
    "softplus_gradient": (jax.grad(softplus), (floats(),)),
    "vmapped": (jax.vmap(jax.grad(softplus)), (floats(7),)),
    "named_tuple": (moved, (State(floats(3), floats(3)), np.float32(0.1))),
    "attention": (attention, (floats(5, 4), floats(5, 4), floats(5, 4))),
    "attention_gradient": (
        jax.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2)),
        (floats(5, 4), floats(5, 4), floats(5, 4)),
    ),
    "looked_up": (looked_up, (floats(7, 3), np.array([[0, 2], [6, 1]], np.int32))),
    "scattered": (scattered, (floats(6), np.array([0, 5, 0], np.int32), floats(3))),
    "sorted": (lambda x: (jnp.sort(x), jnp.argsort(x)), (floats(9),)),
    "bfloat16": (lambda x: (jnp.maximum(x * 2 - 1, 0.5), jax.nn.sigmoid(x)), (jnp.arange(6, dtype=jnp.bfloat16) / 3,)),
    "complex_parts": (lambda x, y: (lax.complex(x, y), lax.conj(x)), (np.float32([1, -0.0, np.inf]), floats(3))),
    "cholesky": (jnp.linalg.cholesky, (np.stack([np.eye(3, dtype=np.float32), -np.eye(3, dtype=np.float32)]),)),
    "triangular": (
        lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True, trans=1),
        (floats(4, 4) + 3 * np.eye(4, dtype=np.float32), floats(4, 2)),
    ),
    "bits": (
        lambda x, y: (lax.population_count(x), lax.shift_right_arithmetic(x, y), lax.div(x, y), lax.rem(x, y)),
        (np.int32([-1, 7, -8, -(2**31)]), np.int32([40, 0, 2, -1])),
    ),
    "keys": (lambda key: jax.random.uniform(jax.random.split(key)[1], (2,)), (jax.random.key(3),)),
    "random": (lambda key: jax.random.normal(key, (3,)), (jax.random.PRNGKey(1),)),
}
