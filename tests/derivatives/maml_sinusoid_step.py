"""MAML with learned inner step sizes on sinusoid regression: adaptation by gradient steps, under vmap over tasks.

The meta-loss is differentiated through the adaptation, in the initial weights and in the step sizes together.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("grad task_loss", "value_and_grad meta_loss")
TASKS, SHOTS, WIDTH, INNER_STEPS, META_RATE = 4, 5, 12, 3, 0.005


class Layer(NamedTuple):
    w: jax.Array
    b: jax.Array


class MetaParams(NamedTuple):
    init: list[Layer]
    inner_rates: list[Layer]


class Samples(NamedTuple):
    x: jax.Array
    y: jax.Array


class Tasks(NamedTuple):
    support: Samples
    query: Samples


def regressor(layers, x):
    *hidden_layers, last = layers
    for layer in hidden_layers:
        x = jax.nn.relu(x @ layer.w + layer.b)
    return x @ last.w + last.b


def task_loss(layers, samples):
    return jnp.mean((regressor(layers, samples.x) - samples.y) ** 2)


def adapt(meta, support):
    def inner_step(_, layers):
        grads = jax.grad(task_loss)(layers, support)
        return jax.tree.map(lambda p, rate, g: p - rate * g, layers, meta.inner_rates, grads)

    return jax.lax.fori_loop(0, INNER_STEPS, inner_step, meta.init)


def task_objective(meta, task):
    adapted = adapt(meta, task.support)
    return task_loss(adapted, task.query), task_loss(meta.init, task.query)


def meta_loss(meta, tasks):
    after, before = jax.vmap(task_objective, in_axes=(None, 0))(meta, tasks)
    return jnp.mean(after), {"before": jnp.mean(before), "worst": jnp.max(after)}


def sample_tasks(key):
    amplitude_key, phase_key, x_key = jax.random.split(key, 3)
    amplitude = jax.random.uniform(amplitude_key, (TASKS, 1, 1), minval=0.1, maxval=5.0)
    phase = jax.random.uniform(phase_key, (TASKS, 1, 1), maxval=jnp.pi)
    x = jax.random.uniform(x_key, (TASKS, 2 * SHOTS, 1), minval=-5.0, maxval=5.0)
    y = amplitude * jnp.sin(x - phase)
    return Tasks(Samples(x[:, :SHOTS], y[:, :SHOTS]), Samples(x[:, SHOTS:], y[:, SHOTS:]))


def meta_step(meta, key):
    tasks = sample_tasks(key)
    (loss, metrics), grads = jax.value_and_grad(meta_loss, has_aux=True)(meta, tasks)
    grads = jax.tree.map(lambda g: jnp.clip(g, -10.0, 10.0), grads)
    meta = jax.tree.map(lambda p, g: p - META_RATE * g, meta, grads)
    return meta, {"after": loss, **metrics}


def init_regressor(key):
    sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    keys = jax.random.split(key, len(sizes))
    return [
        Layer(jax.random.normal(k, size) * jnp.sqrt(2.0 / size[0]), jnp.zeros(size[1]))
        for k, size in zip(keys, sizes, strict=True)
    ]


def build():
    layers = init_regressor(jax.random.key(0))
    inner_rates = jax.tree.map(lambda p: jnp.full_like(p, 0.01), layers)
    return meta_step, (MetaParams(layers, inner_rates), jax.random.key(1))
