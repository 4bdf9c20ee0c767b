"""What a function of JAX does, in the place of an equation: for the rewrites that guess the call that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from untrace import jax_compat
from untrace.lift.recognise.patterns import PATTERNS, pattern_of
from untrace.lift.rewrite.simplify import Body, same_aval


def single_call(closed: Any) -> Any:
    """The one equation of a jaxpr, if that is a call of a jitted function."""
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or consts or jaxpr.eqns[0].primitive.name not in ("jit", "pjit"):
        return None
    return jaxpr.eqns[0]


def call_instead(eqn: Any, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """The call of a jitted function that is all that `function` does with the operands, in the place of `eqn`; None where
    it does something else, or gives another type."""
    closed = jax_compat.trace_library_call(function, [v.aval for v in operands])
    call = single_call(closed)
    if call is None or not same_aval(call.outvars[0].aval, eqn.outvars[0].aval):
        return None
    return on_operands(call, closed, operands, eqn)


def library_call_instead(eqn: Any, path: str, args: tuple[Any, ...], operands: Sequence[Any]) -> Any:
    """`call_instead` of the library function at `path`. The trace is a pattern, by which the call is recognised later.

    args: its arguments, with Slots for the operands.
    """
    known = PATTERNS.setdefault(jax_compat.trace_settings(), {})
    pattern = pattern_of(known, path, args, {}, list(operands))
    made = None if pattern is None or pattern.consts else pattern.made_by.get(pattern.outvars[0])
    if pattern is None or made is None or pattern.size != 1 or made[0].primitive.name not in ("jit", "pjit"):
        return None
    call = made[0]
    if not same_aval(call.outvars[0].aval, eqn.outvars[0].aval):
        return None
    names = {var: operands[place] for var, place in pattern.inputs.items()}
    return _in_place(call, names, eqn)


def on_operands(inner: Any, closed: Any, operands: Sequence[Any], eqn: Any) -> Any:
    """An equation of a jaxpr in the place of `eqn`, with the operands for the inputs of the jaxpr."""
    return _in_place(inner, dict(zip(jax_compat.open_jaxpr(closed)[0].invars, operands, strict=True)), eqn)


def _in_place(inner: Any, names: dict[Any, Any], eqn: Any) -> Any:
    return inner.replace(
        invars=jax_compat.substituted(inner.invars, names), outvars=eqn.outvars, source_info=eqn.source_info
    )


def spliced(body: Body, eqn: Any, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """What `function` does with the operands, in the place of `eqn`: its equations are added, but for the last one, which
    comes back. None where it gives another type or closes over an array."""
    closed = jax_compat.trace_library_call(function, [v.aval for v in operands])
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if consts or not same_aval(jaxpr.outvars[0].aval, eqn.outvars[0].aval):
        return None
    names: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
    *steps, last = jaxpr.eqns
    for step in steps:
        outs = [jax_compat.fresh_variable(v) for v in step.outvars]
        invars = jax_compat.substituted(step.invars, names)
        body.add(step.replace(invars=invars, outvars=outs, source_info=eqn.source_info))
        names.update(zip(step.outvars, jax_compat.substituted(outs, body.substitute), strict=True))
    invars = jax_compat.substituted(last.invars, names)
    return last.replace(invars=invars, outvars=eqn.outvars, source_info=eqn.source_info)
