"""What a repair is: functions of JAX beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from untrace.ir.types import Data

F = Callable[..., Data]


@dataclass(frozen=True, slots=True)
class Pair:
    """`written`: the ways in which it is written; `better`: what to write, of the same holes. `holes`: what each is, "float" or
    "bool". `slopes`: for each hole how to write the cotangent, of the holes and the result's cotangent; where there is none,
    as JAX differentiates `better`. `arrays`: both take `axis` and `keepdims` too. `is_derivative`: what is itself one, so that
    its own derivative is not looked for. `because`: why, in a sentence. `numbers`: holes that are numbers of the text.
    """

    name: str
    because: str
    written: Sequence[F]
    better: F
    holes: Sequence[str] = ("float",)
    slopes: Sequence[F | None] = ()
    arrays: bool = False
    is_derivative: bool = False
    numbers: Sequence[int] = ()
    values: Sequence[int] = ()  # holes that are none

    def refuses(self, hole: int, term: object) -> bool:
        """Whether a hole must not be this: a number of the text, or none."""
        is_number = isinstance(term, float)
        return hole in self.numbers and not is_number or hole in self.values and is_number


TWO = ("float", "float")
THREE = ("float", "float", "float")


def safe_divide(x: Data, y: Data, at_zero: Data) -> Data:
    return jnp.where(y == 0, at_zero, x / jnp.where(y == 0, 1.0, y))


def expm1_ratio(x: Data) -> Data:
    return safe_divide(jnp.expm1(x), x, 1.0)
