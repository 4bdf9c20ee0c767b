"""Calls that a library makes for the leaves of trees, one after the other.

`jax.tree.map` says most of them better than a function and its calls do (`tree_maps`). Not those that take several
neighbouring leaves of one tree each, as an optimiser does whose state is a list of (parameter, mean, variance): no map
over trees gives a call the second and the third leaf of the same tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from untrace.ir.nodes import Passed
from untrace.lift.outline.regions import Piece, Shape
from untrace.lift.outline.tree_roots import Root, TreeRoots

LEAVES = 3  # calls in a row for different types are those for the leaves of a tree


class Turns:
    """Which calls are those for the leaves of `trees`; what they give are leaves of others."""

    def __init__(self, trees: TreeRoots):
        self._trees = trees
        self.mapped: set[Piece] = set()  # that `jax.tree.map` says better
        self._groups: dict[Piece, list[list[int]]] = {}  # places of neighbouring leaves, by call
        self._families: dict[Shape, list[Shape]] = {}

    def find(self, items: Sequence[int | Piece]) -> None:
        """Notes those among `items` and inside them."""
        runs = {run[0]: run for run in _runs(items) if self._is_over_leaves(run)}
        for item in items:
            if type(item) is Piece:
                if item in runs:
                    self._note(runs[item])
                self.find(item.items)

    def _note(self, run: Sequence[Piece]) -> None:
        groups = self._neighbours(run)
        if groups:
            family = list({piece.shape: piece.shape for piece in run}.values())
            self._families.update((shape, family) for shape in family)
            self._groups.update((piece, groups) for piece in run)
            return
        self.mapped.update(run)
        like = self._tree_of(run)
        for rows in zip(*[[piece.values[n] for n in piece.shape.results] for piece in run], strict=False):
            example = (
                None if like is None else jax.tree.unflatten(jax.tree.structure(like.example), [v.aval for v in rows])
            )
            self._trees.add(Root(example, 0), rows)

    def maps(self, items: Sequence[int | Piece]) -> bool:
        """Whether there are some among `items` that `jax.tree.map` says better."""
        return any(not self._neighbours(run) for run in _runs(items) if self._is_over_leaves(run))

    def _is_over_leaves(self, run: Sequence[Piece]) -> bool:
        """Whether the calls are made for the leaves of a tree: an author's own loop may go through anything."""
        frame = run[0].call.frame
        return frame is None or frame.library or frame.maps_leaves or self._tree_of(run) is not None

    def _tree_of(self, run: Sequence[Piece]) -> Root | None:
        """A tree whose leaves the calls are passed, one each."""
        columns = zip(*[piece.inputs for piece in run], strict=True) if len({len(p.inputs) for p in run}) == 1 else ()
        return next(filter(None, [self._trees.leaves_of(column) for column in columns]), None)

    def family(self, shape: Shape) -> Sequence[Shape]:
        """The Shapes of the calls beside those of `shape`: one function for arrays of other ranks."""
        return self._families.get(shape, [shape])

    def together(self, piece: Piece) -> list[list[int]] | None:
        """Places of the inputs of a call that are neighbours in their tree; None where it is not one of those."""
        return self._groups.get(piece)

    def _neighbours(self, run: Sequence[Piece]) -> list[list[int]]:
        """Places whose inputs are neighbours in one tree, at every call others, which come after those of the call before."""
        if len({len(piece.inputs) for piece in run}) > 1:
            return []
        first = run[0].inputs
        leaves = [i for i, v in enumerate(first) if v in self._trees.root and any(p.inputs[i] is not v for p in run)]
        groups: list[list[int]] = []
        for place in sorted(leaves, key=lambda i: self._trees.number[first[i]]):
            if groups and self._are_neighbours([first[i] for i in (groups[-1][-1], place)]):
                groups[-1].append(place)
            else:
                groups.append([place])
        return [places for places in groups if len(places) > 1 and self._follow(run, places)]

    def _are_neighbours(self, leaves: Sequence[Passed]) -> bool:
        numbers = [self._trees.number.get(leaf, -1) for leaf in leaves]
        trees = {self._trees.root.get(leaf) for leaf in leaves}
        return len(trees) == 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def _follow(self, run: Sequence[Piece], places: Sequence[int]) -> bool:
        """Whether these are neighbours at every call."""
        leaves = [[piece.inputs[place] for place in places] for piece in run]
        firsts = [self._trees.number.get(turn[0], -1) for turn in leaves]
        return all(self._are_neighbours(turn) for turn in leaves) and firsts == sorted(set(firsts))


def _runs(items: Sequence[int | Piece]) -> list[list[Piece]]:
    """Calls of one function from one place, one after the other and for different types."""
    found: list[list[Piece]] = []
    run: list[Piece] = []
    for item in [*items, None]:
        if run and type(item) is Piece:
            call, before = item.call, run[-1].call
            if call.callee.code is before.callee.code and call.frame is before.frame and not call.backward:
                run.append(item)
                continue
        if len(run) >= LEAVES and len({(p.shape, p.variant) for p in run}) > 1:
            made = {v for p in run for v in p.values}
            if made.isdisjoint([a for p in run for a in p.inputs]):  # else they are layers
                found.append(run)
        run = [item] if type(item) is Piece else []
    return found
