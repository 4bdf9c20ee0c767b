"""What trees have in common, and where they differ: anti-unification (Plotkin 1970, Reynolds 1970).

Trees are laid over each other from their roots on. Where all have a node of one class, what they have in common has one
of it, with what the parts have in common in it. Everything else is the policy of who asks: which names stand for each
other, what may differ, and what stands there then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from untrace.python.statements import Parameter, Statement
from untrace.python.tree import Expr
from untrace.python.walk import copied, slots_of

Node = Expr | Statement | Parameter
_NODES = (Expr, Statement, Parameter)
Position = tuple[Any, str, tuple[int, ...]]  # (node, slot, places in the sequences there)


class Different(Exception):
    """Trees differ where they may not."""


class AntiUnifier:
    """Lays trees over each other. Raises Different. A policy is a subclass, with its own `part` and `word`.

    position: where something stands in the first of the trees.
    """

    def part(self, position: Position, nodes: Sequence[Node]) -> Node:
        """What stands where the trees have `nodes`."""
        return self.common(nodes)

    def word(self, position: Position, words: Sequence[object]) -> object:
        """The same for what is no node: a name, an operator, a number of dimensions."""
        if any(w != words[0] for w in words):
            raise Different
        return words[0]

    def common(self, nodes: Sequence[Node]) -> Node:
        """One node for nodes of one class: the first where nothing else stands in it."""
        made = first = nodes[0]
        if any(type(n) is not type(first) for n in nodes):
            raise Different
        for slot in slots_of(first):
            values = [getattr(n, slot, None) for n in nodes]
            found = self.value((first, slot, ()), values)
            if found is not values[0]:
                made = copied(first) if made is first else made
                setattr(made, slot, found)
        return made

    def value(self, position: Position, values: Sequence[object]) -> object:
        """What stands in one slot, or in one place of a sequence there."""
        first = values[0]
        if isinstance(first, _NODES):
            nodes = [v for v in values if isinstance(v, _NODES)]
            if len(nodes) < len(values):
                raise Different
            return self.part(position, nodes)
        if not isinstance(first, (list, tuple)):
            return self.word(position, values)
        rows = [v for v in values if isinstance(v, (list, tuple)) and len(v) == len(first)]
        if len(rows) < len(values):
            raise Different
        node, slot, way = position
        items = [self.value((node, slot, (*way, i)), row) for i, row in enumerate(zip(*rows, strict=True))]
        return first if all(a is b for a, b in zip(items, first, strict=True)) else type(first)(items)


def get(position: Position) -> Node:
    """What stands in a place."""
    found = getattr(position[0], position[1])
    for i in position[2]:
        found = found[i]
    return found


def put(position: Position, value: object) -> None:
    """Puts something else there."""
    node, slot, indices = position

    def replaced(old: Sequence[object], left: Sequence[int]) -> object:
        if not left:
            return value
        items: list[Any] = list(old)
        items[left[0]] = replaced(items[left[0]], left[1:])
        return tuple(items) if type(old) is tuple else items

    setattr(node, slot, replaced(getattr(node, slot), indices))


def places_of(node: Node) -> Iterator[Position]:
    """Where the parts of a node stand in it."""

    def below(slot: str, value: object, way: tuple[int, ...]) -> Iterator[Position]:
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                yield from below(slot, item, (*way, i))
        elif isinstance(value, _NODES):
            yield node, slot, way

    for slot in slots_of(node):
        yield from below(slot, getattr(node, slot, None), ())
