"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: statistics, losses, orbits, optics, chemistry, finance and
geometry, in several statements and helper functions.

30 with a known fault on the line marked `# <-`, a quarter of them gradients, and 30 healthy ones that look alike. Sources: A, Atkins, Physical
Chemistry; B, Curtis, Orbital Mechanics for Engineering Students; C, Copeland, Evaluation of Enzyme Inhibitors (Morrison's equation); D, the
manuals of deep-learning libraries; F, Hull, Options, Futures and Other Derivatives; G, O'Rourke, Computational Geometry in C, 1998; H, Higham,
Accuracy and Stability of Numerical Algorithms, 2002; J, JAX's FAQ on where; K, Kalbfleisch and Prentice, The Statistical Analysis of Failure
Time Data; M, Mardia and Jupp, Directional Statistics, 2000; N, McCullagh and Nelder, Generalized Linear Models, 1989; O, Hecht, Optics; P, the
US GAO's report on the Patriot missile's clock, 1992; Q, Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons, 2013; R,
Radenović et al., Fine-tuning CNN Image Retrieval, 2018 (generalised means); S, Haarnoja et al., Soft Actor-Critic, 2018, appendix C; T,
Hille, Ion Channels of Excitable Membranes (the Goldman, Hodgkin and Katz equation); U, Kong, A note on importance sampling, 1992; W, Wahba,
Spline Models for Observational Data, 1990; X, Box and Cox, An Analysis of Transformations, 1964; Y, Hastie, Tibshirani and Friedman, The
Elements of Statistical Learning, 6.1.1; Z, Taylor and Wheeler, Spacetime Physics.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax import lax
from jax.scipy.special import xlogy

ROUND, DEAD = "rounding", "dead gradient"
DOUBLE = np.float64


def _array(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def _sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


_MU, _GM, _GAS = (float(np.float32(x)) for x in (398600.44, 1.327e20, 8.314))  # as the programs have them


# ---------------------------------------------------------------- faulty: formulas


_CURVE = _array(1, 0.9997, 0.9991, 0.9988)


@faulty(CANCEL, SENSE, args=(_CURVE, 0.25), textbook=lambda d, t: (d[:-1] - d[1:]) / (d[1:] * t),
        points=[(_CURVE, 0.25), (_array(1, 0.99999, 0.99998), 0.0833), (_array(1, 0.9, 0.7), 2)])  # fmt: skip
def m_forward_rates(discounts, span):  # F 4
    near, far = discounts[:-1], discounts[1:]
    growth = near / far
    return (growth - 1) / span  # <-


@faulty(UNDER, OVER, SENSE, args=(_array(3e-22, 0.5, 2e-21), _array(-4e-22, 2, 1e-21)),
        textbook=lambda a, b: 20 * np.log10(np.hypot(a, b)),
        points=[(_array(3e-22, 0.5, 2e-21), _array(-4e-22, 2, 1e-21)), (_array(30, 2e20), _array(-4, 1e21))])  # fmt: skip
def m_spectrum_level(real, imaginary):  # H 27.8
    return 10 * jnp.log10(real**2 + imaginary**2)  # <-


@faulty(CANCEL, SENSE, args=(0.01, 140.0, 5.0), textbook=lambda v, a, b: v / 25 * (a - b * np.exp(-v / 25)) / -np.expm1(-v / 25),
        points=[(0.01, 140, 5), (-0.002, 12, 145), (0.3, 10, 1), (-60, 140, 5), (40, 1, 3)])  # fmt: skip
def m_ion_current(voltage, inside, outside):  # T
    z = voltage / 25.0
    return z * (inside - outside * jnp.exp(-z)) / (1 - jnp.exp(-z))  # <-


@faulty(OVER, NAN, args=(60.0, 1.0), textbook=lambda g, t: _GAS * (g / t) ** 2 * np.exp(-g / t) / (1 + np.exp(-g / t)) ** 2,
        points=[(60, 1), (3, 2), (50, 0.5), (40, 0.5), (0.125, 4)])  # fmt: skip
def m_schottky_heat(gap, temperature):  # A
    x = gap / temperature
    return 8.314 * x**2 * jnp.exp(x) / (1 + jnp.exp(x)) ** 2  # <-


@faulty(
    CANCEL,
    SENSE,
    args=(7000.0, 7001.0),
    textbook=lambda a, b: np.sqrt(_MU / a) * (b - a) / ((a + b) * (np.sqrt(2 * b / (a + b)) + 1)),
    points=[(7000, 7001), (6778, 6778.5), (42164, 42100), (6578, 42164)],
)
def m_transfer_burn(inner, outer):  # B 6.3
    circular = jnp.sqrt(398600.44 / inner)
    excess = jnp.sqrt(2 * outer / (inner + outer)) - 1  # <-
    return circular * excess


@faulty(CANCEL, ROUND, args=(50.0, 50.001), dtype=DOUBLE, textbook=lambda f, d: f * d / (d - f),
        points=[(50, 50.001), (0.05, 0.0500001), (35, 1e4), (85, 84.9999)])  # fmt: skip
def m_image_distance(focal, distance):  # O 5.2
    power = 1 / focal - 1 / distance  # <-
    return 1 / power


@faulty(
    CANCEL,
    args=(0.99, 0.995),
    textbook=lambda u, v: (1 - u) * (1 - v) / (1 + u * v),
    points=[(0.99, 0.995), (0.9999, 0.9), (0.99999, 0.9999), (0.5, 0.25)],
)
def m_speed_below_light(u, v):  # Z
    total_speed = (u + v) / (1 + u * v)
    return 1 - total_speed  # <-


def _box_cox(x, power):
    return np.where(power == 0, np.log(x), np.expm1(power * np.log(x)) / np.where(power == 0, 1, power))


@faulty(CANCEL, SENSE, args=(_array(0.5, 2, 7), 1e-3), textbook=_box_cox,
        points=[(_array(0.5, 2, 7), 1e-3), (_array(0.1, 30), -1e-5), (_array(3, 1.5), 0), (_array(3, 0.25), 0.5)])  # fmt: skip
def m_box_cox(x, power):  # X
    def transform(v):
        return jnp.where(power == 0, jnp.log(v), (v**power - 1) / power)  # <-

    return jax.vmap(transform)(x)


@faulty(
    CANCEL,
    SENSE,
    args=(_array(3, 4), 1e-3),
    textbook=lambda x, t: np.stack(
        [-2 * x[0] * np.sin(t / 2) ** 2 - x[1] * np.sin(t), x[0] * np.sin(t) - 2 * x[1] * np.sin(t / 2) ** 2]
    ),
    points=[(_array(3, 4), 1e-3), (_array(5, 1), 1e-5), (_array(-2, -7), 0.01), (_array(100, 0), 2e-3)],
)
def m_displacement(place, angle):  # G
    c, s = jnp.cos(angle), jnp.sin(angle)
    rotation = jnp.array([[c, -s], [s, c]])
    return rotation @ place - place  # <-


_ENZYME = _array(0.5, 1, 2)


@faulty(
    CANCEL,
    args=(_ENZYME, 0.25, 100.0),
    textbook=lambda s, e, k: 2 * e * s / (e + s + k + np.sqrt((e + s + k) ** 2 - 4 * e * s)),
    points=[(_ENZYME, 0.25, 100), (_ENZYME, 1e-3, 5), (_ENZYME, 2, 1e4), (_ENZYME, 3, 1)],
)
def m_tight_binding(ligands, enzyme, constant):  # C
    def bound(ligand):
        b = enzyme + ligand + constant
        return (b - jnp.sqrt(b * b - 4 * enzyme * ligand)) / 2  # <-

    return jax.vmap(bound)(ligands)


@faulty(ROUND, args=(3.75, 0.1), textbook=lambda v, tick: v * 1000 * tick, points=[(3.75, 0.1), (1, 0.01), (-2, 0.3)])
def m_missile_range(speed, tick):  # P
    clock = lax.fori_loop(0, 1000, lambda _, time: time + tick, 0.0)  # <-
    return speed * clock


# ---------------------------------------------------------------- faulty: statistics and likelihoods


def _log_log(eta, y):
    return np.sum(y * np.log(-np.expm1(-np.exp(eta))) - (1 - y) * np.exp(eta))


@faulty(CANCEL, SENSE, UNDER, args=(_array(-9, 0.5, -3), _array(1, 0, 1)), textbook=_log_log,
        points=[(_array(-9, 0.5, -3), _array(1, 0, 1)), (_array(-20, -30, 1), _array(1, 0, 1)), (_array(0.25, -14), _array(1, 1))])  # fmt: skip
def m_complementary_log_log(eta, y):  # N 4.3
    hazard = jnp.exp(eta)
    chance = 1 - jnp.exp(-hazard)  # <-
    return jnp.sum(y * jnp.log(chance) - (1 - y) * hazard)


@faulty(CANCEL, SENSE, UNDER, args=(_array(0.5, -4, 7),), textbook=lambda u: 2 * np.sum(np.log(2) - np.logaddexp(u, -u)),
        points=[(_array(0.5, -4, 7),), (_array(12, -1, 3),), (_array(-40, 100, 0.25),)])  # fmt: skip
def m_squash_correction(actions):  # S
    def log_slope(u):
        return jnp.log(1 - jnp.tanh(u) ** 2)  # <-

    return jnp.sum(jax.vmap(log_slope)(actions))


_RETURNS = _array(1e-3, 2e-4, 5e-4, 3e-3)


@faulty(CANCEL, SENSE, args=(_RETURNS,), textbook=lambda r: np.expm1(np.sum(np.log1p(r))),
        points=[(_RETURNS,), (_array(1e-6, 3e-6, 2e-7),), (_array(-1e-4, -5e-4),), (_array(0.1, 0.05, 0.2),)])  # fmt: skip
def m_total_return(returns):  # F
    wealth = jnp.prod(1 + returns)
    return wealth - 1  # <-


_DEATHS, _RISK = _array(1, 2, 1, 1), _array(4000, 3900, 3850, 3700)


@faulty(SENSE, CANCEL, UNDER, args=(_DEATHS, _RISK), textbook=lambda d, n: np.cumsum(np.log1p(-d / n)),
        points=[(_DEATHS, _RISK), (_DEATHS, 100 * _RISK), (_array(1, 3, 2), _array(10, 8, 4))])  # fmt: skip
def m_log_survival_curve(deaths, at_risk):  # K
    hazards = deaths / at_risk
    return jnp.log(jnp.cumprod(1 - hazards))  # <-


_WEIGHTS = _array(-100, -101.5, -99, -104)


def _effective(x):
    w = np.exp(x - np.max(x))
    return np.sum(w) ** 2 / np.sum(w**2)


@faulty(UNDER, OVER, NAN, args=(_WEIGHTS,), textbook=_effective,
        points=[(_WEIGHTS,), (-_WEIGHTS,), (_array(0, 1, 2),), (_WEIGHTS - 400,)])  # fmt: skip
def m_effective_sample_size(log_weights):  # U
    return jnp.sum(jnp.exp(log_weights)) ** 2 / jnp.sum(jnp.exp(2 * log_weights))  # <-


_PLACES, _HEIGHTS = _array(0, 0.5, 1.25, 2), _array(1, 3, 2, 4)


def _regressed(q, x, y, h):
    power = -0.5 * ((q - x) / h) ** 2
    w = np.exp(power - np.max(power))
    return np.sum(w * y) / np.sum(w)


@faulty(UNDER, NAN, args=(10.0, _PLACES, _HEIGHTS, 0.5), textbook=_regressed,
        points=[(10, _PLACES, _HEIGHTS, 0.5), (0.75, _PLACES, _HEIGHTS, 0.5), (-3, _PLACES, _HEIGHTS, 0.0625)])  # fmt: skip
def m_kernel_regression(query, places, heights, width):  # Y
    def kernel(place):
        distance = (query - place) / width
        return jnp.exp(-0.5 * distance**2)  # <-

    weights = jax.vmap(kernel)(places)
    return jnp.sum(weights * heights) / jnp.sum(weights)


@faulty(CANCEL, args=(_array(1001, 1002, 1004, 1009),), textbook=lambda x: np.mean((x - np.mean(x)) ** 3),
        points=[(_array(1001, 1002, 1004, 1009),), (_array(51, 52, 54, 59),), (_array(0, 0.5, 2.5),)])  # fmt: skip
def m_third_moment(x):  # H 1.9
    first, second, third = jnp.mean(x), jnp.mean(x**2), jnp.mean(x**3)
    return third - 3 * first * second + 2 * first**3  # <-


_ANGLES = _array(0.5, 0.503, 0.498, 0.5015)


def _circular(x):
    sines = np.sin((x[:, None] - x[None, :]) / 2)
    return np.sqrt(-np.log1p(-2 * np.mean(sines**2)))


@faulty(SENSE, CANCEL, args=(_ANGLES,), textbook=_circular,
        points=[(_ANGLES,), (_array(3, 3.0001, 2.9997),), (_array(-1, -0.75, -1.125, -0.5),)])  # fmt: skip
def m_circular_deviation(angles):  # M 2.3
    c, s = jnp.mean(jnp.cos(angles)), jnp.mean(jnp.sin(angles))
    length = jnp.sqrt(c**2 + s**2)
    return jnp.sqrt(-2 * jnp.log(length))  # <-


_EAST, _NORTH = _array(43102, 43108.5, 43107.5, 43101), _array(54120, 54121, 54125.5, 54126)


def _area(x, y):
    x, y = x - x[0], y - y[0]
    return 0.5 * np.abs(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))


@faulty(CANCEL, args=(_EAST, _NORTH), textbook=_area,
        points=[(_EAST, _NORTH), (_EAST + 4e5, _NORTH + 5.4e6), (_array(0, 4, 1), _array(0, 1, 3))])  # fmt: skip
def m_parcel_area(east, north):  # G 1.3
    after_east, after_north = jnp.roll(east, -1), jnp.roll(north, -1)
    twice = jnp.sum(east * after_north - after_east * north)  # <-
    return 0.5 * jnp.abs(twice)


_SUN, _EARTH, _FAR = _array(0, 0, 0), _array(1.2e11, -0.9e11, 1e7), _array(2e13, 3e13, -1e12)


def _pull(x, y):
    d = x - y
    return -_GM * d / np.sum(d * d) ** 1.5


@faulty(OVER, args=(_FAR, _SUN), textbook=_pull,
        points=[(_FAR, _SUN), (_EARTH, _SUN), (_FAR, _EARTH), (100 * _FAR, _SUN)])  # fmt: skip
def m_solar_gravity(place, sun):  # B 2.2
    d = place - sun
    return -1.327e20 * d / jnp.sum(d * d) ** 1.5  # <-


_FEATURES = _array([12, 3], [40, 0.5], [25, 30])


def _pooled(x, p):
    most = np.max(x, axis=0)
    return most * np.mean((x / most) ** p, axis=0) ** (1 / p)


@faulty(OVER, UNDER, args=(_FEATURES, 25.0), textbook=_pooled,
        points=[(_FEATURES, 25), (_FEATURES, 3), (1e-3 * _FEATURES, 30), (_FEATURES, 64)])  # fmt: skip
def m_generalised_mean_pool(features, power):  # R
    return jnp.mean(features**power, axis=0) ** (1 / power)  # <-


_KNOTS, _LOADS = _array([0, 0], [3, 1], [-2, 2]), _array(1, 0.5, 2)


def _plate(x, knots, w):
    square = np.sum((x - knots) ** 2, axis=1)
    return np.sum(w * 0.5 * square * np.log(np.where(square > 0, square, 1)))


@faulty(NAN, args=(_array(3, 1), _KNOTS, _LOADS), textbook=_plate,
        points=[(_array(3, 1), _KNOTS, _LOADS), (_array(5, 4), _KNOTS, _LOADS), (_array(-2, 2), _KNOTS, _LOADS)])  # fmt: skip
def m_thin_plate(place, knots, loads):  # W 2.4
    def radial(knot):
        square = jnp.sum((place - knot) ** 2)
        return 0.5 * square * jnp.log(square)  # <-

    return jnp.dot(loads, jax.vmap(radial)(knots))


def _sharpe_slope(x):
    mean, spread = np.mean(x), np.std(x)
    if spread == 0:
        return np.zeros_like(x)
    return (1 / spread - mean * (x - mean) / spread**3) / len(x)


@faulty(NAN, OVER, args=(_array(0.5, 0.5, 0.5, 0.5),), of=jax.grad, textbook=_sharpe_slope,
        points=[(_array(0.5, 0.5, 0.5, 0.5),), (_array(1, 2, 5, -4),), (_array(0, 0, 0, 0),)])  # fmt: skip
def m_sharpe_slope(returns):  # J
    mean, spread = jnp.mean(returns), jnp.std(returns)
    return jnp.where(spread > 0, mean / spread, 0.0)  # <-


@faulty(
    NAN,
    UNDER,
    OVER,
    args=(_array(1, 2, -0.5), _array(1, 0.5, 1.5)),
    of=total,
    textbook=lambda x, y: 1.5 * np.sign(x - y) * np.sqrt(np.abs(x - y)),
    points=[
        (_array(1, 2, -0.5), _array(1, 0.5, 1.5)),
        (_array(0, 3), _array(0, 3)),
        (_array(1e-24, -5), _array(0, 2)),
    ],
)
def m_power_loss_slope(predicted, wanted):  # J
    residual = predicted - wanted
    return (residual**2) ** 0.75  # <-


def _cubic_slope(x, knots, w):
    off = x - knots
    return 3 * np.sum(w[:, None] * np.linalg.norm(off, axis=1, keepdims=True) * off, axis=0)


@faulty(NAN, OVER, args=(_array(3, 1), _KNOTS, _LOADS), of=jax.grad, textbook=_cubic_slope,
        points=[(_array(3, 1), _KNOTS, _LOADS), (_array(4, 5), _KNOTS, _LOADS), (_array(0, 0), _array([0, 0], [1, 2]), _array(1, 2))])  # fmt: skip
def m_cubic_spline_slope(place, knots, loads):  # W
    distances = jnp.linalg.norm(place - knots, axis=1)  # <-
    return jnp.sum(loads * distances**3)


_SCORES, _MASK, _VALUES = _array([1, 0.5, -1], [0.25, 2, 0]), _array([1, 1, 0], [0, 0, 0]), _array(1, -2, 3)


def _pooled_slope(scores, mask, values):
    found = np.zeros_like(scores)
    for i, (row, seen) in enumerate(zip(scores, mask > 0, strict=True)):
        if seen.any():
            e = np.where(seen, np.exp(row - np.max(row)), 0)
            w = e / np.sum(e)
            found[i] = w * (values - w @ values)
    return found


@faulty(NAN, UNDER, OVER, args=(_SCORES, _MASK, _VALUES), of=jax.grad, textbook=_pooled_slope,
        points=[(_SCORES, _MASK, _VALUES), (_SCORES, _array([0, 0, 0], [1, 0, 1]), _VALUES), (_SCORES, 1 - _MASK, _VALUES)])  # fmt: skip
def m_attention_pool_slope(scores, mask, values):  # J
    def pool(row, seen):
        logits = row + jnp.log(seen)
        return jnp.where(jnp.any(seen > 0), jax.nn.softmax(logits) @ values, 0.0)  # <-

    return jnp.sum(jax.vmap(pool)(scores, mask))


@faulty(NAN, args=(_array(0.5, -2, 10),), of=total, textbook=lambda x: 0.6 * np.abs(x) ** -0.4,
        points=[(_array(0.5, -2, 10),), (_array(-1e-3, -30, 1e-6),)])  # fmt: skip
def m_signed_power_slope(x):  # J
    return jnp.where(x >= 0, x**0.6, -((-x) ** 0.6))  # <-


@faulty(DEAD, args=(_array(0.3, -1.1, 0.72), _array(2, 0.5, -3)), of=jax.grad, textbook=lambda w, x: x,
        points=[(_array(0.3, -1.1, 0.72), _array(2, 0.5, -3)), (_array(0, 2, -3.9), _array(1, -0.1, 7))])  # fmt: skip
def m_int8_slope(weights, inputs):  # Q
    codes = jnp.clip(jnp.round(weights * 32), -128, 127)  # <-
    return jnp.sum(inputs * codes / 32)


_TABLE, _LABELS = _array([1, 2], [-3, 0.5], [20, 40], [0.5, -4]), _array(1, 1, 0, 0)


@faulty(NAN, OVER, UNDER, CANCEL, SENSE, args=(_array(0.5, 1), _TABLE, _LABELS), of=jax.grad,
        textbook=lambda w, x, y: x.T @ (_sigmoid(x @ w) - y) / len(y),
        points=[(_array(0.5, 1), _TABLE, _LABELS), (_array(0.5, -0.25), _TABLE, _LABELS), (_array(4, 5), _TABLE, _LABELS)])  # fmt: skip
def m_logistic_regression_slope(weights, table, labels):  # N 4
    chances = 1 / (1 + jnp.exp(-(table @ weights)))
    return -jnp.mean(labels * jnp.log(chances) + (1 - labels) * jnp.log(1 - chances))  # <-


# ---------------------------------------------------------------- healthy: what is written in place of a fault


@healthy(0.01, 140.0, 5.0)
def mh_ion_current(voltage, inside, outside):
    z = voltage / 25.0
    return z * (inside - outside * jnp.exp(-z)) / -jnp.expm1(-z)


@healthy(60.0, 1.0)
def mh_schottky_heat(gap, temperature):
    x = gap / temperature
    return 8.314 * x**2 * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)


