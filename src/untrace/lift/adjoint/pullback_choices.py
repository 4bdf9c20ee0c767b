"""Derivatives of the largest of each row, which only a primitive gives: where they were found is an auxiliary result.

    y, top_k_vjp, i = jax.vjp(lambda x: lax.top_k(x, 2), x, has_aux=True)      ...      d_x = top_k_vjp(d_y)[0]

The places get no cotangent. Of one row it is `x.at[i].add(y)`, which is as short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Equation, Value
from untrace.lift.adjoint.pullback_groups import by_call, call_to_try, divided, has_batches
from untrace.lift.recognise.engine import Guess, Matcher
from untrace.lift.recognise.patterns import pattern_of


def lift_choices(m: Matcher, replace: Any) -> None:
    """Makes `jax.vjp` of each choice with its derivative, where that is proven."""
    for equations, backward in list(by_call(m)):
        for first in equations:
            if first.callee.name == "top_k" and first not in backward and m.free(first):
                _lift(m, first, [e for e in equations if e in backward], replace)


def _lift(m: Matcher, first: Equation, backward: Sequence[Equation], replace: Any) -> bool:
    for last in backward:
        if last in m.consumed or not has_batches(last.origin):
            continue
        cotangent = last.inputs[-1]
        if type(cotangent) is not Value or type(first.inputs[0]) is not Value:
            continue
        call = call_to_try(Guess("lax.top_k", (*first.inputs, first.origin.params["k"])), [cotangent, None])
        if call is None:
            continue
        pattern = pattern_of(m.lifter.patterns, call.path, ((0,), call.args, call.given), call.kwargs, call.inputs)
        found = m.lay_over(pattern, call.inputs, (first, last)) if pattern is not None else None
        if found is not None:
            parts, inputs = divided(m, found, cotangent), call.inputs[: call.operands]
            replace(m, call.callee((0,)), inputs, [cotangent, None], parts, (first, last))
            return True
    return False
