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
from untrace.ir.nodes import Constant, Literal
from untrace.jaxprs.expand.expand import OURS


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """What a differentiated function takes and gives, and what is asked of it.

    args: `((args), {kwargs})` of abstract values, without those that it closes over; out: its whole result, `(value, aux)`
    where it `has_aux`. closed: how many values it closes over, which are the first parameters of its jaxpr. name: of its
    class, if it is an object that is called. argnums: places in `args`, one or several as they were given; None for all.
    """

    transform: str  # as in `jax_compat.DerivativeCall`
    args: tuple[tuple[Any, ...], dict[str, Any]]
    out: Any
    closed: int
    name: str
    argnums: int | tuple[int, ...] | None
    has_aux: bool
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # "holomorphic", "allow_int"
    around: bool = False  # whether it is the `vjp` of a call of the author's, who has no name but for the value

    def stands_alone(self, operands: Sequence[Any]) -> bool:
        """Whether the function can be one of the module, which knows the constants that it closes over."""
        return all(type(x) in (Constant, Literal) for x in operands[: self.closed])

    @property
    def places(self) -> tuple[int, ...]:
        """The arguments that are differentiated."""
        if self.argnums is None:
            return tuple(range(len(self.args[0])))
        several = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        return tuple([n % len(self.args[0]) for n in several])

    @property
    def value(self) -> Any:
        """What is differentiated of the result."""
        return self.out[0] if self.has_aux else self.out

    @property
    def gradients(self) -> Any:
        """Like the gradients that come back: one argument, or a tuple of them."""
        args = self.args[0]
        return args[self.places[0]] if isinstance(self.argnums, int) else tuple([args[p] for p in self.places])

    def split(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return jax.tree.unflatten(jax.tree.structure(self.args), list(leaves))


@dataclass(slots=True)
class Body:
    """What a call is without the call, of one very jaxpr: `plain`, and for a call whose pullback comes later the tree of it,
    whose leaves are the last results of `plain`."""

    jaxpr: Any
    plain: Any
    later: Any = None
    residuals: Sequence[Any] = ()  # what the pullback holds: those results of `plain`


@dataclass(eq=False, slots=True, repr=False)
class Derivative:
    """The parameter that all equations of one call share. `body`: what was made of the jaxpr that they had last. `jacobian`:
    what comes back of one, with abstract values. `code`: of the author's function."""

    signature: Signature
    body: Body | None = None
    jacobian: Any = None
    code: Any = None


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
