"""Bilevel optimisation: learn regularisation, example weights and a step size through an unrolled inner SGD loop.

The function that the outer derivative is taken of contains a scan whose body takes the inner derivative; only the
hyperparameters are differentiated outside, only the weights of the classifier inside.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("grad training_loss", "value_and_grad validation_loss")
FEATURES, CLASSES, TRAIN, VALID, INNER_STEPS = 6, 3, 12, 9, 8


class Hyperparams(NamedTuple):
    log_l2: dict[str, jax.Array]
    example_logits: jax.Array
    log_learning_rate: jax.Array


class Split(NamedTuple):
    inputs: jax.Array
    labels: jax.Array


class MomentumState(NamedTuple):
    params: dict[str, jax.Array]
    velocity: dict[str, jax.Array]


def classifier(params, inputs):
    return jnp.tanh(inputs @ params["hidden"]) @ params["out"]


def cross_entropies(params, split):
    log_probs = jax.nn.log_softmax(classifier(params, split.inputs))
    return -jnp.take_along_axis(log_probs, split.labels[:, None], axis=1)[:, 0]


def training_loss(params, hyperparams, train):
    weights = jax.nn.sigmoid(hyperparams.example_logits)
    data_term = jnp.sum(weights * cross_entropies(params, train)) / jnp.sum(weights)
    penalties = jax.tree.map(lambda log_l2, p: jnp.exp(log_l2) * jnp.sum(p**2), hyperparams.log_l2, params)
    return data_term + sum(jax.tree.leaves(penalties))


def inner_optimize(hyperparams, params, train):
    learning_rate = jnp.exp(hyperparams.log_learning_rate)

    def sgd_step(state, _):
        grads = jax.grad(training_loss)(state.params, hyperparams, train)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - learning_rate * g, state.velocity, grads)
        params = jax.tree.map(jnp.add, state.params, velocity)
        return MomentumState(params, velocity), None

    start = MomentumState(params, jax.tree.map(jnp.zeros_like, params))
    final, _ = jax.lax.scan(sgd_step, start, length=INNER_STEPS)
    return final.params


def validation_loss(hyperparams, params, train, valid):
    trained = inner_optimize(hyperparams, params, train)
    return jnp.mean(cross_entropies(trained, valid)), trained


def hyperparameter_step(hyperparams, params, train, valid, outer_rate):
    value_and_hypergradient = jax.value_and_grad(validation_loss, has_aux=True)
    (loss, trained), hypergradient = value_and_hypergradient(hyperparams, params, train, valid)
    # Signs only: the hyperparameters have very different scales.
    hyperparams = jax.tree.map(lambda h, g: h - outer_rate * jnp.sign(g), hyperparams, hypergradient)
    accuracy = jnp.mean(jnp.argmax(classifier(trained, valid.inputs), axis=-1) == valid.labels)
    return hyperparams, {"validation_loss": loss, "accuracy": accuracy}


def build():
    keys = jax.random.split(jax.random.key(11), 6)
    params = {
        "hidden": 0.5 * jax.random.normal(keys[0], (FEATURES, 8)),
        "out": 0.5 * jax.random.normal(keys[1], (8, CLASSES)),
    }
    hyperparams = Hyperparams(
        {"hidden": jnp.array(-4.0), "out": jnp.array(-5.0)},
        jnp.zeros(TRAIN),
        jnp.array(-2.0),
    )
    train = Split(jax.random.normal(keys[2], (TRAIN, FEATURES)), jax.random.randint(keys[3], (TRAIN,), 0, CLASSES))
    valid = Split(jax.random.normal(keys[4], (VALID, FEATURES)), jax.random.randint(keys[5], (VALID,), 0, CLASSES))
    return hyperparameter_step, (hyperparams, params, train, valid, 0.05)
