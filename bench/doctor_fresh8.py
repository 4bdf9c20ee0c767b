"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: navigation, optics, credit, radioactive decay, robotics,
information theory, count data and the sampling of policies, as their users write them.

24 with a known fault on the line marked `# <-`, three of them gradients, and 24 healthy ones that look alike. Sources: A, Sinnott, Virtues of the
Haversine, 1984; B, Kahan, Miscalculating Area and Angles of a Needle-like Triangle, 2014; C, Bateman, Solution of a system of differential
equations in the theory of radioactive transformations, 1910; D, Hull, Options, Futures and Other Derivatives; E, Haarnoja and others, Soft
Actor-Critic, 2018; F, Higham, Accuracy and Stability of Numerical Algorithms; G, Greene, Econometric Analysis (19, Mills's ratio); H, Hilbe,
Negative Binomial Regression; J, JAX's FAQ on where; K, Kahan, Branch Cuts for Complex Elementary Functions, 1987; L, Lin, Divergence Measures
Based on the Shannon Entropy, 1991; M, Mächler, Accurately Computing log(1 - exp(-|a|)), 2012; N, Hamming, as in Herbie's suite; P, Press and
others, Numerical Recipes; Q, the manuals of deep-learning libraries; W, Welford, 1962.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax.scipy import special as jsp
from scipy import special


def _array(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def _less_log1p(d):  # d - log(1 + d)
    near = np.where(np.abs(d) < 0.1, d, 0)
    return np.where(np.abs(d) < 0.1, sum((-1) ** k * near**k / k for k in range(2, 30)), d - np.log1p(np.where(np.abs(d) < 0.1, 1, d)))

# ---------------------------------------------------------------- faulty: geometry and navigation
def _haversine(a, b, c, d):
    h = np.sin((c - a) / 2) ** 2 + np.cos(a) * np.cos(c) * np.sin((d - b) / 2) ** 2
    return 2 * np.arctan2(np.sqrt(h), np.sqrt(1 - h))


@faulty(SENSE, CANCEL, NAN, args=(0.75, 0.5, 0.75 + 2.0**-13, 0.5 - 2.0**-12), textbook=_haversine,
        points=[(0.75, 0.5, 0.75 + 2.0**-13, 0.5 - 2.0**-12), (0.25, -1, 0.25 + 2.0**-9, -1 + 2.0**-9), (0.5, 0.125, -0.25, 1.5),
                (-1, 2, -0.875, 2)])  # fmt: skip
def q_great_circle(latitude, longitude, other_latitude, other_longitude):  # A
    along = jnp.sin(latitude) * jnp.sin(other_latitude)
    across = jnp.cos(latitude) * jnp.cos(other_latitude) * jnp.cos(other_longitude - longitude)
    return jnp.arccos(along + across)  # <-


@faulty(CANCEL, args=(_array(3, 4), _array(3.0078125, 4.00390625)),
        textbook=lambda u, v: np.arctan2(u[0] * v[1] - u[1] * v[0], u @ v),
        points=[(_array(3, 4), _array(3.0078125, 4.00390625)), (_array(100, 1), _array(101, 1)), (_array(1, 2), _array(-2, 1.5))])  # fmt: skip
def q_turn(heading, next_heading):
    return jnp.arctan2(next_heading[1], next_heading[0]) - jnp.arctan2(heading[1], heading[0])  # <-


def _needle(a, b, c):
    a, b = max(a, b), min(a, b)
    m = c - (a - b) if b >= c else b - (a - c)
    return 2 * np.arctan(np.sqrt(((a - b) + c) * m / ((a + (b + c)) * ((a - c) + b))))


@faulty(SENSE, CANCEL, NAN, args=(5.0, 5.0, 0.001953125), textbook=_needle,
        points=[(5, 5, 0.001953125), (100, 99.9921875, 0.015625), (3, 4, 5), (1, 1, 1)])  # fmt: skip
def q_needle_angle(a, b, c):  # B: between the sides a and b
    return jnp.arccos((a * a + b * b - c * c) / (2 * a * b))  # <-


@faulty(CANCEL, args=(6.4e6, 250.0), textbook=lambda r, c: c * c / (r + np.sqrt((r - c) * (r + c))),
        points=[(6.4e6, 250), (1000, 0.5), (10, 4), (3, 3)])  # fmt: skip
def q_sagitta(radius, half_chord):
    return radius - jnp.sqrt(radius**2 - half_chord**2)  # <-


@faulty(CANCEL, SENSE, args=(1e-3,), textbook=lambda x: 2 * np.tan(x) * np.sin(x / 2) ** 2, points=[(1e-3,), (-0.02,), (0.3,), (1.25,)])
def q_tangent_less_sine(x):  # N
    return jnp.tan(x) - jnp.sin(x)  # <-

# ---------------------------------------------------------------- faulty: physics
@faulty(CANCEL, args=(3000.0, 0.5), textbook=lambda v, h: 2 * h / (v + np.sqrt(v * v + 2 * 9.81 * h)),
        points=[(3000, 0.5), (250, 0.015625), (1, 10), (0, 2)])  # fmt: skip
def q_time_to_fall(speed, height):
    return (jnp.sqrt(speed**2 + 2 * 9.81 * height) - speed) / 9.81  # <-


@faulty(CANCEL, SENSE, NAN, args=(0.25, 0.25006103515625, 2.0), textbook=lambda a, b, t: np.exp(-a * t) * -np.expm1((a - b) * t) / (b - a),
        points=[(0.25, 0.25006103515625, 2), (0.5, 0.50048828125, 0.125), (0.1, 2, 3), (2, 0.5, 1)])  # fmt: skip
def q_daughter_share(decay, daughter_decay, time):  # C
    left = jnp.exp(-decay * time) - jnp.exp(-daughter_decay * time)  # <-
    return left / (daughter_decay - decay)


_LEVELS = _array(40, 41.5, 43, 60)


def _mean_energy(levels, temperature):
    w = np.exp(-(levels - np.min(levels)) / temperature)
    return np.sum(levels * w) / np.sum(w)


@faulty(UNDER, NAN, args=(_LEVELS, 1.0), textbook=_mean_energy, points=[(_LEVELS, 1), (_LEVELS, 0.125), (_LEVELS * 10, 2), (_LEVELS / 64, 1)])
def q_mean_energy(levels, temperature):
    weights = jnp.exp(-levels / temperature)  # <-
    return jnp.sum(levels * weights) / jnp.sum(weights)


@faulty(CANCEL, args=(2.0**-9,), textbook=lambda t: 2 * np.sin(t / 2) ** 2, points=[(2.0**-9,), (1e-4,), (-0.01,), (2,)])
def q_lost_coherence(phase):
    return 1 - jnp.real(jnp.exp(1j * phase))  # <-


@faulty(SENSE, CANCEL, OVER, args=(0.99993896484375, 0.001953125), textbook=lambda x, y: np.log1p((x - 1) * (x + 1) + y * y) / 2,
        points=[(0.99993896484375, 0.001953125), (1, 0.01), (1.00390625, -0.0009765625), (3, 4), (0.25, 0.5)])  # fmt: skip
def q_log_modulus(x, y):  # K
    return jnp.log(jnp.sqrt(x * x + y * y))  # <-

# ---------------------------------------------------------------- faulty: finance
@faulty(CANCEL, SENSE, args=(0.05, 365.0), textbook=lambda r, n: n * np.expm1(np.log1p(r) / n),
        points=[(0.05, 365), (1e-4, 12), (0.3, 8760), (0.5, 2)])  # fmt: skip
def q_nominal_rate(effective, periods):  # D 4
    return periods * ((1 + effective) ** (1 / periods) - 1)  # <-


@faulty(CANCEL, args=(_array(0.99985, 0.9991, 0.9955), _array(0.99981, 0.9986, 0.9912), 0.25), textbook=lambda p, q, t: (p - q) / q / t,
        points=[(_array(0.99985, 0.9991, 0.9955), _array(0.99981, 0.9986, 0.9912), 0.25), (_array(0.7, 0.5), _array(0.69998, 0.4), 0.5)])  # fmt: skip
def q_forward_rate(discount, next_discount, period):  # D 4
    return (discount / next_discount - 1) / period  # <-

# ---------------------------------------------------------------- faulty: statistics
_WEIGHINGS = _array(1000.25, 1000.5, 999.875, 1000.125, 1000)


@faulty(CANCEL, args=(_WEIGHINGS,), textbook=lambda x: np.std(x, ddof=1) / np.sqrt(len(x)),
        points=[(_WEIGHINGS,), (_WEIGHINGS + 3000,), (_WEIGHINGS - 1000,)])  # fmt: skip
def q_standard_error(weighings):  # W
    n = weighings.shape[0]
    spread = (jnp.sum(weighings**2) - n * jnp.mean(weighings) ** 2) / (n - 1)  # <-
    return jnp.sqrt(spread / n)


@faulty(OVER, NAN, args=(30.0, 25.0), textbook=lambda a, b: special.betaln(a, b), points=[(30, 25), (100, 60), (40, 200), (3, 2.5)])
def q_log_beta(a, b):  # P 6.1
    return jnp.log(jsp.gamma(a) * jsp.gamma(b) / jsp.gamma(a + b))  # <-


@faulty(CANCEL, SENSE, args=(2.0, 2.0009765625), textbook=lambda a, b: _less_log1p((b - a) / a),
        points=[(2, 2.0009765625), (0.5, 0.498046875), (1, 3), (5, 1)])  # fmt: skip
def q_exponential_divergence(rate, other_rate):
    return jnp.log(rate / other_rate) + other_rate / rate - 1  # <-


_SEEN, _EXPECTED = _array(0, 2, 7), _array(0.5, 1.5, 9)


@faulty(SENSE, CANCEL, args=(_SEEN, _EXPECTED, 1e6), textbook=lambda k, m, r: k * np.log(m / (r + m)) - r * np.log1p(m / r),
        points=[(_SEEN, _EXPECTED, 1e6), (_SEEN, _EXPECTED, 3e4), (_SEEN, _EXPECTED, 2)])  # fmt: skip
def q_negative_binomial(counts, means, dispersion):  # H, without the gamma functions
    return counts * jnp.log(means / (dispersion + means)) + dispersion * jnp.log(dispersion / (dispersion + means))  # <-


@faulty(UNDER, NAN, CANCEL, args=(15.0,), textbook=lambda x: np.sqrt(2 / np.pi) / special.erfcx(x / np.sqrt(2)), points=[(15,), (6,), (1,), (-2,)])
def q_inverse_mills(x):  # G
    density = jnp.exp(-(x**2) / 2) / jnp.sqrt(2 * jnp.pi)
    return density / (1 - jsp.ndtr(x))  # <-

# ---------------------------------------------------------------- faulty: information and learning
_SHARES, _OTHERS = _array(0, 0.25, 0.75, 0), _array(0.5, 0, 0.5, 0)


@faulty(NAN, args=(_SHARES, _OTHERS), textbook=lambda p, q: np.sum(special.rel_entr(p, (p + q) / 2) + special.rel_entr(q, (p + q) / 2)) / 2,
        points=[(_SHARES, _OTHERS), (_OTHERS, _array(0.25, 0.25, 0.25, 0.25)), (_array(0.5, 0.25, 0.125, 0.125), _SHARES)])  # fmt: skip
def q_jensen_shannon(p, q):  # L
    middle = (p + q) / 2
    return jnp.sum(p * jnp.log(p / middle) + q * jnp.log(q / middle)) / 2  # <-


_SCORES, _TARGETS = _array([2, -1, 0.5], [0.25, 3, -2]), np.array([0, 2], np.int32)


def _bits(scores):
    logs = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return -np.mean([logs[i, t] for i, t in enumerate(_TARGETS)]) / np.log(2)


@faulty(UNDER, OVER, NAN, args=(_SCORES,), textbook=_bits, points=[(_SCORES,), (40 * _SCORES,), (_SCORES + 200,)])
def q_bits_per_token(scores):  # Q
    chances = jnp.exp(scores) / jnp.sum(jnp.exp(scores), axis=-1, keepdims=True)  # <-
    return -jnp.mean(jnp.log2(chances[jnp.arange(2), _TARGETS]))


@faulty(OVER, CANCEL, NAN, SENSE, args=(3.0, 2.99951171875), textbook=lambda a, b: a + np.log(-np.expm1(b - a)),
        points=[(3, 2.99951171875), (100, 99), (-120, -121.5), (1, -20)])  # fmt: skip
def q_log_of_difference(a, b):  # M
    return jnp.log(jnp.exp(a) - jnp.exp(b))  # <-

# ---------------------------------------------------------------- faulty: gradients
@faulty(NAN, CANCEL, SENSE, args=(_array(0.5, -2, 9),), of=total, textbook=lambda x: -2 * np.tanh(x),
        points=[(_array(0.5, -2, 9),), (_array(12, -30, 0.01),)])  # fmt: skip
def q_squash_slope(x):  # E
    return jnp.log(1 - jnp.tanh(x) ** 2)  # <-


@faulty(NAN, args=(_array(0.5, 1.5, -3),), of=total,
        textbook=lambda x: np.where(np.abs(x) < 1, 1 / np.sqrt(1 - np.where(np.abs(x) < 1, x, 0) ** 2), 0),
        points=[(_array(0.5, 1.5, -3),), (_array(0, -0.75, 2),)])  # fmt: skip
def q_pitch_slope(sines):  # J
    return jnp.arcsin(jnp.clip(sines, -1.0, 1.0))  # <-


@faulty(NAN, args=(_array(0.5, 4, -1),), of=total, textbook=lambda h: np.where(h > 0, np.sqrt(19.62) / 2 / np.sqrt(np.where(h > 0, h, 1)), 0),
        points=[(_array(0.5, 4, -1),), (_array(-3, 0.0625, 2),)])  # fmt: skip
def q_outflow_slope(levels):  # J
    return jnp.sqrt(2 * 9.81 * jnp.maximum(levels, 0.0))  # <-


@faulty(NAN, args=(_array(0.5, 1.25, 3),), of=total,
        textbook=lambda x: np.where(x > 1, 1 / np.sqrt(np.where(x > 1, x, 2) ** 2 - 1), 0),
        points=[(_array(0.5, 1.25, 3),), (_array(-2, 8, 0),)])  # fmt: skip
def q_catenary_slope(stretch):  # J
    return jnp.where(stretch > 1, jnp.log(stretch + jnp.sqrt(stretch**2 - 1)), 0.0)  # <-

# ---------------------------------------------------------------- healthy: what is written in place of a fault
@healthy(0.75, 0.5, 0.75 + 2.0**-13, 0.5 - 2.0**-12)
def q_great_circle_by_haversine(latitude, longitude, other_latitude, other_longitude):
    h = jnp.sin((other_latitude - latitude) / 2) ** 2
    h += jnp.cos(latitude) * jnp.cos(other_latitude) * jnp.sin((other_longitude - longitude) / 2) ** 2
    return 2 * jnp.arctan2(jnp.sqrt(h), jnp.sqrt(1 - h))


@healthy(_array(3, 4), _array(3.0078125, 4.00390625))
def q_turn_by_cross_product(heading, next_heading):
    across = heading[0] * next_heading[1] - heading[1] * next_heading[0]
    return jnp.arctan2(across, jnp.dot(heading, next_heading))


@healthy(6.4e6, 250.0)
def q_sagitta_by_quotient(radius, half_chord):
    return half_chord**2 / (radius + jnp.sqrt((radius - half_chord) * (radius + half_chord)))


@healthy(3000.0, 0.5)
def q_time_to_fall_by_quotient(speed, height):
    return 2 * height / (speed + jnp.sqrt(speed**2 + 2 * 9.81 * height))


@healthy(0.25, 0.25006103515625, 2.0)
def q_daughter_share_by_expm1(decay, daughter_decay, time):
    gap = daughter_decay - decay
    return -jnp.exp(-decay * time) * jnp.expm1(-gap * time) / gap


@healthy(_LEVELS, 0.125)
def q_mean_energy_by_softmax(levels, temperature):
    return jnp.sum(levels * jax.nn.softmax(-levels / temperature))


@healthy(0.05, 365.0)
def q_nominal_rate_by_expm1(effective, periods):
    return periods * jnp.expm1(jnp.log1p(effective) / periods)


@healthy(_WEIGHINGS)
def q_standard_error_of_residuals(weighings):
    residuals = weighings - jnp.mean(weighings)
    n = weighings.shape[0]
    return jnp.sqrt(jnp.sum(residuals**2) / (n * (n - 1)))


@healthy(100.0, 60.0)
def q_log_beta_of_library(a, b):
    return jsp.betaln(a, b)


@healthy(_SEEN, _EXPECTED, 3e4)
def q_negative_binomial_by_log1p(counts, means, dispersion):
    return counts * jnp.log(means / (dispersion + means)) - dispersion * jnp.log1p(means / dispersion)


@healthy(_SHARES, _OTHERS)
def q_jensen_shannon_by_rel_entr(p, q):
    middle = (p + q) / 2
    return jnp.sum(jsp.rel_entr(p, middle) + jsp.rel_entr(q, middle)) / 2


@healthy(40 * _SCORES)
def q_bits_per_token_by_log_softmax(scores):
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(2), _TARGETS]) / jnp.log(2.0)


