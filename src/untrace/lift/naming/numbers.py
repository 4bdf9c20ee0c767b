"""The author's words for numbers: `GRAVITY` for 9.81 and `DT / 2` for 0.005, where an operand of the expression behind an
equation is made of numbers and of numbers of its module, and its value is the one that the equation takes.

Nothing of the author's is run for it: names are looked up in the module, and Python's arithmetic is done here.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from untrace.ir.nodes import Equation
from untrace.provenance.sites import Frame, Site

Number = int | float

ARITHMETIC: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip
_LARGEST_POWER = 64


class _NoNumber(Exception):
    """An expression that is not made of numbers alone."""


def said_number(
    site: Site, equation: Equation, value: float, times: int = 1
) -> tuple[ast.expr, Mapping[str, Number]] | None:
    """The author's expression for a number that an equation takes, and the numbers of the module that are in it; None
    where there is no such operand, fewer than the `times` that the equation takes it, or it has digits only."""
    frame = site.frames[-1] if site.frames else None
    node = frame.node if frame is not None and not frame.library else None
    if frame is None or node is None or not math.isfinite(value):
        return None
    parts = _operands(node, getattr(equation.callee, "name", ""))
    names_read = {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
    values = _globals_of(frame) if not names_read.isdisjoint(frame.code.co_names) else None
    if values is None:
        return None
    dtype = next((t for t in map(_dtype, (*equation.inputs, *equation.outputs)) if t is not None), np.dtype(float))
    equal: dict[str, list[tuple[ast.expr, Mapping[str, Number]]]] = {}
    for part in parts:
        names: dict[str, Number] = {}
        try:
            found = _value(part, frame, values, names)
        except (_NoNumber, ArithmeticError):
            continue
        with np.errstate(over="ignore"):
            is_equal = np.asarray(found, dtype) == np.asarray(value, dtype)
        if is_equal:
            equal.setdefault(ast.dump(part), []).append((part, names))
    if len(equal) != 1:  # of `jnp.clip(x, LOW, HIGH)` with equal numbers nobody knows which one this is
        return None
    only = next(iter(equal.values()))
    return only[0] if only[0][1] and len(only) >= times else None


def _globals_of(frame: Frame) -> Mapping[str, object] | None:
    """What the names of a module mean; None for code of no module that Python knows."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == frame.file:
            return vars(module)
    return None


def _dtype(atom: object) -> np.dtype | None:
    dtype = getattr(getattr(atom, "aval", None), "dtype", None)
    return dtype if isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.floating) else None


def _operands(node: ast.AST, called: str) -> Sequence[ast.expr]:
    """The operands of an operation, or of a call of the very function that the equation calls: one that is made of
    others has numbers of its own inside."""
    match node:
        case ast.BinOp():
            return node.left, node.right
        case ast.AugAssign():
            return (node.value,)
        case ast.Compare():
            return node.left, *node.comparators
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _names_of(called):
            given = *node.args, *[k.value for k in node.keywords]
            return [part for arg in given for part in (arg.elts if isinstance(arg, ast.Tuple) else (arg,))]
    return ()


def _names_of(called: str) -> tuple[str, ...]:
    """What the author may call the function that an equation calls: a loop that counts is a scan."""
    return ("scan", "fori_loop") if called == "scan" else (called.rpartition(".")[2],)


def _value(node: ast.expr, frame: Frame, values: Mapping[str, object], names: dict[str, Number]) -> Number:
    """The value of an expression of numbers, none of them larger than a float; the names in it go to `names`. Raises
    _NoNumber and ArithmeticError."""
    found = _unbounded(node, frame, values, names)
    if not math.isfinite(float(found)):
        raise _NoNumber
    return found


def _unbounded(node: ast.expr, frame: Frame, values: Mapping[str, object], names: dict[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in frame.code.co_names:
            found = values.get(name)
            if type(found) is int or type(found) is float:
                names[name] = found
                return found
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, frame, values, names)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            left = _value(node.left, frame, values, names)
            right = _value(node.right, frame, values, names)
            if isinstance(op, ast.Pow) and (abs(right) > _LARGEST_POWER or left < 0):
                raise _NoNumber
            return ARITHMETIC[type(op)](left, right)
    raise _NoNumber
