"""Elementwise primitives, with JAX's semantics: what C leaves undefined (overflow, division by zero, wide shifts, casts of large
numbers) is what XLA gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from untrace.targets.c.arrays import Array, constant, fits, folded, num, number
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, COMPLEX, INDEX, PARTS, Expr, Num, Op, Read, Var, part_of
from untrace.targets.c.narrow import BF16, NARROW
from untrace.targets.c.rules.table import Declined, rule

SUFFIXES = {
    "float32": "f32", "float64": "f64", "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_WIDTH_OF_INT = 4  # bytes
_LARGEST_POWER = 4  # that is written as a product
# JAX's names for functions of one float in <math.h>.
_LIBM = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log1p": "log1p", "sqrt": "sqrt", "cbrt": "cbrt",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "erfc": "erfc", "lgamma": "lgamma", "floor": "floor",
    "ceil": "ceil",
}  # fmt: skip


def helper(name: str, dtype: np.dtype) -> str:
    """The name of a helper for a type: `max_f32`."""
    return f"{name}_{SUFFIXES[dtype.name]}"


def elementwise(b: Builder, dtype: np.dtype, compute: Callable[..., Expr], *operands: Array, cost: int = 1) -> Array:
    """An array of what `compute` gives of the elements of its operands. An axis of one element is the same all along."""
    shape = np.broadcast_shapes(*[x.shape for x in operands])
    given = [x if x.shape == shape or x.size == 1 and not x.cost else b.often(x) for x in operands]

    def at(index: tuple[Expr, ...]) -> Expr:
        return folded(compute(*[x.at(spread(x.shape, shape, index)) for x in given]))

    return Array(shape, dtype, at, cost + sum(x.cost for x in given))


def spread(small: tuple[int, ...], shape: tuple[int, ...], index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index of an element of an array that is broadcast to a shape."""
    if small == shape:
        return index
    inner = index[len(index) - len(small) :]
    return tuple([num(0, INDEX) if n == 1 else i for n, i in zip(small, inner, strict=True)])


def call(name: str, dtype: np.dtype, *args: Expr) -> Op:
    """A call of a function of <math.h>, which has one for each type of float."""
    return Op(name + ("f" if dtype == np.float32 else ""), args, dtype)


def is_simple(value: Expr) -> bool:
    """Whether an expression may be written twice."""
    return isinstance(value, Num | Var | Read)


def _register_libm() -> None:
    """One rule for each function of <math.h>."""
    for primitive, function in _LIBM.items():

        @rule(primitive)
        def one(b: Builder, x: Array, accuracy: object = None, function: str = function) -> Array:
            return elementwise(b, x.dtype, lambda v: call(function, x.dtype, v), x)


_register_libm()


def _register_helpers() -> None:
    """One rule for each function of one float that is a helper of ours: <math.h> has none, or one that is less like XLA's."""
    for primitive in _OF_FLOATS:

        @rule(primitive)
        def one(b: Builder, x: Array, accuracy: object = None, primitive: str = primitive) -> Array:
            return elementwise(b, x.dtype, lambda v: Op(helper(primitive, x.dtype), (v,), x.dtype), x, cost=2)


_OF_FLOATS = ("sinh", "cosh")
_register_helpers()


@rule("add", "add_any")
def _add(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: arithmetic("+", v, w, x.dtype), x, y)


@rule("sub")
def _sub(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: arithmetic("-", v, w, x.dtype), x, y)


@rule("mul")
def _mul(b: Builder, x: Array, y: Array, out_dtype: Any = None) -> Array:
    if out_dtype is not None and np.dtype(out_dtype) != x.dtype:
        raise Declined("`mul` into another type")
    return elementwise(b, x.dtype, lambda v, w: arithmetic("*", v, w, x.dtype), x, y)


_WORDS = {"+": "add", "-": "sub", "*": "mul"}


def arithmetic(operator: str, v: Expr, w: Expr, dtype: np.dtype) -> Expr:
    """`v + w`; of integers that may overflow by a helper, for in C that is undefined."""
    if dtype == BOOL:
        return Op("||" if operator == "+" else "&&" if operator == "*" else "!=", (v, w), BOOL)
    if dtype.kind == "c":
        return Op(helper(_WORDS[operator], dtype), (v, w), dtype)
    if dtype.kind == "f" and operator == "+" and isinstance(w, Op) and w.name == "neg":
        return Op("-", (v, *w.args), dtype)
    made = Op(operator, (v, w), dtype)
    if (
        dtype.kind == "f"
        or dtype.kind == "u"
        and dtype.itemsize >= _WIDTH_OF_INT
        or dtype.kind == "i"
        and fits(made, dtype)
    ):
        return made
    return Op(helper(_WORDS[operator], dtype), (v, w), dtype)


