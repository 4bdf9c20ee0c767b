"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: of arrays and several arguments, in helper functions,
`vmap` and `scan`, with the fault in the value or only in the gradient.

30 with a known fault on the line marked `# <-`, and 30 healthy ones. Sources: A, Atkins, Physical Chemistry; B, Bishop, Pattern Recognition and
Machine Learning, 2006; D, the manuals of deep-learning libraries; E, Battin, An Introduction to the Mathematics and Methods of Astrodynamics,
1999; F, Hull, Options, Futures and Other Derivatives; G, Grassia, Practical Parameterization of Rotations Using the Exponential Map, 1998; H,
Higham, Accuracy and Stability of Numerical Algorithms, 2002; J, JAX's FAQ on where; M, Murray, Mathematical Biology; N, Nickel and Kiela,
Poincaré embeddings, 2017; O, Hecht, Optics; W, Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax import lax
from jax.scipy import stats
from jax.scipy.special import entr, logsumexp, rel_entr

ROUND = "rounding"
BRAIN, DOUBLE = jnp.bfloat16, np.float64


def _array(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def _softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def _log_softmax(x):
    return x - np.max(x) - np.log(np.sum(np.exp(x - np.max(x))))


_LOGITS = _array(0.2, 1.5, -0.7, 0.4)
_KEYS = _array([0.2, 1.0], [-0.5, 0.3], [1.5, 0.7])
_VALUES = _array([1, 2], [3, 4], [0, 1])


# ---------------------------------------------------------------- faulty: losses and distributions


@faulty(NAN, OVER, args=(_array(0, 0.5, 2, 0),), of=total, textbook=lambda x: np.where(x > 0, 0.5 / np.sqrt(np.where(x > 0, x, 1)), 0),
        points=[(_array(0, 0.5, 2, 0),), (_array(4, 9, 0, 1),)])  # fmt: skip
def k_masked_root_slope(x):  # J
    def masked_root(v):
        return jnp.where(v > 0, jnp.sqrt(v), 0.0)  # <-

    return jax.vmap(masked_root)(x)


@faulty(NAN, args=(_array(0.5, 0.25, 0.25, 0), _array(0.25, 0.25, 0.25, 0.25)),
        textbook=lambda p, q: np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p / q, 1)), 0)),
        points=[(_array(0.5, 0.25, 0.25, 0), _array(0.25, 0.25, 0.25, 0.25)), (_array(1, 0, 0, 0), _array(0.1, 0.2, 0.3, 0.4))])  # fmt: skip
def k_categorical_divergence(p, q):  # B 1.6
    return jnp.sum(p * jnp.log(p / q))  # <-


def _entropy_slope(x):
    p, logs = _softmax(x), _log_softmax(x)
    return -p * (logs - np.sum(p * logs))


@faulty(NAN, UNDER, args=(_LOGITS,), of=jax.grad, textbook=_entropy_slope,
        points=[(_LOGITS,), (_array(0, -120, 0.5, 1),), (_array(-150, 2, 1, 3),)])  # fmt: skip
def k_policy_entropy_slope(logits):  # D
    p = jax.nn.softmax(logits)
    return -jnp.sum(p * jnp.log(p))  # <-


@faulty(OVER, NAN, UNDER, args=(_array(0.5, 1.0), _KEYS, _VALUES), textbook=lambda q, k, v: _softmax(k @ q) @ v,
        points=[(_array(0.5, 1.0), _KEYS, _VALUES), (_array(90, 60), _KEYS, _VALUES), (_array(-130, -150), _KEYS, _VALUES)])  # fmt: skip
def k_attention(query, keys, values):  # D
    weights = jax.vmap(lambda key: jnp.exp(jnp.dot(key, query)))(keys)  # <-
    return (weights / jnp.sum(weights)) @ values


@faulty(UNDER, OVER, args=(0.3, _array(-1, 0.5, 2)),
        textbook=lambda x, m: np.log(np.mean(np.exp(-0.5 * (x - m) ** 2 + 0.5 * np.min((x - m) ** 2)))) - 0.5 * np.min((x - m) ** 2),
        points=[(0.3, _array(-1, 0.5, 2)), (20, _array(-1, 0.5, 2)), (-40, _array(-1, 0.5, 2))])  # fmt: skip
