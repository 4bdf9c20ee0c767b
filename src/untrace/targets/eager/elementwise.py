"""Functions of numbers that may be called with arrays."""

from __future__ import annotations

from collections.abc import Callable

from untrace.ir.nodes import Function, Library, Local


def is_elementwise(function: Function, primitives: frozenset[str], is_known: Callable[[str], bool]) -> bool:
    """Whether a function of numbers does the same with each element of arrays. primitives: those that do. is_known: whether
    the function of a path does."""
    for equation in function.equations:
        callee = equation.callee
        if type(callee) is Local:
            if not is_elementwise(callee.body, primitives, is_known):
                return False
        elif type(callee) is Library:
            if not callee.name.startswith("operator.") and not is_known(callee.name):
                return False
        elif callee.name not in primitives:
            return False
    return True
