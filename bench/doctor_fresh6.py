"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: what suites and textbooks of numerical faults have, as one
would write it for arrays: orbits, optics, losses, tables of chances, rates of interest, control and molecules.

30 with a known fault on the line marked `# <-`, eight of them gradients, and 30 healthy ones that look alike. Sources: A, Ashby, Relativity in
the Global Positioning System, 2003; B, Bishop, Pattern Recognition and Machine Learning, 2006; C, Cover and Thomas, Elements of Information
Theory; D, the manuals of deep-learning libraries; E, Battin, An Introduction to the Mathematics and Methods of Astrodynamics, 1999; F, FPBench
and Herbie's suite, after Hamming, Numerical Methods for Scientists and Engineers, chapter 3; G, Franklin, Powell and Workman, Digital Control of
Dynamic Systems; H, Higham, Accuracy and Stability of Numerical Algorithms, 2002 (section); I, Gumbel, Statistics of Extremes, 1958; J, JAX's FAQ
on where; K, Kahan, Branch Cuts for Complex Elementary Functions, 1987; L, Agresti, Categorical Data Analysis; M, Rafailov and others, Direct
Preference Optimization, 2023; N, Ashcroft and Mermin, Solid State Physics; O, Hull, Options, Futures and Other Derivatives; P, de Berg and
others, Computational Geometry; Q, Shoemake, Animating Rotation with Quaternion Curves, 1985; R, Rudin, Osher and Fatemi, Nonlinear total
variation, 1992; S, Huynh, Metrics for 3D Rotations, 2009; T, Frenkel and Smit, Understanding Molecular Simulation; W, White, Fluid Mechanics
(Blasius's friction); Y, Bloch, Nearly All Binary Searches and Mergesorts are Broken, 2006.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax.scipy.special import gamma, logsumexp, rel_entr
from scipy import special


def _array(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def _log_softmax(x):
    return x - np.max(x, axis=-1, keepdims=True) - np.log(np.sum(np.exp(x - np.max(x, axis=-1, keepdims=True)), axis=-1, keepdims=True))


_LIGHT = float(np.float32(299792458.0))  # as the programs have it


# ---------------------------------------------------------------- faulty: formulas


@faulty(CANCEL, args=(-3.0, 1e-3), points=[(-3, 1e-3), (-100, 0.5), (4, 3), (-1, 1e-5)],
        textbook=lambda x, y: np.sqrt((np.hypot(x, y) + x) / 2) if x > 0 else np.abs(y) / np.sqrt(2 * (np.hypot(x, y) - x)))  # fmt: skip
def n_complex_root(real, imaginary):  # F, K: the real part
    modulus = jnp.hypot(real, imaginary)
    return jnp.sqrt((modulus + real) / 2)  # <-


@faulty(CANCEL, SENSE, args=(1.0, 2.0, 1e-3), points=[(1, 2, 1e-3), (0.5, 0.25, 1e-5), (3, -1, 0.01), (2, 5, 0.5)],
        textbook=lambda a, b, e: e * np.expm1((a + b) * e) / (np.expm1(a * e) * np.expm1(b * e)))  # fmt: skip
def n_exponential_ratio(a, b, step):  # F
    def growth(rate):
        return jnp.exp(rate * step) - 1  # <-

    return step * growth(a + b) / (growth(a) * growth(b))


@faulty(CANCEL, args=(100.0, 1.0), points=[(100, 1), (1e4, 1), (5, 0.01), (3, 5)],
        textbook=lambda p, q: np.stack([p + np.sqrt(p * p - q), q / (p + np.sqrt(p * p - q))]))  # fmt: skip
def n_monic_roots(p, q):  # H 1.8: of x² - 2 p x + q
    d = jnp.sqrt(p * p - q)
    return jnp.stack([p + d, p - d])  # <-


@faulty(CANCEL, SENSE, args=(0.01, 0.9999), points=[(0.01, 0.9999), (1e-3, 0.999), (0.05, 0.99), (2, 0.3)],
        textbook=lambda anomaly, e: anomaly - e * np.sin(anomaly))  # fmt: skip
def n_mean_anomaly(eccentric, eccentricity):  # E 4.3, Kepler's equation
    return eccentric - eccentricity * jnp.sin(eccentric)  # <-


_LOW, _HIGH = _array(1, -2, 0.5), _array(2, 3, 4)


@faulty(OVER, args=(_LOW, _HIGH), textbook=lambda a, b: a / 2 + b / 2,
        points=[(_LOW, _HIGH), (_array(2e38, -3e38, 1), _array(3e38, -2e38, 3e38)), (_array(3e38, 0, 7), _array(3e38, 1, 8))])  # fmt: skip
def n_midpoint(low, high):  # Y
    def middle(a, b):
        return (a + b) / 2  # <-

    return jax.vmap(middle)(low, high)


@faulty(CANCEL, SENSE, args=(86400.0, 3874.0), points=[(86400, 3874), (1, 7700), (3600, 1e6), (10, 2e8)],
        textbook=lambda t, v: t * (v / _LIGHT) ** 2 / (1 + np.sqrt(1 - (v / _LIGHT) ** 2)))  # fmt: skip
def n_clock_lag(time, speed):  # A
    beta = speed / 299792458.0
    return time * (1 - jnp.sqrt(1 - beta**2))  # <-


_SIMPSON = np.array([1, 4, 2, 4, 2, 4, 2, 4, 1])


def _debye(x):
    t = x * np.arange(9) / 8
    t[0] = 1
    heights = t**3 / np.expm1(t)
    heights[0] = 0
    return np.sum(_SIMPSON * heights) / (8 * x * x)


@faulty(NAN, CANCEL, SENSE, args=(0.5,), textbook=_debye, points=[(0.5,), (1e-3,), (0.03,), (8,)])
def n_debye(x):  # N 23, by Simpson's rule
    t = x * jnp.arange(9.0) / 8
    heights = t**3 / (jnp.exp(t) - 1)  # <-
    return jnp.sum(jnp.asarray(_SIMPSON) * heights) / (8 * x * x)


@faulty(CANCEL, args=(_array(0.1, 0.7, 2), 2.0**-8), textbook=lambda x, h: -4 * np.cos(x) * (np.sin(h / 2) / h) ** 2,
        points=[(_array(0.1, 0.7, 2), 2.0**-8), (_array(1, 0.25, 3), 1e-3), (_array(-0.5, 2.5, 0), 0.5)])  # fmt: skip
def n_curvature(x, h):  # H 1.14
    def swing(t):
        return jnp.cos(t)

    def second(t):
        return (swing(t + h) - 2 * swing(t) + swing(t - h)) / h**2  # <-

    return jax.vmap(second)(x)


def _held(poles, inputs, step):
    return inputs * np.where(poles == 0, step, np.expm1(poles * step) / np.where(poles == 0, 1, poles))


_POLES, _INPUTS = _array(-2, -0.5, -1e-3), _array(1, 0.25, -3)


@faulty(CANCEL, NAN, SENSE, args=(_POLES, _INPUTS, 1e-3), textbook=_held,
        points=[(_POLES, _INPUTS, 1e-3), (_POLES, _INPUTS, 0.5), (_array(-1, 0, -7), _INPUTS, 0.01)])  # fmt: skip
def n_zero_order_hold(poles, inputs, step):  # G 4.3
    decays = jnp.exp(poles * step)
    gains = (decays - 1) / poles  # <-
    return gains * inputs


# ---------------------------------------------------------------- faulty: finance and geometry


@faulty(SENSE, CANCEL, args=(0.05, 1.0), textbook=lambda d, t: -np.log1p(-d * t / 360) * 365 / t,
        points=[(0.05, 1), (0.01, 7), (0.001, 30), (0.04, 180)])  # fmt: skip
def n_bill_yield(discount, days):  # O 4
    price = 1 - discount * days / 360
    return -jnp.log(price) * 365 / days  # <-


@faulty(CANCEL, SENSE, args=(100.0, 1e-4, 12.0), textbook=lambda p, r, n: p * np.expm1(n * np.log1p(r)) / r,
        points=[(100, 1e-4, 12), (100, 1e-6, 120), (50, 0.004, 360), (1, 0.05, 30)])  # fmt: skip
def n_savings_plan(payment, rate, times):  # O 4
    grown = (1 + rate) ** times
    return payment * (grown - 1) / rate  # <-


def _line_distance(p, a, b):
    (x, y), (u, v) = p - a, b - a
    return np.abs(u * y - v * x) / np.hypot(u, v)


_SPOT, _START, _END = _array(60107, 43102.5), _array(60101, 43100), _array(60111, 43120)


@faulty(CANCEL, args=(_SPOT, _START, _END), textbook=_line_distance,
        points=[(_SPOT, _START, _END), (10 * _SPOT, 10 * _START, 10 * _END), (_array(1, 3), _array(0, 0), _array(4, 1))])  # fmt: skip
def n_distance_to_line(spot, start, end):  # P
    (x, y), (ax, ay), (bx, by) = spot, start, end
    doubled = (by - ay) * x - (bx - ax) * y + bx * ay - by * ax  # <-
    return jnp.abs(doubled) / jnp.hypot(bx - ax, by - ay)


def _slerp(u, v, t):
    angle = np.arccos(u @ v)
    return (np.sin((1 - t) * angle) * u + np.sin(t * angle) * v) / np.sin(angle) if angle else (1 - t) * u + t * v


_STILL, _THIRD = _array(1, 0, 0, 0), _array(0.5, 0.5, 0.5, 0.5)


@faulty(NAN, args=(_STILL, _THIRD, 0.25), textbook=_slerp,
        points=[(_STILL, _THIRD, 0.25), (_THIRD, _THIRD, 0.5), (_STILL, _STILL, 0.75), (_STILL, _array(0, 0, 1, 0), 0.75)])  # fmt: skip
def n_slerp(first, second, t):  # Q
    angle = jnp.arccos(jnp.dot(first, second))
    weights = jnp.sin(jnp.stack([1 - t, t]) * angle) / jnp.sin(angle)  # <-
    return weights[0] * first + weights[1] * second


# ---------------------------------------------------------------- faulty: statistics and losses


_X, _Y = _array(10001.25, 10002, 10004.5, 10009.25), _array(5030.5, 5050, 5041.5, 5120)


@faulty(CANCEL, SENSE, NAN, args=(_X, _Y), textbook=lambda x, y: np.corrcoef(x, y)[0, 1],
        points=[(_X, _Y), (_X / 8, _Y - 4900), (_array(0.5, 1, 2, 4.5), _array(3, 2, 0.5, 1))])  # fmt: skip
def n_correlation(x, y):  # H 1.9
    def moment(a, b):
        return jnp.mean(a * b) - jnp.mean(a) * jnp.mean(b)  # <-

    return moment(x, y) / jnp.sqrt(moment(x, x) * moment(y, y))


@faulty(OVER, UNDER, NAN, args=(0.5, 60.0), textbook=lambda x, a: (a - 1) * np.log(x) - x - special.gammaln(a),
        points=[(0.5, 60), (0.01, 40), (2, 3), (200, 2)])  # fmt: skip
def n_gamma_log_density(x, shape):  # B 2.3
    return jnp.log(x ** (shape - 1) * jnp.exp(-x) / gamma(shape))  # <-


@faulty(CANCEL, SENSE, args=(0.5, 0.4999), textbook=lambda p, q: np.log1p((p - q) / (q * (1 - p))),
        points=[(0.5, 0.4999), (0.9, 0.9001), (0.01, 0.01001), (0.8, 0.3)])  # fmt: skip
def n_log_odds_ratio(treated, control):  # L 2.2
    def log_odds(p):
        return jnp.log(p / (1 - p))

    return log_odds(treated) - log_odds(control)  # <-


_SEEN, _CENTRE, _WIDTH = _array(1, 2, -0.5), _array(0.5, 0, 1), _array(1, 2, 0.25)


@faulty(UNDER, args=(_SEEN, _CENTRE, _WIDTH),
        textbook=lambda x, m, s: -np.sum(0.5 * ((x - m) / s) ** 2 + np.log(s) + 0.5 * np.log(2 * np.pi)),
        points=[(_SEEN, _CENTRE, _WIDTH), (10 * _SEEN, _CENTRE, _WIDTH), (_SEEN, _CENTRE, _WIDTH / 64)])  # fmt: skip
def n_diagonal_gaussian(x, centre, width):  # B 2.3
    z = (x - centre) / width
    density = jnp.prod(jnp.exp(-0.5 * z**2) / (width * jnp.sqrt(2 * jnp.pi)))  # <-
    return jnp.log(density)


_LOGITS, _HOT = _array([0.5, 2, -1, 0], [1, -0.5, 3, 0.25]), _array([0, 1, 0, 0], [0, 0, 0, 1])


@faulty(UNDER, NAN, args=(_LOGITS, _HOT), textbook=lambda x, y: -np.mean(np.sum((0.875 * y + 0.03125) * _log_softmax(x), axis=-1)),
        points=[(_LOGITS, _HOT), (64 * _LOGITS, _HOT), (_LOGITS - 200 * _HOT, _HOT)])  # fmt: skip
def n_label_smoothing(logits, labels):  # D
    targets = 0.875 * labels + 0.125 / labels.shape[-1]
    scores = targets * jnp.log(jax.nn.softmax(logits, axis=-1))  # <-
    return -jnp.mean(jnp.sum(scores, axis=-1))


def _information(joint):
    apart = np.sum(joint, axis=1, keepdims=True) * np.sum(joint, axis=0, keepdims=True)
    return np.sum(np.where(joint > 0, joint * np.log(np.where(joint > 0, joint, 1) / np.where(joint > 0, apart, 1)), 0))


_JOINT = _array([0.25, 0, 0.25], [0, 0.375, 0.125])


@faulty(NAN, args=(_JOINT,), textbook=_information,
        points=[(_JOINT,), (_array([0.5, 0, 0], [0, 0.5, 0]),), (_array([0.125, 0.5, 0.0625], [0.25, 0.03125, 0.03125]),)])  # fmt: skip
def n_mutual_information(joint):  # C 2.3
    rows, columns = jnp.sum(joint, axis=1, keepdims=True), jnp.sum(joint, axis=0, keepdims=True)
    return jnp.sum(joint * jnp.log(joint / (rows * columns)))  # <-


_CHOSEN, _REJECTED = _array(-12, -30, -8), _array(-15, -20, -8.5)


@faulty(UNDER, SENSE, CANCEL, OVER, args=(_CHOSEN, _REJECTED), textbook=lambda a, b: np.mean(np.logaddexp(0, -(a - b) / 8)),
        points=[(_CHOSEN, _REJECTED), (100 * _CHOSEN, _REJECTED), (_CHOSEN, 16 * _REJECTED)])  # fmt: skip
def n_preference_loss(chosen, rejected):  # M
    margins = 0.125 * (chosen - rejected)
    return -jnp.mean(jnp.log(jax.nn.sigmoid(margins)))  # <-


@faulty(CANCEL, args=(30.0, 10.0, 2.0), textbook=lambda x, m, s: -1 / np.expm1(-np.exp(-(x - m) / s)),
        points=[(30, 10, 2), (50, 2, 4), (12, 10, 1), (1, 2, 0.5)])  # fmt: skip
def n_return_period(level, location, scale):  # I
    z = (level - location) / scale
    below = jnp.exp(-jnp.exp(-z))
    return 1 / (1 - below)  # <-


def _standard(table):
    off = table - np.mean(table, axis=1, keepdims=True)
    spread = np.std(table, axis=1, keepdims=True)
    return off / np.where(spread > 0, spread, 1)


_TABLE = _array([1, 2, 4, 9], [3, 3, 3, 3], [-1, 0.5, 2, 0.5])


@faulty(NAN, args=(_TABLE,), textbook=_standard, points=[(_TABLE,), (0 * _TABLE,), (_TABLE[::-1] - 8,)])
def n_standardise(table):  # D
    def row(v):
        return (v - jnp.mean(v)) / jnp.std(v)  # <-

    return jax.vmap(row)(table)


# ---------------------------------------------------------------- faulty: gradients


def _sector_slope(places):
    (x, y), angle = places.T, np.arctan2(places[:, 1], places[:, 0])
    return np.stack([x * angle - y / 2, y * angle + x / 2], axis=1)


_PLACES = _array([0, 3], [-1, 0.5], [0, 0])


@faulty(NAN, args=(_PLACES,), of=total, textbook=_sector_slope, points=[(_PLACES,), (_array([0, 0], [2, -1], [-4, -3]),)])
def n_sector_slope(places):  # J
    def area(place):
        return 0.5 * jnp.sum(place**2) * jnp.arctan2(place[1], place[0])  # <-

    return jax.vmap(area)(places)


def _variation_slope(image):
    found = np.zeros_like(image)
    for i in range(image.shape[0] - 1):
        for j in range(image.shape[1] - 1):
            across, down = image[i, j + 1] - image[i, j], image[i + 1, j] - image[i, j]
            size = np.hypot(across, down) or 1.0
            found[i, j + 1] += across / size
            found[i + 1, j] += down / size
            found[i, j] -= (across + down) / size
    return found


_IMAGE = _array([1, 1, 4], [1, 3, 2], [0, 5, 9])


@faulty(NAN, OVER, args=(_IMAGE,), of=jax.grad, textbook=_variation_slope, points=[(_IMAGE,), (0 * _IMAGE,), (_IMAGE[:, ::-1] * 2,)])
def n_total_variation_slope(image):  # R, J
    corner = image[:-1, :-1]
    across, down = image[:-1, 1:] - corner, image[1:, :-1] - corner
    return jnp.sum(jnp.sqrt(across**2 + down**2))  # <-


@faulty(NAN, OVER, UNDER, args=(_array(1, 2, -2),), of=jax.grad,
        textbook=lambda x: np.sign(x) * x**2 / max(np.sum(np.abs(x) ** 3), 1e-300) ** (2 / 3),
        points=[(_array(1, 2, -2),), (_array(0, 0, 0),), (_array(0, 3, 0.5),)])  # fmt: skip
def n_cubic_norm_slope(x):  # J
    powers = jnp.abs(x) ** 3
    return jnp.sum(powers) ** (1 / 3)  # <-


def _geodesic_slope(rotation):
    angle = np.arccos((np.trace(rotation) - 1) / 2)
    return -np.eye(3) * (angle / np.sin(angle) if angle else 1)


_QUARTER, _CYCLE = _array([0, -1, 0], [1, 0, 0], [0, 0, 1]), _array([0, 0, 1], [1, 0, 0], [0, 1, 0])


@faulty(NAN, OVER, args=(_QUARTER,), of=jax.grad, textbook=_geodesic_slope,
        points=[(_QUARTER,), (np.eye(3, dtype=np.float32),), (_CYCLE,), (_CYCLE.T,)])  # fmt: skip
def n_geodesic_slope(rotation):  # S
    cosine = (jnp.trace(rotation) - 1) / 2
    return jnp.arccos(cosine) ** 2  # <-


def _ragged_slope(scores, mask):
    weights = np.where(mask > 0, np.exp(scores - np.max(scores, axis=1, keepdims=True)), 0)
    return weights / np.maximum(np.sum(weights, axis=1, keepdims=True), 1e-300)


_SCORES, _MASK = _array([1, 0.5, -1], [0.25, 2, 0]), _array([1, 1, 0], [0, 0, 0])


@faulty(NAN, args=(_SCORES, _MASK), of=jax.grad, textbook=_ragged_slope,
        points=[(_SCORES, _MASK), (_SCORES, 1 - _MASK), (4 * _SCORES, _MASK[::-1])])  # fmt: skip
def n_ragged_pool_slope(scores, mask):  # J
    def pool(row, seen):
        kept = row + jnp.where(seen > 0, 0.0, -jnp.inf)
        top = jnp.max(kept)
        return jnp.where(jnp.any(seen > 0), top + jnp.log(jnp.sum(jnp.exp(kept - top))), 0.0)  # <-

    return jnp.sum(jax.vmap(pool)(scores, mask))


@faulty(NAN, OVER, args=(_array(0.5, -1, 2),), of=total, textbook=lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))),
        points=[(_array(0.5, -1, 2),), (_array(100, -0.5, 200),)])  # fmt: skip
