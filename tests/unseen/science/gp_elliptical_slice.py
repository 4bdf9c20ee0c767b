"""Elliptical slice sampling of a latent Gaussian process for count data, with a random-walk on hyperparameters."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.special import gammaln

LIBRARY = "jax"
KIND = "sampler"
SOURCE = "self"

JITTER = 1e-4
NUM_SAMPLES = 12
MAX_SHRINKS = 50


def matern52(x1, x2, log_ell, log_amp):
    diff = (x1[:, None, :] - x2[None, :, :]) / jnp.exp(log_ell)
    r = jnp.sqrt(5.0 * jnp.sum(diff**2, -1) + 1e-12)
    return jnp.exp(2.0 * log_amp) * (1.0 + r + r**2 / 3.0) * jnp.exp(-r)


def gram_cholesky(x, theta):
    gram = matern52(x, x, theta["log_ell"], theta["log_amp"])
    return jnp.linalg.cholesky(gram + JITTER * jnp.eye(x.shape[0]))


def negbin_loglik(f, y, log_r):
    """Negative binomial with mean exp(f) and dispersion r."""
    r = jnp.exp(log_r)
    log_total = jnp.logaddexp(f, log_r)
    terms = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0) + r * (log_r - log_total) + y * (f - log_total)
    return jnp.sum(terms)


def gp_logprior(f, chol):
    z = solve_triangular(chol, f, lower=True)
    return -0.5 * z @ z - jnp.sum(jnp.log(jnp.diag(chol)))


def hyper_logprior(theta):
    lp = jax.scipy.stats.norm.logpdf(theta["log_ell"], loc=-1.0, scale=0.7).sum()
    lp += jax.scipy.stats.norm.logpdf(theta["log_amp"], 0.0, 0.5)
    return lp + jax.scipy.stats.cauchy.logpdf(theta["log_r"], 1.0, 1.0)


def elliptical_slice(key, f, chol, loglik):
    k_nu, k_u, k_theta, k_loop = jax.random.split(key, 4)
    nu = chol @ jax.random.normal(k_nu, f.shape)
    threshold = loglik(f) - jax.random.exponential(k_u)
    angle = jax.random.uniform(k_theta, maxval=2 * jnp.pi)

    def propose(angle):
        return f * jnp.cos(angle) + nu * jnp.sin(angle)

    def cond(s):
        return jnp.logical_and(loglik(propose(s["angle"])) <= threshold, s["n"] < MAX_SHRINKS)

    def shrink(s):
        lo = jnp.where(s["angle"] < 0, s["angle"], s["lo"])
        hi = jnp.where(s["angle"] < 0, s["hi"], s["angle"])
        key, sub = jax.random.split(s["key"])
        return dict(key=key, angle=jax.random.uniform(sub, minval=lo, maxval=hi), lo=lo, hi=hi, n=s["n"] + 1)

    init = dict(key=k_loop, angle=angle, lo=angle - 2 * jnp.pi, hi=angle, n=jnp.int32(0))
    final = jax.lax.while_loop(cond, shrink, init)
    return propose(final["angle"]), final["n"]


def perturb(key, theta, scale=0.15):
    leaves, treedef = jax.tree_util.tree_flatten(theta)
    keys = jax.random.split(key, len(leaves))
    moved = [x + scale * jax.random.t(k, 5.0, jnp.shape(x)) for k, x in zip(keys, leaves)]
    return jax.tree_util.tree_unflatten(treedef, moved)


def hyper_step(key, f, theta, x, y):
    def logpost(th):
        return gp_logprior(f, gram_cholesky(x, th)) + negbin_loglik(f, y, th["log_r"]) + hyper_logprior(th)

    k_prop, k_acc = jax.random.split(key)
    proposal = perturb(k_prop, theta)
    log_alpha = logpost(proposal) - logpost(theta)
    accept = -jax.random.exponential(k_acc) < jnp.nan_to_num(log_alpha, nan=-jnp.inf)
    return jax.tree.map(lambda new, old: jnp.where(accept, new, old), proposal, theta), accept


def predict(f, chol, theta, x, x_new):
    cross = matern52(x_new, x, theta["log_ell"], theta["log_amp"])
    return jnp.exp(cross @ cho_solve((chol, True), f))


def sample_posterior(key, x, y, x_new, theta):
    def kernel(state, key):
        f, theta = state
        k_f, k_t = jax.random.split(key)
        theta, accepted = hyper_step(k_t, f, theta, x, y)
        chol = gram_cholesky(x, theta)
        f, shrinks = elliptical_slice(k_f, f, chol, lambda g: negbin_loglik(g, y, theta["log_r"]))
        return (f, theta), (predict(f, chol, theta, x, x_new), shrinks, accepted, theta)

    start = (jnp.log(y + 0.5), theta)
    _, (rates, shrinks, accepted, thetas) = jax.lax.scan(kernel, start, jax.random.split(key, NUM_SAMPLES))
    band = jnp.percentile(rates, jnp.array([5.0, 50.0, 95.0]), axis=0)
    return band, jnp.mean(accepted), jnp.sum(shrinks), thetas


def build():
    kx, ky, ks = jax.random.split(jax.random.key(99), 3)
    x = jax.random.uniform(kx, (18, 2))
    y = jax.random.poisson(ky, jnp.exp(1.0 + jnp.sin(5 * x[:, 0]))).astype(jnp.float32)
    x_new = jnp.stack([jnp.linspace(0, 1, 9), jnp.full(9, 0.5)], axis=1)
    theta = {"log_ell": jnp.array([-1.0, -0.5]), "log_amp": jnp.array(0.0), "log_r": jnp.array(1.0)}
    return sample_posterior, (ks, x, y, x_new, theta)
