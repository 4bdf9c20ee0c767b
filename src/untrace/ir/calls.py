"""Equations that stand for what the author called of a function: `jax.vmap(f)(x)`, `jax.grad(f)(x)` and their like.

The function's first parameters are the values that it closes over (`signature.closed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import jax

from untrace.ir.bodies import CALLS, CHECKPOINTS, PLAIN_CALLS
from untrace.ir.derivatives import JACOBIANS
from untrace.ir.nodes import (
    Atom,
    Cond,
    Equation,
    Function,
    Library,
    Primitive,
    Scan,
    Slot,
    Value,
    While,
    functions_called,
)
from untrace.ir.signatures import Derivative, arguments_at
from untrace.ir.structured import Checkpoint, CustomRule, Map, Pullback, Transformed, derivative_in
from untrace.ir.trees import Tree
from untrace.ir.types import Parameter, PyTree

Operand = TypeVar("Operand")


def is_call(equation: Equation) -> bool:
    return type(equation.callee) is Map or derivative_in(equation.callee) is not None


def is_transformed(equation: Equation) -> bool:
    """Whether it is a call of a function that the author maps or differentiates there."""
    return is_call(equation) and equation.callee.name != "called"


def is_named_where_written(equation: Equation) -> bool:
    """Whether the words for what it gives are known where it is written: its outputs are parts of several results."""
    callee = equation.callee
    return type(callee) is Pullback or derivative_in(callee) is not None and callee.name not in (*JACOBIANS, "called")


def passed_places(equation: Equation) -> list[int]:
    """The operands that the call passes, where the function does not close over them instead."""
    callee, every = equation.callee, range(len(equation.inputs))
    if type(callee) is Map:
        alone = callee.signature.stands_alone(equation.inputs)
        return [i for i in every[callee.signature.closed :] if alone or callee.in_axes[i] is not None]
    derivative = derivative_in(callee)
    return list(every if derivative is None else every[derivative.signature.closed :])


def passed_operands(equation: Equation) -> Sequence[Atom]:
    """The operands of a loop or a call that its statement passes, and no function inside it closes over."""
    callee = equation.callee
    if type(callee) is Scan or type(callee) is While:
        return equation.inputs[callee.consts :]
    if type(callee) is CustomRule:
        # A function with rules for reverse mode may be written with what it closes over as arguments.
        return equation.inputs[callee.consts :] if callee.is_jvp else equation.inputs
    if is_call(equation):
        return [equation.inputs[i] for i in passed_places(equation)]
    return equation.inputs if callee.name in CHECKPOINTS else ()


def repeated_slots(callee: Library) -> list[int]:
    """Inputs that stand in a call more than once."""
    if not callee.kwargs and all([type(a) is Slot for a in callee.args]):  # as most are
        places = [a.index for a in callee.args]
        if len(set(places)) == len(places):
            return []
    counts: dict[int, int] = {}
    stack: list[Parameter] = [*callee.args, *callee.kwargs.values()]
    while stack:
        value = stack.pop()
        if type(value) is Slot:
            counts[value.index] = counts.get(value.index, 0) + 1
        elif type(value) is tuple or type(value) is list:
            stack.extend(value)
        elif type(value) is slice:
            stack += [value.start, value.stop, value.step]
    return [index for index, count in counts.items() if count > 1]


# Primitives that call a function that is one of their parameters, on all their operands, by that parameter's name.
CALLED = {
    **dict.fromkeys(PLAIN_CALLS, "call_jaxpr"), **dict.fromkeys(CALLS, "jaxpr"),
    "custom_vmap_call": "call", "composite": "jaxpr", "linear_call": "callee",
}  # fmt: skip


def function_run(equation: Equation, inputs: Sequence[Operand]) -> tuple[Function, Sequence[Operand]] | None:
    """The function that an equation runs where nothing is differentiated or batched any more, and which of `inputs` (whatever
    stands for the equation's own) it takes; None of what is no such call."""
    callee = equation.callee
    if type(callee) is CustomRule or type(callee) is Transformed and type(callee.how) is Checkpoint:
        return callee.function, inputs
    if type(callee) is not Primitive:
        return None
    if callee.name == "custom_linear_solve":
        counts = equation.params["const_lengths"]
        first = counts.matvec + counts.vecmat
        return equation.params["jaxprs"].solve, [*inputs[first : first + counts.solve], *inputs[sum(counts) :]]
    name = CALLED.get(callee.name)
    return None if name is None else (equation.params[name], inputs)


def replaces(update: Function | None) -> bool:
    """Whether what is scattered takes the place of what was there, as it is: `lax.scatter_apply` has a function for it."""
    return update is None or update.results == [update.params[1]]


def trees_taken(equation: Equation) -> Iterator[Tree]:
    """The trees that a loop, a choice, a mapped call or a derivative takes, with places among the operands."""
    callee = equation.callee
    derivative = derivative_in(callee)
    signature = callee.signature if type(callee) is Map else None if derivative is None else derivative.signature
    if signature is not None:
        for _, example, places in arguments_at(signature.args, signature.closed):
            yield Tree(example, tuple(places))
    elif type(callee) in (Scan, While, Cond):
        before = callee.condition_consts if type(callee) is While else 1 if type(callee) is Cond else 0
        trees = functions_called(equation)[-1].facts.trees
        for tree in trees.args if trees is not None else ():
            yield Tree(tree.example, tuple([before + p for p in tree.places]))


def results_tree(equation: Equation) -> tuple[Tree, Sequence[Value | None]] | None:
    """The tree that a loop or a choice gives, and the outputs among which its leaves are."""
    if type(equation.callee) not in (Scan, While, Cond):
        return None
    body = functions_called(equation)[-1]
    outputs = equation.outputs[len(equation.outputs) - len(body.results) :]
    return None if body.facts.trees is None else (body.facts.trees.out, outputs)


def trees_given(equation: Equation) -> Iterator[tuple[PyTree, list[Value | None]]]:
    """The trees that a loop, a choice, a mapped call or a derivative gives, each with the leaves that something reads."""
    callee: object = equation.callee
    outputs: Sequence[Value | None] = equation.outputs
    found: list[Tree] = []
    if (given := results_tree(equation)) is not None:
        found, outputs = given[0].elements(), given[1]
    elif type(callee) is Transformed and type(callee.how) is Derivative:
        signature, start = callee.how.signature, 0
        for part in (signature.out, signature.gradients) if signature.transform in ("grad", "value_and_grad") else ():
            count = len(jax.tree.leaves(part))
            found += Tree(part, tuple(range(start, start + count))).elements()
            start += count
        found = found if start == len(outputs) else []
    elif type(callee) is Map:
        found = Tree(callee.signature.out, tuple(range(len(outputs)))).elements()
    for tree in found:
        yield tree.example, [outputs[p] if p >= 0 else None for p in tree.places]
