"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: expressions of one to four variables as suites of
numerical faults have them, and densities, masked losses and geometry as libraries write them.

24 with a known fault on the line marked `# <-`, and 24 healthy ones. Sources: C, the sRGB standard, IEC 61966-2-1; D, the manuals of
deep-learning libraries; F, FPBench and Herbie's suite, after Hamming, Numerical Methods for Scientists and Engineers, chapter 3; J, JAX's FAQ on
where; K, Kumaraswamy, A generalized probability density function, 1980; P, Salimans and others, PixelCNN++, 2017; R, Rabiner, A Tutorial on
Hidden Markov Models, 1989; S, distributions as NumPyro and Distrax have them; T, Griffiths, Introduction to Elementary Particles.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax import lax
from jax.scipy import stats
from jax.scipy.special import gammaln, i0, i0e, logsumexp, ndtr, xlog1py, xlogy
from scipy import special

ROUND = "rounding"
DOUBLE = np.float64


def _array(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def _points(*numbers: float) -> list[tuple[float]]:
    return [(float(x),) for x in numbers]


# ---------------------------------------------------------------- faulty: expressions


@faulty(CANCEL, SENSE, args=(0.5, 1e-3), textbook=lambda x, e: np.sin(e) / (np.cos(x) * np.cos(x + e)),
        points=[(0.5, 1e-3), (1, 1e-6), (-1.25, 1e-4), (0.1, 0.5)])  # fmt: skip
def l_tangent_step(x, e):  # F
    return jnp.tan(x + e) - jnp.tan(x)  # <-


@faulty(
    CANCEL,
    SENSE,
    ROUND,
    args=(50.0,),
    dtype=DOUBLE,
    textbook=lambda x: 2 / (x * (x - 1) * (x + 1)),
    points=_points(50, 3, 1e3, 1e5, -700),
)
def l_three_fractions(x):  # F
    return 1 / (x + 1) - 2 / x + 1 / (x - 1)  # <-


def _less_cotangent(x):
    series = x / 3 + x**3 / 45 + 2 * x**5 / 945 + x**7 / 4725 + 2 * x**9 / 93555
    return np.where(np.abs(x) < 0.05, series, 1 / x - 1 / np.tan(x))


@faulty(CANCEL, SENSE, args=(0.1,), textbook=_less_cotangent, points=_points(0.1, 1e-3, -0.02, 1e-5, 1.5, 1))
def l_less_cotangent(x):  # F
    return 1 / x - 1 / jnp.tan(x)  # <-


@faulty(CANCEL, args=(100.0,), textbook=lambda x: 1 / (np.sqrt(x) * np.sqrt(x + 1) * (np.sqrt(x) + np.sqrt(x + 1))),
        points=_points(100, 1, 1e4, 1e6, 0.1))  # fmt: skip
def l_inverse_roots(x):  # F
    return 1 / jnp.sqrt(x) - 1 / jnp.sqrt(x + 1)  # <-


@faulty(
    CANCEL,
    SENSE,
    OVER,
    NAN,
    args=(0.1,),
    textbook=lambda x: -1 / np.expm1(-x),
    points=_points(0.1, 1e-4, -1e-6, 2, 60, 95, -5),
)
def l_exp_over_step(x):  # F
    e = jnp.exp(x)
    return e / (e - 1)  # <-


@faulty(CANCEL, SENSE, args=(100.0, 5.0), textbook=lambda x, n: x ** (1 / n) * np.expm1(np.log1p(1 / x) / n),
        points=[(100, 5), (10, 2), (1e4, 3), (1e6, 7)])  # fmt: skip
def l_root_step(x, n):  # F
    return (x + 1) ** (1 / n) - x ** (1 / n)  # <-


@faulty(
    SENSE,
    CANCEL,
    args=(10.0, 0.1),
    textbook=lambda e, p: np.arctanh(p / e),
    points=[(10, 0.1), (5, 1e-4), (100, 1e-3), (2, -1e-5), (3, 2)],
)
def l_rapidity(energy, momentum):  # T 3
    return 0.5 * jnp.log((energy + momentum) / (energy - momentum))  # <-


@faulty(CANCEL, args=(0.1,), textbook=lambda x: 4 * np.sinh(x / 2) ** 2, points=_points(0.1, 1e-3, -0.02, 1e-5, 3, -10))
def l_second_difference(x):  # F
    return jnp.exp(x) - 2 + jnp.exp(-x)  # <-


@faulty(
    CANCEL,
    args=(3.0, 0.1),
    textbook=lambda a, b: b * b / (np.sqrt(a * a + b * b) + a),
    points=[(3, 0.1), (1, 1e-3), (100, 1), (1, 2)],
)
def l_detour(a, b):  # F
    hypotenuse = jnp.sqrt(a * a + b * b)
    return hypotenuse - a  # <-


@faulty(CANCEL, SENSE, args=(1000.0, 0.05, 1.0), textbook=lambda p, r, t: p * np.expm1(365 * t * np.log1p(r / 365)),
        points=[(1000, 0.05, 1), (100, 0.001, 0.5), (50, 0.01, 10), (1, 0.2, 2)])  # fmt: skip
def l_daily_interest(principal, rate, years):  # F
    return principal * ((1 + rate / 365) ** (365 * years) - 1)  # <-


@faulty(
    SENSE,
    CANCEL,
    args=(0.1,),
    textbook=lambda x: np.log1p(-x) / np.log1p(x),
    points=_points(0.1, 1e-3, -0.02, 1e-5, 0.9),
)
def l_log_quotient(x):  # F
    return jnp.log(1 - x) / jnp.log(1 + x)  # <-


@faulty(CANCEL, SENSE, args=(2.0, 1e-3), textbook=lambda x, e: sum(math.comb(5, k) * x ** (5 - k) * e**k for k in range(1, 6)),
        points=[(2, 1e-3), (1, 1e-5), (3, 0.5), (10, 1e-4)])  # fmt: skip
def l_power_step(x, e):  # F
    return (x + e) ** 5 - x**5  # <-


# ---------------------------------------------------------------- faulty: distributions


@faulty(CANCEL, SENSE, args=(0.1, 3.0, 2.0), textbook=lambda x, a, b: -np.expm1(b * np.log1p(-(x**a))),
        points=[(0.1, 3, 2), (0.01, 2, 1.5), (0.5, 1.5, 3), (0.05, 4, 0.5)])  # fmt: skip
def l_kumaraswamy(x, a, b):  # K
    return 1 - (1 - x**a) ** b  # <-


@faulty(SENSE, CANCEL, args=(_array(0.1, 1, -2), 50.0), textbook=lambda x, n: -0.5 * (n + 1) * np.log1p(x * x / n),
        points=[(_array(0.1, 1, -2), 50), (_array(1e-2, 3, 0.5), 400), (_array(5, 1e-3, 1), 3)])  # fmt: skip
def l_student_kernel(x, degrees):  # S
    return -0.5 * (degrees + 1) * jnp.log(1 + x**2 / degrees)  # <-


@faulty(OVER, args=(2.0, 3.0), textbook=lambda x, k: k * np.cos(x) - k - math.log(2 * math.pi) - np.log(special.i0e(k)),
        points=[(2, 3), (1.5, 100), (-2, 500), (0.5, 0.75), (3, 20)])  # fmt: skip
def l_von_mises(x, concentration):  # S
    return concentration * jnp.cos(x) - jnp.log(2 * jnp.pi) - jnp.log(i0(concentration))  # <-


def _log_mass(a, b):
    a, b = (-b, -a) if a > 0 else (a, b)
    return special.log_ndtr(b) + np.log1p(-np.exp(special.log_ndtr(a) - special.log_ndtr(b)))


@faulty(
    CANCEL, UNDER, SENSE, args=(2.0, 3.0), textbook=_log_mass, points=[(2, 3), (5, 6), (6.5, 8), (-3, 1), (-20, -15)]
)
def l_truncated_mass(low, high):  # S
    return jnp.log(ndtr(high) - ndtr(low))  # <-


@faulty(OVER, NAN, args=(_array(0.5, -1, 2),), textbook=lambda x: -x - 2 * np.logaddexp(0, -x),
        points=[(_array(0.5, -1, 2),), (_array(-95, -120, 30),)])  # fmt: skip
def l_logistic_density(x):  # S
    e = jnp.exp(-x)  # <-
    return jnp.log(e / (1 + e) ** 2)


@faulty(UNDER, SENSE, args=(_array(0.5, -1, 2), 1.5), textbook=lambda x, w: np.sum(special.log_ndtr(w * x)),
        points=[(_array(0.5, -1, 2), 1.5), (_array(-10, 1, 2), 1.5), (_array(-20, -4, 0), 2)])  # fmt: skip
def l_probit(x, weight):  # S
    def tail(z):
        return jnp.log(stats.norm.cdf(z))  # <-

    return jnp.sum(jax.vmap(lambda v: tail(weight * v))(x))


def _log_sigmoid(x):
    return -np.logaddexp(0, -x)


@faulty(CANCEL, UNDER, args=(_array(0.5, -3, 2),),
        textbook=lambda x: _log_sigmoid(x + 0.0625) + _log_sigmoid(0.0625 - x) + math.log(-math.expm1(-0.125)),
        points=[(_array(0.5, -3, 2),), (_array(12, 20, 30),), (_array(-40, -100, -10),)])  # fmt: skip
def l_discretised_logistic(x):  # P
    upper, lower = jax.nn.sigmoid(x + 0.0625), jax.nn.sigmoid(x - 0.0625)
    return jnp.log(upper - lower)  # <-


# ---------------------------------------------------------------- faulty: masks, loops and geometry


@faulty(NAN, OVER, args=(_array([1, 2], [3, 4]), _array([1, 0], [0, 0])), of=jax.grad,
        textbook=lambda x, m: m / np.maximum(np.sum(m, 1, keepdims=True), 1),
        points=[(_array([1, 2], [3, 4]), _array([1, 0], [0, 0])), (_array([1, 2], [3, 4]), _array([1, 1], [1, 0]))])  # fmt: skip
def l_masked_mean_slope(x, mask):  # J
    def row(values, kept):
        count = jnp.sum(kept)
        return jnp.where(count > 0, jnp.sum(kept * values) / count, 0.0)  # <-

    return jnp.sum(jax.vmap(row)(x, mask))


def _turned(x):
    square = np.sum(x * x, axis=1, keepdims=True)
    return np.stack([-x[:, 1], x[:, 0]], axis=1) / np.where(square > 0, square, 1)


@faulty(NAN, args=(_array([1, 2], [0, 0], [-1, 0.5]),), of=total, textbook=_turned,
        points=[(_array([1, 2], [0, 0], [-1, 0.5]),), (_array([0, 0], [3, 0], [0, -2]),)])  # fmt: skip
def l_polar_slope(places):  # J
    def angle(place):
        return jnp.where(jnp.any(place != 0), jnp.arctan2(place[1], place[0]), 0.0)  # <-

    return jax.vmap(angle)(places)


@faulty(NAN, OVER, args=(_array(0, 0.2, 0.002, 1),), of=total,
        textbook=lambda x: np.where(x <= 0.0031308, 12.92, 1.055 / 2.4 * np.where(x <= 0.0031308, 1, x) ** (1 / 2.4 - 1)),
        points=[(_array(0, 0.2, 0.002, 1),), (_array(0.5, 0, 0, 0.75),)])  # fmt: skip
def l_srgb_slope(x):  # C
    return jnp.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)  # <-


