"""Real arithmetic: what the primitives of JAX give where nothing is rounded, and nothing is too large or too small.

Arrays of exact values have NumPy's type `object`. Their elements are numbers of mpmath, whose exponents have no limit; but the
*integer* 0 says that it is no result that happens to be zero: a branch that was not taken, a mask, a number in the
text. Such a zero times whatever else is zero, as the author meant it, where IEEE arithmetic has NaN for 0 * inf.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mpmath
import numpy as np
from mpmath import libmp

from untrace.ir.types import Data, DType, Parameter

# A context of our own: the user's may have another precision.
_MP = mpmath.mp.clone()
_NAN, _INF = _MP.nan, _MP.inf
# A NaN as well, of what has a value that is not known.
_UNKNOWN = _MP.make_mpf(libmp.fnan)
_SMALL = 60  # bits: what is nearer to 0 is kept beside 1
_MOST = 5_000  # bits of an argument of exp and its like, beyond which the result is taken for infinite

Number = Any  # of mpmath, or the integer 0
Rule = Callable[..., np.ndarray]


def set_digits(dtype: DType) -> None:
    """Makes results as precise as programs of `dtype` need: differences of squares of numbers that differ in the last bit."""
    _MP.prec = 620 if np.dtype(dtype).itemsize == 8 else 330


Moving = Callable[[np.ndarray, np.random.Generator, int], np.ndarray]


def _last_bit() -> int:
    """Of numbers of up to 32 bits; of longer ones what is computed in float64 on the way has to notice it."""
    return 24 if _MP.prec < 620 else 30


def _step() -> int:
    return int(_MP.prec) - 30


def vanishing() -> float:
    """Below this a value beside a zero is taken for zero."""
    return 2.0 ** -(_step() // 2 - 30)


def further(values: np.ndarray, random: np.random.Generator, draw: int) -> np.ndarray:
    """Numbers moved by little, and by far more than `beside` does."""
    return beside(values, random, draw, 4)


def beside(values: np.ndarray, random: np.random.Generator, draw: int, of: int = 1) -> np.ndarray:
    """Numbers moved by very little, by one part `of` as many bits; the first two draws move all of them up, or all of them
    down."""
    if values.dtype != object:
        return values * (1 + 2.0**-40 * _signs(values.shape, random, draw))
    step, signs = _step() // of, _signs(values.shape, random, draw)

    def moved(x: Number, sign: float) -> Number:
        if x == 0:
            return _MP.ldexp(_MP.mpf(sign), -(step // 2))
        return x * (1 + _MP.ldexp(_MP.mpf(sign), -step))

    return np.asarray(np.frompyfunc(moved, 2, 1)(values, signs), object)


def _signs(shape: tuple[int, ...], random: np.random.Generator, draw: int) -> np.ndarray:
    sizes = random.uniform(0.5, 1.5, shape)
    if draw < 2:
        return sizes * (1 if draw == 0 else -1)
    return sizes * random.choice([-1.0, 1.0], shape)


def relatively_moved(values: np.ndarray, random: np.random.Generator, draw: int) -> np.ndarray:
    """Numbers moved up or down by about their last bit; for `relative_change`."""
    factors = 1 + 2.0 ** -_last_bit() * random.choice([-1.0, 1.0], values.shape)
    return np.asarray(values * factors, values.dtype)


def relative_change(values: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """By how much values have changed, relative to themselves and to the relative change of what was moved."""
    before = values if values.dtype == object else exact_of(values)
    after = moved if moved.dtype == object else exact_of(moved)

    def change(x: Number, y: Number) -> float:
        if x == y:
            return 0.0
        if x == 0 or not _MP.isfinite(x) or not _MP.isfinite(y):
            return float("inf")
        return as_float(_MP.ldexp(abs((y - x) / x), _last_bit()))

    with np.errstate(all="ignore"):
        return np.asarray(np.frompyfunc(change, 2, 1)(before, after), np.float64)


def exact_of(values: Data, structural: bool = False) -> np.ndarray:
    """Numbers of a working precision as they are. structural: whether their zeros are exact by construction."""
    wide = np.asarray(values).astype(np.float64)
    found = np.empty(wide.shape, object)
    flat = found.reshape(-1)
    for i, x in enumerate(wide.reshape(-1).tolist()):
        flat[i] = 0 if structural and x == 0 else _MP.mpf(x)
    return found


def is_unknown(values: np.ndarray) -> np.ndarray:
    """Where exact values are there, but not known: too little is left of a difference."""
    if values.dtype != object:
        return np.zeros(values.shape, bool)
    return np.asarray(np.frompyfunc(lambda x: x is _UNKNOWN, 1, 1)(values), bool)


def magnitudes(values: np.ndarray) -> np.ndarray:
    return np.abs(values)


def parts_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact values as the nearest float64 and what is left of each."""
    if values.dtype != object:
        return np.asarray(values, np.float64), np.zeros(values.shape)
    high, low = np.empty(values.shape), np.zeros(values.shape)
    flat_high, flat_low = high.reshape(-1), low.reshape(-1)
    for i, x in enumerate(values.reshape(-1)):
        flat_high[i] = as_float(x)
        if x and math.isfinite(flat_high[i]):
            flat_low[i] = as_float(x - _MP.mpf(flat_high[i]))
    return high, low


