"""Gradient accumulation in Haiku: a scan over microbatches threads the state of a normalisation layer through.

The loss gives the new state and the metrics as its auxiliary output; gradients are summed, and optax steps once.
"""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax

LIBRARY = "dm-haiku"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad loss_fn",)
FEATURES, HIDDEN, CLASSES, MICROBATCHES, MICROBATCH = 6, 12, 4, 3, 5


class RunningNorm(hk.Module):
    """Normalises with running statistics, which a batch moves after they were used: they carry no gradient."""

    def __init__(self, decay=0.9, name=None):
        super().__init__(name=name)
        self.decay = decay

    def __call__(self, x):
        width = x.shape[-1:]
        scale = hk.get_parameter("scale", width, init=jnp.ones)
        offset = hk.get_parameter("offset", width, init=jnp.zeros)
        mean = hk.get_state("mean", width, init=jnp.zeros)
        variance = hk.get_state("variance", width, init=jnp.ones)
        count = hk.get_state("count", (), jnp.int32, init=jnp.zeros)
        observed = jax.lax.stop_gradient(x)
        hk.set_state("mean", self.decay * mean + (1.0 - self.decay) * jnp.mean(observed, axis=0))
        hk.set_state("variance", self.decay * variance + (1.0 - self.decay) * jnp.var(observed, axis=0))
        hk.set_state("count", count + 1)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + offset


class ResidualBlock(hk.Module):
    def __call__(self, x):
        hidden = hk.Linear(HIDDEN, with_bias=False)(RunningNorm()(x))
        return x + hk.Linear(x.shape[-1])(jax.nn.swish(hidden))


def forward(inputs):
    hidden = hk.Linear(HIDDEN, name="stem")(inputs)
    hidden = ResidualBlock(name="block0")(hidden)
    hidden = ResidualBlock(name="block1")(hidden)
    hidden = hk.dropout(hk.next_rng_key(), 0.1, hidden)
    return hk.Linear(CLASSES, name="head")(RunningNorm(name="final_norm")(hidden))


network = hk.transform_with_state(forward)
optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.05, momentum=0.9, nesterov=True))


class TrainState(NamedTuple):
    params: hk.Params
    norm_state: hk.State
    opt_state: optax.OptState


class Batch(NamedTuple):
    inputs: jax.Array
    labels: jax.Array


def loss_fn(params, norm_state, batch, key):
    logits, norm_state = network.apply(params, norm_state, key, batch.inputs)
    targets = optax.smooth_labels(jax.nn.one_hot(batch.labels, CLASSES), 0.1)
    loss = jnp.mean(optax.softmax_cross_entropy(logits, targets))
    correct = jnp.sum(jnp.argmax(logits, axis=-1) == batch.labels)
    return loss, (norm_state, {"loss": loss, "correct": correct})


def accumulate_gradients(params, norm_state, batch, key):
    def microstep(carry, inputs):
        norm_state, totals = carry
        microbatch, key = inputs
        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (_, (norm_state, metrics)), grads = grad_fn(params, norm_state, microbatch, key)
        return (norm_state, jax.tree.map(jnp.add, totals, grads)), metrics

    microbatches = jax.tree.map(lambda x: x.reshape(MICROBATCHES, -1, *x.shape[1:]), batch)
    keys = jax.random.split(key, MICROBATCHES)
    start = (norm_state, jax.tree.map(jnp.zeros_like, params))
    (norm_state, totals), metrics = jax.lax.scan(microstep, start, (microbatches, keys))
    return jax.tree.map(lambda g: g / MICROBATCHES, totals), norm_state, metrics


def train_step(state, batch, key):
    grads, norm_state, metrics = accumulate_gradients(state.params, state.norm_state, batch, key)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    summary = {
        "loss": jnp.mean(metrics["loss"]),
        "accuracy": jnp.sum(metrics["correct"]) / batch.labels.shape[0],
        "grad_norm": optax.global_norm(grads),
    }
    return TrainState(params, norm_state, opt_state), summary


def build():
    keys = jax.random.split(jax.random.key(41), 3)
    size = MICROBATCHES * MICROBATCH
    batch = Batch(jax.random.normal(keys[0], (size, FEATURES)), jax.random.randint(keys[1], (size,), 0, CLASSES))
    params, norm_state = network.init(keys[2], batch.inputs)
    return train_step, (TrainState(params, norm_state, optimizer.init(params)), batch, jax.random.key(42))
