"""`reroll="scan"`: calls of one function in a row become a `lax.scan` over their parameters, stacked.

    layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])

    def step(x, layer):
        return block(layer, x), None

    x, _ = lax.scan(step, x, layers)

This is another program, which computes the same: it is proven by running both. Where it cannot be, the Python loop stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Local
from untrace.lift.naming.words import plural
from untrace.module.loops.elements import Element, note_but_last
from untrace.module.loops.of_calls import Turns
from untrace.module.nested import group, put_definition
from untrace.python.names import Scope
from untrace.python.statements import Assign, Def, Parameter, Return, Statement
from untrace.python.tree import Call, Expr, Lambda, Leaf, Name, Star, Text, Tuple, along


def scan_statements(w: Any, turns: Turns) -> list[Statement]:
    """The statements of such a scan."""
    carries, targets = turns.carries, turns.targets
    module = w.module
    module.modules.update({"jax", "jnp", "lax"})
    module.scans += 1
    scope = Scope(w.scope)
    args: list[Any] = [Name(carries[a]) if type(a) is int else a for a in turns.args]
    body: list[Statement] = []
    xs: list[Expr] = []
    names: list[str] = []
    stacked: list[Statement] = []
    by_source: dict[Any, str] = {}
    for place, element, is_array in turns.elements:
        known = by_source.get(element.source)
        if known is None:
            word = identifier(element.word(), "layer")
            whole = w.scope.fresh(plural(word))
            known = by_source[element.source] = scope.fresh(f"{word}_params" if w.scope.taken(word) else word)
            stacked.append(Assign([whole], _stack(element, is_array)))
            names.append(known)
            xs.append(Name(whole))
        args[place] = along(Name(known), element.below)
    own = list(carries.values())
    params = [_parameter(scope, own, "carry", body), _parameter(scope, names, "inputs", body)]
    call = Call(turns.function, args)
    result: Expr = call
    if len(targets) > 1:
        body.append(Assign(targets, call))
        result = group([Name(name) for name in own])
    body.append(Return(Tuple([result, Text("None")])))
    step = w.scope.fresh("step")
    statements = [*stacked]
    put_definition(statements, Def(step, params, body))
    arguments = [Name(step), group(turns.start), *([group(xs)] if xs else [])]
    kwargs = [] if xs else [("length", Text(str(turns.length)))]
    target = own[0] if len(own) == 1 else Tuple([Name(name) for name in own])
    statements.append(Assign([target, "_"], Call("lax.scan", arguments, kwargs)))
    return statements


def _parameter(scope: Scope, names: Sequence[str], whole: str, body: list[Statement]) -> Parameter:
    if len(names) == 1:
        return Parameter(names[0])
    if not names:
        return Parameter("_")
    packed = scope.fresh(whole)
    body.append(Assign(list(names), Name(packed)))
    return Parameter(packed)


def _stack(element: Element, is_array: bool) -> Expr:
    """All elements as one, with a leading axis in each leaf."""
    whole = element.iterable()
    if whole is not None:
        note_but_last(whole)
    if is_array and whole is not None and type(whole) is not Call:
        return Call("jnp.stack", [whole])
    stack = Lambda(["*leaves"], Call("jnp.stack", [Name("leaves")]))
    if whole is not None:
        return Call("jax.tree.map", [stack, Star(whole)])
    each = [Leaf(element.root, (*element.above, key)) for key in element.keys]
    return Call("jax.tree.map", [stack, *each])


def note_unscanned(w: Any, equations: Sequence[Equation], at: int) -> None:
    """Says why the call at place `at` and the one before it, of a function of the same name, are no scan."""
    before, here = equations[at - 1] if at else None, equations[at]
    own = callee_of(here, Local).body
    if before is None or type(before.callee) is not Local or before.callee.body.name != own.name:
        return
    if not any(o is not None and any(a is o for a in here.inputs) for o in before.outputs):
        return
    first, second = before.callee.body, own
    name = identifier(second.name, "fn")
    why = "they go through no list, or give more than the next one takes"
    if first is not second:
        kinds = [(str(p.aval), str(q.aval)) for p, q in zip(first.params, second.params, strict=False)]
        different = [(p, q) for p, q in kinds if p != q]
        why = "they do not compute the same"
        if different:
            why = f"a parameter is {different[0][0]} in one of them and {different[0][1]} in the next"
    note = f'reroll="scan" leaves calls of `{name}` as they are: {why}'
    if note not in w.module.notes:
        w.module.notes.append(note)
