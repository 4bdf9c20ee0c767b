"""Normalising flow: affine coupling layers with an analytic log-determinant, and mixing layers whose Jacobian is taken.

The log-determinant of a mixing layer is that of its Jacobian by jacfwd, of one example under vmap; the negative
log-likelihood with those Jacobians in it is differentiated in the parameters, inside a scan over minibatches.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("jacfwd mix", "value_and_grad negative_log_likelihood")
DIMENSION, HIDDEN, LAYERS, LEARNING_RATE = 4, 12, 3, 0.01


class FlowLayer(NamedTuple):
    coupling: dict
    mixing: dict


class Momentum(NamedTuple):
    params: list
    trace: list


def conditioner(params, x):
    hidden = jax.nn.gelu(x @ params["w_in"] + params["b_in"])
    shift, raw_scale = jnp.split(hidden @ params["w_out"] + params["b_out"], 2, axis=-1)
    return shift, 2.0 * jnp.tanh(raw_scale / 2.0)


def couple(params, x, flip):
    kept, changed = jnp.split(x[::-1] if flip else x, 2)
    shift, log_scale = conditioner(params, kept)
    y = jnp.concatenate([kept, changed * jnp.exp(log_scale) + shift])
    return y[::-1] if flip else y, jnp.sum(log_scale)


def mix(params, x):
    gate = jnp.tanh(params["w"] @ x + params["b"])
    return x + 0.3 * params["u"] @ gate


def mix_with_log_det(params, x):
    jacobian = jax.jacfwd(mix, argnums=1)(params, x)
    _, log_det = jnp.linalg.slogdet(jacobian)
    return mix(params, x), log_det


def log_density(layers, x):
    total = 0.0
    for index, layer in enumerate(layers):
        x, log_det = couple(layer.coupling, x, flip=index % 2 == 1)
        total = total + log_det
        x, log_det = mix_with_log_det(layer.mixing, x)
        total = total + log_det
    base = -0.5 * jnp.sum(x**2) - 0.5 * DIMENSION * jnp.log(2.0 * jnp.pi)
    return base + total


def negative_log_likelihood(layers, batch):
    return -jnp.mean(jax.vmap(log_density, in_axes=(None, 0))(layers, batch))


def train_step(state, batch):
    loss, grads = jax.value_and_grad(negative_log_likelihood)(state.params, batch)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, 5.0 / (norm + 1e-6))
    trace = jax.tree.map(lambda t, g: 0.9 * t + scale * g, state.trace, grads)
    params = jax.tree.map(lambda p, t: p - LEARNING_RATE * t, state.params, trace)
    return Momentum(params, trace), loss


def train_epoch(state, minibatches):
    state, losses = jax.lax.scan(train_step, state, minibatches)
    return state, losses


def init_layer(key):
    keys = jax.random.split(key, 4)
    half = DIMENSION // 2
    coupling = {
        "w_in": jax.random.normal(keys[0], (half, HIDDEN)) / jnp.sqrt(half),
        "b_in": jnp.zeros(HIDDEN),
        "w_out": 0.05 * jax.random.normal(keys[1], (HIDDEN, 2 * (DIMENSION - half))),
        "b_out": jnp.zeros(2 * (DIMENSION - half)),
    }
    mixing = {
        "w": jax.random.normal(keys[2], (DIMENSION, DIMENSION)) / DIMENSION,
        "u": jax.random.normal(keys[3], (DIMENSION, DIMENSION)) / DIMENSION,
        "b": jnp.zeros(DIMENSION),
    }
    return FlowLayer(coupling, mixing)


def build():
    params = [init_layer(key) for key in jax.random.split(jax.random.key(3), LAYERS)]
    state = Momentum(params, jax.tree.map(jnp.zeros_like, params))
    angles = jax.random.uniform(jax.random.key(4), (3, 8, 1), maxval=2.0 * jnp.pi)
    noise = 0.1 * jax.random.normal(jax.random.key(5), (3, 8, DIMENSION))
    rings = jnp.concatenate([jnp.cos(angles), jnp.sin(angles), jnp.cos(2 * angles), jnp.sin(2 * angles)], axis=-1)
    return train_epoch, (state, rings + noise)
