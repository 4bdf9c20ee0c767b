"""Which equations of a function its results need."""

from __future__ import annotations

from collections.abc import Sequence

from untrace.ir.nodes import Atom, Equation, Function, Value


def needed_for(function: Function, results: Sequence[Atom], effects: bool = False) -> list[Equation]:
    """The equations that some results need, in order. effects: also those that do something, and what these need."""
    wanted = {r for r in results if type(r) is Value}
    found = []
    for equation in reversed(function.equations):
        if effects and equation.effects or any(o in wanted for o in equation.outputs if o is not None):
            found.append(equation)
            wanted.update(a for a in equation.inputs if type(a) is Value)
    return found[::-1]


def params_read(function: Function, results: Sequence[Atom]) -> set[Value]:
    """The parameters that some results need."""
    read = {a for e in needed_for(function, results) for a in e.inputs if type(a) is Value}
    return (read | {r for r in results if type(r) is Value}) & set(function.params)
