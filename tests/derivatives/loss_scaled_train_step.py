"""Mixed precision: float16 forward and backward of a scaled loss; `lax.cond` skips a step with non-finite gradients.

The derivative is that of a closure that multiplies the loss by the scale and gives the plain loss beside it.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("grad scaled_loss",)
GROWTH_INTERVAL, GROWTH, BACKOFF, MAX_SCALE = 4, 2.0, 0.5, 2.0**16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossScale:
    scale: jax.Array
    good_steps: jax.Array

    def adjust(self, grads_finite):
        grow = grads_finite & (self.good_steps + 1 >= GROWTH_INTERVAL)
        grown = jnp.where(grow, jnp.minimum(self.scale * GROWTH, MAX_SCALE), self.scale)
        scale = jnp.where(grads_finite, grown, jnp.maximum(self.scale * BACKOFF, 1.0))
        good_steps = jnp.where(grads_finite & ~grow, self.good_steps + 1, 0)
        return LossScale(scale, good_steps)


class TrainState(NamedTuple):
    params: dict
    momentum: dict
    loss_scale: LossScale
    skipped: jax.Array


def cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def all_finite(tree):
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def text_classifier(params, tokens):
    embedded = params["embedding"][tokens]
    window = jnp.stack([embedded[:, :-2], embedded[:, 1:-1], embedded[:, 2:]], axis=2)
    hidden = jax.nn.relu(jnp.einsum("blwd,wdh->blh", window, params["conv"]) + params["bias"])
    return jnp.max(hidden, axis=1) @ params["head"]


def cross_entropy(params, tokens, labels):
    logits = text_classifier(params, tokens).astype(jnp.float32)
    one_hot = jax.nn.one_hot(labels, logits.shape[-1])
    return -jnp.mean(jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1))


def apply_momentum(params, momentum, grads):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum


def train_step(state, tokens, labels):
    scale = state.loss_scale.scale

    def scaled_loss(params):
        loss = cross_entropy(cast(params, jnp.float16), tokens, labels)
        return loss * scale, loss

    grads, loss = jax.grad(scaled_loss, has_aux=True)(state.params)
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = all_finite(grads)
    params, momentum = jax.lax.cond(
        finite,
        apply_momentum,
        lambda params, momentum, grads: (params, momentum),
        state.params,
        state.momentum,
        grads,
    )
    skipped = state.skipped + jnp.where(finite, 0, 1)
    return TrainState(params, momentum, state.loss_scale.adjust(finite), skipped), loss


def build():
    keys = jax.random.split(jax.random.key(9), 5)
    params = {
        "embedding": 0.3 * jax.random.normal(keys[0], (24, 6)),
        "conv": 0.3 * jax.random.normal(keys[1], (3, 6, 10)),
        "bias": jnp.zeros(10),
        "head": 0.3 * jax.random.normal(keys[2], (10, 4)),
    }
    loss_scale = LossScale(jnp.array(2.0**10), jnp.array(3))
    state = TrainState(params, jax.tree.map(jnp.zeros_like, params), loss_scale, jnp.array(0))
    tokens = jax.random.randint(keys[3], (5, 9), 0, 24)
    return train_step, (state, tokens, jax.random.randint(keys[4], (5,), 0, 4))
