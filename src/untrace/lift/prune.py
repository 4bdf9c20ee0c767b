"""Dead equations taken out: those without an effect whose results nothing needs.

But one leaf of a tree that the author maps a function over stays with the others: nothing may read the time of a state in
the middle of a step, and the author's map goes over it all the same.
"""

from __future__ import annotations

from untrace.ir.nodes import Equation, Function, Program, Value, walk_functions
from untrace.lift.naming.names import provenance_of
from untrace.provenance.sites import Provenance


def prune(program: Program, leaves: bool = False) -> Program:
    """leaves: whether those of the author's maps stay."""
    provenance = provenance_of(program) if leaves else None
    for function in walk_functions(program.entry):
        prune_function(function, provenance)
    return program


def prune_function(function: Function, provenance: Provenance | None = None) -> None:
    kept = _needed(function, set())
    if len(kept) == len(function.equations):
        return
    if provenance is not None:
        dead = {e.origin: e for e in set(function.equations).difference(kept)}
        leaves = {dead[origin] for origin in provenance.leaves_beside([e.origin for e in kept], dead)}
        kept = [_named(e) if e in leaves else e for e in _needed(function, leaves)]
    function.equations = kept


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
