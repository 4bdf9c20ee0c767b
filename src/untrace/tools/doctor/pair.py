"""What a repair is: functions of JAX beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from untrace.ir.types import Data

F = Callable[..., Data]


@dataclass(frozen=True, slots=True, eq=False)
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
    gap: bool = False  # whether `better` takes as `gap` the first hole less the second, without what both are sums of

    @property
    def known(self) -> bool:
        """Whether it is in the table: a series that is found for a program is not."""
        return bool(self.written)

    def refuses(self, hole: int, term: object) -> bool:
        """Whether a hole must not be this: a number of the text, or none."""
        is_number = isinstance(term, float)
        return hole in self.numbers and not is_number or hole in self.values and is_number


TWO = ("float", "float")
THREE = ("float", "float", "float")


def gap_of(x: Data, y: Data, gap: Data | None) -> Data:
    """x - y, or what it is known to be."""
    return x - y if gap is None else gap


def safe_divide(x: Data, y: Data, at_zero: Data) -> Data:
    return jnp.where(y == 0, at_zero, x / jnp.where(y == 0, 1.0, y))


def expm1_ratio(x: Data) -> Data:
    return safe_divide(jnp.expm1(x), x, 1.0)


def series(y: Data, coefficients: Sequence[float]) -> Data:
    """A power series in y of at most 1, with as many terms as its type has digits for."""
    least = float(jnp.finfo(jnp.result_type(y)).eps) / 8 * abs(coefficients[0])
    kept = [c for c in coefficients if abs(c) > least]
    total = kept[-1] * jnp.ones_like(y)
    for c in reversed(kept[:-1]):
        total = total * y + c
    return total


def by_series(x: Data, y: Data, coefficients: Sequence[float], beyond: Callable[[Data], Data]) -> Data:
    """A series in y where x is at most 1, `beyond(x)` elsewhere; neither is computed where it has no value."""
    is_small = jnp.abs(x) < 1
    return jnp.where(is_small, series(jnp.where(is_small, y, 0.0), coefficients), beyond(jnp.where(is_small, 1.0, x)))
