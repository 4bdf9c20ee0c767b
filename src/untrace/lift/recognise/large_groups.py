"""Which equations a library call will be recognised in, before a program is simplified: in another form it would not be."""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Equation, Function, Library, Literal, Primitive, Program, Slot, Value, walk_functions
from untrace.lift.adjoint.pullbacks import find_pullbacks, is_derivative
from untrace.lift.adjoint.pullbacks_once import repeated
from untrace.lift.naming.names import provenance_of
from untrace.lift.recognise.associative import find_associative_scans
from untrace.lift.recognise.engine import Lifter
from untrace.lift.recognise.solvers import find_solvers
from untrace.lift.rewrite.simplify import PUBLIC_CALLS
from untrace.provenance.sites import Provenance


def is_public_call(eqn: Any, provenance: Provenance | None = None) -> bool:
    """Whether a jaxpr's equation is, as it stands, a call of a public function that an idiom knows."""
    inputs = [Literal(v.val, v.aval) if type(v) is jax_compat.LITERAL_TYPE else Value(v.aval) for v in eqn.invars]
    outputs = [None if type(v) is jax_compat.DROP_TYPE else Value(v.aval) for v in eqn.outvars]
    params = [v for v in inputs if type(v) is Value]
    equation = Equation(Primitive(eqn.primitive), inputs, outputs, eqn.params, eqn)
    function = Function("call", params, [equation], [o for o in outputs if o is not None])
    Lifter(provenance=provenance).lift_function(function)
    callee = function.equations[0].callee
    if type(callee) is not Library:
        return False
    return not _has_typed_number(callee) or len(jax_compat.open_jaxpr(eqn.params["jaxpr"])[0].eqns) > _LARGE


def _has_typed_number(callee: Library) -> bool:
    """Whether a number among arrays has a type of its own, as no author writes it: another form may do without."""
    kinds = {type(a) for a in callee.args}
    return any(issubclass(k, np.generic) for k in kinds) and any(type(a) is Slot for a in callee.args[1:])


_LARGE = 3


def recognised(program: Program) -> tuple[set[int], dict[int, Any], bool]:
    """Ids of the jaxpr equations that are part of a large idiom (`logsumexp`, an index) of a program, which is lifted, and
    of calls of which another body is one that would be recognised, with that; whether there are equal calls of `jax.vjp`.

    What simplifies the program leaves them as they are: in another form they would not be recognised.
    """
    found: set[int] = set()
    find_associative_scans(program)
    find_solvers(program)
    instead: dict[int, Any] = {}
    find_pullbacks(program, instead=instead)
    repeats = bool(repeated(program))
    Lifter(own=program.facts.own, provenance=provenance_of(program), large=True).lift(program)
    for function in walk_functions(program.entry):
        for equation in function.equations:
            callee = equation.callee
            if type(callee) is not Library:
                continue
            if len(callee.body.equations) >= _LARGE or callee.function is not None or is_derivative(callee):
                found.update([id(e.origin) for e in callee.body.equations if e.origin is not None])
    return found, instead, repeats


PUBLIC_CALLS.append(is_public_call)
