"""Control flow within control flow, in the functions that users put around a part of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

PARAMS = {name: jnp.eye(4) * (i + 1) / 7.0 for i, name in enumerate(["mix", "gate", "read", "bias"])}
X = jnp.ones((3, 4)) * 0.3

Part = Callable[[Any, Any], Any]


def leaf(p, x):
    return jnp.tanh(x @ p["mix"] + jnp.sin(x @ p["gate"]) @ p["read"] + p["bias"][0])


def scan(p, x, body):
    def turn(c, y):
        c = body(p, c) + y
        return c, c.sum()

    c, ys = lax.scan(turn, x, jnp.arange(3.0))
    return c * ys.mean()


def fori(p, x, body):
    return lax.fori_loop(0, 3, lambda i, c: body(p, c) * 0.5 + i, x)


def mapped(p, x, body):
    return lax.map(lambda row: body(p, row[None])[0], x)


def cond(p, x, body):
    return lax.cond(x.sum() > 0, lambda x: body(p, x), lambda x: jnp.sin(x) @ p["mix"], x)


def switch(p, x, body):
    branches = [lambda x: body(p, x), lambda x: x @ p["gate"], jnp.cos]
    return lax.switch(jnp.int32(x[0, 0]), branches, x)


def jitted(p, x, body):
    @jax.jit
    def block(p, x):
        return body(p, x) + x

    return block(p, x)


def vmapped(p, x, body):
    return jax.vmap(lambda row: body(p, row[None])[0])(x)


def remat(p, x, body):
    return jax.checkpoint(lambda p, x: body(p, x))(p, x)


def layers(p, x, body):
    for _ in range(3):
        x = body(p, x) + x
    return x


def associative(p, x, body):
    return lax.associative_scan(lambda a, b: a * b + 0.1, body(p, x))


PARTS = {
    f.__name__: f for f in (scan, fori, mapped, cond, switch, jitted, vmapped, remat, layers, associative)
}  # fmt: skip


def nested(outer: str, inner: str) -> Part:
    """A model of parameters and an array: `outer` around `inner` around a layer."""

    def model(p, x):
        return PARTS[outer](p, x, lambda p, x: PARTS[inner](p, x, leaf))

    return model


def loss(outer: str, inner: str) -> Part:
    model = nested(outer, inner)

    def loss(p, x):
        return jnp.sum(model(p, x) ** 2)

    return loss
