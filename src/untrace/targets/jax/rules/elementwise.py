"""Elementwise primitives: the `jax.lax` function of the same meaning binds exactly one equation.

Source: jax/_src/lax/lax.py, jax/_src/lax/special.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.lax

from untrace.ir.nodes import Literal, Value
from untrace.module.rules import DECLINE
from untrace.python.tree import Call
from untrace.targets.jax.rules.table import rule

# Primitive -> function of jax.lax, where the operands are the only arguments.
_PLAIN = {
    name: name
    for name in (
        "abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex digamma div"
        " eq erf erf_inv erfc exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag is_finite le lgamma lt max min"
        " ne neg nextafter polygamma population_count pow real regularized_incomplete_beta rem shift_left"
        " shift_right_arithmetic shift_right_logical sign sinh cosh square sub zeta one_minus_square"
    ).split()
} | {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}

# Primitive with an `accuracy` parameter -> the same name in jax.lax.
_ACCURATE = "cbrt cos exp exp2 expm1 log log1p log2 logistic rsqrt sin sqrt tan tanh".split()


def _plain(path: str) -> Callable[..., Any]:
    def elementwise(w: Any, *operands: Any) -> Any:
        w.module.modules.add("lax")
        inputs = w.equation.inputs
        if len(inputs) == 2 and all(type(v) is Literal for v in inputs):  # one of them says the type of both
            operands = (w.module.values.scalar(inputs[0].value, inputs[0].aval.dtype, True), operands[1])
        return Call(path, operands)

    return elementwise


def _accurate(path: str) -> Callable[..., Any]:
    def elementwise(w: Any, x: Any, *, accuracy: Any = None) -> Any:
        w.module.modules.add("lax")
        if accuracy is not None:
            return Call(path, [x], [("accuracy", w.source(accuracy))])
        return Call(path, [x])

    return elementwise


for _name, _function in _PLAIN.items():
    if _name not in _ACCURATE and hasattr(jax.lax, _function):
        rule(_name)(_plain("lax." + _function))
for _name in _ACCURATE:
    if hasattr(jax.lax, _name):
        rule(_name)(_accurate("lax." + _name))


@rule("stop_gradient")
def stop_gradient(w: Any, x: Any) -> Any:
    """Of a number an array: without a trace JAX would give a number of Python's back."""
    return w.lax("stop_gradient", w.array(x) if type(w.equation.inputs[0]) is Literal else x)


@rule("mul")
def mul(w: Any, x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    if out_dtype is not None:
        return DECLINE
    w.module.modules.add("lax")
    return Call("lax.mul", (x, y))


@rule("integer_pow")
def integer_pow(w: Any, x: Any, *, y: int) -> Any:
    return w.lax("integer_pow", x, y)


@rule("round")
def round_(w: Any, x: Any, *, rounding_method: Any) -> Any:
    return w.lax("round", x, rounding_method)


@rule("conj")
def conj(w: Any, x: Any, *, input_dtype: Any) -> Any:
    # `lax.conj` of a real operand makes a complex first; only the complex case is one equation.
    if w.avals[0].dtype != input_dtype:
        return DECLINE
    return w.lax("conj", x)


@rule("select_n")
def select_n(w: Any, which: Any, *cases: Any) -> Any:
    return w.lax("select_n", which, *cases)


@rule("convert_element_type")
def convert_element_type(w: Any, x: Any, *, new_dtype: Any, weak_type: bool, sharding: Any) -> Any:
    aval = w.avals[0]
    if type(w.equation.inputs[0]) is not Value or w.module.is_numpy(x):
        return DECLINE  # the public function converts a constant right away
    # It also drops a conversion that changes nothing, and makes no weak type.
    if weak_type and sharding is None:
        w.module.helper("_weakly_typed")
        return w.call("_weakly_typed", x, w.module.values.dtype(new_dtype))
    if weak_type or (aval.dtype == new_dtype and not aval.weak_type):
        return DECLINE
    if sharding is not None:
        # `x.astype(...)` names the sharding that its operand has.
        return w.jnp("astype", x, w.module.values.dtype(new_dtype)) if sharding == aval.sharding else DECLINE
    return w.lax("convert_element_type", x, w.module.values.dtype(new_dtype))


@rule("bitcast_convert_type")
def bitcast_convert_type(w: Any, x: Any, *, new_dtype: Any) -> Any:
    return w.lax("bitcast_convert_type", x, w.module.values.dtype(new_dtype))


@rule("reduce_precision")
def reduce_precision(w: Any, x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    return w.lax("reduce_precision", x, exponent_bits, mantissa_bits)


@rule("optimization_barrier")
def optimization_barrier(w: Any, *operands: Any) -> Any:
    from untrace.python.tree import Tuple

    return w.lax("optimization_barrier", Tuple(operands))
