"""The trees that a function can name: its arguments, parts of them, and what it put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax

from untrace import jax_compat
from untrace.ir.nodes import Atom, Value
from untrace.ir.types import Aval, DType, PyTree
from untrace.module.access_paths import Node, Step, reach_nodes
from untrace.python.tree import Expr, Leaf, Name

# A tree by its leaves; None for one that nothing reads.
Key = tuple[Atom | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Structure:
    """What trees of one kind have in common: an example of one, and the ways to its leaves."""

    example: PyTree
    ways: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Inverse:
    """A function of the text that takes a vector apart into a tree: its name, "" while it has none, and leaves of such a tree;
    None for one that nothing reads."""

    name: str
    structure: Structure
    like: Key

    def gives(self, vector: Aval, leaves: Sequence[Value | None], sizes: Sequence[int]) -> bool:
        """Whether the leaves of its tree are like these, of these sizes."""
        return len(self.like) == len(leaves) and all(
            own is not None
            and own.aval.dtype == vector.dtype
            and math.prod(own.aval.shape) == size
            and (leaf is None or leaf.aval.shape == own.aval.shape)
            for own, leaf, size in zip(self.like, leaves, sizes, strict=True)
        )


class Trees:
    """The trees that a function can name, by their leaves."""

    def __init__(self) -> None:
        self.outer: Trees | None = None  # those of the function around this one
        self.by_leaves: dict[Key, tuple[Leaf, Structure]] = {}
        self.inverses: list[Inverse] = []  # of trees that were made vectors
        self.arguments: set[Atom | None] = set()  # the leaves that came from outside
        self.by_root: dict[str, dict[tuple[Step, ...], tuple[int, PyTree]]] = {}  # way -> number of leaves, example
        self.handed_on: dict[str, str] = {}  # what a call or a loop gives back as it came -> what it was

    def add(self, root: Name, example: PyTree, values: Sequence[Atom | None]) -> None:
        """Registers a variable that holds a tree with these leaves; None for one that nothing reads."""
        nodes = reach_nodes(example)
        root.symbol.leaves = len(values)
        if nodes is not None:
            self.add_nodes(root, nodes, values)

    def add_nodes(self, root: Name, nodes: Sequence[Node], values: Sequence[Atom | None]) -> None:
        """The same, where the nodes of the tree are known."""
        parts = self.by_root[root.id] = {}
        found: dict[Key, tuple[Leaf, Structure]] = {}
        for way, node, ways, start in nodes:
            parts[way] = (len(ways), node)
            if len(ways) > 1:
                structure = Structure(node, tuple([w[len(way) :] for w in ways]))
                # Of trees within each other with the same leaves the innermost: `opt_state[0].trace` is like the
                # parameters, and `opt_state` is not.
                found[key_of(values[start : start + len(ways)])] = (Leaf(root, way), structure)
        for key, tree in found.items():
            self.by_leaves.setdefault(key, tree)

    def add_parts(self, root: Name, example: PyTree, leaves: Mapping[tuple[Step, ...], Value]) -> None:
        """Registers a parameter that holds a tree, of which these leaves are read."""
        nodes = reach_nodes(example)
        if nodes:
            self.add_nodes(root, nodes, [leaves.get(way) for way in nodes[0][2]])
            self.arguments.update(leaves.values())

    def close_over(self, pairs: Iterable[tuple[Value, Expr]]) -> None:
        """Registers the trees of the functions around this one of which these are leaves: (the value here, what it is there)."""
        roots: dict[str, Name] = {}
        leaves: dict[str, dict[tuple[Step, ...], Value]] = {}
        for value, expr in pairs:
            leaf = leaf_behind(expr)
            if leaf is not None:
                roots[leaf.root.id] = leaf.root
                leaves.setdefault(leaf.root.id, {})[leaf.steps] = value
        for word, root in roots.items():
            example = self.outer.node(Leaf(root, ())) if self.outer is not None else None
            if example is not None and len(leaves[word]) > 1:
                self.add_parts(root, example, leaves[word])

    def name(self, root: Name, example: PyTree) -> None:
        """Registers a variable that holds a tree like `example`, whose parts can be passed on."""
        nodes = reach_nodes(example)
        if nodes is not None and root.id not in self.by_root:
            self.by_root[root.id] = {way: (len(ways), node) for way, node, ways, _ in nodes}

    def whole(self, node: PyTree, leaves: Sequence[Leaf | None]) -> Expr | None:
        """The part of a tree that these are all the leaves of, where it has the structure of `node`."""
        first = leaves[0] if leaves else None
        if first is None:
            return None
        own = [x for x in leaves if x is not None and x.root.id == first.root.id]
        if len(own) < len(leaves):
            return None
        if first.root.id not in self.by_root:
            return self.outer.whole(node, leaves) if self.outer is not None else None
        parts = self.by_root[first.root.id]
        for size in range(len(first.steps)):
            count, other = parts.get(first.steps[:size], (0, None))
            if count == len(leaves) and all(x.steps[:size] == first.steps[:size] for x in own):
                if len({x.steps for x in own}) == count and same_structure(node, other):
                    return Leaf(first.root, first.steps[:size]) if size else first.root
        return None

    def node(self, leaf: Leaf) -> PyTree:
        """An example of the tree that an access gives; None where it is no inner node of a known tree."""
        if leaf.root.id in self.by_root:
            return self.by_root[leaf.root.id].get(leaf.steps, (0, None))[1]
        return self.outer.node(leaf) if self.outer is not None else None

    def inverse(self, vector: Aval, leaves: Sequence[Value | None], sizes: Sequence[int]) -> Inverse | None:
        """What takes a vector apart into leaves like these."""
        found = next((i for i in self.inverses if i.gives(vector, leaves, sizes)), None)
        return self.outer.inverse(vector, leaves, sizes) if found is None and self.outer is not None else found

    def origin(self, text: str) -> str:
        """What an access was before calls and loops of this function handed it on."""
        while text in self.handed_on:
            text = self.handed_on[text]
        return text

    def like(self, accept: Callable[[PyTree], bool]) -> Leaf | None:
        """The first tree that `accept` takes."""
        for root, parts in self.by_root.items():
            for way, (_, example) in parts.items():
                if accept(example):
                    return Leaf(Name(root), way)
        return self.outer.like(accept) if self.outer is not None else None


def plain_type(leaf: PyTree) -> tuple[tuple[int, ...], DType] | None:
    """What zeros like a leaf depend on; None where that is more than shape and dtype."""
    if jax_compat.varying_axes(leaf) or getattr(leaf, "weak_type", False) or not hasattr(leaf, "dtype"):
        return None
    return tuple(leaf.shape), leaf.dtype


def same_structure(left: PyTree, right: PyTree) -> bool:
    try:
        return bool(jax.tree.structure(left) == jax.tree.structure(right))
    except Exception:  # a library's `==` of metadata
        return False


def key_of(values: Sequence[Atom | None]) -> Key:
    return tuple(values)


def leaf_behind(operand: Expr) -> Leaf | None:
    """The leaf that an operand is, also where it has a name of its own by now."""
    if isinstance(operand, Leaf):
        return operand
    return operand.symbol.leaf if type(operand) is Name else None


class _Writer(Protocol):
    """What it asks of the writer of a function."""

    trees: Trees

    def zeros_like(self, node: PyTree, parts: Sequence[Expr] | None, way: tuple[Step, ...] = ()) -> Expr | None: ...


class KnownTrees:
    """What the function that `w` writes can say of trees without putting one together."""

    def __init__(self, w: _Writer):
        self.w = w

    def whole(self, node: PyTree, parts: Sequence[Expr]) -> Expr | None:
        """A tree like `node` with these parts as leaves: one that has a name, or zeros like such a one."""
        return self.w.trees.whole(node, [self.leaf(p) for p in parts]) or self.w.zeros_like(node, parts)

    def leaf(self, expr: Expr) -> Leaf | None:
        """The access that an expression is, also where it has a name of its own by now."""
        return leaf_behind(expr)

    def node(self, leaf: Leaf) -> PyTree:
        """An example of the tree behind an access; None where that is no known tree."""
        return self.w.trees.node(leaf)

    def like(self, accept: Callable[[PyTree], bool]) -> Leaf | None:
        """The first tree that has a name and that `accept` takes."""
        return self.w.trees.like(accept)

    def is_part(self, expr: Expr, tree: Leaf, name: str) -> bool:
        """Whether an expression is what a call or a loop that gave the tree has handed on as this attribute."""
        leaf = self.leaf(expr)
        part = Leaf(tree.root, (*tree.steps, ("attribute", name, 0))).flat()
        return self.w.trees.origin(part) == self.w.trees.origin(expr.flat() if leaf is None else leaf.flat())
