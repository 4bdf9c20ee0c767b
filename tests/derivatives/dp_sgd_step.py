"""DP-SGD: a gradient for each example, each clipped to a norm, their sum with Gaussian noise, one momentum step.

The derivative is that of the loss of one example, under vmap over the batch.
"""

import dataclasses

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad example_loss",)
CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE, MOMENTUM = 1.0, 1.1, 0.1, 0.9


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrivateState:
    params: dict
    momentum: dict
    key: jax.Array
    steps: jax.Array


def convnet(params, image):
    hidden = jax.lax.conv_general_dilated(
        image[None], params["conv"]["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    hidden = jnp.tanh(hidden[0] + params["conv"]["bias"])
    return hidden.reshape(-1) @ params["head"]["kernel"] + params["head"]["bias"]


def example_loss(params, image, label):
    log_probs = jax.nn.log_softmax(convnet(params, image))
    return -log_probs[label]


def tree_norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def clip_by_norm(grads):
    norm = tree_norm(grads)
    scale = jnp.minimum(1.0, CLIP_NORM / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * scale, grads), norm


def clipped_gradient(params, image, label):
    loss, grads = jax.value_and_grad(example_loss)(params, image, label)
    clipped, norm = clip_by_norm(grads)
    return clipped, {"loss": loss, "norm": norm}


def add_noise(key, grads, stddev):
    leaves, structure = jax.tree.flatten(grads)
    keys = jax.random.split(key, len(leaves))
    noised = [g + stddev * jax.random.normal(k, g.shape, g.dtype) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noised)


def private_step(state, images, labels):
    next_key, noise_key = jax.random.split(state.key)
    per_example = jax.vmap(clipped_gradient, in_axes=(None, 0, 0))
    clipped, metrics = per_example(state.params, images, labels)
    summed = jax.tree.map(lambda g: jnp.sum(g, axis=0), clipped)
    noised = add_noise(noise_key, summed, NOISE_MULTIPLIER * CLIP_NORM)
    grads = jax.tree.map(lambda g: g / images.shape[0], noised)
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, state.momentum, grads)
    params = jax.tree.map(lambda p, m: p - LEARNING_RATE * m, state.params, momentum)
    summary = {
        "loss": jnp.mean(metrics["loss"]),
        "clipped_fraction": jnp.mean(metrics["norm"] > CLIP_NORM),
        "median_norm": jnp.median(metrics["norm"]),
    }
    return PrivateState(params, momentum, next_key, state.steps + 1), summary


def build():
    keys = jax.random.split(jax.random.key(5), 4)
    params = {
        "conv": {"kernel": 0.3 * jax.random.normal(keys[0], (3, 3, 1, 4)), "bias": jnp.zeros(4)},
        "head": {"kernel": 0.3 * jax.random.normal(keys[1], (64, 5)), "bias": jnp.zeros(5)},
    }
    momentum = jax.tree.map(jnp.zeros_like, params)
    images = 0.1 * jax.random.normal(keys[2], (6, 8, 8, 1))
    labels = jax.random.randint(keys[3], (6,), 0, 5)
    return private_step, (PrivateState(params, momentum, jax.random.key(6), jnp.array(0)), images, labels)