def k_mixture_log_density(x, means):  # B 9.2
    return jnp.log(jnp.mean(jnp.exp(-0.5 * (x - means) ** 2)))  # <-


def _gaussian_kl(v, w):
    r = (v - w) / w
    series = sum((-1) ** n * r**n / n for n in range(2, 14))
    return 0.5 * np.where(np.abs(r) < 0.02, series, r - np.log1p(r))


@faulty(CANCEL, SENSE, args=(2.0, 2.001), dtype=DOUBLE, textbook=_gaussian_kl, points=[(2, 2.001), (1, 1.00001), (3, 2), (0.1, 5)])  # fmt: skip
def k_gaussian_divergence_in_double(v, w):  # B 1.6
    return 0.5 * (v / w - 1 - jnp.log(v / w))  # <-


@faulty(UNDER, SENSE, args=(_LOGITS,), dtype=BRAIN, textbook=_log_softmax,
        points=[(_LOGITS,), (_array(0, -120, 0.5, 1),), (_array(-150, 2, 1, 3),)])  # fmt: skip
def k_log_probabilities_in_bfloat16(logits):  # D
    return jnp.log(jax.nn.softmax(logits))  # <-


@faulty(UNDER, NAN, args=(_LOGITS, _array(0.5, 1, -0.5, 0)), textbook=lambda t, s: np.sum(_softmax(t) * (_log_softmax(t) - _log_softmax(s))),
        points=[(_LOGITS, _array(0.5, 1, -0.5, 0)), (_array(1, -130, 2, 0), _array(2, 1, 1, 3)),
                (_array(1, 2, 0, 1), _array(0, -130, 1, 2))])  # fmt: skip
def k_distillation(teacher, student):  # D
    p, q = jax.nn.softmax(teacher), jax.nn.softmax(student)
    return jnp.sum(p * (jnp.log(p) - jnp.log(q)))  # <-


# ---------------------------------------------------------------- faulty: geometry


@faulty(OVER, UNDER, NAN, args=(_array(1, 2, 2),), textbook=lambda x: x / np.linalg.norm(x),
        points=[(_array(1, 2, 2),), (_array(1e22, 2e22, -3e21),), (_array(1e-25, 2e-25, 0),)])  # fmt: skip
def k_unit_vector(x):  # H 27.8
    return x / jnp.sqrt(jnp.sum(x * x))  # <-


def _rotated(w, v):
    t = np.linalg.norm(w)
    sine, versine = (np.sin(t) / t, 2 * (np.sin(t / 2) / t) ** 2) if t else (1.0, 0.5)
    return v + sine * np.cross(w, v) + versine * np.cross(w, np.cross(w, v))


@faulty(NAN, args=(_array(0.1, 0.2, 0.3), _array(1, 2, 3)), textbook=_rotated,
        points=[(_array(0.1, 0.2, 0.3), _array(1, 2, 3)), (_array(0, 0, 0), _array(1, 2, 3)), (_array(1e-3, 0, 0), _array(1, 2, 3))])  # fmt: skip
def k_rodrigues(w, v):  # G
    angle = jnp.linalg.norm(w)
    turned = jnp.cross(w, v)
    return v + jnp.sin(angle) / angle * turned + (1 - jnp.cos(angle)) / angle**2 * jnp.cross(w, turned)  # <-


@faulty(NAN, OVER, args=(_array(0.1, 0.2, 0.3),), of=jax.grad,
        textbook=lambda w: -0.25 * w * np.sinc(np.linalg.norm(w) / 2 / np.pi),
        points=[(_array(0.1, 0.2, 0.3),), (_array(0, 0, 0),), (_array(1, -2, 1),)])  # fmt: skip
def k_quaternion_slope(w):  # G
    return jnp.cos(jnp.linalg.norm(w) / 2)  # <-


def _hyperbolic(u, v):
    x = np.sum((u - v) ** 2) / ((1 - u @ u) * (1 - v @ v))
    return 2 * np.arcsinh(np.sqrt(x))


@faulty(CANCEL, SENSE, ROUND, args=(_array(0.1, 0.2), _array(0.11, 0.2)), textbook=_hyperbolic,
        points=[(_array(0.1, 0.2), _array(0.11, 0.2)), (_array(0.3, 0.2), _array(0.3, 0.201)), (_array(0.5, 0.1), _array(-0.5, 0.3))])  # fmt: skip
