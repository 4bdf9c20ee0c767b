"""Numbers in the author's words: the expression that his source has for one, of numbers of his module."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Number: TypeAlias = "int | float"


@dataclass(frozen=True, slots=True)
class Given:
    """A number of the author's module. `made`: the expression that it is given there, of other such numbers or of pi, where it
    still has that value; those numbers are `of`, by name."""

    value: Number
    made: ast.expr | None
    of: Mapping[str, Given]


# The author's expression for a number, and the numbers of the module that are in it, by name.
SaidNumber: TypeAlias = tuple[ast.expr, Mapping[str, Given]]


@dataclass(frozen=True, slots=True)
class SaidLoop:
    """A loop of the author's: its variable, "" where it has none for a number; the number that it begins with; the arguments
    of the `range` that it goes through, by his words or by digits."""

    variable: str
    start: int
    bounds: tuple[SaidNumber, ...]


Rows: TypeAlias = "ast.expr | list[Rows]"
# The same for an array: lists of lists of expressions.
SaidArray: TypeAlias = "tuple[Rows, Mapping[str, Given]]"
