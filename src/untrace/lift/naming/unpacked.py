"""Names that the author gave to parts of an argument: `w, b = params`, `kernel = params["dense"]["kernel"]`.

Taking a tree apart leaves no equation, so these are read off the statements of the functions that were traced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType
from typing import Any

from untrace._identity import IdentityMap
from untrace.ir.nodes import Program
from untrace.lift.naming import words
from untrace.lift.naming.names import provenance_of
from untrace.lift.naming.parameters import definition_of

# A key, an index or the name of an attribute, each with what it is.
Way = tuple[tuple[str, Any], ...]


def unpacked_names(program: Program) -> dict[tuple[str, Way], str]:
    """{(name of a parameter, way to one of its parts): the author's name for that}, of the entry's own statements."""
    site_of = provenance_of(program).site
    found: dict[tuple[str, Way], str] = {}
    seen: IdentityMap[CodeType, None] = IdentityMap()
    for equation in program.entry.equations:
        for frame in site_of(equation.origin).user_frames:
            if frame.code in seen:
                continue
            seen[frame.code] = None
            definition = frame.definition
            if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for key, name in _of(definition):
                    found.setdefault(key, name)
    return found


def names_in(closed: Any) -> dict[tuple[str, Way], str]:
    """The same of the function that a jaxpr was traced from."""
    definition = definition_of(closed) if closed is not None else None
    return dict(_of(definition)) if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)) else {}


def _of(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[tuple[str, Way], str]]:
    arguments = definition.args
    known = {a.arg: (a.arg, ()) for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    known.pop("self", None)
    places: dict[str, tuple[str, Way]] = dict(known)
    for statement in definition.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        part = _part(statement.value, places)
        for name, way in _targets(statement.targets[0]):
            places.pop(name, None)  # bound to something else from here on
            if part is not None:
                key = (part[0], (*part[1], *way))
                places[name] = key
                if key[1]:
                    yield key, words.clean(name)


def _part(node: ast.AST, places: dict[str, tuple[str, Way]]) -> tuple[str, Way] | None:
    """Which part of which parameter an expression is."""
    if isinstance(node, ast.Name):
        return places.get(node.id)
    if isinstance(node, ast.Attribute):
        whole, step = _part(node.value, places), ("attribute", node.attr)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        whole, step = _part(node.value, places), ("item", node.slice.value)
    else:
        return None
    return None if whole is None else (whole[0], (*whole[1], step))


def _targets(node: ast.AST, way: Way = ()) -> Iterator[tuple[str, Way]]:
    if isinstance(node, ast.Name):
        if node.id.strip("_"):
            yield node.id, way
    elif isinstance(node, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in node.elts):
        for i, element in enumerate(node.elts):
            yield from _targets(element, (*way, ("item", i)))
