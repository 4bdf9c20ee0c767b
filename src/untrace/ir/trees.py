"""The pytrees of a function: what the author's `step(state, batch)` takes and gives, where a jaxpr keeps the leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from untrace.ir.types import Aval, PyTree
from untrace.ir.values import Atom, Value


@dataclass(frozen=True, slots=True)
class Tree:
    """A pytree with any leaves, and where they are: places among a function's parameters, or its results.

    Of a result, `-1 - i` stands for parameter i, which the loop only hands on.
    """

    example: PyTree
    places: tuple[int, ...]

    def of(self, leaves: Sequence[Aval]) -> Tree:
        """The same tree with other leaves."""
        return Tree(jax.tree.unflatten(jax.tree.structure(self.example), leaves), self.places)

    @property
    def is_leaf(self) -> bool:
        return jax.tree_util.all_leaves([self.example])

    def parts(self) -> list[Tree]:
        """The elements of a tuple."""
        found, place = [], 0
        for part in self.example:
            count = len(jax.tree.leaves(part))
            found.append(Tree(part, self.places[place : place + count]))
            place += count
        return found

    def elements(self) -> list[Tree]:
        """The elements of a tuple, and of tuples in it: what its author has names for."""
        if type(self.example) is not tuple:
            return [self]
        return [element for part in self.parts() for element in part.elements()]

    def nested(self) -> bool:
        """Whether it is more than a leaf, or a tuple of leaves."""
        if self.is_leaf or self.example is None:
            return False
        parts = list(self.example) if type(self.example) is tuple else None
        return parts is None or not jax.tree_util.all_leaves([p for p in parts if p is not None])


@dataclass(frozen=True, slots=True)
class BodyTrees:
    """The trees of one body: its arguments and its result. kind: what JAX traced it for (scan, while_body, fori_loop).

    names, place: those of the arguments, and where the function is defined, where JAX traced another one for it.
    """

    kind: str
    args: tuple[Tree, ...]
    out: Tree
    names: tuple[str, ...] = ()
    place: str | None = None

    def typed(self, params: Sequence[Value], results: Sequence[Atom]) -> BodyTrees:
        """The same with the types of this very body for leaves: it may have been batched."""

        def typed(tree: Tree) -> Tree:
            atoms = [results[p] if p >= 0 else params[-1 - p] for p in tree.places]
            return tree.of([a.aval for a in atoms])

        args = [tree.of([params[p].aval for p in tree.places]) for tree in self.args]
        return replace(self, args=tuple(args), out=typed(self.out))

    def paths(self, count: int) -> tuple[list[str], list[str]]:
        """The paths of `count` inputs, and those of the results, by `names`."""
        inputs = [""] * count
        for name, tree in zip(self.names, self.args, strict=True):
            for way, place in zip(_ways(tree.example), tree.places, strict=True):
                inputs[place] = name + way
        ways = zip(_ways(self.out.example), self.out.places, strict=True)
        return inputs, ["result" + way for way, place in ways if place >= 0]

    def whole(self) -> list[int]:
        """The places of the leaves that come as parts of a tree, where any such argument is more than a tuple of leaves."""
        nested = any(tree.nested() for tree in self.args)
        return [p for tree in self.args if nested and not tree.is_leaf for p in tree.places]

    def subtrees(self) -> list[Tree]:
        """The arguments that are more than a leaf; the elements of those that are tuples."""
        split = [p for tree in self.args for p in (tree.parts() if type(tree.example) is tuple else [tree])]
        return [tree for tree in split if len(tree.places) > 1]


def _ways(example: PyTree) -> list[str]:
    return [jax.tree_util.keystr(way) for way, _ in jax.tree_util.tree_leaves_with_path(example)]
