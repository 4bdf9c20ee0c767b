"""Elementwise primitives. Where NumPy's function means something else on some values, a helper does what JAX does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Binary, Call, Expr, Subscript, Text, Tuple, Unary
from untrace.targets.eager.rules import plain
from untrace.targets.eager.rules.parts import is_float
from untrace.targets.numpy.rules.table import NUMPY, rule

_OPERATORS = {
    "add": "+", "add_any": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_FUNCTIONS = {
    "abs": "abs", "ceil": "ceil", "floor": "floor", "exp": "exp", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "log2": "log2", "sqrt": "sqrt", "cbrt": "cbrt", "square": "square", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "atan2": "arctan2", "max": "maximum", "min": "minimum",
    "nextafter": "nextafter", "is_finite": "isfinite", "real": "real", "imag": "imag",
}  # fmt: skip
_SPECIAL = {
    "erf": "erf", "erfc": "erfc", "erf_inv": "erfinv", "lgamma": "gammaln", "digamma": "digamma", "bessel_i0e": "i0e",
    "bessel_i1e": "i1e", "igamma": "gammainc", "igammac": "gammaincc", "regularized_incomplete_beta": "betainc",
    "zeta": "zeta", "polygamma": "polygamma",
}  # fmt: skip


def _operator(sign: str) -> Any:
    def operate(w: Any, x: Any, y: Any, *, out_dtype: Any = None) -> Expr:
        if out_dtype is not None or jax_compat.is_key_dtype(w.avals[0].dtype):
            return DECLINE
        return Binary(x, sign, y)

    return operate


def _function(name: str) -> Any:
    def call(w: Any, *operands: Any, accuracy: Any = None) -> Expr:
        return w.np(name, *operands)

    return call


def _special(name: str) -> Any:
    def call(w: Any, *operands: Any, accuracy: Any = None) -> Expr:
        w.module.modules.add("scipy.special")
        made = _in_single(w, operands, lambda *given: Call(f"scipy.special.{name}", given))
        is_wider = name == "polygamma" and w.out_avals[0].dtype == np.float32
        return w.call(Attribute(made, "astype"), w.dtype(np.float32)) if is_wider else made

    return call


def _in_single(w: Any, operands: Sequence[Expr], compute: Callable[..., Expr]) -> Expr:
    """What is computed in float32 where the type is narrower, as XLA does: NumPy has no such functions for those types."""
    if np.dtype(w.out_avals[0].dtype).itemsize >= 4:
        return compute(*operands)
    single = w.dtype(np.float32)
    given = [w.call(Attribute(x, "astype"), single) for x in operands]
    return w.call(Attribute(compute(*given), "astype"), w.dtype(w.out_avals[0].dtype))


for _name, _sign in _OPERATORS.items():
    rule(_name)(_operator(_sign))
for _name, _numpy in _FUNCTIONS.items():
    rule(_name)(_function(_numpy))
for _name, _numpy in _SPECIAL.items():
    rule(_name)(_special(_numpy))


@rule("exp2")
def exp2(w: Any, x: Any, *, accuracy: Any = None) -> Expr:
    return _in_single(w, [x], lambda x: w.np("exp2", x))


@rule("population_count")
def population_count(w: Any, x: Any) -> Expr:
    kind = np.dtype(w.avals[0].dtype)
    bits = x if kind.kind == "u" else w.call(Attribute(x, "view"), w.dtype(np.dtype(f"u{kind.itemsize}")))
    return w.call(Attribute(w.np("bitwise_count", bits), "astype"), w.dtype(kind))


@rule("neg")
def neg(w: Any, x: Any) -> Expr:
    return Unary("-", x)


@rule("not")
def not_(w: Any, x: Any) -> Expr:
    return Unary("~", x)


@rule("div")
def div(w: Any, x: Any, y: Any) -> Expr:
    return Binary(x, "/", y) if is_float(w.out_avals[0]) else w.call(w.helper("_divided"), x, y)


@rule("rem")
def rem(w: Any, x: Any, y: Any) -> Expr:
    return w.np("fmod", x, y) if is_float(w.out_avals[0]) else w.call(w.helper("_remainder"), x, y)


@rule("sign")
def sign(w: Any, x: Any) -> Expr:
    return w.call(w.helper("_sign"), x) if is_float(w.out_avals[0]) else w.np("sign", x)


@rule("rsqrt")
def rsqrt(w: Any, x: Any, *, accuracy: Any = None) -> Expr:
    return _in_single(w, [x], lambda x: Binary(Text("1.0"), "/", w.np("sqrt", x)))


@rule("logistic")
def logistic(w: Any, x: Any, *, accuracy: Any = None) -> Expr:
    return _in_single(w, [x], lambda x: Binary(Text("1.0"), "/", Binary(Text("1.0"), "+", w.np("exp", Unary("-", x)))))


@rule("one_minus_square")
def one_minus_square(w: Any, x: Any, *, accuracy: Any = None) -> Expr:
    return Binary(_one(w), "-", w.np("square", x))


@rule("integer_pow")
def integer_pow(w: Any, x: Any, *, y: int) -> Expr:
    if y < 0:
        return Binary(_one(w), "/", Binary(x, "**", Text(str(-y))) if y < -1 else x)
    return Binary(x, "**", Text(str(y)))


def _one(w: Any) -> Expr:
    """1 as a number of the operand's type: beside one that is not NumPy's own (bfloat16), `1.0` makes it float32."""
    return Text("1.0" if np.dtype(w.avals[0].dtype).isbuiltin == 1 else "1")


@rule("pow")
def power(w: Any, x: Any, y: Any) -> Expr:
    if w.avals[1].dtype != w.avals[0].dtype:
        y = w.call(Attribute(y, "astype"), w.dtype(w.avals[0].dtype))
    return Binary(x, "**", y)


@rule("round")
def round_(w: Any, x: Any, *, rounding_method: Any) -> Expr:
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return w.np("rint", x)
    return w.call(w.helper("_rounded"), x)


@rule("clamp")
def clamp(w: Any, low: Any, x: Any, high: Any) -> Expr:
    if np.dtype(w.avals[1].dtype).isbuiltin != 1:  # np.clip makes another type of those
        return w.np("minimum", w.np("maximum", x, low), high)
    return w.np("clip", x, low, high)


@rule("complex")
def complex_(w: Any, x: Any, y: Any) -> Expr:
    return w.call(w.helper("_complex"), x, y, w.dtype(w.out_avals[0].dtype))


@rule("conj")
def conj(w: Any, x: Any, *, input_dtype: Any) -> Expr:
    if np.issubdtype(w.avals[0].dtype, np.complexfloating):
        return w.np("conj", x)
    return w.call(Attribute(x, "astype"), w.dtype(w.out_avals[0].dtype))


@rule("shift_left")
def shift_left(w: Any, x: Any, y: Any) -> Expr:
    return w.call(w.helper("_shifted_left"), x, y)


@rule("shift_right_logical")
def shift_right_logical(w: Any, x: Any, y: Any) -> Expr:
    return w.call(w.helper("_shifted_right"), x, y)


@rule("shift_right_arithmetic")
def shift_right_arithmetic(w: Any, x: Any, y: Any) -> Expr:
    return w.call(w.helper("_shifted_right_with_sign"), x, y)


@rule("select_n")
def select_n(w: Any, which: Any, *cases: Any) -> Expr:
    if jax_compat.is_key_dtype(w.avals[1].dtype) and w.avals[0].shape:  # whose words are an axis more
        which = Subscript(which, Text("..., None"))
    if len(cases) == 1:
        return cases[0]
    if w.avals[0].dtype == np.bool_:
        return w.np("where", which, cases[1], cases[0])
    return w.np("choose", which, Tuple(cases), mode=Text('"clip"'))


@rule("convert_element_type")
def convert_element_type(w: Any, x: Any, *, new_dtype: Any, weak_type: bool, sharding: Any) -> Expr:
    old = w.avals[0].dtype
    if old == new_dtype:
        return x
    if np.issubdtype(old, np.complexfloating) and not np.issubdtype(new_dtype, np.complexfloating):
        if new_dtype == np.bool_:
            return Binary(x, "!=", Text("0"))
        x = Attribute(x, "real")
    if is_float(w.avals[0]) and jax.dtypes.issubdtype(new_dtype, np.integer):
        if np.issubdtype(new_dtype, np.integer):
            return w.call(w.helper("_as_integers"), x, w.dtype(new_dtype))
        info = jax.numpy.iinfo(new_dtype)  # of less than a byte
        x = w.call(w.helper("_as_integers"), x, w.dtype(np.int8 if info.min else np.uint8))
        x = w.np("clip", x, int(info.min), int(info.max))
    return w.call(Attribute(x, "astype"), w.dtype(new_dtype))


@rule("bitcast_convert_type")
def bitcast_convert_type(w: Any, x: Any, *, new_dtype: Any) -> Expr:
    old, new = np.dtype(w.avals[0].dtype), np.dtype(new_dtype)
    if any(d.name.lstrip("u") in ("int2", "int4") or "float4" in d.name for d in (old, new)):
        return DECLINE  # of which NumPy has one a byte
    if old.itemsize == new.itemsize:
        return w.call(Attribute(x, "view"), w.dtype(new))
    if old.itemsize > new.itemsize:
        parts = w.np("ascontiguousarray", Subscript(x, Text("..., None")))
        return w.call(Attribute(parts, "view"), w.dtype(new))
    joined = w.call(Attribute(w.np("ascontiguousarray", x), "view"), w.dtype(new))
    return Subscript(joined, Text("..., 0"))


@rule("reduce_precision")
def reduce_precision(w: Any, x: Any, *, exponent_bits: int, mantissa_bits: int) -> Expr:
    info = jax.numpy.finfo(w.avals[0].dtype)
    if np.dtype(w.avals[0].dtype).itemsize == 1:
        return DECLINE
    if exponent_bits >= info.nexp and mantissa_bits >= info.nmant:
        return x
    return w.call(w.helper("_reduced_precision"), x, info.nexp, info.nmant, exponent_bits, mantissa_bits)


def _total(sign: str) -> Any:
    def compare(w: Any, x: Any, y: Any) -> Expr:
        """By the order of all floats, in which -0 < 0, and NaN has a place."""
        if np.issubdtype(w.avals[0].dtype, np.complexfloating):
            return DECLINE
        if is_float(w.avals[0]):
            x, y = w.call(w.helper("_total_order"), x), w.call(w.helper("_total_order"), y)
        return Binary(x, sign, y)

    return compare


for _name, _sign in {"eq_to": "==", "lt_to": "<", "le_to": "<="}.items():
    rule(_name)(_total(_sign))


@rule("mulhi")
def mulhi(w: Any, x: Any, y: Any) -> Expr:
    kind = np.dtype(w.avals[0].dtype)
    if kind.itemsize == 8:
        return DECLINE
    wide = w.dtype(np.dtype(f"{kind.kind}{2 * kind.itemsize}"))
    product = Binary(w.call(Attribute(x, "astype"), wide), "*", w.call(Attribute(y, "astype"), wide))
    return w.call(Attribute(Binary(product, ">>", Text(str(8 * kind.itemsize))), "astype"), w.dtype(kind))


@rule("stop_gradient")
def stop_gradient(w: Any, x: Any) -> Expr:
    return x


@rule("clz")
def clz(w: Any, x: Any) -> Expr:
    return w.call(w.helper("_leading_zeros"), x)


plain.register(NUMPY)

# What does the same with each element of arrays as with numbers.
ELEMENTWISE = frozenset(NUMPY.names()) - plain.NOT_ELEMENTWISE - {"bitcast_convert_type"}
