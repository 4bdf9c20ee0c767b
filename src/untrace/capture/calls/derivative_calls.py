"""Equations that stand for calls of derivatives which the author made: their primitives and parameters.

`differentiated` makes them, `unfolding` takes them out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core

from untrace import jax_compat
from untrace.ir.signatures import Derivative
from untrace.jaxprs.expand.expand import OURS


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Later:
    """The parameter of one call of a pullback, or of a linearized function. avals: of its results."""

    derivative: Derivative
    avals: tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Known:
    """Gradients that are there already, of what has results of these types."""

    gradients: Sequence[Any]
    avals: Sequence[Any]

    def take(self) -> Sequence[Any]:
        """The gradients, once: nothing keeps them alive afterwards."""
        gradients, self.gradients = self.gradients, ()
        return gradients


class _Call(jax.extend.core.Primitive):
    """A primitive whose equations say where the user called, whatever JAX is about to do meanwhile."""

    def bind(self, *args: Any, **params: Any) -> Any:
        with jax_compat.as_called():
            return super().bind(*args, **params)


def _primitive(name: str) -> Any:
    primitive = _Call(name)
    primitive.multiple_results = True
    return primitive


# Their parameters: `jaxpr`, the function, whose first inputs are what it closes over; `derivative`; `avals`.
VALUE_AND_GRAD = _primitive("value_and_grad")  # inputs -> the result, and what gradients are not of integers
JVP = _primitive("jvp")  # inputs, tangents -> the result, tangents
VJP = _primitive("vjp")  # inputs -> the result, and a token that stands for the pullback
LINEARIZE = _primitive("linearize")  # the same with a function of tangents
LINEAR_TRANSPOSE = _primitive("linear_transpose")  # inputs, where they are arrays and not types alone -> a token
# inputs -> the leaves of the Jacobian, and what comes beside it
JACOBIANS = {name: _primitive(name) for name in ("jacfwd", "jacrev", "hessian")}
# Their parameter: `later`.
PULLBACK = _primitive("pullback")  # the token, cotangents -> cotangents
PUSHFORWARD = _primitive("pushforward")  # the token, tangents -> tangents
GRADIENTS = _primitive("gradients")  # gives, transposed, the gradients that are there already; in no jaxpr of ours
CALLED = _primitive("called")  # the function itself: inputs -> the result
WITH_TOKEN = {p.name: p for p in (VJP, LINEARIZE, LINEAR_TRANSPOSE)}
CALLS = {p.name: p for p in (VALUE_AND_GRAD, JVP, *WITH_TOKEN.values(), *JACOBIANS.values())}
LATER = {p.name: p for p in (PULLBACK, PUSHFORWARD)}
TOKEN = jax.ShapeDtypeStruct((), jax.dtypes.float0)

OURS.update(CALLS.values(), LATER.values(), (CALLED,))
for _p in CALLS.values():
    _p.def_effectful_abstract_eval(lambda *_, jaxpr, derivative, avals: (list(avals), _effects(jaxpr)))
for _p in (VALUE_AND_GRAD, JVP, *JACOBIANS.values()):
    # Where JAX transforms what a call is part of, the call is not there: as without us.
    jax_compat.register_as_function(_p, lambda *xs, jaxpr, derivative, avals: _plainly(xs, derivative))
for _p in LATER.values():
    _p.def_abstract_eval(lambda *_, later: list(later.avals))
GRADIENTS.def_abstract_eval(lambda *_, known: list(known.avals))
jax_compat.register_transpose(GRADIENTS, lambda first, cotangents, known: known.take())


def _plainly(inputs: Sequence[Any], derivative: Derivative) -> list[Any]:
    assert derivative.body is not None
    return jax.extend.core.jaxpr_as_fun(derivative.body.plain)(*inputs)


def _effects(closed: Any) -> Any:
    return jax_compat.open_jaxpr(closed)[0].effects