@healthy(7000.0, 7001.0)
def mh_transfer_burn(inner, outer):
    step = (outer - inner) / (inner + outer)
    return jnp.sqrt(398600.44 / inner) * step / (jnp.sqrt(2 * outer / (inner + outer)) + 1)


@healthy(0.99, 0.995)
def mh_speed_below_light(u, v):
    return (1 - u) * (1 - v) / (1 + u * v)


@healthy(_array(0.5, 2, 7), 1e-3)
def mh_box_cox(x, power):
    nonzero = jnp.where(power == 0, 1.0, power)
    return jax.vmap(lambda v: jnp.where(power == 0, jnp.log(v), jnp.expm1(power * jnp.log(v)) / nonzero))(x)


@healthy(_ENZYME, 0.25, 100.0)
def mh_tight_binding(ligands, enzyme, constant):
    def bound(ligand):
        b = enzyme + ligand + constant
        return 2 * enzyme * ligand / (b + jnp.sqrt(b * b - 4 * enzyme * ligand))

    return jax.vmap(bound)(ligands)


@healthy(_array(-9, 0.5, -3), _array(1, 0, 1))
def mh_complementary_log_log(eta, y):
    hazard = jnp.exp(eta)
    return jnp.sum(y * jnp.log(-jnp.expm1(-hazard)) - (1 - y) * hazard)


