"""Repairs of angles, squares, roots and their differences."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from untrace.ir.types import Data
from untrace.tools.doctor.pair import THREE, TWO, Pair, by_series, gap_of, safe_divide


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


def _hypot(x: Data, y: Data) -> Data:
    x, y = jnp.abs(x), jnp.abs(y)
    large, small = jnp.maximum(x, y), jnp.minimum(x, y)
    ratio = small / jnp.where(large == 0, 1.0, large)
    return large * jnp.sqrt(1 + ratio * ratio)


def _hypot_plus(x: Data, y: Data) -> Data:
    size = _hypot(x, y)
    less = size - x
    return jnp.where(x < 0, y * (y / jnp.where(less == 0, 1.0, less)), size + x)


def _sqrt_step(x: Data, c: Data) -> Data:
    return c / (jnp.sqrt(x + c) + jnp.sqrt(x))


# sin(x) - x cos(x) over x**3, x - sin(x) over x**3, sinh(x) - x over x**3, by x**2.
_BESSEL = [(-1) ** k * (2 * k + 2) / math.factorial(2 * k + 3) for k in range(12)]
_SINE = [(-1) ** k / math.factorial(2 * k + 3) for k in range(12)]
_SINH = [1 / math.factorial(2 * k + 3) for k in range(12)]


def _bessel(x: Data) -> Data:
    return by_series(x, x * x, _BESSEL, lambda x: (jnp.sin(x) - x * jnp.cos(x)) / (x * x * x))


def _less_sine(x: Data) -> Data:
    return by_series(x, x * x, _SINE, lambda x: (x - jnp.sin(x)) / (x * x * x))


def _sinh_less(x: Data) -> Data:
    return by_series(x, x * x, _SINH, lambda x: (jnp.sinh(x) - x) / (x * x * x))


def _cbrt_step(x: Data, y: Data, c: Data) -> Data:
    """cbrt(x) - cbrt(y) of numbers that differ by c."""
    a, b = jnp.cbrt(x), jnp.cbrt(y)
    return c / (a * a + a * b + b * b)


def _inverse_root_step(x: Data, y: Data, c: Data) -> Data:
    """1 / sqrt(x) - 1 / sqrt(y) of numbers that differ by c."""
    a, b = jnp.sqrt(x), jnp.sqrt(y)
    return c / (a * b) / (a + b)


def _haversine(a: Data, b: Data, d: Data) -> Data:
    up, over = jnp.sin(0.5 * (b - a)), jnp.sin(0.5 * d)
    return 2 * jnp.arcsin(jnp.minimum(1.0, jnp.sqrt(up * up + jnp.cos(a) * jnp.cos(b) * (over * over))))


def _heron(a: Data, b: Data, c: Data) -> Data:
    """The area of a triangle: Kahan, 2014."""
    high, low = jnp.maximum(a, b), jnp.minimum(a, b)
    a, b, c = jnp.maximum(high, c), jnp.maximum(low, jnp.minimum(high, c)), jnp.minimum(low, c)
    return 0.25 * jnp.sqrt((a + (b + c)) * (c - (a - b)) * (c + (a - b)) * (a + (b - c)))


def _half(a: Data, b: Data, c: Data) -> Data:
    return (a + b + c) / 2


def _third_side(a: Data, b: Data, c: Data) -> Data:
    half = jnp.sin(0.5 * c)
    return jnp.sqrt((a - b) ** 2 + 4 * (a * b) * (half * half))


def _reciprocal_real(c: Data, d: Data) -> Data:
    """c / (c * c + d * d): Smith, 1962; 0 where both are."""
    is_first, is_zero = jnp.abs(c) >= jnp.abs(d), (c == 0) & (d == 0)
    c = jnp.where(is_zero, 1.0, c)
    found = jnp.where(is_first, 1 / (c + d * (d / c)), (c / d) / (c * (c / d) + d))
    return jnp.where(is_zero, 0.0, found)


def _length(x: Data, y: Data, z: Data) -> Data:
    return _hypot(_hypot(x, y), z)


def _quotient_root(x: Data) -> Data:
    """sqrt((1 + x) / (1 - x)) - 1."""
    return 2 * x / (1 - x) / (jnp.sqrt((1 + x) / (1 - x)) + 1)


def _any_arctangents(x: Data, y: Data, gap: Data | None = None) -> Data:
    return jnp.where(x * y > -0.5, jnp.arctan(gap_of(x, y, gap) / (1 + x * y)), jnp.arctan(x) - jnp.arctan(y))


def _root_difference(x: Data, y: Data) -> Data:
    """sqrt(x) - sqrt(y)."""
    total = jnp.sqrt(x) + jnp.sqrt(y)
    return (x - y) / jnp.where(total == 0, 1.0, total)


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
    Pair("sinc", "0 / 0 where x is 0", [lambda x: jnp.sin(x) / x], _sinc, slopes=[lambda x, ct: -(ct * (x * _bessel(x)))]),
    Pair("tanh(x) / x", "0 / 0 where x is 0", [lambda x: jnp.tanh(x) / x], lambda x: safe_divide(jnp.tanh(x), x, 1.0)),
    Pair("difference of sines", "sin(x + h) - sin(x) cancels for small h",
         [lambda x, h: jnp.sin(x + h) - jnp.sin(x)],
         lambda x, h: 2 * jnp.cos(x + 0.5 * h) * jnp.sin(0.5 * h), TWO),
    Pair("difference of cosines", "cos(x + h) - cos(x) cancels for small h",
         [lambda x, h: jnp.cos(x + h) - jnp.cos(x)],
         lambda x, h: -2 * jnp.sin(x + 0.5 * h) * jnp.sin(0.5 * h), TWO),
    Pair("second difference of cosines", "the cosines cancel for small h",
         [lambda x, h: jnp.cos(x + h) - 2 * jnp.cos(x) + jnp.cos(x - h)],
         lambda x, h: -4 * jnp.cos(x) * jnp.sin(0.5 * h) ** 2, TWO),
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
    Pair("power of a square", "the square overflows or underflows; at 0 its derivative is 0 * inf",
         [lambda x, p: (x * x) ** p], lambda x, p: jnp.abs(x) ** (2 * p), TWO, values=[0], numbers=[1],
         slopes=[lambda x, p, ct: ct * 2 * p * jnp.sign(x) * jnp.abs(x) ** (2 * p - 1), None]),
    Pair("x * |x|**p", "at 0 its derivative is 0 * inf", [lambda x, p: x * jnp.abs(x) ** p],
         lambda x, p: jnp.sign(x) * jnp.abs(x) ** (p + 1), TWO, values=[0], numbers=[1]),
    Pair("difference of squares", "the squares cancel", [lambda x, y: x * x - y * y],
         lambda x, y: (x - y) * (x + y), TWO),
    Pair("1 - x**2", "the square cancels with 1", [lambda x: 1 - x * x], lambda x: (1 - x) * (1 + x), values=[0]),
    Pair("x**2 - 1", "the square cancels with 1", [lambda x: x * x - 1], lambda x: (x - 1) * (x + 1), values=[0]),
    Pair("difference of roots", "the roots cancel", [lambda x, c: jnp.sqrt(x + c) - jnp.sqrt(x)], _sqrt_step, TWO),
    Pair("difference of roots, reversed", "the roots cancel",
         [lambda x, c: jnp.sqrt(x) - jnp.sqrt(x + c)], lambda x, c: -_sqrt_step(x, c), TWO),
    Pair("difference of any roots", "the roots cancel", [lambda x, y: jnp.sqrt(x) - jnp.sqrt(y)],
         lambda x, y, gap=None: gap_of(x, y, gap) / (jnp.sqrt(x) + jnp.sqrt(y)), TWO, values=[0, 1], gap=True),
    Pair("difference of any tangents", "the tangents cancel", [lambda x, y: jnp.tan(x) - jnp.tan(y)],
         lambda x, y, gap=None: jnp.sin(gap_of(x, y, gap)) / (jnp.cos(x) * jnp.cos(y)), TWO, values=[0, 1], gap=True),
    Pair("difference of any sines", "the sines cancel", [lambda x, y: jnp.sin(x) - jnp.sin(y)],
         lambda x, y, gap=None: 2 * jnp.cos(0.5 * (x + y)) * jnp.sin(0.5 * gap_of(x, y, gap)), TWO, values=[0, 1], gap=True),
    Pair("difference of any cosines", "the cosines cancel", [lambda x, y: jnp.cos(x) - jnp.cos(y)],
         lambda x, y, gap=None: -2 * jnp.sin(0.5 * (x + y)) * jnp.sin(0.5 * gap_of(x, y, gap)), TWO, values=[0, 1], gap=True),
    Pair("difference of any squares", "the squares cancel", [lambda x, y: x * x - y * y],
         lambda x, y, gap=None: gap_of(x, y, gap) * (x + y), TWO, values=[0, 1], gap=True),
    Pair("difference of any cubes", "the cubes cancel", [lambda x, y: x**3 - y**3, lambda x, y: x * x * x - y * y * y],
         lambda x, y, gap=None: gap_of(x, y, gap) * (x * x + x * y + y * y), TWO, values=[0, 1], gap=True),
    Pair("difference of any fourth powers", "the powers cancel", [lambda x, y: x**4 - y**4],
         lambda x, y, gap=None: gap_of(x, y, gap) * ((x + y) * (x * x + y * y)), TWO, values=[0, 1], gap=True),
    Pair("difference of any 1 / sqrt", "the roots cancel", [lambda x, y: 1 / jnp.sqrt(x) - 1 / jnp.sqrt(y)],
         lambda x, y, gap=None: -_inverse_root_step(x, y, gap_of(x, y, gap)), TWO, values=[0, 1], gap=True),
    Pair("difference of any 1 / x**2", "the reciprocals cancel", [lambda x, y: 1 / (x * x) - 1 / (y * y)],
         lambda x, y, gap=None: -(gap_of(x, y, gap) / x / y) * (1 / x + 1 / y), TWO, values=[0, 1], gap=True),
    Pair("difference of quotients", "the quotients cancel", [lambda x, y, a: a / x - a / y],
         lambda x, y, a, gap=None: -gap_of(x, y, gap) / x * (a / y), THREE, values=[0, 1], gap=True),
    Pair("sqrt(1 + x) - 1", "the root cancels with 1 for small x",
         [lambda x: jnp.sqrt(1 + x) - 1], lambda x: x / (jnp.sqrt(1 + x) + 1)),
    Pair("1 - sqrt(1 - x)", "the root cancels with 1 for small x",
         [lambda x: 1 - jnp.sqrt(1 - x)], lambda x: x / (1 + jnp.sqrt(1 - x))),
    Pair("1 - sqrt(1 + x)", "the root cancels with 1 for small x",
         [lambda x: 1 - jnp.sqrt(1 + x)], lambda x: -x / (1 + jnp.sqrt(1 + x))),
    Pair("sqrt(x**2 + c) - x", "the root cancels with x, and the square overflows",
         [lambda x, c: jnp.sqrt(x * x + c) - x],
         lambda x, c: jnp.where(x > 0, c / (jnp.sqrt(x * x + c) + x), jnp.sqrt(x * x + c) - x), TWO),
    Pair("sqrt(x**2 + c) + x", "the root cancels with a negative x",
         [lambda x, c: jnp.sqrt(x * x + c) + x],
         lambda x, c: jnp.where(x < 0, c / (jnp.sqrt(x * x + c) - x), jnp.sqrt(x * x + c) + x), TWO),
    Pair("hypot(x, y) + x", "the root cancels with a negative x, and the squares overflow or underflow",
         [lambda x, y: jnp.sqrt(x * x + y * y) + x], lambda x, y: _hypot_plus(x, y), TWO),
    Pair("hypot(x, y) - x", "the root cancels with x, and the squares overflow or underflow",
         [lambda x, y: jnp.sqrt(x * x + y * y) - x], lambda x, y: _hypot_plus(-x, y), TWO),
    Pair("step of a power", "the powers cancel", [lambda x, p: (x + 1) ** p - x**p],
         lambda x, p: jnp.where(x > 1, x**p * jnp.expm1(p * jnp.log1p(1 / jnp.where(x > 1, x, 1.0))),
                                (x + 1) ** p - x**p), TWO),
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
    # Beside 1, and steps.
    Pair("1 / sqrt(1 - x) - 1", "the root cancels with 1 for small x",
         [lambda x: 1 / jnp.sqrt(1 - x) - 1], lambda x: x / (jnp.sqrt(1 - x) * (1 + jnp.sqrt(1 - x)))),
    Pair("1 / sqrt(1 + x) - 1", "the root cancels with 1 for small x",
         [lambda x: 1 / jnp.sqrt(1 + x) - 1], lambda x: -x / (jnp.sqrt(1 + x) * (1 + jnp.sqrt(1 + x)))),
    Pair("1 - 1 / sqrt(1 + x)", "the root cancels with 1 for small x",
         [lambda x: 1 - 1 / jnp.sqrt(1 + x)], lambda x: x / (jnp.sqrt(1 + x) * (1 + jnp.sqrt(1 + x)))),
    Pair("sqrt(1 - x) - 1", "the root cancels with 1 for small x",
         [lambda x: jnp.sqrt(1 - x) - 1], lambda x: -x / (1 + jnp.sqrt(1 - x))),
    Pair("1 / (1 + x) - 1", "the quotient cancels with 1 for small x", [lambda x: 1 / (1 + x) - 1], lambda x: -x / (1 + x)),
    Pair("1 - 1 / (1 + x)", "the quotient cancels with 1 for small x", [lambda x: 1 - 1 / (1 + x)], lambda x: x / (1 + x)),
    Pair("1 / (1 - x) - 1", "the quotient cancels with 1 for small x", [lambda x: 1 / (1 - x) - 1], lambda x: x / (1 - x)),
    Pair("step of a cube root", "the roots cancel",
         [lambda x, c: jnp.cbrt(x + c) - jnp.cbrt(x)], lambda x, c: _cbrt_step(x + c, x, c), TWO),
    Pair("difference of cube roots", "the roots cancel",
         [lambda x, y: jnp.cbrt(x) - jnp.cbrt(y)], lambda x, y, gap=None: _cbrt_step(x, y, gap_of(x, y, gap)), TWO,
         values=[0, 1], gap=True),
    Pair("step of 1 / sqrt", "the roots cancel",
         [lambda x, c: 1 / jnp.sqrt(x) - 1 / jnp.sqrt(x + c)], lambda x, c: _inverse_root_step(x, x + c, c), TWO),
    Pair("step of 1 / sqrt, reversed", "the roots cancel",
         [lambda x, c: 1 / jnp.sqrt(x + c) - 1 / jnp.sqrt(x)], lambda x, c: -_inverse_root_step(x, x + c, c), TWO),
    Pair("difference of any reciprocals", "the reciprocals cancel",
         [lambda x, y: 1 / x - 1 / y], lambda x, y, gap=None: -gap_of(x, y, gap) / x / y, TWO, values=[0, 1], gap=True),
    Pair("step of 1 / x**2", "the reciprocals cancel",
         [lambda x, c: 1 / (x * x) - 1 / ((x + c) * (x + c))], lambda x, c: c / x / x / (x + c) * ((2 * x + c) / (x + c)), TWO),
    Pair("step of a square", "the squares cancel",
         [lambda x, h: (x + h) * (x + h) - x * x], lambda x, h: h * (2 * x + h), TWO),
    Pair("step of a cube", "the cubes cancel",
         [lambda x, h: (x + h) ** 3 - x**3], lambda x, h: h * (3 * x * (x + h) + h * h), TWO),
    Pair("step of tan", "the tangents cancel",
         [lambda x, h: jnp.tan(x + h) - jnp.tan(x)], lambda x, h: jnp.sin(h) / (jnp.cos(x) * jnp.cos(x + h)), TWO),
    Pair("difference of any arctangents", "the arctangents cancel",
         [lambda x, y: jnp.arctan(x) - jnp.arctan(y)],
         _any_arctangents, TWO, values=[0, 1], gap=True),
    # Rotations, and the spherical functions of Bessel.
    Pair("sin x - x cos x", "both are nearly x for small x",
         [lambda x: jnp.sin(x) - x * jnp.cos(x)], lambda x: x * x * x * _bessel(x), slopes=[lambda x, ct: ct * x * jnp.sin(x)]),
    Pair("x cos x - sin x", "both are nearly x for small x",
         [lambda x: x * jnp.cos(x) - jnp.sin(x)], lambda x: -(x * x * x * _bessel(x)), slopes=[lambda x, ct: -ct * x * jnp.sin(x)]),
    Pair("(sin x - x cos x) / x**2", "both are nearly x for small x",
         [lambda x: (jnp.sin(x) - x * jnp.cos(x)) / (x * x), lambda x: jnp.sin(x) / (x * x) - jnp.cos(x) / x],
         lambda x: x * _bessel(x)),
    Pair("(x cos x - sin x) / x**2", "both are nearly x for small x",
         [lambda x: (x * jnp.cos(x) - jnp.sin(x)) / (x * x), lambda x: jnp.cos(x) / x - jnp.sin(x) / (x * x)],
         lambda x: -(x * _bessel(x))),
    Pair("(sin x - x cos x) / x**3", "both are nearly x for small x",
         [lambda x: (jnp.sin(x) - x * jnp.cos(x)) / x**3], _bessel),
    Pair("(x - sin x) / x**3", "x - sin(x) cancels for small x", [lambda x: (x - jnp.sin(x)) / x**3], _less_sine),
    Pair("1 - sin x / x", "sin(x) / x is nearly 1 for small x",
         [lambda x: 1 - jnp.sin(x) / x, lambda x: (x - jnp.sin(x)) / x], lambda x: x * x * _less_sine(x)),
    Pair("tan(x) / x", "0 / 0 where x is 0", [lambda x: jnp.tan(x) / x], lambda x: safe_divide(jnp.tan(x), x, 1.0)),
    Pair("sinh(x) / x", "0 / 0 where x is 0", [lambda x: jnp.sinh(x) / x], lambda x: safe_divide(jnp.sinh(x), x, 1.0)),
    Pair("x / sin(x)", "0 / 0 where x is 0", [lambda x: x / jnp.sin(x)], lambda x: safe_divide(x, jnp.sin(x), 1.0)),
    Pair("x / sinh(x)", "0 / 0 where x is 0", [lambda x: x / jnp.sinh(x)], lambda x: safe_divide(x, jnp.sinh(x), 1.0)),
    Pair("x / tanh(x)", "0 / 0 where x is 0", [lambda x: x / jnp.tanh(x)], lambda x: safe_divide(x, jnp.tanh(x), 1.0)),
    # Triangles, on the plane and on a sphere.
    Pair("distance on a sphere", "the arccosine keeps nothing of a small angle",
         [lambda a, b, d: jnp.arccos(jnp.sin(a) * jnp.sin(b) + jnp.cos(a) * jnp.cos(b) * jnp.cos(d))], _haversine, THREE),
    Pair("area of a triangle", "half of what is around it cancels with a side",
         [lambda a, b, c: jnp.sqrt(
             _half(a, b, c) * (_half(a, b, c) - a) * (_half(a, b, c) - b) * (_half(a, b, c) - c))], _heron, THREE),
    Pair("third side of a triangle", "the squares cancel where the angle is small",
         [lambda a, b, c: jnp.sqrt(a * a + b * b - 2 * a * b * jnp.cos(c))], _third_side, THREE),
    Pair("length in space", "the squares overflow or underflow where their root does not",
         [lambda x, y, z: jnp.sqrt(x * x + y * y + z * z)], _length, THREE),
    Pair("x / (x**2 + y**2)", "the squares overflow or underflow where the quotient does not",
         [lambda x, y: x / (x * x + y * y)], _reciprocal_real, TWO, values=[0, 1]),
    Pair("x / (c + x**2)", "the square overflows where the quotient does not",
         [lambda x, c: x / (c + x * x)], lambda x, c: 1 / (x + c / x), TWO, values=[0]),
    Pair("sqrt((1 + x) / (1 - x)) - 1", "the root cancels with 1 for small x",
         [lambda x: jnp.sqrt((1 + x) / (1 - x)) - 1], _quotient_root, values=[0]),
    Pair("root of a quotient, less 1", "the root cancels with 1 where x is near y",
         [lambda x, y: jnp.sqrt(x / y) - 1],
         lambda x, y, gap=None: gap_of(x, y, gap) / (jnp.sqrt(y) * (jnp.sqrt(x) + jnp.sqrt(y))), TWO, values=[0, 1], gap=True),
    Pair("square of a difference of roots", "the sum cancels with twice the root",
         [lambda x, y: x + y - 2 * jnp.sqrt(x * y), lambda x, y: x + y - 2 * jnp.sqrt(x) * jnp.sqrt(y)],
         lambda x, y: _root_difference(x, y) ** 2, TWO, values=[0, 1]),
    Pair("square of a difference", "the squares cancel with the product",
         [lambda x, y: x * x + y * y - 2 * x * y], lambda x, y: (x - y) * (x - y), TWO, values=[0, 1]),
    Pair("harmonic sum", "the product overflows or underflows where the quotient does not",
         [lambda x, y: x * y / (x + y)], lambda x, y: x / (x / y + 1), TWO, values=[0, 1]),
    Pair("quotient less 1", "the quotient cancels with 1", [lambda x, y: x / y - 1],
         lambda x, y, gap=None: gap_of(x, y, gap) / y, TWO, values=[0, 1], gap=True),
]  # fmt: skip
