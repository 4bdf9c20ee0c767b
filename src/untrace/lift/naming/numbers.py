"""The author's words for numbers: `GRAVITY` for 9.81 and `DT / 2` for 0.005, where an operand of the expression behind an
equation is made of numbers and of numbers of its module, and its value is the one that the equation takes.

Nothing of the author's is run for it: names are looked up in the module, and Python's arithmetic is done here.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
import operator
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from untrace.ir.nodes import Equation
from untrace.provenance.sites import Frame, Site

Number = int | float

ARITHMETIC: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip
_LARGEST_POWER = 64
_OF_MODULES = {"pi": math.pi, "e": math.e}
_MODULES = ("math", "numpy", "jax.numpy")


@dataclass(frozen=True, slots=True)
class Given:
    """A number of the author's module. `made`: the expression that it is given there, of other such numbers or of pi, where it
    still has that value; those numbers are `of`, by name."""

    value: Number
    made: ast.expr | None
    of: Mapping[str, Given]


class _NoNumber(Exception):
    """An expression that is not made of numbers alone."""


def said_number(
    site: Site, equation: Equation, value: float, times: int = 1
) -> tuple[ast.expr, Mapping[str, Given]] | None:
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
    reader = _Reader(values, frame.code.co_names, frame.file)
    equal: dict[str, list[tuple[ast.expr, Mapping[str, Given]]]] = {}
    for part in parts:
        names: dict[str, Given] = {}
        try:
            found = reader.value(part, names)
        except (_NoNumber, ArithmeticError):
            continue
        with np.errstate(over="ignore"):
            is_equal = np.asarray(found, dtype) == np.asarray(value, dtype)
        if is_equal:
            equal.setdefault(ast.dump(part), []).append((part, names))
    if len(equal) != 1:  # of `jnp.clip(x, LOW, HIGH)` with equal numbers nobody knows which one this is
        return None
    only = next(iter(equal.values()))
    return only[0] if _has_names(only[0][0]) and len(only) >= times else None


def _has_names(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) for n in ast.walk(node))


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


class _Reader:
    """Computes expressions of numbers. `readable`: the names that mean what the module has; `before`: a line of the file that
    numbers of the module have to be made before, to be said by what they are made of."""

    def __init__(self, values: Mapping[str, object], readable: Container[str], file: str, before: int = sys.maxsize):
        self.values, self.readable, self.file, self.before = values, readable, file, before

    def value(self, node: ast.expr, names: dict[str, Given]) -> Number:
        """The value of an expression of numbers, none of them larger than a float; the names in it go to `names`. Raises
        _NoNumber and ArithmeticError."""
        found = self._unbounded(node, names)
        if not math.isfinite(float(found)):
            raise _NoNumber
        return found

    def _unbounded(self, node: ast.expr, names: dict[str, Given]) -> Number:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name) if name in self.readable:
                found = self.values.get(name)
                if type(found) is int or type(found) is float:
                    names[name] = self._given(name, found)
                    return found
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self.readable:
                module = self.values.get(name)
                if isinstance(module, ModuleType) and module.__name__ in _MODULES and attribute in _OF_MODULES:
                    return _OF_MODULES[attribute]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand, names)
            case ast.BinOp(op=op) if type(op) in ARITHMETIC:
                left, right = self.value(node.left, names), self.value(node.right, names)
                if isinstance(op, ast.Pow) and (abs(right) > _LARGEST_POWER or left < 0):
                    raise _NoNumber
                return ARITHMETIC[type(op)](left, right)
        raise _NoNumber

    def _given(self, name: str, value: Number) -> Given:
        made = _assigned("".join(linecache.getlines(self.file))).get(name)
        of: dict[str, Given] = {}
        if made is not None and made.lineno < self.before and _has_names(made):
            try:
                found = _Reader(self.values, self.values, self.file, made.lineno).value(made, of)
            except (_NoNumber, ArithmeticError):
                found = None
            if type(found) is type(value) and found == value:
                return Given(value, made, of)
        return Given(value, None, {})


@functools.lru_cache(maxsize=16)
def _assigned(source: str) -> Mapping[str, ast.expr]:
    """The expressions that names are given at the top of a module, of those that are given one once."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for name in [t.id for t in targets if isinstance(t, ast.Name)]:
            value = getattr(statement, "value", None)
            found.setdefault(name, []).extend([] if value is None else [value])
    return {name: values[0] for name, values in found.items() if len(values) == 1}
