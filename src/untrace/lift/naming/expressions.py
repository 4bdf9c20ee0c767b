"""Which of the author's expressions has a row of numbers: one for each turn of a loop, or for each call of a function.

`SHIFTS[i]`, `3 - i`, `1 - B1 ** (i + 1)`: of those that are made of some variables of his, whose values are known.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from untrace.ir.said import Given, Numbers, SaidNumber
from untrace.lift.naming.number_reader import NOTHING, NumberReader, Turn
from untrace.lift.naming.scopes import Scope
from untrace.provenance.frames import Frame

Row = Sequence[Numbers]
Place = tuple[Sequence[ast.stmt], tuple[Frame, ...]]  # statements, and the frames of the function that they stand in
Found = tuple[ast.expr, Row, SaidNumber]  # an expression, what it is each time, and the words for it


class Expressions:
    """Those in some places that have other values each time, as the variables have, of the function of so many frames.

    inner: the values of others, each of which may stand there in digits.
    """

    def __init__(
        self,
        places: Iterable[Place],
        times: Sequence[Mapping[str, Numbers]],
        depth: int,
        inner: Sequence[Mapping[str, Numbers]] = ({},),
    ):
        self.times, self.depth, self.inner = times, depth, inner
        self.found: list[Found] = []
        for body, frames in places:
            scope = Scope.of(frames)
            for node in [n for part in body for n in ast.walk(part) if isinstance(n, ast.expr)]:
                self._look(node, scope)

    def said(self, row: Row, signs: Sequence[int] = (1, -1)) -> Sequence[SaidNumber]:
        """Those that have these values, or, of the second sign, whose negative has; of one inside another the outer one, and first
        those that are in no other that is known."""
        for sign in signs:
            equal = [(node, said) for node, values, said in self.found if _equal(values, row, sign)]
            whole = [(node, said) for node, said in equal if node not in self._inner]
            inside = {part for node, _ in equal for part in ast.walk(node) if part is not node}
            found = {ast.dump(said[0]): said for node, said in whole or equal if node not in inside}
            if found:
                return [(w if sign == 1 else ast.UnaryOp(ast.USub(), w), names) for w, names in found.values()]
        return ()

    @functools.cached_property
    def _inner(self) -> set[ast.AST]:
        """What is in one of them."""
        return {part for node, _, _ in self.found for part in ast.walk(node) if part is not node}

    def _look(self, node: ast.expr, scope: Scope) -> None:
        for fixed in self.inner:
            row: list[Numbers] = []
            written: ast.expr = node
            names: dict[str, Given] = {}
            reader = NumberReader(names)
            for variables in self.times:
                reader = NumberReader(names, turn=Turn(self.depth, variables, fixed))
                try:
                    value, written = reader.part(node, scope)
                except NOTHING:
                    return
                if reader.read.isdisjoint(variables):
                    return
                row.append(value)
            self.found.append((node, row, (written, names)))
            if reader.read.isdisjoint(fixed):
                return


def _equal(values: Row, row: Row, sign: int) -> bool:
    return all(_same(value, wanted, sign) for value, wanted in zip(values, row, strict=False))


def _same(value: Numbers, wanted: Numbers, sign: int) -> bool:
    """Whether a number is another one as float32 has it; tuples with such."""
    if isinstance(value, tuple) or isinstance(wanted, tuple):
        if not isinstance(value, tuple) or not isinstance(wanted, tuple) or len(value) != len(wanted):
            return False
        return all(_same(one, other, sign) for one, other in zip(value, wanted, strict=True))
    if type(value) is int and type(wanted) is int:
        return value * sign == wanted
    if not math.isfinite(value):
        return False
    with np.errstate(over="ignore"):
        return bool(np.float32(value * sign) == np.float32(wanted))
