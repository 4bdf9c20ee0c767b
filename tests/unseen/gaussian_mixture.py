"""Gaussian mixtures by expectation-maximisation (full covariances).

Follows the interface of scikit-learn's ``GaussianMixture`` loosely: several k-means++ seeded
restarts are run as one batch, the restart with the best lower bound wins.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jax.scipy.linalg import solve_triangular

LIBRARY = "jax"
KIND = "solver"
SOURCE = "self"


class GMMParams(NamedTuple):
    log_weights: jnp.ndarray  # (K,)
    means: jnp.ndarray  # (K, D)
    chols: jnp.ndarray  # (K, D, D) lower triangular


class EMState(NamedTuple):
    params: GMMParams
    lower_bound: jnp.ndarray
    delta: jnp.ndarray
    n_iter: jnp.ndarray
    trace: jnp.ndarray


def log_sum_exp(a, axis=-1, b: jnp.ndarray | None = None, keepdims=False):
    """Stable log(sum(b * exp(a))) which returns -inf (not nan) for an all -inf slice."""
    a_max = jnp.max(a, axis=axis, keepdims=True)
    a_max = jnp.where(jnp.isfinite(a_max), a_max, 0.0)
    terms = jnp.exp(a - jax.lax.stop_gradient(a_max))
    if b is not None:
        terms = b * terms
    out = jnp.log(jnp.sum(terms, axis=axis, keepdims=True)) + a_max
    return out if keepdims else jnp.squeeze(out, axis=axis)


def sq_distances(x, centers):
    return jnp.sum((x[:, None, :] - centers[None, :, :]) ** 2, axis=-1)


def kmeans_plusplus(key, x, k: int):
    """D^2 seeding (Arthur & Vassilvitskii, 2007) with greedy local trials."""
    n, d = x.shape
    n_trials = 2 + k.bit_length()  # roughly 2 + log2(k), as in scikit-learn
    key, sub = random.split(key)
    first = x[random.randint(sub, (), 0, n)]
    centers = jnp.zeros((k, d), x.dtype).at[0].set(first)
    closest = jnp.sum((x - first) ** 2, axis=-1)

    def pick(i, carry):
        key, centers, closest = carry
        key, sub = random.split(key)
        candidates = random.categorical(sub, jnp.log(closest), shape=(n_trials,))
        potential = jnp.minimum(closest[:, None], sq_distances(x, x[candidates]))  # (n, trials)
        best = jnp.argmin(potential.sum(axis=0))
        return key, centers.at[i].set(x[candidates[best]]), potential[:, best]

    _, centers, closest = jax.lax.fori_loop(1, k, pick, (key, centers, closest))
    return centers


def _safe_cholesky(cov, reg):
    return jnp.linalg.cholesky(cov + reg * jnp.eye(cov.shape[-1], dtype=cov.dtype))


@partial(jax.vmap, in_axes=(None, 0, 0), out_axes=1)
def component_log_prob(x, mean, chol):
    d = x.shape[-1]
    z = solve_triangular(chol, (x - mean).T, lower=True)
    log_det = jnp.sum(jnp.log(jnp.diagonal(chol)))
    return -0.5 * (d * jnp.log(2 * jnp.pi) + jnp.sum(z**2, axis=0)) - log_det


def e_step(params: GMMParams, x):
    joint = component_log_prob(x, params.means, params.chols) + params.log_weights
    evidence = log_sum_exp(joint, axis=1, keepdims=True)
    return jnp.mean(evidence), joint - evidence


def m_step(log_resp, x, reg) -> GMMParams:
    n = x.shape[0]
    log_nk = log_sum_exp(log_resp, axis=0)
    resp = jnp.exp(log_resp)
    nk = jnp.exp(log_nk) + 10 * jnp.finfo(x.dtype).eps
    means = resp.T @ x / nk[:, None]

    def covariance(r, mean, total):
        diff = x - mean
        return (r[:, None] * diff).T @ diff / total

    covs = jax.vmap(covariance, in_axes=(1, 0, 0))(resp, means, nk)
    return GMMParams(log_nk - jnp.log(n), means, _safe_cholesky(covs, reg))


def init_params(key, x, k, reg) -> GMMParams:
    centers = kmeans_plusplus(key, x, k)
    labels = jnp.argmin(sq_distances(x, centers), axis=1)
    hard = jax.nn.one_hot(labels, k, dtype=x.dtype)
    soft = 0.9 * hard + 0.1 / k
    return m_step(jnp.log(soft), x, reg)


def run_em(params: GMMParams, x, *, tol: float, max_iter: int, reg: float) -> EMState:
    def not_done(state: EMState):
        return jnp.logical_and(state.n_iter < max_iter, jnp.abs(state.delta) > tol)

    def iterate(state: EMState):
        bound, log_resp = e_step(state.params, x)
        return EMState(
            params=m_step(log_resp, x, reg),
            lower_bound=bound,
            delta=bound - state.lower_bound,
            n_iter=state.n_iter + 1,
            trace=state.trace.at[state.n_iter].set(bound),
        )

    start = EMState(
        params=params,
        lower_bound=jnp.array(-1e10, x.dtype),
        delta=jnp.array(jnp.inf, x.dtype),
        n_iter=jnp.array(0),
        trace=jnp.zeros((max_iter,), x.dtype),
    )
    return jax.lax.while_loop(not_done, iterate, start)


@partial(jax.jit, static_argnames=("n_components", "n_init", "max_iter"))
def fit(key, x, *, n_components: int, n_init: int = 4, max_iter: int = 60, tol=1e-4, reg=1e-5):
    mu, sd = x.mean(axis=0), x.std(axis=0)
    xs = (x - mu) / sd

    def one_restart(key):
        return run_em(init_params(key, xs, n_components, reg), xs, tol=tol, max_iter=max_iter, reg=reg)

    runs = jax.vmap(one_restart)(random.split(key, n_init))
    best = jnp.argmax(runs.lower_bound)
    final = jax.tree.map(lambda leaf: leaf[best], runs)

    # components sorted by decreasing weight, so that the result does not depend on the seeding
    order = jnp.argsort(-final.params.log_weights)
    params = jax.tree.map(lambda leaf: leaf[order], final.params)
    bound, log_resp = e_step(params, xs)
    n_free = n_components * (x.shape[1] * (x.shape[1] + 3) / 2 + 1) - 1
    return {
        "weights": jnp.exp(params.log_weights),
        "means": params.means * sd + mu,
        "covariances": jax.vmap(lambda c: (c @ c.T) * jnp.outer(sd, sd))(params.chols),
        "labels": jnp.argmax(log_resp, axis=1),
        "entropy": -jnp.mean(jnp.sum(jnp.exp(log_resp) * log_resp, axis=1)),
        "bic": -2 * x.shape[0] * bound + n_free * jnp.log(x.shape[0]),
        "n_iter": runs.n_iter,
        "trace": final.trace,
    }


def make_blobs(key, n, centers, scales):
    k_label, k_noise, k_mix = random.split(key, 3)
    label = random.choice(k_label, len(centers), (n,), p=jnp.array([0.5, 0.3, 0.2]))
    mixing = jnp.eye(centers.shape[1]) + 0.5 * random.normal(k_mix, (len(centers),) + (centers.shape[1],) * 2)
    noise = random.normal(k_noise, (n, centers.shape[1]))
    return centers[label] + scales[label][:, None] * jnp.einsum("nij,nj->ni", mixing[label], noise)


def build():
    centers = jnp.array([[0.0, 0.0, 1.5], [2.5, -1.0, 0.0], [-1.5, 2.5, -1.0]])
    x = make_blobs(random.key(42), 120, centers, jnp.array([1.0, 0.7, 1.3]))
    return partial(fit, n_components=3), (random.key(7), x)
