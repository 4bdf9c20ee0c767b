"""What a node of the tree is made of: all nodes inside it, and a copy in which parts of it are others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from untrace.python.statements import Assign, Parameter, Statement
from untrace.python.tree import Binary, Call, Expr, Name, Text

Node: TypeAlias = Expr | Statement | Parameter
T = TypeVar("T")
_NODES = (Expr, Statement, Parameter)
_SLOTS: dict[type, tuple[str, ...]] = {}
# Slots that say nothing of what a node computes.
_SILENT = (
    "symbol",
    "origin",
    "frames",
    "is_backward",
    "comment",
    "strength",
    "docstring",
    "annotation",
    "returns",
    "is_named",
    "use",
    "statement",
)


def slots_of(node: object) -> tuple[str, ...]:
    """What a node is made of, in the order in which its class says so; not where it came from."""
    kind = type(node)
    found = _SLOTS.get(kind)
    if found is None:
        names: list[str] = []
        for base in reversed(kind.__mro__):
            names += [s for s in getattr(base, "__slots__", ()) if s not in names]
        found = _SLOTS[kind] = tuple([n for n in names if n not in _SILENT])
    return found


def is_node(value: object) -> bool:
    """Whether a value is a part of the tree that is printed."""
    return isinstance(value, _NODES)


def parts_of(node: object) -> list[object]:
    """What a node is made of, nodes and others."""
    return [getattr(node, slot, None) for slot in slots_of(node)]


# By type, the slots of a node from the last to the first; None for what is no node. Every pass asks for them.
_BACKWARDS: dict[type, tuple[str, ...] | None] = dict.fromkeys((str, int, bool, float, type(None)))


def slots_backwards(value: object) -> tuple[str, ...] | None:
    """`slots_of` a node in reverse, as a stack takes them; None for other values."""
    kind = type(value)
    if kind not in _BACKWARDS:
        _BACKWARDS[kind] = slots_of(value)[::-1] if isinstance(value, _NODES) else None
    return _BACKWARDS[kind]


def nodes_of(node: object) -> Iterator[Node]:
    """A node and all inside it, each before what it is made of."""
    stack: list[Any] = [node]
    known = _BACKWARDS
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is list or kind is tuple:
            stack.extend(value[::-1])
            continue
        slots = known[kind] if kind in known else slots_backwards(value)
        if slots is not None:
            yield value
            if kind is Name or kind is Text:  # most nodes, with none in them
                continue
            for slot in slots:
                part = getattr(value, slot, None)
                if type(part) is not str and part is not None:
                    stack.append(part)


def holds(node: object, kind: type) -> bool:
    """Whether a node of a type that is no Name, Text, Call or Binary is a node or in it."""
    stack: list[Any] = [node]
    while stack:
        value = stack.pop()
        own = type(value)
        if own is Name or own is Text or own is str or value is None:
            continue
        if own is Assign:
            stack.append(value.value)
            stack += value.targets
        elif own is Binary:
            stack.append(value.left)
            stack.append(value.right)
        elif own is Call:
            stack += value.args
            stack += value.kwargs
            stack.append(value.func)
        elif own is list or own is tuple:
            stack += value
        elif isinstance(value, kind):
            return True
        else:
            stack += [getattr(value, slot, None) for slot in slots_backwards(value) or ()]
    return False


def copied(node: T) -> T:
    """A copy of a node, made of the same (what `copy.copy` gives, in a third of the time)."""
    kind = type(node)
    slots = _ALL.get(kind)
    if slots is None:
        every = [s for base in kind.__mro__ for s in getattr(base, "__slots__", ())]
        # A class with a dictionary may hold more than it says.
        slots = _ALL[kind] = () if hasattr(node, "__dict__") else tuple(dict.fromkeys(every))
    if not slots:
        return copy.copy(node)
    made: T = object.__new__(kind)
    for slot in slots:
        if hasattr(node, slot):
            setattr(made, slot, getattr(node, slot))
    return made


_ALL: dict[type, tuple[str, ...]] = {}  # by type, the slots of a node, the silent ones among them


def rebuilt(node: T, change: Callable[[object], object]) -> T:
    """A node with `change` made to what it is made of; the node itself where that changes nothing."""
    made = node
    known = _BACKWARDS
    for slot in _SLOTS.get(type(node)) or slots_of(node):
        value = getattr(node, slot, None)
        kind = type(value)
        if kind is list or kind is tuple:
            new = _changed(value, change)
        elif (known[kind] if kind in known else slots_backwards(value)) is not None:
            new = change(value)
        else:
            continue
        if new is not value:
            if made is node:
                made = copied(node)
            setattr(made, slot, new)
    return made


def _changed(value: object, change: Callable[[object], object]) -> object:
    kind = type(value)
    if (_BACKWARDS[kind] if kind in _BACKWARDS else slots_backwards(value)) is not None:
        return change(value)
    if type(value) is list or type(value) is tuple:
        items = [_changed(item, change) for item in value]
        if any([a is not b for a, b in zip(items, value, strict=True)]):
            return type(value)(items)
    return value
