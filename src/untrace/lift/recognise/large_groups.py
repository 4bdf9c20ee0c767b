"""Which equations a library call will be recognised in, before a program is simplified: in another form it would not be."""

from __future__ import annotations

from typing import Any

from jax.extend.core import JaxprEqn

from untrace.ir.nodes import Library, Program, walk_functions
from untrace.lift.adjoint.pullbacks import find_pullbacks, is_derivative
from untrace.lift.adjoint.pullbacks_once import repeated
from untrace.lift.naming.names import provenance_of
from untrace.lift.recognise.associative import find_associative_scans
from untrace.lift.recognise.engine import LARGE_BODY, Lifter
from untrace.lift.recognise.solvers import find_solvers


def recognised(program: Program) -> tuple[set[JaxprEqn], dict[JaxprEqn, Any], bool]:
    """Ids of the jaxpr equations that are part of a large idiom (`logsumexp`, an index) of a program, which is lifted, and
    of calls of which another body is one that would be recognised, with that; whether there are equal calls of `jax.vjp`.

    What simplifies the program leaves them as they are: in another form they would not be recognised.
    """
    found: set[JaxprEqn] = set()
    find_associative_scans(program)
    find_solvers(program)
    instead: dict[JaxprEqn, Any] = {}
    find_pullbacks(program, instead=instead)
    repeats = bool(repeated(program))
    Lifter(own=program.facts.own, provenance=provenance_of(program), large=True).lift(program)
    for function in walk_functions(program.entry):
        for equation in function.equations:
            callee = equation.callee
            if type(callee) is not Library:
                continue
            if len(callee.body.equations) >= LARGE_BODY or callee.function is not None or is_derivative(callee):
                found.update([e.origin for e in callee.body.equations if e.origin is not None])
    return found, instead, repeats
