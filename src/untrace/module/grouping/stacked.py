"""Trees of stacked arrays that a loop goes through or makes, where a jaxpr has the leaves and nothing else is known of them.

    def block_bwd(d_x, inputs):
        x, layer = inputs
        ...
        return d_x_2, {"b": d_y.sum(axis=0), "w": x.T @ d_y}

    d_x, d_layers = lax.scan(block_bwd, d_x, (xs, params["layers"]), reverse=True)

Of the loops that differentiation makes, the capture notes no trees. Operands in a row that are all the leaves of one tree
are that tree; results in a row that go to all the leaves of one (`result_trees`) come as that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from untrace._identifiers import identifier
from untrace._trees import is_simple
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Equation, Scan, Value
from untrace.ir.scans import is_plain_scan
from untrace.ir.trees import Tree
from untrace.ir.types import PyTree
from untrace.lift.naming.words import clean
from untrace.module.access_paths import last_word, reach, rows
from untrace.module.grouping.kinds import Place, Row, Way
from untrace.module.interface.put_together import rebuilt
from untrace.module.interface.writing import Writer
from untrace.module.known_trees import leaf_behind
from untrace.module.nested import Body, group, unpacked
from untrace.provenance.sites import Provenance, names_by_part
from untrace.python.tree import Expr, Leaf, Name

T = TypeVar("T")

# ---------------------------------------------------------------- what a loop goes through


def gone_through(w: Writer, operands: Sequence[Expr]) -> list[Row]:
    """The trees among what a loop is given for its elements."""
    leaves = [leaf_behind(x) for x in operands]

    def ways(node: Leaf) -> Sequence[Way] | None:
        example = w.trees.node(node)
        found = None if example is None else reach(example, Name("x"))
        return None if found is None else [leaf.steps for leaf in found]

    return [Row(places, tuple(inside), w.trees.node(node), node) for places, inside, node in rows(leaves, ways)]


def as_trees(arrays: Sequence[Tree], found: Sequence[Row]) -> list[Tree]:
    """Arrays as these trees and the other arrays."""

    def of(row: Row) -> Tree:
        leaves = [arrays[p] for p in row.places]
        places = tuple([p for leaf in leaves for p in leaf.places])
        return Tree(row.example, places).of([leaf.example for leaf in leaves])

    return with_trees(found, arrays, of)


# ---------------------------------------------------------------- what it makes


def made(equation: Equation, places: Mapping[Atom, Place]) -> list[Row]:
    """The trees among what a loop stacks. places: where in which tree a value goes (`kinds.Place`)."""
    loop = callee_of(equation, Scan)
    if loop.body.facts.trees is not None or not is_plain_scan(equation):
        return []
    outputs = equation.outputs[loop.carries :]
    goes = [None if o is None else places.get(o) for o in outputs]
    names: dict[Hashable, Name] = {}
    nodes: dict[str, dict[Way, tuple[PyTree, int]]] = {}
    leaves: list[Leaf | None] = []
    for place in goes:
        if place is None:
            leaves.append(None)
            continue
        root = names.setdefault(place.tree, Name(f"tree_{len(names)}"))
        nodes[root.id] = place.nodes
        leaves.append(Leaf(root, place.way))

    def example(node: Leaf) -> PyTree:
        return nodes[node.root.id].get(node.steps, (None, 0))[0]

    def ways(node: Leaf) -> Sequence[Way] | None:
        tree = example(node)
        found = reach(tree, Name("x")) if tree is not None and is_simple(tree) else None
        return None if found is None else [leaf.steps for leaf in found]

    return [Row(places, tuple(inside), example(node), node) for places, inside, node in rows(leaves, ways)]


def value(body: Body, results: Sequence[Atom], found: Sequence[Row]) -> Expr:
    """What the body gives for `results`."""
    inner = body.writer
    atoms = [inner.atom(r) for r in results]
    return group(with_trees(found, atoms, lambda row: rebuilt(inner, row.example, [atoms[p] for p in row.places])))


def targets(w: Writer, outputs: Sequence[Value | None], bases: Sequence[str], found: Sequence[Row]) -> Expr:
    """What the stacked arrays are bound to."""
    inside = {place for row in found for place in row.places}
    single: list[Expr] = []
    for place, (output, base) in enumerate(zip(outputs, bases, strict=True)):
        read = output is not None and place not in inside and w.is_read_later(output)
        single.append(Name(w._target(output, base) if read else "_"))
    author = {path: clean(t.name) for path, t in names_by_part(Provenance().site(w.equation.origin)).items()}
    whole = author.get((1,)) or author.get((1, 0)) if len(found) == 1 else None

    def bind(row: Row) -> Expr:
        values = [v for p in row.places if (v := outputs[p]) is not None]  # each goes somewhere
        root = Name(w.scope.fresh(_name(row, values, whole)))
        w.names.update((v, Leaf(root, way)) for v, way in zip(values, row.ways, strict=True))
        w.trees.add(root, row.example, values)
        return root

    return unpacked(with_trees(found, single, bind))


def with_trees(found: Sequence[Row], single: Sequence[T], tree: Callable[[Row], T]) -> list[T]:
    """What stands for each value, and for each row of them."""
    starts = {row.places.start: row for row in found}
    inside = {place for row in found for place in row.places}
    places = [place for place in range(len(single)) if place in starts or place not in inside]
    return [tree(starts[place]) if place in starts else single[place] for place in places]


def _name(row: Row, values: Sequence[Value], author: str | None) -> str:
    word = last_word(Leaf(Name(""), row.node.steps))
    if all(v.hint and v.hint.startswith("d_") for v in values):
        return identifier(f"d_{clean(word)}" if word else "grads", "grads")
    return identifier(author or clean(word or "ys"), "ys")