@healthy(_array(1.5, -4, 7))
def mh_squash_correction(actions):
    return jnp.sum(2 * (jnp.log(2.0) - actions - jax.nn.softplus(-2 * actions)))


@healthy(_RETURNS)
def mh_total_return(returns):
    return jnp.expm1(jnp.sum(jnp.log1p(returns)))


@healthy(_WEIGHTS)
def mh_effective_sample_size(log_weights):
    weights = jax.nn.softmax(log_weights)
    return 1 / jnp.sum(weights**2)


@healthy(10.0, _PLACES, _HEIGHTS, 0.5)
def mh_kernel_regression(query, places, heights, width):
    distances = (query - places) / width
    return jax.nn.softmax(-0.5 * distances**2) @ heights


@healthy(_array(3, 1), _KNOTS, _LOADS)
def mh_thin_plate(place, knots, loads):
    squares = jnp.sum((place - knots) ** 2, axis=1)
    return jnp.dot(loads, 0.5 * xlogy(squares, squares))


@healthy(_array(0.5, 0.5, 0.5, 0.5), of=jax.grad)
def mh_sharpe_slope(returns):
    return jnp.mean(returns) / jnp.sqrt(jnp.var(returns) + 1e-4)


@healthy(_array(3, 1), _KNOTS, _LOADS, of=jax.grad)
def mh_cubic_spline_slope(place, knots, loads):
    squares = jnp.sum((place - knots) ** 2, axis=1)
    away = squares > 0
    distances = jnp.sqrt(jnp.where(away, squares, 1.0))
    return jnp.sum(loads * jnp.where(away, distances**3, 0.0))


