"""Elementwise primitives. Where PyTorch's function means something else on some values, a helper does what JAX does."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.module.rules import DECLINE
from untrace.python.tree import UNARY, Attribute, Binary, Expr, Subscript, Text, Unary
from untrace.targets.eager.rules import plain
from untrace.targets.eager.rules.parts import is_float
from untrace.targets.torch.rules.table import TORCH, rule
from untrace.targets.torch.tensors import word_bits

_OPERATORS = {
    "add": "+", "add_any": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_FUNCTIONS = {
    "abs": "abs", "ceil": "ceil", "floor": "floor", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "log2": "log2", "sqrt": "sqrt", "rsqrt": "rsqrt", "square": "square", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "atan2": "atan2", "logistic": "sigmoid", "erf": "erf",
    "erfc": "erfc", "erf_inv": "erfinv", "lgamma": "lgamma", "digamma": "digamma", "nextafter": "nextafter",
    "is_finite": "isfinite", "bessel_i0e": "special.i0e", "bessel_i1e": "special.i1e",
    "igamma": "special.gammainc", "igammac": "special.gammaincc", "real": "real", "imag": "imag",
}  # fmt: skip


def _operator(sign: str) -> Any:
    def operate(w: Any, x: Any, y: Any, *, out_dtype: Any = None) -> Expr:
        if out_dtype is not None or jax_compat.is_key_dtype(w.avals[0].dtype):
            return DECLINE
        made = Binary(x, sign, y)
        return w.wrapped(made, w.avals[0].dtype) if sign in ("+", "-", "*") else made

    return operate


def _function(name: str) -> Any:
    def call(w: Any, *operands: Any, accuracy: Any = None) -> Expr:
        return w.torch(name, *operands)

    return call


for _name, _sign in _OPERATORS.items():
    rule(_name)(_operator(_sign))
for _name, _torch in _FUNCTIONS.items():
    rule(_name)(_function(_torch))


def _extremum(name: str, bound: str) -> Any:
    def rule(w: Any, x: Any, y: Any) -> Expr:
        """Of floats never `clamp`, whose derivative at the bound is another."""
        if np.issubdtype(w.avals[0].dtype, np.complexfloating):
            return DECLINE
        for place, number, other in ((0, x, y), (1, y, x)):
            known = w.number(place)
            if known is None:
                continue
            if known == (-np.inf if bound == "min" else np.inf):
                return other
            if np.issubdtype(w.avals[0].dtype, np.integer):  # of truths there is no `clamp`
                return w.method(other, "clamp", **{bound: number})
            return w.torch(name, other, w.tensor(place, number))
        return w.torch(name, x, y)

    return rule


rule("max")(_extremum("maximum", "min"))
rule("min")(_extremum("minimum", "max"))


@rule("clamp")
def clamp(w: Any, low: Any, x: Any, high: Any) -> Expr:
    kind = np.dtype(w.avals[1].dtype).kind
    if kind == "c":
        return DECLINE
    if kind == "b":  # of which there is no `clamp`
        low, high = w.tensor(0, low), w.tensor(2, high)
        return w.torch("minimum", w.torch("maximum", w.tensor(1, x), low), high)
    if (w.number(0) is None) != (w.number(2) is None):
        low, high = w.tensor(0, low), w.tensor(2, high)
    return w.method(w.tensor(1, x), "clamp", low, high)


def _is_narrow(w: Any) -> bool:
    return bool(np.dtype(w.avals[0].dtype).itemsize < np.dtype(np.float32).itemsize)


@rule("cbrt")
def cbrt(w: Any, x: Any, *, accuracy: Any = None) -> Expr:
    wide = w.cast(x, np.float32) if _is_narrow(w) else x  # a narrow power has an exponent of its own type
    root = w.torch("copysign", Binary(w.torch("abs", wide), "**", Text("(1 / 3)")), wide)
    return w.cast(root, w.avals[0].dtype) if _is_narrow(w) else root


@rule("neg")
def neg(w: Any, x: Any) -> Expr:
    return w.wrapped(Unary("-", x), w.avals[0].dtype)


@rule("sign")
def sign(w: Any, x: Any) -> Expr:
    if np.issubdtype(w.avals[0].dtype, np.complexfloating):
        return w.torch("sgn", x)
    return w.call(w.helper("_sign"), x) if is_float(w.avals[0]) else w.torch("sign", x)


@rule("div")
def div(w: Any, x: Any, y: Any) -> Expr:
    if is_float(w.out_avals[0]):
        return Binary(x, "/", y)
    made = w.call(w.helper("_divided"), w.tensor(0, x), w.tensor(1, y))
    return w.wrapped(made, w.avals[0].dtype)


@rule("rem")
def rem(w: Any, x: Any, y: Any) -> Expr:
    if is_float(w.out_avals[0]):
        divisor = w.number(1)
        if divisor is not None and abs(divisor) >= 1:  # no quotient is larger than the number then
            return w.torch("fmod", w.tensor(0, x), y)
        return w.call(w.helper("_fmod"), w.tensor(0, x), w.tensor(1, y))
    return w.call(w.helper("_remainder"), w.tensor(0, x), w.tensor(1, y))


@rule("one_minus_square")
def one_minus_square(w: Any, x: Any, *, accuracy: Any = None) -> Expr:
    return Binary(Text("1.0"), "-", w.torch("square", x))


@rule("integer_pow")
def integer_pow(w: Any, x: Any, *, y: int) -> Expr:
    if y < 0:
        return Binary(Text("1.0"), "/", Binary(x, "**", Text(str(-y))) if y < -1 else x)
    return w.wrapped(Binary(x, "**", Text(str(y))), w.avals[0].dtype)


@rule("pow")
def power(w: Any, x: Any, y: Any) -> Expr:
    if w.avals[1].dtype != w.avals[0].dtype:
        y = w.cast(y, w.avals[0].dtype) if w.number(1) is None else Text(repr(w.number(1)), UNARY)
    return Binary(x, "**", y)


@rule("zeta")
def zeta(w: Any, x: Any, q: Any, *, accuracy: Any = None) -> Expr:
    if not _is_narrow(w):
        return w.torch("special.zeta", x, q)
    return w.cast(w.torch("special.zeta", w.cast(x, np.float32), w.cast(q, np.float32)), w.avals[0].dtype)


@rule("polygamma")
def polygamma(w: Any, n: Any, x: Any, *, accuracy: Any = None) -> Expr:
    order = getattr(w.equation.inputs[0], "value", None)
    if order is None or np.ndim(order) or float(order) != int(order) or order < 0:
        return DECLINE
    return w.torch("special.polygamma", int(order), x)


@rule("round")
def round_(w: Any, x: Any, *, rounding_method: Any) -> Expr:
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return w.torch("round", x)
    return w.call(w.helper("_rounded"), x)


@rule("complex")
def complex_(w: Any, x: Any, y: Any) -> Expr:
    return w.torch("complex", x, y)


@rule("conj")
def conj(w: Any, x: Any, *, input_dtype: Any) -> Expr:
    if np.issubdtype(w.avals[0].dtype, np.complexfloating):
        return w.torch("conj", x)
    return w.cast(x, w.out_avals[0].dtype)


@rule("select_n")
def select_n(w: Any, which: Any, *cases: Any) -> Expr:
    if jax_compat.is_key_dtype(w.avals[1].dtype) and w.avals[0].shape:  # whose words are an axis more
        which = Subscript(which, Text("..., None"))
    if len(cases) == 1:
        return cases[0]
    if w.avals[0].dtype == np.bool_:
        return w.torch("where", w.tensor(0, which), cases[1], cases[0])
    return w.chosen(w.method(which, "clamp", min=0), cases)


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
        info = np.iinfo(new_dtype)
        return w.call(w.helper("_as_integers"), x, w.dtype(new_dtype), int(info.min), int(info.max))
    made = w.cast(x, new_dtype)
    return w.wrapped(made, new_dtype) if word_bits(new_dtype) and np.dtype(old).kind == "i" else made


def _bits(w: Any, x: Expr, dtype: Any) -> Expr:
    """Bits as a signed integer of just that width."""
    width = 8 * np.dtype(dtype).itemsize
    if word_bits(dtype):
        return w.cast(x, np.dtype(f"int{width}"))
    return x if np.dtype(dtype).kind == "i" else w.method(x, "view", w.dtype(np.dtype(f"int{width}")))


@rule("bitcast_convert_type")
def bitcast_convert_type(w: Any, x: Any, *, new_dtype: Any) -> Expr:
    old, new = np.dtype(w.avals[0].dtype), np.dtype(new_dtype)
    if old.itemsize != new.itemsize or "bool" in (old.name, new.name):
        return DECLINE
    bits = _bits(w, x, old)
    if word_bits(new):
        return w.wrapped(w.cast(bits, new), new)
    return bits if new.kind == "i" else w.method(bits, "view", w.dtype(new))


@rule("reduce_precision")
def reduce_precision(w: Any, x: Any, *, exponent_bits: int, mantissa_bits: int) -> Expr:
    kind, info = np.dtype(w.avals[0].dtype), jax.numpy.finfo(w.avals[0].dtype)
    if exponent_bits >= info.nexp and mantissa_bits >= info.nmant:
        return x
    if (kind.name, exponent_bits, mantissa_bits) != ("float32", 8, 7):
        return DECLINE
    return w.cast(w.cast(x, jax.numpy.bfloat16), kind)


def _total(sign: str) -> Any:
    def compare(w: Any, x: Any, y: Any) -> Expr:
        """By the order of all floats, in which -0 < 0, and NaN has a place."""
        if np.issubdtype(w.avals[0].dtype, np.complexfloating):
            return DECLINE
        if is_float(w.avals[0]):
            x, y = (w.call(w.helper("_total_order"), w.tensor(i, operand)) for i, operand in enumerate((x, y)))
        return Binary(x, sign, y)

    return compare


for _name, _sign in {"eq_to": "==", "lt_to": "<", "le_to": "<="}.items():
    rule(_name)(_total(_sign))


@rule("cast_words")
def cast_words(w: Any, x: Any, *, dtype: str) -> Expr:
    return w.method(x, "to", Text(dtype))


@rule("stop_gradient")
def stop_gradient(w: Any, x: Any) -> Expr:
    return w.method(x, "detach")


plain.register(TORCH)

# What does the same with each element of tensors as with numbers; and PyTorch's functions that do.
ELEMENTWISE = frozenset(TORCH.names()) - plain.NOT_ELEMENTWISE
FUNCTIONS = frozenset(
    f"torch.{name}" for name in (*_FUNCTIONS.values(), "special.zeta", "maximum", "minimum", "where", "pow")
)
