"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: losses, statistics, finance, geometry, physics,
signals and optimisation, in four floating types.

37 with a known fault on the line marked `# <-`, and 33 healthy ones. Sources: B, Bishop, Pattern Recognition and Machine Learning,
2006; D, the manuals of deep-learning libraries on losses (numerical stability of cross-entropy, triplet, contrastive and VAE losses); F, Hull,
Options, Futures and Other Derivatives; G, Grassia, Practical Parameterization of Rotations Using the Exponential Map, 1998; H, Higham,
Accuracy and Stability of Numerical Algorithms, 2002; K, Kittel and Kroemer, Thermal Physics, 1980; O, Oppenheim and Schafer, Discrete-Time Signal
Processing; R, Press et al., Numerical Recipes, 2007; V, Boyd and Vandenberghe, Convex Optimization, 2004.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax.scipy.special import gammaln, log_ndtr, logsumexp, xlogy

ROUND = "rounding"
HALF, BRAIN, DOUBLE = np.float16, jnp.bfloat16, np.float64


def _points(*numbers: float) -> list[tuple[float]]:
    return [(float(x),) for x in numbers]


def _array(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def _log_sum_exp(x):
    return np.max(x) + np.log(np.sum(np.exp(x - np.max(x))))


def _softmax(x):
    e = np.exp(x - np.max(x))
    return e / np.sum(e)


_SCORES = _array(0.2, 0.9, -0.3, 0.1)


# ---------------------------------------------------------------- faulty: losses and statistics


@faulty(UNDER, OVER, NAN, args=(3.0, 10.0), textbook=lambda lam, k: k * np.log(lam) - lam,
        points=[(3, 10), (50, 20), (120, 5), (200, 100), (0.01, 30)])  # fmt: skip
def g_poisson_log_likelihood(lam, k):  # B 2.3
    return jnp.log(jnp.exp(-lam) * lam**k)  # <-


@faulty(NAN, args=(0.2, 0.7),
        textbook=lambda p, q: (p * np.log(p / q) if p > 0 else 0) + ((1 - p) * np.log((1 - p) / (1 - q)) if p < 1 else 0),
        points=[(0.2, 0.7), (0, 0.3), (1, 0.25), (0.9, 0.1)])  # fmt: skip
def g_bernoulli_divergence(p, q):  # B 1.6
    return p * jnp.log(p / q) + (1 - p) * jnp.log((1 - p) / (1 - q))  # <-


@faulty(NAN, OVER, args=(_array(1, 2, 3), _array(1, 2.5, 2)), of=jax.grad,
        textbook=lambda a, b: (a - b) / max(np.linalg.norm(a - b), 1e-300),
        points=[(_array(1, 2, 3), _array(1, 2.5, 2)), (_array(1, 2, 3), _array(1, 2, 3)), (_array(0, 0, 0), _array(3, 0, 4))])  # fmt: skip
def g_triplet_slope(anchor, other):  # D
    return jnp.sqrt(jnp.sum((anchor - other) ** 2))  # <-


@faulty(OVER, NAN, UNDER, args=(_SCORES,), textbook=lambda s: _log_sum_exp(s / 0.07) - s[0] / 0.07,
        points=[(_SCORES,), (_array(9, -2, 8, 3),), (_array(-9, -8, -10, -7),), (_array(-5, 6, 2, 1),)])  # fmt: skip
def g_info_nce(scores):  # D
    e = jnp.exp(scores / 0.07)  # <-
    return -jnp.log(e[0] / jnp.sum(e))


@faulty(NAN, OVER, args=(_array(0.5, 0, 2, 0),), of=jax.grad, textbook=lambda x: np.where(x > 0, 1 / np.where(x > 0, x, 1), 0),
        points=[(_array(0.5, 0, 2, 0),), (_array(0, 0, 0, 1),)])  # fmt: skip
def g_masked_log_slope(x):  # D
    return jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0))  # <-


@faulty(OVER, UNDER, args=(_array(1, 2, 3, 4),), textbook=lambda x: np.sqrt(np.mean(x * x)), dtype=HALF,
        points=[(_array(1, 2, 3, 4),), (_array(300, 200, 100, 400),), (_array(1000, 3, 2000, 1),)])  # fmt: skip
def g_rms_in_half(x):  # D
    return jnp.sqrt(jnp.mean(x * x))  # <-


@faulty(SENSE, CANCEL, UNDER, textbook=lambda x: np.log(np.vectorize(math.erfc)(x / math.sqrt(2)) / 2),
        points=_points(-3, -1, 0.1, 1, 3, 5, 6, 9, 12, 20))  # fmt: skip