def n_elu_slope(x):  # J
    bent = jnp.exp(x) - 1  # <-
    return jnp.where(x > 0, x, bent)


@faulty(NAN, OVER, args=(_array(0.5, -2, 0),), of=total, textbook=lambda q: 1.75 * np.abs(q) ** 0.75,
        points=[(_array(0.5, -2, 0),), (_array(0, 0, 1e-6),), (_array(-30, 1e-3, 4),)])  # fmt: skip
def n_pressure_loss_slope(flows):  # W
    return flows * jnp.abs(flows) ** 0.75  # <-


def _coulomb_slope(places, charges):
    gaps = places[:, None] - places[None]
    cubes = np.sum(gaps**2, axis=-1) ** 1.5 + np.eye(len(places))
    return -np.sum((np.outer(charges, charges) / cubes)[..., None] * gaps, axis=1)


_ATOMS, _CHARGES = _array([0, 1, 0], [2, 0.5, 4], [-1, 3, 1]), _array(1, 0.5, 2)


@faulty(NAN, OVER, args=(_ATOMS, _CHARGES), of=jax.grad, textbook=_coulomb_slope,
        points=[(_ATOMS, _CHARGES), (2 * _ATOMS + 1, _CHARGES), (_ATOMS[::-1], 3 * _CHARGES)])  # fmt: skip
