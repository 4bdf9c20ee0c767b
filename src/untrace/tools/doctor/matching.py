"""Where what a pattern traced to is found in a program: its terms beside the program's, up to the order of sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from untrace.ir.nodes import Atom, Constant, Literal, Value
from untrace.ir.types import Data, DType
from untrace.tools.doctor.pair import Pair
from untrace.tools.doctor.tape import is_float
from untrace.tools.doctor.terms import COMMUTE, PRODUCTS, SUMS, Operand, Parts, Term, Terms

_MOST_STEPS = 4_000  # of one attempt to match
_CLOSE = 2e-6


@dataclass(frozen=True, slots=True)
class Pattern:
    """One traced pattern. `better`: what to write, a function of what its holes are bound to; `ruled`: the same with the
    derivatives that the pair says. `size`: how many terms it has. `elementwise`: all holes are as large as the result. `heads`:
    the operations of the parts of a sum or a product. `gap`: whether `better` takes the first hole less the second too."""

    pair: Pair
    part: str
    terms: Terms
    root: Term
    holes: Sequence[Value]
    better: Callable[..., Data]
    ruled: Callable[..., Data]
    size: int
    elementwise: bool
    heads: frozenset[str]
    gap: bool = False

    @property
    def name(self) -> str:
        return f"{self.pair.name}{self.part}"


@dataclass(frozen=True, slots=True)
class Affine:
    """What a hole is bound to: a value of the program, or a number, times a number plus a number."""

    atom: Atom
    scale: float = 1.0
    shift: float = 0.0


Bound = Mapping[Value, Affine]


@dataclass(frozen=True, slots=True)
class Parted:
    """A sum or a product of the pattern among the parts of one of the program: what is bound, the number before it, and the
    parts beside it, each with its number in a sum, its power in a product; a number alone has no operand."""

    bound: Bound
    factor: float
    rest: tuple[tuple[Operand | None, float], ...]
    is_sum: bool


class Matcher:
    def __init__(self, pattern: Pattern, terms: Terms, dtype: DType, shape: tuple[int, ...]) -> None:
        self._pattern, self._terms, self._dtype, self._shape = pattern, terms, dtype, shape
        self._holes = {hole: i for i, hole in enumerate(pattern.holes)}
        self._steps = 0

    def matches(self, ours: Operand, theirs: Operand, bound: Bound, shift: float = 0.0) -> Iterator[Bound]:
        """The ways in which a term of the program is one of the pattern. shift: a number that is added to theirs."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return
        factor, hole = self._pattern.terms.factor(ours)
        if type(hole) is Value and hole in self._holes:
            fits = self._bind(hole, factor, theirs, shift, bound)
            if fits is not None:
                yield fits
        mine, other = self._pattern.terms.term(ours), self._terms.term(theirs)
        if isinstance(mine, float):
            if isinstance(other, float) and (abs(other - mine) <= 2e-6 * abs(mine) or other != other and mine != mine):
                yield bound
            return
        if type(mine) is not Term or type(other) is not Term or shift:
            return
        if mine.name == "exp":
            # A number that an exponential is multiplied by may as well stand in it.
            times, inner = self._terms.factor(theirs)
            inside = self._terms.term(inner) if inner is not None else None
            if times > 0 and times != 1.0 and type(inside) is Term and inside.name == "exp":
                yield from self.matches(mine.args[0], inside.args[0], bound, math.log(times))
        if ours is not self._pattern.root:
            for found in self.parted(ours, theirs, bound, True):
                yield found.bound
        if mine.name != other.name or len(mine.args) != len(other.args):
            return
        if mine.key != other.key and not (self._pattern.elementwise and mine.name in ("broadcast_in_dim",)):
            return
        yield from self._all(mine.args, other.args, bound)
        if mine.name in COMMUTE:
            yield from self._all(mine.args, other.args[::-1], bound)

    def parted(self, ours: Operand, theirs: Operand, bound: Bound, whole: bool) -> Iterator[Parted]:
        """The ways in which the parts of a sum or a product are among those of another one, in any order. whole: they are
        all of them, and the number before them is the same."""
        for names in (SUMS, PRODUCTS):
            mine, other = self._pattern.terms.term(ours), self._terms.term(theirs)
            if type(mine) is not Term or type(other) is not Term or mine.name not in names or other.name not in names:
                continue
            is_sum = names is SUMS
            parts = [terms.parts(x, is_sum) for terms, x in ((self._pattern.terms, ours), (self._terms, theirs))]
            if whole and len(parts[0].items) != len(parts[1].items) or len(parts[0].items) > len(parts[1].items):
                continue
            # What says most first: what is bound by it is known behind it.
            order = sorted(parts[0].items, key=lambda item: self._is_hole(item[0]))
            for times in self._ratios(order, parts[1], whole) if is_sum else [1.0]:
                if is_sum and not self._numbers_fit(parts[0], parts[1], times, whole):
                    continue
                for found, factor, left in self._placed(order, list(parts[1].items), bound, times, is_sum):
                    number = parts[1].number - times * parts[0].number if is_sum else 0.0
                    factor = times if is_sum else factor * parts[1].number / parts[0].number
                    if not whole or (is_sum or abs(factor - 1) <= _CLOSE):
                        rest = (
                            (*left, (None, number)) if is_sum and abs(number) > _CLOSE * abs(parts[1].number) else left
                        )
                        yield Parted(found, factor, tuple(rest), is_sum)

    def _is_hole(self, x: Operand) -> bool:
        _, rest = self._pattern.terms.factor(x)
        return type(rest) is Value and rest in self._holes

    def _ratios(self, order: Sequence[tuple[Operand, float]], theirs: Parts, whole: bool) -> Iterator[float]:
        """By what a sum of the pattern may be multiplied."""
        if whole:
            yield 1.0
            return
        own = [times for x, times in order if not self._is_hole(x)][:1] or [1.0]
        yield from dict.fromkeys([1.0, -1.0, *[times / own[0] for _, times in theirs.items]])

    def _numbers_fit(self, ours: Parts, theirs: Parts, times: float, whole: bool) -> bool:
        wanted = ours.number * times
        if whole or ours.number:
            return abs(theirs.number - wanted) <= _CLOSE * abs(wanted)
        return True

    def _placed(
        self,
        ours: Sequence[tuple[Operand, float]],
        theirs: list[tuple[Operand, float]],
        bound: Bound,
        times: float,
        is_sum: bool,
    ) -> Iterator[tuple[Bound, float, list[tuple[Operand, float]]]]:
        """What is bound where each part has its own place, a number before a product, and the parts that are left."""
        if not ours:
            yield bound, 1.0, theirs
            return
        (x, power), *behind = ours
        for place, (other, count) in enumerate(theirs):
            rest = theirs[:place] + theirs[place + 1 :]
            for fits, factor in self._part(x, power, other, count, bound, times, is_sum):
                for found, more, left in self._placed(behind, rest, fits, times, is_sum):
                    yield found, factor * more, left

    def _part(
        self, x: Operand, power: float, other: Operand, count: float, bound: Bound, times: float, is_sum: bool
    ) -> Iterator[tuple[Bound, float]]:
        """One part of the pattern beside one of the program's; of a product also the number that this brings before it."""
        if is_sum:
            if not times:  # the program multiplies by 0 there: of which sum that is, nobody can say
                return
            ratio = count / (power * times)
            if self._is_hole(x):
                scaled = other if ratio == 1.0 else self._terms.scaled(ratio, other)
                yield from ((fits, 1.0) for fits in self.matches(x, scaled, bound))
            elif abs(ratio - 1) <= _CLOSE:
                yield from ((fits, 1.0) for fits in self.matches(x, other, bound))
            elif ratio > 0:
                yield from ((fits, 1.0) for fits in self.matches(x, self._terms.scaled(ratio, other), bound))
            return
        factor, hole = self._pattern.terms.factor(x)
        known = bound.get(hole) if type(hole) is Value and factor == 1.0 else None
        quotient = (
            self._terms.term(known.atom) if known is not None and (known.scale, known.shift) == (1.0, 0.0) else None
        )
        if type(quotient) is Term and quotient.name == "div" and quotient.args[0] == 1.0 and power == -count:
            if self._terms.same(quotient.args[1], other):  # a factor 1 / y is a divisor y
                yield bound, 1.0
            return
        if power != count:
            return
        if known is not None and known.shift == 0.0:
            (a, first), (b, second) = self._terms.factor(known.atom), self._terms.factor(other)
            if first is not None and second is not None and self._terms.same(first, second):
                yield bound, (b / (known.scale * a)) ** power
            return
        yield from ((fits, 1.0) for fits in self.matches(x, other, bound))

    def _all(self, ours: Sequence[Operand], theirs: Sequence[Operand], bound: Bound) -> Iterator[Bound]:
        if not ours:
            yield bound
            return
        for first in self.matches(ours[0], theirs[0], bound):
            yield from self._all(ours[1:], theirs[1:], first)

    def _bind(self, hole: Value, factor: float, x: Operand, shift: float, bound: Bound) -> Bound | None:
        """What is bound where `factor * hole` is to be `x + shift`."""
        number = self._terms.term(x)
        if isinstance(number, float) and not isinstance(x, Value):
            atom, scale = x, 1.0
            if not isinstance(x, (Literal, Constant)):
                aval = jax.core.ShapedArray((), self._dtype, weak_type=True)
                atom = Literal(np.asarray(number, self._dtype)[()], aval)
        elif factor == 1.0 and type(x) is not Term:
            atom, scale = x, 1.0
        else:
            scale, atom = self._terms.factor(x)
            if factor == -1.0 and scale == 1.0:
                return None  # the pattern without its sign is another one
        if type(atom) is Term:
            times, atom = self._terms.held(atom)
            scale /= times
        if atom is None or isinstance(atom, (float, Term)) or type(atom) is Value and atom in self._terms.inner:
            return None
        scale, shift = scale / factor, shift / factor
        if scale <= 0 and factor != 1.0:
            return None
        wanted = self._shape if self._pattern.elementwise else hole.aval.shape
        if atom.aval.shape not in (wanted, ()) or is_float(hole.aval.dtype) != is_float(atom.aval.dtype):
            return None
        if is_float(atom.aval.dtype) and atom.aval.dtype != self._dtype and type(atom) is Value:
            return None
        if atom.aval.shape != wanted and not self._pattern.elementwise:
            return None
        if (scale, shift) != (1.0, 0.0) and not is_float(atom.aval.dtype):
            return None
        if self._pattern.pair.refuses(self._holes[hole], number):
            return None
        found = Affine(atom, scale, shift)
        known = bound.get(hole)
        if known is not None:
            return bound if self._same(known, found) else None
        return {**bound, hole: found}

    def _same(self, one: Affine, other: Affine) -> bool:
        if one.shift != other.shift:
            return False
        if one.scale == other.scale:
            return self._terms.same(one.atom, other.atom)
        (a, first), (b, second) = self._terms.factor(one.atom), self._terms.factor(other.atom)
        if first is None or second is None:
            return first is second and math.isclose(one.scale * a, other.scale * b, rel_tol=1e-6)
        return math.isclose(one.scale * a, other.scale * b, rel_tol=1e-6) and self._terms.same(first, second)
