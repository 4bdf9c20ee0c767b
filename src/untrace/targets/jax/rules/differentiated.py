"""Derivatives that the author called, where the capture kept the calls."""

from __future__ import annotations

from typing import Any

from untrace.ir.nodes import Function
from untrace.module.rules import WRITTEN
from untrace.targets.jax import differentiated
from untrace.targets.jax.rules.table import rule


@rule("value_and_grad")
def value_and_grad(w: Any, *operands: Any, jaxpr: Function, derivative: Any, avals: Any) -> Any:
    differentiated.value_and_grad(w, operands, jaxpr, derivative.signature)
    return WRITTEN


@rule("jvp")
def jvp(w: Any, *operands: Any, jaxpr: Function, derivative: Any, avals: Any) -> Any:
    differentiated.jvp(w, operands, jaxpr, derivative.signature)
    return WRITTEN


@rule("jacfwd", "jacrev", "hessian")
def jacobian(w: Any, *operands: Any, jaxpr: Function, derivative: Any, avals: Any) -> Any:
    differentiated.jacobian(w, operands, jaxpr, derivative)
    return WRITTEN


@rule("vjp", "linearize")
def with_pullback(w: Any, *operands: Any, jaxpr: Function, derivative: Any, avals: Any) -> Any:
    differentiated.with_pullback(w, operands, jaxpr, derivative.signature)
    return WRITTEN


@rule("linear_transpose")
def linear_transpose(w: Any, *operands: Any, jaxpr: Function, derivative: Any, avals: Any) -> Any:
    differentiated.linear_transpose(w, operands, jaxpr, derivative.signature)
    return WRITTEN


@rule("pullback")
def pullback(w: Any, *operands: Any, later: Any) -> Any:
    differentiated.pullback(w, operands, later.derivative.signature)
    return WRITTEN


@rule("pushforward")
def pushforward(w: Any, *operands: Any, later: Any) -> Any:
    differentiated.pushforward(w, operands, later.derivative.signature)
    return WRITTEN


@rule("called")
def called(w: Any, *operands: Any, jaxpr: Function, derivative: Any, avals: Any) -> Any:
    differentiated.called(w, operands, jaxpr, derivative.signature)
    return WRITTEN
