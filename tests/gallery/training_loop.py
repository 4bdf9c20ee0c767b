"""A jitted training loop: a state that is a named tuple, scanned over batches."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class State(NamedTuple):
    params: Any
    momentum: Any
    step: Any


def predict(params, x):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params, batch):
    x, y = batch
    return jnp.mean((predict(params, x) - y) ** 2)


@jax.jit
def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state.params, momentum)
    return State(params, momentum, state.step + 1), loss


def train(params, batches):
    state = State(params, jax.tree.map(jnp.zeros_like, params), 0)
    state, losses = jax.lax.scan(train_step, state, batches)
    return state.params, losses


def build():
    params = {"w1": jnp.ones((4, 8)), "b1": jnp.zeros(8), "w2": jnp.ones((8, 2)), "b2": jnp.zeros(2)}
    return train, (params, (jnp.ones((5, 16, 4)), jnp.ones((5, 16, 2))))