def k_hyperbolic_distance(u, v):  # N
    x = jnp.sum((u - v) ** 2) / ((1 - jnp.dot(u, u)) * (1 - jnp.dot(v, v)))
    return jnp.arccosh(1 + 2 * x)  # <-


def _matern_slope(x, y):
    r = np.linalg.norm(x - y)
    return -3 * (x - y) * np.exp(-math.sqrt(3) * r)


@faulty(NAN, OVER, args=(_array(1, 2, 3), _array(1, 2.5, 2)), of=jax.grad, textbook=_matern_slope,
        points=[(_array(1, 2, 3), _array(1, 2.5, 2)), (_array(1, 2, 3), _array(1, 2, 3)), (_array(0, 0, 1), _array(0, 3, 1))])  # fmt: skip
def k_matern_slope(x, y):  # W 4.2
    r = jnp.sqrt(3 * jnp.sum((x - y) ** 2))  # <-
    return (1 + r) * jnp.exp(-r)


def _pairwise_slope(x):
    off = x[:, None] - x[None]
    r = np.sqrt(np.sum(off**2, axis=-1))
    return np.sum(off / np.where(r > 0, r, 1)[..., None], axis=1)


_PLACES = _array([0, 1], [2, 0], [1, 4])


@faulty(NAN, OVER, args=(_PLACES,), of=jax.grad, textbook=_pairwise_slope, points=[(_PLACES,), (10 * _PLACES + 1,)])
def k_pairwise_slope(x):  # J
    d = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))  # <-
    return jnp.sum(jnp.triu(d, 1))


@faulty(CANCEL, SENSE, args=(_array(1, 2, 3), _array(1.01, 2, 3)),
        textbook=lambda u, v: 0.5 * np.sum((u / np.linalg.norm(u) - v / np.linalg.norm(v)) ** 2),
        points=[(_array(1, 2, 3), _array(1.01, 2, 3)), (_array(5, 1, 0), _array(5.1, 1, 0)), (_array(1, 0, 2), _array(-1, 1, 0))])  # fmt: skip
def k_cosine_distance(u, v):  # D
    return 1 - jnp.dot(u, v) / (jnp.linalg.norm(u) * jnp.linalg.norm(v))  # <-


@faulty(OVER, UNDER, args=(np.diag(_array(2, 3, 4)),), textbook=lambda a: 2 * np.sum(np.log(np.diag(a))),
        points=[(np.diag(_array(2, 3, 4)),), (1e14 * np.diag(_array(2, 3, 4)),), (1e-15 * np.diag(_array(2, 3, 4)),)])  # fmt: skip
def k_factor_log_determinant(factor):  # W A.3
    return 2 * jnp.log(jnp.prod(jnp.diagonal(factor)))  # <-


@faulty(NAN, OVER, args=(_array(0.3, 1, -0.5),), of=total,
        textbook=lambda c: np.where(c < 1, -2 * np.arccos(c) / np.sqrt(np.where(c < 1, 1 - c * c, 1)), 0),
        points=[(_array(0.3, 1, -0.5),), (_array(1, 1, 0.75),)])  # fmt: skip
def k_squared_angle_slope(cosines):  # J
    angle = jnp.where(cosines < 1, jnp.arccos(cosines), 0.0)  # <-
    return angle**2


# ---------------------------------------------------------------- faulty: series and finance


@faulty(CANCEL, SENSE, args=(_array(10, 10.5, 9.75, 10.25),), textbook=np.var,
        points=[(_array(10, 10.5, 9.75, 10.25),), (_array(100, 101, 99, 100.5),), (_array(1000, 1001, 1003, 1002),)])  # fmt: skip
def k_running_variance(x):  # H 1.9
    def step(carry, value):
        n, s, q = carry
        n, s, q = n + 1, s + value, q + value * value
        return (n, s, q), None

    (n, s, q), _ = lax.scan(step, (jnp.float32(0), jnp.float32(0), jnp.float32(0)), x)
    return q / n - (s / n) ** 2  # <-


@faulty(CANCEL, SENSE, args=(100.0, 0.2, 0.1), textbook=lambda s, v, t: s * math.erf(v * math.sqrt(t) / 2 / math.sqrt(2)),
        points=[(100, 0.2, 0.1), (100, 0.01, 0.01), (50, 0.001, 0.02), (10, 0.5, 4)])  # fmt: skip