def as_float(x: Number) -> float:
    """The nearest float64; the largest one of what is finite and larger, the smallest of what is not zero and smaller."""
    found = float(x)
    if found == 0 and x != 0:
        return math.copysign(5e-324, _MP.sign(x))
    return found if math.isfinite(found) or not _MP.isfinite(x) else math.copysign(sys.float_info.max, found)


# ---------------------------------------------------------------- one number at a time


def _guarded(function: Callable[..., Number]) -> Callable[..., np.ndarray]:
    """A function of real numbers as one of arrays of them; NaN where it has no real value."""

    def guarded(*args: Number) -> Number:
        try:
            found = function(*args)
        except (ValueError, ZeroDivisionError, OverflowError, libmp.NoConvergence, TypeError):
            found = _NAN
        if type(found) is _MP.mpc:
            found = found.real if found.imag == 0 else _NAN
        return _UNKNOWN if found != found and any([x is _UNKNOWN for x in args]) else found

    over = np.frompyfunc(guarded, function.__code__.co_argcount, 1)

    def of_arrays(*args: np.ndarray) -> np.ndarray:
        return np.asarray(over(*args), object)

    return of_arrays


def _size(x: Number) -> int:
    """About how many bits are before the point."""
    if x == 0 or not _MP.isfinite(x):
        return 0
    return int(_MP.mag(x))


def _exp(x: Number) -> Number:
    if _size(x) > _MOST:
        return _INF if x > 0 else _MP.mpf(0)
    return _add(1, _MP.expm1(x)) if x != 0 and _size(x) < -_SMALL else _MP.exp(x)


def _cos(x: Number) -> Number:
    return _sub(1, 2 * _MP.sin(x / 2) ** 2) if x != 0 and _size(x) < -_SMALL else _MP.cos(x)


# A sum keeps all bits of both, as long as they are not further apart than this; products and quotients keep as many as
# their operands have. So 1 + exp(-300) is more than 1, and what is left of it when 1 is taken away is right.
_LONG = 1_600


def _add(x: Number, y: Number) -> Number:
    if x == 0 or y == 0 or not _MP.isfinite(x) or not _MP.isfinite(y):
        return x + y
    large, small = (x, y) if _MP.mag(x) >= _MP.mag(y) else (y, x)
    top = int(_MP.mag(large))
    if top - int(_MP.mag(small)) > _LONG:  # only which side it is on
        small = _MP.ldexp(_MP.sign(small), top - _LONG)
    found = _MP.make_mpf(libmp.mpf_add(_raw(large), _raw(small), 2 * _LONG, "n"))
    # What is left of which nothing is known: two that are told from 1 by their last bits only may be different.
    nothing = found == 0 and min(_raw(large)[3], _raw(small)[3]) > _LONG - 100
    return _UNKNOWN if nothing or found != 0 and int(_MP.mag(found)) < top - _LONG + 100 else found


def _raw(x: Number) -> tuple[Any, ...]:
    """mpmath's own form of a number, whose operators round."""
    return _MP.mpf(x)._mpf_ if type(x) is int or type(x) is float else x._mpf_


def _neg(x: Number) -> Number:
    return 0 if type(x) is int and x == 0 else _MP.make_mpf(libmp.mpf_neg(_raw(x)))


def _sub(x: Number, y: Number) -> Number:
    return _add(x, _neg(y))


def _bits(x: tuple[Any, ...], y: tuple[Any, ...]) -> int:
    return max(int(_MP.prec), min(max(x[3], y[3]), _LONG))


def _mul(x: Number, y: Number) -> Number:
    if type(x) is int and x == 0 or type(y) is int and y == 0:
        return 0
    a, b = _raw(x), _raw(y)
    return _MP.make_mpf(libmp.mpf_mul(a, b, _bits(a, b), "n"))


def _div(x: Number, y: Number) -> Number:
    if type(x) is int and x == 0:
        return 0
    if y == 0:
        return _NAN if x == 0 or x != x else (_INF if x > 0 else -_INF)
    a, b = _raw(x), _raw(y)
    return _MP.make_mpf(libmp.mpf_div(a, b, _bits(a, b), "n"))


def _logistic(x: Number) -> Number:
    return _div(1, _add(1, _exp(-x)))


