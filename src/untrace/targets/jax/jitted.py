"""Jitted and checkpointed functions with the author's pytrees: `params, loss = step(params, batch)`, where a jaxpr has the leaves.

The trees are noted with those of loops (`capture/body_trees.py`). A function without any is written by the rule of `jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace.ir.nodes import Function, Value
from untrace.ir.trees import BodyTrees, Tree
from untrace.lift.naming import parameters
from untrace.module.access_paths import last_word, reach
from untrace.module.grouping.bound_leaves import bind_leaves
from untrace.module.interface.put_together import rebuilt
from untrace.module.nested import argument_words, hint_of
from untrace.python.statements import Def, Parameter, Return, Statement, returned
from untrace.python.tree import Call, Expr, Leaf, Name
from untrace.python.types import array_type, tree_type
from untrace.targets.jax.loop_trees import assign, given, trees_of


def jit(
    w: Any,
    operands: Sequence[Expr],
    body: Function,
    decorated: Callable[[Sequence[bool]], Expr],
    donated: Sequence[bool],
    name: str,
) -> Any:
    """The call of a jitted function that takes or gives trees, and its definition; None where it has none.

    decorated: the decorator, by which arguments are donated. donated: which leaves are.
    """
    trees = trees_of(w, body)
    if trees is None:
        return None
    closed = _closed_over(body, trees)
    leaves = [{donated[p] for p in places} for places in (*[(i,) for i in closed], *[t.places for t in trees.args])]
    if any(len(each) > 1 for each in leaves):
        return None
    return called(w, operands, body, decorated([True in each for each in leaves]), "jit", name)


def called(w: Any, operands: Sequence[Expr], body: Function, decorator: Expr, kind: str, name: str) -> Any:
    """The call of a decorated function that takes or gives trees, and its definition; None where it has none.

    kind: what JAX traces such a function for.
    """
    trees = trees_of(w, body)
    if trees is None or trees.kind != kind:
        return None
    closed = _closed_over(body, trees)
    count = len(w.statements)
    try:

        def build(written: str) -> Iterator[Statement]:
            yield _definition(w.module, body, closed, trees.args, trees.out, written, decorator)

        words = argument_words(body, 0)
        own = [words[tree.places[0]][0] if tree.places else "" for tree in trees.args]
        made = [given(w, tree, operands, word) for tree, word in zip(trees.args, own, strict=True)]
        arguments = [*[operands[i] for i in closed], *made]
        written = w.module.named((kind, body, decorator.flat(), "trees"), name, build)
    except UnsupportedPrimitiveError:  # a tree that has no source form
        del w.statements[count:]
        return None
    return assign(w, [(trees.out, ())], body, Call(written, arguments), "out", is_call=True)


def _closed_over(body: Function, trees: BodyTrees) -> list[int]:
    inside = {p for tree in trees.args for p in tree.places}
    return [i for i in range(len(body.params)) if i not in inside]


def _definition(
    module: Any, body: Function, closed: Sequence[int], args: Sequence[Tree], out: Tree, name: str, decorator: Expr
) -> Def:
    w = module.writer()
    words = argument_words(body, 0)
    params: list[Parameter] = []
    types: list[tuple[str, Any]] = []
    leaves: list[tuple[Value, Leaf]] = []

    def add_array(value: Value, word: str) -> None:
        params.append(Parameter(w.bind_parameter(value, word).id))
        types.append((params[-1].name, array_type(value.aval)))

    for i in closed:
        add_array(body.params[i], "x")
    for tree in args:
        values = [body.params[p] for p in tree.places]
        word = (words[tree.places[0]][0] if tree.places else "") or "x"
        if tree.is_leaf:
            add_array(values[0], word)
            continue
        root = Name(w.scope.fresh(identifier(word, "x")))
        params.append(Parameter(root.id))
        types.append((root.id, tree_type(tree.example, [v.aval for v in values])))
        leaves.extend(zip(values, reach(tree.example, root) or [], strict=True))
        w.trees.add(root, tree.example, values)
        w.trees.arguments.update(values)
    authors = _authors_names(body, args)
    bind_leaves(
        w,
        leaves,
        body.equations,
        body.results,
        lambda value, leaf: authors.get(value) or hint_of(value) or last_word(leaf),
        frozenset(authors),
    )
    w.equations(body.equations, body.results)
    atoms = [w.atom(body.results[p]) for p in out.places]
    value = atoms[0] if out.is_leaf else rebuilt(w, out.example, atoms, True)
    w.statements.append(Return(returned(w.statements, value)))
    definition = Def(name, params, w.statements, [decorator])
    result = tree_type(out.example, [body.results[p].aval for p in out.places])
    module.described.describe(definition, types, result)
    return definition


def _authors_names(body: Function, args: Sequence[Tree]) -> dict[Value, str]:
    """The leaves of tuples that the author takes apart: `x, y = batch`."""
    names = parameters.unpacked_names(body.jaxpr)
    paths = [parameters.parse_path(p) for p in jax_compat.argument_names(body.jaxpr) or ()]
    return {
        body.params[p]: names[paths[p]] for tree in args for p in tree.places if p < len(paths) and paths[p] in names
    }