def k_at_the_money(spot, volatility, time):  # F 15
    d = 0.5 * volatility * jnp.sqrt(time)
    return spot * (stats.norm.cdf(d) - stats.norm.cdf(-d))  # <-


@faulty(CANCEL, SENSE, args=(_array(0.5, -0.2, 0.1), 1e-3, 3.0), textbook=lambda m, d, t: m / -np.expm1(t * np.log1p(-d)),
        points=[(_array(0.5, -0.2, 0.1), 1e-3, 3), (_array(1, 2, 3), 1e-5, 1), (_array(1, 2, 3), 0.1, 20)])  # fmt: skip
def k_bias_correction(moments, decay, t):  # D
    return moments / (1 - (1 - decay) ** t)  # <-


def _absorbed(light, depths):
    before = light * np.exp(-np.concatenate([[0], np.cumsum(depths)[:-1]]))
    return before * -np.expm1(-depths)


@faulty(CANCEL, SENSE, args=(1.0, _array(0.1, 1e-3, 1e-4, 0.5)), textbook=_absorbed,
        points=[(1, _array(0.1, 1e-3, 1e-4, 0.5)), (5, _array(1e-5, 1e-6, 3, 2))])  # fmt: skip
def k_absorbed_light(light, depths):  # A
    def layer(light, depth):
        taken = light * (1 - jnp.exp(-depth))  # <-
        return light * jnp.exp(-depth), taken

    return lax.scan(layer, light, depths)[1]


def _wave(x):
    return jnp.sin(x)


@faulty(CANCEL, SENSE, args=(_array(0.1, 0.7, 2), 1e-3), textbook=lambda x, h: np.cos(x + h / 2) * 2 * np.sin(h / 2) / h,
        points=[(_array(0.1, 0.7, 2), 2.0**-10), (_array(1, 2, 3), 2.0**-6), (_array(0.5, 0.25, 0.75), 0.5)])  # fmt: skip
def k_forward_difference(x, h):  # H 1.14
    return jax.vmap(lambda v: (_wave(v + h) - _wave(v)) / h)(x)  # <-


# ---------------------------------------------------------------- faulty: sciences


@faulty(CANCEL, SENSE, args=(_array(0.1, 0.5, 0.01),), textbook=lambda a: 2 * np.pi * a * a / (1 + np.sqrt(1 - a * a)),
        points=[(_array(0.1, 0.5, 0.01),), (_array(1e-3, 1e-4, 0.9),)])  # fmt: skip
def k_solid_angle(aperture):  # O 5.7
    half = jnp.arcsin(aperture)
    return 2 * jnp.pi * (1 - jnp.cos(half))  # <-


@faulty(UNDER, NAN, args=(5.0, 0.3, 0.25), textbook=lambda e, t, s: np.exp(e * (t - s) / (t * s)),
        points=[(5, 0.3, 0.25), (40, 0.3, 0.25), (60, 0.5, 0.375), (1, 3, 2)])  # fmt: skip
def k_arrhenius_ratio(energy, hot, cold):  # A
    return jnp.exp(-energy / hot) / jnp.exp(-energy / cold)  # <-


@faulty(CANCEL, SENSE, args=(0.1, _array(0.5, 1, 2)), textbook=lambda k, r: np.expm1(-k * r) / r,
        points=[(0.1, _array(0.5, 1, 2)), (1e-4, _array(0.5, 1, 2)), (0.01, _array(0.1, 5, 300))])  # fmt: skip
def k_screening(k, r):  # A, Debye and Hückel
    return (jnp.exp(-k * r) - 1) / r  # <-


@faulty(OVER, NAN, args=(0.5, 2.0, 100.0, 5.0), textbook=lambda r, t, k, n: k / (1 + (k - n) / n * np.exp(-r * t)),
        points=[(0.5, 2, 100, 5), (1, 95, 100, 5), (2, 100, 50, 10), (0.1, 0.1, 10, 1)])  # fmt: skip
def k_logistic_growth(rate, time, capacity, start):  # M 1.1
    e = jnp.exp(rate * time)  # <-
    return capacity * start * e / (capacity + start * (e - 1))


def _battin(r, s):
    return np.expm1(1.5 * np.log1p(r @ (r - 2 * s) / (s @ s)))