def _erfc(x: Number) -> Number:
    if x < -1:
        return _sub(2, _erfc(-x))
    if x > 1e5:  # the next term is 1e-20 of it
        return _mul(_exp(-x * x), (1 - 0.5 / (x * x)) / (x * _MP.sqrt(_MP.pi)))
    return _MP.erfc(x)


def _erf(x: Number) -> Number:
    if abs(x) > 1:
        return _mul(_MP.sign(x), _sub(1, _erfc(abs(x))))
    return _MP.erf(x)


def _tanh(x: Number) -> Number:
    if abs(x) < 1:
        return _MP.tanh(x)
    far = _exp(-2 * abs(x))
    return _mul(_MP.sign(x), _sub(1, _div(2 * far, _add(1, far))))


def _rem(x: Number, y: Number) -> Number:
    size = abs(x) - abs(y) * _MP.floor(abs(x) / abs(y))
    return size if x >= 0 else -size


def _pow(x: Number, y: Number) -> Number:
    if y == 0:
        return _MP.mpf(1)
    if x == 0:
        return _MP.mpf(0) if y > 0 else _INF
    if _size(y) + abs(_size(x)).bit_length() > _MOST:
        return _exp(y * _MP.log(x))
    return _MP.power(x, y)


def _integer_pow(x: Number, y: int) -> Number:
    if y < 0:
        return _div(_MP.mpf(1), _integer_pow(x, -y))
    return x**y


def _pick(x: Number, y: Number, larger: bool) -> Number:
    if x != x or y != y:
        return _NAN
    return _MP.make_mpf(_raw(x if (x > y) is larger else y))


def _round(x: Number, half_even: bool) -> Number:
    if not _MP.isfinite(x):
        return x
    return _MP.nint(x) if half_even else _MP.sign(x) * _MP.floor(abs(x) + 0.5)


def _log(x: Number) -> Number:
    return -_INF if x == 0 else (_NAN if x < 0 else _MP.log(x))


def _log1p(x: Number) -> Number:
    return -_INF if x == -1 else (_NAN if x < -1 else _MP.log1p(x))


_UNARY: dict[str, Callable[..., Number]] = {
    "exp": _exp,
    "exp2": lambda x: _exp(x * _MP.ln2),
    "expm1": lambda x: _add(_exp(x), -1) if abs(x) > 1 else _MP.expm1(x),
    "log": _log,
    "log1p": _log1p,
    "sqrt": lambda x: _NAN if x < 0 else _MP.sqrt(x),
    "rsqrt": lambda x: _INF if x == 0 else _NAN if x < 0 else 1 / _MP.sqrt(x),
    "cbrt": lambda x: _MP.sign(x) * _MP.cbrt(abs(x)),
    "sin": lambda x: _MP.sin(x),
    "cos": _cos,
    "tan": lambda x: _MP.tan(x),
    "asin": lambda x: _MP.asin(x) if abs(x) <= 1 else _NAN,
    "acos": lambda x: _MP.acos(x) if abs(x) <= 1 else _NAN,
    "atan": lambda x: _MP.atan(x),
    "sinh": lambda x: _MP.sinh(x) if abs(x) < 1 else _sub(_exp(x), _exp(-x)) / 2,
    "cosh": lambda x: _add(_exp(x), _exp(-x)) / 2,
    "tanh": _tanh,
    "asinh": lambda x: _MP.asinh(x),
    "acosh": lambda x: _MP.acosh(x) if x >= 1 else _NAN,
    "atanh": lambda x: _MP.atanh(x) if abs(x) < 1 else (x * _INF if abs(x) == 1 else _NAN),
    "logistic": _logistic,
    "erf": _erf,
    "erfc": _erfc,
    "erf_inv": lambda x: _MP.erfinv(x) if abs(x) < 1 else (x * _INF if abs(x) == 1 else _NAN),
    "lgamma": lambda x: _MP.loggamma(x) if x > 0 else _MP.log(abs(_MP.gamma(x))),
    "digamma": lambda x: _MP.digamma(x),
    "neg": _neg,
    "abs": lambda x: _neg(x) if x < 0 else x,
    "sign": lambda x: _MP.sign(x),
    "square": lambda x: _mul(x, x),
    "one_minus_square": lambda x: _sub(1, _mul(x, x)),
    "floor": lambda x: _MP.floor(x) if _MP.isfinite(x) else x,
    "ceil": lambda x: _MP.ceil(x) if _MP.isfinite(x) else x,
}
_BINARY: dict[str, Callable[..., Number]] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "rem": _rem,
    "pow": _pow,
    "atan2": lambda x, y: _MP.atan2(x, y),
    "max": lambda x, y: _pick(x, y, True),
    "min": lambda x, y: _pick(x, y, False),
}
_COMPARED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}

