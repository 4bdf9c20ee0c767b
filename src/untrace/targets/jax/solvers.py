"""`lax.custom_linear_solve` as a person writes it: `matvec`, `solve` and `transpose_solve` beside the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Function
from untrace.ir.scans import closes_simply, used_values
from untrace.module.nested import Body, argument_words, group, hint_of
from untrace.module.rules import Whole
from untrace.python.statements import Parameter
from untrace.python.tree import Expr


def custom_linear_solve(w: Any, operands: Sequence[Expr], const_lengths: Any, jaxprs: Any) -> Any:
    """The call, or None where its parts cannot be nested functions.

    JAX transposes `matvec` itself, so `vecmat` is not written: that it comes out the same is for the proof to see.
    """
    inputs = w.equation.inputs
    counts = list(const_lengths)
    given = sum(counts)
    matvec, vecmat, solve, transpose_solve = jaxprs
    known = operands[given:]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    for function, start, count in zip(jaxprs, starts, counts, strict=True):
        if function is not None and not closes_simply(function, range(count), inputs[start : start + count]):
            return None
    if matvec is None or solve is None or len(solve.results) != len(known):
        return None

    written: dict[str, Expr] = {}

    def nested(function: Function, place: int, fallback: str, with_operator: bool) -> Expr:
        start, count = starts[place], counts[place]
        body = Body(w, function, fallback, zip(function.params[:count], operands[start : start + count], strict=False))
        if with_operator:  # the operator, which the body has inside it
            body.params.append(Parameter("_"))
        values = function.params[count:]
        words = argument_words(function, count)
        names = [
            hint_of(v) or own or ("b" if with_operator else "x") for v, (_, own) in zip(values, words, strict=True)
        ]
        body.parameter(values, names, "values", used_values(function), "_unused")
        body.writer.equations(function.equations, function.results)
        value = group([body.writer.atom(r) for r in function.results])
        text = body.text(value)
        if text not in written:  # the transpose of a symmetric solve is mostly the same text again
            written[text] = body.finish(value)
        return written[text]

    arguments = [nested(matvec, 0, "matvec", False), group(known), nested(solve, 2, "solve", True)]
    kwargs: dict[str, Any] = {}
    if transpose_solve is not None:
        if vecmat is matvec:
            kwargs["symmetric"] = True
        arguments.append(nested(transpose_solve, 3, "transpose_solve", True))
    made = w.lax("custom_linear_solve", *arguments, **kwargs)
    return Whole(made) if len(known) == 1 else made
