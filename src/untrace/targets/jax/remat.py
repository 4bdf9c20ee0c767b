"""`jax.checkpoint` in idiomatic style: a decorator on a function of the module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace._identifiers import identifier
from untrace.ir.nodes import Function
from untrace.module import local_calls
from untrace.module.access_paths import Layout
from untrace.module.nested import argument_words
from untrace.module.roles import call_name
from untrace.module.rules import WRITTEN, Whole
from untrace.python.statements import Assign, Statement
from untrace.python.tree import Call, Expr, Lambda, Leaf, Name, Subscript, Text, Tuple
from untrace.targets.jax import jitted

_WORD = re.compile(r"[A-Za-z_]\w*")


def checkpoint(
    w: Any,
    operands: Sequence[Expr],
    jaxpr: Function,
    options: Sequence[tuple[str, Expr]],
    differentiated: bool,
) -> Any:
    """The call of a checkpointed function. `options`: the keyword arguments that `jax.checkpoint` needs.

    differentiated: what differentiation leaves behind; `jax.checkpoint` makes only the other form.
    """
    module = w.module
    module.modules.add("jax")
    own = jax_compat.function_name(jaxpr.jaxpr) if jaxpr.jaxpr is not None else ""
    name = identifier(own if own and not own.startswith("<") else "checkpointed", "checkpointed")
    for param, (_, word) in zip(jaxpr.params, argument_words(jaxpr, 0), strict=True):
        if word and not param.hint:
            param.hint = word
    if differentiated:
        name = call_name(w.equation, name)
        decorators: list[Expr] = []
    elif options:
        module.modules.add("functools")
        decorators = [Call("functools.partial", [Text("jax.checkpoint")], options)]
    else:
        decorators = [Text("jax.checkpoint")]

    if not differentiated:
        found = jitted.called(w, operands, jaxpr, decorators[0], "checkpoint / remat", name)
        if found is not None:
            return found

    def build(written: str) -> Iterator[Statement]:
        yield module.define(jaxpr, written, decorators)

    key = ("checkpoint", jaxpr, tuple(d.flat() for d in decorators))
    function = module.named(key, name, build)
    if differentiated:
        module.helper("_recomputed")
        return Call("_recomputed", [Name(function), *operands], options)  # a list, also of one result
    call = Call(function, operands)
    return Whole(call) if len(jaxpr.results) == 1 else call


def pulled_back(
    w: Any, operands: Sequence[Expr], jaxpr: Function, options: Sequence[tuple[str, Expr]], varied: Sequence[int]
) -> Any:
    """`_, block_vjp = jax.vjp(jax.checkpoint(block), x, layer)`, and the call of that."""
    w.module.modules.add("jax")
    for param, (_, word) in zip(jaxpr.params, argument_words(jaxpr, 0), strict=True):
        if word and not param.hint:
            param.hint = word
    primals, cotangents = operands[: len(jaxpr.params)], operands[len(jaxpr.params) :]
    name, order, layout, trees = local_calls.taking_trees(w, jaxpr, primals)
    given = [trees[-1 - i] if i < 0 else primals[i] for i in order]
    names = layout.names or ()  # all of its trees have one
    free = [place for place, i in enumerate(order) if i < 0 or i in varied]
    function: Expr = Call("jax.checkpoint", [Name(name)], options)
    if len(free) < len(given):
        others = {n for p, a in enumerate(given) if p not in free for n in _WORD.findall(a.flat())} | {name}
        inside: list[Expr] = list(given)
        words = {}
        for place in free:
            i = order[place]
            word = identifier(names[-1 - i] if i < 0 else jaxpr.params[i].hint or "x", "x")
            while word in others:
                word += "_"
            others.add(word)
            words[place] = word
            inside[place] = Name(word)
        function = Lambda([words[place] for place in free], Call(function, inside))
    pullback = w.scope.fresh(f"{name}_vjp")
    made = Assign(["_", pullback], Call("jax.vjp", [function, *[given[place] for place in free]]))
    made.is_backward = True
    w.statements.append(made)
    call = Call(pullback, cotangents if len(cotangents) == 1 else [Tuple(cotangents)])
    if not trees:
        return call
    targets = [_target(w, jaxpr, order[place], layout, names, varied) for place in free]
    found = Assign(targets, call) if len(targets) > 1 else Assign(targets, Subscript(call, Text("0")))
    found.is_backward = True
    w.statements.append(found)
    w._note_folded(w.equation)
    return WRITTEN


def _target(w: Any, jaxpr: Function, argument: int, layout: Layout, names: Sequence[str], varied: Sequence[int]) -> str:
    """What the cotangent of an argument (as in `local._order`) is bound to."""
    places, ways = layout.packs[-1 - argument] if argument < 0 else ([argument], [()])
    outputs = [w.equation.outputs[varied.index(place)] for place in places]
    if not any(o is not None and w.is_read_later(o) for o in outputs):
        return "_"
    if argument >= 0:
        return str(w._target(outputs[0], "d_x"))
    word = names[-1 - argument]
    root = Name(w.scope.fresh(identifier(f"d_{word}", "d_x")))
    w.names.update((o, Leaf(root, way)) for o, way in zip(outputs, ways, strict=True) if o is not None)
    example = next(tree.example for _, tree in jaxpr.facts.taken or () if list(tree.places) == places)
    if all(o is not None for o in outputs):
        w.trees.add(root, example, outputs)
    else:
        w.trees.name(root, example)
    return root.id
