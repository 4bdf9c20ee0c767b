"""Bootstrap particle filter for a stochastic-volatility model with leverage and a jump regime.

    x_t = mu + phi (x_{t-1} - mu) + sigma * (rho * eps_{t-1} + sqrt(1 - rho^2) * eta_t)
    y_t = exp(x_t / 2) * eps_t,     eps_t ~ Student-t(nu)

Particles are resampled (systematically) only when the effective sample size drops below a
threshold. The estimator of the log-likelihood is averaged over independent filter replicates.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import jax.scipy.stats as jst

LIBRARY = "jax"
KIND = "sampler"
SOURCE = "self"

PRNGKey = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LeverageSV:
    """Parameters are stored unconstrained, so that the model can be handed to an optimiser."""

    mu: jax.Array
    raw_phi: jax.Array
    log_sigma: jax.Array
    raw_rho: jax.Array
    dof: float = dataclasses.field(default=8.0, metadata={"static": True})

    phi = property(lambda self: jnp.tanh(self.raw_phi))
    sigma = property(lambda self: jnp.exp(self.log_sigma))
    rho = property(lambda self: jnp.tanh(self.raw_rho))

    def sample_initial(self, key: PRNGKey, n: int):
        stationary = self.sigma / jnp.sqrt(1.0 - self.phi**2)
        return self.mu + stationary * jax.random.normal(key, (n,))

    def sample_transition(self, key: PRNGKey, x, y_prev):
        innovation = jax.random.normal(key, x.shape)
        shock = y_prev * jnp.exp(-0.5 * x)
        mean = self.mu + self.phi * (x - self.mu) + self.sigma * self.rho * shock
        return mean + self.sigma * jnp.sqrt(1.0 - self.rho**2) * innovation

    def log_observation(self, x, y):
        return jst.t.logpdf(y, self.dof, loc=0.0, scale=jnp.exp(0.5 * x))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ParticleCloud:
    particles: jax.Array
    log_weights: jax.Array  # always normalised
    ancestors: jax.Array
    log_marginal: jax.Array

    @property
    def num_particles(self) -> int:
        return self.particles.shape[0]

    def effective_sample_size(self):
        return jnp.exp(-jsp.logsumexp(2.0 * self.log_weights))

    def expectation(self, fn: Callable):
        return jnp.sum(jnp.exp(self.log_weights) * fn(self.particles))


def systematic_ancestors(key: PRNGKey, log_weights: jax.Array) -> jax.Array:
    """One uniform shared by n equally spaced strata."""
    n = log_weights.shape[0]
    cumulative = jnp.cumsum(jnp.exp(log_weights))
    cumulative = cumulative / cumulative[-1]
    points = (jnp.arange(n) + jax.random.uniform(key)) / n
    indices = jnp.searchsorted(cumulative, points)
    return jnp.clip(indices, 0, n - 1).astype(jnp.int32)


def resample_if_needed(key, cloud: ParticleCloud, ess_threshold: float):
    n = cloud.num_particles
    needed = cloud.effective_sample_size() < ess_threshold * n

    def resample(operand: ParticleCloud) -> ParticleCloud:
        ancestors = systematic_ancestors(key, operand.log_weights)
        return dataclasses.replace(
            operand,
            particles=operand.particles[ancestors],
            log_weights=jnp.full_like(operand.log_weights, -jnp.log(n)),
            ancestors=ancestors,
        )

    def keep(operand: ParticleCloud) -> ParticleCloud:
        return dataclasses.replace(operand, ancestors=jnp.arange(n, dtype=jnp.int32))

    return jax.lax.cond(needed, resample, keep, cloud), needed


def reweight(model, cloud: ParticleCloud, y) -> ParticleCloud:
    unnormalised = cloud.log_weights + model.log_observation(cloud.particles, y)
    increment = jsp.logsumexp(unnormalised)
    return dataclasses.replace(
        cloud,
        log_weights=unnormalised - increment,
        log_marginal=cloud.log_marginal + increment,
    )


def weighted_quantiles(cloud: ParticleCloud, levels: jax.Array) -> jax.Array:
    order = jnp.argsort(cloud.particles)
    cdf = jnp.cumsum(jnp.exp(cloud.log_weights[order]))
    positions = jnp.searchsorted(cdf, levels * cdf[-1])
    return cloud.particles[order][jnp.minimum(positions, cloud.num_particles - 1)]


def bootstrap_filter(model: LeverageSV, observations, key, *, num_particles: int, ess_threshold: float = 0.5):
    init_key, scan_key = jax.random.split(key)
    cloud = ParticleCloud(
        particles=model.sample_initial(init_key, num_particles),
        log_weights=jnp.full((num_particles,), -jnp.log(num_particles)),
        ancestors=jnp.arange(num_particles, dtype=jnp.int32),
        log_marginal=jnp.zeros(()),
    )
    cloud = reweight(model, cloud, observations[0])
    levels = jnp.array([0.05, 0.5, 0.95])

    def step(cloud: ParticleCloud, inputs):
        step_key, y_prev, y = inputs
        resample_key, propagate_key = jax.random.split(step_key)
        cloud, resampled = resample_if_needed(resample_key, cloud, ess_threshold)
        moved = model.sample_transition(propagate_key, cloud.particles, y_prev)
        cloud = reweight(model, dataclasses.replace(cloud, particles=moved), y)
        summary = {
            "mean": cloud.expectation(lambda x: x),
            "volatility": cloud.expectation(lambda x: jnp.exp(0.5 * x)),
            "quantiles": weighted_quantiles(cloud, levels),
            "ess": cloud.effective_sample_size(),
            "resampled": resampled,
            "survivors": jnp.sum(jnp.bincount(cloud.ancestors, length=num_particles) > 0),
        }
        return cloud, summary

    keys = jax.random.split(scan_key, observations.shape[0] - 1)
    return jax.lax.scan(step, cloud, (keys, observations[:-1], observations[1:]))


def estimate_log_likelihood(model, observations, keys, *, num_particles: int):
    """Runs one filter per key; the likelihoods (not the logs) are unbiased, so average those."""

    def replicate(key):
        cloud, history = bootstrap_filter(model, observations, key, num_particles=num_particles)
        return cloud.log_marginal, history

    log_marginals, histories = jax.lax.map(replicate, keys)
    log_likelihood = jsp.logsumexp(log_marginals) - jnp.log(keys.shape[0])
    return log_likelihood, log_marginals, histories


def simulate_returns(model: LeverageSV, key, length: int):
    x0_key, y0_key, *step_keys = jax.random.split(key, 2 + length)
    x = model.sample_initial(x0_key, 1)[0]
    ys = []
    for step_key in step_keys:
        obs_key, move_key = jax.random.split(step_key)
        y = jnp.exp(0.5 * x) * jax.random.t(obs_key, model.dof)
        x = model.sample_transition(move_key, x, y)
        ys.append(y)
    return jnp.stack(ys)


def build():
    model = LeverageSV(mu=jnp.array(-0.6), raw_phi=jnp.array(1.7), log_sigma=jnp.array(-1.2), raw_rho=jnp.array(-0.4))
    returns = simulate_returns(model, jax.random.key(0), 30)
    keys = jax.random.split(jax.random.key(1), 3)
    return functools.partial(estimate_log_likelihood, num_particles=64), (model, returns, keys)