def g_log_normal_survival(x):  # B 2.3
    return jnp.log(1 - jax.scipy.stats.norm.cdf(x))  # <-


@faulty(CANCEL, SENSE, ROUND, args=(100.0,), textbook=np.log, points=_points(2, 10, 100, 1e3, 1e4, 1e6))
def g_log_rising_step(x):  # R 6.1
    return gammaln(x + 1) - gammaln(x)  # <-


@faulty(
    CANCEL,
    SENSE,
    OVER,
    textbook=lambda x: x * x / (np.sqrt(1 + x * x) + 1),
    points=_points(1e-5, 1e-3, 0.01, 0.1, 1, 10, 1e4),
)
def g_pseudo_huber(x):  # D
    return jnp.sqrt(1 + x**2) - 1  # <-


def _gaussian_divergence(v):
    return np.where(np.abs(v) < 0.01, v * v / 4 * (1 + v / 3 + v * v / 12), 0.5 * (np.exp(v) - 1 - v))


@faulty(
    CANCEL, SENSE, args=(0.1,), textbook=_gaussian_divergence, points=_points(-3, -0.1, -1e-3, 1e-4, 1e-3, 0.05, 1, 4)
)
def g_vae_divergence(log_variance):  # D
    return -0.5 * (1 + log_variance - jnp.exp(log_variance))  # <-


@faulty(CANCEL, SENSE, args=(2.0, 2.01), textbook=lambda a, b: ((a - b) / (np.sqrt(a) + np.sqrt(b))) ** 2,
        points=[(2, 2.01), (1, 1.0001), (100, 100.01), (0.3, 5)])  # fmt: skip
def g_wasserstein(a, b):  # of two normal distributions with variances a and b
    return a + b - 2 * jnp.sqrt(a * b)  # <-


@faulty(UNDER, NAN, OVER, args=(_SCORES,), of=jax.grad, textbook=lambda x: _softmax(x) - np.array([0, 1, 0, 0]),
        points=[(_SCORES,), (_array(0, -110, 0, 3),), (_array(200, 1, 2, 3),)])  # fmt: skip
def g_cross_entropy_slope(logits):  # D
    return -jnp.log(jax.nn.softmax(logits)[1])  # <-


@faulty(UNDER, NAN, args=(_array(0.1, 0.2, 0.3, 0.4),), textbook=lambda p: np.cumsum(np.log(p)),
        points=[(_array(0.1, 0.2, 0.3, 0.4),), (_array(1e-15, 1e-14, 1e-16, 1e-13),)])  # fmt: skip
def g_path_log_likelihood(p):  # R 16.3
    return jnp.log(jnp.cumprod(p))  # <-


@faulty(CANCEL, SENSE, args=(_array(100.5, 101, 102.25, 103), _array(1, 2, 4, 5)),
        textbook=lambda x, y: np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2),
        points=[(_array(100.5, 101, 102.25, 103), _array(1, 2, 4, 5)), (_array(1, 2, 3, 4), _array(5, 3, 2, 0)),
                (_array(1000, 1001, 1003, 1002), _array(20, 19, 18, 22))])  # fmt: skip
def g_regression_slope(x, y):  # R 15.2
    n = x.size
    return (n * jnp.sum(x * y) - jnp.sum(x) * jnp.sum(y)) / (n * jnp.sum(x * x) - jnp.sum(x) ** 2)  # <-


# ---------------------------------------------------------------- faulty: finance


@faulty(
    CANCEL,
    SENSE,
    args=(0.004,),
    textbook=lambda r: r / -np.expm1(-360 * np.log1p(r)),
    points=_points(1e-7, 1e-5, 1e-4, 0.004, 0.05, 0.5),
)
def g_mortgage_payment(rate):  # F 4
    return rate / (1 - (1 + rate) ** -360)  # <-


@faulty(CANCEL, SENSE, ROUND, args=(100.01, 100.0), textbook=lambda a, b: np.log1p((a - b) / b),
        points=[(100.01, 100), (100, 99.999), (1.0001, 1), (50, 20), (1, 30)])  # fmt: skip
def g_log_return(price, before):  # F 13
    return jnp.log(price / before)  # <-


@faulty(CANCEL, SENSE, args=(0.05, 0.049), textbook=lambda r, q: np.exp(q) * np.expm1(r - q),
        points=[(0.05, 0.049), (0.05, 0.04999), (0.3, 0.1), (1e-4, 1e-5)])  # fmt: skip