@rule("neg")
def _neg(b: Builder, x: Array) -> Array:
    if x.dtype.kind == "f":
        return elementwise(b, x.dtype, lambda v: Op("neg", (v,), x.dtype), x)
    return elementwise(b, x.dtype, lambda v: arithmetic("-", num(0, x.dtype), v, x.dtype), x)


@rule("div")
def _div(b: Builder, x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return elementwise(b, x.dtype, lambda v, w: Op("/", (v, w), x.dtype), x, y)
    return elementwise(b, x.dtype, lambda v, w: _integer_division("/", "div", v, w, x.dtype), x, y)


def _integer_division(operator: str, word: str, v: Expr, w: Expr, dtype: np.dtype) -> Expr:
    if isinstance(w, Num) and int(w.value) > 0:
        return Op(operator, (v, w), dtype)
    return Op(helper(word, dtype), (v, w), dtype)


@rule("rem")
def _rem(b: Builder, x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return elementwise(b, x.dtype, lambda v, w: call("fmod", x.dtype, v, w), x, y)
    return elementwise(b, x.dtype, lambda v, w: _integer_division("%", "rem", v, w, x.dtype), x, y)


@rule("max")
def _max(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: extreme("max", v, w, x.dtype), x, y)


@rule("min")
def _min(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: extreme("min", v, w, x.dtype), x, y)


def extreme(which: str, v: Expr, w: Expr, dtype: np.dtype) -> Expr:
    """The larger or the smaller: NaN where one is NaN, and 0 is more than -0."""
    if dtype == BOOL:
        return Op("||" if which == "max" else "&&", (v, w), BOOL)
    if dtype.kind == "c":
        return Op(helper(which, dtype), (v, w), dtype)
    if isinstance(v, Num):
        v, w = w, v
    if isinstance(w, Num) and is_simple(v) and (which == "max" or w.value != 0) and w.value == w.value:
        operator = "<=" if which == "max" else ">="  # not for NaN, which is chosen
        return folded(Op("?:", (folded(Op(operator, (v, w), BOOL)), w, v), dtype))
    return Op(helper(which, dtype), (v, w), dtype)


@rule("pow")
def _pow(b: Builder, x: Array, y: Array) -> Array:
    if x.dtype.kind != "f":
        raise Declined("`pow` of integers")
    if y.dtype.kind == "f":
        return elementwise(b, x.dtype, lambda v, w: call("pow", x.dtype, v, w), x, y)
    return elementwise(b, x.dtype, lambda v, w: call("pow", x.dtype, v, Op("cast", (w,), x.dtype)), x, y)


@rule("integer_pow")
def _integer_pow(b: Builder, x: Array, *, y: int) -> Array:
    x = b.often(x) if abs(y) > 1 else x

    def power(v: Expr) -> Expr:
        made: Expr = num(1, x.dtype)
        square, rest = v, abs(y)
        first = True
        if rest > _LARGEST_POWER and x.dtype.kind == "f":
            return call("pow", x.dtype, v, num(y, x.dtype))
        while rest:
            if rest & 1:
                made, first = (square if first else arithmetic("*", made, square, x.dtype)), False
            rest >>= 1
            if rest:
                square = arithmetic("*", square, square, x.dtype)
        if y >= 0:
            return made
        return Op("/", (num(1, x.dtype), made), x.dtype)

    if y < 0 and x.dtype.kind != "f":
        raise Declined("a negative power of integers")
    return elementwise(b, x.dtype, power, x, cost=max(1, abs(y) - 1))


@rule("square")
def _square(b: Builder, x: Array) -> Array:
    x = b.often(x)
    return elementwise(b, x.dtype, lambda v: arithmetic("*", v, v, x.dtype), x)


@rule("abs")
def _abs(b: Builder, x: Array) -> Array:
    if x.dtype.kind == "f":
        return elementwise(b, x.dtype, lambda v: call("fabs", x.dtype, v), x)
    if x.dtype.kind in "ub":
        return x
    return elementwise(b, x.dtype, lambda v: Op(helper("abs", x.dtype), (v,), x.dtype), x)


@rule("sign")
def _sign(b: Builder, x: Array) -> Array:
    return elementwise(b, x.dtype, lambda v: Op(helper("sign", x.dtype), (v,), x.dtype), x)


@rule("round")
def _round(b: Builder, x: Array, *, rounding_method: Any) -> Array:
    name = "round" if int(rounding_method) == 0 else "nearbyint"  # half away from zero, or to even
    return elementwise(b, x.dtype, lambda v: call(name, x.dtype, v), x)


@rule("rsqrt")
def _rsqrt(b: Builder, x: Array, accuracy: object = None) -> Array:
    return elementwise(b, x.dtype, lambda v: Op("/", (num(1, x.dtype), call("sqrt", x.dtype, v)), x.dtype), x, cost=2)


@rule("logistic")
def _logistic(b: Builder, x: Array, accuracy: object = None) -> Array:
    def logistic(v: Expr) -> Expr:
        below = Op("+", (num(1, x.dtype), call("exp", x.dtype, Op("neg", (v,), x.dtype))), x.dtype)
        return Op("/", (num(1, x.dtype), below), x.dtype)

    return elementwise(b, x.dtype, logistic, x, cost=3)


@rule("atan2")
def _atan2(b: Builder, x: Array, y: Array, accuracy: object = None) -> Array:
    return elementwise(b, x.dtype, lambda v, w: call("atan2", x.dtype, v, w), x, y)


@rule("nextafter")
def _nextafter(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: call("nextafter", x.dtype, v, w), x, y)


@rule("erf_inv")
def _erf_inv(b: Builder, x: Array, accuracy: object = None) -> Array:
    if x.dtype != np.float32:
        raise Declined("`erf_inv` in float64")
    return elementwise(b, x.dtype, lambda v: Op("erf_inv_f32", (v,), x.dtype), x)


@rule("one_minus_square")
def _one_minus_square(b: Builder, x: Array, accuracy: object = None) -> Array:
    x = b.often(x)
    return elementwise(b, x.dtype, lambda v: Op("-", (num(1, x.dtype), Op("*", (v, v), x.dtype)), x.dtype), x, cost=2)


@rule("platform_index")
def _platform_index(b: Builder, *, platforms: Sequence[Any]) -> Array:
    """Which of the branches for platforms is that for a CPU, or for all others."""
    places = [i for i, names in enumerate(platforms) if names is not None and "cpu" in names]
    others = [i for i, names in enumerate(platforms) if names is None]
    if not places and not others:
        raise Declined("`platform_index` without a CPU")
    return number((places or others)[0], INDEX)


@rule("mulhi")
def _mulhi(b: Builder, x: Array, y: Array) -> Array:
    if x.dtype.itemsize > _WIDTH_OF_INT:
        raise Declined("`mulhi` of 64 bits")
    wide = np.dtype(f"{x.dtype.kind}8")
    bits = num(8 * x.dtype.itemsize, wide)

    def high(v: Expr, w: Expr) -> Expr:
        product = Op("*", (cast(v, wide), cast(w, wide)), wide)
        name = ">>" if wide.kind == "u" else helper("shift_right_arithmetic", wide)
        return cast(Op(name, (product, bits), wide), x.dtype)

    return elementwise(b, x.dtype, high, x, y)


_TOTAL = {"eq_to": "==", "lt_to": "<", "le_to": "<="}


def _register_total() -> None:
    """Comparisons in a total order: -NaN, -inf .. -0, 0 .. inf, NaN."""
    for primitive, operator in _TOTAL.items():

        @rule(primitive)
        def one(b: Builder, x: Array, y: Array, operator: str = operator) -> Array:
            def compare(v: Expr, w: Expr) -> Expr:
                if x.dtype.kind == "f":
                    v, w = [Op(helper("total", x.dtype), (a,), np.dtype(f"i{x.dtype.itemsize}")) for a in (v, w)]
                return Op(operator, (v, w), BOOL)

            return elementwise(b, BOOL, compare, x, y)


_register_total()


@rule("is_finite")
def _is_finite(b: Builder, x: Array) -> Array:
    return elementwise(b, BOOL, lambda v: Op("isfinite", (v,), BOOL), x)


# ------------------------------------------------------------ comparisons, bits, choices

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _register_comparisons() -> None:
    for primitive, operator in _COMPARISONS.items():

        @rule(primitive)
        def one(b: Builder, x: Array, y: Array, operator: str = operator) -> Array:
            return elementwise(b, BOOL, lambda v, w: Op(operator, (v, w), BOOL), x, y)


_register_comparisons()


def _register_bits() -> None:
    for primitive, logical, bits in (("and", "&&", "&"), ("or", "||", "|"), ("xor", "!=", "^")):

        @rule(primitive)
        def one(b: Builder, x: Array, y: Array, logical: str = logical, bits: str = bits) -> Array:
            operator = logical if x.dtype == BOOL else bits
            return elementwise(b, x.dtype, lambda v, w: Op(operator, (v, w), x.dtype), x, y)


_register_bits()


@rule("not")
def _not(b: Builder, x: Array) -> Array:
    return elementwise(b, x.dtype, lambda v: Op("!" if x.dtype == BOOL else "~", (v,), x.dtype), x)


def _register_shifts() -> None:
    for primitive, operator, word in (
        ("shift_left", "<<", "shift_left"),
        ("shift_right_logical", ">>", "shift_right_logical"),
        ("shift_right_arithmetic", ">>", "shift_right_arithmetic"),
    ):

        @rule(primitive)
        def one(
            b: Builder, x: Array, y: Array, primitive: str = primitive, operator: str = operator, word: str = word
        ) -> Array:
            def shift(v: Expr, w: Expr) -> Expr:
                plain = (
                    x.dtype.kind == "u" and x.dtype.itemsize >= _WIDTH_OF_INT and primitive != "shift_right_arithmetic"
                )
                if plain and isinstance(w, Num) and 0 <= w.value < 8 * x.dtype.itemsize:
                    return Op(operator, (v, w), x.dtype)
                return Op(helper(word, x.dtype), (v, w), x.dtype)

            return elementwise(b, x.dtype, shift, x, y)


_register_shifts()


@rule("population_count")
def _population_count(b: Builder, x: Array) -> Array:
    return elementwise(b, x.dtype, lambda v: Op(helper("population_count", x.dtype), (v,), x.dtype), x)


@rule("clz")
def _clz(b: Builder, x: Array) -> Array:
    return elementwise(b, x.dtype, lambda v: Op(helper("clz", x.dtype), (v,), x.dtype), x)


@rule("select_n")
def _select_n(b: Builder, which: Array, *cases: Array) -> Array:
    dtype = cases[0].dtype

    def choose(w: Expr, *values: Expr) -> Expr:
        if which.dtype == BOOL:
            return Op("?:", (w, values[1], values[0]), dtype)
        made = values[-1]
        for place in reversed(range(len(values) - 1)):
            made = Op("?:", (Op("<=", (w, num(place, which.dtype)), BOOL), values[place], made), dtype)
        return made

    if which.dtype != BOOL and len(cases) > 2:
        which = b.often(which)
    return elementwise(b, dtype, choose, which, *cases)


@rule("clamp")
def _clamp(b: Builder, low: Array, x: Array, high: Array) -> Array:
    return elementwise(
        b, x.dtype, lambda v, w, u: extreme("min", extreme("max", w, v, x.dtype), u, x.dtype), low, x, high, cost=2
    )


@rule("convert_element_type")
def _convert(b: Builder, x: Array, *, new_dtype: Any, weak_type: object = None, sharding: object = None) -> Array:
    dtype = np.dtype(new_dtype)
    if dtype.name not in SUFFIXES:
        raise Declined(f"a conversion to {dtype.name}, which is none of C's arithmetic types here")
    if x.number is not None and dtype.kind != "c":
        return number(_saturated(x.number.value, dtype), dtype)
    return converted(b, x, dtype)


def _saturated(value: int | float | bool, dtype: np.dtype) -> int | float | bool:
    if dtype.kind in "iu" and isinstance(value, float):
        info = np.iinfo(dtype)
        return 0 if value != value else int(min(max(value, info.min), info.max))
    if dtype.kind in "iu":
        wide = int(value) & ((1 << 8 * dtype.itemsize) - 1)
        return wide - (1 << 8 * dtype.itemsize) if dtype.kind == "i" and wide >> (8 * dtype.itemsize - 1) else wide
    return bool(value) if dtype == BOOL else float(value)


def converted(b: Builder, x: Array, dtype: np.dtype) -> Array:
    if x.dtype == dtype:
        return x
    return elementwise(b, dtype, lambda v: cast(v, dtype), x)


def cast(v: Expr, dtype: np.dtype) -> Expr:
    """`(float)v`; a float that an integer cannot hold becomes the nearest that it can."""
    if v.dtype == dtype:
        return v
    if isinstance(v, Num) and dtype.kind != "c":
        return Num(_saturated(v.value, dtype), dtype)
    if v.dtype.kind == "c":
        return complex_cast(v, dtype)
    if dtype.kind == "c":
        part = part_of(dtype)
        return Op(COMPLEX, (cast(v, part), num(0, part)), dtype)
    if dtype == BOOL:
        return Op("!=", (v, num(0, v.dtype)), BOOL)
    if v.dtype.kind == "f" and dtype.kind in "iu":
        return Op(
            f"{helper('to', dtype)}", (v if v.dtype == np.float64 else Op("cast", (v,), np.dtype(np.float64)),), dtype
        )
    return Op("cast", (v,), dtype)


def complex_cast(v: Expr, dtype: np.dtype) -> Expr:
    """A complex number as one of another type; as a real one its real part."""
    if dtype == BOOL:
        return Op(helper("ne", v.dtype), (v, constant(0, v.dtype)), BOOL)
    if dtype.kind == "c":
        return Op(f"{helper('to', dtype)}_{SUFFIXES[v.dtype.name]}", (v,), dtype)
    return cast(Op(PARTS[0], (v,), part_of(v.dtype)), dtype)


@rule("bitcast_convert_type")
def _bitcast(b: Builder, x: Array, *, new_dtype: Any) -> Array:
    dtype = np.dtype(new_dtype)
    if NARROW.keys() & {x.dtype, dtype} and dtype.itemsize == x.dtype.itemsize:
        return elementwise(b, dtype, lambda v: Op("cast", (v,), dtype), x)  # the bits are what stands there
    if dtype.name not in SUFFIXES or dtype.itemsize != x.dtype.itemsize:
        raise Declined("a `bitcast_convert_type` between types of different sizes")
    if x.dtype.kind != "f" and dtype.kind != "f":
        return elementwise(b, dtype, lambda v: Op("cast", (v,), dtype), x)
    if x.dtype == dtype:
        return x
    name = f"bits_{SUFFIXES[x.dtype.name]}_{SUFFIXES[dtype.name]}"
    return elementwise(b, dtype, lambda v: Op(name, (v,), dtype), x)


@rule("reduce_precision")
def _reduce_precision(b: Builder, x: Array, *, exponent_bits: int, mantissa_bits: int) -> Array:
    info = ml_dtypes.finfo(x.dtype)
    if exponent_bits >= info.nexp and mantissa_bits >= info.nmant:
        return x
    narrow = ml_dtypes.finfo(BF16)
    if x.dtype == np.float32 and (exponent_bits, mantissa_bits) == (narrow.nexp, narrow.nmant):
        return elementwise(b, x.dtype, lambda v: Op("rounded_bf16", (v,), x.dtype), x)
    raise Declined("`reduce_precision`")


@rule(
    "copy",
    "copy_p",
    "device_put",
    "stop_gradient",
    "optimization_barrier",
    "name",
    "pvary",
    "reshard",
    "sharding_constraint",
)
def _same(b: Builder, *xs: Array, **params: object) -> Array | list[Array]:
    return xs[0] if len(xs) == 1 else list(xs)


@rule("debug_print")
def _debug_print(b: Builder, *xs: Array, fmt: str, **params: object) -> list[Array]:
    b.unit.notes.append(f"the text prints nothing: `jax.debug.print({fmt!r})` is not in it")
    return []


@rule("iota")
def _iota(b: Builder, *, dtype: Any, shape: tuple[int, ...], dimension: int, sharding: object = None) -> Array:
    kind = np.dtype(dtype)
    return Array(tuple(shape), kind, lambda index: index_as(index[dimension], kind))


def index_as(index: Expr, dtype: np.dtype) -> Expr:
    """An index as a number of another type."""
    return index if dtype == INDEX else cast(index, dtype)
