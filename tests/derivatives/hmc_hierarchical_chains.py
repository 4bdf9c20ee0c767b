"""Hamiltonian Monte Carlo on a hierarchical logistic regression: leapfrog in a scan, several chains under vmap.

The score has one definition and two callers: the first half kick, and the kicks in the scan.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm

LIBRARY = "jax"
KIND = "sampler"
SOURCE = "self"
DERIVATIVES = ("grad log_prob",)
GROUPS, FEATURES, CHAINS, LEAPFROG_STEPS, SAMPLES = 3, 2, 2, 6, 4


class Chain(NamedTuple):
    position: dict
    log_prob: jax.Array


class Data(NamedTuple):
    features: jax.Array
    groups: jax.Array
    labels: jax.Array


def log_prob(position, data):
    scale = jnp.exp(position["log_scale"])
    prior = norm.logpdf(position["mean"], 0.0, 2.0).sum() + norm.logpdf(position["log_scale"]).sum()
    prior = prior + norm.logpdf(position["offsets"]).sum()
    coefficients = position["mean"] + scale * position["offsets"]
    logits = jnp.sum(data.features * coefficients[data.groups], axis=-1)
    likelihood = jnp.sum(data.labels * logits - jax.nn.softplus(logits))
    return prior + likelihood


def score(position, data):
    return jax.grad(log_prob)(position, data)


def axpy(scale, x, y):
    return jax.tree.map(lambda a, b: scale * a + b, x, y)


def kinetic_energy(momentum):
    flat, _ = ravel_pytree(momentum)
    return 0.5 * jnp.dot(flat, flat)


def leapfrog(position, momentum, data, step_size):
    momentum = axpy(0.5 * step_size, score(position, data), momentum)

    def step(state, kick):
        position, momentum = state
        position = axpy(step_size, momentum, position)
        momentum = axpy(kick * step_size, score(position, data), momentum)
        return (position, momentum), None

    kicks = jnp.ones(LEAPFROG_STEPS).at[-1].set(0.5)
    (position, momentum), _ = jax.lax.scan(step, (position, momentum), kicks)
    return position, momentum


def sample_momentum(key, position):
    flat, unravel = ravel_pytree(position)
    return unravel(jax.random.normal(key, flat.shape))


def hmc_step(key, chain, data, step_size):
    momentum_key, accept_key = jax.random.split(key)
    momentum = sample_momentum(momentum_key, chain.position)
    position, new_momentum = leapfrog(chain.position, momentum, data, step_size)
    proposal = Chain(position, log_prob(position, data))
    energy = kinetic_energy(momentum) - chain.log_prob
    new_energy = kinetic_energy(new_momentum) - proposal.log_prob
    accept_prob = jnp.minimum(1.0, jnp.exp(energy - new_energy))
    accept = jax.random.uniform(accept_key) < accept_prob
    chain = jax.tree.map(lambda new, old: jnp.where(accept, new, old), proposal, chain)
    return chain, accept_prob


def run_chain(key, position, data, step_size):
    def body(chain, key):
        chain, accept_prob = hmc_step(key, chain, data, step_size)
        return chain, (chain.position, accept_prob)

    chain = Chain(position, log_prob(position, data))
    _, (samples, accept_probs) = jax.lax.scan(body, chain, jax.random.split(key, SAMPLES))
    return samples, jnp.mean(accept_probs)


def run_chains(key, positions, data, step_size):
    keys = jax.random.split(key, CHAINS)
    return jax.vmap(run_chain, in_axes=(0, 0, None, None))(keys, positions, data, step_size)


def build():
    keys = jax.random.split(jax.random.key(7), 5)
    data = Data(
        jax.random.normal(keys[0], (20, FEATURES)),
        jax.random.randint(keys[1], (20,), 0, GROUPS),
        jax.random.bernoulli(keys[2], 0.4, (20,)).astype(jnp.float32),
    )
    positions = {
        "mean": 0.1 * jax.random.normal(keys[3], (CHAINS, FEATURES)),
        "log_scale": jnp.zeros((CHAINS, FEATURES)),
        "offsets": 0.1 * jax.random.normal(keys[4], (CHAINS, GROUPS, FEATURES)),
    }
    return run_chains, (jax.random.key(8), positions, data, 0.1)
