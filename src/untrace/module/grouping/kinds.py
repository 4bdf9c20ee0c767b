"""What is known of values that go together in a tree, where they go through calls and loops of a function."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from untrace.ir.nodes import Equation, Value
from untrace.ir.types import PyTree
from untrace.module.access_paths import Step
from untrace.python.tree import Leaf

Way = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value goes: `tree` (a name for it), the way in it, and its nodes by the way there, each with the number of its
    leaves. `names`: the author's for parts of it, by the indices of the way there."""

    tree: Hashable
    way: Way
    nodes: dict[Way, tuple[PyTree, int]] = field(compare=False, hash=False)
    names: Mapping[tuple[int | str, ...], str] = field(default_factory=dict, compare=False, hash=False)


@dataclass(slots=True)
class Group:
    """Results of a function that are one tree: their places in its results, and the ways to them in `example`. `words`: what
    the tree of a call is called."""

    places: tuple[int, ...]
    ways: tuple[Way, ...]
    example: PyTree
    words: dict[Equation, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Sum:
    """Carried values that are the leaves of `example`, in its order: their places in the carry, the way to the tree in the
    one that it ends in, the equations that add to each leaf, and what these add, one after the other."""

    places: tuple[int, ...]
    ways: tuple[Way, ...]
    example: PyTree
    prefix: Way
    additions: tuple[Equation, ...]
    terms: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """Values in a row that are the leaves of `example`, in its order: their places, the ways to them from there, and the
    way to the tree in the one that it is in."""

    places: range
    ways: tuple[Way, ...]
    example: PyTree
    node: Leaf