@faulty(CANCEL, SENSE, args=(_array(1e-3, 2e-3, 0), _array(1, 0.5, 2)), textbook=_battin,
        points=[(_array(1e-3, 2e-3, 0), _array(1, 0.5, 2)), (_array(0.1, 0, 0), _array(5, 1, 2)), (_array(1, 1, 0), _array(-3, 1, 1))])  # fmt: skip
def k_third_body(r, s):  # E 8.4
    q = jnp.dot(r, r - 2 * s) / jnp.dot(s, s)
    return (1 + q) ** 1.5 - 1  # <-


@faulty(CANCEL, SENSE, NAN, args=(50.0, 49.0), textbook=lambda a, b: (a - b) / np.log1p((a - b) / b) if a != b else a,
        points=[(50, 49), (50, 50), (50, 49.99), (1, 1.0001), (30, 10)])  # fmt: skip
def k_log_mean_temperature(a, b):  # of a heat exchanger
    return (a - b) / jnp.log(a / b)  # <-


@faulty(NAN, OVER, args=(_array(0, 0.5, 2),), of=total, textbook=lambda p: np.where(p > 0, 0.7 * np.where(p > 0, p, 1) ** -0.3, 0),
        points=[(_array(0, 0.5, 2),), (_array(1, 0, 0),)])  # fmt: skip
def k_isotherm_slope(pressure):  # A, Freundlich
    return jnp.where(pressure > 0, pressure**0.7, 0.0)  # <-


@faulty(OVER, NAN, UNDER, args=(_array(1, 2, 3), 2.0, 4.0), textbook=lambda x, k, n: 1 / (1 + (k / x) ** n),
        points=[(_array(1, 2, 3), 2, 4), (_array(1e11, 2e11, 10), 3e10, 4), (_array(1e-12, 1e-11, 1e-13), 1e-12, 4)])  # fmt: skip
def k_hill(x, half, n):  # M 1
    return x**n / (half**n + x**n)  # <-


# ---------------------------------------------------------------- healthy


@healthy(_array(0, 0.5, 2, 0), of=total)
def kh_masked_root_slope(x):
    return jax.vmap(lambda v: jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1.0)), 0.0))(x)


@healthy(_array(0.5, 0.25, 0.25, 0), _array(0.25, 0.25, 0.25, 0.25))
def kh_categorical_divergence(p, q):
    return jnp.sum(rel_entr(p, q))


@healthy(_LOGITS, of=jax.grad)
def kh_policy_entropy_slope(logits):
    logs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(logs) * logs)


@healthy(_array(0.5, 0, 0.5))
def kh_entropy(p):
    return jnp.sum(entr(p))


@healthy(_array(0.5, 1.0), _KEYS, _VALUES)
def kh_attention(query, keys, values):
    scores = jax.vmap(lambda key: jnp.dot(key, query))(keys)
    return jax.nn.softmax(scores) @ values


@healthy(_KEYS, of=total)
def kh_causal_attention_slope(x):
    scores = jnp.where(jnp.tri(3, dtype=bool), x @ x.T, -1e9)
    return jax.nn.softmax(scores, axis=-1) @ x


@healthy(0.3, _array(-1, 0.5, 2))
def kh_mixture_log_density(x, means):
    return logsumexp(-0.5 * (x - means) ** 2) - jnp.log(3.0)


@healthy(2.0, 2.001, dtype=DOUBLE)
def kh_gaussian_divergence_in_double(mean, other):
    return 0.5 * (mean - other) ** 2


@healthy(_LOGITS, dtype=BRAIN)
def kh_log_probabilities_in_bfloat16(logits):
    return jax.nn.log_softmax(logits)


@healthy(_array(1, 2, 3), _array(1, 2.5, 2))
def kh_masked_error(x, y):
    mask = jnp.array([1.0, 0.0, 1.0])
    return jnp.sum(mask * (x - y) ** 2) / jnp.maximum(jnp.sum(mask), 1.0)


@healthy(_array(1, 2, 2))
def kh_unit_vector(x):
    return x * lax.rsqrt(jnp.sum(x * x) + 1e-12)