def g_carry(rate, dividend):  # F 5
    return jnp.exp(rate) - jnp.exp(dividend)  # <-


@faulty(CANCEL, SENSE, args=(0.01,), textbook=np.expm1, points=_points(-3, -1e-3, 1e-5, 1e-3, 0.1, 2))
def g_discount_to_yield(x):  # F 4
    price = jnp.exp(-x)
    return (1 - price) / price  # <-


# ---------------------------------------------------------------- faulty: geometry


def _less_sine(t):
    return np.where(t < 0.1, 1 / 6 - t**2 / 120 + t**4 / 5040, (t - np.sin(t)) / np.where(t < 0.1, 1, t) ** 3)


@faulty(CANCEL, SENSE, NAN, textbook=_less_sine, points=_points(1e-3, 0.01, 0.1, 0.5, 1, 3))
def g_rotation_integral(angle):  # G
    return (angle - jnp.sin(angle)) / angle**3  # <-


@faulty(
    NAN,
    args=(0.3, 0.5),
    textbook=lambda t, a: np.sin(t * a) / np.sin(a) if a else t,
    points=[(0.3, 0.5), (0.3, 0), (0.9, 1e-4), (0.5, 2)],
)
def g_slerp_weight(t, angle):  # G
    return jnp.sin(t * angle) / jnp.sin(angle)  # <-


@faulty(CANCEL, SENSE, args=(10.0, 0.1), textbook=lambda r, a: a * a / (r + np.sqrt((r - a) * (r + a))),
        points=[(10, 0.1), (1, 1e-3), (5, 4), (100, 99)])  # fmt: skip
def g_cap_height(radius, half):  # H 1.8
    return radius - jnp.sqrt(radius**2 - half**2)  # <-


@faulty(CANCEL, SENSE, args=(_array(1, 2, 3, 4), _array(1.01, 2, 3, 4.02)), textbook=lambda x, y: np.sum((x - y) ** 2),
        points=[(_array(1, 2, 3, 4), _array(1.01, 2, 3, 4.02)), (_array(10, 20, 0, 5), _array(10.1, 20, 0, 5)),
                (_array(1, 0, 2, 1), _array(-3, 1, 0, 2))])  # fmt: skip
def g_squared_distance(x, y):  # D
    return jnp.dot(x, x) - 2 * jnp.dot(x, y) + jnp.dot(y, y)  # <-


@faulty(OVER, UNDER, args=(np.diag(_array(1, 2, 3)) + 0.1,), textbook=lambda a: np.linalg.slogdet(a)[1],
        points=[(np.diag(_array(1, 2, 3)) + 0.1,), (1e14 * np.diag(_array(1, 2, 3)),), (1e-14 * np.diag(_array(1, 2, 3)),)])  # fmt: skip
def g_log_determinant(a):  # B 2.3
    return jnp.log(jnp.linalg.det(a))  # <-


# ---------------------------------------------------------------- faulty: physics


def _fermi_entropy(x):
    a = np.abs(x)
    f = np.exp(-a) / (1 + np.exp(-a))
    return np.log1p(np.exp(-a)) + a * f


@faulty(NAN, OVER, UNDER, textbook=_fermi_entropy, points=_points(-120, -60, -3, 0.5, 2, 10, 50, 120))
def g_fermi_entropy(x):  # K 7
    f = 1 / (jnp.exp(x) + 1)
    return -(f * jnp.log(f) + (1 - f) * jnp.log(1 - f))  # <-


@faulty(
    OVER,
    NAN,
    CANCEL,
    SENSE,
    textbook=lambda x: (x / 2 / np.sinh(x / 2)) ** 2,
    points=_points(1e-4, 1e-3, 0.1, 1, 5, 20, 60, 95),
)
def g_einstein_heat(x):  # K 4
    return x**2 * jnp.exp(x) / (jnp.exp(x) - 1) ** 2  # <-


def _langevin(x):
    return np.where(np.abs(x) < 0.05, x / 3 - x**3 / 45 + 2 * x**5 / 945, 1 / np.tanh(x) - 1 / x)


@faulty(CANCEL, SENSE, NAN, textbook=_langevin, points=_points(-2, 1e-3, 0.01, 0.1, 0.5, 1, 5, 100))
def g_langevin(x):  # K 3
    return 1 / jnp.tanh(x) - 1 / x  # <-


@faulty(
    CANCEL,
    SENSE,
    ROUND,
    args=(0.01,),
    textbook=lambda b: np.expm1(np.arctanh(b)),
    points=_points(-0.5, 1e-6, 1e-4, 0.01, 0.3, 0.9),
)
def g_redshift(beta):  # of special relativity
    return jnp.sqrt((1 + beta) / (1 - beta)) - 1  # <-


