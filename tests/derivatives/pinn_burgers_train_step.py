"""Physics-informed network for Burgers' equation: residuals from derivatives of the network, then one Adam step.

u_t and u_x are first derivatives of the network in its inputs, u_xx is the derivative of u_x, all of one point and
mapped over the collocation points; the loss made of them is differentiated in the parameters.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = (
    "grad u",  # in t
    "grad u",  # in x
    "grad u_x",
    "value_and_grad total_loss",
)
VISCOSITY = 0.01 / jnp.pi
WIDTHS = (2, 10, 10, 1)


class Points(NamedTuple):
    t: jax.Array
    x: jax.Array


class Batch(NamedTuple):
    interior: Points
    initial_x: jax.Array
    boundary_t: jax.Array


class Adam(NamedTuple):
    count: jax.Array
    mean: list
    variance: list


def u(params, t, x):
    hidden = jnp.stack([t, x])
    for layer in params[:-1]:
        hidden = jnp.tanh(hidden @ layer["w"] + layer["b"])
    return (hidden @ params[-1]["w"] + params[-1]["b"])[0]


def u_t(params, t, x):
    return jax.grad(u, argnums=1)(params, t, x)


def u_x(params, t, x):
    return jax.grad(u, argnums=2)(params, t, x)


def u_xx(params, t, x):
    return jax.grad(u_x, argnums=2)(params, t, x)


def residual(params, t, x):
    advection = u(params, t, x) * u_x(params, t, x)
    return u_t(params, t, x) + advection - VISCOSITY * u_xx(params, t, x)


def total_loss(params, batch):
    over_points = jax.vmap(residual, in_axes=(None, 0, 0))
    pde = jnp.mean(over_points(params, batch.interior.t, batch.interior.x) ** 2)

    initial_u = jax.vmap(lambda x: u(params, 0.0, x))(batch.initial_x)
    initial = jnp.mean((initial_u + jnp.sin(jnp.pi * batch.initial_x)) ** 2)

    left = jax.vmap(lambda t: u(params, t, -1.0))(batch.boundary_t)
    right = jax.vmap(lambda t: u(params, t, 1.0))(batch.boundary_t)
    boundary = jnp.mean(left**2) + jnp.mean(right**2)
    return pde + 10.0 * (initial + boundary), {"pde": pde, "initial": initial, "boundary": boundary}


def adam_update(grads, state, learning_rate=1e-3, b1=0.9, b2=0.999):
    count = state.count + 1
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
    variance = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.variance, grads)
    rate = learning_rate * jnp.sqrt(1 - b2**count) / (1 - b1**count)
    updates = jax.tree.map(lambda m, v: -rate * m / (jnp.sqrt(v) + 1e-8), mean, variance)
    return updates, Adam(count, mean, variance)


def train_step(params, opt_state, batch):
    (loss, terms), grads = jax.value_and_grad(total_loss, has_aux=True)(params, batch)
    updates, opt_state = adam_update(grads, opt_state)
    return jax.tree.map(jnp.add, params, updates), opt_state, {"total": loss, **terms}


def init_params(key):
    layers = []
    for inputs, outputs in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        key, layer_key = jax.random.split(key)
        weight = jax.random.normal(layer_key, (inputs, outputs)) * jnp.sqrt(2.0 / (inputs + outputs))
        layers.append({"w": weight, "b": jnp.zeros(outputs)})
    return layers


def build():
    params = init_params(jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, params)
    keys = jax.random.split(jax.random.key(1), 4)
    interior = Points(jax.random.uniform(keys[0], (16,)), jax.random.uniform(keys[1], (16,), minval=-1.0))
    initial_x = jax.random.uniform(keys[2], (6,), minval=-1.0)
    batch = Batch(interior, initial_x, jax.random.uniform(keys[3], (5,)))
    return train_step, (params, Adam(jnp.array(0), zeros, zeros), batch)
