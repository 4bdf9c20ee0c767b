"""The variables of statements: which they bind and read, and what stands in the place of others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

from untrace.python.names import Scope
from untrace.python.statements import Assign, Compound, Def, For, Statement, Unpack
from untrace.python.tree import Call, Expr, Lambda, Leaf, Name, along
from untrace.python.walk import copied, nodes_of, rebuilt, slots_backwards


def bound_names(statement: Statement) -> Iterator[str]:
    """Names that a function binds, also in functions inside it."""
    for node in nodes_of(statement):
        if type(node) is Def:
            yield from [p.name for p in node.params]
            if node is not statement:
                yield node.name
        elif isinstance(node, (Assign, Unpack)):
            yield from targets_of(node)
        elif type(node) is Lambda:
            yield from node.params
        elif isinstance(node, For):
            yield from re.findall(r"\w+", node.target)  # `a, b`


_S = TypeVar("_S", bound=Statement)


@overload
def substituted(node: _S, new: Mapping[str, Expr]) -> _S: ...
@overload
def substituted(node: Expr, new: Mapping[str, Expr]) -> Expr: ...
@overload
def substituted(node: object, new: Mapping[str, Expr]) -> object: ...
def substituted(node: object, new: Mapping[str, Expr]) -> object:
    """A node with expressions in the place of variables, functions that it calls among them."""

    def change(node: object) -> object:
        if type(node) is Name:
            return new.get(node.id, node)
        if isinstance(node, Leaf):
            root = new.get(node.root.id)
            if type(root) is Name:
                made = copied(node)
                made.root = root
                return made
            if isinstance(root, Leaf):
                return Leaf(root.root, (*root.steps, *node.steps))
            return node if root is None else along(root, node.steps)
        if type(node) is Lambda or type(node) is Def:
            own = set(bound_names(node)) if isinstance(node, Def) else node.params
            if not new.keys().isdisjoint(own):
                inner = {k: v for k, v in new.items() if k not in own}
                return rebuilt(node, lambda n: substituted(n, inner))
        made = rebuilt(node, change)
        if type(made) is Call and type(made.func) is str and made.func in new:
            found = new[made.func]
            made = copied(made)
            made.func = found.id if type(found) is Name else found
        return made

    return change(node)


def reads(node: object) -> list[str]:
    """The names that a node reads, each as often as it does; not the parameters of functions in it."""
    found: list[str] = []
    stack: list[Any] = [node]
    while stack:
        inner = stack.pop()
        kind = type(inner)
        if kind is Name:
            found.append(inner.id)
        elif kind is Lambda:
            own = {p.lstrip("*") for p in inner.params}
            found += [n for n in reads(inner.body) if n not in own]
        elif kind is Def:
            own = set(bound_names(inner))
            found += [n for part in (*inner.decorators, *inner.body) for n in reads(part) if n not in own]
        elif kind is list or kind is tuple:
            stack.extend(inner[::-1])
        else:
            slots = slots_backwards(inner)
            if slots is None:
                continue
            if kind is Call and type(inner.func) is str:
                found.append(inner.func.partition(".")[0])
            for slot in slots:
                part = getattr(inner, slot, None)
                if type(part) is not str and part is not None:
                    stack.append(part)
    return found


def read_by(statement: object) -> list[str]:
    """The same for a statement; what its targets are called does not count."""
    return reads(statement.value if isinstance(statement, (Assign, Unpack)) else statement)


def targets_of(statement: Statement) -> list[str]:
    """What a statement binds, in order."""
    found: list[str] = []
    if isinstance(statement, (Assign, Unpack)):
        for target in statement.targets:
            found += [target] if type(target) is str else [n.id for n in nodes_of(target) if type(n) is Name]
    return found


def scope_of(definition: Def, outer: Scope) -> Scope:
    """A scope inside `outer` in which every name that stands in a definition is taken."""
    scope = Scope(outer)
    for name in {*bound_names(definition), *(n.id for n in nodes_of(definition) if type(n) is Name)}:
        scope.claim_parameter(name)
    return scope


def renamed(statement: Statement, old: str, new: str) -> Statement:
    """A statement with another name for a variable that it reads or binds, also in the statements below it."""

    def inside(node: object) -> object:
        return substituted(node, {old: Name(new)})

    def bound(node: object) -> object:
        if isinstance(node, Compound):
            return rebuilt(node, bound)
        if isinstance(node, (Assign, Unpack)) and old in targets_of(node):
            made = copied(node)
            made.targets = [
                (new if t == old else t) if isinstance(t, str) else rebuilt(t, inside) for t in node.targets
            ]
            return made
        return node

    made = bound(inside(statement))
    assert isinstance(made, Statement)
    return made
