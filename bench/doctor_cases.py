"""Small functions for `bench/doctor.py`: with a known fault on the line marked `# <-` (healthy ones: `doctor_healthy.py`).

A faulty one has the causes that are right names for it, inputs on which it goes wrong or must not get worse, and what a
textbook writes in its place. Sources: H, Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002 (section);
G, Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic, 1991; K, Kahan, Much Ado About Nothing's
Sign Bit, 1987; M, Mächler, Accurately Computing log(1 - exp(-|a|)), 2012; N, NMSE, Hamming's Numerical Methods for Scientists
and Engineers, chapter 3, as in Herbie's suite; B, Blanchard, Higham, Higham, Accurately computing the log-sum-exp and softmax
functions, 2021; J, JAX's FAQ, gradients contain NaN where using where.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

OVER, UNDER, CANCEL, SENSE, NAN = "overflow", "underflow", "cancellation", "sensitivity", "nan-rescue"


@dataclass(frozen=True)
class Case:
    """`function` is what is examined on `args`; of a faulty one `marked` has the line, `textbook` is right on `points`. `dtype`:
    of all floats in them."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    marked: Callable[..., Any] | None = None
    causes: Sequence[str] = ()
    textbook: Callable[..., Any] | None = None
    points: Sequence[tuple[Any, ...]] = ()
    dtype: Any = np.float32


FAULTY: list[Case] = []
HEALTHY: list[Case] = []

_V = np.array([0.5, 1.25, -0.75, 2.0], np.float32)
_P = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
_SIDES = [(float(x),) for x in (-90, -20, -5, -1, -1e-3, 1e-3, 0.5, 1, 3, 10, 20, 50, 95, 200)]
_SMALL = [(float(x),) for x in (-1e-2, -1e-4, -1e-6, 1e-7, 1e-5, 1e-3, 0.03, 0.1)]
_SMALL_POSITIVE = [(abs(x[0]),) for x in _SMALL]
_POSITIVE = [(float(x),) for x in (1e-6, 1e-3, 0.1, 0.7, 1, 3, 10, 50, 90)]
_LARGE = [(float(x),) for x in (1, 10, 100, 1e3, 1e4, 1e5, 1e6)]