@faulty(
    OVER,
    UNDER,
    NAN,
    args=(2.0, 3.0),
    textbook=lambda a, b: a / (1 + a / b),
    points=[(2, 3), (1e25, 1e25), (1e-30, 1e-30), (1e22, 1)],
)
def g_reduced_mass(a, b):  # H 27.8
    return a * b / (a + b)  # <-


@faulty(
    OVER,
    textbook=lambda x: np.abs(x) + np.log1p(np.exp(-np.abs(x)) + np.exp(-2 * np.abs(x))),
    points=_points(-120, -3, 0.1, 1, 10, 95, 200),
)
def g_spin_one_free_energy(x):  # K 3
    return jnp.log(1 + 2 * jnp.cosh(x))  # <-


# ---------------------------------------------------------------- faulty: signals and optimisation


@faulty(
    UNDER, OVER, args=(0.5,), textbook=lambda x: 20 * np.log10(np.abs(x)), points=_points(0.5, -3, 1e-25, 1e25, 1e-10)
)
def g_decibels(x):  # O
    return 10 * jnp.log10(x**2)  # <-


@faulty(NAN, args=(0.3,), textbook=np.sinc, points=_points(-1.5, 0, 1e-4, 0.3, 0.5, 2.5))
def g_interpolation_kernel(x):  # O
    return jnp.sin(jnp.pi * x) / (jnp.pi * x)  # <-


@faulty(OVER, textbook=lambda x: 1 / (1 + np.exp(-10 * x)), points=_points(-20, -1, 0, 0.1, 1, 8, 9, 30), of=jax.grad)
def g_sharp_softplus_slope(x):  # V
    return jnp.log(1 + jnp.exp(10 * x)) / 10  # <-


@faulty(OVER, NAN, args=(_SCORES,), of=jax.grad, textbook=lambda x: _softmax(50 * x),
        points=[(_SCORES,), (_array(2, 1.99, -3, 1),), (_array(-3, -4, -2, -2.5),)])  # fmt: skip
def g_smooth_maximum_slope(x):  # V
    return jnp.log(jnp.sum(jnp.exp(50 * x))) / 50  # <-


# ---------------------------------------------------------------- faulty: other types


@faulty(CANCEL, SENSE, args=(np.array([1e4, 1e4 + 1, 1e4 + 3, 1e4 + 2]),), textbook=np.var, dtype=DOUBLE,
        points=[(np.array([1e4, 1e4 + 1, 1e4 + 3, 1e4 + 2]),), (np.array([1e8 + 1, 1e8 + 2, 1e8 - 3, 1e8]),)])  # fmt: skip
def g_variance_in_double(x):  # H 1.9
    return jnp.sum(x**2) / 4 - (jnp.sum(x) / 4) ** 2  # <-


@faulty(
    CANCEL, SENSE, NAN, textbook=lambda x: np.expm1(x) / x, dtype=DOUBLE, points=_points(1e-13, 1e-9, 1e-5, 0.1, 1, 10)
)
def g_relative_exponential_in_double(x):  # H 1.14
    return (jnp.exp(x) - 1) / x  # <-


@faulty(
    OVER,
    NAN,
    args=(_SCORES,),
    textbook=_softmax,
    dtype=BRAIN,
    points=[(_SCORES,), (_array(100, 1, 95, 3),), (_array(-120, -110, -115, -119),)],
)
def g_softmax_in_bfloat16(x):  # D
    e = jnp.exp(x)  # <-
    return e / jnp.sum(e)


@faulty(OVER, SENSE, textbook=lambda x: np.logaddexp(x, 0), dtype=HALF, points=_points(-8, -3, 0.5, 3, 10, 12, 200))
def g_softplus_in_half(x):  # D
    return jnp.log(1 + jnp.exp(x))  # <-


# ---------------------------------------------------------------- healthy


@healthy(3.0, 10.0)
def gh_poisson(lam, k):
    return xlogy(k, lam) - lam


@healthy(0.2, 0.7)
def gh_bernoulli_cross_entropy(p, q):
    return -(xlogy(p, q) + jax.scipy.special.xlog1py(1 - p, -q))


@healthy(_array(1, 2, 3), _array(1, 2.5, 2), of=jax.grad)
def gh_triplet_slope(anchor, other):
    return jnp.sum((anchor - other) ** 2)


