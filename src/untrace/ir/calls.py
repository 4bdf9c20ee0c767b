"""Equations that stand for what the author called of a function: `jax.vmap(f)(x)`, `jax.grad(f)(x)` and their like.

Their parameter `jaxpr` is the function; its first parameters are the values that it closes over (`signature.closed`).
"""

from __future__ import annotations

from untrace.ir.nodes import Equation
from untrace.ir.types import CallSignature

_DERIVATIVES = frozenset("value_and_grad jvp vjp linearize linear_transpose jacfwd jacrev hessian called".split())


def is_call(equation: Equation) -> bool:
    return equation.callee.name == "vmap" or is_derivative(equation)


def is_derivative(equation: Equation) -> bool:
    return equation.callee.name in _DERIVATIVES and "derivative" in equation.params


def is_named_where_written(equation: Equation) -> bool:
    """Whether the words for what it gives are known where it is written: its outputs are parts of several results."""
    return equation.callee.name in ("pullback", "pushforward") or (
        is_derivative(equation) and equation.callee.name not in ("jacfwd", "jacrev", "hessian", "called")
    )


def signature_of(equation: Equation) -> CallSignature:
    """What the author's function takes and gives."""
    params = equation.params
    return params["signature"] if equation.callee.name == "vmap" else params["derivative"].signature


def passed_places(equation: Equation) -> list[int]:
    """The operands that the call passes, where the function does not close over them instead."""
    signature = signature_of(equation)
    every = range(len(equation.inputs))
    if equation.callee.name != "vmap":
        return list(every[signature.closed :])
    alone = signature.stands_alone(equation.inputs)
    return [i for i in every if alone or equation.params["in_axes"][i] is not None]