def n_coulomb_slope(places, charges):  # T, J
    squares = jnp.sum((places[:, None] - places[None]) ** 2, axis=-1)
    same = jnp.eye(len(places), dtype=bool)
    pairs = jnp.where(same, 0.0, jnp.outer(charges, charges) / jnp.sqrt(squares))  # <-
    return 0.5 * jnp.sum(pairs)


# ---------------------------------------------------------------- healthy: what is written in place of a fault


@healthy(-3.0, 1e-3)
def n_complex_root_by_quotient(real, imaginary):
    larger = jnp.sqrt((jnp.hypot(real, imaginary) + jnp.abs(real)) / 2)
    return jnp.where(real >= 0, larger, jnp.abs(imaginary) / (2 * larger))


@healthy(1.0, 2.0, 1e-3)
def n_exponential_ratio_by_expm1(a, b, step):
    return step * jnp.expm1((a + b) * step) / (jnp.expm1(a * step) * jnp.expm1(b * step))


@healthy(100.0, 1.0)
def n_monic_roots_by_quotient(p, q):
    larger = p + jnp.sqrt(p * p - q)
    return jnp.stack([larger, q / larger])


@healthy(86400.0, 3874.0)
def n_clock_lag_by_quotient(time, speed):
    beta = speed / 299792458.0
    return time * beta**2 / (1 + jnp.sqrt((1 - beta) * (1 + beta)))


