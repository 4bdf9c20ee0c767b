"""`jax.checkpoint` in idiomatic style: a decorator on a function of the module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Function
from untrace.print.jax import called_trees, local
from untrace.print.jax.bodies import argument_words
from untrace.print.jax.roles import call_name
from untrace.print.names import identifier
from untrace.print.rules import Whole
from untrace.print.tree import Assign, Call, Expr, Lambda, Name, Statement, Text, Tuple

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
        found = called_trees.called(w, operands, jaxpr, decorators[0], "checkpoint / remat", name)
        if found is not None:
            return found

    def build(written: str) -> Iterator[Statement]:
        yield module.define(jaxpr, written, decorators)

    key = ("checkpoint", id(jaxpr), tuple(d.flat() for d in decorators))
    function = module.named(key, name, build)
    if differentiated:
        module.helper("_recomputed")
        return Call("_recomputed", [Name(function), *operands], options)  # a list, also of one result
    call = Call(function, operands)
    return Whole(call) if len(jaxpr.results) == 1 else call


def pulled_back(
    w: Any, operands: Sequence[Expr], jaxpr: Function, options: Sequence[tuple[str, Expr]], varied: Sequence[int]
) -> Expr:
    """`_, block_vjp = jax.vjp(jax.checkpoint(block), x, layer)`, and the call of that."""
    w.module.modules.add("jax")
    for param, (_, word) in zip(jaxpr.params, argument_words(jaxpr, 0), strict=True):
        if word and not param.hint:
            param.hint = word
    name = local.name_of(w, jaxpr)
    primals, cotangents = operands[: len(jaxpr.params)], operands[len(jaxpr.params) :]
    function: Expr = Call("jax.checkpoint", [Name(name)], options)
    if len(varied) < len(primals):
        others = {n for i, p in enumerate(primals) if i not in varied for n in _WORD.findall(p.flat())} | {name}
        inside = list(primals)
        for i in varied:
            word = identifier(jaxpr.params[i].hint or "x", "x")
            while word in others:
                word += "_"
            others.add(word)
            inside[i] = Name(word)
        function = Lambda([inside[i].id for i in varied], Call(function, inside))
    pullback = w.scope.fresh(f"{name}_vjp")
    made = Assign(["_", pullback], Call("jax.vjp", [function, *[primals[i] for i in varied]]))
    made.is_backward = True
    w.statements.append(made)
    return Call(pullback, cotangents if len(cotangents) == 1 else [Tuple(cotangents)])
