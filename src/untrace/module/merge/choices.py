"""The trees of functions of one class that are laid over each other: what differs, and what has a name.

While two functions are compared, values that are used once stand inside the expression that uses them (`Named`): one
may have a name where the other has none. Where expressions differ stands a `Choice`.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeGuard, overload

from untrace.module.access_paths import Leaf
from untrace.python.statements import Assign, Def, For, Lines, Parameter, Statement, Unpack
from untrace.python.tree import (
    TERNARY,
    Attribute,
    Binary,
    Call,
    Expr,
    Lambda,
    List,
    Name,
    Slice,
    Star,
    Subscript,
    Text,
    Tuple,
    Unary,
)
from untrace.python.walk import copied, nodes_of, rebuilt, slots_of

Variants = frozenset[str]
Guarded = tuple[Variants, Statement]
_WORD = re.compile(r"[A-Za-z_][\w\0]*")
# What a place where two functions differ costs beside its parts.
PLACE = 6


class Choice(Expr):
    """What variants have in one place: [(variants, expression)]."""

    __slots__ = ("ways",)
    strength = TERNARY

    def __init__(self, ways: Sequence[tuple[Variants, Expr]]):
        self.ways = list(ways)

    def flat(self) -> str:
        return " | ".join(e.flat() for _, e in self.ways)


class Named(Expr):
    """A value that has a name, where it is used. `statement`: the one that gave it the name."""

    __slots__ = ("statement", "use", "value")

    def __init__(self, use: Name, value: Expr, statement: Assign | None):
        self.use, self.value, self.statement = use, value, statement

    @property
    def name(self) -> str:
        return self.use.id

    def flat(self) -> str:
        return f"({self.name} := {self.value.flat()})"


class Let(Expr):
    """`body` with a name for a value that all variants have, and that some of them wrap into more."""

    __slots__ = ("body", "name", "value")

    def __init__(self, name: str, value: Expr, body: Choice):
        self.name, self.value, self.body = name, value, body

    def called(self, name: str) -> Let:
        """The same with another name."""
        body = renamed(self.body, {self.name: name})
        assert isinstance(body, Choice)
        return Let(name, self.value, body)

    def flat(self) -> str:
        return f"({self.name} := {self.value.flat()}; {self.body.flat()})"


# The name of a Let's value until it has one.
UNNAMED = "part\0\0"


def is_constant(expr: Expr) -> bool:
    """A number, a string, or several: nothing that a function computes."""
    if type(expr) is Tuple or type(expr) is List:
        return all(is_constant(e) for e in expr.elements)
    return type(expr) is Text or type(expr) is Unary and is_constant(expr.value)


@overload
def renamed(node: Expr, names: Mapping[str, str]) -> Expr: ...
@overload
def renamed(node: Statement, names: Mapping[str, str]) -> Statement: ...
def renamed(node: object, names: Mapping[str, str]) -> object:
    """A copy, down to all that it is made of, with other names of variables."""

    def word(text: str) -> str:
        return _WORD.sub(lambda m: names.get(m[0], m[0]), text)

    def name(node: Name) -> Name:
        return Name(names[node.id], node.symbol) if node.id in names else node

    def change(node: object) -> object:
        if type(node) is Name:
            return name(node)
        made = rebuilt(node, change)
        made = copied(node) if made is node else made
        if type(made) is Named:
            made.use = name(made.use)
        elif type(made) is Let:
            made.name = names.get(made.name, made.name)
        elif type(made) is Call and type(made.func) is str:
            made.func = names.get(made.func, made.func)
        elif type(made) is Assign or type(made) is Unpack:
            made.targets = [word(t) if type(t) is str else t for t in made.targets]
        elif type(made) is For:
            made.target = word(made.target)
        elif type(made) is Lambda:
            made.params = [word(p) for p in made.params]
        elif type(made) is Def and type(node) is Def:
            made.name = names.get(node.name, node.name)
            made.params = [dataclasses.replace(p, name=names.get(p.name, p.name)) for p in node.params]
        return made

    return change(node)


def bound_in(statement: object) -> list[str]:
    """The names that a statement gives."""
    if type(statement) is Assign or type(statement) is Unpack:
        return [w for t in statement.targets for w in _WORD.findall(t if isinstance(t, str) else t.flat())]
    if type(statement) is For:
        return [*_WORD.findall(statement.target), *[n for s in statement.body for n in bound_in(s)]]
    if type(statement) is Def:
        inner = [n for s in statement.body for n in bound_in(s)]
        return [statement.name, *[p.name for p in statement.params], *inner]
    return []


def names_in(node: object) -> Counter[str]:
    """How often each name is read."""
    found: Counter[str] = Counter()
    for part in nodes_of(node):
        if type(part) is Name:
            found[part.id] += 1
        elif type(part) is Call and type(part.func) is str:
            found[part.func] += 1
    return found


def extent(node: object) -> int:
    """How much text a tree is, in parts."""
    return sum(type(n) not in (Named, Choice, Parameter) for n in nodes_of(node))


def inlined(body: Sequence[Statement], names: Collection[str] = ()) -> list[Statement]:
    """`body` with what is used once, and not in a loop or in a function, where it is used; `names` stay as they are."""
    read = names_in(list(body))
    kept = set(names) | {n.root.id for n in nodes_of(list(body)) if isinstance(n, Leaf)}
    for statement in body:
        inside = [statement] if type(statement) in (For, Def) else [n for n in nodes_of(statement) if type(n) is Lambda]
        kept |= set(names_in(inside))
    held: dict[str, Assign] = {}
    found: list[Statement] = []

    def change(node: object) -> object:
        if type(node) is Name:
            statement = held.pop(node.id, None)
            return node if statement is None else Named(node, statement.value, statement)
        return rebuilt(node, change)

    for statement in body:
        made = statement if type(statement) in (For, Def, Lines) else rebuilt(statement, change)
        target = made.targets[0] if type(made) is Assign and len(made.targets) == 1 else None
        if type(made) is Assign and type(target) is str and read[target] == 1 and target not in kept:
            held[target] = made
        else:
            found.append(made)
    return found


@overload
def bare(expr: Expr) -> Expr: ...
@overload
def bare(expr: object) -> object: ...
def bare(expr: object) -> object:
    return expr.value if type(expr) is Named else expr


def cost_of(node: object) -> int:
    """How much is written, and read, for an expression. Where only a word or a constant differs, that is little."""
    if isinstance(node, Expr) and is_constant(node):
        return 1
    below = sum(map(cost_of, parts_below(node)))
    if type(node) is Choice:
        return below + (1 if all(type(e) is Name or is_constant(e) for _, e in node.ways) else PLACE)
    return below + (type(node) is not Named)


def is_same(node: object) -> bool:
    return not any(type(n) is Choice for n in nodes_of(node))


def parts_of(statement: object) -> Counter[str]:
    """What a statement is made of, without the words for its variables."""
    found: Counter[str] = Counter()
    for node in nodes_of(statement):
        if isinstance(node, Leaf):
            found["".join(step[1] for step in node.steps)] += 1
        elif type(node) is Call and type(node.func) is str:
            found[node.func] += 1
        elif type(node) is Text:
            found[node.text] += 1
        elif type(node) is Attribute:
            found[node.name] += 1
        elif type(node) is Binary:
            found[node.op] += 1
        elif type(node) is Choice:
            continue
        elif type(node) is not Named:
            found[type(node).__name__] += 1
    return found


@overload
def parts_below(node: Expr) -> Sequence[Expr]: ...
@overload
def parts_below(node: object) -> Sequence[Expr | Statement]: ...
def parts_below(node: object) -> Sequence[Expr | Statement]:
    """The nodes that a node is made of."""
    found: list[Expr | Statement] = []
    stack = [getattr(node, slot, None) for slot in reversed(slots_of(node))]
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack.extend(value[::-1])
        elif isinstance(value, (Expr, Statement)):
            found.append(value)
    return found


def below(node: Expr, depth: int) -> list[Expr]:
    """The parts of a node, and theirs, the nearest first."""
    found: list[Expr] = []
    level = [node]
    for _ in range(depth):
        level = [p for n in map(bare, level) if type(n) is not Choice for p in parts_below(n)]
        found += level
    return found


def with_part(node: Expr, place: object, value: Expr) -> Expr:
    def change(node: object) -> object:
        return value if node is place else rebuilt(node, change)

    return value if node is place else rebuilt(node, change)


def free(word: str, taken: set[str]) -> str:
    if word in taken:
        word = re.sub(r"_\d+$", "", word)
    name, count = word, 1
    while name in taken:
        count += 1
        name = f"{word}_{count}"
    return name


# ---------------------------------------------------------------- sizes


def shapes_in(body: Sequence[Statement]) -> dict[str, Expr]:
    """Names that are sizes of an array: {"length": `x.shape[1]`}."""
    found: dict[str, Expr] = {}
    for statement in body:
        if type(statement) is not Assign and type(statement) is not Unpack:
            continue
        value, targets = statement.value, bound_in(statement)
        if type(value) is Attribute and value.name == "shape" and len(targets) > 1:
            found.update({n: Subscript(value, Text(str(i))) for i, n in enumerate(targets)})
        elif len(targets) == 1 and is_size(value):
            found[targets[0]] = value
    return found


def is_size(value: object) -> TypeGuard[Subscript]:
    return type(value) is Subscript and type(value.value) is Attribute and value.value.name == "shape"


def sizes_in_full(args: Sequence[Expr], known: Mapping[str, Expr]) -> list[Expr]:
    found: list[Expr] = []
    for arg in args:
        arg = bare(arg)
        if type(arg) is Name and arg.id in known:
            found.append(known[arg.id])
            continue
        inner = arg.value if type(arg) is Star else None
        cut = inner.index if type(inner) is Subscript and type(inner.index) is Slice else None
        if (
            type(inner) is Subscript
            and cut is not None
            and cut.start is None
            and cut.step is None
            and type(cut.stop) is Text
            and cut.stop.text.isdigit()
        ):
            found += [Subscript(inner.value, Text(str(i))) for i in range(int(cut.stop.text))]
            continue
        found.append(arg)
    return found


def sizes_in_short(args: Sequence[Expr]) -> list[Expr]:
    """`x.shape[0], x.shape[1]` as `*x.shape[:2]`."""
    first = args[0] if args else None
    if not is_size(first):
        return list(args)
    count = 0
    while count < len(args) and is_size(args[count]) and args[count].flat() == f"{first.value.flat()}[{count}]":
        count += 1
    if count < 2:
        return list(args)
    return [Star(Subscript(first.value, Slice(None, Text(str(count)), None))), *args[count:]]
