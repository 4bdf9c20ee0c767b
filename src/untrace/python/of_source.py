"""Expressions of a source, as Python parses them, as expressions of the text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from untrace.python.tree import (
    ATOM,
    UNARY,
    Attribute,
    Binary,
    Call,
    Expr,
    List,
    Slice,
    Subscript,
    Text,
    Tuple,
    Unary,
    quoted,
)

_SYMBOLS: Mapping[type[ast.operator] | type[ast.cmpop], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//", ast.Mod: "%",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def of_source(node: ast.expr, named: Callable[[str], Expr]) -> Expr:
    """The expression that `node` is, with `named(name)` for each of its names."""

    def each(nodes: Sequence[ast.expr]) -> list[Expr]:
        return [of_source(part, named) for part in nodes]

    match node:
        case ast.Name(id=name):
            return named(name)
        case ast.Attribute(value=value, attr=attribute):
            return Attribute(of_source(value, named), attribute)
        case ast.Constant(value=str() as value):
            return Text(quoted(value))
        case ast.Constant(value=value):
            return Text(repr(value), UNARY if repr(value)[0] == "-" else ATOM)
        case ast.UnaryOp(operand=operand):
            return Unary("-", of_source(operand, named))
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return Binary(of_source(left, named), _SYMBOLS[type(op)], of_source(right, named))
        case ast.Tuple(elts=parts):
            return Tuple(each(parts))
        case ast.List(elts=parts):
            return List(each(parts))
        case ast.Call(func=called, args=args, keywords=keywords):
            passed = [(k.arg, of_source(k.value, named)) for k in keywords if k.arg is not None]
            return Call(of_source(called, named), each(args), passed)
        case ast.Subscript(value=value, slice=index):
            return Subscript(of_source(value, named), of_source(index, named))
        case ast.Slice(lower=lower, upper=upper, step=step):
            start, stop, by = (None if b is None else of_source(b, named) for b in (lower, upper, step))
            return Slice(start, stop, by)
    raise AssertionError(node)
