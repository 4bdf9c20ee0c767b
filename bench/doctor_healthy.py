"""Healthy functions for `bench/doctor.py`, which look like the faulty ones of `doctor_cases.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import _P, _V, healthy, total
from jax import lax
from jax.scipy.special import erfc, expit, logsumexp, xlogy


@healthy()
def h_softplus(x):
    return jnp.logaddexp(x, 0.0)


@healthy(of=jax.grad)
def h_softplus_slope(x):
    return jax.nn.softplus(x)


@healthy()
def h_sigmoid(x):
    return jax.nn.sigmoid(x)


@healthy()
def h_log_sigmoid(x):
    return jax.nn.log_sigmoid(x)


@healthy()
def h_expit(x):
    return expit(-x)


@healthy(_V)
def h_log_sum_exp(x):
    return logsumexp(x)


@healthy(_V)
def h_shifted_log_sum_exp(x):
    m = jnp.max(x)
    return m + jnp.log(jnp.sum(jnp.exp(x - m)))


@healthy(_V)
def h_softmax(x):
    return jax.nn.softmax(x)


@healthy(_V)
def h_shifted_softmax(x):
    e = jnp.exp(x - jnp.max(x))
    return e / jnp.sum(e)


@healthy(_V)
def h_log_softmax(x):
    return jax.nn.log_softmax(x)


@healthy()
def h_tanh(x):
    return jnp.tanh(x)


@healthy()
def h_sinh(x):
    return jnp.sinh(x)


@healthy()
def h_log1p(x):
    return jnp.log1p(x)


@healthy()
def h_expm1(x):
    return jnp.expm1(x)


@healthy()
def h_decay(x):
    return -jnp.expm1(-x)


@healthy(0.25)
def h_logit(p):
    return jnp.log(p) - jnp.log1p(-p)


@healthy()
def h_root_step(x):
    return 1 / (jnp.sqrt(x + 1) + jnp.sqrt(x))


@healthy(3.0, 4.0)
def h_difference(x, y):
    return x - y


@healthy(3.0, 2.0)
def h_product_of_differences(x, y):
    return (x - y) * (x + y)


@healthy(_V)
def h_variance(x):
    return jnp.var(x)


@healthy(_V)
def h_two_pass_variance(x):
    d = x - jnp.mean(x)
    return jnp.mean(d * d)


@healthy(_V)
def h_layer_norm(x):
    d = x - jnp.mean(x)
    return d / jnp.sqrt(jnp.mean(d * d) + 1e-5)


@healthy(_V)
def h_rms_norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x) + 1e-6)


@healthy()
def h_versine(x):
    return 2 * jnp.sin(x / 2) ** 2


@healthy()
def h_cosine(x):
    return jnp.cos(x)


@healthy()
def h_sine_plus_one(x):
    return 1 + 0.5 * jnp.sin(x)


@healthy()
def h_erfc(x):
    return erfc(x)


@healthy(_P)
def h_entropy(p):
    return -jnp.sum(xlogy(p, p))


@healthy(_V, of=total)
def h_double_where(x):
    safe = jnp.where(x > 0, x, 1.0)
    return jnp.where(x > 0, jnp.sqrt(safe), 0.0)


@healthy(_V, of=jax.grad)
def h_norm_with_eps(x):
    return jnp.sqrt(jnp.sum(x * x) + 1e-6)


@healthy(_V, of=jax.grad)
def h_sum_of_squares(x):
    return jnp.sum(x * x)


@healthy(_V)
def h_norm(x):
    return jnp.linalg.norm(x)


@healthy(_V, _P)
def h_squared_error(x, y):
    return jnp.mean((x - y) ** 2)


@healthy(_V, _P, of=jax.grad)
def h_squared_error_slope(x, y):
    return jnp.mean((x - y) ** 2)


@healthy(_V, _P)
def h_dot(x, y):
    return jnp.dot(x, y)


@healthy(np.eye(3, dtype=np.float32) + 0.25, np.ones(3, np.float32))
def h_matrix_vector(a, x):
    return a @ x


@healthy(np.eye(3, dtype=np.float32) * 0.5, np.ones(3, np.float32))
def h_layer(w, x):
    return jnp.tanh(w @ x)


@healthy(np.eye(3, dtype=np.float32) * 0.5, np.ones(3, np.float32), of=total)
def h_layer_slope(w, x):
    return jnp.tanh(w @ x)


@healthy(_V)
def h_relu(x):
    return jax.nn.relu(x)


@healthy(_V, of=total)
def h_relu_slope(x):
    return jax.nn.relu(x) ** 2


@healthy(_V)
def h_gelu(x):
    return jax.nn.gelu(x)


@healthy(_V)
def h_silu(x):
    return jax.nn.silu(x)


@healthy(_V, of=total)
def h_huber_slope(x):
    a = jnp.abs(x)
    return jnp.where(a < 1, 0.5 * x * x, a - 0.5)


@healthy(_V)
def h_clip(x):
    return jnp.clip(x, -1.0, 1.0)


@healthy()
def h_gauss(x):
    return jnp.exp(-0.5 * x * x)


@healthy()
def h_lorentz(x):
    return 1 / (1 + x * x)


@healthy()
def h_polynomial(x):
    return 1 + x * (0.5 + x * (0.25 + x * 0.125))


@healthy()
def h_cubic(x):
    return x**3 - 2 * x + 1


@healthy(2.0, 3.0)
def h_power(x, y):
    return jnp.power(jnp.abs(x) + 1, jnp.tanh(y))


@healthy(3.0, 4.0)
def h_angle(y, x):
    return jnp.arctan2(y, x)


@healthy()
def h_root(x):
    return jnp.sqrt(jnp.abs(x))


@healthy(of=jax.grad)
def h_root_slope(x):
    return jnp.sqrt(1 + x * x)


@healthy(_V)
def h_mean(x):
    return jnp.mean(x)


@healthy(_V)
def h_cumulated(x):
    return jnp.cumsum(jnp.abs(x))


@healthy(_V)
def h_weighted(x):
    w = jax.nn.softmax(x)
    return jnp.sum(w * x)


@healthy(_V, of=jax.grad)
def h_cross_entropy(x):
    return -jax.nn.log_softmax(x)[0]


@healthy(_V)
def h_masked_softmax(x):
    masked = jnp.where(jnp.arange(4) < 3, x, -1e9)
    return jax.nn.softmax(masked)


@healthy(1.0)
def h_newton_root(a):
    a = jnp.abs(a) + 0.5
    return lax.fori_loop(0, 12, lambda _, x: 0.5 * (x + a / x), a)


@healthy(_V)
def h_scan(x):
    return lax.scan(lambda c, v: (0.9 * c + jnp.abs(v), c), jnp.float32(0), x)[0]


@healthy(0.5, 1.5)
def h_interpolated(t, x):
    return x + jnp.tanh(t) * 0.25 * x


@healthy(_P, _P[::-1].copy())
def h_divergence(p, q):
    return jnp.sum(xlogy(p, p) - xlogy(p, jnp.abs(q) + 1e-3))


@healthy(_V)
def h_sorted(x):
    return jnp.sort(x)


@healthy(1.0)
def h_safe_quotient(x):
    return jnp.where(x == 0, 1.0, jnp.sin(x) / jnp.where(x == 0, 1.0, x))


@healthy(2.0)
def h_temperature(c):
    return c * 1.8 + 32


@healthy(_V)
def h_attention(x):
    scores = jnp.outer(x, x) / 2.0
    return jax.nn.softmax(scores, axis=-1) @ x