def faulty(
    *causes: str, textbook: Callable[..., Any], points: Sequence[tuple[Any, ...]], args: tuple[Any, ...] = (1.0,),
    of: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f, dtype: Any = np.float32,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        FAULTY.append(Case(function.__name__, of(function), args, function, causes, textbook, points, dtype))
        return function

    return add


def healthy(
    *args: Any, of: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f, dtype: Any = np.float32
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        HEALTHY.append(Case(function.__name__, of(function), args or (1.0,), dtype=dtype))
        return function

    return add


def total(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of what a function gives."""
    return jax.grad(functools.wraps(function)(lambda *args: jnp.sum(function(*args))))


# ---------------------------------------------------------------- exp and log


@faulty(OVER, SENSE, textbook=lambda x: np.logaddexp(x, 0), points=_SIDES)  # M
def softplus(x):
    e = jnp.exp(x)  # <-
    return jnp.log(1 + e)


@faulty(OVER, textbook=lambda x: 1 / (1 + np.exp(-x)), points=_SIDES, of=jax.grad)  # the paper's example
def softplus_slope(x):
    return jnp.log(1 + jnp.exp(x))  # <-


@faulty(OVER, NAN, textbook=lambda x: 1 / (1 + np.exp(-x)), points=_SIDES)
def sigmoid_by_exp(x):
    return jnp.exp(x) / (1 + jnp.exp(x))  # <-


@faulty(OVER, SENSE, CANCEL, textbook=lambda x: -np.logaddexp(-x, 0), points=_SIDES)
def log_sigmoid(x):
    s = 1 / (1 + jnp.exp(-x))
    return jnp.log(s)  # <-


@faulty(SENSE, UNDER, CANCEL, textbook=lambda x: -np.logaddexp(x, 0), points=_SIDES)
def log_complement_of_sigmoid(x):
    return jnp.log(1 - jax.nn.sigmoid(x))  # <-


@faulty(
    OVER,
    UNDER,
    textbook=np.logaddexp,
    points=[(100.0, 99.0), (-100.0, -101.0), (1.0, 2.0), (0.0, 50.0)],
    args=(1.0, 2.0),
)  # B
def log_of_two(a, b):
    return jnp.log(jnp.exp(a) + jnp.exp(b))  # <-


@faulty(OVER, UNDER, textbook=lambda x: np.logaddexp.reduce(x), args=(_V,),
        points=[(_V,), (_V + 100,), (_V - 200,), (_V * 50,)])  # B  # fmt: skip
def log_sum_exp(x):
    e = jnp.exp(x)  # <-
    return jnp.log(jnp.sum(e))


@faulty(OVER, UNDER, NAN, textbook=lambda x: np.exp(x - np.logaddexp.reduce(x)), args=(_V,),
        points=[(_V,), (_V + 100,), (_V - 200,)])  # B  # fmt: skip
def softmax(x):
    e = jnp.exp(x)  # <-
    return e / jnp.sum(e)


@faulty(OVER, UNDER, textbook=lambda x: np.exp(x - np.logaddexp.reduce(x)), args=(_V,), points=[(_V,), (_V + 100,), (_V - 200,)],
        of=jax.grad)  # fmt: skip
def log_sum_exp_slope(x):
    return jnp.log(jnp.sum(jnp.exp(x)))  # <-


@faulty(UNDER, textbook=lambda x: x - np.logaddexp.reduce(x), args=(_V,), points=[(_V,), (_V * 80,), (_V - 200,)])  # B
def log_of_softmax(x):
    p = jax.nn.softmax(x)  # <-
    return jnp.log(p)


@faulty(
    OVER,
    textbook=lambda x: np.abs(x) + np.log1p(np.exp(-2 * np.abs(x))) - np.log(2),
    points=[(x[0],) for x in _SIDES if abs(x[0]) >= 1],
)
def log_cosh(x):
    return jnp.log(jnp.cosh(x))  # <-


@faulty(OVER, NAN, CANCEL, textbook=np.tanh, points=_SIDES)  # H 1.7
def tanh_by_exp(x):
    return (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x))  # <-


@faulty(CANCEL, textbook=np.sinh, points=_SMALL)  # N
def sinh_by_exp(x):
    return (jnp.exp(x) - jnp.exp(-x)) / 2  # <-


@faulty(SENSE, textbook=np.log1p, points=_SMALL)  # G, theorem 4
def log_near_one(x):
    return jnp.log(1 + x)  # <-


@faulty(CANCEL, textbook=np.expm1, points=_SMALL)  # H 1.14
def exp_less_one(x):
    return jnp.exp(x) - 1  # <-


@faulty(CANCEL, textbook=lambda x: np.expm1(x) / x, points=_SMALL)  # H 1.14.1
def exp_less_one_over_x(x):
    return (jnp.exp(x) - 1) / x  # <-


@faulty(
    SENSE,
    CANCEL,
    textbook=lambda x: np.where(x < 1, np.log(-np.expm1(-x)), np.log1p(-np.exp(-x))),
    points=_SMALL_POSITIVE + [(x,) for x in (1.0, 3.0, 10.0, 40.0)],
)  # M
def log_of_one_less_exp(x):
    return jnp.log(1 - jnp.exp(-x))  # <-


@faulty(
    OVER,
    CANCEL,
    textbook=lambda x: x + np.log(-np.expm1(-x)),
    points=[(x,) for x in (0.01, 0.5, 3.0, 10.0, 60.0, 100.0, 200.0)],
)
def softplus_inverse(x):
    return jnp.log(jnp.exp(x) - 1)  # <-


@faulty(
    SENSE,
    CANCEL,
    textbook=lambda p: np.log1p((2 * p - 1) / (1 - p)),
    args=(0.25,),
    points=[(x,) for x in (1e-3, 0.1, 0.4, 0.4999, 0.50001)],
)
def logit(p):
    return jnp.log(p / (1 - p))  # <-


@faulty(SENSE, CANCEL, textbook=np.arctanh, points=_SMALL, args=(0.25,))  # K
def artanh(x):
    return 0.5 * jnp.log((1 + x) / (1 - x))  # <-


@faulty(CANCEL, SENSE, OVER, textbook=np.arcsinh, points=[(-1e3,), (-30.0,), (-1e-4,), (1e-5,), (0.5,), (1e3,)])  # K
def arsinh(x):
    return jnp.log(x + jnp.sqrt(x * x + 1))  # <-


@faulty(
    OVER,
    NAN,
    UNDER,
    textbook=lambda a, b: np.exp(a - b),
    args=(1.0, 2.0),
    points=[(1.0, 2.0), (100.0, 99.0), (-120.0, -121.0)],
)
def quotient_of_exp(a, b):
    return jnp.exp(a) / jnp.exp(b)  # <-


@faulty(CANCEL, textbook=lambda x: 1 / (1 + np.exp(x)), points=[(1.0,), (10.0,), (20.0,), (50.0,), (-3.0,)])
def complement_of_sigmoid(x):
    return 1 - jax.nn.sigmoid(x)  # <-


@faulty(
    CANCEL,
    textbook=lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2,
    points=[(1.0,), (10.0,), (20.0,), (30.0,)],
    args=(25.0,),
)
def sigmoid_slope(x):
    s = jax.nn.sigmoid(x)
    return s * (1 - s)  # <-


@faulty(CANCEL, textbook=lambda x: 1 / np.cosh(x) ** 2, points=[(0.1,), (1.0,), (5.0,), (15.0,)], args=(12.0,))
def tanh_slope(x):
    return 1 - jnp.tanh(x) ** 2  # <-


@faulty(CANCEL, SENSE, textbook=lambda r, n: np.expm1(n * np.log1p(r)), args=(0.01, 12.0),
        points=[(1e-6, 12.0), (1e-4, 12.0), (0.01, 12.0)])  # G  # fmt: skip
def growth(r, n):
    return (1 + r) ** n - 1  # <-


@faulty(CANCEL, SENSE, textbook=lambda p, n: -np.expm1(n * np.log1p(-p)), args=(0.01, 20.0),
        points=[(1e-6, 20.0), (1e-4, 20.0), (0.01, 20.0)])  # fmt: skip
def at_least_once(p, n):
    return 1 - (1 - p) ** n  # <-


@faulty(CANCEL, textbook=lambda x: -np.expm1(-x), points=_SMALL)
def decay(x):
    return 1 - jnp.exp(-x)  # <-


# ---------------------------------------------------------------- roots and squares


@faulty(CANCEL, textbook=lambda x: 1 / (np.sqrt(x + 1) + np.sqrt(x)), points=_LARGE)  # N 3.1
def difference_of_roots(x):
    return jnp.sqrt(x + 1) - jnp.sqrt(x)  # <-


@faulty(CANCEL, textbook=lambda x: x / (np.sqrt(1 + x) + 1), points=_SMALL)
def root_less_one(x):
    return jnp.sqrt(1 + x) - 1  # <-


@faulty(CANCEL, textbook=lambda x: x / (np.sqrt(1 - x) + 1), points=_SMALL, args=(0.5,))
def one_less_root(x):
    return 1 - jnp.sqrt(1 - x)  # <-


@faulty(CANCEL, OVER, textbook=lambda x: 1 / (np.sqrt(x * x + 1) + x), points=[(1.0,), (10.0,), (100.0,), (1e4,)])
def root_less_x(x):
    return jnp.sqrt(x * x + 1) - x  # <-


@faulty(
    OVER, UNDER, textbook=np.hypot, points=[(3.0, 4.0), (3e25, 4e25), (3e-25, 4e-25), (1e30, 1.0)], args=(3e25, 4e25)
)  # H 27.8
def length(x, y):
    return jnp.sqrt(x * x + y * y)  # <-


@faulty(
    CANCEL,
    textbook=lambda x, y: (x - y) * (x + y),
    args=(3.0, 2.0),
    points=[(1.0, 1.0001), (100.0, 100.01), (3.0, 2.0)],
)  # G
def difference_of_squares(x, y):
    return x**2 - y**2  # <-


@faulty(CANCEL, textbook=lambda x: (1 - x) * (1 + x), args=(0.5,), points=[(0.5,), (0.999,), (0.999999,), (1.00001,)])
def one_less_square(x):
    return 1 - x * x  # <-


@faulty(CANCEL, textbook=lambda a, b, c: 2 * c / (-b - np.sqrt(b * b - 4 * a * c)), args=(1.0, 200.0, 1.0),
        points=[(1.0, 200.0, 1.0), (1.0, 1e4, 1.0), (2.0, 50.0, 0.5)])  # G, H 1.8  # fmt: skip
def quadratic_root(a, b, c):
    d = jnp.sqrt(b * b - 4 * a * c)
    return (-b + d) / (2 * a)  # <-


@faulty(CANCEL, textbook=lambda a, b, c: 2 * c / (-b + np.sqrt(b * b - 4 * a * c)), args=(1.0, -200.0, 1.0),
        points=[(1.0, -200.0, 1.0), (1.0, -1e4, 1.0), (2.0, -50.0, 0.5)])  # fmt: skip
def other_quadratic_root(a, b, c):
    return (-b - jnp.sqrt(b**2 - 4 * a * c)) / (2 * a)  # <-


@faulty(CANCEL, textbook=lambda x: 1 / x / (x + 1), points=_LARGE)  # N 3.3.1
def difference_of_reciprocals(x):
    return 1 / x - 1 / (x + 1)  # <-


@faulty(CANCEL, textbook=lambda x: np.log1p(1 / x), points=_LARGE)  # N 3.3.6
def difference_of_logs(x):
    return jnp.log(x + 1) - jnp.log(x)  # <-


@faulty(CANCEL, textbook=lambda x: np.arctan2(1, 1 + x * (x + 1)), points=_LARGE[:5])  # N 3.3.5
def difference_of_arctangents(x):
    return jnp.arctan(x + 1) - jnp.arctan(x)  # <-


@faulty(CANCEL, textbook=lambda x: np.var(x), args=(_V,), points=[(_V,), (_V + 100,), (_V + 1000,)])  # H 1.9
def variance(x):
    m = jnp.mean(x)
    return jnp.mean(x * x) - m * m  # <-


@faulty(
    CANCEL,
    textbook=lambda x: np.var(x, axis=1),
    args=(np.stack([_V, _V + 100]),),
    points=[(np.stack([_V, _V + 1000]),)],
)
def variance_of_rows(x):
    return jnp.mean(x**2, axis=1) - jnp.mean(x, axis=1) ** 2  # <-


@faulty(CANCEL, textbook=lambda x, y: np.mean((x - x.mean()) * (y - y.mean())), args=(_V, _P),
        points=[(_V + 100, _P + 100), (_V, _P)])  # fmt: skip
def covariance(x, y):
    return jnp.mean(x * y) - jnp.mean(x) * jnp.mean(y)  # <-


# ---------------------------------------------------------------- angles and special functions


@faulty(CANCEL, textbook=lambda x: 2 * np.sin(x / 2) ** 2, points=_SMALL)  # G
def versine(x):
    return 1 - jnp.cos(x)  # <-


@faulty(CANCEL, NAN, textbook=lambda x: 0.5 * (np.sin(x / 2) / (x / 2)) ** 2, points=_SMALL)  # H 1.7
def versine_over_square(x):
    c = jnp.cos(x)
    return (1 - c) / x**2  # <-


@faulty(CANCEL, NAN, textbook=lambda x: np.tan(x / 2), points=_SMALL)  # N 3.4.1
def versine_over_sine(x):
    return (1 - jnp.cos(x)) / jnp.sin(x)  # <-


@faulty(CANCEL, textbook=lambda x: x**3 / 6 - x**5 / 120 + x**7 / 5040, points=_SMALL)  # N
def x_less_sine(x):
    return x - jnp.sin(x)  # <-


@faulty(CANCEL, textbook=lambda x, h: 2 * np.cos(x + h / 2) * np.sin(h / 2), args=(1.0, 0.001),
        points=[(1.0, 0.001), (0.5, 1e-5), (1.0, 0.5)])  # N 3.3.2  # fmt: skip
def difference_of_sines(x, h):
    return jnp.sin(x + h) - jnp.sin(x)  # <-


@faulty(CANCEL, textbook=lambda x, h: -2 * np.sin(x + h / 2) * np.sin(h / 2), args=(1.0, 0.001),
        points=[(1.0, 0.001), (0.5, 1e-5), (1.0, 0.5)])  # N 3.3.3  # fmt: skip
def difference_of_cosines(x, h):
    return jnp.cos(x + h) - jnp.cos(x)  # <-


@faulty(NAN, textbook=lambda x: np.sinc(x / np.pi), points=[(0.0,), (1e-5,), (1.0,), (3.0,)])
def sine_over_x(x):
    return jnp.sin(x) / x  # <-


@faulty(CANCEL, textbook=lambda x: np.vectorize(math.erfc)(x), points=[(0.5,), (2.0,), (4.0,), (6.0,)])
def complement_of_erf(x):
    return 1 - erf(x)  # <-


@faulty(CANCEL, textbook=lambda x: 0.5 * np.vectorize(math.erfc)(x), points=[(0.5,), (2.0,), (4.0,), (6.0,)])
def normal_tail(x):
    return 1 - 0.5 * (1 + erf(x))  # <-


@faulty(
    SENSE,
    CANCEL,
    textbook=lambda y: 2 * np.arcsin(np.sqrt(y / 2)),
    args=(0.25,),
    points=[(1e-7,), (1e-5,), (1e-3,), (0.25,)],
)
def angle_near_zero(y):
    return jnp.arccos(1 - y)  # <-


# ---------------------------------------------------------------- NaN at single points, and in derivatives


@faulty(NAN, textbook=lambda p: -np.sum(np.where(p == 0, 0, p * np.log(np.where(p == 0, 1, p)))), args=(_P,),
        points=[(_P,), (np.array([0, 0.5, 0.5, 0], np.float32),)])  # fmt: skip
def entropy(p):
    return -jnp.sum(p * jnp.log(p))  # <-


@faulty(
    NAN,
    textbook=lambda x: np.where(x > 0, 0.5 / np.sqrt(np.where(x > 0, x, 1)), 0),
    args=(_V,),
    points=[(_V,), (-_V,)],
    of=total,
)
def guarded_root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # <-


@faulty(
    NAN,
    textbook=lambda x: np.where(x > 0, 1 / np.where(x > 0, x, 1), 0),
    args=(_V,),
    points=[(_V,), (_V * 0,)],
    of=total,
)  # J
def guarded_log(x):
    y = jnp.log(x)  # <-
    return jnp.where(x > 0, y, 0.0)


@faulty(NAN, textbook=lambda x: np.where(x != 0, -1 / np.where(x != 0, x, 1) ** 2, 0), args=(_V,),
        points=[(_V,), (_V * np.array([1, 0, 1, 0], np.float32),)], of=total)  # J  # fmt: skip
def guarded_reciprocal(x):
    return jnp.where(x != 0, 1 / x, 0.0)  # <-


@faulty(
    NAN, OVER, textbook=lambda x: x / max(np.linalg.norm(x), 1e-300), args=(_V,), points=[(_V,), (_V * 0,)], of=jax.grad
)
def norm(x):
    return jnp.sqrt(jnp.sum(x**2))  # <-


@faulty(
    NAN, OVER, textbook=lambda x: x / max(np.linalg.norm(x), 1e-300), args=(_V,), points=[(_V,), (_V * 0,)], of=jax.grad
)
def library_norm(x):
    return jnp.linalg.norm(x)  # <-


@faulty(NAN, textbook=lambda x: np.zeros(4), args=(_V,), points=[(_V * 0 + 2,)], of=jax.grad)
def deviation(x):
    return jnp.std(x)  # <-


@faulty(NAN, textbook=lambda x: x / max(np.linalg.norm(x), 1e-300), args=(_V,), points=[(_V,), (_V * 0,)])
def direction(x):
    n = jnp.sqrt(jnp.sum(x * x))
    return x / n  # <-


@faulty(CANCEL, SENSE, textbook=lambda x: 1 / np.cosh(x) ** 2, points=[(0.1,), (1.0,), (5.0,), (15.0,)], args=(12.0,),
        of=jax.grad)  # fmt: skip
def saturated(x):
    return jnp.tanh(x)  # <-


@faulty(OVER, UNDER, textbook=lambda x: np.sum(np.log(x)), args=(np.full(8, 0.5, np.float32),),
        points=[(np.full(8, 1e-6, np.float32),), (np.full(8, 1e6, np.float32),)])  # fmt: skip
def log_of_product(x):
    p = jnp.prod(x)  # <-
    return jnp.log(p)


@faulty(OVER, UNDER, textbook=lambda x: np.exp(np.mean(np.log(x))), args=(np.full(16, 200.0, np.float32),),
        points=[(np.full(16, 200.0, np.float32),)])  # fmt: skip
def geometric_mean(x):
    return jnp.prod(x) ** (1 / 16)  # <-