@healthy(_SCORES, _MASK, _VALUES, of=jax.grad)
def mh_attention_pool_slope(scores, mask, values):
    def pool(row, seen):
        weights = jax.nn.softmax(jnp.where(seen > 0, row, -1e9))
        return (weights * seen) @ values

    return jnp.sum(jax.vmap(pool)(scores, mask))


@healthy(_array(0.3, -1.1, 0.72), _array(2, 0.5, -3), of=jax.grad)
def mh_int8_slope(weights, inputs):
    codes = weights + lax.stop_gradient(jnp.round(weights * 32) / 32 - weights)
    return jnp.sum(inputs * codes)


@healthy(_array(0.5, 1), _TABLE, _LABELS, of=jax.grad)
def mh_logistic_regression_slope(weights, table, labels):
    logits = table @ weights
    return jnp.mean(jax.nn.softplus(logits) - labels * logits)


# ---------------------------------------------------------------- healthy: what looks like a fault and is none


@healthy(_array(0.5, 1.25, -0.75, 4))
def mh_kurtosis(x):
    off = x - jnp.mean(x)
    return jnp.mean(off**4) / jnp.mean(off**2) ** 2


@healthy(_array(0.8, -0.6, 0.1), _array(-1.5, 0.25, 0))
def mh_softened_gravity(place, other):
    d = other - place
    return d / (jnp.sum(d * d) + 1e-4) ** 1.5