_ELEMENTWISE = MappingProxyType({name: _guarded(f) for name, f in {**_UNARY, **_BINARY}.items()})
_ROUND, _PICK_LARGER, _PICK_SMALLER = _guarded(_round), _ELEMENTWISE["max"], _ELEMENTWISE["min"]
_INTEGER_POW = _guarded(_integer_pow)
_SUM, _MUL = _ELEMENTWISE["add"], _ELEMENTWISE["mul"]


# ---------------------------------------------------------------- arrays; the first axis is that of the samples


def _aligned(*args: np.ndarray) -> list[np.ndarray]:
    """Operands of as many axes: JAX lets numbers stand beside arrays."""
    most = max(a.ndim for a in args)
    return [a.reshape(*a.shape, *[1] * (most - a.ndim)) if a.ndim < most else a for a in args]


def _reduced(values: np.ndarray, axes: Sequence[int], by: Callable[..., np.ndarray]) -> np.ndarray:
    axes = sorted((axis % (values.ndim - 1) + 1 for axis in axes), reverse=True)
    for axis in axes:
        rows = np.moveaxis(values, axis, 0)
        found = rows[0]
        for row in rows[1:]:
            found = by(found, row)
        values = found
    return values


def _accumulated(values: np.ndarray, axis: int, reverse: bool, by: Callable[..., np.ndarray]) -> np.ndarray:
    rows = np.moveaxis(values, axis + 1, 0)
    rows = rows[::-1] if reverse else rows
    found = [rows[0]] if len(rows) else []
    for row in rows[1:]:
        found.append(by(found[-1], row))
    stacked = np.stack(found[::-1] if reverse else found) if found else rows
    return np.moveaxis(stacked, 0, axis + 1)


def _dot_general(left: np.ndarray, right: np.ndarray, dimension_numbers: Parameter, **_: Parameter) -> np.ndarray:
    (contract_left, contract_right), (batch_left, batch_right) = dimension_numbers
    a, b = (
        _for_product(x, batch, contract)
        for x, batch, contract in ((left, batch_left, contract_left), (right, batch_right, contract_right))
    )
    shape = (*left.shape[:1], *[left.shape[i + 1] for i in batch_left], *a[1], *b[1])
    return _reduced(_MUL(a[0][:, :, :, None, :], b[0][:, :, None, :, :]), (3,), _SUM).reshape(shape)


def _for_product(x: np.ndarray, batch: Sequence[int], contract: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    free = [i for i in range(x.ndim - 1) if i not in batch and i not in contract]
    moved = x.transpose(0, *[i + 1 for i in (*batch, *free, *contract)])
    kept = [x.shape[i + 1] for i in free]
    sizes = [int(np.prod([x.shape[i + 1] for i in group])) for group in (batch, free, contract)]
    return moved.reshape(x.shape[0], *sizes), kept


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    which, *aligned = _aligned(which, *cases)
    found = aligned[0]
    for number, case in enumerate(aligned[1:], 1):
        found = np.where(which == number, case, found)
    return found


def primitive(name: str, args: Sequence[np.ndarray], params: Mapping[str, Parameter]) -> np.ndarray | None:
    """What a primitive gives of exact arrays (of booleans and integers: NumPy's); None of one without a rule here.

    All arrays have the samples as their first axis.
    """
    if name in _ELEMENTWISE:
        return _ELEMENTWISE[name](*_aligned(*args))
    if name in _COMPARED:
        return np.asarray(_COMPARED[name](*_aligned(*args)), bool)
    if name == "integer_pow":
        return _INTEGER_POW(args[0], params["y"])
    if name == "is_finite":
        return np.vectorize(lambda x: bool(_MP.isfinite(x)), otypes=[bool])(args[0])
    if name == "round":
        return _ROUND(args[0], params["rounding_method"].name == "TO_NEAREST_EVEN")
    if name == "select_n":
        return _select(*args)
    if name == "clamp":
        low, x, high = _aligned(*args)
        return _PICK_SMALLER(_PICK_LARGER(low, x), high)
    if name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"):
        if 0 in args[0].shape:
            return None
        by = {"sum": _SUM, "prod": _MUL, "max": _PICK_LARGER, "min": _PICK_SMALLER}[name[7:]]
        return _reduced(args[0], params["axes"], by)
    if name in ("cumsum", "cumprod", "cummax", "cummin"):
        by = {"sum": _SUM, "prod": _MUL, "max": _PICK_LARGER, "min": _PICK_SMALLER}[name[3:]]
        return _accumulated(args[0], params["axis"], params["reverse"], by)
    if name == "dot_general" and 0 not in (*args[0].shape, *args[1].shape):
        return _dot_general(args[0], args[1], **params)
    return None


def has_rule(name: str) -> bool:
    """Whether it computes with numbers one by one, so that its own sensitivity to them can be asked for."""
    return name in _ELEMENTWISE or name in ("integer_pow", "clamp")