_STEPS = _array([-1, -0.5], [-0.2, -3])
_SEEN = _array([-1, -2], [-0.5, -1], [-3, -0.25])


def _forward(steps, seen):
    alpha = seen[0]
    for now in seen[1:]:
        alpha = np.logaddexp.reduce(alpha[:, None] + steps, axis=0) + now
    return np.logaddexp.reduce(alpha)


@faulty(UNDER, OVER, args=(_STEPS, _SEEN), textbook=_forward,
        points=[(_STEPS, _SEEN), (_STEPS, 60 * _SEEN), (_STEPS, -70 * _SEEN)])  # fmt: skip
def l_forward_algorithm(steps, seen):  # R
    def step(alpha, now):
        return jnp.log(jnp.sum(jnp.exp(alpha[:, None] + steps), axis=0)) + now, None  # <-

    alpha, _ = lax.scan(step, seen[0], seen[1:])
    return logsumexp(alpha)


_CORNERS = _array([0, 0, 1], [1, 2, 2], [1, 2, 2], [0, 3, 1])
_FROM, _TO = np.array([0, 1, 2]), np.array([1, 2, 3])


def _edge_slope(x):
    off = x[_FROM] - x[_TO]
    size = np.linalg.norm(off, axis=1, keepdims=True)
    unit = off / np.where(size > 0, size, 1)
    found = np.zeros_like(x)
    np.add.at(found, _FROM, unit)
    np.add.at(found, _TO, -unit)
    return found


