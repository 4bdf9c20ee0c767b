"""Recomputation: functions that `jax.checkpoint` computes once more, and saves nothing by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.facts import Transposed
from untrace.ir.nodes import Equation, Function, Value
from untrace.ir.structured import Checkpoint, Transformed
from untrace.tools.lint.findings import LintFinding, in_units
from untrace.tools.lint.program import Linted, Seen, bytes_of, resolved

_WORTH = 64  # what is held all the same, by what is saved


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a checkpoint recomputes, in equations and floating point operations, and the bytes that it saves and holds."""

    equations: int
    flops: int
    saved: int
    held: int


def idle_checkpoints(linted: Linted) -> Iterator[LintFinding]:
    known: set[tuple[str, int]] = set()
    for seen in linted.seen:
        callee, frame = seen.equation.callee, seen.site.frame
        if type(callee) is not Transformed or type(callee.how) is not Checkpoint or callee.function.transposed is None:
            continue
        if frame is None or frame.library or not frame.line or (frame.file, int(frame.line)) in known:
            continue
        cost = _cost(seen, *callee.function.transposed)
        if cost is None or cost.equations <= 0 or cost.saved * _WORTH > cost.held:
            continue
        known.add((frame.file, int(frame.line)))
        saves = "nothing" if cost.saved <= 0 else in_units(cost.saved)
        yield linted.finding(
            "idle-checkpoint",
            frame,
            f"the backward pass computes this function once more, and what jax.checkpoint saves by that is {saves}, beside"
            f" {in_units(cost.held)} of its arguments that are held for it",
            {"equations": cost.equations, "flops": cost.flops},
            "the function without jax.checkpoint; or around a longer part, whose values between are larger than its arguments",
        )


def _cost(seen: Seen, function: Function, transposed: Transposed) -> _Cost | None:
    jaxpr, consts = jax_compat.open_jaxpr(transposed.function)
    avals = [v.aval for v in jaxpr.invars]
    varied, closed = transposed.varied, jax_compat.close_jaxpr(jaxpr, consts)

    def of_varied(args: Sequence[jax.Array]):
        def called(*some: jax.Array) -> Sequence[jax.Array]:
            given = dict(zip(varied, some, strict=True))
            return jax_compat.evaluate_closed(closed, [given.get(i, x) for i, x in enumerate(args)])

        return jax.vjp(called, *[args[i] for i in varied])

    try:
        plain = jax_compat.trace_on_avals(
            lambda *args: jax.tree.leaves(of_varied(args)), avals, seen.equation.origin.ctx
        )
    except Exception:  # what cannot be differentiated by itself was not
        return None
    opened, _ = jax_compat.open_jaxpr(plain)
    outs = opened.outvars[len(jaxpr.outvars) :]
    own = {v for v in outs if jax_compat.is_variable(v)}
    saved = sum(bytes_of(v.aval) for v in own - set(opened.invars) - set(opened.outvars[: len(jaxpr.outvars)]))
    kept_anyway = {i for i, v in enumerate(opened.invars) if v in own}
    held = 0
    for place, operand in enumerate(transposed.primals):
        if operand < 0:
            continue
        atom = seen.equation.inputs[operand]
        held += bytes_of(atom.aval)
        outer, scope = resolved(atom, seen.scope)
        is_argument = type(outer) is not Value or scope.outer is None and outer in scope.function.params
        if place not in kept_anyway and not is_argument:
            saved -= bytes_of(atom.aval)
    body = seen.equation.callee
    assert type(body) is Transformed
    again = _before(body.function, transposed.cotangents)
    forward = list(jaxpr.eqns)
    return _Cost(len(again) + len(forward) - len(opened.eqns), sum(map(_flops, again)), saved, held)


def _before(function: Function, cotangents: Sequence[int]) -> list[Equation]:
    """The equations of a derivative that need no cotangent."""
    after = {function.params[i] for i in cotangents}
    found = []
    for equation in function.equations:
        if after.isdisjoint([a for a in equation.inputs if type(a) is Value]):
            found.append(equation)
        else:
            after.update(o for o in equation.outputs if o is not None)
    return found


def _flops(equation: Equation) -> int:
    """The floating point operations of an equation, as far as they are easily said."""
    out = equation.outputs[0]
    size = int(np.prod(out.aval.shape)) if out is not None else 0
    if equation.callee.name == "dot_general":
        (axes, _), _ = equation.params["dimension_numbers"]
        return 2 * size * int(np.prod([equation.inputs[0].aval.shape[a] for a in axes]))
    if equation.callee.name == "conv_general_dilated":
        return 2 * size * int(np.prod(equation.inputs[1].aval.shape[1:]))
    return size
