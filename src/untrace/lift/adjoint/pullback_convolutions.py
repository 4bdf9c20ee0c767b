"""Derivatives of convolutions, two more of them with paddings that nobody reads, and of windows' largest numbers, which only a
primitive gives: as the call of a pullback.

    y, conv_vjp = jax.vjp(conv, x, kernel)      ...      d_x, d_kernel = conv_vjp(d_y)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from untrace.ir.nodes import Equation, Literal, Value
from untrace.lift.adjoint.pullback_groups import added_up, behind, by_call, call_to_try, divided
from untrace.lift.recognise.engine import IDIOMS, Guess, Matcher
from untrace.lift.recognise.patterns import pattern_of

_NAMES = ("conv_general_dilated", "reduce_window_max", "reduce_window_min")


def lift_convolutions(m: Matcher, replace: Any) -> None:
    """Makes `jax.vjp` of each convolution with what its derivatives leave, where that is proven."""
    for equations, backward in list(by_call(m)):
        for first in equations:
            if first.callee.name in _NAMES and first not in backward and m.free(first):
                _lift(m, first, equations, backward, replace)


def _lift(m: Matcher, first: Equation, equations: Sequence[Equation], backward: set[Equation], replace: Any) -> bool:
    if any(type(a) is Literal for a in first.inputs) or len(set(first.inputs)) < len(first.inputs):
        return False
    ends: dict[Value, dict[int, Equation]] = {}  # by cotangent: of which operand -> the derivative for it
    for last in equations:
        if last not in backward or last in m.consumed or not m.is_used_outside(last.outputs[0], equations):
            continue
        for one in (last, *added_up(m, last, backward)):
            read = {a for e in behind(m, one, backward) for a in e.inputs if m.made.get(a) not in backward}
            places = [i for i, a in enumerate(first.inputs) if a in read]
            others = {a for a in read if type(a) is Value} - set(first.inputs)
            if len(places) == 1 and len(others) == 1:
                # That of an operand of two needs the other one.
                ends.setdefault(others.pop(), {})[len(first.inputs) - 1 - places[0]] = one
    for cotangent, found in ends.items():
        for guess in _guesses(m, first):
            if _try(m, guess, first, cotangent, found, replace):
                return True
    return False


def _guesses(m: Matcher, first: Equation) -> Iterator[Guess]:
    name = first.callee.name
    yield from (g for idiom in IDIOMS.get(name, ()) for g in idiom(m, first))
    if name != "conv_general_dilated":
        yield Guess(f"primitive.{name}", tuple(first.inputs), first.origin.params)


def _try(m: Matcher, guess: Guess, first: Equation, cotangent: Value, ends: dict[int, Equation], replace: Any) -> bool:
    call = call_to_try(guess, [cotangent], defaults=True)
    if call is None:
        return False
    varied = tuple(sorted(ends))
    anchors = (first, *[ends[i] for i in varied])
    pattern = pattern_of(m.lifter.patterns, call.path, (varied, call.args, call.given), call.kwargs, call.inputs)
    found = m.lay_over(pattern, call.inputs, anchors) if pattern is not None else None
    if found is None:
        return False
    replace(m, call.callee(varied), call.inputs[: call.operands], [cotangent], divided(m, found, cotangent), anchors)
    return True
