"""Damped Newton steps of a ridge-penalised Poisson regression, with the full Hessian."""

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "solver"
SOURCE = "self"
DAMPING = 1e-2


def penalised_loss(coefficients, features, counts):
    log_rates = features @ coefficients
    deviance = jnp.mean(jnp.exp(log_rates) - counts * log_rates)
    return deviance + 0.05 * jnp.sum(coefficients**2)


def newton_step(coefficients, features, counts):
    loss, gradient = jax.value_and_grad(penalised_loss)(coefficients, features, counts)
    hessian = jax.hessian(penalised_loss)(coefficients, features, counts)
    damped = hessian + DAMPING * jnp.eye(coefficients.shape[0])
    return coefficients - jnp.linalg.solve(damped, gradient), loss


def fit(coefficients, features, counts):
    def step(coefficients, _):
        return newton_step(coefficients, features, counts)

    return jax.lax.scan(step, coefficients, None, length=4)


def build():
    keys = jax.random.split(jax.random.key(11), 2)
    features = 0.5 * jax.random.normal(keys[0], (30, 5))
    counts = jax.random.poisson(keys[1], 2.0, (30,)).astype(jnp.float32)
    return fit, (jnp.zeros(5), features, counts)
