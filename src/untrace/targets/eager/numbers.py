"""What a library computes of numbers alone is a number: `16 - 1` in a quantile, and which of two cases that chooses.

Only in the library's own functions: what the author writes so stays, for it says where the number is from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from untrace.ir.nodes import Atom, Equation, Function, Literal, Primitive, SizeNumbers, Value

# Of which each library and each compiler makes the same number.
_EXACT = frozenset(
    "add sub mul div neg max min clamp floor ceil convert_element_type eq ne lt le gt ge and or not".split()
)
_NUMBERS = "biuf"  # kinds of dtypes


def folded(equation: Equation, inputs: Sequence[Atom], sizes: SizeNumbers | None) -> Atom | None:
    """What an equation gives where its operands are numbers, or one of them says which it is; None of others. Numbers that
    follow sizes stay: they are others where these are."""
    if type(equation.callee) is not Primitive or len(equation.outputs) != 1:
        return None
    numbers = [_number(a, sizes) for a in inputs]
    if equation.callee.name == "select_n" and numbers[0] is not None:
        return inputs[1 + int(numbers[0])]
    if equation.callee.name not in _EXACT:
        return None
    if equation.callee.name == "div" and numbers[1] == 1:
        return inputs[0]
    output = equation.outputs[0]
    if output is None or output.aval.shape or any(number is None for number in numbers):
        return None
    if getattr(output.aval.dtype, "kind", "") not in _NUMBERS:
        return None
    found = equation.callee.object.bind(*map(jax.numpy.asarray, numbers), **equation.params)
    return Literal(np.asarray(found, output.aval.dtype)[()], jax.core.ShapedArray((), output.aval.dtype))


def _number(atom: Atom, sizes: SizeNumbers | None) -> Any:
    """The value of a number that follows no size."""
    if type(atom) is not Literal or atom.aval.shape or getattr(atom.aval.dtype, "kind", "") not in _NUMBERS:
        return None
    value = np.asarray(atom.value, atom.aval.dtype)[()]
    is_any = value.dtype != np.bool_ and sizes is not None
    return None if is_any and (value in sizes.integers or value in sizes.fractions) else value


def with_numbers(body: Function, inputs: Sequence[Atom], sizes: SizeNumbers | None) -> tuple[Function, Sequence[Atom]]:
    """A function for the numbers among its arguments, and the arguments that are left."""
    known: Mapping[Atom, Atom] = {
        param: Literal(number, jax.core.ShapedArray((), number.dtype))
        for param, atom in zip(body.params, inputs, strict=True)
        if (number := _number(atom, sizes)) is not None
    }
    if not known:
        return body, inputs

    def read(atom: Atom) -> Atom:
        return known.get(atom, atom) if type(atom) is Value else atom

    equations = [Equation(e.callee, [*map(read, e.inputs)], e.outputs, e.params, e.origin) for e in body.equations]
    made = Function(body.name, [p for p in body.params if p not in known], equations, [*map(read, body.results)])
    made.facts = body.facts
    return made, [a for p, a in zip(body.params, inputs, strict=True) if p not in known]
