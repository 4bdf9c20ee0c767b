"""Parallel-tempered MALA on the non-centred eight schools model, with vmapped independent ensembles."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy import stats

# Rubin (1981): estimated coaching effects and their standard errors.
EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
STANDARD_ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TARGET_ACCEPTANCE = 0.574


class MALAState(NamedTuple):
    position: dict
    log_prior: jax.Array
    log_likelihood: jax.Array
    grad: dict


class Kernel(NamedTuple):
    init: Callable
    step: Callable


class EnsembleState(NamedTuple):
    replicas: MALAState
    log_step_size: jax.Array
    iteration: jax.Array


def log_prior(position):
    half_cauchy = jnp.log(2.0) + stats.cauchy.logpdf(jnp.exp(position["log_tau"]), 0.0, 5.0) + position["log_tau"]
    hyper = stats.norm.logpdf(position["mu"], 0.0, 5.0) + half_cauchy
    return hyper + jnp.sum(stats.norm.logpdf(position["theta_raw"]))


def log_likelihood(position):
    theta = position["mu"] + jnp.exp(position["log_tau"]) * position["theta_raw"]
    return jnp.sum(stats.norm.logpdf(EFFECTS, theta, STANDARD_ERRORS))


def mala(log_prior_fn, log_likelihood_fn) -> Kernel:
    """Metropolis-adjusted Langevin kernel targeting prior * likelihood ** beta."""

    def evaluate(position, beta):
        def tempered(position):
            prior, likelihood = log_prior_fn(position), log_likelihood_fn(position)
            return prior + beta * likelihood, (prior, likelihood)

        grad, (prior, likelihood) = jax.grad(tempered, has_aux=True)(position)
        return MALAState(position, prior, likelihood, grad)

    def proposal_logpdf(to: MALAState, origin: MALAState, step_size):
        mean = jax.tree.map(lambda x, g: x + step_size * g, origin.position, origin.grad)
        squared = jax.tree.map(lambda x, m: jnp.sum((x - m) ** 2), to.position, mean)
        return -jax.tree.reduce(jnp.add, squared) / (4.0 * step_size)

    def step(key, state: MALAState, beta, step_size):
        noise_key, accept_key = jax.random.split(key)
        flat, unravel = ravel_pytree(state.position)
        noise = unravel(jax.random.normal(noise_key, flat.shape))
        scale = jnp.sqrt(2.0 * step_size)
        position = jax.tree.map(lambda x, g, n: x + step_size * g + scale * n, state.position, state.grad, noise)
        proposal = evaluate(position, beta)
        log_ratio = proposal.log_prior - state.log_prior + beta * (proposal.log_likelihood - state.log_likelihood)
        log_ratio += proposal_logpdf(state, proposal, step_size) - proposal_logpdf(proposal, state, step_size)
        log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
        accepted = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state)
        return state, {"acceptance_rate": jnp.exp(jnp.minimum(log_ratio, 0.0)), "accepted": accepted}

    return Kernel(init=evaluate, step=step)


def parallel_tempering(base: Kernel, betas: jax.Array, initial_step_size=0.05, decay=0.6) -> Kernel:
    """Wraps `base` with one replica per inverse temperature and even/odd neighbour swaps."""
    num_replicas, slots = betas.shape[0], jnp.arange(betas.shape[0])

    def init(positions):
        replicas = jax.vmap(base.init)(positions, betas)
        return EnsembleState(replicas, jnp.full(num_replicas, jnp.log(initial_step_size)), jnp.int32(0))

    def swap(key, replicas: MALAState, parity):
        partner = jnp.clip(jnp.where(slots % 2 == parity, slots + 1, slots - 1), 0, num_replicas - 1)
        lower = jnp.minimum(slots, partner)
        delta_beta = betas - betas[partner]
        delta_likelihood = replicas.log_likelihood[partner] - replicas.log_likelihood
        log_uniform = jnp.log(jax.random.uniform(key, (num_replicas,)))[lower]
        accepted = (log_uniform < delta_beta * delta_likelihood) & (partner != slots)
        source = jnp.where(accepted, partner, slots)
        positions = jax.tree.map(lambda x: x[source], replicas.position)
        return jax.vmap(base.init)(positions, betas), accepted

    def step(key, state: EnsembleState):
        move_key, swap_key = jax.random.split(key)
        replicas, info = jax.vmap(base.step)(
            jax.random.split(move_key, num_replicas), state.replicas, betas, jnp.exp(state.log_step_size)
        )
        replicas, swapped = swap(swap_key, replicas, state.iteration % 2)
        gain = (state.iteration + 1.0) ** -decay
        log_step_size = state.log_step_size + gain * (info["acceptance_rate"] - TARGET_ACCEPTANCE)
        return EnsembleState(replicas, log_step_size, state.iteration + 1), (info, swapped)

    return Kernel(init, step)


def sample_chain(key, positions, kernel: Kernel, num_samples: int):
    def one_step(state, key):
        state, (info, swapped) = kernel.step(key, state)
        cold = jax.tree.map(lambda x: x[0], state.replicas.position)
        return state, (cold, info["accepted"][0], jnp.mean(swapped))

    state, outputs = jax.lax.scan(one_step, kernel.init(positions), jax.random.split(key, num_samples))
    return outputs, jnp.exp(state.log_step_size)


def build():
    num_chains, num_samples = 3, 50
    betas = jnp.geomspace(1.0, 0.1, 4)
    kernel = parallel_tempering(mala(log_prior, log_likelihood), betas)

    def run(key, positions):
        keys = jax.random.split(key, num_chains)
        run_chain = jax.vmap(lambda k, p: sample_chain(k, p, kernel, num_samples))
        (draws, accepted, swap_rate), step_sizes = run_chain(keys, positions)
        return draws, {"accept": accepted.mean(), "swap": swap_rate.mean(), "step_size": step_sizes}

    mu_key, tau_key, theta_key, run_key = jax.random.split(jax.random.key(3), 4)
    shape = (num_chains, betas.shape[0])
    positions = {
        "mu": 5.0 * jax.random.normal(mu_key, shape),
        "log_tau": jax.random.normal(tau_key, shape),
        "theta_raw": jax.random.normal(theta_key, (*shape, EFFECTS.size)),
    }
    return run, (run_key, positions)
