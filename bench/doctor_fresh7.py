"""More functions for `bench/doctor.py`, frozen before the doctor was run on them: what a stranger's benchmark of numerical faults has: published
suites, particle and ice physics, electrochemistry, finance, survival, transport, geometry and the layers and losses of deep learning.

30 with a known fault on the line marked `# <-`, seven of them gradients, and 30 healthy ones that look alike. Sources: A, Archimedes's halving, as
in Goldberg and in FPBench; B, Barron and others, Mip-NeRF 360, 2022 (contraction), and Squareplus, 2021; C, Cuturi, Sinkhorn Distances, 2013;
D, Loaiza-Ganem and Cunningham, The continuous Bernoulli, 2019; E, Battin, An Introduction to the Mathematics and Methods of Astrodynamics, 1999;
F, FPBench and Herbie's suite (FPTaylor's, Rosa's, Hamming's); G, the manual of GSL; H, Ho and others, Denoising Diffusion, 2020; I, Glen's flow
law, Cuffey and Paterson, The Physics of Glaciers; J, JAX's FAQ on where; K, Schulman, Approximating KL Divergence, 2020; L, Nickel and Kiela,
Learning Continuous Hierarchies in the Lorentz Model, 2018; M, McCullagh and Nelder, Generalized Linear Models; N, Nelsen, An Introduction to
Copulas; O, Hull, Options, Futures and Other Derivatives; P, Particle Data Group, Kinematics; Q, Quilez, Distance functions; R, Mardia and Jupp,
Directional Statistics; S, Nelson and Siegel, Parsimonious Modeling of Yield Curves, 1987; T, Satorras and others, E(n) Equivariant Graph Neural
Networks, 2021; U, Bard and Faulkner, Electrochemical Methods; V, Cox, Regression Models and Life-Tables, 1972; W, Higham, Functions of Matrices,
2008 (3.2); X, Manning and others, Introduction to Information Retrieval (13); Y, Engel and others, DDSP, 2020; Z, the manuals of deep-learning
libraries.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from doctor_cases import CANCEL, NAN, OVER, SENSE, UNDER, faulty, healthy, total
from jax.scipy import stats
from jax.scipy.special import logsumexp, xlog1py, xlogy
from scipy import special


def _array(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def _exp_less_two_terms(x):  # exp(x) - 1 - x
    near = np.where(np.abs(x) < 1, x, 0)
    return np.where(np.abs(x) < 1, sum(near**k / math.factorial(k) for k in range(2, 25)), np.expm1(x) - x)

# ---------------------------------------------------------------- faulty: formulas
@faulty(CANCEL, SENSE, args=(1e-3,), textbook=lambda x: 4 * np.sinh(x / 2) ** 2, points=[(1e-3,), (-0.01,), (0.1,), (2,), (1e-5,)])
def p_exp_second_difference(x):  # F, problem 3.3.7
    return jnp.exp(x) - 2 + jnp.exp(-x)  # <-


@faulty(CANCEL, NAN, SENSE, args=(1.25, 0.8), textbook=lambda x, y: 1 / (1 + x * y),
        points=[(1.25, 0.8), (1, 1), (1.0001, 1), (0.999, 1.002), (3, 0.5)])  # fmt: skip
def p_nonlin2(x, y):  # F
    t = x * y
    return (t - 1) / (t * t - 1)  # <-


@faulty(CANCEL, SENSE, NAN, args=(1.0,), textbook=lambda t: 256 * np.tan(np.arctan(t) / 256), points=[(1,), (0.57735,), (0.1,), (5,)])
def p_archimedes(tangent):  # A: half the angle, eight times
    def halve(_, t):
        return (jnp.sqrt(1 + t * t) - 1) / t  # <-

    return 256 * jax.lax.fori_loop(0, 8, halve, tangent)


@faulty(CANCEL, SENSE, args=(0.01,), textbook=lambda x: special.spherical_jn(1, x), points=[(0.01,), (1e-3,), (0.1,), (2,)])
def p_spherical_bessel(x):  # G
    return jnp.sin(x) / x**2 - jnp.cos(x) / x  # <-


@faulty(CANCEL, args=(_array(-50, 0.5, 3),),
        textbook=lambda x: np.where(x < 0, 2 / (np.sqrt(x * x + 4) + np.abs(x)), (x + np.sqrt(x * x + 4)) / 2),
        points=[(_array(-50, 0.5, 3),), (_array(-1e4, -300, 100),), (_array(-2, 0, 1e4),)])  # fmt: skip
def p_squareplus(x):  # B
    return (x + jnp.sqrt(x**2 + 4)) / 2  # <-


_PUSHES = _array(1e-6, -1e-4, 0.005)


@faulty(CANCEL, SENSE, args=(_PUSHES, 0.3), textbook=lambda e, a: np.exp((a - 1) * e / 0.025) * np.expm1(e / 0.025),
        points=[(_PUSHES, 0.3), (1e-3 * _PUSHES, 0.5), (40 * _PUSHES, 0.7)])  # fmt: skip
def p_butler_volmer(overpotential, symmetry):  # U 3.3, at an exchange current of one
    z = overpotential / 0.025
    return jnp.exp(symmetry * z) - jnp.exp((symmetry - 1) * z)  # <-


@faulty(CANCEL, SENSE, args=(50.0, 45.0, 2.0**-7, 2.0**-8),
        textbook=lambda a, b, u, v: 2 * np.sqrt(a * b * (np.sinh(u / 2) ** 2 + np.sin(v / 2) ** 2)),
        points=[(50, 45, 2.0**-7, 2.0**-8), (200, 31, 2.0**-12, -(2.0**-11)), (60, 20, 1.5, 2), (35, 30, 0, 0.01)])  # fmt: skip
def p_dijet_mass(first, second, rapidity_gap, angle_gap):  # P
    opening = jnp.cosh(rapidity_gap) - jnp.cos(angle_gap)  # <-
    return jnp.sqrt(2 * first * second * opening)


@faulty(CANCEL, SENSE, NAN, OVER, args=(_array(0.5, 0.25, 100),), textbook=lambda p: np.arcsinh(p[2] / np.hypot(p[0], p[1])),
        points=[(_array(0.5, 0.25, 100),), (_array(1, 0.125, 3000),), (_array(0.5, -0.75, -50),), (_array(1, 2, -0.5),)])  # fmt: skip
def p_pseudorapidity(momentum):  # P
    size, along = jnp.linalg.norm(momentum), momentum[2]
    return 0.5 * jnp.log((size + along) / (size - along))  # <-


@faulty(SENSE, CANCEL, NAN, args=(1e-3, 0.25), textbook=lambda a, e: 2 * np.arctan(np.sqrt((1 + e) / (1 - e)) * np.tan(a / 2)),
        points=[(1e-3, 0.25), (0.01, 0.7), (1, 0.1), (2.5, 0.6)])  # fmt: skip
def p_true_anomaly(eccentric, eccentricity):  # E 4.3
    c = jnp.cos(eccentric)
    return jnp.arccos((c - eccentricity) / (1 - eccentricity * c))  # <-

# ---------------------------------------------------------------- faulty: finance and geometry
@faulty(CANCEL, SENSE, NAN, args=(0.3, 0.6, 1e-3), textbook=lambda u, v, t: -np.log1p(np.expm1(-t * u) * np.expm1(-t * v) / np.expm1(-t)) / t,
        points=[(0.3, 0.6, 1e-3), (0.9, 0.2, -1e-4), (0.01, 0.5, 0.02), (0.4, 0.7, 3)])  # fmt: skip
def p_frank_copula(u, v, theta):  # N 4.3
    def fall(t):
        return jnp.exp(-theta * t) - 1  # <-

    return -jnp.log(1 + fall(u) * fall(v) / fall(1.0)) / theta


def _put(spot, strike, rate, volatility, time):
    spread = volatility * np.sqrt(time)
    d = (np.log(spot / strike) + (rate + volatility**2 / 2) * time) / spread
    return strike * np.exp(-rate * time) * special.ndtr(spread - d) - spot * special.ndtr(-d)


@faulty(CANCEL, SENSE, args=(100.0, 60.0, 0.02, 0.2, 1.0), textbook=_put,
        points=[(100, 60, 0.02, 0.2, 1), (100, 70, 0.05, 0.25, 0.25), (5000, 4000, 0.03, 0.15, 0.5), (100, 110, 0.01, 0.3, 2)])  # fmt: skip
def p_put_by_parity(spot, strike, rate, volatility, time):  # O 15
    spread = volatility * jnp.sqrt(time)
    d = (jnp.log(spot / strike) + (rate + volatility**2 / 2) * time) / spread
    discounted = strike * jnp.exp(-rate * time)
    call = spot * stats.norm.cdf(d) - discounted * stats.norm.cdf(d - spread)
    return call - spot + discounted  # <-


def _hump(times, rate):
    z = times * rate
    near = np.where(z < 1, z, 0)
    series = sum((-1) ** (k + 1) * k * near**k / math.factorial(k + 1) for k in range(1, 25))
    return np.where(z < 1, series, -np.expm1(-z) / np.where(z < 1, 1, z) - np.exp(-z))


_YEARS = _array(0.25, 1, 5, 30)


@faulty(CANCEL, SENSE, args=(_YEARS, 1e-3), textbook=_hump, points=[(_YEARS, 1e-3), (_YEARS, 0.02), (_YEARS, 0.6)])
def p_nelson_siegel_hump(years, decay):  # S: the loading of the third factor
    z = decay * years
    return (1 - jnp.exp(-z)) / z - jnp.exp(-z)  # <-


_NORMAL, _ON_PLANE, _ABOVE = _array(0.36, 0.48, 0.8), _array(50100, 43110.5, 30207), _array(50101.5, 43110.25, 30208)


@faulty(CANCEL, args=(_NORMAL, _ON_PLANE, _ABOVE), textbook=lambda n, p, x: n @ (x - p),
        points=[(_NORMAL, _ON_PLANE, _ABOVE), (_NORMAL[::-1], 8 * _ON_PLANE, 8 * _ABOVE),
                (_NORMAL, _array(1, 2, 0.5), _array(3, -1, 4))])  # fmt: skip
def p_height_above_plane(normal, origin, place):
    return jnp.dot(normal, place) - jnp.dot(normal, origin)  # <-


def _lorentz(u, v):
    across = (u - v) @ (u + v) / (np.sqrt(1 + u @ u) + np.sqrt(1 + v @ v))
    return 2 * np.arcsinh(np.sqrt((u - v) @ (u - v) - across**2) / 2)


_NEAR, _BESIDE = _array(0.5, 1), _array(0.5019, 0.9991)


@faulty(SENSE, CANCEL, NAN, args=(_NEAR, _BESIDE), textbook=_lorentz,
        points=[(_NEAR, _BESIDE), (3 * _NEAR, _array(1.5, 3 + 2.0**-8)), (_NEAR, _array(-2, 0.25)),
                (_array(0, 0), _array(2.0**-12, 2.0**-11))])  # fmt: skip
def p_lorentz_distance(u, v):  # L
    inner = jnp.sqrt(1 + jnp.dot(u, u)) * jnp.sqrt(1 + jnp.dot(v, v)) - jnp.dot(u, v)
    return jnp.arccosh(inner)  # <-

# ---------------------------------------------------------------- faulty: statistics
def _continuous_bernoulli(chance):
    off = 1 - 2 * chance
    return np.log(2 * np.arctanh(off) / off) if off else np.log(2)


@faulty(NAN, CANCEL, args=(0.5,), textbook=_continuous_bernoulli, points=[(0.5,), (0.47,), (0.501,), (0.1,), (0.95,)])
def p_continuous_bernoulli(chance):  # D: the logarithm of the constant
    return jnp.log((jnp.log(1 - chance) - jnp.log(chance)) / (1 - 2 * chance))  # <-


_WORDS = np.arange(16) % 5
_RATES = np.stack([2.0**-10 * (1 + _WORDS), 2.0**-10 * (2 + _WORDS[::-1]), 2.0**-9 * (1 + np.arange(16) % 3)]).astype(np.float32)
_PRIOR, _ALL, _FEW = _array(0.5, 0.25, 0.25), np.ones(16, np.float32), np.array([1, 0, 0] * 2 + [0] * 10, np.float32)


def _posterior(prior, rates, seen):
    scores = np.log(prior) + np.sum(np.where(seen > 0, np.log(rates), np.log1p(-rates)), axis=1)
    weights = np.exp(scores - np.max(scores))
    return weights / np.sum(weights)


@faulty(UNDER, NAN, args=(_PRIOR, _RATES, _ALL), textbook=_posterior,
        points=[(_PRIOR, _RATES, _ALL), (_PRIOR, _RATES, _FEW), (_PRIOR[::-1], _RATES / 4, _ALL)])  # fmt: skip
def p_naive_bayes(prior, rates, seen):  # X
    likelihoods = jnp.prod(jnp.where(seen > 0, rates, 1 - rates), axis=1)  # <-
    joint = prior * likelihoods
    return joint / jnp.sum(joint)


_HITS, _TRIES, _CHANCES = _array(0, 3, 5), _array(4, 10, 5), _array(0, 0.25, 1)


@faulty(NAN, SENSE, CANCEL, args=(_HITS, _TRIES, _CHANCES), textbook=lambda k, n, p: special.xlogy(k, p) + special.xlog1py(n - k, -p),
        points=[(_HITS, _TRIES, _CHANCES), (_HITS, _TRIES, _array(1e-6, 0.5, 0.9)),
                (_array(1, 2, 3), _TRIES, _array(0.1, 0.3, 0.7))])  # fmt: skip
def p_binomial_log_likelihood(hits, tries, chances):  # M 4, without the coefficient
    return hits * jnp.log(chances) + (tries - hits) * jnp.log(1 - chances)  # <-


def _deviance(counts, rates):
    return np.mean(2 * (special.xlogy(counts, counts / rates) - (counts - rates)))


_COUNTS, _MEANS = _array(0, 2, 7), _array(0.5, 1.5, 9)


@faulty(NAN, CANCEL, SENSE, args=(_COUNTS, _MEANS), textbook=_deviance,
        points=[(_COUNTS, _MEANS), (_array(0, 0, 1), _MEANS), (_array(3, 20, 8), _array(3.015625, 20.125, 7.96875)),
                (_array(1, 4, 30), _MEANS)])  # fmt: skip
def p_poisson_deviance(counts, rates):  # M 2.3
    halves = counts * jnp.log(counts / rates) - (counts - rates)  # <-
    return jnp.mean(2 * halves)


@faulty(OVER, args=(50.0,), textbook=lambda k: np.log(k) - np.log(2 * np.pi) - k - np.log(-np.expm1(-2 * k)),
        points=[(50,), (120,), (1,), (0.01,), (500,)])  # fmt: skip
def p_fisher_log_constant(concentration):  # R 9.3, on the sphere
    return jnp.log(concentration / (4 * jnp.pi * jnp.sinh(concentration)))  # <-


def _cox(risks, events):
    return -np.sum(events * (risks - np.logaddexp.accumulate(risks))) / np.sum(events)


_RISKS, _EVENTS = _array(0.5, -1, 2, 0.25, -0.75), _array(1, 0, 1, 1, 1)


@faulty(OVER, UNDER, NAN, args=(_RISKS, _EVENTS), textbook=_cox,
        points=[(_RISKS, _EVENTS), (_RISKS + 100, _EVENTS), (60 * _RISKS - 150, _EVENTS)])  # fmt: skip
def p_cox_loss(risks, events):  # V: the longest-lived first
    at_risk = jnp.cumsum(jnp.exp(risks))  # <-
    return -jnp.sum(events * (risks - jnp.log(at_risk))) / jnp.sum(events)

# ---------------------------------------------------------------- faulty: losses and layers
_BETAS = np.linspace(1e-5, 2e-4, 8).astype(np.float32)


@faulty(CANCEL, SENSE, args=(_BETAS,), textbook=lambda b: np.sqrt(-np.expm1(np.cumsum(np.log1p(-b)))),
        points=[(_BETAS,), (_BETAS / 16,), (500 * _BETAS,)])  # fmt: skip
def p_diffusion_noise(betas):  # H
    kept = jnp.cumprod(1 - betas)
    return jnp.sqrt(1 - kept)  # <-


_OLD, _NEW = _array(-12.25, -3.5, -0.75, -40), _array(-12.25 + 2.0**-8, -3.5 - 2.0**-7, -0.75, -40 + 2.0**-9)


@faulty(CANCEL, SENSE, args=(_NEW, _OLD), textbook=lambda new, old: np.mean(_exp_less_two_terms(old - new)),
        points=[(_NEW, _OLD), (_OLD, _NEW), (_OLD, _OLD + _array(2.0**-9, 2.0**-10, -(2.0**-8), 0)),
                (_OLD, _array(-12, -5, -1, -38))])  # fmt: skip
def p_policy_divergence(new, old):  # K: the third estimator
    gap = old - new
    return jnp.mean(jnp.exp(gap) - 1 - gap)  # <-


def _transport(cost, rows, columns, blur):
    f, g = np.zeros(len(rows)), np.zeros(len(columns))
    for _ in range(20):
        f = blur * (np.log(rows) - np.logaddexp.reduce((g[None] - cost) / blur, axis=1))
        g = blur * (np.log(columns) - np.logaddexp.reduce((f[:, None] - cost) / blur, axis=0))
    return np.sum(cost * np.exp((f[:, None] + g[None] - cost) / blur))


_COST, _ROWS, _COLUMNS = _array([2, 3, 2.5], [2.25, 2, 4], [3.5, 2.75, 2]), _array(0.5, 0.25, 0.25), _array(0.25, 0.375, 0.375)


@faulty(UNDER, NAN, OVER, args=(_COST, _ROWS, _COLUMNS, 0.5), textbook=_transport,
        points=[(_COST, _ROWS, _COLUMNS, 0.5), (_COST, _ROWS, _COLUMNS, 0.015625), (8 * _COST, _COLUMNS, _ROWS, 0.125)])  # fmt: skip
def p_sinkhorn(cost, rows, columns, blur):  # C
    kernel = jnp.exp(-cost / blur)  # <-
    v = jnp.ones_like(columns)
    for _ in range(20):
        u = rows / (kernel @ v)
        v = columns / (kernel.T @ u)
    return jnp.sum(cost * u[:, None] * kernel * v)

# ---------------------------------------------------------------- faulty: gradients
def _swish_slope(x):
    s = special.expit(x)
    return s + x * s * special.expit(-x)


@faulty(OVER, NAN, args=(_array(0.5, -2, 3),), of=total, textbook=_swish_slope,
        points=[(_array(0.5, -2, 3),), (_array(-100, 1, 90),), (_array(-60, 0, -95),)])  # fmt: skip
def p_swish_slope(x):  # Z
    return x / (1 + jnp.exp(-x))  # <-


_WEIGHTS = _array([1, 0.5, -1], [2, -0.25, 0], [0.5, 3, 1])


def _matrix_root_slope(a):
    values, vectors = np.linalg.eigh(a)
    roots = np.sqrt(values)
    inside = vectors.T @ ((_WEIGHTS + _WEIGHTS.T) / 2.0) @ vectors
    return vectors @ (inside / (roots[:, None] + roots[None])) @ vectors.T


@faulty(NAN, OVER, args=(_array([4, 1, 0], [1, 3, 0.5], [0, 0.5, 2]),), of=jax.grad, textbook=_matrix_root_slope,
        points=[(_array([4, 1, 0], [1, 3, 0.5], [0, 0.5, 2]),), (np.eye(3, dtype=np.float32),),
                (_array([2, 0, 0], [0, 2, 0], [0, 0, 5]),)])  # fmt: skip
def p_matrix_root_slope(covariance):  # W
    values, vectors = jnp.linalg.eigh(covariance)  # <-
    root = (vectors * jnp.sqrt(values)) @ vectors.T
    return jnp.sum(jnp.asarray(_WEIGHTS) * root)


def _box_slope(places, half):
    found = np.zeros_like(places)
    for i, place in enumerate(places):
        over = np.abs(place) - half
        if np.max(over) > 0:
            found[i] = np.sign(place) * np.maximum(over, 0) / np.linalg.norm(np.maximum(over, 0))
        else:
            k = np.argmax(over)
            found[i, k] = np.sign(place[k])
    return found


_SPOTS, _HALF = _array([0.5, -0.25, 1.25], [3, 1, -4], [-0.5, 2.5, 0.25]), _array(1, 2, 1.5)


@faulty(NAN, args=(_SPOTS, _HALF), of=total, textbook=_box_slope, points=[(_SPOTS, _HALF), (3 * _SPOTS, _HALF), (_SPOTS / 8, _HALF)])
def p_box_distance_slope(places, half):  # Q, J
    def distance(place):
        over = jnp.abs(place) - half
        return jnp.linalg.norm(jnp.maximum(over, 0)) + jnp.minimum(jnp.max(over), 0)  # <-

    return jax.vmap(distance)(places)


def _contract_slope(places):
    r = np.linalg.norm(places, axis=1, keepdims=True)
    far = np.where(r > 1, r, 1)
    slope = 2 / far - 1 / far**2 + np.sum(places, axis=1, keepdims=True) * places * (2 / far**4 - 2 / far**3)
    return np.where(r > 1, slope, 1.0)


@faulty(NAN, args=(_array([0, 0, 0], [0.25, -0.5, 0.125], [3, 1, -2]),), of=total, textbook=_contract_slope,
        points=[(_array([0, 0, 0], [0.25, -0.5, 0.125], [3, 1, -2]),), (_array([20, 0, 5], [0, 0, 0], [-1, 4, 0.5]),)])  # fmt: skip
def p_contract_slope(places):  # B, J
    def contract(place):
        r = jnp.linalg.norm(place)
        return jnp.where(r <= 1, place, (2 - 1 / r) * (place / r))  # <-

    return jax.vmap(contract)(places)


def _graph_slope(places):
    gaps = places[:, None] - places[None]
    r = np.linalg.norm(gaps, axis=-1, keepdims=True)
    return np.sum(2 * (r + 2) / (1 + r) ** 2 * gaps, axis=1)


_NODES = _array([0, 1, 0.5], [2, -0.5, 1], [-1, 3, 0.25])


@faulty(NAN, args=(_NODES,), of=jax.grad, textbook=_graph_slope, points=[(_NODES,), (_NODES[:2] * 4,), (0 * _NODES,)])
def p_graph_energy_slope(places):  # T, J
    gaps = places[:, None] - places[None]
    distances = jnp.linalg.norm(gaps, axis=-1)  # <-
    return jnp.sum(distances**2 / (1 + distances))


def _spectral_slope(signal):
    length = len(signal)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(length // 2 + 1), np.arange(length)) / length)
    found = waves @ signal
    size = np.abs(found)
    return np.real((np.conj(found) / np.where(size > 0, size, 1)) @ waves)


_SIGNAL = _array(0.5, -1, 2, 0.25, 1.5, -0.75, 3, -2)


@faulty(NAN, OVER, args=(_SIGNAL,), of=total, textbook=_spectral_slope, points=[(_SIGNAL,), (0 * _SIGNAL,), (_SIGNAL[::-1] * 4,)])
def p_spectral_slope(signal):  # Y, J
    spectrum = jnp.fft.rfft(signal)
    return jnp.sqrt(jnp.real(spectrum) ** 2 + jnp.imag(spectrum) ** 2)  # <-


def _ice_slope(strains):
    squares = np.sum(strains**2, axis=1, keepdims=True)
    return np.where(squares > 0, 4 / 3 * np.where(squares > 0, squares, 1) ** (-1 / 3) * strains, 0)


_STRAINS = _array([0.5, 1, -2], [0, 0, 0], [1e-3, 0, 2e-3])


@faulty(NAN, OVER, args=(_STRAINS,), of=jax.grad, textbook=_ice_slope, points=[(_STRAINS,), (0 * _STRAINS,), (8 * _STRAINS[::-1],)])
def p_ice_dissipation_slope(strains):  # I, J
    squares = jnp.sum(strains**2, axis=1)
    return jnp.sum(squares ** (2 / 3))  # <-

# ---------------------------------------------------------------- healthy: what is written in place of a fault
@healthy(1e-3)
def p_exp_second_difference_by_sinh(x):
    return 4 * jnp.sinh(x / 2) ** 2


@healthy(1.0)
def p_archimedes_by_quotient(tangent):
    def halve(_, t):
        return t / (1 + jnp.sqrt(1 + t * t))

    return 256 * jax.lax.fori_loop(0, 8, halve, tangent)


@healthy(_array(-50, 0.5, 3))
def p_squareplus_by_quotient(x):
    root = jnp.sqrt(x**2 + 4)
    return jnp.where(x < 0, 2 / (root + jnp.abs(x)), (root + x) / 2)


@healthy(_PUSHES, 0.3)
def p_butler_volmer_by_expm1(overpotential, symmetry):
    z = overpotential / 0.025
    return jnp.exp((symmetry - 1) * z) * jnp.expm1(z)


@healthy(50.0, 45.0, 2.0**-7, 2.0**-8)
def p_dijet_mass_by_half_angles(first, second, rapidity_gap, angle_gap):
    opening = jnp.sinh(rapidity_gap / 2) ** 2 + jnp.sin(angle_gap / 2) ** 2
    return 2 * jnp.sqrt(first * second * opening)


@healthy(_array(0.5, 0.25, 100))
def p_pseudorapidity_by_arcsinh(momentum):
    return jnp.arcsinh(momentum[2] / jnp.hypot(momentum[0], momentum[1]))


@healthy(1e-3, 0.25)
def p_true_anomaly_by_half_tangent(eccentric, eccentricity):
    stretch = jnp.sqrt((1 + eccentricity) / (1 - eccentricity))
    return 2 * jnp.arctan(stretch * jnp.tan(eccentric / 2))


@healthy(0.3, 0.6, 1e-3)
def p_frank_copula_by_expm1(u, v, theta):
    def fall(t):
        return jnp.expm1(-theta * t)

    return -jnp.log1p(fall(u) * fall(v) / fall(1.0)) / theta


@healthy(_NEAR, _BESIDE)
def p_lorentz_distance_by_arcsinh(u, v):
    gap = u - v
    across = jnp.dot(gap, u + v) / (jnp.sqrt(1 + jnp.dot(u, u)) + jnp.sqrt(1 + jnp.dot(v, v)))
    return 2 * jnp.arcsinh(jnp.sqrt(jnp.dot(gap, gap) - across**2) / 2)


@healthy(_PRIOR, _RATES[:, :8], _ALL[:8])
def p_naive_bayes_of_logs(prior, rates, seen):
    scores = jnp.sum(jnp.where(seen > 0, jnp.log(rates), jnp.log1p(-rates)), axis=1)
    return jax.nn.softmax(jnp.log(prior) + scores)


@healthy(_HITS, _TRIES, _array(0, 0.25, 0.75))
def p_binomial_log_likelihood_by_xlogy(hits, tries, chances):
    return xlogy(hits, chances) + xlog1py(tries - hits, -chances)


@healthy(120.0)
def p_fisher_log_constant_by_expm1(concentration):
    return jnp.log(concentration / (2 * jnp.pi)) - concentration - jnp.log(-jnp.expm1(-2 * concentration))


@healthy(60 * _RISKS, _EVENTS)
def p_cox_loss_by_cumlogsumexp(risks, events):
    return -jnp.sum(events * (risks - jax.lax.cumlogsumexp(risks))) / jnp.sum(events)


@healthy(_BETAS)
def p_diffusion_noise_by_log1p(betas):
    return jnp.sqrt(-jnp.expm1(jnp.cumsum(jnp.log1p(-betas))))


@healthy(_COST, _ROWS, _COLUMNS, 0.03125)
def p_sinkhorn_of_logs(cost, rows, columns, blur):
    f, g = jnp.zeros_like(rows), jnp.zeros_like(columns)
    for _ in range(20):
        f = blur * (jnp.log(rows) - logsumexp((g[None] - cost) / blur, axis=1))
        g = blur * (jnp.log(columns) - logsumexp((f[:, None] - cost) / blur, axis=0))
    return jnp.sum(cost * jnp.exp((f[:, None] + g[None] - cost) / blur))


@healthy(_array(-60, 1, 90), of=total)
def p_swish_slope_of_library(x):
    return jax.nn.swish(x)


@healthy(_SPOTS, _HALF, of=total)
def p_box_distance_slope_with_guard(places, half):
    def distance(place):
        over = jnp.abs(place) - half
        squared = jnp.sum(jnp.maximum(over, 0) ** 2)
        outside = jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)
        return outside + jnp.minimum(jnp.max(over), 0)

    return jax.vmap(distance)(places)


@healthy(_array([0, 0, 0], [0.25, -0.5, 0.125], [3, 1, -2]), of=total)
def p_contract_slope_of_maximum(places):
    def contract(place):
        square = jnp.maximum(1.0, jnp.sum(place**2))
        return jnp.where(square <= 1, place, (2 * jnp.sqrt(square) - 1) / square * place)

    return jax.vmap(contract)(places)


@healthy(_NODES, of=jax.grad)
def p_soft_graph_energy_slope(places):
    squares = jnp.sum((places[:, None] - places[None]) ** 2, axis=-1)
    return jnp.sum(jnp.log1p(squares) + squares / (1 + squares))


@healthy(0 * _SIGNAL, of=total)
def p_spectral_slope_of_abs(signal):  # JAX's own slope of a complex modulus is nought at nought
    return jnp.abs(jnp.fft.rfft(signal))

# ---------------------------------------------------------------- healthy: what looks like a fault and is none
@healthy(4.0, 1.11, 0.3)
def p_verhulst(growth, capacity, x):  # F
    return growth * x / (1 + x / capacity)


@healthy(_array(0.1, 0.2, 0.3))
def p_predator_prey(x):  # F
    return jax.vmap(lambda t: 4.0 * t * t / (1 + (t / 1.11) ** 2))(x)


@healthy(0.1)
def p_carbon_gas(volume):  # F
    pressure, a, b, temperature, amount = 3.5e7, 0.401, 42.7e-6, 300.0, 1000.0
    return (pressure + a * (amount / volume) ** 2) * (volume - amount * b) - 1.3806503e-23 * amount * temperature


@healthy(_array(0.5, -1.25, 1.5))
def p_sine_by_taylor(x):  # F
    return x - x**3 / 6 + x**5 / 120 - x**7 / 5040


@healthy(0.75, 10.0, 0.5, 1.0)
def p_sphere(centre, radius, latitude, longitude):  # F
    return centre + radius * jnp.sin(latitude) * jnp.cos(longitude)


@healthy(_array(0.25, 1, 0.5, 0.75), _array(0.5, 0.125, 1, 0.25), of=jax.grad)
def p_alpha_compositing_slope(alphas, colours):  # an opaque one among them
    passed = jnp.cumprod(1 - alphas)
    before = jnp.concatenate([jnp.ones(1), passed[:-1]])
    return jnp.sum(before * alphas * colours)


@healthy(2.0, _array(0, 0.5, 3), of=jax.grad)
def p_exponent_slope(exponent, x):  # JAX's own slope of a power is nought at a base of nought
    return jnp.sum(x**exponent)


@healthy(_array(0.25, 0, -1), of=total)
def p_hertz_contact_slope(overlaps):
    return jnp.maximum(overlaps, 0.0) ** 1.5


@healthy(_array(1, 0, 0.5, 2), 0.99)
def p_discounted_returns(rewards, discount):
    def step(carried, reward):
        carried = reward + discount * carried
        return carried, carried

    return jax.lax.scan(step, jnp.zeros(()), rewards, reverse=True)[1]


@healthy(_array(1, 2.5, 4), 0.05, -0.5)
def p_asphere_sag(heights, curvature, conic):
    return curvature * heights**2 / (1 + jnp.sqrt(1 - (1 + conic) * (curvature * heights) ** 2))
