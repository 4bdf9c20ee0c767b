"""What a function returns, by its syntax tree: which variable stands where in it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Sequence
from typing import Any

from untrace.provenance.node_kinds import BLOCKS, FUNCTIONS, LEAVES


class Returns:
    """Of a function, by name of its variables: their places in what it returns, and where they are bound last."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef, classes: Container[str]):
        self._body, self._classes = function.body, classes

    @functools.cached_property
    def places(self) -> dict[str, tuple[int | str, ...]]:
        found: dict[str, tuple[int | str, ...]] = {}
        stack: list[Any] = list(self._body)
        while stack:  # the last statement first
            node = stack.pop()
            kind = type(node)
            if kind is ast.Return and node.value is not None:
                for name, path in _names_in(node.value, (), self._classes):
                    found.setdefault(name, path)
            elif kind not in FUNCTIONS:
                for field in node._fields:
                    if field in BLOCKS:
                        stack.extend(getattr(node, field))
        return found

    @functools.cached_property
    def last_store(self) -> dict[str, tuple[int, int]]:
        """But for what is bound in a branch: `if mask is not None: out = ...` often does not run."""
        found: dict[str, tuple[int, int]] = {}
        stack: list[Any] = list(self._body)
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is ast.Name:
                if type(node.ctx) is ast.Store:
                    at = (node.lineno, node.col_offset)
                    found[node.id] = max(at, found.get(node.id, at))
            elif kind not in LEAVES and kind not in FUNCTIONS and kind is not ast.If:
                for field in node._fields:
                    value = getattr(node, field, None)
                    if type(value) is list:
                        stack.extend([child for child in value if isinstance(child, ast.AST)])
                    elif isinstance(value, ast.AST):
                        stack.append(value)
        return found


def _names_in(
    value: ast.AST, path: tuple[int | str, ...], classes: Container[str]
) -> list[tuple[str, tuple[int | str, ...]]]:
    match value:
        case ast.Name():
            return [(value.id, path)]
        case ast.Tuple() | ast.List():
            return [found for i, e in enumerate(value.elts) for found in _names_in(e, (*path, i), classes)]
        case ast.Dict():
            keys: list[Any] = [k.value if isinstance(k, ast.Constant) else "?" for k in value.keys]
            return [
                found for k, v in zip(keys, value.values, strict=True) for found in _names_in(v, (*path, k), classes)
            ]
        case ast.Call() if makes_tree(value, classes):
            owner = name_called(value)
            parts = [*[("", a) for a in value.args], *[(k.arg or "", k.value) for k in value.keywords]]
            fields = [(Field(i, owner, name), part) for i, (name, part) in enumerate(parts)]
            return [found for field, part in fields for found in _names_in(part, (*path, field), classes)]
        case ast.Call() if changes_tree(value):
            given = [(Field(i, "", k.arg or ""), k.value) for i, k in enumerate(value.keywords)]
            return [found for field, part in given for found in _names_in(part, (*path, field), classes)]
    return []


class Field(str):
    """`.2`: a place among the arguments of a class that is called, `owner`; "" where a tree of the class is changed. name: of
    the field; "" where that is passed by its place."""

    owner: str
    name: str

    def __new__(cls, place: int, owner: str, name: str = "") -> Field:
        field = super().__new__(cls, f".{place}")
        field.owner, field.name = owner, name
        return field


def name_called(call: ast.Call) -> str:
    """The last name of what is called; "" of what has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def makes_tree(call: ast.Call, classes: Container[str]) -> bool:
    """Whether it is a class that is called, by its name: `Gaussian(mean, cov)`. classes: those that the file defines, without
    which a name in capitals alone (`A(x)`) is a function's."""
    name = name_called(call)
    named_so = name in classes or name[:1].isupper() and not name.isupper()
    return named_so and not any(isinstance(a, ast.Starred) for a in call.args)


def changes_tree(call: ast.Call) -> bool:
    """Whether it gives a tree with other fields: `state._replace(mean=mean)`, `dataclasses.replace(state, mean=mean)`."""
    return name_called(call) in ("_replace", "replace") and len(call.args) < 2 and all(k.arg for k in call.keywords)


def record_returned(function: ast.AST | None, way: Sequence[int | str], classes: Container[str]) -> ast.Call | None:
    """The call that makes, or changes, a record at a place of what a function returns in its last statement."""
    node = part_returned(function, way)
    is_record = isinstance(node, ast.Call) and (makes_tree(node, classes) or changes_tree(node))
    return node if is_record and isinstance(node, ast.Call) else None


def part_returned(function: ast.AST | None, way: Sequence[int | str]) -> ast.expr | None:
    """The expression at a place of the tuple that a function returns in its last statement."""
    body = function.body if isinstance(function, ast.FunctionDef) else []
    node = body[-1].value if body and isinstance(body[-1], ast.Return) else None
    for step in way:
        elements = node.elts if isinstance(node, ast.Tuple | ast.List) else []
        node = elements[step] if type(step) is int and step < len(elements) else None
    return node
