"""Truncated Newton for softmax regression: conjugate gradients on Hessian-vector products, then a backtracking search.

The Hessian is never formed: its products are jvp of the gradient, inside the while loop of conjugate gradients.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "solver"
SOURCE = "self"
DERIVATIVES = ("grad objective", "jvp gradient")
FEATURES, CLASSES, EXAMPLES, MAX_CG, MAX_BACKTRACKS = 5, 3, 18, 12, 10


class Weights(NamedTuple):
    kernel: jax.Array
    bias: jax.Array


class CGState(NamedTuple):
    solution: Weights
    residual: Weights
    direction: Weights
    residual_norm: jax.Array
    iteration: jax.Array


def objective(weights, inputs, labels):
    logits = inputs @ weights.kernel + weights.bias
    log_probs = jax.nn.log_softmax(logits)
    data_term = -jnp.mean(log_probs[jnp.arange(labels.shape[0]), labels])
    return data_term + 1e-3 * jnp.sum(weights.kernel**2)


def gradient(weights, inputs, labels):
    return jax.grad(objective)(weights, inputs, labels)


def dot(a, b):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


def add_scaled(a, scale, b):
    return jax.tree.map(lambda x, y: x + scale * y, a, b)


def hessian_vector_product(weights, inputs, labels, vector):
    _, product = jax.jvp(partial(gradient, inputs=inputs, labels=labels), (weights,), (vector,))
    return add_scaled(product, 1e-4, vector)


def conjugate_gradients(apply_hessian, target, tolerance):
    def unconverged(state):
        return (state.residual_norm > tolerance) & (state.iteration < MAX_CG)

    def iterate(state):
        image = apply_hessian(state.direction)
        step = state.residual_norm / dot(state.direction, image)
        solution = add_scaled(state.solution, step, state.direction)
        residual = add_scaled(state.residual, -step, image)
        residual_norm = dot(residual, residual)
        direction = add_scaled(residual, residual_norm / state.residual_norm, state.direction)
        return CGState(solution, residual, direction, residual_norm, state.iteration + 1)

    zeros = jax.tree.map(jnp.zeros_like, target)
    start = CGState(zeros, target, target, dot(target, target), jnp.array(0))
    return jax.lax.while_loop(unconverged, iterate, start)


def backtrack(loss_at, value, slope):
    def too_long(state):
        step, count = state
        return (loss_at(step) > value + 1e-4 * step * slope) & (count < MAX_BACKTRACKS)

    step, _ = jax.lax.while_loop(too_long, lambda s: (0.5 * s[0], s[1] + 1), (jnp.array(1.0), jnp.array(0)))
    return step


def newton_step(weights, inputs, labels):
    value = objective(weights, inputs, labels)
    descent = jax.tree.map(jnp.negative, gradient(weights, inputs, labels))
    squared_norm = dot(descent, descent)
    # The forcing term: solve more exactly as the gradient vanishes.
    tolerance = squared_norm * jnp.minimum(0.01, squared_norm)
    solved = conjugate_gradients(
        lambda vector: hessian_vector_product(weights, inputs, labels, vector), descent, tolerance
    )

    def loss_at(step):
        return objective(add_scaled(weights, step, solved.solution), inputs, labels)

    step = backtrack(loss_at, value, -dot(descent, solved.solution))
    report = {"value": value, "gradient_norm": jnp.sqrt(squared_norm), "cg": solved.iteration, "step": step}
    return add_scaled(weights, step, solved.solution), report


def build():
    keys = jax.random.split(jax.random.key(21), 3)
    inputs = jax.random.normal(keys[0], (EXAMPLES, FEATURES))
    labels = jax.random.randint(keys[1], (EXAMPLES,), 0, CLASSES)
    weights = Weights(0.1 * jax.random.normal(keys[2], (FEATURES, CLASSES)), jnp.zeros(CLASSES))
    return newton_step, (weights, inputs, labels)
