"""Loops and choices: `lax.scan` is a `for`, `lax.while_loop` a `while`, `lax.cond` and `lax.switch` are `if`s."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from untrace.ir.nodes import Cond, Equation, Function, Literal, Primitive, Scan, Value, While
from untrace.targets.c.arrays import Array, num, number, plus, stored
from untrace.targets.c.loops import BOOL, INDEX, Buffer, Expr, If, Loop, Op, Read, Stmt, Var, reads
from untrace.targets.c.loops import While as CWhile
from untrace.targets.c.rules.table import C
from untrace.targets.c.types import dtype_of, shape_of


class Builder(Protocol):
    """What is needed of that which builds the function around a loop."""

    block: list[Stmt]

    def new(self, shape: Sequence[int], dtype: np.dtype, output: int | None = 0, hint: str = "") -> Buffer: ...

    def often(self, array: Array, hint: str = "") -> Array: ...

    def fill(self, place: Read, array: Array) -> None: ...

    def inside(self, block: list[Stmt]) -> AbstractContextManager[None]: ...

    def scalar(self, array: Array, hint: str) -> Expr: ...

    def run(self, function: Function, args: Sequence[Array]) -> list[Array]: ...


def scan(b: Builder, loop: Scan, equation: Equation, inputs: Sequence[Array]) -> list[Array]:
    length, reverse = int(equation.params["length"]), bool(equation.params["reverse"])
    body, consts, carries = loop.body, loop.consts, loop.carries
    outside = [b.often(a, p.hint or "value") for a, p in zip(inputs[:consts], body.params, strict=False)]
    var = Var(length)
    state: list[Array] = []
    buffers: list[Buffer | None] = []
    firsts: list[int | None] = []  # of counters: what they are at first
    for place in range(consts, consts + carries):
        param, init = body.params[place], inputs[place]
        counted = None if reverse else _counter(body, param, place - consts, init)
        firsts.append(counted)
        if counted is not None:
            state.append(Array((), INDEX, lambda index, first=counted: plus(var, first), 1))
            buffers.append(None)
        elif body.results[place - consts] is param:
            state.append(b.often(init, param.hint or "value"))
            buffers.append(None)
        else:
            made = _variable(b, param, init)
            buffers.append(made)
            state.append(stored(made))
    elements = [_turn(b.often(a), var) for a in inputs[consts + carries :]]
    rows = [
        b.new((length, *shape_of(r.aval)), dtype_of(r.aval), place)
        for place, r in enumerate(body.results)
        if place >= carries
    ]
    turns = Loop(var, [], reverse, joins=False)
    with b.inside(turns.body):
        results = b.run(body, [*outside, *state, *elements])
        for row, array in zip(rows, results[carries:], strict=True):
            b.fill(Read(row, (var,)), array)
        _hand_on(b, buffers, results[:carries], [p.hint or "value" for p in body.params[consts : consts + carries]])
    b.block.append(turns)
    last: list[Array] = []
    for buffer, array, first in zip(buffers, state, firsts, strict=True):
        if first is not None:
            array = number(first + length, INDEX)
        last.append(array if buffer is None else stored(buffer))
    return [*last, *[stored(row) for row in rows]]


def while_loop(b: Builder, loop: While, equation: Equation, inputs: Sequence[Array]) -> list[Array]:
    ours, consts = loop.condition_consts, loop.consts
    outside = [b.often(a) for a in inputs[:consts]]
    params = loop.body.params[loop.body_consts :]
    forwarded = [r is p for r, p in zip(loop.body.results, params, strict=True)]
    state: list[Array] = []
    buffers: list[Buffer | None] = []
    for param, init, same in zip(params, inputs[consts:], forwarded, strict=True):
        if same:
            state.append(b.often(init, param.hint or "value"))
            buffers.append(None)
        else:
            made = _variable(b, param, init)
            buffers.append(made)
            state.append(stored(made))
    prelude: list[Stmt] = []
    body: list[Stmt] = []
    with b.inside(prelude):
        going = b.run(loop.condition, [*outside[:ours], *state])[0]
        if going.shape:  # several loops, which end one by one
            going = b.often(going, "is_going")
        condition = _any(b, going)
    with b.inside(body):
        results = b.run(loop.body, [*outside[ours:], *state])
        if going.shape:
            results = [_where(going, *pair) for pair in zip(results, state, strict=True)]
        _hand_on(b, buffers, results, [p.hint or "value" for p in params])
    b.block.append(CWhile(prelude, condition, body))
    return [s if buffer is None else stored(buffer) for s, buffer in zip(state, buffers, strict=True)]


def _any(b: Builder, flags: Array) -> Expr:
    if not flags.shape:
        return flags.at(())
    rule = C.find("reduce_or")
    assert rule is not None
    found = rule(b, flags, axes=tuple(range(len(flags.shape))))
    assert isinstance(found, Array)
    return b.scalar(found, "is_any_going")


def _where(going: Array, new: Array, old: Array) -> Array:
    """What the loops hand on that go on, and what the others had."""
    rank = len(going.shape)

    def chosen(index: Sequence[Expr]) -> Expr:
        return Op("?:", (going.at(tuple(index[:rank])), new.at(tuple(index)), old.at(tuple(index))), old.dtype)

    return Array(new.shape, new.dtype, chosen, new.cost + 1)


def cond(b: Builder, choice: Cond, equation: Equation, inputs: Sequence[Array]) -> list[Array | None]:
    which, *operands = inputs
    given = [b.often(a) for a in operands]
    made = [
        None if o is None else b.new(shape_of(o.aval), dtype_of(o.aval), place)
        for place, o in enumerate(equation.outputs)
    ]
    blocks: list[list[Stmt]] = []
    for branch in choice.branches:
        block: list[Stmt] = []
        with b.inside(block):
            for buffer, array in zip(made, b.run(branch, given), strict=True):
                if buffer is not None:
                    b.fill(Read(buffer, ()), array)
        blocks.append(block)
    chosen = blocks[-1]
    number_of = which.at(())
    if len(blocks) == 2:
        b.block.append(If(_is_second(number_of), blocks[1], blocks[0]))
    else:
        if len(blocks) > 2:
            number_of = b.scalar(which, "branch")
        for place in reversed(range(len(blocks) - 1)):
            chosen = [If(Op("<=", (number_of, num(place, which.dtype)), BOOL), blocks[place], chosen)]
        b.block.extend(chosen)
    return [None if buffer is None else stored(buffer) for buffer in made]


def _is_second(which: Expr) -> Expr:
    """Whether the second of two branches is taken, by its number."""
    if isinstance(which, Op) and which.name == "cast" and which.args[0].dtype == BOOL:
        return which.args[0]
    return Op(">", (which, num(0, which.dtype)), BOOL)


def _variable(b: Builder, param: Value, init: Array) -> Buffer:
    """The variable that a loop hands on, with what it has at first."""
    buffer = Buffer(param.hint or "state", shape_of(param.aval), dtype_of(param.aval), authored=param.named)
    b.fill(Read(buffer, ()), init)
    return buffer


def _turn(array: Array, var: Var) -> Array:
    """The element of an array at this turn of a loop."""
    region = array.region
    return Array(
        array.shape[1:], array.dtype, lambda index: array.at((var, *index)), array.cost,
        None if region is None else Read(region.buffer, (*region.index, var)),
    )  # fmt: skip


def _hand_on(b: Builder, buffers: Sequence[Buffer | None], results: Sequence[Array], hints: Sequence[str]) -> None:
    """Writes what a turn hands on: all of it is computed first, where it is computed from what the turn was handed."""
    ours = {buffer for buffer in buffers if buffer is not None}
    computed: list[Array] = []
    for buffer, array, hint in zip(buffers, results, hints, strict=True):
        if buffer is not None and _reads(array, ours):
            made = b.new(array.shape, array.dtype, None, "new_" + hint)
            b.fill(Read(made, ()), array)
            array = stored(made)
        computed.append(array)
    for buffer, array in zip(buffers, computed, strict=True):
        if buffer is not None:
            b.fill(Read(buffer, ()), array)


def _reads(array: Array, buffers: set[Buffer]) -> bool:
    index = tuple([Var(extent) for extent in array.shape])
    return any(r.buffer in buffers for r in reads(array.at(index)))


def _counter(body: Function, param: Value, place: int, init: Array) -> int | None:
    """The first number of a carry that counts the turns up, one by one; None of any other."""
    if param.aval.dtype != INDEX or param.aval.shape or init.number is None:
        return None
    result = body.results[place]
    for equation in body.equations:
        if len(equation.outputs) == 1 and equation.outputs[0] is result and type(equation.callee) is Primitive:
            one, other = (*equation.inputs, None, None)[:2]
            if equation.callee.name == "add" and type(one) is Literal:
                one, other = other, one
            if equation.callee.name == "add" and one is param and type(other) is Literal and int(other.value) == 1:
                return int(init.number.value)
    return None
