"""Which arguments that are Python numbers may stay what they are, where a written function runs without tracing."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from untrace.ir.nodes import Equation, Function, Library, Local, Scan, Value, While
from untrace.lift.recognise.library import makes_arrays

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
        return makes_arrays(callee.name)
    if type(callee) is Local:
        return not any(
            needs_array(callee.body, p) for p in _inside(equation.inputs, callee.body, len(equation.inputs), value)
        )
    if callee.name in ("jit", "pjit"):  # makes arrays of what it is given
        return True
    for body, start, consts, bounds in _loop_bodies(equation):
        given = equation.inputs[start:]
        if any(a is value for a in given[consts : consts + bounds]):
            return False
        if any(needs_array(body, p) for p in _inside(given, body, consts, value)):
            return False
    return bool(_loop_bodies(equation))  # a loop makes arrays of its carry


def _loop_bodies(equation: Equation) -> list[tuple[Function, int, int, int]]:
    """(body, the first operand of it, number of constants, carries that may be bounds that a loop is counted by) of a loop."""
    loop = equation.callee
    if type(loop) is Scan:
        return [(loop.body, 0, loop.consts, 0)]
    if type(loop) is While:
        first = loop.condition_consts
        return [(loop.condition, 0, first, 0), (loop.body, first, loop.body_consts, 2)]
    return []


def _inside(inputs: Sequence[object], body: Function, count: int, value: Value) -> list[Value]:
    return [p for a, p in zip(inputs[:count], body.params[:count], strict=True) if a is value]


def _takes_its_type(atom: object, value: Value) -> bool:
    """Whether `atom` is an array that, also as NumPy's, is of the result's type beside `value`."""
    if type(atom) is not Value or not getattr(atom.aval, "shape", ()):
        return False
    return bool(jnp.promote_types(atom.aval.dtype, value.aval.dtype) == atom.aval.dtype)
