"""Calls of one local function in a row that go through a list of parameters, which `reroll="scan"` makes a scan of.

    x = block(params["blocks"][0], x)
    x = block(params["blocks"][1], x)      ->      x, _ = lax.scan(lambda x, layer: (block(layer, x), None), x, layers)

What a call gives back may only go into the next one; what else it is passed is the same every time, or stands at the same place
in the elements of one list (or at keys in a row).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Local, Value
from untrace.module.loops.elements import Element
from untrace.python.tree import Expr


def run_length(equations: Sequence[Equation], start: int) -> int:
    """How many equations from `start` on call the same local function."""
    body = callee_of(equations[start], Local).body
    stop = start + 1
    while stop < len(equations) and type(callee := equations[stop].callee) is Local and callee.body is body:
        stop += 1
    return stop - start


class Uses:
    """Where the values of a function are used, by the place of the equation; results count as one more."""

    def __init__(self, equations: Sequence[Equation], results: Sequence[object]):
        self.equations = equations
        self.by_value: dict[Value, list[int]] = {}
        for at, equation in enumerate(equations):
            for atom in equation.inputs:
                if type(atom) is Value:
                    self.by_value.setdefault(atom, []).append(at)
        for atom in results:
            if type(atom) is Value:
                self.by_value.setdefault(atom, []).append(len(equations))

    def after(self, value: Value, place: int) -> bool:
        uses = self.by_value.get(value, ())
        return bool(uses) and uses[-1] > place


def carries_of(run: Sequence[Equation], start: int, uses: Uses) -> dict[int, int] | None:
    """{place of an input: the output of the call before that goes there}; None where the calls do anything else."""
    first, second = run[0], run[1]
    outputs = {o: i for i, o in enumerate(first.outputs) if o is not None}
    carries = {p: outputs[a] for p, a in enumerate(second.inputs) if a in outputs}
    if len(set(carries.values())) != len(carries):
        return None
    for turn, (before, after) in enumerate(zip(run, run[1:], strict=False)):
        for place, output in carries.items():
            if after.inputs[place] is not before.outputs[output] or before.outputs[output] is None:
                return None
        passed = set(carries.values())
        for i, output in enumerate(before.outputs):
            if output is None:
                continue
            if i not in passed or uses.by_value.get(output) != [start + turn + 1]:
                return None
    last = run[-1].outputs
    if any(o is not None and i not in set(carries.values()) for i, o in enumerate(last)):
        return None
    return carries


@dataclass(frozen=True, slots=True)
class Turns:
    """Calls of `function` that are to be a scan, one turn for each element.

    `args`: its arguments, expressions or the place of a carry (None for an element). `elements`: (place among `args`, the
    element, whether it is an array and no tree). `carries`: the variable of each carry by its place. `targets`: those that
    the results of a call are given to. `start`: what the carries begin as.
    """

    function: str
    args: Sequence[Expr | int | None]
    elements: Sequence[tuple[int, Element, bool]]
    carries: Mapping[int, str]
    targets: Sequence[str]
    start: Sequence[Expr]
    length: int
