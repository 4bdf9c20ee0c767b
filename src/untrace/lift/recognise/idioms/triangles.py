"""Indices of a triangle: `i, j = jnp.triu_indices(n, k=1)`, which JAX searches for in a matrix of ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.ir.callees import output_of
from untrace.ir.nodes import Equation, Literal
from untrace.lift.recognise.engine import Guess, Matcher, idiom

_MOST = 64  # equations that are looked at between the matrix and the indices
_CALLS = ("jit", "pjit")


@idiom("jit", "pjit", "call_hi_primitive")
def _triangle(m: Matcher, equation: Equation) -> Iterator[Guess]:
    if equation.callee.name == "call_hi_primitive":
        anchors = [equation] if jax_compat.primitive_label(equation.origin) == "nonzero" else []
    else:
        anchors = _remainders(m, equation)
    made = _matrix(m, equation) if anchors else None
    if made is None:
        return
    closed = made.origin.params["jaxpr"]
    added = [e for e in jax_compat.open_jaxpr(closed)[0].eqns if e.primitive.name == "add"]
    numbers = [int(np.asarray(v.val)) for e in added for v in e.invars if type(v) is jax_compat.LITERAL_TYPE]
    name = made.origin.params["name"]
    k = (numbers[0] if numbers else 0) + (name == "triu")
    rows, columns = output_of(made).aval.shape
    options: dict[str, Any] = {"k": k} if k else {}
    if columns != rows:
        options["m"] = columns
    yield Guess(f"jnp.{name}_indices", (rows,), options, anchors=anchors)


def _remainders(m: Matcher, equation: Equation) -> list[Equation]:
    """The equations that make rows and columns of places in a flat matrix, of which `equation` is the last."""
    is_remainder = _is_call(equation, "remainder") and equation.inputs
    divided = m.producer(equation.inputs[0], *_CALLS) if is_remainder else None
    if divided is None or not _is_call(divided, "floor_divide"):
        return []
    others = [e for e in m.users(divided.inputs[0]) if _is_call(e, "floor_divide")]
    found = [u for e in others for u in m.users(e.outputs[0]) if _is_call(u, "remainder")]
    return sorted(found, key=m.position) if len(found) == 2 and equation in found else []


def _is_call(equation: Equation, name: str) -> bool:
    return equation.callee.name in _CALLS and equation.origin.params["name"] == name


def _matrix(m: Matcher, equation: Equation) -> Equation | None:
    """The call of `jnp.triu` or `jnp.tril` that what goes into `equation` was computed from."""
    todo = list(equation.inputs)
    for _ in range(_MOST):
        if not todo:
            return None
        atom = todo.pop(0)
        made = None if type(atom) is Literal else m.made.get(atom)
        if made is None:
            continue
        if _is_call(made, "triu") or _is_call(made, "tril"):
            return made if len(output_of(made).aval.shape) == 2 else None
        todo.extend(made.inputs)
    return None
