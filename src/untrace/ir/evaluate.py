"""An evaluator of the IR: what a Program means, and the oracle of every pass's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from untrace import jax_compat
from untrace.ir.bodies import PLAIN_CALLS
from untrace.ir.nodes import (
    Cond,
    Equation,
    Function,
    Library,
    Local,
    Pack,
    Scan,
    TreeMap,
    TreeSum,
    TupleType,
    Unpack,
    Value,
    While,
    functions_called,
)
from untrace.ir.types import Data

Evaluator = Callable[..., list[Data]]  # of a Function on its arguments


def evaluate(function: Function, *args: Data) -> list[Data]:
    """The results of `function` on `args` (arrays or tracers, one per parameter); usable under `jax.jit`.

    Loops, branches, jitted and marked functions are run by their bodies, as passes have left them. What JAX alone can run
    (a custom rule, a mapped or a sharded function, a derivative that is called) is bound again as it was captured.
    """
    return _run(function, args, _by_body)


def rounded_otherwise(function: Function, *args: Data) -> list[Data]:
    """The same, with the floats that each primitive gives off by their last digit, up or down in turn.

    What this differs from `evaluate` by is what rounding may make of the results on these arguments (Monte Carlo arithmetic
    with one draw; Parker, Pierce and Eggert, 2000).
    """
    return _run(function, args, lambda equation, inputs: _off(_by_body(equation, inputs, rounded_otherwise)))


def bound_again(function: Function, *args: Data) -> list[Data]:
    """The same, every equation bound again as it was captured: what is traced so is the program that was captured."""
    return _run(function, args, _bind)


def _run(function: Function, args: Sequence[Data], primitive: Callable[[Equation, Sequence[Data]], Any]) -> list[Data]:
    env: dict[Value, Any] = dict(zip(function.params, args, strict=True))

    def read(atom: Any) -> Any:
        return env[atom] if type(atom) is Value else atom.value

    for equation in function.equations:
        inputs = [read(a) for a in equation.inputs]
        callee = equation.callee
        outputs: Sequence[Any]
        if type(callee) is Pack:
            outputs = [tuple(inputs)]
        elif type(callee) is Unpack:
            outputs = inputs[0]
        elif type(callee) is TreeMap:
            outputs = [_run(f, callee.arguments(inputs, turn), primitive)[0] for turn, f in enumerate(callee.turns)]
        elif type(callee) is TreeSum:
            params: Any = equation.inputs
            results: Any = equation.outputs
            outputs = _run(Function("sum", params, list(callee.equations), results), inputs, primitive)
        elif type(callee) is Library or type(callee) is Local:
            outputs = _run(callee.body, inputs, primitive)
        else:
            outputs = primitive(equation, inputs)
        for value, out in zip(equation.outputs, outputs, strict=True):
            if value is not None:
                env[value] = out
    return [read(a) for a in function.results]


def _off(values: Sequence[Data]) -> Sequence[Data]:
    """Values off by one unit in the last place, if they are floats."""
    found: list[Data] = []
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jnp.inexact):
            step = jnp.finfo(dtype).eps
            signs = jnp.where(jnp.arange(value.size).reshape(value.shape) % 3 == 0, 1 + step, 1 - step)
            value = value * signs.astype(jnp.finfo(dtype).dtype)
        found.append(value)
    return found


def _by_body(equation: Equation, inputs: Sequence[Any], run: Evaluator | None = None) -> Sequence[Any]:
    """What a primitive gives; by its body where it is a loop, a choice or a call, which `run` evaluates."""
    callee = equation.callee
    run = run or evaluate
    if type(callee) is Scan:
        return _scan(callee, equation, inputs, run)
    if type(callee) is While:
        return _while(callee, inputs, run)
    if type(callee) is Cond:
        branches = [lambda *operands, b=branch: run(b, *operands) for branch in callee.branches]
        return lax.switch(inputs[0], branches, *inputs[1:])
    if callee.name in PLAIN_CALLS:
        (body,) = functions_called(equation)
        return run(body, *inputs)
    return _bind(equation, inputs)


def _scan(loop: Scan, equation: Equation, inputs: Sequence[Any], run: Evaluator) -> Sequence[Any]:
    consts, start = inputs[: loop.consts], loop.consts + loop.carries

    def turn(carry: tuple[Any, ...], elements: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = run(loop.body, *consts, *carry, *elements)
        return _typed(results[: loop.carries], carry), tuple(results[loop.carries :])

    options = {key: equation.params[key] for key in ("length", "reverse")}
    carry, stacked = lax.scan(turn, _arrays(inputs[loop.consts : start]), tuple(inputs[start:]), **options)
    return [*carry, *stacked]


def _while(loop: While, inputs: Sequence[Any], run: Evaluator) -> Sequence[Any]:
    ours, consts = inputs[: loop.condition_consts], inputs[loop.condition_consts : loop.consts]

    def goes_on(carry: tuple[Any, ...]) -> Any:
        return jnp.any(run(loop.condition, *ours, *carry)[0])

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        new = _typed(run(loop.body, *consts, *carry), carry)
        if not loop.condition.result_avals[0].shape:
            return new
        # Of a loop that `jax.vmap` has batched: what is done already keeps its carry.
        goes = run(loop.condition, *ours, *carry)[0]
        return jax.tree.map(lambda a, b: jnp.where(jnp.expand_dims(goes, range(goes.ndim, a.ndim)), a, b), new, carry)

    return list(lax.while_loop(goes_on, turn, _arrays(inputs[loop.consts :])))


def _arrays(values: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers as arrays: what a loop hands on has a type."""
    return tuple([jax.tree.map(jnp.asarray, value) for value in values])


def _typed(values: Sequence[Any], carry: Sequence[Any]) -> tuple[Any, ...]:
    """What a turn hands on, of the types that it was handed: a literal among it is a Python number here."""
    return tuple([jax.tree.map(lambda v, c: jnp.asarray(v, c.dtype), v, c) for v, c in zip(values, carry, strict=True)])


def _bind(equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
    """What the captured equation gives; a loop takes and gives the parts of tuples."""
    outputs = jax_compat.bind_equation(equation.origin, jax.tree.leaves(list(args)))
    if not any(o is not None and type(o.aval) is TupleType for o in equation.outputs):
        return outputs
    rest = iter(outputs)

    def build(aval: Any) -> Any:
        return tuple([build(p) for p in aval.parts]) if type(aval) is TupleType else next(rest)

    return [build(o.aval if o is not None else None) for o in equation.outputs]