@healthy(_array(0.1, 0.2, 0.3), of=jax.grad)
def kh_quaternion_slope(w):
    square = jnp.sum(w * w)
    safe = jnp.where(square > 0, square, 1.0)
    return jnp.where(square > 0, jnp.cos(jnp.sqrt(safe) / 2), 1.0)


@healthy(_array(1, 2, 3, 4), _array(0.5, -1, 2, 0))
def kh_quaternion_product(p, q):
    real = p[0] * q[0] - jnp.dot(p[1:], q[1:])
    return jnp.concatenate([real[None], p[0] * q[1:] + q[0] * p[1:] + jnp.cross(p[1:], q[1:])])


@healthy(_array(0.1, 0.2), _array(0.11, 0.2))
def kh_hyperbolic_distance(u, v):
    x = jnp.sum((u - v) ** 2) / ((1 - jnp.dot(u, u)) * (1 - jnp.dot(v, v)))
    return 2 * jnp.arcsinh(jnp.sqrt(x))


@healthy(_array(1, 2, 3), _array(1, 2.5, 2), of=jax.grad)
def kh_squared_exponential_slope(x, y):
    return jnp.exp(-0.5 * jnp.sum((x - y) ** 2))


@healthy(_PLACES, of=jax.grad)
def kh_pairwise_slope(x):
    square = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    eye = jnp.eye(3, dtype=bool)
    return jnp.sum(jnp.where(eye, 0.0, jnp.sqrt(jnp.where(eye, 1.0, square))))


@healthy(_array(1, 2, 3), _array(1.01, 2, 3))
def kh_chord_distance(u, v):
    return 0.5 * jnp.sum((u / jnp.linalg.norm(u) - v / jnp.linalg.norm(v)) ** 2)


@healthy(np.diag(_array(2, 3, 4)))
def kh_factor_log_determinant(factor):
    return 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))


@healthy(_array(0.3, -0.2, 0.9))
def kh_angles(cosines):
    return jnp.arccos(jnp.clip(cosines, -1.0, 1.0))


@healthy(_array(10, 10.5, 9.75, 10.25))
def kh_welford(x):
    def step(carry, value):
        n, mean, m = carry
        n = n + 1
        off = value - mean
        mean = mean + off / n
        return (n, mean, m + off * (value - mean)), None

    (n, _, m), _ = lax.scan(step, (jnp.float32(0), jnp.float32(0), jnp.float32(0)), x)
    return m / n


@healthy(100.0, 0.2, 0.1)
def kh_at_the_money(spot, volatility, time):
    return spot * lax.erf(volatility * jnp.sqrt(time / 8))


@healthy(_array(0.5, -0.2, 0.1), 1e-3, 3.0)
def kh_bias_correction(moments, decay, t):
    return moments / -jnp.expm1(t * jnp.log1p(-decay))


@healthy(1.0, _array(0.1, 1e-3, 1e-4, 0.5))
def kh_absorbed_light(light, depths):
    def layer(light, depth):
        return light * jnp.exp(-depth), -light * jnp.expm1(-depth)

    return lax.scan(layer, light, depths)[1]


@healthy(_array(0.1, 0.7, 2), _array(3, 1, 2))
def kh_low_pass(x, y):
    smooth = lax.scan(lambda c, v: (0.75 * c + 0.25 * v, c), jnp.float32(0), x)[1]
    return jnp.sum(smooth**2) + jnp.sum(y**2)


@healthy(_array(0.1, 0.5, 0.01))
def kh_solid_angle(aperture):
    return 4 * jnp.pi * jnp.sin(jnp.arcsin(aperture) / 2) ** 2


@healthy(5.0, 0.3)
def kh_arrhenius(energy, temperature):
    return 1e3 * jnp.exp(-energy / temperature)


@healthy(0.1, _array(0.5, 1, 2))
def kh_screening(k, r):
    return jnp.expm1(-k * r) / r


@healthy(0.5, 2.0, 100.0, 5.0)
def kh_logistic_growth(rate, time, capacity, start):
    return capacity * jax.nn.sigmoid(rate * time - jnp.log(capacity / start - 1))


@healthy(0.3, 0.5)
def kh_kepler_step(mean, eccentricity):
    anomaly = mean + eccentricity * jnp.sin(mean)
    return mean + eccentricity * jnp.sin(anomaly)


@healthy(1.5, 1.0)
def kh_reflectance(n, m):
    return ((n - m) / (n + m)) ** 2