@healthy(0.5)
def n_debye_with_guard(x):
    t = x * jnp.arange(9.0) / 8
    safe = jnp.where(t == 0, 1.0, t)
    heights = jnp.where(t == 0, 0.0, safe**3 / jnp.expm1(safe))
    return jnp.sum(jnp.asarray(_SIMPSON) * heights) / (8 * x * x)


@healthy(_POLES, _INPUTS, 1e-3)
def n_zero_order_hold_by_expm1(poles, inputs, step):
    moving = jnp.where(poles == 0, 1.0, poles)
    return inputs * jnp.where(poles == 0, step, jnp.expm1(moving * step) / moving)


@healthy(0.05, 1.0)
def n_bill_yield_by_log1p(discount, days):
    return -jnp.log1p(-discount * days / 360) * 365 / days


@healthy(100.0, 1e-4, 12.0)
def n_savings_plan_by_expm1(payment, rate, times):
    return payment * jnp.expm1(times * jnp.log1p(rate)) / rate


@healthy(_SPOT, _START, _END)
def n_distance_by_cross_product(spot, start, end):
    (x, y), (u, v) = spot - start, end - start
    return jnp.abs(u * y - v * x) / jnp.hypot(u, v)


@healthy(_X, _Y)
def n_correlation_of_deviations(x, y):
    u, v = x - jnp.mean(x), y - jnp.mean(y)
    return jnp.dot(u, v) / (jnp.linalg.norm(u) * jnp.linalg.norm(v))


