"""Gaussian-emission hidden Markov model: forward-backward, Viterbi decoding and a Baum-Welch step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

VARIANCE_FLOOR = 1e-3
DIRICHLET_PRIOR = 1.1


class HMMParams(NamedTuple):
    log_initial: jax.Array  # [K]
    log_transition: jax.Array  # [K, K], rows sum to one in probability space
    means: jax.Array  # [K, D]
    log_variances: jax.Array  # [K, D]


class Posterior(NamedTuple):
    log_likelihood: jax.Array
    gamma: jax.Array  # [T, K] smoothed marginals
    xi_sum: jax.Array  # [K, K] expected transition counts


class SufficientStats(NamedTuple):
    initial: jax.Array
    transitions: jax.Array
    weight: jax.Array
    first_moment: jax.Array
    second_moment: jax.Array


def emission_log_probs(params: HMMParams, observations: jax.Array) -> jax.Array:
    """Diagonal Gaussian log densities, [T, K]."""
    residual = observations[:, None, :] - params.means[None]
    quad = residual**2 * jnp.exp(-params.log_variances)
    return -0.5 * jnp.sum(quad + params.log_variances + jnp.log(2 * jnp.pi), axis=-1)


def forward_pass(params: HMMParams, log_obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    def step(log_alpha, log_b):
        log_alpha = logsumexp(log_alpha[:, None] + params.log_transition, axis=0) + log_b
        return log_alpha, log_alpha

    first = params.log_initial + log_obs[0]
    last, rest = jax.lax.scan(step, first, log_obs[1:])
    return jnp.concatenate([first[None], rest]), logsumexp(last)


def backward_pass(params: HMMParams, log_obs: jax.Array) -> jax.Array:
    def step(log_beta, log_b):
        log_beta = logsumexp(params.log_transition + (log_b + log_beta)[None, :], axis=1)
        return log_beta, log_beta

    final = jnp.zeros(log_obs.shape[1])
    _, rest = jax.lax.scan(step, final, log_obs[1:], reverse=True)
    return jnp.concatenate([rest, final[None]])


def smooth(params: HMMParams, observations: jax.Array) -> Posterior:
    log_obs = emission_log_probs(params, observations)
    log_alpha, log_likelihood = forward_pass(params, log_obs)
    log_beta = backward_pass(params, log_obs)
    gamma = jax.nn.softmax(log_alpha + log_beta, axis=-1)
    arrivals = (log_obs[1:] + log_beta[1:])[:, None, :]
    log_xi = log_alpha[:-1, :, None] + params.log_transition[None] + arrivals - log_likelihood
    return Posterior(log_likelihood, gamma, jnp.sum(jnp.exp(log_xi), axis=0))


def viterbi(params: HMMParams, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Most likely state sequence [T] and its joint log probability."""
    log_obs = emission_log_probs(params, observations)

    def max_product(score, log_b):
        candidates = score[:, None] + params.log_transition
        return jnp.max(candidates, axis=0) + log_b, jnp.argmax(candidates, axis=0)

    def backtrack(state, pointers):
        previous = pointers[state]
        return previous, previous

    final_score, back_pointers = jax.lax.scan(max_product, params.log_initial + log_obs[0], log_obs[1:])
    last_state = jnp.argmax(final_score)
    _, path = jax.lax.scan(backtrack, last_state, back_pointers, reverse=True)
    return jnp.append(path, last_state), final_score[last_state]


def e_step(params: HMMParams, observations: jax.Array) -> tuple[SufficientStats, jax.Array]:
    posterior = smooth(params, observations)
    stats = SufficientStats(
        initial=posterior.gamma[0],
        transitions=posterior.xi_sum,
        weight=posterior.gamma.sum(axis=0),
        first_moment=posterior.gamma.T @ observations,
        second_moment=posterior.gamma.T @ observations**2,
    )
    return stats, posterior.log_likelihood


def m_step(stats: SufficientStats, prior: float = DIRICHLET_PRIOR) -> HMMParams:
    initial = stats.initial + prior - 1.0
    transitions = stats.transitions + prior - 1.0
    means = stats.first_moment / stats.weight[:, None]
    variances = jnp.maximum(stats.second_moment / stats.weight[:, None] - means**2, VARIANCE_FLOOR)
    return HMMParams(
        log_initial=jnp.log(initial / initial.sum()),
        log_transition=jnp.log(transitions / transitions.sum(axis=1, keepdims=True)),
        means=means,
        log_variances=jnp.log(variances),
    )


def baum_welch_step(params: HMMParams, sequences: jax.Array):
    """One EM update over a batch of sequences [B, T, D], then decoding under the new parameters."""
    stats, log_likelihoods = jax.vmap(e_step, in_axes=(None, 0))(params, sequences)
    new_params = m_step(jax.tree.map(lambda s: s.sum(axis=0), stats))
    paths, path_scores = jax.vmap(viterbi, in_axes=(None, 0))(new_params, sequences)
    return new_params, {"log_likelihood": log_likelihoods.sum(), "paths": paths, "path_scores": path_scores}


def init_params(key: jax.Array, num_states: int, dim: int, stickiness: float = 4.0) -> HMMParams:
    return HMMParams(
        log_initial=jnp.full(num_states, -jnp.log(num_states)),
        log_transition=jax.nn.log_softmax(stickiness * jnp.eye(num_states), axis=-1),
        means=2.0 * jax.random.normal(key, (num_states, dim)),
        log_variances=jnp.zeros((num_states, dim)),
    )


def build():
    k_params, k_regime, k_noise = jax.random.split(jax.random.key(11), 3)
    regimes = jnp.repeat(jax.random.randint(k_regime, (4, 5), 0, 3), 6, axis=1)
    centers = jnp.array([[-2.0, 0.0], [0.0, 2.0], [2.0, -1.0]])
    sequences = centers[regimes] + 0.5 * jax.random.normal(k_noise, (4, 30, 2))
    return baum_welch_step, (init_params(k_params, 3, 2), sequences)
