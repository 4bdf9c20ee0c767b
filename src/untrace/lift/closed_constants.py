"""Arrays that a loop's functions or the branches of a `cond` close over are known inside by themselves.

A jaxpr hands such an array in as an operand, so that inside it is one variable among others: a function of the user's
that reads it would take it as an argument, and no idiom sees its values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from untrace.ir.nodes import (
    Cond,
    Constant,
    Equation,
    Function,
    Program,
    Scan,
    Structured,
    Value,
    While,
    functions_called,
    walk_functions,
)
from untrace.ir.structured import Map, derivative_in


def close_over_constants(program: Program) -> Program:
    """Replaces the parameters that stand for arrays of the program by those arrays; the parameters stay, unread.

    The functions' facts then say which are `known`.
    """
    functions = walk_functions(program.entry)
    equations = [e for function in functions for e in function.equations]
    if not any(isinstance(e.callee, Structured) for e in equations):
        return program
    calls = Counter([f for e in equations if e.may_hold_functions for f in functions_called(e)])
    changed = True
    while changed:  # what one closes over another inside it may as well
        for function in reversed(functions):  # callers first: what they pass on is an array by then
            for equation in [e for e in function.equations if isinstance(e.callee, Structured)]:
                for inner, operands in closed_over(equation):
                    if calls[inner] == 1:
                        _substitute(inner, _known(inner, operands))
        changed = _close_called([e for f in functions for e in f.equations])
    return program


def _close_called(equations: Sequence[Equation]) -> bool:
    """The same for functions that are differentiated or mapped, which may be called in several places, with the same arrays
    in all. Whether there were any."""
    found: dict[Function, tuple[Function, dict[Value, Constant]]] = {}
    for equation in equations:
        callee = equation.callee
        called = callee if type(callee) is Map else derivative_in(callee)
        if called is None:
            continue
        (inner,) = functions_called(equation)
        known = _known(inner, equation.inputs[: called.signature.closed])
        _, before = found.get(inner, (inner, known))
        found[inner] = inner, {p: c for p, c in before.items() if known.get(p) is c}
    some = [pair for pair in found.values() if any(a in pair[1] for e in pair[0].equations for a in e.inputs)]
    for inner, known in some:
        _substitute(inner, known)
    return bool(some)


def closed_over(equation: Equation) -> Iterator[tuple[Function, Any]]:
    """The functions of an equation that Python writes as closures, with the operands for their first parameters.

    A loop whose elements stop each at a time of its own, as batching makes it, has no such form: it is bound with its operands.
    """
    callee, inputs = equation.callee, equation.inputs
    if type(callee) is Scan:
        yield callee.body, inputs[: callee.consts]
    elif type(callee) is While and not np.shape(callee.condition.results[0].aval):
        yield callee.condition, inputs[: callee.condition_consts]
        yield callee.body, inputs[callee.condition_consts : callee.consts]
    elif type(callee) is Cond:
        for branch in callee.branches:
            yield branch, inputs[1:]


def _known(function: Function, operands: Any) -> dict[Value, Constant]:
    times = Counter(operands)
    results = {r for r in function.results}
    return {
        param: atom
        for param, atom in zip(function.params, operands, strict=False)
        # A number would become part of the equations, and an array that comes twice come once.
        if type(atom) is Constant and np.ndim(atom.value) and times[atom] == 1 and param not in results
    }


def _substitute(function: Function, known: dict[Value, Constant]) -> None:
    if known:
        function.facts = replace(function.facts, known=frozenset(known.values()))
        function.equations = [
            Equation(
                e.callee, [known.get(a, a) if type(a) is Value else a for a in e.inputs], e.outputs, e.params, e.origin
            )
            if any(type(a) is Value and a in known for a in e.inputs)
            else e
            for e in function.equations
        ]