@healthy(100.0, 99.0)
def q_log_of_difference_by_expm1(a, b):
    return a + jnp.log(-jnp.expm1(b - a))


@healthy(_array(0.5, 4, -1), of=total)
def q_outflow_slope_with_guard(levels):
    wet = levels > 0
    return jnp.where(wet, jnp.sqrt(2 * 9.81 * jnp.where(wet, levels, 1.0)), 0.0)

# ---------------------------------------------------------------- healthy: what looks like a fault and is none
@healthy(_array(1, 1e-5, 1e-5, -0.75, 3e-5))
def q_compensated_sum(x):  # Kahan's: what cancels is what was lost
    def add(carried, term):
        so_far, lost = carried
        term = term - lost
        new = so_far + term
        return (new, (new - so_far) - term), None

    return jax.lax.scan(add, (jnp.zeros(()), jnp.zeros(())), x)[0][0]


@healthy(_array([0, 0.5], [2, -0.5], [-1, 3]))
def q_potential_of_charges(places):  # the diagonal is infinite, and is not taken
    gaps = places[:, None] - places[None]
    squares = jnp.sum(gaps**2, axis=-1)
    return jnp.sum(jnp.where(jnp.eye(3, dtype=bool), 0.0, 1 / jnp.sqrt(squares))) / 2