@healthy(0.5, 0.4999)
def n_log_odds_ratio_by_log1p(treated, control):
    return jnp.log1p((treated - control) / (control * (1 - treated)))


@healthy(64 * _LOGITS, _HOT)
def n_label_smoothing_of_log_softmax(logits, labels):
    targets = 0.875 * labels + 0.125 / labels.shape[-1]
    return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits, axis=-1), axis=-1))


@healthy(_JOINT)
def n_mutual_information_by_rel_entr(joint):
    apart = jnp.outer(jnp.sum(joint, axis=1), jnp.sum(joint, axis=0))
    return jnp.sum(rel_entr(joint, apart))


@healthy(_CHOSEN, _REJECTED)
def n_preference_loss_by_softplus(chosen, rejected):
    return jnp.mean(jax.nn.softplus(-0.125 * (chosen - rejected)))


@healthy(30.0, 10.0, 2.0)
def n_return_period_by_expm1(level, location, scale):
    z = (level - location) / scale
    return -1 / jnp.expm1(-jnp.exp(-z))


@healthy(_TABLE)
def n_standardise_with_floor(table):
    def row(v):
        off = v - jnp.mean(v)
        return off / jnp.maximum(jnp.sqrt(jnp.mean(off**2)), 1e-6)

    return jax.vmap(row)(table)


