"""Equations that stand for what the author called of a function: `jax.vmap(f)(x)`, `jax.grad(f)(x)` and their like.

Their parameter `jaxpr` is the function; its first parameters are the values that it closes over (`signature.closed`).
"""

from __future__ import annotations

from collections.abc import Sequence

from untrace.ir.nodes import Atom, Equation, Library, Scan, Slot, While
from untrace.ir.types import CallSignature, Parameter

_CLOSED_OVER_NOTHING = frozenset({"checkpoint", "remat2", "remat", "custom_vjp_call", "custom_vjp_call_jaxpr"})
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


def passed_operands(equation: Equation) -> Sequence[Atom]:
    """The operands of a loop or a call that its statement passes, and no function inside it closes over."""
    callee = equation.callee
    if type(callee) is Scan or type(callee) is While:
        return equation.inputs[callee.consts :]
    if callee.name == "custom_jvp_call":
        return equation.inputs[equation.params["num_consts"] :]
    if is_call(equation):
        return [equation.inputs[i] for i in passed_places(equation)]
    return equation.inputs if callee.name in _CLOSED_OVER_NOTHING else ()


def repeated_slots(callee: Library) -> list[int]:
    """Inputs that stand in a call more than once."""
    if not callee.kwargs and all([type(a) is Slot for a in callee.args]):  # as most are
        places = [a.index for a in callee.args]
        if len(set(places)) == len(places):
            return []
    counts: dict[int, int] = {}
    stack: list[Parameter] = [*callee.args, *callee.kwargs.values()]
    while stack:
        value = stack.pop()
        if type(value) is Slot:
            counts[value.index] = counts.get(value.index, 0) + 1
        elif type(value) is tuple or type(value) is list:
            stack.extend(value)
        elif type(value) is slice:
            stack += [value.start, value.stop, value.step]
    return [index for index, count in counts.items() if count > 1]
