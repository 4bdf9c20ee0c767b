"""Which arguments that are Python numbers may stay what they are, where a written function runs without tracing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from untrace import jax_compat
from untrace.ir.nodes import Equation, Function, Library, Local, Value

# Beside an array, a Python number means the same as a weakly typed array.
_ARITHMETIC = frozenset("add sub mul truediv pow lt le gt ge eq ne".split())


def needs_array(function: Function, value: Value) -> bool:
    """Whether something in `function` would compute in Python's own numbers with `value`, or call a method of it."""
    if any(r is value for r in function.results):
        return True
    return any(not _takes_numbers(e, value) for e in function.equations if any(a is value for a in e.inputs))


def _takes_numbers(equation: Equation, value: Value) -> bool:
    callee = equation.callee
    if type(callee) is Library:
        kind, _, name = callee.name.partition(".")
        if kind == "operator":
            return name in _ARITHMETIC and any(a is not value and _takes_its_type(a, value) for a in equation.inputs)
        return kind in ("jnp", "jax", "vmap")
    if type(callee) is Local:
        return not any(needs_array(callee.body, p) for p in _inside(equation, callee.body, len(equation.inputs), value))
    body = equation.params.get("jaxpr")
    if callee.name == "scan" and type(body) is Function and equation.origin is not None:
        consts, _ = jax_compat.scan_counts(equation.origin)
        if not any(a is value for a in equation.inputs[consts:]):
            return not any(needs_array(body, p) for p in _inside(equation, body, consts, value))
    return False


def _inside(equation: Equation, body: Function, count: int, value: Value) -> list[Value]:
    return [p for a, p in zip(equation.inputs[:count], body.params[:count], strict=True) if a is value]


def _takes_its_type(atom: Any, value: Value) -> bool:
    """Whether `atom` is an array that, also as NumPy's, is of the result's type beside `value`."""
    if type(atom) is not Value or not getattr(atom.aval, "shape", ()):
        return False
    return bool(jnp.promote_types(atom.aval.dtype, value.aval.dtype) == atom.aval.dtype)