@healthy(_IMAGE, of=jax.grad)
def n_smoothed_variation_slope(image):
    corner = image[:-1, :-1]
    across, down = image[:-1, 1:] - corner, image[1:, :-1] - corner
    return jnp.sum(jnp.sqrt(across**2 + down**2 + 1e-3))


@healthy(_SCORES, _MASK, of=jax.grad)
def n_ragged_pool_slope_with_floor(scores, mask):
    def pool(row, seen):
        return jnp.where(jnp.any(seen > 0), logsumexp(jnp.where(seen > 0, row, -1e9)), 0.0)

    return jnp.sum(jax.vmap(pool)(scores, mask))


@healthy(_array(0.5, -1, 100), of=total)
def n_elu_slope_of_minimum(x):
    return jnp.where(x > 0, x, jnp.expm1(jnp.minimum(x, 0.0)))


@healthy(_ATOMS, _CHARGES, of=jax.grad)
def n_coulomb_slope_with_guard(places, charges):
    squares = jnp.sum((places[:, None] - places[None]) ** 2, axis=-1)
    same = jnp.eye(len(places), dtype=bool)
    distances = jnp.sqrt(jnp.where(same, 1.0, squares))
    return 0.5 * jnp.sum(jnp.where(same, 0.0, jnp.outer(charges, charges) / distances))


