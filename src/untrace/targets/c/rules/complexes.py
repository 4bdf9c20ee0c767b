"""Complex numbers: a struct of two parts for each type, functions of such structs for what C's operators do with floats.

C's own complex types are optional in C11 and none of C++'s; the same two parts in memory are both's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace.targets.c.arrays import Array, constant
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, COMPLEX, PARTS, Expr, Op, part_of
from untrace.targets.c.rules import indexing, linalg, products, reductions, shapes, sorting  # noqa: F401  (whose rules serve here too)
from untrace.targets.c.rules.elementwise import arithmetic, cast, converted, elementwise, helper
from untrace.targets.c.rules.table import C, rule_of_complex
from untrace.targets.c.runtime.complexes import FUNCTIONS

# What is written in terms of `arithmetic`, `cast` and `?:`, or only moves elements.
_AS_THEY_ARE = (
    "add", "add_any", "sub", "mul", "square", "select_n", "convert_element_type", "iota", "copy", "copy_p", "device_put",
    "stop_gradient", "optimization_barrier", "name", "pvary", "reshard", "sharding_constraint", "gather", "scatter", "scatter-add",
    "scatter_add", "scatter-sub", "scatter_sub", "scatter-mul", "scatter_mul", "reduce_sum", "reduce_prod", "cumsum",
    "cumprod", "reduce_window_sum", "reduce", "reduce_window", "dot_general", "conv_general_dilated",
    "sort", "fft", "cholesky", "triangular_solve", "lu", "max", "min", "scatter-max", "scatter_max", "scatter-min",
    "scatter_min", "reduce_max", "reduce_min", "cummax", "cummin", "reduce_window_max", "reduce_window_min",
)  # fmt: skip


def _register() -> None:
    for name in C.names():
        found = C.find(name)
        if found is not None and (name in _AS_THEY_ARE or found.__module__.endswith(".shapes")):
            rule_of_complex(name)(found)
    for name in (*FUNCTIONS, "sinh", "cosh", "sign", "rsqrt", "expm1", "log1p"):

        @rule_of_complex(name)
        def one(b: Builder, x: Array, accuracy: object = None, name: str = name) -> Array:
            return elementwise(b, x.dtype, lambda v: Op(helper(name, x.dtype), (v,), x.dtype), x, cost=2)

    for name in ("eq", "ne"):

        @rule_of_complex(name)
        def compared(b: Builder, x: Array, y: Array, name: str = name) -> Array:
            return elementwise(b, BOOL, lambda v, w: Op(helper(name, x.dtype), (v, w), BOOL), x, y)

    for name, part in (("real", PARTS[0]), ("imag", PARTS[1])):

        @rule_of_complex(name)
        def taken(b: Builder, x: Array, part: str = part) -> Array:
            return elementwise(b, part_of(x.dtype), lambda v: part_in(v, part), x, cost=0)


def part_in(v: Expr, part: str) -> Expr:
    """The real or the imaginary part of a number."""
    if isinstance(v, Op) and v.name == COMPLEX:
        return v.args[PARTS.index(part)]
    return Op(part, (v,), part_of(v.dtype))


@rule_of_complex("complex")
def _complex(b: Builder, x: Array, y: Array) -> Array:
    dtype = np.dtype(f"c{2 * x.dtype.itemsize}")
    return elementwise(b, dtype, lambda v, w: Op(COMPLEX, (v, w), dtype), x, y)


@rule_of_complex("conj")
def _conj(b: Builder, x: Array, *, input_dtype: object = None) -> Array:
    if x.dtype.kind == "f":
        return converted(b, x, np.dtype(f"c{2 * x.dtype.itemsize}"))
    return elementwise(b, x.dtype, lambda v: Op(helper("conj", x.dtype), (v,), x.dtype), x)


@rule_of_complex("bitcast_convert_type")
def _bitcast(b: Builder, x: Array, *, new_dtype: Any) -> Array:
    return x  # JAX has none to another type


@rule_of_complex("div")
def _div(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: Op(helper("div", x.dtype), (v, w), x.dtype), x, y, cost=2)


@rule_of_complex("neg")
def _neg(b: Builder, x: Array) -> Array:
    return elementwise(b, x.dtype, lambda v: Op(helper("neg", x.dtype), (v,), x.dtype), x)


@rule_of_complex("abs")
def _abs(b: Builder, x: Array) -> Array:
    return elementwise(b, part_of(x.dtype), lambda v: Op(helper("abs", x.dtype), (v,), part_of(x.dtype)), x)


@rule_of_complex("pow")
def _pow(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: Op(helper("pow", x.dtype), (v, cast(w, x.dtype)), x.dtype), x, y)


@rule_of_complex("integer_pow")
def _integer_pow(b: Builder, x: Array, *, y: int) -> Array:
    x = b.often(x)
    made = b.often(elementwise(b, x.dtype, lambda v: constant(1, x.dtype), x)) if y == 0 else None
    square, rest = x, abs(y)
    while rest:
        if rest & 1:
            made = square if made is None else _product(b, made, square)
        rest >>= 1
        if rest:
            square = b.often(_product(b, square, square))
    assert made is not None
    return _over(b, made) if y < 0 else made


def _product(b: Builder, x: Array, y: Array) -> Array:
    return elementwise(b, x.dtype, lambda v, w: arithmetic("*", v, w, x.dtype), x, y)


def _over(b: Builder, x: Array) -> Array:
    one = constant(1, x.dtype)
    return elementwise(b, x.dtype, lambda v: Op(helper("div", x.dtype), (one, v), x.dtype), x)


@rule_of_complex("logistic")
def _logistic(b: Builder, x: Array, accuracy: object = None) -> Array:
    def below(v: Expr) -> Expr:
        power = Op(helper("exp", x.dtype), (Op(helper("neg", x.dtype), (v,), x.dtype),), x.dtype)
        return arithmetic("+", constant(1, x.dtype), power, x.dtype)

    return _over(b, elementwise(b, x.dtype, below, x, cost=3))


@rule_of_complex("exp2")
def _exp2(b: Builder, x: Array, accuracy: object = None) -> Array:
    scale = constant(np.log(2), x.dtype)
    return elementwise(
        b, x.dtype, lambda v: Op(helper("exp", x.dtype), (arithmetic("*", v, scale, x.dtype),), x.dtype), x
    )


_register()
