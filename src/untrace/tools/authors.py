"""Which equation of a program is the author's own, where functions of JAX are run by his calls."""

from __future__ import annotations

from collections.abc import Sequence

from untrace import jax_compat
from untrace.ir.calls import function_run
from untrace.ir.nodes import Equation, Structured


def author_equation(equations: Sequence[Equation]) -> Equation:
    """The one that the author made, of an equation (the last) and what runs it, the outermost first: what is in a function of
    JAX itself has no place of his inside."""
    return next((e for e in equations[:-1] if runs_library(e)), equations[-1])


def runs_library(equation: Equation) -> bool:
    """Whether an equation calls a function of JAX itself, which has no place of the author's inside."""
    if isinstance(equation.callee, Structured):
        functions = list(equation.callee.bodies)
    else:
        called = function_run(equation, equation.inputs)
        functions = [called[0]] if called is not None else []
    return any(f.jaxpr is not None and jax_compat.is_library_jaxpr(f.jaxpr) for f in functions)
