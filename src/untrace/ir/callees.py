"""The callee of an equation and what it gives, where the code around knows which kind that is, and that it is taken."""

from __future__ import annotations

from typing import TypeVar

from untrace.ir.nodes import Equation, Value

Kind = TypeVar("Kind")


def callee_of(equation: Equation, kind: type[Kind] | tuple[type[Kind], ...]) -> Kind:
    """The callee, which is of that kind (or of one of several). Raises TypeError where it is of another."""
    callee = equation.callee
    if not isinstance(callee, kind):
        raise TypeError(f"the callee {callee.name} is not of the kind that was expected: {kind}")
    return callee


def output_of(equation: Equation, place: int = 0) -> Value:
    """What the equation gives there, which something takes. Raises TypeError where nothing does."""
    output = equation.outputs[place]
    if output is None:
        raise TypeError(f"nothing takes output {place} of {equation.callee.name}")
    return output
