"""What is often written, and how it should be: functions of JAX beside each other.

A pair is used where the first traces to what stands in a program, and kept where the second is shown to be right in more
places there (`repair`). So a pair may be bold: what it must be is the same for real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from untrace.ir.types import Data

F = Callable[..., Data]


@dataclass(frozen=True, slots=True)
class Pair:
    """`written`: the ways in which it is written; `better`: what to write, of the same holes. `holes`: what each is, "float" or
    "bool". `slopes`: for each hole how to write the cotangent, of the holes and the result's cotangent; where there is none,
    as JAX differentiates `better`. `arrays`: both take `axis` and `keepdims` too. `is_derivative`: what is itself one, so that
    its own derivative is not looked for. `because`: why, in a sentence. `numbers`: holes that are numbers of the text.
    """

    name: str
    because: str
    written: Sequence[F]
    better: F
    holes: Sequence[str] = ("float",)
    slopes: Sequence[F | None] = ()
    arrays: bool = False
    is_derivative: bool = False
    numbers: Sequence[int] = ()
    values: Sequence[int] = ()  # holes that are none

    def refuses(self, hole: int, term: object) -> bool:
        """Whether a hole must not be this: a number of the text, or none."""
        is_number = isinstance(term, float)
        return hole in self.numbers and not is_number or hole in self.values and is_number


_ONE = ("float",)
_TWO = ("float", "float")
_THREE = ("float", "float", "float")


def _log1mexp(x: Data) -> Data:
    """log(1 - exp(-x)) of positive x: Mächler, 2012."""
    return jnp.where(x < 0.6931472, jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


def _log_cosh(x: Data) -> Data:
    size = jnp.abs(x)
    half = jnp.sinh(jnp.minimum(size, 1.0) / 2)
    return jnp.where(size < 1, jnp.log1p(2 * half * half), size + jnp.log1p(jnp.exp(-2 * size)) - 0.6931471805599453)


def _logit(p: Data) -> Data:
    return jnp.where(jnp.abs(p - 0.5) < 0.25, jnp.log1p((2 * p - 1) / (1 - p)), jnp.log(p / (1 - p)))


def _safe_divide(x: Data, y: Data, at_zero: Data) -> Data:
    return jnp.where(y == 0, at_zero, x / jnp.where(y == 0, 1.0, y))


def _versine(x: Data) -> Data:
    half = jnp.sin(0.5 * x)
    return 2 * half * half


def _sinc(x: Data) -> Data:
    return _safe_divide(jnp.sin(x), x, 1.0)


def _expm1_ratio(x: Data) -> Data:
    return _safe_divide(jnp.expm1(x), x, 1.0)


def _log1p_ratio(x: Data) -> Data:
    return _safe_divide(jnp.log1p(x), x, 1.0)


def _versine_ratio(x: Data) -> Data:
    """(1 - cos x) / x**2."""
    half = 0.5 * x
    ratio = _safe_divide(jnp.sin(half), half, 1.0)
    return 0.5 * ratio * ratio


def _x_minus_sin(x: Data) -> Data:
    """x - sin x, by its series where both are nearly the same."""
    y = x * x
    series = x * y * (1 / 6 - y * (1 / 120 - y * (1 / 5040 - y * (1 / 362880 - y / 39916800))))
    return jnp.where(jnp.abs(x) < 1.3, series, x - jnp.sin(x))


def _hypot(x: Data, y: Data) -> Data:
    x, y = jnp.abs(x), jnp.abs(y)
    large, small = jnp.maximum(x, y), jnp.minimum(x, y)
    ratio = small / jnp.where(large == 0, 1.0, large)
    return large * jnp.sqrt(1 + ratio * ratio)


def _sqrt_step(x: Data, c: Data) -> Data:
    return c / (jnp.sqrt(x + c) + jnp.sqrt(x))


_ELEMENTWISE = [
    # exp overflows, or 1 + exp(x) forgets x. Softplus' derivative is the logistic function.
    Pair("softplus", "exp overflows for large x, and 1 + exp(x) keeps nothing of exp(x) for small x",
         [lambda x: jnp.log(1 + jnp.exp(x)), lambda x: jnp.log1p(jnp.exp(x))],
         lambda x: jnp.logaddexp(x, 0.0), slopes=[lambda x, ct: ct * jax.nn.sigmoid(x)]),
    Pair("softplus of -x", "exp overflows for small x, and 1 + exp(-x) keeps nothing of exp(-x) for large x",
         [lambda x: jnp.log(1 + jnp.exp(-x)), lambda x: jnp.log1p(jnp.exp(-x))],
         lambda x: jnp.logaddexp(-x, 0.0), slopes=[lambda x, ct: -ct * jax.nn.sigmoid(-x)]),
    Pair("logaddexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, y: jnp.log(jnp.exp(x) + jnp.exp(y))], lambda x, y: jnp.logaddexp(x, y), _TWO,
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
         [lambda x: 1 - jax.nn.sigmoid(x), lambda x: 1 - 1 / (1 + jnp.exp(-x))], lambda x: jax.nn.sigmoid(-x)),
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
         _expm1_ratio),
    Pair("log1p(x) / x", "1 + x keeps nothing of a small x", [lambda x: jnp.log(1 + x) / x, lambda x: jnp.log1p(x) / x],
         _log1p_ratio),
    Pair("1 - exp(-x), over x", "1 - exp(-x) cancels for small x",
         [lambda x: (1 - jnp.exp(-x)) / x], lambda x: _expm1_ratio(-x)),
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
         [lambda p, n: 1 - (1 - p) ** n], lambda p, n: -jnp.expm1(n * jnp.log1p(-p)), _TWO, values=[0]),
    Pair("power of 1 + x", "1 + x keeps nothing of a small x, and the power makes it large",
         [lambda x, n: (1 + x) ** n], lambda x, n: jnp.exp(n * jnp.log1p(x)), _TWO, values=[0, 1]),
    Pair("growth", "(1 + x)**n - 1 cancels for small x",
         [lambda x, n: (1 + x) ** n - 1], lambda x, n: jnp.expm1(n * jnp.log1p(x)), _TWO, values=[0]),
    # Angles.
    Pair("(1 - cos x) / x**2", "1 - cos(x) cancels for small x",
         [lambda x: (1 - jnp.cos(x)) / (x * x)], _versine_ratio),
    Pair("(1 - cos x) / sin x", "1 - cos(x) cancels for small x",
         [lambda x: (1 - jnp.cos(x)) / jnp.sin(x)], lambda x: jnp.tan(0.5 * x)),
    Pair("(1 - cos x) / x", "1 - cos(x) cancels for small x",
         [lambda x: (1 - jnp.cos(x)) / x], lambda x: jnp.sin(0.5 * x) * _sinc(0.5 * x)),
    Pair("1 - cos", "1 - cos(x) cancels for small x", [lambda x: 1 - jnp.cos(x), lambda x: 1 - jnp.cos(x)], _versine),
    Pair("cos - 1", "cos(x) - 1 cancels for small x", [lambda x: jnp.cos(x) - 1], lambda x: -_versine(x)),
    Pair("1 - cos**2", "1 - cos(x)**2 cancels for small x",
         [lambda x: 1 - jnp.cos(x) ** 2], lambda x: jnp.sin(x) ** 2),
    Pair("sinc", "0 / 0 where x is 0", [lambda x: jnp.sin(x) / x], _sinc),
    Pair("tanh(x) / x", "0 / 0 where x is 0", [lambda x: jnp.tanh(x) / x], lambda x: _safe_divide(jnp.tanh(x), x, 1.0)),
    Pair("x - sin x", "x - sin(x) cancels for small x", [lambda x: x - jnp.sin(x)], _x_minus_sin),
    Pair("difference of sines", "sin(x + h) - sin(x) cancels for small h",
         [lambda x, h: jnp.sin(x + h) - jnp.sin(x)],
         lambda x, h: 2 * jnp.cos(x + 0.5 * h) * jnp.sin(0.5 * h), _TWO),
    Pair("difference of cosines", "cos(x + h) - cos(x) cancels for small h",
         [lambda x, h: jnp.cos(x + h) - jnp.cos(x)],
         lambda x, h: -2 * jnp.sin(x + 0.5 * h) * jnp.sin(0.5 * h), _TWO),
    Pair("acosh near 1", "acosh of 1 + x keeps nothing of a small x",
         [lambda x: jnp.arccosh(1 + x)], lambda x: jnp.log1p(x + jnp.sqrt(x) * jnp.sqrt(x + 2)), values=[0]),
    Pair("logarithm of the normal distribution", "its probability underflows to 0 before the logarithm is taken",
         [lambda x: jnp.log(jax.scipy.special.ndtr(x)), lambda x: jnp.log(jax.scipy.stats.norm.cdf(x)),
          lambda x: jnp.log(0.5 * (1 + lax.erf(x / jnp.sqrt(2.0))))], jax.scipy.special.log_ndtr),
    Pair("acos near 1", "acos of 1 - y keeps nothing of a small y",
         [lambda y: jnp.arccos(1 - y)], lambda y: 2 * jnp.arcsin(jnp.sqrt(0.5 * y)), values=[0]),
    Pair("quotient's arctangent", "y / x overflows, is 0 / 0, and forgets the signs",
         [lambda y, x: jnp.arctan(y / x)],
         lambda y, x: jnp.arctan2(y * jnp.sign(x), jnp.abs(x)), _TWO, values=[0, 1]),
    # Squares, roots and their differences.
    Pair("hypot", "the squares overflow or underflow where their root does not",
         [lambda x, y: jnp.sqrt(x * x + y * y)], _hypot, _TWO,
         slopes=[lambda x, y, ct: ct * (x / jnp.where(_hypot(x, y) == 0, 1.0, _hypot(x, y))),
                 lambda x, y, ct: ct * (y / jnp.where(_hypot(x, y) == 0, 1.0, _hypot(x, y)))]),
    Pair("sqrt(x * x)", "the square overflows or underflows", [lambda x: jnp.sqrt(x * x)], jnp.abs,
         slopes=[lambda x, ct: ct * jnp.sign(x)]),
    Pair("difference of squares", "the squares cancel", [lambda x, y: x * x - y * y],
         lambda x, y: (x - y) * (x + y), _TWO),
    Pair("1 - x**2", "the square cancels with 1", [lambda x: 1 - x * x], lambda x: (1 - x) * (1 + x), values=[0]),
    Pair("x**2 - 1", "the square cancels with 1", [lambda x: x * x - 1], lambda x: (x - 1) * (x + 1), values=[0]),
    Pair("difference of roots", "the roots cancel", [lambda x, c: jnp.sqrt(x + c) - jnp.sqrt(x)], _sqrt_step, _TWO),
    Pair("difference of roots, reversed", "the roots cancel",
         [lambda x, c: jnp.sqrt(x) - jnp.sqrt(x + c)], lambda x, c: -_sqrt_step(x, c), _TWO),
    Pair("difference of any roots", "the roots cancel", [lambda x, y: jnp.sqrt(x) - jnp.sqrt(y)],
         lambda x, y: (x - y) / (jnp.sqrt(x) + jnp.sqrt(y)), _TWO, values=[0, 1]),
    Pair("sqrt(1 + x) - 1", "the root cancels with 1 for small x",
         [lambda x: jnp.sqrt(1 + x) - 1], lambda x: x / (jnp.sqrt(1 + x) + 1)),
    Pair("1 - sqrt(1 - x)", "the root cancels with 1 for small x",
         [lambda x: 1 - jnp.sqrt(1 - x)], lambda x: x / (1 + jnp.sqrt(1 - x))),
    Pair("1 - sqrt(1 + x)", "the root cancels with 1 for small x",
         [lambda x: 1 - jnp.sqrt(1 + x)], lambda x: -x / (1 + jnp.sqrt(1 + x))),
    Pair("sqrt(x**2 + c) - x", "the root cancels with x, and the square overflows",
         [lambda x, c: jnp.sqrt(x * x + c) - x],
         lambda x, c: jnp.where(x > 0, c / (jnp.sqrt(x * x + c) + x), jnp.sqrt(x * x + c) - x), _TWO),
    Pair("x - sqrt(x**2 - c)", "the root cancels with x",
         [lambda x, c: x - jnp.sqrt(x * x - c)],
         lambda x, c: jnp.where(x > 0, c / (x + jnp.sqrt(x * x - c)), x - jnp.sqrt(x * x - c)), _TWO),
    Pair("quadratic root", "-b + sqrt(b * b - 4ac) cancels for positive b",
         [lambda a, b, c: (-b + jnp.sqrt(b * b - 4 * a * c)) / (2 * a)],
         lambda a, b, c: jnp.where(b > 0, 2 * c / (-b - jnp.sqrt(b * b - 4 * a * c)), (-b + jnp.sqrt(b * b - 4 * a * c)) / (2 * a)),
         _THREE),
    Pair("other quadratic root", "-b - sqrt(b * b - 4ac) cancels for negative b",
         [lambda a, b, c: (-b - jnp.sqrt(b * b - 4 * a * c)) / (2 * a)],
         lambda a, b, c: jnp.where(b < 0, 2 * c / (-b + jnp.sqrt(b * b - 4 * a * c)), (-b - jnp.sqrt(b * b - 4 * a * c)) / (2 * a)),
         _THREE),
    Pair("difference of reciprocals", "1 / x and 1 / (x + c) cancel",
         [lambda x, c: 1 / x - 1 / (x + c)], lambda x, c: c / x / (x + c), _TWO),
    Pair("difference of reciprocals, reversed", "1 / (x + c) and 1 / x cancel",
         [lambda x, c: 1 / (x + c) - 1 / x], lambda x, c: -c / x / (x + c), _TWO),
    Pair("difference of arctangents", "the arctangents cancel",
         [lambda x, c: jnp.arctan(x + c) - jnp.arctan(x)], lambda x, c: jnp.arctan2(c, 1 + x * (x + c)), _TWO),
    # Logarithms of quotients, products and powers.
    Pair("difference of logarithms", "the logarithms cancel where x + c is nearly x",
         [lambda x, c: jnp.log(x + c) - jnp.log(x)], lambda x, c: jnp.log1p(c / x), _TWO),
    Pair("logarithm of a quotient", "the quotient overflows or underflows",
         [lambda x, y: jnp.log(x / y)], lambda x, y: jnp.log(x) - jnp.log(y), _TWO, values=[0, 1]),
    Pair("logarithm of a product", "the product overflows or underflows",
         [lambda x, y: jnp.log(x * y)], lambda x, y: jnp.log(x) + jnp.log(y), _TWO, values=[0, 1]),
    Pair("logarithm of exp", "exp overflows before the logarithm undoes it", [lambda x: jnp.log(jnp.exp(x))], lambda x: x),
    Pair("exp of a logarithm's multiple", "exp(a) / exp(b) is inf / inf",
         [lambda x, y: jnp.exp(x) / jnp.exp(y)], lambda x, y: jnp.exp(x - y), _TWO),
    Pair("product of exponentials", "exp(a) * exp(b) is 0 * inf",
         [lambda x, y: jnp.exp(x) * jnp.exp(y)], lambda x, y: jnp.exp(x + y), _TWO),
    Pair("x * log(x)", "0 * log(0) is NaN", [lambda x: x * jnp.log(x)], lambda x: jax.scipy.special.xlogy(x, x),
         slopes=[lambda x, ct: ct * (jnp.log(x) + 1)], values=[0]),
    Pair("x * log(y)", "0 * log(0) is NaN",
         [lambda x, y: x * jnp.log(y)], lambda x, y: jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, y))), _TWO,
         values=[0, 1]),
    Pair("x / x-like quotient", "inf / inf for large x",
         [lambda x, c: x / (x + c)], lambda x, c: 1 / (1 + c / x), _TWO, values=[0]),
    # A zero of a branch that is not taken, times what has no value there.
    Pair("where before a product", "0 times the infinity or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, x, 0.0) * y], lambda m, x, y: jnp.where(m, x * y, 0.0),
         ("bool", "float", "float"), is_derivative=True),
    Pair("where before a product, other branch", "0 times the infinity or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, 0.0, x) * y], lambda m, x, y: jnp.where(m, 0.0, x * y),
         ("bool", "float", "float"), is_derivative=True),
    Pair("where before a quotient", "0 divided by the 0 or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, x, 0.0) / y], lambda m, x, y: jnp.where(m, x / y, 0.0),
         ("bool", "float", "float"), is_derivative=True),
    Pair("where before a quotient, other branch", "0 divided by the 0 or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, 0.0, x) / y], lambda m, x, y: jnp.where(m, 0.0, x / y),
         ("bool", "float", "float"), is_derivative=True),
    Pair("negative where before a product", "0 times the infinity or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: -jnp.where(m, x, 0.0) * y], lambda m, x, y: jnp.where(m, -x * y, 0.0),
         ("bool", "float", "float"), is_derivative=True),
    Pair("mask times value", "0 times an infinity is NaN: a mask is no branch",
         [lambda m, y: m.astype(y.dtype) * y], lambda m, y: jnp.where(m, y, 0.0), ("bool", "float"), is_derivative=True),
]  # fmt: skip


# ---------------------------------------------------------------- arrays


def _norm(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.sqrt(jnp.sum(x * x, axis=axis, keepdims=keepdims))


def _norm_slope(x: Data, ct: Data, axis: Data, keepdims: bool) -> Data:
    """The direction of x, 0 where x is 0."""
    size = _norm(x, axis, True)
    direction = x / jnp.where(size == 0, 1.0, size)
    return (ct if keepdims else _with_axes(ct, axis, x)) * direction


def _with_axes(ct: Data, axis: Data, x: Data) -> Data:
    axes = axis if isinstance(axis, tuple) else (axis,)
    return jnp.expand_dims(ct, tuple([a % x.ndim for a in axes]))


def _variance(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.var(x, axis=axis, keepdims=keepdims)


def _std_slope(x: Data, ct: Data, axis: Data, keepdims: bool) -> Data:
    size = jnp.std(x, axis=axis, keepdims=True)
    off = x - jnp.mean(x, axis=axis, keepdims=True)
    off = off - jnp.mean(off, axis=axis, keepdims=True)  # what the mean's own rounding has left
    count = x.size // max(size.size, 1)
    ct = ct if keepdims else _with_axes(ct, axis, x)
    return ct * off / (jnp.where(size == 0, 1.0, size) * count)


def _centred_product(x: Data, y: Data, axis: Data, keepdims: bool) -> Data:
    off = (x - jnp.mean(x, axis=axis, keepdims=True)) * (y - jnp.mean(y, axis=axis, keepdims=True))
    return jnp.mean(off, axis=axis, keepdims=keepdims)


def _masked_softmax(x: Data, m: Data, axis: Data, keepdims: bool) -> Data:
    kept = jnp.where(m == 0, -jnp.inf, x)
    weights = m * jnp.exp(kept - jnp.max(kept, axis=axis, keepdims=True))
    return weights / jnp.sum(weights, axis=axis, keepdims=True)


def _rms(x: Data, axis: Data, keepdims: bool) -> Data:
    return jnp.sqrt(jnp.mean(x * x, axis=axis, keepdims=keepdims))


def _rms_slope(x: Data, ct: Data, axis: Data, keepdims: bool) -> Data:
    size = _rms(x, axis, True)
    count = x.size // max(size.size, 1)
    return (ct if keepdims else _with_axes(ct, axis, x)) * (x / (count * jnp.where(size == 0, 1.0, size)))


_ARRAYS = [
    Pair("logsumexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, axis, keepdims: jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))],
         lambda x, axis, keepdims: jax.scipy.special.logsumexp(x, axis=axis, keepdims=keepdims), arrays=True,
         slopes=[lambda x, ct, axis, keepdims: (ct if keepdims else _with_axes(ct, axis, x)) * jax.nn.softmax(x, axis)]),
    Pair("logmeanexp", "exp overflows or underflows before the logarithm undoes it",
         [lambda x, axis, keepdims: jnp.log(jnp.mean(jnp.exp(x), axis=axis, keepdims=keepdims))],
         lambda x, axis, keepdims: jax.scipy.special.logsumexp(x, axis=axis, keepdims=keepdims)
          - math.log(x.size // max(jnp.sum(x, axis=axis).size, 1)), arrays=True),
    Pair("log softmax", "softmax underflows to 0 before its logarithm is taken",
         [lambda x, axis, keepdims: jnp.log(jax.nn.softmax(x, axis=axis)),
          lambda x, axis, keepdims: jnp.log(jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis, keepdims=True)),
          lambda x, axis, keepdims: jnp.log(jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis)),
          lambda x, axis, keepdims: x - jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=True)),
          lambda x, axis, keepdims: x - jnp.log(jnp.sum(jnp.exp(x), axis=axis))],
         lambda x, axis, keepdims: jax.nn.log_softmax(x, axis=axis), arrays=True),
    Pair("softmax", "exp overflows, and inf / inf is NaN; all exp may underflow, and 0 / 0 is NaN",
         [lambda x, axis, keepdims: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis, keepdims=True),
          lambda x, axis, keepdims: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis)],
         lambda x, axis, keepdims: jax.nn.softmax(x, axis=axis), arrays=True),
    Pair("masked softmax", "exp overflows, and inf / inf is NaN; a mask comes too late for it",
         [lambda x, m, axis, keepdims: jnp.exp(x) * m / jnp.sum(jnp.exp(x) * m, axis=axis, keepdims=True),
          lambda x, m, axis, keepdims: jnp.exp(x) * m / jnp.sum(jnp.exp(x) * m, axis=axis)],
         _masked_softmax, _TWO, arrays=True),
    Pair("root mean square", "at 0 its derivative is 0 * inf",
         [_rms, lambda x, axis, keepdims: jnp.sqrt(jnp.mean(x**2, axis=axis, keepdims=keepdims))],
         _rms, arrays=True, slopes=[_rms_slope]),
    Pair("variance by differences", "the mean of the squares and the square of the mean cancel",
         [lambda x, axis, keepdims: jnp.mean(x * x, axis=axis, keepdims=keepdims)
          - jnp.mean(x, axis=axis, keepdims=keepdims) ** 2], _variance, arrays=True),
    Pair("covariance by differences", "the mean of the products and the product of the means cancel",
         [lambda x, y, axis, keepdims: jnp.mean(x * y, axis=axis, keepdims=keepdims)
          - jnp.mean(x, axis=axis, keepdims=keepdims) * jnp.mean(y, axis=axis, keepdims=keepdims)],
         _centred_product, _TWO, arrays=True),
    # Of squares that overflow only where nobody goes the value stays as it is.
    Pair("norm", "at 0 its derivative is 0 * inf",
         [_norm, lambda x, axis, keepdims: jnp.linalg.norm(x, axis=axis, keepdims=keepdims)],
         _norm, arrays=True, slopes=[_norm_slope]),
    Pair("standard deviation", "where all are equal its derivative is 0 * inf",
         [lambda x, axis, keepdims: jnp.std(x, axis=axis, keepdims=keepdims)],
         lambda x, axis, keepdims: jnp.std(x, axis=axis, keepdims=keepdims), arrays=True, slopes=[_std_slope]),
    Pair("normalised", "0 / 0 where x is 0",
         [lambda x, axis, keepdims: x / _norm(x, axis, True), lambda x, axis, keepdims: x / _norm(x, axis, False),
          lambda x, axis, keepdims: x / jnp.linalg.norm(x, axis=axis),
          lambda x, axis, keepdims: x / jnp.linalg.norm(x, axis=axis, keepdims=True)],
         lambda x, axis, keepdims: x / jnp.where(_norm(x, axis, True) == 0, 1.0, _norm(x, axis, True)), arrays=True),
    Pair("logarithm of a product of many", "the product overflows or underflows",
         [lambda x, axis, keepdims: jnp.log(jnp.prod(x, axis=axis, keepdims=keepdims))],
         lambda x, axis, keepdims: jnp.sum(jnp.log(x), axis=axis, keepdims=keepdims), arrays=True),
    Pair("geometric mean", "the product overflows or underflows",
         [lambda x, axis, keepdims: jnp.prod(x, axis=axis, keepdims=keepdims)
          ** (1.0 / (x.size // max(jnp.sum(x, axis=axis).size, 1)))],
         lambda x, axis, keepdims: jnp.exp(jnp.mean(jnp.log(x), axis=axis, keepdims=keepdims)), arrays=True),
]  # fmt: skip

PAIRS: Sequence[Pair] = (*_ELEMENTWISE, *_ARRAYS)
