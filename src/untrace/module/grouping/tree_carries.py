"""A tree that a loop over calls hands on: each call takes it and gives it back with some of its parts changed.

    for _ in range(2):
        nodes, edges = layer(params, senders, nodes, receivers, edges)
                                                                          for _ in range(2):
    return nodes, edges                                             ->        graph = layer(params, graph)
                                                                          return graph.nodes, graph.edges

In the IR the calls take and give arrays. Where what goes from one call into the next are parts of one named tuple or
dataclass, beside others that stay as they are, the function takes that, and returns `graph._replace(nodes=..., edges=...)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from untrace._identifiers import identifier
from untrace._trees import is_namedtuple
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Equation, Function, Local, Value
from untrace.module.access_paths import Layout, is_grouped, packs_of, reach
from untrace.module.grouping.kinds import Handed
from untrace.module.interface.put_together import rebuilt
from untrace.module.interface.writing import Contents, Writer
from untrace.module.loops import of_calls
from untrace.python.statements import Assign
from untrace.python.tree import Expr, Leaf, Name
from untrace.python.types import Type, tree_type

_FEWEST = 2  # parts that change


def note_handed(
    module: Contents, equations: Sequence[Equation], at: int, results: Sequence[Atom], known: Mapping[Value, Leaf]
) -> None:
    """Notes that the calls from place `at` on hand a tree on, where they do. known: leaves of trees that have a name."""
    body = callee_of(equations[at], Local).body
    if body in module.layouts or is_grouped(body) or body.facts.packed_results is not None or module.reroll:
        return
    count = of_calls.run_length(equations, at)
    if count < 2 or body.facts.calls != count:
        return
    run = equations[at : at + count]
    carries = of_calls.carries_of(run, at, of_calls.Uses(equations, results))
    if carries is None or not _FEWEST <= len(carries) == len(body.results):
        return
    leaves = [known.get(a) if type(a) is Value else None for a in run[0].inputs]
    own = [leaf for p in carries if (leaf := leaves[p]) is not None]
    roots = {leaf.root.id for leaf in own}
    if len(own) < len(carries) or len(roots) != 1:
        return
    above = own[0].steps[:-1]
    inside = [
        i for i, x in enumerate(leaves) if x is not None and x.root.id in roots and x.steps[: len(above)] == above
    ]
    if any(x is not None and x.root.id in roots and i not in inside for i, x in enumerate(leaves)):
        return
    steps = [leaf.steps[len(above) :] for i in inside if (leaf := leaves[i]) is not None]
    kept = [i for i in inside if i not in carries]
    if any(len(s) != 1 or s[0][0] != "attribute" for s in steps) or len(kept) < len(carries):
        return
    if any(e.inputs[i] is not run[0].inputs[i] for e in run for i in kept):
        return
    others = [None if i in inside else x for i, x in enumerate(leaves)]
    packs = packs_of(module, body, others, inside)
    module.layouts[body] = Layout([*packs, (inside, steps)])
    way_of = dict(zip(inside, steps, strict=True))
    module.handed[body] = Handed(len(packs), count, {output: way_of[p] for p, output in carries.items()})


def handed_by(w: Writer, run: Sequence[Equation], leaves: Sequence[Leaf | None]) -> tuple[Handed, Leaf] | None:
    """What a run of calls hands on, and the tree that it begins with."""
    body = callee_of(run[0], Local).body
    handed = w.module.handed.get(body)
    if handed is None or handed.count != len(run):
        return None
    trees = w.module.layouts[body].trees(leaves)
    tree = trees[handed.pack] if trees is not None else None
    example = w.trees.node(tree) if tree is not None else None
    if tree is None or not (is_namedtuple(example) or dataclasses.is_dataclass(example)):
        return None
    handed.example = example
    return handed, tree


def variable(w: Writer, run: Sequence[Equation], tree: Leaf, later: Sequence[Atom]) -> tuple[str, Assign | None]:
    """(the loop's variable, what it begins with): the tree's own where nothing needs what it was before."""
    values = {a for a in run[0].inputs if type(a) is Value}
    for atom in later:
        expr = w.names.get(atom) if type(atom) is Value else None
        if atom in values or expr is not None and type(expr) is not Name and tree.root.id in expr.flat():
            break
    else:
        if not tree.steps and w.scope.may_rebind(tree.root.id):
            return tree.root.id, None
    word = tree.steps[-1][1] if tree.steps else tree.root.id
    name = w.scope.fresh(identifier(word, "tree"))
    return name, Assign([name], tree)


def name_parts(w: Writer, run: Sequence[Equation], handed: Handed, name: str) -> None:
    """Makes what the last call gives parts of the variable."""
    root = Name(name)
    known = dict(zip(handed.ways.values(), [run[-1].outputs[i] for i in handed.ways], strict=True))
    places, ways = w.module.layouts[callee_of(run[0], Local).body].packs[handed.pack]
    same = dict(zip(ways, [run[0].inputs[p] for p in places], strict=True))
    values: list[Atom] = []
    nothing: Any = None  # the type of a leaf that nothing is known of
    for leaf in reach(handed.example, root) or []:
        value = known.get(leaf.steps)
        if value is not None:
            w.names[value] = leaf
        values.append(value or same.get(leaf.steps) or Value(nothing))
    w.trees.add(root, handed.example, values)


def returned(w: Writer, body: Function) -> Expr | None:
    """What a function returns that hands a tree on: that tree with other parts."""
    handed = w.module.handed.get(body)
    if handed is None or handed.example is None:
        return None
    places, ways = w.module.layouts[body].packs[handed.pack]
    changed = {way: w.atom(body.results[i]) for i, way in handed.ways.items()}
    root = w.packs[handed.pack]
    w.trees.arguments.update([body.params[p] for p in places])
    leaves = reach(handed.example, root) or []
    own = dict(zip(ways, [body.params[p] for p in places], strict=True))
    nothing: Any = None
    w.trees.add(root, handed.example, [own.get(leaf.steps) or Value(nothing) for leaf in leaves])
    return rebuilt(w, handed.example, [changed.get(leaf.steps, leaf) for leaf in leaves])


def type_of(module: Contents, body: Function, pack: int | None = None) -> Type | None:
    """The type of the tree that a function hands on, where `pack` is that one."""
    handed = module.handed.get(body)
    if handed is None or handed.example is None or pack not in (None, handed.pack):
        return None
    leaves = jax.tree.leaves(handed.example)
    return tree_type(handed.example, [jax.typeof(x) if isinstance(x, (np.ndarray, jax.Array)) else x for x in leaves])
