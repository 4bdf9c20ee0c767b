"""One step of adamw on a linear regression."""

import jax
import jax.numpy as jnp
import optax

OPTIMISER = optax.adamw(1e-3)


def loss(params, x, y):
    prediction = x @ params["w"] + params["b"]
    return jnp.mean((prediction - y) ** 2)


def train_step(params, state, x, y):
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    updates, state = OPTIMISER.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
    return params, state, value


def build():
    params = {"w": jnp.ones(3), "b": jnp.array(0.0)}
    return train_step, (params, OPTIMISER.init(params), jnp.ones((4, 3)), jnp.zeros(4))
