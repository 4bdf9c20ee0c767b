"""Repairs of exponentials and logarithms, and of numbers beside 1."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from untrace.ir.types import Data
from untrace.tools.doctor.pair import THREE, TWO, Pair, by_series, expm1_ratio, gap_of, safe_divide, series


def _log1mexp(x: Data) -> Data:
    """log(1 - exp(-x)) of positive x: Mächler, 2012."""
    return jnp.where(x < 0.6931472, jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


def _log_cosh(x: Data) -> Data:
    size = jnp.abs(x)
    half = jnp.sinh(jnp.minimum(size, 1.0) / 2)
    return jnp.where(size < 1, jnp.log1p(2 * half * half), size + jnp.log1p(jnp.exp(-2 * size)) - 0.6931471805599453)


def _logit(p: Data) -> Data:
    return jnp.where(jnp.abs(p - 0.5) < 0.25, jnp.log1p((2 * p - 1) / (1 - p)), jnp.log(p / (1 - p)))


def _log1p_ratio(x: Data) -> Data:
    return safe_divide(jnp.log1p(x), x, 1.0)


_PHI2 = [1 / math.factorial(k + 2) for k in range(22)]
_PHI1_SLOPE = [(k + 1) / math.factorial(k + 2) for k in range(22)]


def _expm1_less_x(x: Data) -> Data:
    """(exp(x) - 1 - x) / x**2."""
    return by_series(x, x, _PHI2, lambda x: (jnp.expm1(x) - x) / (x * x))


def _expm1_ratio_slope(x: Data, ct: Data) -> Data:
    return ct * by_series(x, x, _PHI1_SLOPE, lambda x: (x * jnp.exp(x) - jnp.expm1(x)) / (x * x))


_ODD = [0.25 ** (2 * k) / (2 * k + 3) for k in range(16)]


def _deviance(x: Data, y: Data, gap: Data | None = None) -> Data:
    """x * log(x / y) - (x - y): Loader, Fast and accurate computation of binomial probabilities, 2000."""
    gap = gap_of(x, y, gap)
    is_near = jnp.abs(gap) < 0.25 * jnp.abs(x + y)
    part = jnp.where(is_near, gap / jnp.where(is_near, x + y, 1.0), 0.0)
    near = gap * part + 2 * x * part**3 * series((4 * part) ** 2, _ODD)
    far = jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(is_near | (x == 0), 1.0, x / y)))
    return jnp.where(is_near, near, far - gap)


def _complement_of_growth(x: Data, n: Data) -> Data:
    """1 - (1 + x)**n; a zero is not negative, for something may be divided by it."""
    return 0.0 - jnp.expm1(jax.scipy.special.xlog1py(n, x))


def _power_near_one(x: Data, n: Data) -> Data:
    is_small = jnp.abs(x) < 0.1
    return jnp.where(is_small, jnp.exp(n * jnp.log1p(jnp.where(is_small, x, 0.0))), (1 + x) ** n)


def _log_ratio(x: Data, y: Data, gap: Data | None = None) -> Data:
    gap = gap_of(x, y, gap)
    return jnp.where(jnp.abs(gap) < 0.5 * jnp.abs(y), jnp.log1p(gap / y), jnp.log(x) - jnp.log(y))


def _log_mean(x: Data, y: Data, gap: Data | None = None) -> Data:
    gap = gap_of(x, y, gap)
    return jnp.where(gap == 0, x, gap / jnp.where(gap == 0, 1.0, _log_ratio(x, y, gap)))


def _exp_difference(x: Data, y: Data, gap: Data | None = None) -> Data:
    gap = gap_of(x, y, gap)
    return -jnp.sign(gap) * jnp.exp(jnp.maximum(x, y)) * jnp.expm1(-jnp.abs(gap))


def _sigmoid_difference(x: Data, y: Data, gap: Data | None = None) -> Data:
    gap = gap_of(x, y, gap)
    sides = jax.nn.sigmoid(jnp.maximum(x, y)) * jax.nn.sigmoid(-jnp.minimum(x, y))
    return -jnp.sign(gap) * sides * jnp.expm1(-jnp.abs(gap))


def _log_normal_difference(x: Data, y: Data) -> Data:
    """log(cdf(x) - cdf(y)), of the tail that both are in."""
    is_right = x + y > 0
    above = jax.scipy.special.log_ndtr(jnp.where(is_right, -y, x))
    below = jax.scipy.special.log_ndtr(jnp.where(is_right, -x, y))
    return above + _log1mexp(above - below)


def _power_difference(x: Data, y: Data, n: Data, gap: Data | None = None) -> Data:
    gap = gap_of(x, y, gap)
    is_near = jnp.abs(gap) < 0.5 * jnp.abs(y)
    ratio = jnp.where(is_near, gap / jnp.where(is_near, y, 1.0), 0.0)
    return jnp.where(is_near, y**n * jnp.expm1(n * jnp.log1p(ratio)), x**n - y**n)


def _erf_difference(x: Data, y: Data) -> Data:
    tails = jnp.where(x + y > 0, lax.erfc(y) - lax.erfc(x), lax.erfc(-x) - lax.erfc(-y))
    return jnp.where(jnp.maximum(jnp.abs(x), jnp.abs(y)) < 0.5, lax.erf(x) - lax.erf(y), tails)


def _log_hypot(x: Data, y: Data) -> Data:
    large, small = jnp.maximum(jnp.abs(x), jnp.abs(y)), jnp.minimum(jnp.abs(x), jnp.abs(y))
    ratio = small / jnp.where(large == 0, 1.0, large)
    is_near = (large > 0.5) & (large < 2)
    less = jnp.where(is_near, (large - 1) * (large + 1) + small * small, 0.0)
    return jnp.where(is_near, 0.5 * jnp.log1p(less), jnp.log(large) + 0.5 * jnp.log1p(ratio * ratio))


def _log_sinh(x: Data) -> Data:
    return x + jnp.log(-0.5 * jnp.expm1(-2 * x))


def _less_than_light(x: Data, y: Data) -> Data:
    is_near = jnp.maximum(jnp.abs(x), jnp.abs(y)) < 2
    return jnp.where(is_near, (1 - x) * (1 - y) / (1 + x * y), 1 - (x + y) / (1 + x * y))


def _power_less_one(x: Data, p: Data) -> Data:
    is_near = x > 0
    return jnp.where(is_near, jnp.expm1(p * jnp.log(jnp.where(is_near, x, 1.0))), x**p - 1)


FOUR = ("float", "float", "float", "float")


def _log_tail(x: Data) -> Data:
    """The logarithm of the normal distribution's tail; far out JAX's own is NaN."""
    return jnp.where(x > 1e8, -0.5 * x * x, jax.scipy.special.log_ndtr(-jnp.minimum(x, 1e8)))


EXPONENTIALS = [
    # exp overflows, or 1 + exp(x) forgets x. Softplus' derivative is the logistic function.
    Pair("softplus", "exp overflows for large x, and 1 + exp(x) keeps nothing of exp(x) for small x",
         [lambda x: jnp.log(1 + jnp.exp(x)), lambda x: jnp.log1p(jnp.exp(x))],
         lambda x: jnp.logaddexp(x, 0.0), slopes=[lambda x, ct: ct * jax.nn.sigmoid(x)]),
    Pair("softplus of -x", "exp overflows for small x, and 1 + exp(-x) keeps nothing of exp(-x) for large x",
         [lambda x: jnp.log(1 + jnp.exp(-x)), lambda x: jnp.log1p(jnp.exp(-x))],
         lambda x: jnp.logaddexp(-x, 0.0), slopes=[lambda x, ct: -ct * jax.nn.sigmoid(-x)]),
    Pair("logaddexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(jnp.exp(x) + jnp.exp(y))], lambda x, y: jnp.logaddexp(x, y), TWO,
         slopes=[lambda x, y, ct: ct * jax.nn.sigmoid(x - y), lambda x, y, ct: ct * jax.nn.sigmoid(y - x)]),
    Pair("log sigmoid", "the logistic function underflows to 0 before its logarithm is taken",
         [lambda x: jnp.log(jax.nn.sigmoid(x)), lambda x: jnp.log(1 / (1 + jnp.exp(-x))),
          lambda x: jnp.log(jnp.exp(x) / (1 + jnp.exp(x))), lambda x: x - jnp.log(1 + jnp.exp(x))],
         jax.nn.log_sigmoid, slopes=[lambda x, ct: ct * jax.nn.sigmoid(-x)]),
    Pair("log of 1 - sigmoid", "1 - sigmoid(x) keeps nothing of a small difference from 1",
         [lambda x: jnp.log(1 - jax.nn.sigmoid(x)), lambda x: jnp.log(1 - 1 / (1 + jnp.exp(-x)))],
         lambda x: -jnp.logaddexp(x, 0.0), slopes=[lambda x, ct: -ct * jax.nn.sigmoid(x)]),
    Pair("sigmoid", "exp(x) / (1 + exp(x)) is inf / inf for large x",
         [lambda x: jnp.exp(x) / (1 + jnp.exp(x)), lambda x: 1 / (1 + jnp.exp(-x))], jax.nn.sigmoid,
         slopes=[lambda x, ct: ct * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)]),
    Pair("1 - sigmoid", "1 - sigmoid(x) cancels where sigmoid(x) is nearly 1",
         [lambda x: 1 - jax.nn.sigmoid(x), lambda x: 1 - 1 / (1 + jnp.exp(-x))], lambda x: jax.nn.sigmoid(-x),
         slopes=[lambda x, ct: -ct * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)]),
    Pair("derivative of sigmoid", "1 - sigmoid(x) cancels where sigmoid(x) is nearly 1",
         [lambda x: jax.nn.sigmoid(x) * (1 - jax.nn.sigmoid(x))],
         lambda x: jax.nn.sigmoid(x) * jax.nn.sigmoid(-x), is_derivative=True),
    Pair("derivative of tanh", "1 - tanh(x)**2 cancels where tanh(x) is nearly 1",
         [lambda x: 1 - jnp.tanh(x) ** 2, lambda x: (1 - jnp.tanh(x)) * (1 + jnp.tanh(x))],
         lambda x: 4 * jax.nn.sigmoid(2 * x) * jax.nn.sigmoid(-2 * x), is_derivative=True),
    Pair("tanh's own derivative", "1 - tanh(x)**2 cancels where tanh(x) is nearly 1 or -1", [jnp.tanh], jnp.tanh,
         slopes=[lambda x, ct: 4 * ct * jax.nn.sigmoid(2 * x) * jax.nn.sigmoid(-2 * x)]),
    Pair("sigmoid's own derivative", "1 - sigmoid(x) cancels where sigmoid(x) is nearly 1", [jax.nn.sigmoid],
         jax.nn.sigmoid, slopes=[lambda x, ct: ct * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)]),
    Pair("tanh", "inf / inf for large x, and a cancellation for small x",
         [lambda x: (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)),
          lambda x: (jnp.exp(2 * x) - 1) / (jnp.exp(2 * x) + 1), lambda x: (1 - jnp.exp(-2 * x)) / (1 + jnp.exp(-2 * x)),
          lambda x: 1 - 2 / (jnp.exp(2 * x) + 1), lambda x: 2 / (1 + jnp.exp(-2 * x)) - 1,
          lambda x: 2 * jax.nn.sigmoid(2 * x) - 1, lambda x: jnp.sinh(x) / jnp.cosh(x)], jnp.tanh),
    Pair("sinh", "exp(x) - exp(-x) cancels for small x", [lambda x: (jnp.exp(x) - jnp.exp(-x)) / 2], jnp.sinh),
    Pair("twice sinh", "exp(x) - exp(-x) cancels for small x", [lambda x: jnp.exp(x) - jnp.exp(-x)],
         lambda x: 2 * jnp.sinh(x)),
    Pair("log cosh", "cosh overflows before its logarithm is taken",
         [lambda x: jnp.log(jnp.cosh(x)), lambda x: jnp.log((jnp.exp(x) + jnp.exp(-x)) / 2)], _log_cosh,
         slopes=[lambda x, ct: ct * jnp.tanh(x)]),
    # Numbers beside 1.
    Pair("log1p", "1 + x keeps nothing of a small x", [lambda x: jnp.log(1 + x)], jnp.log1p, values=[0]),
    Pair("log1p of -x", "1 - x keeps nothing of a small x", [lambda x: jnp.log(1 - x)], lambda x: jnp.log1p(-x), values=[0]),
    Pair("expm1", "exp(x) - 1 cancels for small x", [lambda x: jnp.exp(x) - 1], jnp.expm1),
    Pair("1 - exp", "1 - exp(x) cancels for small x", [lambda x: 1 - jnp.exp(x)], lambda x: -jnp.expm1(x)),
    Pair("log(1 - exp(-x))", "1 - exp(-x) cancels for small x and keeps nothing of exp(-x) for large x",
         [lambda x: jnp.log(1 - jnp.exp(-x)), lambda x: jnp.log1p(-jnp.exp(-x)), lambda x: jnp.log(-jnp.expm1(-x))],
         _log1mexp, slopes=[lambda x, ct: ct / jnp.expm1(x)]),
    Pair("log(1 - exp(x))", "1 - exp(x) cancels for small x and keeps nothing of exp(x) for small ones",
         [lambda x: jnp.log(1 - jnp.exp(x)), lambda x: jnp.log1p(-jnp.exp(x)), lambda x: jnp.log(-jnp.expm1(x))],
         lambda x: _log1mexp(-x), slopes=[lambda x, ct: -ct / jnp.expm1(-x)]),
    Pair("log(exp(x) - 1)", "exp(x) overflows for large x, and exp(x) - 1 cancels for small x",
         [lambda x: jnp.log(jnp.exp(x) - 1), lambda x: jnp.log(jnp.expm1(x))],
         lambda x: x + _log1mexp(x), slopes=[lambda x, ct: -ct / jnp.expm1(-x)]),
    Pair("expm1(x) / x", "exp(x) - 1 cancels for small x", [lambda x: (jnp.exp(x) - 1) / x, lambda x: jnp.expm1(x) / x],
         expm1_ratio, slopes=[_expm1_ratio_slope]),
    Pair("(exp(c x) - 1) / x", "exp(c * x) - 1 cancels for small x, and 0 / 0 where x is 0",
         [lambda x, c: (jnp.exp(x * c) - 1) / x, lambda x, c: jnp.expm1(x * c) / x],
         lambda x, c: safe_divide(jnp.expm1(x * c), x, c), TWO, values=[0]),
    Pair("log1p(x) / x", "1 + x keeps nothing of a small x", [lambda x: jnp.log(1 + x) / x, lambda x: jnp.log1p(x) / x],
         _log1p_ratio),
    Pair("1 - exp(-x), over x", "1 - exp(-x) cancels for small x",
         [lambda x: (1 - jnp.exp(-x)) / x], lambda x: expm1_ratio(-x)),
    Pair("logit", "the logarithm of what is nearly 1 keeps nothing of the difference",
         [lambda p: jnp.log(p / (1 - p))], _logit, values=[0], slopes=[lambda p, ct: ct / (p * (1 - p))]),
    Pair("atanh", "1 + x and 1 - x keep nothing of a small x",
         [lambda x: jnp.log((1 + x) / (1 - x)) / 2, lambda x: 0.5 * jnp.log((1 + x) / (1 - x)),
          lambda x: 0.5 * (jnp.log(1 + x) - jnp.log(1 - x))], jnp.arctanh, values=[0]),
    Pair("twice atanh", "1 + x and 1 - x keep nothing of a small x",
         [lambda x: jnp.log((1 + x) / (1 - x)), lambda x: jnp.log(1 + x) - jnp.log(1 - x)],
         lambda x: jnp.log1p(x) - jnp.log1p(-x), values=[0]),
    Pair("asinh", "x + sqrt(x * x + 1) cancels for negative x and overflows",
         [lambda x: jnp.log(x + jnp.sqrt(x * x + 1))], jnp.arcsinh),
    Pair("acosh", "x * x overflows", [lambda x: jnp.log(x + jnp.sqrt(x * x - 1))], jnp.arccosh),
    Pair("1 - erf", "1 - erf(x) cancels for large x", [lambda x: 1 - lax.erf(x)], lambda x: lax.erfc(x)),
    Pair("1 + erf", "1 + erf(x) cancels for small x", [lambda x: 1 + lax.erf(x)], lambda x: lax.erfc(-x)),
    Pair("1 - erfc", "1 - erfc(x) cancels for small x", [lambda x: 1 - lax.erfc(x)], lambda x: lax.erf(x)),
    Pair("normal tail", "1 - cdf(x) cancels for large x",
         [lambda x: 1 - 0.5 * (1 + lax.erf(x)), lambda x: 1 - 0.5 * lax.erfc(-x)], lambda x: 0.5 * lax.erfc(x)),
    Pair("1 - tanh", "1 - tanh(x) cancels for large x", [lambda x: 1 - jnp.tanh(x)],
         lambda x: 2 * jax.nn.sigmoid(-2 * x), slopes=[lambda x, ct: -4 * ct * jax.nn.sigmoid(2 * x) * jax.nn.sigmoid(-2 * x)]),
    Pair("complement of a power", "1 - (1 - p)**n cancels for small p",
         [lambda p, n: 1 - (1 - p) ** n], lambda p, n: _complement_of_growth(-p, n), TWO, values=[0]),
    Pair("power of 1 + x", "1 + x keeps nothing of a small x, and the power makes it large",
         [lambda x, n: (1 + x) ** n], _power_near_one, TWO, values=[0]),
    Pair("growth", "(1 + x)**n - 1 cancels for small x",
         [lambda x, n: (1 + x) ** n - 1], lambda x, n: jnp.expm1(jax.scipy.special.xlog1py(n, x)), TWO, values=[0]),
    Pair("power less 1", "x**p is nearly 1 for small p, and for x near 1",
         [lambda x, p: x**p - 1], _power_less_one, TWO, values=[0, 1]),
    Pair("difference from a sum of velocities", "what is left of 1 is the product of what is left of each",
         [lambda x, y: 1 - (x + y) / (1 + x * y)], _less_than_light, TWO, values=[0, 1]),
    # Logarithms of quotients, products and powers.
    Pair("difference of logarithms", "the logarithms cancel where x + c is nearly x",
         [lambda x, c: jnp.log(x + c) - jnp.log(x)], lambda x, c: jnp.log1p(c / x), TWO),
    Pair("logarithm of a quotient", "the quotient overflows or underflows",
         [lambda x, y: jnp.log(x / y)], lambda x, y: jnp.log(x) - jnp.log(y), TWO, values=[0, 1]),
    Pair("logarithm of a product", "the product overflows or underflows",
         [lambda x, y: jnp.log(x * y)], lambda x, y: jnp.log(x) + jnp.log(y), TWO, values=[0, 1]),
    Pair("logarithm of exp", "exp overflows before the logarithm undoes it", [lambda x: jnp.log(jnp.exp(x))], lambda x: x),
    Pair("exp of a logarithm's multiple", "exp(a) / exp(b) is inf / inf",
         [lambda x, y: jnp.exp(x) / jnp.exp(y)], lambda x, y: jnp.exp(x - y), TWO),
    Pair("product of exponentials", "exp(a) * exp(b) is 0 * inf",
         [lambda x, y: jnp.exp(x) * jnp.exp(y)], lambda x, y: jnp.exp(x + y), TWO),
    Pair("step of x * log(x)", "the products cancel", [lambda x: (x + 1) * jnp.log(x + 1) - x * jnp.log(x)],
         lambda x: jnp.where(x > 1, jnp.log1p(x) + x * jnp.log1p(1 / jnp.where(x > 1, x, 1.0)),
                             (x + 1) * jnp.log1p(x) - jax.scipy.special.xlogy(x, x))),
    Pair("log of a length", "the squares overflow or underflow, and a root near 1 keeps nothing of what is small",
         [lambda x, y: jnp.log(jnp.sqrt(x * x + y * y)), lambda x, y: 0.5 * jnp.log(x * x + y * y)], _log_hypot, TWO),
    Pair("x * log(x)", "0 * log(0) is NaN", [lambda x: x * jnp.log(x)], lambda x: jax.scipy.special.xlogy(x, x),
         slopes=[lambda x, ct: ct * (jnp.log(x) + 1)], values=[0]),
    Pair("x * log(y)", "0 * log(0) is NaN",
         [lambda x, y: x * jnp.log(y)], lambda x, y: jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, y))), TWO,
         values=[0, 1]),
    Pair("x * log(1 - y)", "1 - y keeps nothing of a small y, and 0 * log(0) is NaN",
         [lambda x, y: x * jnp.log(1 - y)],
         lambda x, y: jnp.where(x == 0, 0.0, x * jnp.log1p(jnp.where(x == 0, 0.0, -y))), TWO, values=[0, 1]),
    Pair("x * log(x / y) - (x - y)", "the logarithm cancels with the difference where x is near y, and 0 * log(0) is NaN",
         [lambda x, y: x * jnp.log(x / y) - (x - y), lambda x, y: x * jnp.log(x / y) - x + y],
         _deviance, TWO, values=[0, 1], gap=True),
    Pair("x / x-like quotient", "inf / inf for large x",
         [lambda x, c: x / (x + c)], lambda x, c: 1 / (1 + c / x), TWO, values=[0]),
    # An exponential whose logarithm is taken with something beside it.
    Pair("logarithm of a number times exp", "exp overflows or underflows before the logarithm undoes it",
         [lambda k, x: jnp.log(k * jnp.exp(x))], lambda k, x: x + jnp.log(k), TWO, numbers=[0]),
    Pair("logarithm of a multiple of exp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(jnp.exp(x) * y)], lambda x, y: x + jnp.log(y), TWO, values=[1]),
    Pair("logarithm of exp over something", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(jnp.exp(x) / y)], lambda x, y: x - jnp.log(y), TWO, values=[1]),
    Pair("logarithm of the size of exp over something", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(jnp.abs(jnp.exp(x) / y))], lambda x, y: x - jnp.log(jnp.abs(y)), TWO, values=[1]),
    Pair("logarithm of something over exp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(x / jnp.exp(y))], lambda x, y: jnp.log(x) - y, TWO),
    Pair("logarithm of a difference of exponentials", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(jnp.exp(x) - jnp.exp(y))],
         lambda x, y, gap=None: x + _log1mexp(gap_of(x, y, gap)), TWO, gap=True),
    Pair("logarithm of a difference of sigmoids", "both are nearly 1, or underflow, and their difference cancels",
         [lambda x, y: jnp.log(jax.nn.sigmoid(x) - jax.nn.sigmoid(y)),
          lambda x, y: jnp.log(1 / (1 + jnp.exp(-x)) - 1 / (1 + jnp.exp(-y)))],
         lambda x, y, gap=None: -jnp.logaddexp(-x, 0.0) - jnp.logaddexp(y, 0.0) + _log1mexp(gap_of(x, y, gap)), TWO,
         values=[0, 1], gap=True),
    Pair("logarithm of a difference of normal distributions", "both are nearly 1, or underflow, and their difference cancels",
         [lambda x, y: jnp.log(jax.scipy.special.ndtr(x) - jax.scipy.special.ndtr(y)),
          lambda x, y: jnp.log(0.5 * (1 + lax.erf(x / jnp.sqrt(2.0))) - 0.5 * (1 + lax.erf(y / jnp.sqrt(2.0))))],
         _log_normal_difference, TWO, values=[0, 1]),
    Pair("difference of sigmoids", "both are nearly 1, or nearly the same",
         [lambda x, y: jax.nn.sigmoid(x) - jax.nn.sigmoid(y), lambda x, y: 1 / (1 + jnp.exp(-x)) - 1 / (1 + jnp.exp(-y))],
         _sigmoid_difference, TWO, values=[0, 1], gap=True),
    Pair("difference of tanh", "both are nearly 1, or nearly the same",
         [lambda x, y: jnp.tanh(x) - jnp.tanh(y)],
         lambda x, y, gap=None: 2 * _sigmoid_difference(2 * x, 2 * y, 2 * gap_of(x, y, gap)), TWO, values=[0, 1], gap=True),
    Pair("difference of log1p", "the logarithms cancel where x is near y",
         [lambda x, y: jnp.log1p(x) - jnp.log1p(y)],
         lambda x, y, gap=None: jnp.log1p(gap_of(x, y, gap) / (1 + y)), TWO, values=[0, 1], gap=True),
    Pair("difference of expm1", "the exponentials cancel where x is near y",
         [lambda x, y: jnp.expm1(x) - jnp.expm1(y)], _exp_difference, TWO, values=[0, 1], gap=True),
    Pair("difference of sinh", "both are nearly the same",
         [lambda x, y: jnp.sinh(x) - jnp.sinh(y)],
         lambda x, y, gap=None: 2 * jnp.cosh(0.5 * (x + y)) * jnp.sinh(0.5 * gap_of(x, y, gap)), TWO, values=[0, 1], gap=True),
    Pair("difference of cosh", "both are nearly the same",
         [lambda x, y: jnp.cosh(x) - jnp.cosh(y)],
         lambda x, y, gap=None: 2 * jnp.sinh(0.5 * (x + y)) * jnp.sinh(0.5 * gap_of(x, y, gap)), TWO, values=[0, 1], gap=True),
    Pair("difference of powers", "the powers cancel where x is near y",
         [lambda x, y, n: x**n - y**n], _power_difference, THREE, values=[0, 1], gap=True),
    Pair("logarithm of a mixture", "both exponentials underflow before the logarithm is taken",
         [lambda u, x, v, y: jnp.log(u * jnp.exp(x) + v * jnp.exp(y))],
         lambda u, x, v, y: jnp.logaddexp(x + jnp.log(u), y + jnp.log(v)), FOUR),
    Pair("logarithm of a power", "the power overflows or underflows before the logarithm is taken",
         [lambda x, n: jnp.log(x**n)], lambda x, n: jnp.where(n == 0, 0.0, n * jnp.log(jnp.where(n == 0, 1.0, x))), TWO, values=[0]),
    Pair("logarithm of a square", "the square overflows or underflows before the logarithm is taken",
         [lambda x: jnp.log(x * x)], lambda x: 2 * jnp.log(jnp.abs(x)), slopes=[lambda x, ct: 2 * ct / x]),
    Pair("power of exp", "exp overflows or underflows before its power is taken",
         [lambda x, n: jnp.exp(x) ** n], lambda x, n: jnp.exp(n * x), TWO),
    Pair("log sinh", "sinh overflows before its logarithm is taken",
         [lambda x: jnp.log(jnp.sinh(x)), lambda x: jnp.log((jnp.exp(x) - jnp.exp(-x)) / 2)], _log_sinh,
         slopes=[lambda x, ct: ct / jnp.tanh(x)]),
    Pair("logarithm of a quotient near 1", "the quotient keeps nothing of a small difference",
         [lambda x, y: jnp.log(x / y), lambda x, y: jnp.log(x) - jnp.log(y)], _log_ratio, TWO, values=[0, 1], gap=True,
         slopes=[lambda x, y, ct: ct / x, lambda x, y, ct: -ct / y]),
    Pair("logit, of logarithms", "1 - p keeps nothing of a small p, and the logarithms cancel near 1/2",
         [lambda p: jnp.log(p) - jnp.log(1 - p)], _logit, values=[0], slopes=[lambda p, ct: ct / (p * (1 - p))]),
    Pair("logit of 1 - p", "1 - p keeps nothing of a small p",
         [lambda p: jnp.log((1 - p) / p)], lambda p: -_logit(p), values=[0], slopes=[lambda p, ct: -ct / (p * (1 - p))]),
    Pair("x * log(x / y)", "0 * log(0) is NaN",
         [lambda x, y: x * jnp.log(x / y)],
         lambda x, y: jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, x / y))), TWO, values=[0, 1],
         slopes=[lambda x, y, ct: ct * (jnp.log(x / y) + 1), lambda x, y, ct: -ct * (x / y)]),
    Pair("(1 - x) * log(1 - x)", "0 * log(0) is NaN, and 1 - x keeps nothing of a small x",
         [lambda x: (1 - x) * jnp.log(1 - x)],
         lambda x: jnp.where(x == 1, 0.0, (1 - x) * jnp.log1p(jnp.where(x == 1, 0.0, -x))), values=[0],
         slopes=[lambda x, ct: -ct * (jnp.log1p(-x) + 1)]),
    # The distributions of Fermi, Bose and their relatives.
    Pair("sigmoid of -x", "exp overflows, and its derivative is inf / inf",
         [lambda x: 1 / (1 + jnp.exp(x))], lambda x: jax.nn.sigmoid(-x),
         slopes=[lambda x, ct: -ct * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)]),
    Pair("logistic density", "exp(x) / (1 + exp(x))**2 is inf / inf for large x",
         [lambda x: jnp.exp(x) / (1 + jnp.exp(x)) ** 2, lambda x: jnp.exp(-x) / (1 + jnp.exp(-x)) ** 2],
         lambda x: jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)),
    Pair("exp over (exp - 1) squared", "exp overflows, and exp(x) - 1 cancels for small x",
         [lambda x: jnp.exp(x) / (jnp.exp(x) - 1) ** 2],
         lambda x: (jnp.exp(-0.5 * jnp.abs(x)) / jnp.expm1(-jnp.abs(x))) ** 2, values=[0]),
    Pair("exp over exp - 1", "inf / inf for large x, and exp(x) - 1 cancels for small x",
         [lambda x: jnp.exp(x) / (jnp.exp(x) - 1)], lambda x: -1 / jnp.expm1(-x)),
    Pair("x over exp - 1", "exp(x) - 1 cancels for small x, and is 0 at 0",
         [lambda x: x / (jnp.exp(x) - 1), lambda x: x / jnp.expm1(x)], lambda x: safe_divide(x, jnp.expm1(x), 1.0), values=[0]),
    Pair("x over 1 - exp(-x)", "1 - exp(-x) cancels for small x, and is 0 at 0",
         [lambda x: x / (1 - jnp.exp(-x))], lambda x: safe_divide(x, -jnp.expm1(-x), 1.0), values=[0]),
    Pair("exp(x) - 1 - x", "1 + x and exp(x) cancel for small x",
         [lambda x: jnp.exp(x) - 1 - x, lambda x: jnp.exp(x) - x - 1, lambda x: jnp.exp(x) - (1 + x), lambda x: jnp.expm1(x) - x],
         lambda x: x * x * _expm1_less_x(x), slopes=[lambda x, ct: ct * jnp.expm1(x)]),
    Pair("(exp(x) - 1 - x) / x**2", "1 + x and exp(x) cancel for small x",
         [lambda x: (jnp.exp(x) - 1 - x) / (x * x), lambda x: (jnp.expm1(x) - x) / (x * x)], _expm1_less_x),
    Pair("cosh - 1", "cosh(x) - 1 cancels for small x", [lambda x: jnp.cosh(x) - 1], lambda x: 2 * jnp.sinh(0.5 * x) ** 2),
    Pair("1 - cosh", "1 - cosh(x) cancels for small x", [lambda x: 1 - jnp.cosh(x)], lambda x: -2 * jnp.sinh(0.5 * x) ** 2),
    Pair("difference of exponentials", "the exponentials cancel where x and y are near",
         [lambda x, y: jnp.exp(x) - jnp.exp(y)], _exp_difference, TWO, values=[0, 1], gap=True,
         slopes=[lambda x, y, ct: ct * jnp.exp(x), lambda x, y, ct: -ct * jnp.exp(y)]),
    Pair("step of exp", "exp(x + h) and exp(x) cancel for small h",
         [lambda x, h: jnp.exp(x + h) - jnp.exp(x)], lambda x, h: jnp.exp(x) * jnp.expm1(h), TWO),
    Pair("difference of erf", "both are nearly 1, or nearly -1",
         [lambda x, y: lax.erf(x) - lax.erf(y)], _erf_difference, TWO, values=[0, 1]),
    Pair("difference of erfc", "both are nearly 1, or nearly 2",
         [lambda x, y: lax.erfc(x) - lax.erfc(y)], lambda x, y: _erf_difference(y, x), TWO, values=[0, 1]),
    Pair("erfc and its reflection", "both are nearly 1 for small x",
         [lambda x: lax.erfc(-x) - lax.erfc(x)], lambda x: 2 * lax.erf(x)),
    Pair("normal distribution and its reflection", "both are nearly 1/2 for small x",
         [lambda x: jax.scipy.special.ndtr(x) - jax.scipy.special.ndtr(-x)], lambda x: lax.erf(0.7071067811865476 * x)),
    Pair("difference of normal distributions", "both are nearly 1/2, or nearly 1",
         [lambda x, y: jax.scipy.special.ndtr(x) - jax.scipy.special.ndtr(y)],
         lambda x, y: 0.5 * _erf_difference(0.7071067811865476 * x, 0.7071067811865476 * y), TWO, values=[0, 1]),
    Pair("logarithmic mean", "the quotient keeps nothing of a small difference, and is 0 / 0 where both are the same",
         [lambda x, y: (x - y) / jnp.log(x / y), lambda x, y: (x - y) / (jnp.log(x) - jnp.log(y))],
         _log_mean, TWO, values=[0, 1], gap=True),
    # Growth that is limited.
    Pair("logistic growth", "exp overflows, and inf / inf is NaN",
         [lambda x, a, b, c: a * jnp.exp(x) / (b + c * (jnp.exp(x) - 1)),
          lambda x, a, b, c: a * jnp.exp(x) / (b - c + c * jnp.exp(x))],
         lambda x, a, b, c: a / (c + (b - c) * jnp.exp(-x)), FOUR),
    Pair("exp over a multiple of exp", "exp overflows, and inf / inf is NaN",
         [lambda x, a, b, c: a * jnp.exp(x) / (b + c * jnp.exp(x))], lambda x, a, b, c: a / (c + b * jnp.exp(-x)), FOUR),
    Pair("saturation by a power", "the powers overflow or underflow where their quotient does not",
         [lambda x, y, n: x**n / (y**n + x**n)], lambda x, y, n: 1 / (1 + (y / x) ** n), THREE, values=[0, 1]),
    Pair("inhibition by a power", "the powers overflow or underflow where their quotient does not",
         [lambda x, y, n: y**n / (y**n + x**n)], lambda x, y, n: 1 / (1 + (x / y) ** n), THREE, values=[0, 1]),
    Pair("quotient of powers", "the powers overflow or underflow where their quotient does not",
         [lambda x, y, n: x**n / y**n], lambda x, y, n: (x / y) ** n, THREE, values=[0, 1]),
    # Interest.
    Pair("complement of growth", "1 - (1 + x)**n cancels for small x",
         [lambda x, n: 1 - (1 + x) ** n], _complement_of_growth, TWO, values=[0]),
    Pair("growth over its rate", "(1 + x)**n - 1 cancels for small x, and is 0 at 0",
         [lambda x, n: ((1 + x) ** n - 1) / x],
         lambda x, n: safe_divide(jnp.expm1(n * jnp.log1p(x)), x, n), TWO, values=[0]),
    Pair("annuity", "1 - (1 + x)**n cancels for small x, and is 0 at 0",
         [lambda x, n: x / (1 - (1 + x) ** n)],
         lambda x, n: safe_divide(x, -jnp.expm1(n * jnp.log1p(x)), -1 / n), TWO, values=[0]),
    Pair("annuity's value", "1 - (1 + x)**n cancels for small x, and is 0 at 0",
         [lambda x, n: (1 - (1 + x) ** n) / x],
         lambda x, n: safe_divide(-jnp.expm1(n * jnp.log1p(x)), x, -n), TWO, values=[0]),
    Pair("x**2 exp over (exp - 1) squared", "exp overflows, and exp(x) - 1 cancels for small x",
         [lambda x: x * x * jnp.exp(x) / (jnp.exp(x) - 1) ** 2],
         lambda x: safe_divide(jnp.abs(x) * jnp.exp(-0.5 * jnp.abs(x)), -jnp.expm1(-jnp.abs(x)), 1.0) ** 2),
    Pair("logarithm of cosh and a number", "cosh overflows before its logarithm is taken",
         [lambda x, k, m: jnp.log(k + m * jnp.cosh(x))],
         lambda x, k, m: jnp.abs(x) + jnp.log(k * jnp.exp(-jnp.abs(x)) + 0.5 * m * (1 + jnp.exp(-2 * jnp.abs(x)))),
         ("float", "float", "float"), numbers=[1, 2]),
    Pair("logarithm of the normal distribution's tail", "its probability underflows to 0 before the logarithm is taken",
         [lambda x: jnp.log(1 - jax.scipy.special.ndtr(x)), lambda x: jnp.log(0.5 * (1 - lax.erf(x / jnp.sqrt(2.0)))),
          lambda x: jnp.log(1 - 0.5 * (1 + lax.erf(x / jnp.sqrt(2.0)))), lambda x: jnp.log(0.5 * lax.erfc(x / jnp.sqrt(2.0)))],
         _log_tail),
    Pair("normal distribution's tail", "1 - cdf(x) cancels for large x",
         [lambda x: 1 - jax.scipy.special.ndtr(x)], lambda x: jax.scipy.special.ndtr(-x)),
    Pair("logarithm of a Bessel function", "the function overflows before its logarithm is taken",
         [lambda x: jnp.log(jax.scipy.special.i0(x))], lambda x: jnp.abs(x) + jnp.log(jax.scipy.special.i0e(x)),
         slopes=[lambda x, ct: ct * (jax.scipy.special.i1e(x) / jax.scipy.special.i0e(x))]),
    Pair("logarithm of erfc", "erfc underflows to 0 before its logarithm is taken", [lambda x: jnp.log(lax.erfc(x))],
         lambda x: jax.scipy.special.log_ndtr(-1.4142135623730951 * x) + 0.6931471805599453),
    Pair("step of lgamma", "the logarithms of the gamma function cancel",
         [lambda x: lax.lgamma(x + 1) - lax.lgamma(x)], lambda x: jnp.log(jnp.abs(x))),
    Pair("gamma over gamma", "the gamma functions overflow where their quotient does not",
         [lambda x, y: jnp.exp(lax.lgamma(x)) / jnp.exp(lax.lgamma(y))], lambda x, y: jnp.exp(lax.lgamma(x) - lax.lgamma(y)), TWO),
    Pair("1 - sigmoid of -x", "1 - 1 / (1 + exp(x)) cancels for small x",
         [lambda x: 1 - 1 / (1 + jnp.exp(x)), lambda x: 1 - jax.nn.sigmoid(-x)], jax.nn.sigmoid,
         slopes=[lambda x, ct: ct * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)]),
    Pair("log of 1 - sigmoid of -x", "1 - 1 / (1 + exp(x)) keeps nothing of a small difference from 1",
         [lambda x: jnp.log(1 - 1 / (1 + jnp.exp(x)))], jax.nn.log_sigmoid, slopes=[lambda x, ct: ct * jax.nn.sigmoid(-x)]),
    Pair("log sigmoid of -x", "1 / (1 + exp(x)) underflows to 0 before its logarithm is taken",
         [lambda x: jnp.log(1 / (1 + jnp.exp(x)))], lambda x: -jnp.logaddexp(x, 0.0),
         slopes=[lambda x, ct: -ct * jax.nn.sigmoid(x)]),
]  # fmt: skip
