"""Expressions of C as text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from untrace.targets.c.loops import BOOL, COMPLEX, PARTS, Buffer, Expr, Num, Op, Read, Var, part_of
from untrace.targets.c.narrow import NARROW

TYPES = {
    "bool": "bool", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t", "uint8": "uint8_t",
    "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t", "float32": "float", "float64": "double",
    "bfloat16": "uint16_t", "float16": "uint16_t", "complex64": "struct complex64", "complex128": "struct complex128",
}  # fmt: skip
# How tightly operators bind.
_BINDS = {
    "*": 13, "/": 13, "%": 13, "+": 12, "-": 12, "<<": 11, ">>": 11, "<": 10, "<=": 10, ">": 10, ">=": 10, "==": 9, "!=": 9,
    "&": 8, "^": 7, "|": 6, "&&": 5, "||": 4, "?:": 3,
}  # fmt: skip
_UNARY, _ATOM = 14, 15
_ARITHMETIC = frozenset("*/%+-")
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_WIDTH_OF_INT = 4


def c_type(dtype: np.dtype) -> str:
    """`float`; an int32 is written as `int` only of indices."""
    return TYPES[dtype.name]


def declared_type(dtype: np.dtype) -> str:
    """The same, where people read what it is: with a word on those that C has not."""
    return f"{c_type(dtype)} /* bits of a {dtype.name} */" if dtype in NARROW else c_type(dtype)


class Expressions:
    """Prints expressions. `names`: those of the indices of loops. `used`: the helpers that were called."""

    def __init__(self, names: Mapping[Var, str], used: set[str], helpers: frozenset[str]):
        self._names = names
        self._used = used
        self._helpers = helpers

    def text(self, expr: Expr) -> str:
        return self._text(expr)[0]

    def place(self, buffer: Buffer, index: tuple[Expr, ...]) -> str:
        """An element, or a part, of a buffer."""
        name = buffer.name
        if buffer.kind == "out" and not buffer.shape and "->" not in name:
            return f"*{name}"
        return name + "".join([f"[{self.text(i)}]" for i in index])

    def _text(self, expr: Expr) -> tuple[str, int]:
        """The text and how tightly its operator binds."""
        if isinstance(expr, Num):
            text = literal(expr.value, expr.dtype)
            return text, _UNARY if text.startswith("-") else _ATOM
        if isinstance(expr, Var):
            return self._names[expr], _ATOM
        if isinstance(expr, Read):
            text = self.place(expr.buffer, expr.index)
            return text, _UNARY if text.startswith("*") else _ATOM
        return self._operation(expr)

    def _operation(self, expr: Op) -> tuple[str, int]:
        name, args = (
            expr.name.removeprefix("i") if expr.name in ("i+", "i-", "i*", "i/", "i%") else expr.name,
            expr.args,
        )
        if name == "cast":
            return f"({c_type(expr.dtype)}){self._operand(args[0], _UNARY)}", _UNARY
        if name in PARTS:
            return f"{self._operand(args[0], _ATOM)}{name}", _ATOM
        if name == COMPLEX:
            return f"({c_type(expr.dtype)}){{{', '.join([self.text(a) for a in args])}}}", _UNARY
        if name in ("neg", "!", "~"):
            inner = self._operand(args[0], _UNARY)
            sign = "-" if name == "neg" else name
            made = f"{sign}({inner})" if inner.startswith("-") and sign == "-" else f"{sign}{inner}"
            return self._narrowed(expr, made, _UNARY)
        if name == "?:":
            parts = [self._operand(args[0], _BINDS["?:"] + 1), self._operand(args[1], 4), self._operand(args[2], 3)]
            return self._narrowed(expr, f"{parts[0]} ? {parts[1]} : {parts[2]}", _BINDS["?:"])
        if name in _BINDS:
            binds = _BINDS[name]
            if name == "+" and isinstance(args[1], Num) and args[1].dtype.kind != "u" and args[1].value < 0:
                name, args = "-", (args[0], Num(-args[1].value, args[1].dtype))
            left = self._side(name, args[0], binds)
            right = self._side(name, args[1], binds + 1)
            return self._narrowed(expr, f"{left} {name} {right}", binds)
        if name in self._helpers:
            self._used.add(name)
        return f"{name}({', '.join([self.text(a) for a in args])})", _ATOM

    def _operand(self, expr: Expr, least: int) -> str:
        text, binds = self._text(expr)
        return text if binds >= least else f"({text})"

    def _side(self, operator: str, expr: Expr, least: int) -> str:
        """An operand; where compilers, and people, ask for parentheses that the language does not, it has them."""
        text, binds = self._text(expr)
        inner = expr.name.removeprefix("i") if isinstance(expr, Op) else ""
        if binds < least:
            return f"({text})"
        if inner not in _BINDS or binds >= _UNARY or operator in _ARITHMETIC:
            return text
        plain = inner in _ARITHMETIC and operator in _COMPARISONS | {"&&", "||"}
        if (
            plain
            or inner in _COMPARISONS
            and operator in ("&&", "||")
            or inner == operator
            and inner not in _COMPARISONS
        ):
            return text
        return f"({text})"

    def _narrowed(self, expr: Op, text: str, binds: int) -> tuple[str, int]:
        """C computes with short integers as with `int`: the result is made one of them again."""
        if expr.dtype.kind in "iu" and expr.dtype.itemsize < _WIDTH_OF_INT:
            return f"({c_type(expr.dtype)})({text})", _UNARY
        return text, binds


def literal(value: int | float | complex | bool, dtype: np.dtype) -> str:
    """A number of a type; of a complex one what an initialiser has."""
    if dtype.kind == "c":
        part = part_of(dtype)
        return f"{{{literal(value.real, part)}, {literal(value.imag, part)}}}"
    assert not isinstance(value, complex)
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype in NARROW:
        return f"0x{int(np.asarray(value).astype(dtype).view(np.uint16)):04x}"
    if dtype.kind == "f":
        suffix = "f" if dtype == np.float32 else ""
        if value != value:
            return "NAN" if suffix else "(double)NAN"
        if value in (float("inf"), float("-inf")):
            return ("-" if value < 0 else "") + ("INFINITY" if suffix else "(double)INFINITY")
        text = str(np.float32(value)) if suffix else repr(float(value))
        return text + ("" if "." in text or "e" in text else ".0") + suffix
    number = int(value)
    if dtype.itemsize == 8 and not -(2**31) < number < 2**31:
        if number == -(2**63):
            return "INT64_MIN"
        return f"{'U' if dtype.kind == 'u' else ''}INT64_C({number})"
    if dtype == np.int32 and number == -(2**31):
        return "INT32_MIN"
    return f"{number}u" if dtype.kind == "u" and dtype.itemsize >= _WIDTH_OF_INT else str(number)
