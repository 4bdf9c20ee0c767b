"""`lax.custom_root` as a person writes it: `f`, `solve` and `tangent_solve` beside the call.

Only on JAX 0.12, where it is one equation (`jaxprs.expand.custom_root`); before, it is a `custom_jvp` of JAX's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Function, Literal
from untrace.ir.scans import used_values
from untrace.jaxprs.expand.custom_root import Root
from untrace.module.nested import Body, argument_words, group, hint_of
from untrace.module.rules import Groups, Whole
from untrace.python.statements import Parameter
from untrace.python.tree import Call, Expr, Name, Subscript, Text, Tuple

Functions = dict[str, Function]


def custom_root(w: Any, operands: Sequence[Expr], root: Root, functions: Functions, has_aux: bool) -> Any:
    """The call. Results: the root's leaves, then those of the auxiliary data."""
    size = root.size
    guess = operands[root.counts[1] : root.counts[1] + size]

    def nested(name: str, place: int, given: str | None, word: str) -> Expr:
        function, start, count = functions[name], root.starts()[place], root.counts[place]
        closed = [_closed_over(w, start + i, operands) for i in range(count)]
        body = Body(w, function, name, zip(function.params[:count], closed, strict=True))
        if given is not None:
            body.params.append(Parameter(body.writer.scope.fresh(given) if place == 2 else "_"))
        values = function.params[count:]
        if place == 2:  # the root, which only `g` reads
            body.writer.root_map = body.params[-1].name, size, root.counts[0]
            body.writer.names.update(dict.fromkeys(values[:size], Name(body.params[-1].name)))
            values = values[size:]
        words = argument_words(function, len(function.params) - len(values))
        names = [hint_of(v) or own or word for v, (_, own) in zip(values, words, strict=True)]
        body.parameter(values, names, word, used_values(function), "_unused")
        body.writer.equations(function.equations, function.results)
        results = [body.writer.atom(r) for r in function.results]
        if has_aux and place == 1:
            return body.finish(Tuple([group(results[:size]), group(results[size:])]))
        return body.finish(group(results))

    arguments = [
        nested("f", 0, None, "x"),
        group(guess),
        nested("solve", 1, "f", "x"),
        nested("tangent_solve", 2, "g", "y"),
    ]
    call = w.lax("custom_root", *arguments, **({"has_aux": True} if has_aux else {}))
    count = len(w.equation.outputs)
    if has_aux:
        return Groups(call, (size, count - size))
    return Whole(call) if size == 1 else call


def derivative(w: Any, operands: Sequence[Expr], transposed: bool) -> Any:
    """`g(v)`, inside a `tangent_solve`; `jax.linear_transpose(g, x)(v)[0]` where it is transposed."""
    name, size, count = w.root_map
    given = operands[count + size :]
    call: Expr = Call(name, [group(given)])
    if transposed:
        like = group([w.aval(v.aval) for v in w.equation.origin.outvars])
        call = Subscript(Call(w.jax("linear_transpose", Name(name), like), [group(given)]), Text("0"))
    return Whole(call) if len(w.equation.outputs) == 1 else call


def _closed_over(w: Any, index: int, operands: Sequence[Expr]) -> Expr:
    """What a function closes over: a number as an array, for JAX makes a number part of the equations that use it."""
    atom = w.equation.inputs[index]
    if type(atom) is not Literal:
        return operands[index]
    return w.module.number_array(atom)
