"""Which primal value a cotangent belongs to, from the forward equations with the same frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from untrace.ir.nodes import Equation, Value

_SUMS = frozenset(("add_any", "add"))


def d(name: str) -> str:
    """The name of the cotangent of `name`, of at most 40 characters."""
    return f"d_{name}"[:40]


class _Forward:
    """One expression of the forward pass: what went in, what came out."""

    __slots__ = ("_equations", "_inputs", "outputs")

    def __init__(self, equations: Sequence[Equation], outputs: Sequence[Value]):
        self._equations = equations
        self._inputs: list[Value] | None = None
        self.outputs = outputs

    @property
    def inputs(self) -> list[Value]:
        if self._inputs is None:  # few of a forward pass are asked
            made = {o for e in self._equations for o in e.outputs}
            read = [a for e in self._equations for a in e.inputs if type(a) is Value and a not in made]
            self._inputs = list(dict.fromkeys(read))
        return self._inputs


class Cotangents:
    """Remembers forward expressions by their frames, and the primal of every cotangent found."""

    def __init__(self, returned: Callable[[], Mapping[Value, Value]] = dict) -> None:
        """`returned`: which results of the program stand where the gradient of which input would."""
        self._find_returned = returned
        self._told: dict[Value, Value] | None = None  # the primals of which something else tells
        self._forward: dict[tuple[Any, ...], list[_Forward]] = {}
        self._primal: dict[Value, Value] = {}
        self._done: set[Value] = set()  # primals that have a cotangent already
        self.branch: tuple[int, int] | None = None  # (which branch of a choice is being named, of how many)
        self._alias: dict[Value, Value] = {}  # a parameter -> what is passed for it
        self._slices: dict[Value, Value] = {}  # a stacked output of a loop -> the value of its body

    def same(self, param: Value, operand: Value) -> None:
        """Remembers that a parameter stands for `operand`."""
        if param is not operand:
            self._alias.setdefault(param, operand)

    def stacked(self, output: Value, value: Value) -> None:
        """Remembers that a loop's output holds, slice by slice, `value` of its body."""
        self._slices[output] = value

    def slice_of(self, value: Value) -> Value | None:
        return self._slices.get(self._root(value))

    def _root(self, value: Value) -> Value:
        for _ in range(32):
            further = self._alias.get(value)
            if further is None:
                return value
            value = further
        return value

    def record(self, frames: tuple[Any, ...], equations: Sequence[Equation], results: Sequence[Value]) -> None:
        """Adds one forward expression."""
        if frames:
            self._forward.setdefault(frames, []).append(_Forward(equations, results))

    def primal_name(
        self, equation: Equation, index: int, frames: tuple[Any, ...], leaves: bool, inputs: Sequence[Value]
    ) -> str | None:
        """The name of the primal that output `index` is the cotangent of; None where it is not certain.

        leaves: whether the output leaves its group: what stays inside is the cotangent of no named value.
        """
        output = equation.outputs[index]
        if output is None:
            return None
        primal = self.told().get(output) or self._of_sum(equation, frames, output, inputs, leaves)
        if primal is None and leaves:
            primal = self._operand(equation, frames, output, inputs)
        if primal is None:
            return self._of_result(frames, output)
        self._primal[output] = primal
        self._done.add(self._root(primal))
        return primal.hint

    def told(self) -> dict[Value, Value]:
        """{cotangent: primal} for those of which it is known before they are named."""
        if self._told is None:
            self._told = dict(self._find_returned())
        return self._told

    def let_go(self) -> None:
        """Forgets the program, which holds this: nothing is told any more."""
        self._find_returned = dict

    def passed(self, results: Iterable[Any], like: Value) -> Value | None:
        """What is passed to a function for the parameter that one of these results of its backward part is the cotangent
        of."""
        for result in results:
            primal = self.primal_of(result) if type(result) is Value else None
            outside = self._root(primal) if primal is not None else None
            if outside is not None and outside is not primal and _same(outside, like):
                return outside
        return None

    def closed_over(self, frames: tuple[Any, ...], like: Value) -> Value | None:
        """The only thing of this type from around a loop that the forward expression with these frames reads in it."""
        found = {self._root(p): p for f in self._forward.get(frames, ()) for p in f.inputs if _same(p, like)}
        outside = [p for root, p in found.items() if root != p]
        return self._root(outside[0]) if len(outside) == 1 else None

    def _of_sum(
        self, equation: Equation, frames: tuple[Any, ...], output: Value, inputs: Sequence[Value], leaves: bool
    ) -> Value | None:
        """A sum of cotangents is the cotangent of what they are cotangents of.

        JAX sums where it transposes the last use of a primal: that is an input of the forward expression. What passes
        through a difference unchanged was called after its result, so the inputs of that expression come first.
        """
        if equation.callee.name not in _SUMS:
            return None
        found = [p for p in (self.primal_of(a) for a in inputs) if p is not None and _same(p, output)]
        if leaves and equation.callee.name == "add_any":
            for forward in reversed(self._forward.get(frames, ())):
                fitting = {self._root(p): p for p in forward.inputs if _same(p, output)}
                known = [fitting[self._root(p)] for p in found if self._root(p) in fitting]
                if known or len(fitting) == 1:
                    return known[0] if known else next(iter(fitting.values()))
        return found[0] if found else None

    def set_primal(self, value: Value, primal: Value | None) -> None:
        if primal is not None:
            self._primal[value] = primal

    def primal_of(self, value: Value) -> Value | None:
        """The primal that a value was found to be the cotangent of."""
        return self._primal.get(value) or self._primal.get(self._root(value))

    def _operand(
        self, equation: Equation, frames: tuple[Any, ...], output: Value, inputs: Sequence[Value]
    ) -> Value | None:
        """The input of the forward expression with the output's type; the operand that the backward one does not use."""
        for forward in self._candidates(frames):
            fitting = [p for p in forward.inputs if _same(p, output)]
            # A loop uses its constants again on the way back; an operation uses the other operand.
            used = {self._root(a) for a in inputs} if len(equation.outputs) == 1 else set()
            free = [p for p in fitting if self._root(p) not in used] or fitting
            fresh = [p for p in free if self._root(p) not in self._done]
            if fresh:
                return fresh[0]
            if free and len(self._forward[frames]) == 1:
                return free[0]
        return None

    def _candidates(self, frames: tuple[Any, ...]) -> Sequence[_Forward]:
        """The forward expressions with these frames, those that are transposed first in front."""
        known = self._forward.get(frames, [])
        if self.branch is not None and len(known) == self.branch[1]:  # branches of one code, each for its own
            return [known[self.branch[0]]]
        return known[::-1]

    def _of_result(self, frames: tuple[Any, ...], output: Value) -> str | None:
        for forward in self._candidates(frames):
            for result in forward.outputs:
                if _same(result, output):
                    return result.hint
        return None


def _same(left: Value, right: Value) -> bool:
    return left.aval is right.aval or (
        getattr(left.aval, "shape", None) == getattr(right.aval, "shape", None)
        and getattr(left.aval, "dtype", None) == getattr(right.aval, "dtype", None)
    )
