"""JAX's own jitted functions beside its primitive objects, for the style `exact`.

A primitive object of JAX 0.12 (`jnp.nonzero` is one) is lowered through functions of JAX, `jnp.where` among them. JAX
lowers a jitted function once, so a program that calls such a function as well shares it with the object. A copy of the
function's body would be lowered a second time: the same program, in another StableHLO module. So there, and only there,
the style `exact` calls JAX's function where it would write out what it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Equation, Literal, Program, walk_functions
from untrace.jaxprs.expand.hi_primitives import hi_primitive_call
from untrace.lift.recognise.engine import Guess, Lifter, Matcher
from untrace.lift.recognise.idioms.calls import named_call

_CALLS = ("jit", "pjit")


def call_shared_functions(program: Program) -> bool:
    """Calls the jitted functions of JAX that a primitive object of the program calls as well; whether there are any.

    In place. To be called where JAX knows what the program was traced to, for the object's functions must be the very
    same jaxprs.
    """
    functions = list(walk_functions(program.entry))
    objects = [e.origin for f in functions for e in f.equations if e.callee.name == "call_hi_primitive"]
    shared = {j: j for eqn in objects if hi_primitive_call(eqn) is not None for j in _called_by(eqn)}
    calls = [e for f in functions for e in f.equations if e.callee.name in _CALLS]
    if not any(e.origin.params["jaxpr"] in shared for e in calls):
        return False

    def shared_function(m: Matcher, equation: Equation) -> Iterator[Guess]:
        if equation.origin.params["jaxpr"] in shared:
            for guess in named_call(m, equation):
                if guess.path.startswith(("jnp.", "jax.")):  # no operator: NumPy would compute those of its arrays
                    yield Guess(guess.path, tuple([_strong(a) for a in guess.args]), guess.kwargs)

    Lifter(own=program.facts.own, only={name: [shared_function] for name in _CALLS}).lift(program)
    return True


def _strong(argument: Any) -> Any:
    """A number that is not weakly typed, with its type: in the place of a Python number."""
    if type(argument) is not Literal or argument.aval.weak_type:
        return argument
    return argument.aval.dtype.type(argument.value)


def _called_by(eqn: Any) -> list[Any]:
    """The jaxprs of the jitted functions that the lowering of a primitive object calls."""
    function = jax_compat.hi_primitive_function(jax_compat.hi_primitive(eqn))
    closed = jax_compat.trace_on_avals(function, [v.aval for v in eqn.invars], eqn.ctx)
    return [e.params["jaxpr"] for e in jax_compat.equations_in(closed) if e.primitive.name in _CALLS]