@healthy(_SCORES)
def gh_info_nce(scores):
    return logsumexp(scores / 0.07) - scores[0] / 0.07


@healthy(_array(0.5, 0, 2, 0), of=jax.grad)
def gh_masked_log_slope(x):
    return jnp.sum(jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0))


@healthy(_array(1, 2, 3, 4))
def gh_rms_norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x) + 1e-6)


@healthy()
def gh_log_normal_survival(x):
    return log_ndtr(-x)


@healthy()
def gh_pseudo_huber(x):
    return x * x / (jnp.hypot(x, 1.0) + 1)


@healthy(of=jax.grad)
def gh_pseudo_huber_slope(x):
    return jnp.sqrt(1 + x**2)


@healthy(2.0, 2.01)
def gh_wasserstein(a, b):
    return ((a - b) / (jnp.sqrt(a) + jnp.sqrt(b))) ** 2


@healthy(_SCORES, of=jax.grad)
def gh_cross_entropy_slope(logits):
    return -jax.nn.log_softmax(logits)[1]


@healthy(_array(0.1, 0.2, 0.3, 0.4))
def gh_path_log_likelihood(p):
    return jnp.cumsum(jnp.log(p))


@healthy(_array(100.5, 101, 102.25, 103), _array(1, 2, 4, 5))
def gh_regression_slope(x, y):
    dx = x - jnp.mean(x)
    return jnp.sum(dx * (y - jnp.mean(y))) / jnp.sum(dx * dx)


@healthy(0.004)
def gh_mortgage_payment(rate):
    return rate / -jnp.expm1(-360 * jnp.log1p(rate))


@healthy(100.01, 100.0)
def gh_relative_return(price, before):
    return (price - before) / before


@healthy(0.05, 0.049)
def gh_carry(rate, dividend):
    return jnp.exp(dividend) * jnp.expm1(rate - dividend)


@healthy(100.0, 95.0)
def gh_call_price(spot, strike):  # a year, 20 %, no interest
    d = (jnp.log(spot / strike) + 0.02) / 0.2
    return spot * jax.scipy.stats.norm.cdf(d)


@healthy()
def gh_rotation(angle):
    small = jnp.abs(angle) < 0.5
    y = angle * angle
    series = 1 / 6 - y * (1 / 120 - y * (1 / 5040 - y / 362880))
    safe = jnp.where(small, 1.0, angle)
    return jnp.where(small, series, (safe - jnp.sin(safe)) / safe**3)


@healthy(10.0, 0.1)
def gh_cap_height(radius, half):
    return half * half / (radius + jnp.sqrt(radius - half) * jnp.sqrt(radius + half))


@healthy(_array(1, 2, 3, 4), _array(1.01, 2, 3, 4.02))
def gh_gaussian_kernel(x, y):
    return jnp.exp(-0.5 * jnp.sum((x - y) ** 2))


@healthy(np.diag(_array(1, 2, 3)) + 0.1)
def gh_log_determinant(a):
    return jnp.linalg.slogdet(a)[1]


@healthy()
def gh_fermi(x):
    return jax.nn.sigmoid(-x)


@healthy(2.0, 3.0)
def gh_reduced_mass(a, b):
    return a / (1 + a / b)


@healthy(0.5)
def gh_decibels(x):
    return 20 * jnp.log10(jnp.abs(x))


@healthy(0.3)
def gh_sinc(x):
    return jnp.sinc(x)


@healthy(0.3, 0.1)
def gh_smoothing_factor(step, time):
    return -jnp.expm1(-step / time)


@healthy(of=jax.grad)
def gh_sharp_softplus_slope(x):
    return jax.nn.softplus(10 * x) / 10


@healthy(_SCORES, of=jax.grad)
def gh_smooth_maximum_slope(x):
    return logsumexp(50 * x) / 50


@healthy(of=jax.grad)
def gh_gelu_slope(x):
    return jax.nn.gelu(x)


@healthy(_array(0.1, -0.2, 0.3), _array(0.01, 0.02, 0.03))
def gh_adam_step(m, v):
    return 1e-3 * m / (jnp.sqrt(v) + 1e-8)


@healthy(_array(1, 2, 4, 3), of=total)
def gh_layer_norm_slope(x):
    off = x - jnp.mean(x)
    return off**2 / (jnp.mean(off**2) + 1e-5)


@healthy(_array(1, 2, 4, 3), dtype=DOUBLE)
def gh_variance_in_double(x):
    return jnp.var(x)


@healthy(_SCORES, dtype=BRAIN)
def gh_softmax_in_bfloat16(x):
    return jax.nn.softmax(x)
