"""Numbers in the author's words: the expression that his source has for one, of numbers of his module."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from untrace.ir.types import Data

Number: TypeAlias = "int | float"
Numbers: TypeAlias = "Number | tuple[Numbers, ...]"


@dataclass(frozen=True, slots=True)
class Given:
    """A number of the author's module, or a list of such. `made`: the expression that it is given there, of other such numbers or
    of pi, where it still has that value; those numbers are `of`, by name."""

    value: Numbers
    made: ast.expr | None
    of: Mapping[str, Given]


# The author's expression for a number, and the numbers of the module that are in it, by name.
SaidNumber: TypeAlias = tuple[ast.expr, Mapping[str, Given]]


Rows: TypeAlias = "ast.expr | list[Rows]"
# The same for an array: lists of lists of expressions.
SaidArray: TypeAlias = "tuple[Rows, Mapping[str, Given]]"


@dataclass(frozen=True, slots=True)
class SaidComputed:
    """An array of the author's module, by the expression that gives it its one value there.

    `made` has the names of `numbers` and of other `arrays`; what it calls and names of modules stands as `np.kron` or
    `jnp.linspace`. None where the array is a table of numbers. `value`: what the module has, NumPy's array or JAX's."""

    name: str
    value: Data
    made: ast.expr | None
    numbers: Mapping[str, Given]
    arrays: Mapping[str, SaidComputed]

    @property
    def is_numpy(self) -> bool:
        """Whether no array of JAX's and no function of its is in the expression."""
        names = {n.id for n in ast.walk(self.made) if isinstance(n, ast.Name)} if self.made is not None else set()
        return (
            isinstance(self.value, np.ndarray) and "jnp" not in names and all(a.is_numpy for a in self.arrays.values())
        )