@faulty(NAN, OVER, args=(_CORNERS,), of=jax.grad, textbook=_edge_slope, points=[(_CORNERS,), (3 * _CORNERS + 1,)])
def l_edge_slope(x):  # J
    return jnp.sum(jnp.linalg.norm(x[_FROM] - x[_TO], axis=-1))  # <-


# ---------------------------------------------------------------- healthy


@healthy(0.5, 1e-3)
def lh_tangent_step(x, e):
    return jnp.sin(e) / (jnp.cos(x) * jnp.cos(x + e))


@healthy(50.0, dtype=DOUBLE)
def lh_three_fractions(x):
    return 2 / (x * (x - 1) * (x + 1))


@healthy(100.0)
def lh_inverse_roots(x):
    r, s = jnp.sqrt(x), jnp.sqrt(x + 1)
    return 1 / (r * s * (r + s))


@healthy(0.1)
def lh_exp_over_step(x):
    return -1 / jnp.expm1(-x)


@healthy(10.0, 0.1)
def lh_rapidity(energy, momentum):
    return jnp.arctanh(momentum / energy)


@healthy(0.1)
def lh_second_difference(x):
    return 4 * jnp.sinh(x / 2) ** 2


@healthy(1000.0, 0.05, 1.0)
def lh_daily_interest(principal, rate, years):
    return principal * jnp.expm1(365 * years * jnp.log1p(rate / 365))


