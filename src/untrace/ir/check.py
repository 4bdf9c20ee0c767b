"""The invariant check of the IR: run before the first pass and after every pass (in tests and under a switch)."""

from __future__ import annotations

from untrace._errors import UntraceError
from untrace.ir.nodes import Constant, Equation, Function, Literal, Local, Value, walk_functions


class MalformedProgram(UntraceError):
    """An internal inconsistency: a pass broke the program. The message names the function and the equation."""


def check(entry: Function) -> None:
    """Raises MalformedProgram unless every variable is bound once, before its uses, in its own function."""
    for function in walk_functions(entry):
        bound: set[Value] = set()
        for parameter in function.params:
            _bind(parameter, bound, function, None)
        for equation in function.equations:
            for atom in equation.inputs:
                _use(atom, bound, function, equation)
            for output in equation.outputs:
                if output is not None:
                    _bind(output, bound, function, equation)
            if type(equation.callee) is Local:
                _fits(equation, equation.callee.body, function)
        for atom in function.results:
            _use(atom, bound, function, None)


def _fits(equation: Equation, body: Function, function: Function) -> None:
    """A call of a local function passes and takes what the function has, type by type."""
    pairs = [("arguments", equation.inputs, body.params), ("results", equation.outputs, body.results)]
    for what, outside, inside in pairs:
        if len(outside) != len(inside):
            raise MalformedProgram(
                f"{_place(function, equation)} has {len(outside)} {what} for {len(inside)} of {body.name!r}"
            )
        for a, b in zip(outside, inside, strict=True):
            if a is not None and (a.aval.shape, a.aval.dtype) != (b.aval.shape, b.aval.dtype):
                raise MalformedProgram(f"{_place(function, equation)} has {what} of other types than {body.name!r}")


def _bind(value: Value, bound: set[Value], function: Function, equation: Equation | None) -> None:
    if type(value) is not Value:
        raise MalformedProgram(f"{_place(function, equation)} binds a {type(value).__name__}, not a Value")
    if value in bound:
        raise MalformedProgram(f"{_place(function, equation)} binds a variable a second time")
    bound.add(value)


def _use(atom: object, bound: set[Value], function: Function, equation: Equation | None) -> None:
    if type(atom) in (Literal, Constant):
        return
    if type(atom) is not Value or atom not in bound:
        raise MalformedProgram(f"{_place(function, equation)} uses a variable that is not bound yet")


def _place(function: Function, equation: Equation | None) -> str:
    what = f"equation `{equation.callee.name}`" if equation else "the head or the result"
    return f"internal: {what} of function {function.name!r}"
