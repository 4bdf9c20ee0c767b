"""Phylogenetic likelihood (Felsenstein pruning) under GTR+Gamma, with gradient and branch-length curvature."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm
from jax.scipy.special import gammaln, logsumexp

LIBRARY = "jax"
KIND = "grad"
SOURCE = "self"

# A rooted, bifurcating tree on 5 taxa in post order: (parent, left, right). Leaves are 0..4.
POSTORDER = np.array([[5, 0, 1], [6, 2, 3], [7, 5, 6], [8, 7, 4]])
N_TAXA = 5
N_NODES = 9
N_CATEGORIES = 4
UPPER = np.triu_indices(4, k=1)


def rate_matrix(exchange_logits, freq_logits):
    """Reversible Q, normalised to one expected substitution per unit time."""
    pi = jax.nn.softmax(freq_logits)
    s = jnp.zeros((4, 4)).at[UPPER].set(jnp.exp(exchange_logits))
    s = s + s.T
    q = s * pi[None, :]
    q = q - jnp.diag(q.sum(axis=1))
    scale = -jnp.vdot(pi, jnp.diagonal(q))
    return q / scale, pi


def discrete_rates(log_alpha):
    # lognormal-style quantile approximation to the discrete gamma (Wilson-Hilferty)
    alpha = jnp.exp(log_alpha)
    probs = (jnp.arange(N_CATEGORIES) + 0.5) / N_CATEGORIES
    z = jax.scipy.stats.norm.ppf(probs)
    c = 1.0 / (9.0 * alpha)
    rates = jnp.maximum(1.0 - c + z * jnp.sqrt(c), 1e-2) ** 3
    return rates / rates.mean()


def transition_matrices(q, rates, branch_lengths):
    over_branches = jax.vmap(lambda t, r: expm(q * t * r), in_axes=(0, None))
    return jax.vmap(over_branches, in_axes=(None, 0))(branch_lengths, rates)


def prune(p, tips, pi):
    """Log likelihood per site for one rate category; p is (branches, 4, 4)."""
    n_sites = tips.shape[1]
    partials = jnp.zeros((N_NODES, n_sites, 4)).at[:N_TAXA].set(tips)
    log_scale = jnp.zeros(n_sites)

    def visit(carry, triple):
        partials, log_scale = carry
        parent, left, right = triple
        up_left = jnp.einsum("ij,sj->si", p[left], partials[left])
        up_right = jnp.einsum("ij,sj->si", p[right], partials[right])
        joint = up_left * up_right
        biggest = jnp.max(joint, axis=-1)
        partials = partials.at[parent].set(joint / biggest[:, None])
        return (partials, log_scale + jnp.log(biggest)), None

    (partials, log_scale), _ = jax.lax.scan(visit, (partials, log_scale), jnp.asarray(POSTORDER))
    return jnp.log(partials[-1] @ pi) + log_scale


def log_likelihood(params, tips, pattern_counts):
    q, pi = rate_matrix(params["exchange"], params["freq"])
    rates = discrete_rates(params["log_alpha"])
    lengths = jax.nn.softplus(params["branch"])
    p = transition_matrices(q, rates, lengths)
    per_category = jax.vmap(prune, in_axes=(0, None, None))(p, tips, pi)
    per_site = logsumexp(per_category, axis=0) - jnp.log(N_CATEGORIES)
    return jnp.dot(pattern_counts, per_site)


def log_prior(params):
    lengths = jax.nn.softplus(params["branch"])
    branch = jax.scipy.stats.expon.logpdf(lengths, scale=0.1).sum()
    shape, rate = 2.0, 2.0
    a = jnp.exp(params["log_alpha"])
    alpha = shape * jnp.log(rate) - gammaln(shape) + (shape - 1) * jnp.log(a) - rate * a
    return branch + alpha + jax.scipy.stats.norm.logpdf(params["exchange"]).sum()


def posterior_report(params, tips, pattern_counts):
    def objective(p):
        return log_likelihood(p, tips, pattern_counts) + log_prior(p)

    value, grads = jax.value_and_grad(objective)(params)
    direction = jax.tree.map(jnp.zeros_like, params) | {"branch": jnp.ones_like(params["branch"])}
    _, curvature = jax.jvp(jax.grad(objective), (params,), (direction,))
    return value, grads, curvature["branch"]


def build():
    rng = np.random.default_rng(11)
    sequences = rng.integers(0, 4, size=(N_TAXA, 12))
    tips = jax.nn.one_hot(jnp.asarray(sequences), 4)
    params = {
        "exchange": jnp.array([0.1, 0.9, 0.0, 0.2, 1.1, 0.0]),
        "freq": jnp.array([0.1, -0.1, 0.0, 0.2]),
        "log_alpha": jnp.array(-0.3),
        "branch": jnp.full((N_NODES - 1,), -1.5),
    }
    return posterior_report, (params, tips, jnp.asarray(rng.integers(1, 9, 12), jnp.float32))