# ---------------------------------------------------------------- healthy: what looks like a fault and is none


@healthy(_array(0.5, -2, 0), of=total)
def n_quadratic_drag_slope(flows):
    return flows * jnp.abs(flows)


@healthy(_array([0.9, 0.2, 0.4], [0.1, 0.7, 0.05]), _array([1, 0, 1], [0, 0, 0]), of=jax.grad)
def n_dice_loss_slope(chances, mask):
    shared = jnp.sum(chances * mask, axis=-1)
    whole = jnp.sum(chances, axis=-1) + jnp.sum(mask, axis=-1)
    return jnp.mean(1 - (2 * shared + 1) / (whole + 1))


@healthy(_array(0.5, -1, 2), _array(1, 2, 3), of=jax.grad)
def n_poisson_loss_slope(log_rates, counts):
    return jnp.mean(jnp.exp(log_rates) - counts * log_rates)


@healthy(_LOW, _HIGH)
def n_golden_section(low, high):
    return jax.vmap(lambda a, b: a + 0.381966 * (b - a))(low, high)


@healthy(_array(40, 60, 25))
def n_harmonic_mean(speeds):
    return speeds.size / jnp.sum(1 / speeds)


@healthy(20.0, 2000.0, 15.0)
def n_doppler(speed, pitch, celsius):  # F
    sound = 331.4 + 0.6 * celsius
    return -sound * pitch / (sound + speed) ** 2


@healthy(-2.0, 0.5, 5.0)
def n_turbine(v, w, r):  # F
    return 3 + 2 / (r * r) - 0.125 * (3 - 2 * v) * (w * w * r * r) / (1 - v) - 4.5


@healthy(_array(0.5, 1.5, -1), _array(0.75, 0.0625, 0.4), 0.5)
def n_gumbel_softmax(logits, uniforms, temperature):
    noise = -jnp.log(-jnp.log(uniforms))
    return jax.nn.softmax((logits + noise) / temperature)


@healthy(_array(-1.5, 0, 0.25, 0.5))
def n_windowed_sinc(taps):
    window = 0.5 + 0.5 * jnp.cos(jnp.pi * taps / 4)
    return window * jnp.sinc(taps)


@healthy(_array(1.5, 1), _array([0, 0], [4, 1], [1, 3]))
def n_barycentric(place, corners):
    def doubled(a, b):
        (x, y), (u, v) = a - place, b - place
        return x * v - y * u

    areas = jax.vmap(doubled)(jnp.roll(corners, -1, axis=0), jnp.roll(corners, -2, axis=0))
    return areas / jnp.sum(areas)
