"""Which values are leaves of one tree: a function that needs several of them is passed the tree, one that gives all of them
gives the tree, and a reader counts one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax

from untrace._trees import is_simple, parts_by_name
from untrace.ir.calls import is_call, trees_given
from untrace.ir.nodes import Atom, Function, Passed, Value, functions_called
from untrace.ir.types import PyTree
from untrace.lift.closed_constants import closed_over
from untrace.provenance.returns import Field


@dataclass(frozen=True, eq=False, slots=True)
class Root:
    """A tree that values are leaves of. example: one like it; None where it is not known. first: the number of its first leaf
    among all leaves."""

    example: PyTree
    first: int

    @property
    def count(self) -> int:
        """How many leaves it has; 0 where that is not known."""
        return 0 if self.example is None else len(jax.tree.leaves(self.example))


class TreeRoots:
    """The trees of a program, by their leaves."""

    def __init__(self, entry: Function, examples: Sequence[PyTree]):
        self.root: dict[Passed, Root] = {}
        """Which tree a value is a leaf of."""
        self.number: dict[Passed, int] = {}
        """That of a leaf among all leaves."""
        # Named tuples and dataclasses of leaves, with these by their names, by the name of their class.
        self._of_class: dict[str, list[tuple[PyTree, Mapping[str, object]]]] = {}
        number = 0
        for example in examples:
            count = len(jax.tree.leaves(example))
            self.add(Root(example, number), entry.params[number : number + count])
            number += count
        self._entry = entry
        self._note(entry)

    def pass_on(self) -> None:
        """Makes the trees known that were registered since to what is mapped, loops over and closes over their leaves."""
        self._note(self._entry, again=True)

    def add(self, root: Root, leaves: Sequence[Passed | None]) -> None:
        """Registers the leaves of a tree, in order; one that is its only leaf has a number alone."""
        for node, parts in _with_named_leaves(root.example):
            alike = self._of_class.setdefault(type(node).__name__, [])
            if not any(_same_types(parts.values(), other.values()) for _, other in alike):
                alike.append((node, parts))
        for i, leaf in enumerate(leaves):
            if leaf is not None:
                self.number[leaf] = root.first + i
                if len(leaves) > 1:
                    self.root[leaf] = root

    def add_named(self, fields: Mapping[Field, Value]) -> None:
        """Registers the arguments of a class that is called, where there is a tree of that name with such fields."""
        leaves = list(fields.values())
        owner = next((field.owner for field in fields if field.owner), "")
        for example, parts in self._of_class.get(owner, ()):
            places = dict(enumerate(parts))
            named = {f.name or places.get(int(f[1:])): leaf for f, leaf in fields.items()}
            known = [named[name] for name in parts if name in named]
            if len(known) == len(parts) == len(leaves) and _same_types(parts.values(), [v.aval for v in known]):
                roots = {self.root[leaf] for leaf in known if leaf in self.root}
                if not roots:
                    tree = jax.tree.structure(example)
                    self.add(Root(jax.tree.unflatten(tree, [v.aval for v in known]), 0), known)
                for root in roots if len(roots) == 1 else ():
                    places = [
                        self.number[leaf] - root.first if leaf in self.root else i for i, leaf in enumerate(known)
                    ]
                    if root.count == len(known) and places == list(range(len(known))):
                        self.add(root, known)  # that of a choice, with the leaves that it hands on
                return

    def fields_of(self, owner: str, count: int) -> list[str]:
        """The names of the fields of a class that has so many of them; [] where none is known."""
        return next((list(parts) for _, parts in self._of_class.get(owner, ()) if len(parts) == count), [])

    def leaves_of(self, values: Sequence[Passed]) -> Root | None:
        """The tree whose leaves these are, all of them and in order."""
        root = self.root.get(values[0])
        if root is None or root.count != len(values):
            return None
        numbered = enumerate(values, root.first)
        return root if all(self.root.get(v) is root and self.number[v] == i for i, v in numbered) else None

    def whole(self, values: Sequence[Value]) -> Iterator[tuple[Root, list[int]]]:
        """The trees that are among these values and can be put together, each with the places of its leaves in order."""
        places: dict[Root, dict[int, int]] = {}
        for place, value in enumerate(values):
            root = self.root.get(value)
            if root is not None:
                places.setdefault(root, {})[self.number[value]] = place
        for root, found in places.items():
            if len(found) == root.count and is_simple(root.example):
                yield root, [found[i] for i in sorted(found)]

    def _note(self, function: Function, again: bool = False) -> None:
        """The trees in `function`, and in what it maps, loops over and differentiates.

        A mapped function takes, or closes over, the leaves of the same trees; a loop has trees of its own, and gives some.
        """
        for equation in function.equations:
            for example, leaves in () if again else trees_given(equation):
                self.add(Root(example, 0), leaves)
            for body, operands in closed_over(equation):
                self._pass(body, operands)
            for body in functions_called(equation):
                known = body.facts.trees
                if is_call(equation) and known is None:
                    self._pass(body, equation.inputs)
                    self._note(body, again)
                elif known is not None and again:
                    self._note(body, again)
                elif known is not None:
                    numbers = {p: i for i, p in enumerate(p for tree in known.args for p in tree.places)}
                    self.number.update((body.params[p], i) for p, i in numbers.items())
                    for tree in known.subtrees():
                        self.add(Root(tree.example, numbers[tree.places[0]]), [body.params[p] for p in tree.places])
                    self._note(body)

    def _pass(self, body: Function, operands: Sequence[Atom]) -> None:
        for param, atom in zip(body.params, operands, strict=False):
            if type(atom) is Value and atom in self.root:
                self.root[param], self.number[param] = self.root[atom], self.number[atom]


def _with_named_leaves(tree: PyTree) -> Iterator[tuple[PyTree, Mapping[str, object]]]:
    """The named tuples and dataclasses of leaves in a tree, with these by their names."""
    named = parts_by_name(tree)
    if named and jax.tree_util.all_leaves(named.values()):
        yield tree, named
    for part in (tree if type(tree) is dict else named or {}).values():
        yield from _with_named_leaves(part)
    for part in tree if type(tree) in (list, tuple) else ():
        yield from _with_named_leaves(part)


def _same_types(one: Collection[object], other: Collection[object]) -> bool:
    return len(one) == len(other) and all(_type_of(a) == _type_of(b) for a, b in zip(one, other, strict=True))


def _type_of(leaf: object) -> Hashable:
    """But for its sizes."""
    return len(getattr(leaf, "shape", ())), getattr(leaf, "dtype", None)
