"""Local functions and their calls: `x = attention(params["attention"], x)`.

A function that needs several leaves of one tree takes the tree (`leaves`), the same one at every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Equation, Function, Value
from untrace.print.jax.leaves import Layout, Leaf, bind_leaves, last_word, layout_of
from untrace.print.names import identifier
from untrace.print.tree import Call, Def, Expr, Lines, Name, Parameter, Return


def local_call(w: Any, equation: Equation, operands: Sequence[Expr]) -> Expr:
    """The call of an equation whose callee is a Local function, which is written before the caller."""
    body = equation.callee.body
    leaves = [leaf_behind(w, o) for o in operands]
    layout = layout_of(w.module, body, leaves)
    trees = layout.trees(leaves)
    if trees is None:  # another way of calling it than everywhere else: then with the leaves one by one
        layout, trees = Layout([]), []
    order = _order(body, layout)
    name = _written(w.module, body, layout, order, leaves)
    return Call(name, [trees[-1 - i] if i < 0 else operands[i] for i in order])


def leaf_behind(w: Any, operand: Expr) -> Leaf | None:
    """The leaf that an operand is, also where it has a name of its own by now."""
    return operand if type(operand) is Leaf else w.module.leaf_of.get(id(operand))


def _order(body: Function, layout: Layout) -> list[int]:
    """Arguments in the author's order, trees first: -1 - i for pack i, else the place of a parameter."""
    packed = {place for places, _ in layout.packs for place in places}
    own = body.extra.get("definition", ())
    hints = [p.hint for p in body.params]
    # A parameter that none of the author's names fits stays in front, in the order of use.
    rest = [i for i in range(len(hints)) if i not in packed]
    packs = [-1 - i for i in range(len(layout.packs))]
    unmatched = body.extra.get("unmatched", ())
    hints = {i: hints[i] for i in rest}
    if len(packs) == 1 and len(unmatched) == 1:
        hints[-1] = unmatched[0]
    return sorted([*packs, *rest], key=lambda i: own.index(hints[i]) if hints.get(i) in own else -1)


def _written(module: Any, body: Function, layout: Layout, order: Sequence[int], leaves: Sequence[Leaf | None]) -> str:
    """The name of the written function; that of another one with the same text where there is one.

    Functions that differ in types only (of another number of heads, say) are one function in Python.
    """
    key = ("local", id(body), len(layout.packs))
    found = module.locals.get(key)
    if found is None:
        definition = _definition(module, body, layout, order, leaves, "")
        definition.name = hint = identifier(body.name, "fn")
        text = "\n".join(definition.lines(""))
        found = module.locals.get(text)
        if found is None:
            found = module.locals[text] = definition.name = module.scope.fresh(hint)
            module.definitions.append(definition)
        module.locals[key] = found
        module.kept.append(body)
    return found


def _definition(
    module: Any, body: Function, layout: Layout, order: Sequence[int], leaves: Sequence[Leaf | None], name: str
) -> Def:
    w = module.writer()
    params: list[Parameter] = []
    bound: list[tuple[Value, Leaf]] = []
    for i in order:
        if i >= 0:
            leaf = leaves[i]
            hint = last_word(leaf) if leaf is not None and leaf.steps else body.params[i].hint or "x"
            name_ = w.names[body.params[i]] = Name(w.scope.fresh(identifier(hint, "x")))
            params.append(Parameter(name_.id))
            continue
        places, ways = layout.packs[-1 - i]
        root = Name(w.scope.fresh(_pack_name(body, layout, layout.packs[-1 - i], leaves[places[0]])))
        params.append(Parameter(root.id))
        for place, way in zip(places, ways, strict=True):
            leaf = leaves[place]
            bound.append((body.params[place], Leaf(root, way, leaf.siblings if leaf is not None else 0)))
    if body.extra.get("head"):
        w.statements.append(Lines(f"# {body.extra['head']}"))
    bind_leaves(w, bound, body.equations, body.results, lambda value, leaf: last_word(leaf))
    w.equations(body.equations, body.results)
    w.statements.append(Return(w.results(body.results)))
    return Def(name, params, w.statements)


def _pack_name(body: Function, layout: Layout, pack: Any, leaf: Any) -> str:
    """The author's parameter where there is one for it, the root's own name, or the word before the leaves."""
    if "pack_names" in body.extra:
        return identifier(body.extra["pack_names"][layout.packs.index(pack)], "params")
    own = body.extra.get("unmatched", ())
    if len(layout.packs) == 1:
        return identifier(own[0], "params") if len(own) == 1 else "params"
    above = Leaf(leaf.root, leaf.steps[: len(leaf.steps) - len(pack[1][0])])
    return identifier(last_word(above), "params")