@healthy(2.0, 1e-3)
def lh_power_step(x, e):
    y = x + e
    return e * (x**2 + x * y + y**2)


@healthy(0.1, 3.0, 2.0)
def lh_kumaraswamy(x, a, b):
    return -jnp.expm1(b * jnp.log1p(-(x**a)))


@healthy(_array(0.1, 1, -2), 50.0)
def lh_student(x, degrees):
    normaliser = 0.5 * jnp.log(degrees) + gammaln(0.5 * degrees) - gammaln(0.5 * (degrees + 1))
    return -0.5 * (degrees + 1) * jnp.log1p(x**2 / degrees) - normaliser


@healthy(2.0, 3.0)
def lh_von_mises(x, concentration):
    return concentration * (jnp.cos(x) - 1) - jnp.log(2 * jnp.pi) - jnp.log(i0e(concentration))


@healthy(2.0, 3.0, 1.5)
def lh_gamma_density(x, shape, rate):
    return shape * jnp.log(rate) + (shape - 1) * jnp.log(x) - rate * x - gammaln(shape)


@healthy(0.25, 3.0, 2.0)
def lh_beta_density(x, a, b):
    return xlogy(a - 1, x) + xlog1py(b - 1, -x) - (gammaln(a) + gammaln(b) - gammaln(a + b))


@healthy(_array(0.5, -1, 2))
def lh_logistic_density(x):
    return -x - 2 * jax.nn.softplus(-x)


@healthy(_array(0.5, -1, 2), 1.5)
def lh_probit(x, weight):
    return jnp.sum(jax.vmap(lambda v: stats.norm.logcdf(weight * v))(x))


@healthy(_array(0, 1, 4), 0.25, 2.0)
def lh_zero_inflated(count, gate, rate):
    some = jnp.log1p(-gate) + xlogy(count, rate) - rate - gammaln(count + 1)
    none = jnp.logaddexp(jnp.log(gate), jnp.log1p(-gate) - rate)
    return jnp.where(count == 0, none, some)


@healthy(_array([1, 2], [3, 4]), _array([1, 0], [0, 0]), of=jax.grad)
def lh_masked_mean_slope(x, mask):
    return jnp.sum(jax.vmap(lambda v, m: jnp.sum(m * v) / jnp.maximum(jnp.sum(m), 1.0))(x, mask))


@healthy(_array([1, 2], [0, 0], [-1, 0.5]), of=total)
def lh_polar_slope(places):
    def angle(place):
        there = jnp.any(place != 0)
        safe = jnp.where(there, place, 1.0)
        return jnp.where(there, jnp.arctan2(safe[1], safe[0]), 0.0)

    return jax.vmap(angle)(places)


@healthy(_array(0, 0.2, 0.002, 1), of=total)
def lh_srgb_slope(x):
    return jnp.where(x <= 0.0031308, 12.92 * x, 1.055 * jnp.maximum(x, 0.0031308) ** (1 / 2.4) - 0.055)


@healthy(_STEPS, _SEEN)
def lh_forward_algorithm(steps, seen):
    alpha, _ = lax.scan(lambda a, now: (logsumexp(a[:, None] + steps, axis=0) + now, None), seen[0], seen[1:])
    return logsumexp(alpha)


@healthy(_CORNERS, of=jax.grad)
def lh_edge_slope(x):
    square = jnp.sum((x[_FROM] - x[_TO]) ** 2, axis=-1)
    there = square > 0
    return jnp.sum(jnp.where(there, jnp.sqrt(jnp.where(there, square, 1.0)), 0.0))


@healthy(30.0, 100.0)
def lh_cosine_schedule(step, steps):
    return 1e-3 * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(step / steps, 1.0)))


@healthy(_array(0.5, -1, 2, 0.25), 3.0)
def lh_rotary(x, position):
    angles = position * jnp.array([1.0, 0.01])
    even, odd = x[::2], x[1::2]
    c, s = jnp.cos(angles), jnp.sin(angles)
    return jnp.stack([even * c - odd * s, even * s + odd * c], axis=-1).ravel()


@healthy(_array([1, 2, 4], [0.5, 0.25, -1]), _array(1, 1.5, 0.5))
def lh_layer_norm(x, scale):
    def row(v):
        off = v - jnp.mean(v)
        return off * lax.rsqrt(jnp.mean(off * off) + 1e-6) * scale

    return jax.vmap(row)(x)
