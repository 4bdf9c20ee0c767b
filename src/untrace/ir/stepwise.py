"""The evaluator, one operation after the other: what tools that look at values run programs by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.ir.calls import function_run
from untrace.ir.evaluate import as_typed, bound, by_body, run_equations
from untrace.ir.nodes import Cond, Equation, Function, Scan, While
from untrace.ir.structured import Map, Pullback, Transformed
from untrace.ir.types import Aval, Data


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a loop. `number`: from 0; of `scan` in the order of the elements. `count`: how many the loop has, None where
    nobody knows. `is_first`: whether the loop begins with it."""

    number: int
    count: int | None
    is_first: bool


class Observer(Protocol):
    """Who looks on while a program is evaluated."""

    def enter(self, equation: Equation, function: Function, args: Sequence[Data], turn: Turn | None) -> None:
        """A function begins that an equation runs; of a loop, for a turn."""

    def leave(self) -> None:
        """The function that began last has ended."""

    def replaces(self, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data] | None:
        """What an equation gives where it is the observer's own; None of all others."""

    def computed(self, equation: Equation, outputs: Sequence[Data]) -> None:
        """An equation was computed."""


def evaluate_stepwise(function: Function, args: Sequence[Data], observer: Observer) -> list[Data]:
    """The results of `function` on `args` (arrays), each operation by itself, in the program's order.

    Loops run turn by turn, of a choice the branch that is chosen, and of a function with a rule the function. A value is let
    go after its last use. What JAX alone can run (kernels, parts on the devices of a mesh) is one operation.
    """
    return _Stepwise(observer).run(function, args)


class _Stepwise:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def run(self, function: Function, args: Sequence[Data]) -> list[Data]:
        return run_equations(function, args, self._step)

    def _inside(
        self, equation: Equation, function: Function, args: Sequence[Data], turn: Turn | None = None
    ) -> list[Data]:
        self._observer.enter(equation, function, args, turn)
        try:
            return self.run(function, args)
        finally:
            self._observer.leave()

    def _step(self, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data]:
        outputs = self._observer.replaces(equation, inputs)
        if outputs is None:
            outputs = self._outputs(equation, inputs)
            self._observer.computed(equation, outputs)
        return outputs

    def _outputs(self, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data]:
        callee = equation.callee
        if type(callee) is Scan and equation.params["length"]:
            return self._scan(callee, equation, inputs)
        if type(callee) is While:
            return self._while(callee, equation, inputs)
        if type(callee) is Cond:
            chosen = int(jnp.clip(inputs[0], 0, len(callee.branches) - 1))
            return self._inside(equation, callee.branches[chosen], inputs[1:])
        called = function_run(equation, inputs)
        if called is not None:
            return self._inside(equation, *called)
        is_call = type(callee) in (Map, Pullback, Transformed)
        return by_body(equation, inputs) if is_call else bound(equation, inputs)

    def _scan(self, loop: Scan, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data]:
        start, length = loop.consts + loop.carries, equation.params["length"]
        consts, elements = inputs[: loop.consts], inputs[start:]
        carry: Sequence[Data] = [jnp.asarray(x) for x in inputs[loop.consts : start]]
        turns = range(length)
        stacked: list[list[Data]] = [[] for _ in loop.body.results[loop.carries :]]
        for done, turn in enumerate(reversed(turns) if equation.params["reverse"] else turns):
            args = [*consts, *carry, *[_element(x, np.int32(turn)) for x in elements]]
            results = self._inside(equation, loop.body, args, Turn(turn, length, not done))
            carry = as_typed(results[: loop.carries], carry)
            for rows, value in zip(stacked, results[loop.carries :], strict=True):
                rows.append(value)
        avals = loop.body.result_avals[loop.carries :]
        backwards = equation.params["reverse"]
        return [
            *carry, *[_stacked(rows[::-1] if backwards else rows, a) for rows, a in zip(stacked, avals, strict=True)]
        ]  # fmt: skip

    def _while(self, loop: While, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data]:
        ours, consts = inputs[: loop.condition_consts], inputs[loop.condition_consts : loop.consts]
        carry: Sequence[Data] = [jnp.asarray(x) for x in inputs[loop.consts :]]
        turn = 0
        while True:
            (goes,) = self._inside(equation, loop.condition, [*ours, *carry], Turn(turn, None, not turn))
            if not jnp.any(goes):
                return carry
            new = as_typed(self._inside(equation, loop.body, [*consts, *carry], Turn(turn, None, False)), carry)
            if loop.condition.result_avals[0].shape:
                # Of a loop that `jax.vmap` has batched: what is done already keeps its carry.
                new = [
                    jnp.where(jnp.expand_dims(goes, range(goes.ndim, n.ndim)), n, c)
                    for n, c in zip(new, carry, strict=True)
                ]
            carry, turn = new, turn + 1


@jax.jit
def _element(xs: Data, turn: Data) -> Data:
    return lax.dynamic_index_in_dim(xs, turn, keepdims=False)


def _stacked(rows: Sequence[Data], aval: Aval) -> Data:
    """Rows as one array; by NumPy, for XLA would compile a concatenation of as many operands."""
    if jax_compat.is_key_dtype(aval.dtype):
        words = np.stack([np.asarray(jax_compat.key_data(row)) for row in rows])
        return jax.random.wrap_key_data(jnp.asarray(words), impl=jax_compat.key_impl_name(aval))
    if aval.dtype == jax_compat.FLOAT0:
        return np.zeros((len(rows), *aval.shape), jax_compat.FLOAT0)
    return jnp.asarray(np.stack([np.asarray(row, aval.dtype) for row in rows]))
