"""What a parameter of the author's cannot be, by how his function uses it: no array, or no tree of arrays."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from untrace.provenance.arguments import own_parameters
from untrace.provenance.frames import Frame

_PLAIN = ("bool", "str")


@functools.lru_cache(maxsize=512)
def no_arrays(definition: ast.AST | None) -> frozenset[str]:
    """The parameters that Python decides on, or that are said to be flags or strings: a traced array would be an error there."""
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return frozenset()
    arguments = definition.args
    every = [*arguments.posonlyargs, *arguments.args]
    defaults = [*zip(every[len(every) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    defaults += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    found = {a.arg for a, d in defaults if isinstance(d, ast.Constant) and type(d.value).__name__ in _PLAIN}
    found |= {
        a.arg
        for a in (*every, *arguments.kwonlyargs)
        if isinstance(a.annotation, ast.Name) and a.annotation.id in _PLAIN
    }
    for node in ast.walk(definition):
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            found |= _names(node.test)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found |= _names(node.operand)
    return frozenset(found)


@functools.lru_cache(maxsize=512)
def no_trees(definition: ast.AST | None) -> frozenset[str]:
    """Those that stand in arithmetic, are compared, or say a place."""
    found = set(no_arrays(definition))
    for node in ast.walk(definition) if definition is not None else ():
        for part in _plain_operands(node):
            found |= _names(part)
    return frozenset(found)


def may_be_numbers(callee: Frame) -> list[str]:
    """The parameters of the author's that are no flags; of a library's function none."""
    flags = no_arrays(callee.definition)
    return [] if callee.library else [name for name in own_parameters(callee) if name not in flags]


def _plain_operands(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.BinOp, ast.Compare)):
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.left, *node.comparators]
        # Tuples may be added, and anything may be compared with None.
        if not any(
            isinstance(p, (ast.Tuple, ast.List)) or isinstance(p, ast.Constant) and p.value is None for p in parts
        ):
            yield from parts
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        yield from node.slice.elts  # alone it may be a tuple of indices
    elif isinstance(node, (ast.Tuple, ast.List)) and any(
        isinstance(e, ast.Constant) and type(e.value) in (int, float) for e in node.elts
    ):
        yield from node.elts


def _names(node: ast.expr) -> set[str]:
    """The name that an expression is, or the names that it puts together by `and` and `or`."""
    if isinstance(node, ast.BoolOp):
        return set().union(*map(_names, node.values))
    return {node.id} if isinstance(node, ast.Name) else set()
