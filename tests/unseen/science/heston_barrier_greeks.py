"""Monte Carlo price and pathwise Greeks of a barrier call under Heston, with a Black-Scholes control variate."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.scipy.stats import norm

LIBRARY = "jax"
KIND = "grad"
SOURCE = "self"

N_PATHS = 512
N_STEPS = 32
SMOOTHING = 0.5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Market:
    spot: jax.Array
    rate: jax.Array
    v0: jax.Array
    kappa: jax.Array
    theta: jax.Array
    xi: jax.Array
    rho: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Option:
    strike: jax.Array
    barrier: jax.Array
    maturity: jax.Array


def black_scholes_call(spot, strike, rate, vol, maturity):
    total = vol * jnp.sqrt(maturity)
    d1 = (jnp.log(spot / strike) + (rate + 0.5 * vol**2) * maturity) / total
    d2 = d1 - total
    return spot * norm.cdf(d1) - strike * jnp.exp(-rate * maturity) * norm.cdf(d2)


def correlated_normals(key, rho):
    half = random.normal(key, (N_STEPS, N_PATHS // 2, 2))
    z = jnp.concatenate([half, -half], axis=1)  # antithetic
    w_s = z[..., 0]
    w_v = rho * z[..., 0] + jnp.sqrt(1.0 - jnp.square(rho)) * z[..., 1]
    return w_s, w_v


def simulate(market, option, key):
    dt = option.maturity / N_STEPS
    w_s, w_v = correlated_normals(key, market.rho)
    log_barrier = jnp.log(option.barrier)

    def euler(carry, dw):
        x, v, x_flat, log_survival = carry
        dws, dwv = dw
        vp = jnp.maximum(v, 1e-8)
        x_new = x + (market.rate - 0.5 * vp) * dt + jnp.sqrt(vp * dt) * dws
        v_new = v + market.kappa * (market.theta - vp) * dt + market.xi * jnp.sqrt(vp * dt) * dwv
        x_flat = x_flat + (market.rate - 0.5 * market.theta) * dt + jnp.sqrt(market.theta * dt) * dws
        # Brownian bridge crossing probability for an up-and-out barrier
        gap = jax.nn.relu(log_barrier - x) * jax.nn.relu(log_barrier - x_new)
        log_survival += jnp.log1p(-jnp.exp(-2.0 * gap / (vp * dt) - 1e-6))
        return (x_new, v_new, x_flat, log_survival), None

    x0 = jnp.broadcast_to(jnp.log(market.spot), (N_PATHS,))
    start = (x0, jnp.full((N_PATHS,), market.v0), x0, jnp.zeros(N_PATHS))
    (x, _, x_flat, log_survival), _ = lax.scan(euler, start, (w_s, w_v))
    return jnp.exp(x), jnp.exp(x_flat), jnp.exp(log_survival)


def smooth_payoff(s, strike):
    return SMOOTHING * jax.nn.softplus((s - strike) / SMOOTHING)


def price(market, option, key):
    s_t, s_flat, survival = simulate(market, option, key)
    discount = jnp.exp(-market.rate * option.maturity)
    payoff = discount * smooth_payoff(s_t, option.strike) * survival
    control = discount * jnp.maximum(s_flat - option.strike, 0.0)
    exact = black_scholes_call(market.spot, option.strike, market.rate, jnp.sqrt(market.theta), option.maturity)
    cov = jnp.cov(payoff, control)
    beta = lax.stop_gradient(cov[0, 1] / cov[1, 1])
    adjusted = payoff - beta * (control - exact)
    return jnp.mean(adjusted), jnp.std(adjusted, ddof=1) / jnp.sqrt(N_PATHS)


def greeks(market, option, key):
    (value, stderr), sens = jax.value_and_grad(price, has_aux=True)(market, option, key)

    def delta_of_spot(spot):
        bumped = Market(spot, market.rate, market.v0, market.kappa, market.theta, market.xi, market.rho)
        return jax.grad(lambda m: price(m, option, key)[0])(bumped).spot

    _, gamma = jax.jvp(delta_of_spot, (market.spot,), (jnp.ones_like(market.spot),))
    return {
        "price": value,
        "stderr": stderr,
        "delta": sens.spot,
        "gamma": gamma,
        "vega": 2.0 * jnp.sqrt(market.v0) * sens.v0,
        "rho": sens.rate,
    }


def build():
    market = Market(*map(jnp.float32, (100.0, 0.03, 0.04, 1.5, 0.05, 0.4, -0.6)))
    option = Option(*map(jnp.float32, (100.0, 140.0, 0.75)))
    return greeks, (market, option, random.PRNGKey(2024))
