"""Metropolis-adjusted Langevin sampler on a mixture of Gaussians, in a while loop until enough proposals are accepted.

A state carries the density and its gradient, which one function computes for the start and for each proposal; the step
size adapts as the chain runs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "sampler"
SOURCE = "self"
DERIVATIVES = ("value_and_grad log_density",)
TARGET_ACCEPTANCE, MAX_PROPOSALS = 0.574, 40


class Mixture(NamedTuple):
    logits: jax.Array
    means: jax.Array
    cholesky: jax.Array


class Evaluated(NamedTuple):
    position: jax.Array
    log_density: jax.Array
    score: jax.Array


class Sampler(NamedTuple):
    current: Evaluated
    key: jax.Array
    log_step: jax.Array
    accepted: jax.Array
    proposed: jax.Array
    total: jax.Array


def component_log_density(position, mean, cholesky):
    whitened = jax.scipy.linalg.solve_triangular(cholesky, position - mean, lower=True)
    log_det = jnp.sum(jnp.log(jnp.diag(cholesky)))
    return -0.5 * jnp.sum(whitened**2) - log_det


def log_density(position, mixture):
    components = jax.vmap(component_log_density, in_axes=(None, 0, 0))(position, mixture.means, mixture.cholesky)
    return jax.nn.logsumexp(jax.nn.log_softmax(mixture.logits) + components)


def evaluate(position, mixture):
    value, score = jax.value_and_grad(log_density)(position, mixture)
    return Evaluated(position, value, score)


def transition_log_prob(source, destination, step):
    drifted = source.position + step * source.score
    return -jnp.sum((destination.position - drifted) ** 2) / (4.0 * step)


def propose(key, current, mixture, step):
    noise = jax.random.normal(key, current.position.shape)
    return evaluate(current.position + step * current.score + jnp.sqrt(2.0 * step) * noise, mixture)


def mala_step(state, mixture):
    key, proposal_key, accept_key = jax.random.split(state.key, 3)
    step = jnp.exp(state.log_step)
    candidate = propose(proposal_key, state.current, mixture, step)
    log_ratio = candidate.log_density - state.current.log_density
    log_ratio += transition_log_prob(candidate, state.current, step)
    log_ratio -= transition_log_prob(state.current, candidate, step)
    accept = jnp.log(jax.random.uniform(accept_key)) < log_ratio
    current = jax.tree.map(lambda new, old: jnp.where(accept, new, old), candidate, state.current)
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
    proposed = state.proposed + 1
    return Sampler(
        current,
        key,
        state.log_step + (probability - TARGET_ACCEPTANCE) / jnp.sqrt(proposed),
        state.accepted + accept,
        proposed,
        state.total + current.position,
    )


def sample_until(key, position, mixture, wanted):
    def unfinished(state):
        return (state.accepted < wanted) & (state.proposed < MAX_PROPOSALS)

    start = Sampler(
        evaluate(position, mixture),
        key,
        jnp.log(0.1),
        jnp.array(0),
        jnp.array(0),
        jnp.zeros_like(position),
    )
    final = jax.lax.while_loop(unfinished, lambda state: mala_step(state, mixture), start)
    return final.current, {
        "mean": final.total / final.proposed,
        "acceptance": final.accepted / final.proposed,
        "step": jnp.exp(final.log_step),
    }


def build():
    mixture = Mixture(
        jnp.array([0.0, 0.5, -0.3]),
        jnp.array([[-1.0, 0.0], [1.0, 1.0], [0.5, -1.0]]),
        jnp.array([[[0.6, 0.0], [0.2, 0.5]], [[0.4, 0.0], [-0.1, 0.7]], [[0.8, 0.0], [0.0, 0.3]]]),
    )
    return sample_until, (jax.random.key(13), jnp.array([0.3, -0.2]), mixture, 10)
