"""Reductions and windows by a function that is a parameter, and the derivative of pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from untrace.ir.nodes import Function, Library, Local
from untrace.module.rules import DECLINE, RuleTable
from untrace.python.tree import Expr, List, Name
from untrace.targets.eager.rules.parts import Window


def register(
    table: RuleTable, primitives: frozenset[str], is_known: Callable[[str], bool], comparisons: tuple[str, str]
) -> None:
    """Gives a target's table these rules. primitives: those that do the same with each element of arrays as with numbers;
    is_known: whether the function of a path does. comparisons: what says whether one number is at least, or at most,
    another."""

    def reduced(w: Any, operands: Sequence[Expr], function: Function, axes: tuple[int, ...]) -> Expr:
        """Arrays reduced by a function of numbers, which is called with arrays."""
        if not is_elementwise(function, primitives, is_known):
            return DECLINE
        half = len(operands) // 2
        starts = [w.tensor(half + i, x) for i, x in enumerate(operands[half:])]
        name = Name(w.module.function(function))
        return w.call(w.helper("_reduced"), name, List(operands[:half]), List(starts), axes)

    @table.rule("reduce")
    def reduce(
        w: Any, *operands: Any, computation: Any = None, jaxpr: Function, dimensions: Sequence[int], out_sharding: Any = None
    ) -> Expr:  # fmt: skip
        return reduced(w, operands, jaxpr, tuple(dimensions))

    @table.rule("reduce_window")
    def reduce_window(
        w: Any, *operands: Any, jaxpr: Function, consts: Any, window_dimensions: Any, window_strides: Any, padding: Any,
        base_dilation: Any, window_dilation: Any,
    ) -> Expr:  # fmt: skip
        half, rank = len(operands) // 2, w.avals[0].ndim
        if consts or 0 in w.out_avals[0].shape or not rank:
            return DECLINE
        window = Window.of(window_dimensions, window_strides, padding, base_dilation, window_dilation)
        views = [window.views(w, x, start) for x, start in zip(operands[:half], operands[half:], strict=True)]
        return reduced(w, [*views, *operands[half:]], jaxpr, tuple(range(-rank, 0)))

    @table.rule("select_and_scatter_add")
    def select_and_scatter_add(
        w: Any, source: Any, x: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any
    ) -> Expr:
        """The derivative of pooling: each number goes to the element that its window has chosen."""
        window = Window.of(window_dimensions, window_strides, padding)
        choice = window.choice(w, w.avals[1], select_prim, comparisons)
        return DECLINE if choice is None else w.call(w.helper("_added_to_chosen"), source, x, *choice)


def is_elementwise(function: Function, primitives: frozenset[str], is_known: Callable[[str], bool]) -> bool:
    """Whether a function of numbers does the same with each element of arrays. primitives: those that do. is_known: whether
    the function of a path does."""
    for equation in function.equations:
        callee = equation.callee
        if type(callee) is Local:
            if not is_elementwise(callee.body, primitives, is_known):
                return False
        elif type(callee) is Library:
            if not callee.name.startswith("operator.") and not is_known(callee.name):
                return False
        elif callee.name not in primitives:
            return False
    return True