@healthy(_array(3, 4), 0.3)
def mh_turned(place, angle):
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.array([[c, -s], [s, c]]) @ place


@healthy(_array(0.01, 0.5, 3), 0.02, 2.0)
def mh_circular_kernel(angles, centre, concentration):
    return jnp.exp(concentration * (jnp.cos(angles - centre) - 1))


@healthy(_array([0.5, -3], [0, 0], [10, 2]), 1.0)
def mh_clip_by_norm(gradients, limit):
    def clipped(g):
        size = jnp.sqrt(jnp.sum(g * g))
        return g * jnp.minimum(1.0, limit / jnp.maximum(size, 1e-12))

    return jax.vmap(clipped)(gradients)


@healthy(_array(0.3, 2.6, -1.7), of=total)
def mh_wrapped_phase_slope(turns):
    phase = turns - jnp.floor(turns)
    return phase**2


@healthy(1.5, 0.8)
def mh_lennard_jones(distance, depth):
    sixth = (1.0 / distance) ** 6
    return 4 * depth * sixth * (sixth - 1)


@healthy(1650.0, 1500.0)
def mh_elo(own, other):
    return 1 / (1 + 10 ** ((other - own) / 400))


@healthy(_array(10, 22, 47))
def mh_parallel_resistance(resistors):
    return 1 / jnp.sum(1 / resistors)


@healthy(_array(1, 2, -0.5), _array(1, 0.5, 1.5), of=total)
def mh_power_loss_slope(predicted, wanted):
    return jnp.abs(predicted - wanted) ** 1.5


@healthy(_array(0.5, -1), _array([1, 2], [-3, 0.5], [2, -4]), _array(1, -1, 1), of=jax.grad)
def mh_hinge_slope(weights, table, labels):
    margins = labels * (table @ weights)
    return jnp.mean(jnp.maximum(0.0, 1 - margins)) + 0.01 * jnp.sum(weights**2)


@healthy(_array(20, 80, 75, 10), _array(0, 10, 55, 60))
def mh_parcel_area(east, north):
    x, y = east - east[0], north - north[0]
    return 0.5 * jnp.abs(jnp.sum(x * jnp.roll(y, -1) - jnp.roll(x, -1) * y))


@healthy(3.75, 0.1)
def mh_travelled(speed, tick):
    times = tick * jnp.arange(1, 17, dtype=jnp.float32)
    return speed * times
