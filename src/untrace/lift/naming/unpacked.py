"""Names that the author gave to parts of an argument: `w, b = params`, `kernel = params["dense"]["kernel"]`.

Taking a tree apart leaves no equation, so these are read off the statements of the functions that were traced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
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


class Parts:
    """Which part of which parameter the expressions of a function are, by its own assignments of names.

    elements: names of what loops go through, or of what is found by a computed key, and below which part of which parameter
        that is.
    """

    def __init__(self, places: dict[str, tuple[str, Way]], elements: dict[str, tuple[str, Way]]):
        self.places = places
        self.elements = elements

    def part(self, node: ast.AST) -> tuple[str, Way] | None:
        """(the parameter, the way from it to what the expression gives), if it is a part of one."""
        return _part(node, self.places)

    def some_part(self, node: ast.AST) -> tuple[str, Way] | None:
        """The parameter, and the part of it, of which an expression is a part: `layers[i]`, or `layer` in a loop over `layers[:-1]`."""
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            found = self.part(node)
            if found is not None:
                return found
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return self.places.get(node.id) or self.elements.get(node.id)


def parts_in(definition: ast.AST | None, closed_over: Iterable[str] = ()) -> Parts:
    """Those of a function. `closed_over`: names that stand for themselves as parameters do.

    A parameter that is bound again stands for what was passed: what is computed from it is no part of one.
    """
    places: dict[str, tuple[str, Way]] = {name: (name, ()) for name in closed_over}
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return Parts(places, {})
    places.update(_parameters(definition, own=True))
    bound: dict[str, set[tuple[str, Way] | None]] = {}
    computed: list[tuple[ast.expr, str]] = []
    for whole_part, name, whole_way in _assigned(definition.body if isinstance(definition.body, list) else []):
        part, way = _element(whole_part, whole_way)
        found = _part(part, places) if part is not None else None
        if found is None and isinstance(part, (ast.Subscript, ast.Attribute)):
            computed.append((part, name))
        whole = None if found is None else (found[0], (*found[1], *way))
        bound.setdefault(name, set()).add(whole)
        if name not in places and whole is not None:
            places[name] = whole
    for name, parts in bound.items():
        known = places.get(name)
        others = {p for p in parts if p is not None and p != known}
        if others or known is not None and known[0] != name and None in parts:
            del places[name]  # one or the other
    found = Parts(places, {})
    for target, name in [*_elements(definition), *computed]:
        whole = found.some_part(target)
        if whole is not None and name not in places and bound.get(name, {None}) == {None}:
            found.elements[name] = whole
    return found


def _elements(definition: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """(what is gone through, the name of an element of it), of the loops and comprehensions of a function."""
    for node in ast.walk(definition):
        if isinstance(node, (ast.For, ast.comprehension)):
            yield from _gone_through(node.iter, node.target)


def _gone_through(iterable: ast.expr, target: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(iterable, ast.Call):
        name = getattr(iterable.func, "id", None)
        method = getattr(iterable.func, "attr", None)
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        if name == "zip" and len(parts) == len(iterable.args):
            for one, part in zip(iterable.args, parts, strict=True):
                yield from _gone_through(one, part)
        elif name == "enumerate" and len(parts) == 2 and iterable.args:
            yield from _gone_through(iterable.args[0], parts[1])
        elif name in ("reversed", "list", "tuple") and iterable.args:
            yield from _gone_through(iterable.args[0], target)
        elif method in ("items", "values") and isinstance(iterable.func, ast.Attribute):
            last = parts[-1] if method == "items" and parts else target
            yield from [(iterable.func.value, n.id) for n in ast.walk(last) if isinstance(n, ast.Name)]
        return
    yield from [(iterable, node.id) for node in ast.walk(target) if isinstance(node, ast.Name)]


def _assigned(block: Sequence[ast.stmt]) -> Iterator[tuple[ast.expr | None, str, Way]]:
    """(what is bound, None where that is no plain assignment, the name, the way from the one to the other), in order."""
    for statement in block:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from [(statement.value, name, way) for name, way in _targets(target)]
        elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)) and isinstance(statement.target, ast.Name):
            yield (statement.value if isinstance(statement, ast.AnnAssign) else None), statement.target.id, ()
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            yield from [(None, node.id, ()) for node in ast.walk(statement.target) if isinstance(node, ast.Name)]
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            targets = [i.optional_vars for i in statement.items if i.optional_vars is not None]
            yield from [(None, n.id, ()) for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _assigned(getattr(statement, field, None) or [])


def _element(node: ast.expr | None, way: Way) -> tuple[ast.expr | None, Way]:
    """The same thing, from the element of a tuple that is written out: `a, b = state.mean, state.cov`."""
    while way and isinstance(node, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in node.elts):
        kind, place = way[0]
        if kind != "item" or place >= len(node.elts):
            return None, way
        node, way = node.elts[place], way[1:]
    return node, way


def _parameters(
    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, own: bool = False
) -> dict[str, tuple[str, Way]]:
    """own: with `self`."""
    arguments = definition.args
    known: dict[str, tuple[str, Way]] = {
        a.arg: (a.arg, ()) for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    if not own:
        known.pop("self", None)
    return known


def _of(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[tuple[str, Way], str]]:
    places = _parameters(definition)
    for statement in definition.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        parts = [(name, *_element(statement.value, way)) for name, way in _targets(statement.targets[0])]
        known = [(name, _part(node, places) if node is not None else None, way) for name, node, way in parts]
        for name, part, way in known:
            places.pop(name, None)  # bound to something else from here on
            if part is not None:
                key = (part[0], (*part[1], *way))
                places[name] = key
                if key[1]:
                    yield key, words.clean(name)


def _part(node: ast.AST, places: dict[str, tuple[str, Way]]) -> tuple[str, Way] | None:
    """Which part of which parameter an expression is; of one that chooses, if one of the two is none."""
    if isinstance(node, ast.Name):
        return places.get(node.id)
    if isinstance(node, ast.IfExp):
        found = {_part(node.body, places), _part(node.orelse, places)} - {None}
        return found.pop() if len(found) == 1 else None
    if isinstance(node, ast.Attribute):
        whole, step = _part(node.value, places), ("attribute", node.attr)
    elif isinstance(node, ast.Subscript) and (key := _key(node.slice)) is not None:
        whole, step = _part(node.value, places), ("item", key)
    else:
        return None
    return None if whole is None else (whole[0], (*whole[1], step))


def _key(node: ast.AST) -> Any:
    """A key or an index that is written out; None of another expression."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        key = _key(node.operand)
        return -key if type(key) is int else None
    return node.value if isinstance(node, ast.Constant) else None


def _targets(node: ast.AST, way: Way = ()) -> Iterator[tuple[str, Way]]:
    if isinstance(node, ast.Name):
        if node.id.strip("_"):
            yield node.id, way
    elif isinstance(node, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in node.elts):
        for i, element in enumerate(node.elts):
            yield from _targets(element, (*way, ("item", i)))