@healthy(_array(0.5, 0.5, 0), _array(-1, -2, -0.5))
def q_evidence(prior, log_likelihood):  # the logarithm of a prior of nought is meant
    return jsp.logsumexp(jnp.log(prior) + log_likelihood)


@healthy(_array(1, 5, -2, 4), np.array([True, False, True, True]))
def q_masked_maximum(x, seen):
    best = jnp.max(jnp.where(seen, x, -jnp.inf))
    return best + jnp.log(jnp.sum(jnp.where(seen, jnp.exp(x - best), 0.0)))


@healthy(_array(100, 104, 99.5, 101.25))
def q_returns(prices):
    return (prices[1:] - prices[:-1]) / prices[:-1]


@healthy(_array(5, 5, 105), 0.04)
def q_bond_price(payments, rate):
    return jnp.sum(payments / (1 + rate) ** jnp.arange(1, 4))


@healthy(0.5, 0.25, 0.0625)
def q_pendulum_step(angle, speed, step):  # Störmer and Verlet
    half = speed - step / 2 * jnp.sin(angle)
    turned = angle + step * half
    return turned, half - step / 2 * jnp.sin(turned)


@healthy(_array([1, 2, 0.5], [3, -1, 0.25]), _array(0.5, -1), of=jax.grad)
def q_ridge_slope(design, wanted):
    weights = jnp.array([0.5, 1.0, -0.25])
    return jnp.mean((design @ weights - wanted) ** 2) + 0.5 * jnp.sum(weights**2)


@healthy(_array(0.2, 0.9, 3), _array(0.1, 1, 2.5))
def q_kernel_row(x, y):  # far points count for nothing
    weights = jnp.exp(-50 * (x[:, None] - y[None]) ** 2)
    return jnp.sum(weights * y[None], axis=1) / (1 + jnp.sum(weights, axis=1))


@healthy(0.6, 1.5)
def q_kelly(chance, odds):
    return (chance * (odds + 1) - 1) / odds
