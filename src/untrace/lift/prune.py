"""Dead equations taken out: those without an effect whose results nothing needs."""

from __future__ import annotations

from untrace.ir.nodes import Equation, Function, Program, walk_functions


def prune(program: Program) -> Program:
    for function in walk_functions(program.entry):
        prune_function(function)
    return program


def prune_function(function: Function) -> None:
    live = {r for r in function.results}
    kept: list[Equation] = []
    for equation in reversed(function.equations):
        if not live.isdisjoint(equation.outputs) or equation.effects:
            live.update(equation.inputs)
            kept.append(equation)
    if len(kept) < len(function.equations):
        kept.reverse()
        function.equations = kept
