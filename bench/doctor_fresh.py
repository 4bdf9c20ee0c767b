"""Functions for `bench/doctor.py` by somebody who had not seen the doctor's rules, frozen before the doctor was run on them.

32 with a known fault on the line marked `# <-`, a third of them gradients, each with its source, and 32 healthy ones that look
alike. Sources: H, Higham, Accuracy and Stability of Numerical Algorithms, 2002 (section); G, Goldberg, What Every Computer
Scientist Should Know About Floating-Point Arithmetic, 1991; K, Kahan, Miscalculating Area and Angles of a Needle-like Triangle,
2014, and Much Ado About Nothing's Sign Bit, 1987; M, Mächler, Accurately Computing log(1 - exp(-|a|)), 2012; N, Hamming,
Numerical Methods for Scientists and Engineers, chapter 3; R, Press et al., Numerical Recipes, 2007 (section); S, Sinnott,
Virtues of the Haversine, 1984; B, Bishop, Pattern Recognition and Machine Learning, 2006 (section); L, Lin et al., Focal Loss,
2017; Q, Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons, 2013; J, JAX's FAQ, gradients contain
NaN where using where.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax.scipy.special import erf, erfc

ROUND, DEAD = "rounding", "dead gradient"
_LN2 = math.log(2.0)


def _points(*numbers: float) -> list[tuple[float]]:
    return [(float(x),) for x in numbers]


def _array(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def _sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# ---------------------------------------------------------------- faulty: one variable


@faulty(
    CANCEL,
    SENSE,
    textbook=lambda x: 2 * (np.sin(x / 2) / x) ** 2,
    points=_points(1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 2.0),
)  # H 1.7
def f_versine_ratio(x):
    return (1 - jnp.cos(x)) / x**2  # <-


@faulty(CANCEL, SENSE, ROUND, textbook=lambda x: 1 / (1 / np.sqrt((1 - x) * (1 + x)) + 1) * x**2 / ((1 - x) * (1 + x)),
        points=_points(1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9), args=(0.01,))  # fmt: skip
def f_kinetic_energy(beta):  # of special relativity, by m c²: N
    gamma = 1 / jnp.sqrt(1 - beta**2)
    return gamma - 1  # <-


@faulty(CANCEL, SENSE, ROUND, textbook=lambda x: np.where(x < _LN2, np.log(-np.expm1(-x)), np.log1p(-np.exp(-x))),
        points=_points(1e-6, 1e-4, 0.01, 0.1, 0.5, 1, 3, 10, 20, 40))  # fmt: skip
def f_log_survival(x):  # M
    return jnp.log(1 - jnp.exp(-x))  # <-


@faulty(OVER, NAN, CANCEL, textbook=np.tanh, points=_points(-200, -50, -1, -1e-3, 1e-5, 1e-3, 0.5, 3, 50, 100))
def f_tanh_by_exponentials(x):  # R 5.6
    up, down = jnp.exp(x), jnp.exp(-x)
    return (up - down) / (up + down)  # <-


@faulty(
    CANCEL,
    SENSE,
    OVER,
    textbook=lambda x: x**3 / np.expm1(x),
    points=_points(1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 5, 20, 60),
)
def f_planck(x):  # the spectrum of a black body, by x = h nu / k T: H 1.14
    return x**3 / (jnp.exp(x) - 1)  # <-


@faulty(
    CANCEL,
    SENSE,
    ROUND,
    textbook=lambda x: np.log1p(1 / x),
    points=_points(0.1, 1, 10, 100, 1e3, 1e5, 1e7),
    args=(100.0,),
)
def f_log_step(x):  # N, problem 3.3.4
    return jnp.log(x + 1) - jnp.log(x)  # <-


@faulty(CANCEL, SENSE, ROUND, args=(100.0,), points=_points(0.1, 1, 10, 100, 1e3, 1e5, 1e7),
        textbook=lambda x: 1 / (np.cbrt(x + 1) ** 2 + np.cbrt(x + 1) * np.cbrt(x) + np.cbrt(x) ** 2))  # fmt: skip
def f_cbrt_step(x):  # N, problem 3.3.4
    return jnp.cbrt(x + 1) - jnp.cbrt(x)  # <-


@faulty(
    CANCEL,
    OVER,
    SENSE,
    textbook=np.arcsinh,
    points=_points(-1e20, -1e4, -100, -1, -1e-3, 1e-5, 1e-3, 0.5, 2, 100, 1e20),
)
def f_arcsinh_by_log(x):  # K, the sign bit
    return jnp.log(x + jnp.sqrt(x**2 + 1))  # <-


@faulty(CANCEL, SENSE, textbook=np.vectorize(math.erfc), points=_points(-2, -0.5, 1e-3, 0.5, 1, 2, 3, 5, 8))
def f_upper_tail(x):  # R 6.2
    return 1 - erf(x)  # <-


@faulty(
    UNDER,
    textbook=lambda x: -(x**2) / 2 - math.log(2 * math.pi) / 2,
    points=_points(-30, -5, -1, 0, 1e-3, 2, 10, 15, 100),
)
def f_gaussian_log_density(x):  # B 2.3
    density = jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)  # <-
    return jnp.log(density)


# ---------------------------------------------------------------- faulty: several variables


@faulty(SENSE, ROUND, CANCEL, args=(0.05, 365.0), textbook=lambda r, n: np.exp(n * np.log1p(r / n)),
        points=[(0.05, 12), (0.05, 365), (0.1, 1e4), (0.03, 1e6), (0.5, 1e7)])  # fmt: skip
def f_compound_interest(rate, times):  # G, the savings account
    return (1 + rate / times) ** times  # <-


@faulty(CANCEL, SENSE, args=(0.5, 0.501, 0.002),
        textbook=lambda a, b, d: 2 * np.arcsin(np.sqrt(np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(d / 2) ** 2)),
        points=[(0.5, 0.5001, 0.0), (0.5, 0.5, 1e-4), (0.7, 0.701, 0.002), (0.1, 0.9, 1.0)])  # fmt: skip
def f_law_of_cosines(first, second, across):  # the distance of two places on a sphere: S
    cosine = jnp.sin(first) * jnp.sin(second) + jnp.cos(first) * jnp.cos(second) * jnp.cos(across)
    return jnp.arccos(cosine)  # <-


def _angle(u, v):
    a, b = u / np.linalg.norm(u), v / np.linalg.norm(v)
    return 2 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b))


@faulty(CANCEL, SENSE, args=(_array(1, 2, 3), _array(1.001, 2, 3)), textbook=_angle,
        points=[(_array(1, 2, 3), _array(1.0001, 2, 3)), (_array(1, 0, 0), _array(1, 1e-4, 0)), (_array(1, 2, 3), _array(-1, 1, 2))])  # fmt: skip
def f_angle(u, v):  # K, needle-like triangles
    cosine = jnp.dot(u, v) / (jnp.sqrt(jnp.dot(u, u)) * jnp.sqrt(jnp.dot(v, v)))
    return jnp.arccos(cosine)  # <-


def _area(a, b, c):
    return np.sqrt((a + (b + c)) * (c - (a - b)) * (c + (a - b)) * (a + (b - c))) / 4


@faulty(CANCEL, SENSE, args=(5.0, 3.0, 2.0001), textbook=_area,
        points=[(5, 4, 3), (5, 3, 2.0001), (100, 99.99, 0.02), (1000, 500.01, 500)])  # fmt: skip
def f_heron(a, b, c):  # K, needle-like triangles; a ≥ b ≥ c
    s = (a + b + c) / 2
    return jnp.sqrt(s * (s - a) * (s - b) * (s - c))  # <-


@faulty(OVER, UNDER, SENSE, NAN, CANCEL, args=(2.0, 0.3), textbook=lambda z, y: np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))),
        points=[(-50, 1), (-120, 0.5), (-3, 0), (-10, 0), (0.5, 1), (3, 0.3), (12, 1), (20, 0), (60, 0)])  # fmt: skip
def f_logit_cross_entropy(z, y):  # B 4.3.2
    p = jax.nn.sigmoid(z)
    return -(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))  # <-


@faulty(CANCEL, SENSE, args=(_array(100.5, 101.25, 99.5, 100.0),), textbook=np.var,
        points=[(_array(1, 2, 4, 7),), (_array(1000.5, 1001, 999.25, 1000),), (_array(1e4, 1e4 + 1, 1e4 + 3, 1e4 + 2),)])  # fmt: skip
def f_raw_moments(x):  # H 1.9
    return jnp.mean(x**2) - jnp.mean(x) ** 2  # <-


@faulty(OVER, UNDER, args=(3.0, 4.0), textbook=np.hypot,
        points=[(3, 4), (1e25, 2e25), (1e-25, 2e-25), (1e20, 1e-20), (0, 1), (1e-30, 0)])  # fmt: skip
def f_magnitude(x, y):  # H 27.8
    return jnp.sqrt(x * x + y * y)  # <-


@faulty(CANCEL, SENSE, args=(1.0, 100.0, 1.0), textbook=lambda a, b, c: -2 * c / (b + np.sqrt(b * b - 4 * a * c)),
        points=[(1, 100, 1), (1, 1e4, 1), (2, 300, 0.5), (1, 3, 2), (1e-3, 10, 1)])  # fmt: skip
def f_smaller_root(a, b, c):  # G, the quadratic formula
    return (jnp.sqrt(b * b - 4 * a * c) - b) / (2 * a)  # <-


@faulty(OVER, UNDER, NAN, args=(3.0, 4.0), textbook=lambda c, d: c / (c * c + d * d),
        points=[(3, 4), (1e25, 1e25), (1e-25, 2e-25), (1e20, 1), (1e-30, 1e-30)])  # fmt: skip
def f_reciprocal_real(c, d):  # the real part of 1 / (c + i d): H 27.8
    return c / (c * c + d * d)  # <-


@faulty(CANCEL, SENSE, ROUND, args=(100.0, 0.01), textbook=lambda x, h: h / (x * (x + h)),
        points=[(1, 1e-5), (100, 0.01), (1e4, 0.1), (3, 2), (0.1, 1e-6)])  # fmt: skip
def f_tide(x, h):  # the difference of two potentials: H 1.7
    return 1 / x - 1 / (x + h)  # <-


@faulty(UNDER, OVER, NAN, args=(_array(1, 2, -1), _array(0.5, 1, 3)),
        textbook=lambda u, v: u @ v / (np.linalg.norm(u) * np.linalg.norm(v)),
        points=[(_array(1, 2, -1), _array(0.5, 1, 3)), (_array(1e-25, 2e-25, 0), _array(1, 1, 1)),
                (_array(1e25, 2e25, 0), _array(1e25, 1e24, 1))])  # fmt: skip
def f_cosine_similarity(u, v):  # H 27.8
    return jnp.sum(u * v) / jnp.sqrt(jnp.sum(u * u) * jnp.sum(v * v))  # <-


# ---------------------------------------------------------------- faulty: gradients


@faulty(NAN, OVER, UNDER, args=(3.0, 4.0), textbook=lambda x, y: np.where(np.hypot(x, y) > 0, x / np.maximum(np.hypot(x, y), 1e-300), 0),
        points=[(3, 4), (0, 0), (1, 0), (1e-3, 2)], of=jax.grad)  # fmt: skip
def f_distance_slope(x, y):  # J
    squared = x**2 + y**2
    return jnp.where(squared > 0, jnp.sqrt(squared), 0.0)  # <-


def _sinc_slope(x):
    series = -x / 3 + x**3 / 30 - x**5 / 840 + x**7 / 45360
    safe = np.where(np.abs(x) < 0.2, 1.0, x)
    return np.where(np.abs(x) < 0.2, series, (safe * np.cos(safe) - np.sin(safe)) / safe**2)


@faulty(NAN, CANCEL, SENSE, textbook=_sinc_slope, points=_points(0, 1e-4, 1e-3, 0.01, 0.1, 1, 2), of=jax.grad)  # J
def f_sinc_slope(x):
    return jnp.where(x == 0, 1.0, jnp.sin(x) / x)  # <-


@faulty(OVER, NAN, textbook=np.tanh, points=_points(-200, -50, -1, -1e-3, 1e-4, 0.5, 3, 50, 100), of=jax.grad)
def f_log_cosh_slope(x):  # R 5.6
    return jnp.log(jnp.cosh(x))  # <-


def _focal_slope(z):
    p, q = _sigmoid(z), _sigmoid(-z)
    return q**2 * (2 * p * -_softplus(-z) - q)


@faulty(
    UNDER,
    NAN,
    OVER,
    SENSE,
    CANCEL,
    textbook=_focal_slope,
    points=_points(-200, -95, -20, -3, -0.1, 0.5, 3, 8),
    of=jax.grad,
)  # L
def f_focal_slope(z):
    p = 1 / (1 + jnp.exp(-z))
    return -((1 - p) ** 2) * jnp.log(p)  # <-


@faulty(
    CANCEL,
    SENSE,
    textbook=lambda x: 1 / np.expm1(x),
    points=_points(1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 5, 20, 50),
    of=jax.grad,
)
def f_log_survival_slope(x):  # M
    return jnp.log(1 - jnp.exp(-x))  # <-


@faulty(NAN, OVER, UNDER, textbook=lambda x: np.where(x > 0, np.exp(-1 / np.where(x > 0, x, 1)) / np.where(x > 0, x, 1) ** 2, 0),
        points=_points(-1, 0, 0.05, 0.1, 0.5, 1, 3), of=jax.grad)  # fmt: skip
def f_bump_slope(x):  # J
    return jnp.where(x > 0, jnp.exp(-1 / x), 0.0)  # <-


@faulty(CANCEL, SENSE, textbook=lambda x: -x / np.sqrt((1 - x) * (1 + x)), points=_points(1e-3, 0.1, 0.5, 0.9, 0.999, 0.99999, 0.999999),
        args=(0.99,), of=jax.grad)  # fmt: skip
def f_circle_slope(x):  # G, x² - y²
    return jnp.sqrt(1 - x**2)  # <-


@faulty(DEAD, textbook=lambda x: np.ones_like(x), points=_points(-2, -0.3, 0.1, 1, 5), of=jax.grad)
def f_quantised_slope(x):  # Q
    return jnp.round(x * 8) / 8  # <-


@faulty(UNDER, OVER, NAN, args=(_array(0.1, 0.2, 0.3, 0.4),), textbook=lambda p: 1 / p,
        points=[(_array(0.1, 0.2, 0.3, 0.4),), (_array(1e-12, 1e-12, 1e-12, 1e-12),), (_array(1e-20, 0.5, 1e-20, 0.5),)], of=jax.grad)  # fmt: skip
def f_likelihood_slope(p):  # B 2.3.4
    return jnp.log(jnp.prod(p))  # <-


def _mish_slope(x):
    w = np.tanh(_softplus(x))
    return w + x * (1 - w**2) * _sigmoid(x)


@faulty(OVER, NAN, SENSE, textbook=_mish_slope, points=_points(-20, -5, -2, -0.5, 0.1, 1, 3, 20, 90, 200), of=jax.grad)
def f_mish_slope(x):  # M; the activation x tanh(log(1 + exp(x)))
    return x * jnp.tanh(jnp.log(1 + jnp.exp(x)))  # <-


@faulty(
    OVER,
    textbook=lambda x: 2 * x / (1 + x**2),
    points=_points(-1e25, -3, -1e-3, 1e-5, 0.5, 1, 100, 1e10, 1e25),
    of=jax.grad,
)
def f_cauchy_slope(x):  # B 2.3.7, H 27.8
    return jnp.log(1 + x**2)  # <-


# ---------------------------------------------------------------- healthy


@healthy()
def fh_versine_ratio(x):
    half = jnp.sin(x / 2) / x
    return 2 * half * half


@healthy(0.01)
def fh_kinetic_energy(beta):
    root = jnp.sqrt((1 - beta) * (1 + beta))
    return beta * beta / (root * (1 + root))


@healthy()
def fh_log_survival(x):
    return jnp.where(x < _LN2, jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


@healthy()
def fh_tanh(x):
    return jnp.tanh(x)


@healthy()
def fh_relative_loss(x):
    a = jnp.abs(x)
    return jnp.where(a == 0, 1.0, -jnp.expm1(-a) / jnp.where(a == 0, 1.0, a))


@healthy(100.0)
def fh_log_step(x):
    return jnp.log1p(1 / x)


@healthy(100.0)
def fh_cbrt_step(x):
    after, before = jnp.cbrt(x + 1), jnp.cbrt(x)
    return 1 / (after * after + after * before + before * before)


@healthy()
def fh_arcsinh(x):
    return jnp.arcsinh(x)


@healthy()
def fh_upper_tail(x):
    return erfc(x)


@healthy()
def fh_gaussian_log_density(x):
    return -0.5 * x * x - 0.5 * math.log(2 * math.pi)


@healthy(0.05)
def fh_interest(rate):
    return jnp.expm1(rate)


@healthy(0.5, 0.501, 0.002)
def fh_haversine(first, second, across):
    up = jnp.sin((second - first) / 2)
    over = jnp.sqrt(jnp.cos(first) * jnp.cos(second)) * jnp.sin(across / 2)
    return 2 * jnp.arcsin(jnp.hypot(up, over))


@healthy(_array(1, 2, 3), _array(1.001, 2, 3))
def fh_angle(u, v):
    u, v = u / jnp.max(jnp.abs(u)), v / jnp.max(jnp.abs(v))
    u, v = u / jnp.sqrt(jnp.dot(u, u)), v / jnp.sqrt(jnp.dot(v, v))
    return 2 * jnp.arctan2(jnp.linalg.norm(u - v), jnp.linalg.norm(u + v))


@healthy(5.0, 3.0, 2.0001)
def fh_triangle(a, b, c):
    outer = jnp.sqrt(a + (b + c)) * jnp.sqrt(a + (b - c))
    return outer * jnp.sqrt(c - (a - b)) * jnp.sqrt(c + (a - b)) / 4


@healthy(2.0, 0.3)
def fh_logit_cross_entropy(z, y):
    return jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))


@healthy(_array(100.5, 101.25, 99.5, 100.0))
def fh_two_passes(x):
    return jnp.mean((x - jnp.mean(x)) ** 2)


@healthy(3.0, 4.0)
def fh_magnitude(x, y):
    return jnp.hypot(x, y)


@healthy(100.0, 1.0)
def fh_smaller_root(b, c):
    return c / (jnp.abs(b) + jnp.hypot(b, c))


@healthy(3.0, 4.0)
def fh_reciprocal_real(c, d):
    return jnp.where(jnp.abs(c) >= jnp.abs(d), 1 / (c + d * (d / c)), (c / d) / (c * (c / d) + d))


@healthy(100.0, 0.01)
def fh_tide(x, h):
    return 1 / (x * (1 + x / h))


@healthy(_array(1, 2, -1), _array(0.5, 1, 3))
def fh_cosine_similarity(u, v):
    u, v = u / jnp.max(jnp.abs(u)), v / jnp.max(jnp.abs(v))
    return jnp.sum(u * v) / (jnp.sqrt(jnp.sum(u * u)) * jnp.sqrt(jnp.sum(v * v)))


@healthy(3.0, 4.0, of=jax.grad)
def fh_distance_slope(x, y):
    return jnp.hypot(x, y)


@healthy(of=jax.grad)
def fh_arctan_slope(x):
    return jnp.arctan(x)


@healthy(0.7, 0.3, of=jax.grad)
def fh_logit_slope(z, y):
    return jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))


@healthy(of=jax.grad)
def fh_focal_slope(z):
    return -(jax.nn.sigmoid(-z) ** 2) * jax.nn.log_sigmoid(z)


@healthy(of=jax.grad)
def fh_log_survival_slope(x):
    near, far = jnp.minimum(x, _LN2), jnp.maximum(x, _LN2)
    return jnp.where(x < _LN2, jnp.log(-jnp.expm1(-near)), jnp.log1p(-jnp.exp(-far)))


@healthy(of=jax.grad)
def fh_laplace_slope(x):
    return jnp.exp(-jnp.abs(x))


@healthy(_array(0.1, 0.2, 0.3, 0.4), of=total)
def fh_likelihood_slope(p):
    return jnp.log(p)


@healthy(of=jax.grad)
def fh_entropy_slope(p):
    return -p * jnp.log(p)


@healthy(of=jax.grad)
def fh_straight_through_slope(x):
    return x + jax.lax.stop_gradient(jnp.round(x * 8) / 8 - x)


@healthy(of=jax.grad)
def fh_mish_slope(x):
    return x * jnp.tanh(jax.nn.softplus(x))


@healthy(of=jax.grad)
def fh_huber_slope(x):
    return jnp.where(jnp.abs(x) < 1, 0.5 * x**2, jnp.abs(x) - 0.5)
