"""The invariant check of the IR: run before the first pass and after every pass (in tests and under a switch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from untrace._errors import UntraceError
from untrace.ir.nodes import (
    Atom,
    Cond,
    Constant,
    Equation,
    Function,
    Literal,
    Local,
    Scan,
    TupleType,
    Value,
    While,
    walk_functions,
)
from untrace.ir.signatures import Derivative
from untrace.ir.structured import CustomRule, JvpRule, Map, Pullback, Transformed, VjpRule
from untrace.ir.types import Aval, DType


@dataclass(frozen=True, slots=True)
class Array:
    shape: tuple[int, ...]
    dtype: DType


# An array's type, or those of the parts of a tuple; None where it may be anything.
Kind: TypeAlias = "Array | tuple[Kind, ...] | None"
Kinds: TypeAlias = Sequence[Kind]


class MalformedProgram(UntraceError):
    """An internal inconsistency: a pass broke the program. The message names the function and the equation."""


def check(entry: Function) -> None:
    """Raises MalformedProgram unless every variable is bound once, before its uses, in its own function, and what a
    callee's functions take and give is what goes into its equation and comes out, type by type."""
    for function in walk_functions(entry):
        bound: set[Value] = set()
        for parameter in function.params:
            _bind(parameter, bound, function, None)
        for equation in function.equations:
            for atom in equation.inputs:
                _use(atom, bound, function, equation)
            for output in equation.outputs:
                if output is not None:
                    _bind(output, bound, function, equation)
            for body, given, taken in _called(equation, function):
                _fits(equation, "arguments", given, [_kind(p.aval) for p in body.params], body, function)
                _fits(equation, "results", taken, [_kind(r.aval) for r in body.results], body, function)
        for atom in function.results:
            _use(atom, bound, function, None)


def _called(equation: Equation, function: Function) -> Iterator[tuple[Function, Kinds, Kinds]]:
    """The functions that an equation runs, each with what it is given and what is taken of it."""
    callee = equation.callee
    inputs = [_kind(a.aval) for a in equation.inputs]
    outputs = [None if o is None else _kind(o.aval) for o in equation.outputs]
    if type(callee) is Local:
        yield callee.body, inputs, outputs
    elif type(callee) is Scan:
        start = callee.consts + callee.carries
        carry = inputs[callee.consts : start]
        given = [*inputs[:start], *map(_element, inputs[start:])]
        yield callee.body, given, [*carry, *map(_element, outputs[callee.carries :])]
    elif type(callee) is While:
        carry = inputs[callee.consts :]
        yield callee.condition, [*inputs[: callee.condition_consts], *carry], [None]
        yield callee.body, [*inputs[callee.condition_consts : callee.consts], *carry], carry
    elif type(callee) is Cond:
        for branch in callee.branches:
            yield branch, inputs[1:], outputs
    elif type(callee) is CustomRule:
        yield callee.function, inputs, outputs
        yield from _rules(callee, inputs, outputs)
    elif type(callee) is Map:
        given = [_element(kind, axis) for kind, axis in zip(inputs, callee.in_axes, strict=False)]
        yield callee.function, given, [_element(kind, a) for kind, a in zip(outputs, callee.out_axes, strict=False)]
    elif type(callee) is Transformed:
        yield from _transformed(callee, inputs, outputs)
    elif type(callee) is Pullback:
        made = equation.inputs[0] if equation.inputs else None
        if type(made) is not Value:
            raise MalformedProgram(f"{_place(function, equation)} calls a {type(made).__name__}, not a Value")


def _rules(callee: CustomRule, inputs: Kinds, outputs: Kinds) -> Iterator[tuple[Function, Kinds, Kinds]]:
    primals = inputs[callee.consts :]
    if isinstance(callee.rule, JvpRule):
        closed = [inputs[i] for i in callee.rule.closed]
        tangents = [None] * (len(primals) + callee.rule.out_zeros.count(False))
        moved = tangents[len(primals) :]
        yield callee.rule.function, [*closed, *primals, *tangents[: len(primals)]], [*outputs, *moved]
    elif isinstance(callee.rule, VjpRule):
        rule = callee.rule
        saved = [inputs[i] if i is not None else None for i in rule.res_forwards]
        computed = [None] * rule.res_forwards.count(None)
        cotangents = [None] * (len(rule.bwd.params) - len(saved) - len(rule.bwd_closed))
        yield rule.fwd, [*[inputs[i] for i in rule.fwd_closed], *primals], [*computed, *outputs]
        closed = [inputs[i] for i in rule.bwd_closed]
        yield rule.bwd, [*closed, *saved, *cotangents], [None] * rule.ct_zeros.count(False)


def _transformed(callee: Transformed, inputs: Kinds, outputs: Kinds) -> Iterator[tuple[Function, Kinds, Kinds]]:
    body, how = callee.function, callee.how
    given = inputs[: len(body.params)]  # tangents or cotangents follow
    some: Kinds = [None] * len(body.results)
    if isinstance(how, Derivative):
        if callee.name == "linear_transpose":  # may be given types alone
            given = [*given, *[None] * (len(body.params) - len(given))]
        elif callee.name in ("value_and_grad", "jvp", "vjp", "linearize", "called"):
            some = outputs[: len(some)]
    elif how.varied is None:
        some = outputs
    else:
        some = inputs[len(body.params) :]  # cotangents
    yield body, given, some


def _fits(equation: Equation, what: str, outside: Kinds, inside: Kinds, body: Function, function: Function) -> None:
    if len(outside) != len(inside):
        raise MalformedProgram(
            f"{_place(function, equation)} has {len(outside)} {what} for {len(inside)} of {body.name!r}"
        )
    if any(a is not None and b is not None and a != b for a, b in zip(outside, inside, strict=True)):
        raise MalformedProgram(f"{_place(function, equation)} has {what} of other types than {body.name!r}")


def _kind(aval: Aval) -> Kind:
    """The type of a value; None of a token, which is an object without one."""
    if type(aval) is TupleType:
        return tuple([_kind(part) for part in aval.parts])
    dtype = getattr(aval, "dtype", None)
    return None if dtype is None else Array(tuple(aval.shape), dtype)


def _element(kind: Kind, axis: int | None = 0) -> Kind:
    """The type of one element of an array, or of each part of a tuple."""
    if kind is None or axis is None:
        return kind
    if isinstance(kind, Array):
        shape = list(kind.shape)
        del shape[axis]
        return Array(tuple(shape), kind.dtype)
    return tuple([_element(part, axis) for part in kind])


def _bind(value: Value, bound: set[Value], function: Function, equation: Equation | None) -> None:
    if type(value) is not Value:
        raise MalformedProgram(f"{_place(function, equation)} binds a {type(value).__name__}, not a Value")
    if value in bound:
        raise MalformedProgram(f"{_place(function, equation)} binds a variable a second time")
    bound.add(value)


def _use(atom: Atom, bound: set[Value], function: Function, equation: Equation | None) -> None:
    if type(atom) in (Literal, Constant):
        return
    if type(atom) is not Value or atom not in bound:
        raise MalformedProgram(f"{_place(function, equation)} uses a variable that is not bound yet")


def _place(function: Function, equation: Equation | None) -> str:
    what = f"equation `{equation.callee.name}`" if equation else "the head or the result"
    return f"internal: {what} of function {function.name!r}"
