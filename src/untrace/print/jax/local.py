"""Calls of local functions: `x = attention(params["attention"], x)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Equation
from untrace.print.tree import Call, Expr


def local_call(w: Any, equation: Equation, operands: Sequence[Expr]) -> Expr:
    """The call of an equation whose callee is a Local function, which is written before the caller."""
    return Call(w.module.function(equation.callee.body), operands)
