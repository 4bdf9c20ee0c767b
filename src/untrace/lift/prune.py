"""Dead equations taken out: those without an effect whose results nothing needs.

But one leaf of a tree that the author maps a function over stays with the others: nothing may read the time of a state in
the middle of a step, and the author's map goes over it all the same. And what a function of his gives in one call it gives
in another where nobody reads it.
"""

from __future__ import annotations

from untrace.ir.nodes import Equation, Function, Program, Value, walk_functions
from untrace.lift.naming.names import provenance_of
from untrace.provenance.beside import beside


def prune(program: Program, leaves: bool = False) -> Program:
    """leaves: whether what stands `beside` others of the program stays."""
    every = walk_functions(program.entry)
    needed = {function: _needed(function, set()) for function in every}
    dead = {
        e.origin: e
        for f, kept in needed.items()
        if len(kept) < len(f.equations)
        for e in set(f.equations).difference(kept)
    }
    stay: set[Equation] = set()
    if leaves and dead:
        alive = [e.origin for kept in needed.values() for e in kept]
        stay = {dead[origin] for origin in beside(provenance_of(program), alive, dead)}
    for function, kept in needed.items():
        function.equations = [_named(e) if e in stay else e for e in _needed(function, stay)] if stay else kept
    return program


def _needed(function: Function, anyway: set[Equation]) -> list[Equation]:
    """The equations that results need, those with effects, and `anyway`, with what these need."""
    live = set(function.results)
    kept = []
    for equation in reversed(function.equations):
        if equation in anyway or not live.isdisjoint(equation.outputs) or equation.effects:
            live.update(equation.inputs)
            kept.append(equation)
    return kept[::-1]


def _named(equation: Equation) -> Equation:
    """The equation with values for all that it gives: JAX drops those of a dead one."""
    if equation.origin is None or None not in equation.outputs:
        return equation
    outputs = [
        Value(v.aval) if o is None else o for o, v in zip(equation.outputs, equation.origin.outvars, strict=True)
    ]
    return Equation(equation.callee, equation.inputs, outputs, equation.params, equation.origin)
