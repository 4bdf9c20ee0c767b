"""Repairs that no pattern says: where a difference of one variable cancels near a point or far out, its power series there.

The series is that of the program, found from its exact values (`exact`) by interpolation. So it is for any expression of one
variable, as Herbie's `taylor` is (Panchekha, Sanchez-Stern, Wilcox and Tatlock, PLDI 2015). Whether it is right, the samples
say, as of all repairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Atom, Equation, Function, Literal, Primitive, Value
from untrace.ir.types import Data
from untrace.tools.doctor.matching import Pattern
from untrace.tools.doctor.pair import Pair
from untrace.tools.doctor.tape import is_float, taped
from untrace.tools.doctor.terms import SUMS, Term, Terms

_POINTWISE = frozenset(
    "add add_any sub mul div neg exp log log1p expm1 sqrt rsqrt square integer_pow pow cbrt logistic sin cos tan asin acos atan"
    " sinh cosh tanh asinh acosh atanh erf erfc exp2".split()
)
_MOST_EQUATIONS = 24
_POINTS = 14  # on each side
_STEP = 2.0**-12
_CENTRES = (0.0, 1.0, -1.0)
_CANCELS = (
    2.0**5
)  # how much larger an operand is than what is left, at the nearest point, by which a series is worth it
_RADII = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03)
_ZERO = 2.0**-80  # of the largest coefficient: one that is nothing but rounding
_MOST_TERMS, _MOST_TERMS_OF_DOUBLES = 10, 20

Makers = Mapping[Value, Equation]

_MP = mpmath.mp.clone()
_MP.prec = 400


@dataclass(frozen=True, slots=True)
class Series:
    """`sum(c * t**(order + step * i))` for |t| < radius, where t is the variable less `centre`, or 1 over it where that is None."""

    centre: float | None
    order: int
    step: int
    coefficients: tuple[float, ...]
    radius: float


def series_patterns(makers: Makers, terms: Terms, equation: Equation) -> Iterator[tuple[Pattern, Sequence[Value]]]:
    """What may be written for a difference, each with what it is of: the variable, or the two whose quotient it is, for near 1
    that of their difference is exact. makers: what computes each value."""
    out = equation.outputs[0]
    if out is None or equation.callee.name not in SUMS or type(root := terms.term(out)) is not Term:
        return
    equation = makers[out]
    for variable in _variables(makers, equation):
        body = _as_function(makers, equation, variable)
        if body is None:
            continue
        for found in _series(_Written(body)):
            near = "far out" if found.centre is None else f"near {found.centre:g}"
            of = _operands(makers, variable) if found.centre in (1.0, -1.0) else ()
            pair = Pair(
                f"power series {near}",
                f"{near} what is left of the difference is less than the rounding of what it is made of",
                (),
                _better_of_quotient(found, body) if of else _better(found, body),
            )
            of = of or (variable,)
            yield Pattern(pair, "", terms, root, of, pair.better, pair.better, 0, True, frozenset()), of


def _operands(makers: Makers, variable: Value) -> tuple[Value, ...]:
    """The dividend and the divisor of a quotient."""
    maker = makers.get(variable)
    if maker is None or maker.callee.name != "div" or not _is_pointwise(maker):
        return ()
    return tuple([a for a in maker.inputs if type(a) is Value]) if all(type(a) is Value for a in maker.inputs) else ()


def _better(series: Series, body: Function) -> Callable[[Data], Data]:
    def better(x: Data) -> Data:
        if series.centre is None:
            is_in, t = jnp.abs(x) * series.radius > 1, x
            t = 1 / jnp.where(is_in, x, 1.0)
        else:
            t = x - series.centre if series.centre else x
            is_in = jnp.abs(t) < series.radius
        (other,) = evaluate(body, x)
        return jnp.where(is_in, _summed(series, t), other)

    return better


def _better_of_quotient(series: Series, body: Function) -> Callable[[Data, Data], Data]:
    def better(x: Data, y: Data) -> Data:
        t = (x - y if series.centre == 1.0 else x + y) / y
        (other,) = evaluate(body, x / y)
        return jnp.where(jnp.abs(t) < series.radius, _summed(series, t), other)

    return better


def _summed(series: Series, t: Data) -> Data:
    power = t * t if series.step == 2 else t
    least = float(jnp.finfo(jnp.result_type(t)).eps) / 8
    first, reach = series.coefficients[0], series.radius**series.step
    coefficients = [c for i, c in enumerate(series.coefficients) if abs(c) * reach**i > least * abs(first)]
    total: Data = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * power + c
    for _ in range(abs(series.order)):
        total = total * t if series.order > 0 else total / t
    return total


# ---------------------------------------------------------------- which variable


def _variables(makers: Makers, equation: Equation) -> Iterator[Value]:
    """The value that all in an expression comes from, if there is one: of several the one that is the furthest away."""
    below = _below(makers, equation)
    if len(below) < 2 or len(below) >= _MOST_EQUATIONS:
        return
    # Of each value those that all ways from it to the result go through.
    through: dict[Value, frozenset[Value]] = {}
    for e in reversed(below):
        (out,) = e.outputs
        assert out is not None
        own = through.get(out, frozenset()) | {out}
        for atom in e.inputs:
            if type(atom) is Value:
                through[atom] = through.get(atom, own) & own
    inner = [e.outputs[0] for e in below]
    leaves = [v for v in through if v not in inner]
    common = frozenset.intersection(*[through[v] | {v} for v in leaves]) if leaves else frozenset()
    yield from [v for v in (*leaves, *inner[:-1]) if v in common][:1]


def _below(makers: Makers, equation: Equation, stop: Value | None = None) -> list[Equation]:
    """The pointwise equations that one needs, in order, itself the last; none beyond `stop`."""
    found: list[Equation] = []
    seen: set[Value] = set()

    def visit(e: Equation) -> None:
        for atom in e.inputs:
            if type(atom) is Value and atom is not stop and atom not in seen and len(found) < _MOST_EQUATIONS:
                seen.add(atom)
                maker = makers.get(atom)
                if maker is not None and _is_pointwise(maker):
                    visit(maker)
        found.append(e)

    visit(equation)
    return found


def _is_pointwise(equation: Equation) -> bool:
    out = equation.outputs[0] if len(equation.outputs) == 1 else None
    if out is None or type(equation.callee) is not Primitive or equation.callee.name not in _POINTWISE:
        return False
    return is_float(out.aval.dtype) and all(
        type(a) is Literal or type(a) is Value and (a.aval.shape, a.aval.dtype) == (out.aval.shape, out.aval.dtype)
        for a in equation.inputs
    )


def _as_function(makers: Makers, equation: Equation, variable: Value) -> Function | None:
    """The expression as a function of one number."""
    below = _below(makers, equation, variable)
    if not all(map(_is_pointwise, below)) or len(below) < 2 or len(below) >= _MOST_EQUATIONS:
        return None
    number = jax.core.ShapedArray((), variable.aval.dtype)
    env: dict[Value, Value] = {variable: Value(number)}
    equations = []
    for e in below:
        (out,) = e.outputs
        assert out is not None
        inputs: list[Atom] = [env[a] if type(a) is Value else a for a in e.inputs]
        env[out] = Value(number)
        equations.append(Equation(e.callee, inputs, [env[out]], e.params, e.origin))
    (out,) = equation.outputs
    assert out is not None
    return Function("series", [env[variable]], equations, [env[out]])


# ---------------------------------------------------------------- the series


class _Written:
    """A function of one number, equal to others that are written in the same way."""

    def __init__(self, body: Function) -> None:
        self.body = body
        places: dict[Value, int] = {body.params[0]: 0}
        words: list[object] = [str(body.params[0].aval.dtype)]
        for e in body.equations:
            inputs = [places[a] if type(a) is Value else f"{np.asarray(a.value)!r}" for a in e.inputs]
            words.append((e.callee.name, *inputs, *[(k, str(v)) for k, v in sorted(e.params.items())]))
            (out,) = e.outputs
            assert out is not None
            places[out] = len(places)
        self._words = tuple(words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Written) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words)


@lru_cache(1024)
def _series(written: _Written) -> Sequence[Series]:
    body = written.body
    digits = int(jnp.finfo(body.params[0].aval.dtype).nmant) + 3
    found = []
    for centre in (*_CENTRES, None):
        series = _around(body, centre, digits)
        if series is not None:
            found.append(series)
    return found


def _exact(body: Function, points: Sequence[float]) -> list[list[Any]]:
    """The exact values of each operand of the last equation, and of that itself, at some points."""
    last = body.equations[-1]
    results = [a for a in last.inputs if type(a) is Value] + [body.results[0]]
    of_all = Function("exact", body.params, body.equations, results)
    values = np.array(points, np.dtype(body.params[0].aval.dtype))
    with np.errstate(all="ignore"):
        tape = taped(of_all, [values], len(points))
    return [[_MP.mpf(x) for x in np.asarray(q.exact)] for q in tape.results]


def _numbers(body: Function, points: Sequence[float], centre: float | None) -> tuple[list[float], list[Any]]:
    """Points as the type has them, and the variable of the series there."""
    held = [float(p) for p in np.array(points, np.dtype(body.params[0].aval.dtype))]
    return held, [1 / _MP.mpf(x) if centre is None else _MP.mpf(x) - _MP.mpf(centre) for x in held]


def _points_at(ts: Sequence[float], centre: float | None) -> list[float]:
    return [1 / t if centre is None else centre + t for t in ts]


def _around(body: Function, centre: float | None, digits: int) -> Series | None:
    (nearest,), _ = _numbers(body, _points_at([_STEP], centre), centre)
    *operands, (left,) = _exact(body, [nearest])
    if not left or not _MP.isfinite(left) or not any(abs(x) > _CANCELS * abs(left) for (x,) in operands):
        return None
    ts = [sign * _STEP * (k + 1) for k in range(_POINTS) for sign in (1, -1)]
    points, variable = _numbers(body, _points_at(ts, centre), centre)
    values = _exact(body, points)[-1]
    if len(set(points)) < len(points) or not all(_MP.isfinite(v) for v in values) or not any(values):
        return None
    coefficients = _interpolated(variable, values)
    least = max(abs(c * _MP.mpf(_STEP) ** i) for i, c in enumerate(coefficients)) * _MP.mpf(_ZERO)
    kept = [i for i, c in enumerate(coefficients) if abs(c * _MP.mpf(_STEP) ** i) > least]
    order = kept[0]
    step = 2 if all((i - order) % 2 == 0 for i in kept[: len(kept) // 2]) and len(kept) > 1 else 1
    most = _MOST_TERMS if digits < 40 else _MOST_TERMS_OF_DOUBLES
    for radius in _RADII:
        for count in range(1, most + 1):
            terms = coefficients[order : order + step * count : step]
            if len(terms) == count and _holds(body, centre, order, step, terms, radius, digits):
                return Series(centre, order, step, tuple(map(float, terms)), radius)
    return None


def _interpolated(variable: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The coefficients of the polynomial through some points (Newton's divided differences)."""
    table = list(values)
    count = len(table)
    for j in range(1, count):
        for i in range(count - 1, j - 1, -1):
            table[i] = (table[i] - table[i - 1]) / (variable[i] - variable[i - j])
    found = [table[-1]]
    for i in range(count - 2, -1, -1):
        shifted = [_MP.mpf(0), *found]
        for k, c in enumerate(found):
            shifted[k] -= variable[i] * c
        shifted[0] += table[i]
        found = shifted
    return found


def _holds(
    body: Function, centre: float | None, order: int, step: int, terms: Sequence[Any], radius: float, digits: int
) -> bool:
    """Whether so many terms give the function, to the digits of its type, as far as the radius."""
    ts = [sign * radius * part for part in (0.999, 0.7, 0.4) for sign in (1, -1)]
    points, variable = _numbers(body, _points_at(ts, centre), centre)
    for t, value in zip(variable, _exact(body, points)[-1], strict=True):
        total = sum((c * t ** (order + step * i) for i, c in enumerate(terms)), _MP.mpf(0))
        if not _MP.isfinite(value) or abs(total - value) > abs(value) * _MP.mpf(2) ** -digits:
            return False
    return True
