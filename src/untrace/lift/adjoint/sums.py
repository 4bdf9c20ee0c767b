"""Sums of cotangents where no simplification reaches (rules of custom derivatives, solvers): `a + b`, not a `bind` of
JAX's own `add_any`. JAX lowers both to the same operation; the comparison knows that (`jaxprs.equal.compare`)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from jax.extend.core import JaxprEqn

from untrace.ir.nodes import Equation, Function, Library, Primitive, Program, Slot, Value, walk_functions
from untrace.jaxprs.equal.comparer import SUMS


def add_cotangents(program: Program, refused: Container[JaxprEqn]) -> Program:
    """Makes `operator.add` of what is left of them, in place."""
    for function in walk_functions(program.entry):
        if any(e.callee.name in SUMS for e in function.equations):
            function.equations = [_added(e) if e.origin not in refused else e for e in function.equations]
    return program


def _added(equation: Equation) -> Equation:
    if not isinstance(equation.callee, Primitive) or equation.callee.name not in SUMS or not _are_numbers(equation):
        return equation
    inputs: Any = equation.inputs
    outputs: Any = equation.outputs
    body = Function("operator.add", inputs, [equation], outputs)
    return Equation(Library("operator.add", (Slot(0), Slot(1)), {}, body), inputs, outputs, {}, equation.origin)


def _are_numbers(equation: Equation) -> bool:
    """Whether `+` gives the same type: a sum of cotangents has the weak type of the first."""
    output: Any = equation.outputs[0]
    if output is None or any(type(a) is not Value for a in equation.inputs):
        return False
    kinds = [getattr(a.aval, "dtype", None) for a in (*equation.inputs, output)]
    plain = all(getattr(k, "kind", "") in ("i", "u", "f", "c") or str(k) == "bfloat16" for k in kinds)
    return plain and output.aval.weak_type == all(a.aval.weak_type for a in equation.inputs)
