"""Operators and elementwise functions, with the broadcasts and conversions that `jnp` puts in front of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace.ir.nodes import Equation, Literal
from untrace.lift.recognise.engine import Guess, Matcher, idiom

# Primitive -> calls to try, the likeliest first.
_BINARY = {
    "add": ("operator.add",), "sub": ("operator.sub",), "mul": ("operator.mul",),
    "div": ("operator.truediv", "operator.floordiv", "jnp.divide"), "max": ("jnp.maximum",), "min": ("jnp.minimum",),
    "pow": ("operator.pow", "jnp.power"), "rem": ("operator.mod", "jnp.fmod"), "atan2": ("jnp.arctan2",),
    "and": ("operator.and_", "jnp.logical_and"), "or": ("operator.or_", "jnp.logical_or"),
    "xor": ("operator.xor", "jnp.logical_xor"), "eq": ("operator.eq",), "ne": ("operator.ne",),
    "lt": ("operator.lt",), "le": ("operator.le",), "gt": ("operator.gt",), "ge": ("operator.ge",),
    "shift_left": ("operator.lshift",), "shift_right_arithmetic": ("operator.rshift",),
    "shift_right_logical": ("operator.rshift", "jnp.right_shift"), "nextafter": ("jnp.nextafter",),
    "complex": ("lax.complex",), "igamma": ("jax.scipy.special.gammainc",), "igammac": ("jax.scipy.special.gammaincc",),
}  # fmt: skip

_UNARY = {
    "neg": "operator.neg", "exp": "jnp.exp", "log": "jnp.log", "tanh": "jnp.tanh", "sin": "jnp.sin", "cos": "jnp.cos",
    "tan": "jnp.tan", "sqrt": "jnp.sqrt", "rsqrt": "lax.rsqrt", "abs": "jnp.abs", "sign": "jnp.sign",
    "floor": "jnp.floor", "ceil": "jnp.ceil", "exp2": "jnp.exp2", "expm1": "jnp.expm1", "log1p": "jnp.log1p",
    "asin": "jnp.arcsin", "acos": "jnp.arccos", "atan": "jnp.arctan", "sinh": "jnp.sinh", "cosh": "jnp.cosh",
    "asinh": "jnp.arcsinh", "acosh": "jnp.arccosh", "atanh": "jnp.arctanh", "logistic": "jax.nn.sigmoid",
    "square": "jnp.square", "is_finite": "jnp.isfinite", "real": "jnp.real", "imag": "jnp.imag", "conj": "jnp.conj",
    "erf": "jax.scipy.special.erf", "erfc": "jax.scipy.special.erfc", "erf_inv": "jax.scipy.special.erfinv",
    "lgamma": "jax.scipy.special.gammaln", "digamma": "jax.scipy.special.digamma", "cbrt": "jnp.cbrt",
    "bessel_i0e": "jax.scipy.special.i0e", "bessel_i1e": "jax.scipy.special.i1e", "not": "operator.invert",
    "regularized_incomplete_beta": "jax.scipy.special.betainc", "stop_gradient": "lax.stop_gradient", "population_count": "jnp.bitwise_count",
}  # fmt: skip

# What `jnp` does to an operand before the operation: to its rank, its dtype, or both.
_PREPARED = ("broadcast_in_dim", "convert_element_type", "reshape")


def operands(m: Matcher, atom: Any, anchor: Equation, leads: bool = True) -> list[Any]:
    """What a person may have written where `atom` is an operand of `anchor`: as far back as `jnp` itself can have
    prepared it, unless it is known that the person did (`x[:, None] + y`).

    leads: whether that is so of axes in front as well, wherever they come from.
    """
    found = [atom]
    for _ in range(2):
        if type(atom) is Literal:
            break
        before = m.producer(atom, *_PREPARED)
        if before is None or len(before.inputs) != 1:
            break
        inner = before.inputs[0]
        if type(inner) is Literal and before.callee.name == "reshape":
            break
        if not (leads and _only_leads(before) or m.same_call(before, anchor)):
            break
        found.insert(0, inner)
        atom = inner
    return found


def _root(m: Matcher, atom: Any) -> Any:
    """What an operand is a broadcast of."""
    while type(atom) is not Literal and (before := m.producer(atom, "broadcast_in_dim")) is not None:
        atom = before.inputs[0]
    return atom


def _only_leads(equation: Equation) -> bool:
    """Whether an equation only puts axes in front: an operator does that by itself, so it need not be said."""
    if equation.callee.name != "broadcast_in_dim" or type(equation.inputs[0]) is Literal:
        return False
    shape, inner = equation.origin.params["shape"], equation.inputs[0].aval.shape
    lead = len(shape) - len(inner)
    dims = tuple(int(d) for d in equation.origin.params["broadcast_dimensions"])
    return bool(inner) and lead > 0 and dims == tuple(range(lead, len(shape))) and all(n == 1 for n in shape[:lead])


def _binary(m: Matcher, equation: Equation) -> Iterator[Guess]:
    left, right = equation.inputs
    paths = _BINARY[equation.callee.name]
    if type(left) is Literal and type(right) is Literal:
        return
    lefts, rights = operands(m, left, equation), operands(m, right, equation)
    if _root(m, left) is _root(m, right):
        # `x[None] - x[:, None]` as its author wrote it: without the first index that of the second comes first, and a
        # derivative adds what the two give in that order.
        lefts = operands(m, left, equation, leads=False)
    for path in paths:
        for a in lefts:
            for b in rights:
                yield Guess(path, (a, b))


@idiom("ne", small=True)
def _isnan(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """Before the operators: `x != x` is right as well."""
    x, y = equation.inputs
    if x is y:
        yield Guess("jnp.isnan", (x,))


for _name in _BINARY:
    idiom(_name, small=True)(_binary)


@idiom("real", "imag", small=True)
def _part(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield Guess("attribute." + equation.callee.name, (equation.inputs[0],))


@idiom(*_UNARY, small=True)
def _unary(m: Matcher, equation: Equation) -> Iterator[Guess]:
    path = _UNARY[equation.callee.name]
    for x in operands(m, equation.inputs[0], equation):
        yield Guess(path, (x,))


@idiom("div")
def _logarithm(m: Matcher, equation: Equation) -> Iterator[Guess]:
    log = m.producer(equation.inputs[0], "log")
    if log is not None and m.producer(equation.inputs[1], "log") is not None:
        yield Guess("jnp.log2", (log.inputs[0],))
        yield Guess("jnp.log10", (log.inputs[0],))


@idiom("copy", "copy_p", small=True)
def _copy(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield Guess("method.copy", (equation.inputs[0],))


@idiom("integer_pow", small=True)
def _integer_power(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield Guess("operator.pow", (equation.inputs[0], equation.origin.params["y"]))


@idiom("round", small=True)
def _round(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield Guess("jnp.round", (equation.inputs[0],))


@idiom("convert_element_type", small=True)
def _astype(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0]
    params = equation.origin.params
    if type(x) is not Literal and not params["weak_type"] and params["sharding"] is None:
        yield Guess("method.astype", (x, params["new_dtype"]))


@idiom("clamp", small=True)
def _clamp(m: Matcher, equation: Equation) -> Iterator[Guess]:
    low, x, high = equation.inputs
    yield Guess("lax.clamp", (low, x, high))


@idiom("select_n")
def _select(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`jnp.select`: the case of the first condition that holds, which are stacked below one that never does."""
    which, *cases = equation.inputs
    first = m.producer(which, "argmax")
    stacked = m.producer(first.inputs[0], "concatenate", "stack") if first is not None else None
    if stacked is None or len(stacked.inputs) != len(cases):
        return
    conditions = [m.through(a, "broadcast_in_dim") or a for a in stacked.inputs[1:]]
    default, *choices = [m.through(a, "broadcast_in_dim") or a for a in cases]
    yield Guess("jnp.select", (conditions, choices, default))
    yield Guess("jnp.select", (conditions, cases[1:], default))


@idiom("select_n", small=True)
def _where(m: Matcher, equation: Equation) -> Iterator[Guess]:
    which, *cases = equation.inputs
    if len(cases) == 2:
        yield Guess("lax.select", (which, cases[1], cases[0]))
