"""Derivatives that the author called, where the capture kept the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Function
from untrace.ir.signatures import Derivative, DerivativeSignature
from untrace.ir.structured import Pullback, derivative_in
from untrace.module.rules import WRITTEN, Rule
from untrace.python.tree import Expr, Text
from untrace.targets.jax import differentiated
from untrace.targets.jax.rules.table import rule


def _call(write: Callable[[Any, Sequence[Expr], Function, Derivative], None]) -> Rule:
    def written(w: Any, *operands: Any, jaxpr: Function) -> Any:
        derivative = derivative_in(w.equation.callee)
        assert derivative is not None
        write(w, [_of_jax(w, x) for x in operands], jaxpr, derivative)
        return WRITTEN

    return written


def _of_jax(w: Any, operand: Expr) -> Expr:
    """`jnp.float32(0.5)` for a number of NumPy's: what the function computes of that alone would not be traced."""
    number = operand.flat() if type(operand) is Text else ""
    if not number.startswith("np.float"):
        return operand
    w.module.modules.add("jnp")
    return Text(f"j{number}")


def _later(write: Callable[[Any, Sequence[Expr], DerivativeSignature], None]) -> Rule:
    def written(w: Any, *operands: Any) -> Any:
        write(w, operands, callee_of(w.equation, Pullback).derivative.signature)
        return WRITTEN

    return written


rule("value_and_grad")(_call(differentiated.value_and_grad))
rule("jvp")(_call(differentiated.jvp))
rule("jacfwd", "jacrev", "hessian")(_call(differentiated.jacobian))
rule("vjp", "linearize")(_call(differentiated.with_pullback))
rule("linear_transpose")(_call(differentiated.linear_transpose))
rule("called")(_call(differentiated.called))
rule("pullback")(_later(differentiated.pullback))
rule("pushforward")(_later(differentiated.pushforward))
