"""An evaluator of the IR: what a Program means, and the oracle of every pass's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace.ir.nodes import Equation, Function, Library, Local, Pack, TreeMap, TreeSum, TupleType, Unpack, Value


def evaluate(function: Function, *args: Any) -> list[Any]:
    """The results of `function` on `args` (arrays or tracers, one per parameter); usable under `jax.jit`.

    Equations are bound again with the parameters that they were captured with, so this says what the *capture* means:
    a pass that rewrites a nested Function without updating its jaxpr is not seen here.
    """
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
            outputs = [evaluate(f, *callee.arguments(inputs, turn))[0] for turn, f in enumerate(callee.turns)]
        elif type(callee) is TreeSum:
            params: Any = equation.inputs
            results: Any = equation.outputs
            outputs = evaluate(Function("sum", params, list(callee.equations), results), *inputs)
        elif type(callee) is Library or type(callee) is Local:
            outputs = evaluate(callee.body, *inputs)
        else:
            outputs = _bind(equation, inputs)
        for value, out in zip(equation.outputs, outputs, strict=True):
            if value is not None:
                env[value] = out
    return [read(a) for a in function.results]


def _bind(equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
    """What the captured equation gives; a loop takes and gives the parts of tuples."""
    outputs = jax_compat.bind_equation(equation.origin, jax.tree.leaves(list(args)))
    if not any(o is not None and type(o.aval) is TupleType for o in equation.outputs):
        return outputs
    rest = iter(outputs)

    def build(aval: Any) -> Any:
        return tuple([build(p) for p in aval.parts]) if type(aval) is TupleType else next(rest)

    return [build(o.aval if o is not None else None) for o in equation.outputs]
