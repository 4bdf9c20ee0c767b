"""Differentially private SGD: the gradient of each example is clipped, then noise is added to their mean."""

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
MAX_NORM, NOISE = 1.0, 0.05


def predict(params, features):
    hidden = jax.nn.relu(features @ params["hidden"] + params["hidden_bias"])
    return hidden @ params["readout"] + params["readout_bias"]


def example_loss(params, features, target):
    residual = predict(params, features) - target
    return 0.5 * residual**2


def clip(grads):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g / jnp.maximum(1.0, norm / MAX_NORM), grads)


def train_step(params, features, targets, key):
    per_example = jax.vmap(jax.value_and_grad(example_loss), in_axes=(None, 0, 0))
    losses, grads = per_example(params, features, targets)
    grads = jax.vmap(clip)(grads)
    leaves, structure = jax.tree.flatten(grads)
    keys = jax.random.split(key, len(leaves))
    noisy = [jnp.mean(g, axis=0) + NOISE * jax.random.normal(k, g.shape[1:]) for g, k in zip(leaves, keys, strict=True)]
    grads = jax.tree.unflatten(structure, noisy)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), jnp.mean(losses)


def build():
    keys = jax.random.split(jax.random.key(7), 5)
    params = {
        "hidden": 0.5 * jax.random.normal(keys[0], (6, 10)),
        "hidden_bias": jnp.zeros(10),
        "readout": 0.5 * jax.random.normal(keys[1], (10,)),
        "readout_bias": jnp.zeros(()),
    }
    features = jax.random.normal(keys[2], (14, 6))
    targets = jax.random.normal(keys[3], (14,))
    return train_step, (params, features, targets, keys[4])
