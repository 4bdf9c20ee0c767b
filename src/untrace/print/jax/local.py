"""Local functions and their calls: `x = attention(params["attention"], x)`.

A function that needs several leaves of one tree takes the tree (`leaves`), the same one at every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from untrace.ir.nodes import Equation, Function, Value
from untrace.print.jax.leaves import Layout, Leaf, bind_leaves, last_word, layout_of
from untrace.print.names import identifier
from untrace.print.tree import Call, Def, Expr, Name, Parameter, Return, Statement


def local_call(w: Any, equation: Equation, operands: Sequence[Expr]) -> Expr:
    """The call of an equation whose callee is a Local function, which is written before the caller."""
    body = equation.callee.body
    leaves = [leaf_behind(w, o) for o in operands]
    layout = layout_of(w.module, body, leaves)
    trees = layout.trees(leaves)
    if not layout.packs or trees is None:
        return Call(w.module.function(body), operands)
    order = _order(body, layout)
    name = w.module.named(("local", id(body)), body.name, lambda n: _definition(w.module, body, layout, order, leaves, n))
    return Call(name, [trees[-1 - i] if i < 0 else operands[i] for i in order])


def leaf_behind(w: Any, operand: Expr) -> Leaf | None:
    """The leaf that an operand is, also where it has a name of its own by now."""
    return operand if type(operand) is Leaf else w.module.leaf_of.get(id(operand))


def _order(body: Function, layout: Layout) -> list[int]:
    """Arguments in the order of the written parameters: -1 - i for pack i, else the place of a parameter."""
    packed = {place for places, _ in layout.packs for place in places}
    return [*(-1 - i for i in range(len(layout.packs))), *(i for i in range(len(body.params)) if i not in packed)]


def _definition(
    module: Any, body: Function, layout: Layout, order: Sequence[int], leaves: Sequence[Leaf | None], name: str
) -> Iterator[Statement]:
    w = module.writer()
    params: list[Parameter] = []
    bound: list[tuple[Value, Leaf]] = []
    for i in order:
        if i >= 0:
            params.append(Parameter(w.bind_parameter(body.params[i]).id))
            continue
        places, ways = layout.packs[-1 - i]
        root = Name(w.scope.fresh(_pack_name(body, layout, leaves[places[0]], len(ways[0]))))
        params.append(Parameter(root.id))
        for place, way in zip(places, ways, strict=True):
            leaf = leaves[place]
            bound.append((body.params[place], Leaf(root, way, leaf.siblings if leaf is not None else 0)))
    order_in_tree = sorted(bound, key=lambda pair: (pair[1].root.id, body.params.index(pair[0])))
    bind_leaves(w, order_in_tree, body.equations, body.results, lambda value, leaf: last_word(leaf) if len(leaf.steps) else "x")
    w.equations(body.equations, body.results)
    w.statements.append(Return(w.results(body.results)))
    yield Def(name, params, w.statements)


def _pack_name(body: Function, layout: Layout, leaf: Any, below: int) -> str:
    """The author's parameter where there is one for it, the root's own name, or the word before the leaves."""
    own = body.extra.get("unmatched", ())
    if len(layout.packs) == 1:
        return identifier(own[0], "params") if len(own) == 1 else "params"
    above = Leaf(leaf.root, leaf.steps[: len(leaf.steps) - below])
    return identifier(last_word(above), "params")
