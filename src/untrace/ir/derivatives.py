"""What a call of a derivative computes: JAX's transformation of the function, between the leaves of what goes in and comes out.

`capture.calls` traces it, to see whether a call gives the program back; `evaluate` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax

from untrace import jax_compat
from untrace.ir.signatures import DerivativeSignature, Flat
from untrace.ir.types import Data, PyTree

JACOBIANS = ("jacfwd", "jacrev", "hessian")
WITH_TOKEN = ("vjp", "linearize", "linear_transpose")

# (the leaves of what comes back, what is given to be called later)
Given: TypeAlias = tuple[Sequence[Data], PyTree]

_moves, _no_tangent = jax_compat.is_continuous, jax_compat.no_tangent


def call(name: str, function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    """What the derivative `name` of a function is on `inputs`."""
    return _TAKEN[name](function, signature, inputs)


def jacobian(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> tuple[PyTree, PyTree]:
    """A whole Jacobian, and what comes beside it."""
    called, args, kwargs = _function(function, signature, inputs)

    def whole(*args: PyTree, **kwargs: PyTree) -> PyTree:
        out = called(*args, **kwargs)
        value, aux = out if signature.has_aux else (out, None)
        value = jax.tree.unflatten(jax.tree.structure(signature.value), value)
        return (value, aux) if signature.has_aux else value

    options = dict.fromkeys(signature.options, True)
    transform = getattr(jax, signature.transform)
    found = transform(whole, signature.argnums, has_aux=signature.has_aux, **options)(*args, **kwargs)
    return found if signature.has_aux else (found, None)


def call_later(
    name: str, function: Callable[..., PyTree], signature: DerivativeSignature, inputs: Sequence[Data]
) -> Sequence[Data]:
    """The leaves of what a pullback gives of cotangents, or a linearized function (`name` is "pushforward") of tangents."""
    given = iter(inputs)
    if name == "pullback":
        outs = jax.tree.leaves(signature.value)
        cotangents = [next(given) if _moves(x) else _no_tangent(x) for x in outs]
        return list(filter(_moves, jax.tree.leaves(function(cotangents))))
    leaves = jax.tree.leaves(signature.args[0])
    tangents = [next(given) if _moves(x) else _no_tangent(x) for x in leaves]
    moved = function(*jax.tree.unflatten(jax.tree.structure(signature.args[0]), tangents))
    return list(filter(_moves, jax.tree.leaves(moved)))


def _function(
    function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]
) -> tuple[Callable[..., PyTree], PyTree, PyTree]:
    """(the author's function, its arguments) over a flat one: it gives leaves of what is differentiated, and of the rest."""
    closed = list(inputs[: signature.closed])
    count = len(jax.tree.leaves(signature.args))
    args, kwargs = signature.split(inputs[signature.closed : signature.closed + count])
    several = len(jax.tree.leaves(signature.value))

    def called(*args: PyTree, **kwargs: PyTree) -> PyTree:
        outs = function(*closed, *jax.tree.leaves((args, kwargs)))
        return (outs[:several], outs[several:]) if signature.has_aux else outs

    return called, args, kwargs


def _value_and_grad(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    called, args, kwargs = _function(function, signature, inputs)

    def scalar(*args: PyTree, **kwargs: PyTree) -> PyTree:
        out = called(*args, **kwargs)
        return (out[0][0], out[1]) if signature.has_aux else out[0]

    options: dict[str, Data] = dict.fromkeys(signature.options, True)
    argnums = signature.argnums
    assert argnums is not None  # of a gradient some are named
    both = jax.value_and_grad(scalar, argnums, has_aux=signature.has_aux, **options)
    value, gradients = both(*args, **kwargs)
    return [*jax.tree.leaves(value), *filter(_moves, jax.tree.leaves(gradients))], None


def _jvp(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    called, args, _ = _function(function, signature, inputs)
    leaves = jax.tree.leaves(args)
    given = iter(inputs[len(inputs) - sum(map(_moves, leaves)) :])
    tangents = [next(given) if _moves(x) else _no_tangent(x) for x in leaves]
    whole = jax.tree.unflatten(jax.tree.structure(args), tangents)
    value, pushed, *aux = jax.jvp(called, args, whole, has_aux=signature.has_aux)
    return [*jax.tree.leaves((value, *aux)), *filter(_moves, jax.tree.leaves(pushed))], None


def _jacobian(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    return jax.tree.leaves(jacobian(function, signature, inputs)), None


def _vjp(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    called, args, _ = _function(function, signature, inputs)
    value, pullback, *aux = jax.vjp(called, *args, has_aux=signature.has_aux)
    return jax.tree.leaves((value, *aux)), pullback


def _linearize(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    called, args, _ = _function(function, signature, inputs)
    value, pushed, *aux = jax.linearize(called, *args, has_aux=signature.has_aux)
    return jax.tree.leaves((value, *aux)), pushed


def _linear_transpose(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    types = jax.tree.leaves(signature.args)
    called, args, _ = _function(function, signature, [*inputs, *types] if len(inputs) == signature.closed else inputs)
    return [], jax.linear_transpose(called, *args)


def _called(function: Flat, signature: DerivativeSignature, inputs: Sequence[Data]) -> Given:
    return function(*inputs), None


_TAKEN: dict[str, Callable[[Flat, DerivativeSignature, Sequence[Data]], Given]] = {
    "value_and_grad": _value_and_grad, "jvp": _jvp, "vjp": _vjp, "linearize": _linearize, "called": _called,
    "linear_transpose": _linear_transpose, **dict.fromkeys(JACOBIANS, _jacobian),
}  # fmt: skip
