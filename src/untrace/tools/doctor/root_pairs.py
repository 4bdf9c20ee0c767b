"""Repairs of angles, squares, roots and their differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from untrace.ir.types import Data
from untrace.tools.doctor.pair import THREE, TWO, Pair, safe_divide


def _versine(x: Data) -> Data:
    half = jnp.sin(0.5 * x)
    return 2 * half * half


def _sinc(x: Data) -> Data:
    return safe_divide(jnp.sin(x), x, 1.0)


def _versine_ratio(x: Data) -> Data:
    """(1 - cos x) / x**2."""
    half = 0.5 * x
    ratio = safe_divide(jnp.sin(half), half, 1.0)
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


ROOTS = [
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
    Pair("tanh(x) / x", "0 / 0 where x is 0", [lambda x: jnp.tanh(x) / x], lambda x: safe_divide(jnp.tanh(x), x, 1.0)),
    Pair("x - sin x", "x - sin(x) cancels for small x", [lambda x: x - jnp.sin(x)], _x_minus_sin),
    Pair("difference of sines", "sin(x + h) - sin(x) cancels for small h",
         [lambda x, h: jnp.sin(x + h) - jnp.sin(x)],
         lambda x, h: 2 * jnp.cos(x + 0.5 * h) * jnp.sin(0.5 * h), TWO),
    Pair("difference of cosines", "cos(x + h) - cos(x) cancels for small h",
         [lambda x, h: jnp.cos(x + h) - jnp.cos(x)],
         lambda x, h: -2 * jnp.sin(x + 0.5 * h) * jnp.sin(0.5 * h), TWO),
    Pair("acosh near 1", "acosh of 1 + x keeps nothing of a small x",
         [lambda x: jnp.arccosh(1 + x)], lambda x: jnp.log1p(x + jnp.sqrt(x) * jnp.sqrt(x + 2)), values=[0]),
    Pair("logarithm of the normal distribution", "its probability underflows to 0 before the logarithm is taken",
         [lambda x: jnp.log(jax.scipy.special.ndtr(x)), lambda x: jnp.log(jax.scipy.stats.norm.cdf(x)),
          lambda x: jnp.log(0.5 * (1 + lax.erf(x / jnp.sqrt(2.0))))], jax.scipy.special.log_ndtr),
    Pair("acos near 1", "acos of 1 - y keeps nothing of a small y",
         [lambda y: jnp.arccos(1 - y)], lambda y: 2 * jnp.arcsin(jnp.sqrt(0.5 * y)), values=[0]),
    Pair("quotient's arctangent", "y / x overflows, is 0 / 0, and forgets the signs",
         [lambda y, x: jnp.arctan(y / x)],
         lambda y, x: jnp.arctan2(y * jnp.sign(x), jnp.abs(x)), TWO, values=[0, 1]),
    # Squares, roots and their differences.
    Pair("hypot", "the squares overflow or underflow where their root does not",
         [lambda x, y: jnp.sqrt(x * x + y * y)], _hypot, TWO,
         slopes=[lambda x, y, ct: ct * (x / jnp.where(_hypot(x, y) == 0, 1.0, _hypot(x, y))),
                 lambda x, y, ct: ct * (y / jnp.where(_hypot(x, y) == 0, 1.0, _hypot(x, y)))]),
    Pair("sqrt(x * x)", "the square overflows or underflows", [lambda x: jnp.sqrt(x * x)], jnp.abs,
         slopes=[lambda x, ct: ct * jnp.sign(x)]),
    Pair("difference of squares", "the squares cancel", [lambda x, y: x * x - y * y],
         lambda x, y: (x - y) * (x + y), TWO),
    Pair("1 - x**2", "the square cancels with 1", [lambda x: 1 - x * x], lambda x: (1 - x) * (1 + x), values=[0]),
    Pair("x**2 - 1", "the square cancels with 1", [lambda x: x * x - 1], lambda x: (x - 1) * (x + 1), values=[0]),
    Pair("difference of roots", "the roots cancel", [lambda x, c: jnp.sqrt(x + c) - jnp.sqrt(x)], _sqrt_step, TWO),
    Pair("difference of roots, reversed", "the roots cancel",
         [lambda x, c: jnp.sqrt(x) - jnp.sqrt(x + c)], lambda x, c: -_sqrt_step(x, c), TWO),
    Pair("difference of any roots", "the roots cancel", [lambda x, y: jnp.sqrt(x) - jnp.sqrt(y)],
         lambda x, y: (x - y) / (jnp.sqrt(x) + jnp.sqrt(y)), TWO, values=[0, 1]),
    Pair("sqrt(1 + x) - 1", "the root cancels with 1 for small x",
         [lambda x: jnp.sqrt(1 + x) - 1], lambda x: x / (jnp.sqrt(1 + x) + 1)),
    Pair("1 - sqrt(1 - x)", "the root cancels with 1 for small x",
         [lambda x: 1 - jnp.sqrt(1 - x)], lambda x: x / (1 + jnp.sqrt(1 - x))),
    Pair("1 - sqrt(1 + x)", "the root cancels with 1 for small x",
         [lambda x: 1 - jnp.sqrt(1 + x)], lambda x: -x / (1 + jnp.sqrt(1 + x))),
    Pair("sqrt(x**2 + c) - x", "the root cancels with x, and the square overflows",
         [lambda x, c: jnp.sqrt(x * x + c) - x],
         lambda x, c: jnp.where(x > 0, c / (jnp.sqrt(x * x + c) + x), jnp.sqrt(x * x + c) - x), TWO),
    Pair("x - sqrt(x**2 - c)", "the root cancels with x",
         [lambda x, c: x - jnp.sqrt(x * x - c)],
         lambda x, c: jnp.where(x > 0, c / (x + jnp.sqrt(x * x - c)), x - jnp.sqrt(x * x - c)), TWO),
    Pair("quadratic root", "-b + sqrt(b * b - 4ac) cancels for positive b",
         [lambda a, b, c: (-b + jnp.sqrt(b * b - 4 * a * c)) / (2 * a)],
         lambda a, b, c: jnp.where(b > 0, 2 * c / (-b - jnp.sqrt(b * b - 4 * a * c)), (-b + jnp.sqrt(b * b - 4 * a * c)) / (2 * a)),
         THREE),
    Pair("other quadratic root", "-b - sqrt(b * b - 4ac) cancels for negative b",
         [lambda a, b, c: (-b - jnp.sqrt(b * b - 4 * a * c)) / (2 * a)],
         lambda a, b, c: jnp.where(b < 0, 2 * c / (-b + jnp.sqrt(b * b - 4 * a * c)), (-b - jnp.sqrt(b * b - 4 * a * c)) / (2 * a)),
         THREE),
    Pair("difference of reciprocals", "1 / x and 1 / (x + c) cancel",
         [lambda x, c: 1 / x - 1 / (x + c)], lambda x, c: c / x / (x + c), TWO),
    Pair("difference of reciprocals, reversed", "1 / (x + c) and 1 / x cancel",
         [lambda x, c: 1 / (x + c) - 1 / x], lambda x, c: -c / x / (x + c), TWO),
    Pair("difference of arctangents", "the arctangents cancel",
         [lambda x, c: jnp.arctan(x + c) - jnp.arctan(x)], lambda x, c: jnp.arctan2(c, 1 + x * (x + c)), TWO),
]  # fmt: skip
