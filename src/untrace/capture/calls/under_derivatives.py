"""Calls of derivatives inside a derivative that is written out: of what JAX differentiates there, they stay calls too.

`jax.grad(f)(x)` inside leaves `grads, pullback = jax.vjp(jax.grad(f), x)` in the forward part, and `pullback(d_grads)` in
the backward part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np

from untrace import jax_compat
from untrace.capture.calls.derivative_calls import (
    JACOBIANS,
    JVP,
    PUSHFORWARD,
    TOKEN,
    VALUE_AND_GRAD,
    VJP,
    WITH_TOKEN,
    Later,
)
from untrace.capture.calls.unfolding import body_of
from untrace.ir.signatures import Derivative, DerivativeSignature

_UNDER = jax.extend.core.Primitive("under")  # a call whose operands vary; in no jaxpr
_UNDER.multiple_results = True
_NAMES = {VALUE_AND_GRAD.name: "gradient", JVP.name: "tangent", **dict.fromkeys(JACOBIANS, "jacobian")}
_moves = jax_compat.is_continuous


def bound(primitive: Any, derivative: Derivative, body: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of an equation for a call: of `primitive`, or where JAX differentiates around it, of its `jax.vjp`."""
    made = body_of(primitive.name, body, derivative, [jax_compat.typeof(x) for x in inputs])
    avals = [v.aval for v in jax_compat.open_jaxpr(made.plain)[0].outvars]
    if primitive.name in WITH_TOKEN:
        avals = [*avals[: len(avals) - len(made.residuals)], jax.typeof(TOKEN)]
    params = {"jaxpr": body, "derivative": derivative, "avals": tuple(avals)}
    if not any(map(jax_compat.varies, inputs)):
        return primitive.bind(*inputs, **params)
    places, out = _shown_results(primitive, derivative, len(avals))
    found = _UNDER.bind(*inputs, primitive=primitive, params=params, places=places, out=out)
    results: list[Any] = [np.zeros(a.shape, a.dtype) for a in avals]  # for a value that the author does not get
    for place, result in zip(places, found, strict=True):
        results[place] = result
    return results


def _shown_results(primitive: Any, derivative: Derivative, count: int) -> tuple[list[int], Any]:
    """(which results of an equation the author gets, in his order; the tree of them)."""
    signature = derivative.signature
    every = list(range(count))
    if primitive.name in JACOBIANS:
        return every, (derivative.jacobian, signature.out[1]) if signature.has_aux else derivative.jacobian
    several = len(jax.tree.leaves(signature.out))
    if primitive is JVP and not signature.has_aux and count == 2 * several:
        return every, (signature.value, signature.value)
    gradients = signature.gradients if primitive is VALUE_AND_GRAD else None
    if gradients is None or count != several + len(jax.tree.leaves(gradients)):
        raise ValueError(f"a result of {primitive.name} has no tangent, or is no result of the author's")
    if signature.transform == "value_and_grad":
        return every, (signature.out, gradients)
    return [*every[several:], *every[1:several]], (gradients, signature.out[1]) if signature.has_aux else gradients


@dataclass(slots=True)
class _Split:
    """The operands of a call as those of a function of what varies. closed: places of what that closes over; args: its
    arguments, by the places of their leaves."""

    closed: list[int]
    args: list[tuple[Any, list[int]]]

    @property
    def moved(self) -> list[int]:
        return [p for _, places in self.args for p in places]


def _split(signature: DerivativeSignature, varying: Sequence[bool], avals: Sequence[Any]) -> _Split:
    args: list[tuple[Any, list[int]]] = []
    place = signature.closed
    for example in signature.args[0]:
        count = len(jax.tree.leaves(example))
        places = list(range(place, place + count))
        if any(varying[p] for p in places):
            args.append((example, places))
        place += count
    known = {p for _, places in args for p in places}
    args += [(avals[p], [p]) for p, v in enumerate(varying) if v and p not in known]
    known = {p for _, places in args for p in places}
    return _Split([p for p in range(len(varying)) if p not in known], args)


def _linearized(
    varying: Sequence[bool], *operands: Any, primitive: Any, params: dict[str, Any], places: list[int], out: Any
) -> tuple[jax_compat.Differentiated, list[int]]:
    avals = [jax_compat.typeof(x) for x in operands]
    split = _split(params["derivative"].signature, varying, avals)
    order = [*split.closed, *split.moved]

    def function(*given: Any) -> list[Any]:
        whole = dict(zip(order, given, strict=True))
        results = primitive.bind(*(whole[p] for p in range(len(order))), **params)
        return [results[p] for p in places]

    body = jax_compat.trace_on_avals(function, [avals[p] for p in order])
    paths = jax_compat.argument_names(params["jaxpr"]) or ()
    paths = [paths[p] if p < len(paths) else "" for p in order]
    body = jax_compat.with_names(body, "<unnamed>", paths, [f"result{i}" for i in range(len(places))])
    args = tuple([example for example, _ in split.args])
    names = tuple([path.partition("[")[0].partition(".")[0] for path in paths[len(split.closed) :]])
    name = _NAMES[primitive.name]
    signature = DerivativeSignature("vjp", (args, {}), out, len(split.closed), name, None, False, names, around=True)
    derivative = Derivative(signature)
    *outs, token = bound(VJP, derivative, body, [operands[p] for p in order])
    tangents = tuple([jax_compat.typeof(x) for x in outs if _moves(x)])
    moving = [p for p in split.moved if _moves(avals[p])]

    def pushed(residuals: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        return PUSHFORWARD.bind(*residuals, *given, later=Later(derivative, tangents))

    return jax_compat.Differentiated(outs, None, [token], pushed), moving


jax_compat.register_linearization(_UNDER, _linearized)
