"""Hamiltonian Monte Carlo on a logistic regression: a scan of transitions, each a scan of leapfrog steps."""

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "sampler"
SOURCE = "self"
STEP_SIZE = 0.15


def log_density(position, features, labels):
    logits = features @ position
    log_likelihood = jnp.sum(labels * logits - jnp.log1p(jnp.exp(logits)))
    return log_likelihood - 0.5 * jnp.sum(position**2)


def leapfrog(position, momentum, features, labels):
    gradient_of = jax.grad(log_density)

    def step(state, _):
        position, momentum = state
        momentum = momentum + 0.5 * STEP_SIZE * gradient_of(position, features, labels)
        position = position + STEP_SIZE * momentum
        momentum = momentum + 0.5 * STEP_SIZE * gradient_of(position, features, labels)
        return (position, momentum), None

    (position, momentum), _ = jax.lax.scan(step, (position, momentum), None, length=6)
    return position, momentum


def sample_chain(position, key, features, labels):
    def transition(position, key):
        key_momentum, key_accept = jax.random.split(key)
        momentum = jax.random.normal(key_momentum, position.shape)
        proposal, momentum_end = leapfrog(position, momentum, features, labels)
        log_start = log_density(position, features, labels) - momentum @ momentum / 2
        log_end = log_density(proposal, features, labels) - momentum_end @ momentum_end / 2
        accepted = jnp.log(jax.random.uniform(key_accept)) < log_end - log_start
        position = jnp.where(accepted, proposal, position)
        return position, (position, jnp.where(accepted, log_end, log_start))

    return jax.lax.scan(transition, position, jax.random.split(key, 5))


def build():
    keys = jax.random.split(jax.random.key(3), 3)
    features = jax.random.normal(keys[0], (25, 4))
    labels = jax.random.bernoulli(keys[1], 0.4, (25,)).astype(jnp.float32)
    return sample_chain, (0.5 * jnp.ones(4), keys[2], features, labels)
