"""Sizes that follow the inputs: `x.shape[0]` in the place of a number.

A capture may trace a program at sizes that stand for nothing else (`torch.sizes`), and say which integers of the
program follow them (`program.numbers`). Where one of these is to be written, it is looked up among the shapes of
the function's own parameters, as it is or with a little arithmetic. A function that has none of it takes the size as
one parameter more. Nothing here is trusted: the text is traced again at other sizes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from untrace._identifiers import identifier
from untrace.capture.sizes.arithmetic import Way, is_one, ways
from untrace.ir.nodes import Equation, Program, SizeNumbers, Value, walk_functions
from untrace.module.def_use import reads
from untrace.provenance.sites import Provenance, is_in_loop
from untrace.python.names import Scope
from untrace.python.statements import Assign, Statement, Unpack
from untrace.python.tree import UNARY, Attribute, Binary, Expr, Name, Slice, Star, Subscript, Text

# A longer unpacking of a shape is no shorter than its parts.
_LONGEST_SHAPE = 5


class _Module(Protocol):
    """What is asked of a module."""

    provenance: Provenance
    modules: set[str]
    numbers: SizeNumbers
    size_names: Mapping[int, str]
    built_in: set[int]


class _Writer(Protocol):
    """What is asked of the writer of a function."""

    scope: Scope
    names: dict[Value, Expr]
    sized: list[Value]
    statements: list[Statement]

    @property
    def module(self) -> _Module: ...
    @property
    def equation(self) -> Equation | None: ...
    def count(self, expr: Expr) -> Expr: ...


class Sizes:
    """What is known about sizes inside one function.

    `names`: the author's word for a size. `words`: those for sizes that become parameters. `outer`: of the function
    around a nested one.
    """

    __slots__ = (
        "w", "variable", "fractions", "names", "words", "outer", "is_open", "parameters", "_named", "_bound", "_computed_once",
    )  # fmt: skip

    def __init__(self, w: _Writer, outer: Sizes | None = None):
        self.w = w
        self.variable: Mapping[int, Sequence[int]] = w.module.numbers.integers
        self.fractions: Mapping[float, Sequence[float]] = w.module.numbers.fractions
        self.names: Mapping[int, str] = w.module.size_names
        self.words: Sequence[str] = ()
        self.outer = outer
        self.is_open = False  # whether sizes may become parameters
        self.parameters: dict[int, Name] = {}
        self._named: dict[int, Name] = {}
        self._bound: set[int] = set()  # names that have their statement already
        # By the author's name and what it is: the name here, and what is to be written for it at the beginning.
        self._computed_once: dict[tuple[str, str], tuple[Name, Expr | None]] = {}

    def expression(self, size: int) -> Expr | None:
        """The source of a size that follows the inputs; None of any other number, and of one that nothing here gives."""
        if size not in self.variable:
            return None
        found = self._named.get(size) or self._computed(size)
        if found is not None:
            return found
        if self.outer is not None:
            return self._reached(self.outer.expression(size))
        if not self.is_open:
            self.w.module.built_in.add(size)
            return None
        word = self.words[0] if len(self.words) == 1 else "size"
        made = self.parameters[size] = self._named[size] = Name(self.w.scope.fresh(identifier(word, "size")))
        return made

    def _reached(self, expr: Expr | None, outer: Sizes | None = None) -> Expr | None:
        """An expression of the function around this one, or of that of `outer`, whose names will mean nothing else here."""
        inside: Sizes | None = self
        while inside is not None and inside is not outer:
            scope = inside.w.scope
            for name in () if expr is None else reads(expr):
                if not scope.may_rebind(name):
                    scope.claim_closed_over(name)
            inside = inside.outer if outer is not None else None
        return expr

    def number(self, value: float) -> Expr | None:
        """The source of a number that is computed of sizes (`1.0 / x.shape[0]`, `2.0`); None of any other."""
        if value == int(value):
            found = self.expression(int(value))
            if found is not None or value not in self.fractions:
                return found
        exact = value
        if value not in self.fractions:  # written as short as its type allows
            short = float(np.float32(value))
            exact = next((n for n in self.fractions if float(np.float32(n)) == short), short)
        others = self.fractions.get(exact)
        # A number that no equation has, as a guess of the arguments of a call: the spacing of `fftfreq`.
        wanted = (exact,) if others is None else (exact, *others)
        if others is None and not 0 < abs(exact) < 1:
            return None
        scope: Sizes | None = self
        while scope is not None:
            is_rounded = exact in self.w.module.numbers.rounded
            ways = [
                (_fraction(wanted, point[: len(wanted)], is_rounded) if others else _share(value, point[0]), read)
                for point, read in scope._bases()
            ]
            # `1.0 / y.size` says more than `2.5 / x.size`, where both are the same.
            best = min(
                ((way[0], way[1], read) for way, read in ways if way is not None), key=lambda w: w[0], default=None
            )
            if best is not None:
                expr = best[1](best[2]())
                if "np." in expr.flat():
                    self.w.module.modules.add("np")
                return self._reached(expr, scope)
            scope = scope.outer
        return None

    def _bases(self) -> Iterator[tuple[tuple[int, ...], Callable[[], Expr]]]:
        """(a number at all sizes that were traced, what writes it) for sizes, numbers of elements, products of two sizes."""
        known = self._dimensions(locals_too=True)
        points = [((base, *self.variable[base]), (base, value, axis)) for base, value, axis in known]
        for point, place in points:
            yield point, lambda place=place: self._base(*place)
        names = self.w.names
        for value in (*[v for v in self.w.sized if v in names], *[v for v in names if type(names[v]) is Name]):
            shape = getattr(value.aval, "shape", ())
            if points and len(shape) > 1 and any(n in self.variable for n in shape):
                sizes = [(n, *self.variable.get(n, (n,) * len(points[0][0][1:]))) for n in shape]
                whole = tuple(math.prod(at) for at in zip(*sizes, strict=False))
                yield whole, lambda value=value: self.w.count(names[value])
        for i, (point, place) in enumerate(points):
            for other, other_place in points[i:]:
                product = tuple(a * b for a, b in zip(point, other, strict=True))
                yield product, lambda a=place, b=other_place: Binary(self._base(*a), "*", self._base(*b))
            yield tuple(n * (n - 1) for n in point), lambda a=place: _pairs(self._base(*a))

    def reshape(self, operand: Expr, old: Sequence[int], sizes: Sequence[int]) -> list[int | Expr]:
        """The arguments of a reshape from the shape `old`: a shape that is there already as such, and -1 for the one
        size that would have to be computed, or that the operand's width gives."""
        if not any(n in self.variable for n in sizes):
            return list(sizes)
        for value in self.w.sized:
            if tuple(sizes) == getattr(value.aval, "shape", None) and value in self.w.names and len(sizes) > 1:
                return [Attribute(self.w.names[value], "shape")]
        given: Sequence[int | Expr] = sizes
        if self._is_ambiguous() and type(operand) is Name:
            shape = Attribute(operand, "shape")
            kept = next((i for i, (a, b) in enumerate(zip(old, sizes, strict=False)) if a != b), len(sizes))
            given = [
                Subscript(shape, Text(str(i))) if i < kept and n in self.variable else n for i, n in enumerate(sizes)
            ]
        known = {size for size, _, _ in self._dimensions(locals_too=True)} | set(self._named)
        open_ = [i for i, n in enumerate(given) if n in self.variable and n not in known]
        if not open_:
            open_ = _changed(old, given)[-1:]
            if open_ and given[open_[0]] in self.variable:
                return list(given)
        return [-1 if open_ == [i] else n for i, n in enumerate(given)]

    def index(self, index: object, shape: Sequence[int]) -> object:
        """An index into an array of that shape, counted from the end where it follows that: `x[1:-1]`, `x[-2]`."""
        parts = index if type(index) is tuple else (index,)
        rest = len(shape) - sum(part is not None and part is not Ellipsis for part in parts)
        if rest < 0 or sum(part is Ellipsis for part in parts) > 1:
            return index
        found: list[object] = []
        counted = not self._is_in_a_turn()  # `x[i : i + n]` of a loop is alike in all turns
        axis = 0
        for part in parts:
            if type(part) is int:
                part = self._from_end(part, shape[axis])
            elif type(part) is slice and counted:
                part = slice(self._from_end(part.start, shape[axis]), self._from_end(part.stop, shape[axis]), part.step)
            elif type(part) is not slice and part is not None and part is not Ellipsis:
                return index  # an array, which may stand for several axes
            found.append(part)
            axis += rest if part is Ellipsis else part is not None
        return tuple(found) if type(index) is tuple else found[0]

    def _from_end(self, place: object, size: int) -> object:
        if not isinstance(place, int) or place not in self.variable or size not in self.variable:
            return place
        ends = zip((size, *self.variable[size]), (place, *self.variable[place]), strict=False)
        distances = {end - at for end, at in ends}
        return -distances.pop() if len(distances) == 1 and size > place > 0 else place

    def _is_ambiguous(self) -> bool:
        """Whether several tensors are given: two of one size here may have different ones in another call."""
        tensors = [p for p in self.w.sized if sum(n in self.variable for n in getattr(p.aval, "shape", ())) > 1]
        return len(tensors) > 1

    def shape(self, sizes: Sequence[object]) -> Expr | None:
        """`x.shape` for a whole shape that something has; None where it follows no input, or has words of its own."""
        wanted = tuple(sizes)
        following = [n for n in wanted if type(n) is int and n in self.variable]
        if not following or len(wanted) == 1 and wanted[0] in self.names:
            return None
        scope: Sizes | None = self
        while scope is not None:
            names = scope.w.names
            given = [v for v in scope.w.sized if v in names]
            # The latest is likely alive; what a turn of a loop made, the turn before has not.
            locals_ = () if self._is_in_a_turn() else reversed(names)
            variables = [v for v in (*given, *locals_) if type(names[v]) is Name]
            for value in (*variables, *given):
                if getattr(value.aval, "shape", None) == wanted:
                    return self._reached(Attribute(names[value], "shape"), scope)
            scope = scope.outer
        return None

    def _is_in_a_turn(self) -> bool:
        """Whether what is written is of a turn of a loop in the author's function."""
        origin = self.w.equation.origin if self.w.equation is not None else None
        frames = self.w.module.provenance.site(origin).frames if origin is not None else ()
        return is_in_loop(frames[-1:])

    @staticmethod
    def joined(sizes: Sequence[Expr]) -> list[Expr]:
        return joined(sizes)

    def _computed(self, size: int) -> Expr | None:
        way = self._way(size)
        if way is not None and size in self.names:
            return self._name(size)
        if way is not None and _is_short(way):
            return way
        way = self._way(size, locals_too=True)
        if way is None or size not in self.names:
            return way
        return self._bind(size, way)

    def _bind(self, size: int, way: Expr) -> Name:
        """The author's word for a size that a variable tells: here and now, for in front of everything that is not there yet."""
        name = self._name(size)
        if name is self._named.get(size):  # of no function around this one
            self._bound.add(size)
            self.w.statements.append(Assign([name.id], way))
        return name

    def bound(self, word: str, way: Expr) -> Name:
        """The author's name for what he computes of sizes that follow no input: from the beginning where the parameters tell it,
        else from here on."""
        key = word, way.flat()
        if key not in self._computed_once:
            name = Name(self.w.scope.fresh(identifier(word, "size")))
            told = {self.w.names[v].flat() for v in self.w.sized if v in self.w.names}
            is_told = told.union(n.id for n, _ in self._computed_once.values()).issuperset(reads(way))
            self._computed_once[key] = name, way if is_told else None
            if not is_told:
                self.w.statements.append(Assign([name.id], way))
        return self._computed_once[key][0]

    def _name(self, size: int) -> Name:
        """The author's word for a size, from here on: that of a function around this one, where that is given the size."""
        around = self.outer._given(size) if self.outer is not None else None
        if around is not None:
            return around
        name = self._named[size] = Name(self.w.scope.fresh(identifier(self.names[size], "size")))
        return name

    def _given(self, size: int) -> Name | None:
        """The name of a size that the parameters tell, of this function or of one around it."""
        around = self.outer._given(size) if self.outer is not None else None
        if around is not None or size in self._named:
            return around or self._named[size]
        is_told = size in self.names and any(base == size for base, _, _ in self._dimensions())
        return self._name(size) if is_told else None

    # ------------------------------------------------------------ arithmetic

    def _dimensions(self, locals_too: bool = False) -> list[tuple[int, Value, int]]:
        """(size, value, axis) of what the shapes of parameters tell (those of variables that are there by now as well)."""
        found: dict[int, tuple[int, Value, int]] = {}
        names = self.w.names
        values = [v for v in self.w.sized if v in names]
        if locals_too:
            values += [v for v, name in names.items() if type(name) is Name]
        for value in sorted(
            values, key=lambda v: type(names[v]) is not Name
        ):  # `x.shape[0]` before `tree["x"].shape[0]`
            for axis, size in enumerate(getattr(value.aval, "shape", ())):
                if size in self.variable:
                    found.setdefault(size, (size, value, axis))
        return list(found.values())

    def _shape(self, value: Value, axis: int) -> Expr:
        return Subscript(Attribute(self.w.names[value], "shape"), Text(str(axis)))

    def _base(self, size: int, value: Value, axis: int) -> Expr:
        """One dimension, by the author's name where there is one."""
        if size in self._named:
            return self._named[size]
        if size not in self.names:
            return self._shape(value, axis)
        return self._name(size) if value in self.w.sized else self._bind(size, self._shape(value, axis))

    def _way(self, size: int, locals_too: bool = False) -> Expr | None:
        known = self._dimensions(locals_too)
        for base, value, axis in known:
            if base == size:
                return self._shape(value, axis)
        # The same arithmetic has to hold at every size that the program was traced at.
        wanted = (size, *self.variable[size])
        count = len(wanted)  # of a size that a rewrite computes only the example's is known
        points = [((base, *self.variable[base])[:count], (base, value, axis)) for base, value, axis in known]
        for point, place in points:
            found = _of_one(wanted, point)
            if found is not None:
                return found(self._base(*place))
        for i, (point, place) in enumerate(points):
            found = _of_one(wanted, [n * (n - 1) for n in point])
            if found is not None:
                return found(_pairs(self._base(*place)))
            for other, other_place in points[i:]:
                found = _of_one(wanted, [a * b for a, b in zip(point, other, strict=True)])
                if found is not None:
                    return found(Binary(self._base(*place), "*", self._base(*other_place)))
                if all(a + b == w for a, b, w in zip(point, other, wanted, strict=True)):
                    return Binary(self._base(*place), "+", self._base(*other_place))
        return None

    # ------------------------------------------------------------ the author's names

    def _told_by(self, way: Expr) -> tuple[Value, int] | None:
        """The parameter of which an expression is one dimension, `x.shape[0]`."""
        given = [value for value in self.w.sized if value in self.w.names]
        places = [(value, axis) for value in given for axis in range(len(getattr(value.aval, "shape", ())))]
        return next((place for place in places if self._shape(*place).flat() == way.flat()), None)

    def prologue(self) -> list[Statement]:
        """The statements that bind the names that were used: `batch, length, _ = x.shape`."""
        given = set(self.parameters.values())
        named = {s: name for s, name in self._named.items() if name not in given and s not in self._bound}
        self._bound.update(named)
        statements: list[Statement] = []
        by_value: dict[Value, dict[int, Name]] = {}
        rest: list[tuple[int, Name]] = []
        known = {size: (value, axis) for size, value, axis in self._dimensions()}
        for size, name in named.items():
            if size in known:
                by_value.setdefault(known[size][0], {})[known[size][1]] = name
            else:
                rest.append((size, name))
        for key, (name, way) in self._computed_once.items():
            if way is not None and (place := self._told_by(way)) is not None:
                if by_value.setdefault(place[0], {}).setdefault(place[1], name) is name:
                    self._computed_once[key] = name, None
        for value, axes in by_value.items():
            rank = len(value.aval.shape)
            if len(axes) > 1 and rank <= _LONGEST_SHAPE:
                targets = [axes[i].id if i in axes else "_" for i in range(rank)]
                statements.append(Unpack(targets, Attribute(self.w.names[value], "shape")))
            else:
                statements.extend([Assign([axes[i].id], self._shape(value, i)) for i in sorted(axes)])
        for size, name in rest:
            way = self._way(size)
            assert way is not None  # a size that has a name was found
            statements.append(Assign([name.id], way))
        for key, (name, way) in self._computed_once.items():
            if way is not None:
                statements.append(Assign([name.id], way))
                self._computed_once[key] = name, None
        return statements


def words_of_sizes(program: Program, authors: Mapping[int, str]) -> dict[int, str]:
    """A word for each size that may differ, for docstrings: the author's where it means one size only, else a letter, `n`
    for one that is the first of each shape."""
    sizes = program.numbers.integers if program.numbers else {}
    found: dict[int, str] = {}
    functions = walk_functions(program.entry)
    for size, word in [*authors.items(), *[w for f in functions[::-1] for w in f.facts.size_names.items()]]:
        if size in sizes and word not in found.values():
            found.setdefault(size, word)
    left = [letter for letter in "nmklpqrstuvw" if letter not in found.values()]
    shapes = [p.aval.shape for p in program.entry.params if hasattr(p.aval, "shape")]
    shapes += [p.aval.shape for f in functions for p in f.params if hasattr(p.aval, "shape")]
    order = dict.fromkeys(n for shape in shapes for n in shape if n in sizes and n not in found)
    given = {n for p in program.entry.params for n in getattr(p.aval, "shape", ())}
    for size in sorted(order, key=lambda n: any(n in shape[1:] for shape in shapes)):
        if size in given:
            found[size] = left.pop(0) if left else f"n_{len(found)}"
    return {**{size: _computed_word(size, sizes, found) for size in sizes}, **found}


def _computed_word(size: int, sizes: Mapping[int, Sequence[int]], words: Mapping[int, str]) -> str:
    """`n-1` for a size that is computed of another; `_` where that is not simple."""
    for base, word in words.items():
        way = _of_one((size, *sizes[size]), (base, *sizes[base])[: 1 + len(sizes[size])])
        if way is not None and word != "_":
            return way(Name(word)).flat().replace(" ", "")
    return "_"


def _of_one(wanted: Sequence[int], base: Sequence[int]) -> Callable[[Expr], Expr] | None:
    """How to make each size of `wanted` from that of `base`: `k * n`, `n + c`, `k * n + c`, `(n + c) // k`, `j * ((n + c) // k)`.
    None too where several divisions would do."""
    found = list(ways(wanted, base))
    if not found or found[0].divisor > 1 and not is_one(found, base):
        return None
    return functools.partial(_computed, found[0])


def _computed(way: Way, size: Expr) -> Expr:
    size = _plus(size, way.summand)
    return _plus(_times(size if way.divisor == 1 else Binary(size, "//", Text(str(way.divisor))), way.factor), way.plus)


Written = Callable[[Expr], Expr]


def _fraction(wanted: Sequence[float], base: Sequence[int], is_rounded: bool = False) -> tuple[int, Written] | None:
    """How to make each number of `wanted` from that of `base`: `c / n`, `c * n`, `c / n**0.5`, `c * n**0.5`, `n / c`, of
    `n - 1` too; with a figure for how far-fetched it is.

    is_rounded: whether the numbers were rounded on the way (`3.0 * f32(1 / n)`). Then only what is the same at every size
    counts: powers of two, divided once.
    """
    if is_rounded:
        factors = [w * b for w, b in zip(wanted, base, strict=True)]
        for factor, text in _plain(factors):
            if math.frexp(abs(factor))[0] == 0.5 and _same([factor / b for b in base], wanted):
                return int(factor != 1), functools.partial(_scaled, text, 0, 1, True)
        return None
    for summand in (0, -1, 1):
        parts = [b + summand for b in base]
        if min(parts) <= 0:
            continue
        for power, divides in ((1, True), (0.5, True), (1, False), (0.5, False)):
            factors = [w * p**power if divides else w / p**power for w, p in zip(wanted, parts, strict=True)]
            for factor, text in _plain(factors):
                given = [factor / p**power if divides else factor * p**power for p in parts]
                if _same(given, wanted):
                    rank = abs(summand) + (abs(factor) not in (1, 2, 0.5)) + (abs(factor) != 1) + (power != 1)
                    return rank, functools.partial(_scaled, text, summand, power, divides)
        for factor, text in _plain([p / w for w, p in zip(wanted, parts, strict=True)]):
            if _same([p / factor for p in parts], wanted):
                return 3, functools.partial(_divided, text, summand)
    return _affine(wanted, base)


def _affine(wanted: Sequence[float], base: Sequence[int]) -> tuple[int, Written] | None:
    """`2.0 + 0.5 * n`, of numbers that are on one line at three sizes or more."""
    if len(set(base)) < 3 or base[0] == base[1]:
        return None
    slope = (wanted[0] - wanted[1]) / (base[0] - base[1])
    for factor, scale in _plain([slope]):
        for start, first in _plain([wanted[0] - slope * base[0]]):
            if _same([start + factor * b for b in base], wanted):
                return 4, functools.partial(_on_line, first, scale)
    return None


def _same(given: Sequence[float], wanted: Sequence[float]) -> bool:
    return all(np.float32(g) == np.float32(w) for g, w in zip(given, wanted, strict=True))


def _share(number: float, size: int) -> tuple[int, Written] | None:
    """`1.0 / n` where a number is just that."""
    return (0, lambda e: Binary(Text("1.0"), "/", e)) if size and 1.0 / size == number else None


# Numbers that no few digits say: to guess more of them would be to round otherwise at other sizes.
_CONSTANTS = ((math.pi, "np.pi"), (math.log(2 * math.pi), "np.log(2.0 * np.pi)"), (math.log(2), "np.log(2.0)"))


def _plain(factors: Sequence[float]) -> Iterator[tuple[float, Expr]]:
    """The number that all of these are but for rounding, as a person writes it, where it is one."""
    first = factors[0]
    if any(abs(f - first) > 1e-5 * abs(first) for f in factors):
        return
    short = float(f"{first:.4g}")
    if short:
        yield short, Text(repr(short), UNARY if short < 0 else 14)
    for constant, text in _CONSTANTS:
        times = float(f"{first / constant:.4g}")
        if abs(times * constant - first) < 1e-6 * abs(first):
            number = Text(repr(times), UNARY if times < 0 else 14)
            yield times * constant, Text(text) if times == 1 else Binary(number, "*", Text(text))


def _divided(divisor: Expr, summand: int, size: Expr) -> Expr:
    return Binary(_plus(size, summand), "/", divisor)


def _scaled(factor: Expr, summand: int, power: float, divides: bool, size: Expr) -> Expr:
    size = _plus(size, summand)
    is_one = factor.flat() == "1.0"
    if power != 1 and divides and is_one:
        return Binary(size, "**", Text("-0.5", UNARY))
    root = size if power == 1 else Binary(size, "**", Text("0.5"))
    if divides:
        return Binary(factor, "/", root)
    return root if is_one else Binary(factor, "*", root)


def _on_line(start: Expr, factor: Expr, size: Expr) -> Expr:
    return Binary(start, "+", _scaled(factor, 0, 1, False, size))


def _changed(old: Sequence[int], new: Sequence[int | Expr]) -> list[int]:
    """The places of a new shape that do not stand for the same dimension as before."""
    left = right = 0
    while left < min(len(old), len(new)) and old[left] == new[left]:
        left += 1
    while right < min(len(old), len(new)) - left and old[-1 - right] == new[-1 - right]:
        right += 1
    return list(range(left, len(new) - right))


def _plus(expr: Expr, summand: int) -> Expr:
    return expr if not summand else Binary(expr, "+" if summand > 0 else "-", Text(str(abs(summand))))


def _pairs(expr: Expr) -> Expr:
    """`n * (n - 1)`: how many pairs there are."""
    return Binary(expr, "*", Binary(expr, "-", Text("1")))


def _times(expr: Expr, factor: int) -> Expr:
    return expr if factor == 1 else Binary(expr, "*", Text(str(factor)))


def joined(sizes: Sequence[Expr]) -> list[Expr]:
    """Sizes with the leading dimensions of one shape together: `x.shape[0], x.shape[1], 8` -> `*x.shape[:2], 8`."""
    count = 0
    while count < len(sizes) and _dimension(sizes[count]) == (_dimension(sizes[0]) or ("",))[:1] + (count,):
        count += 1
    if count < 2:
        return list(sizes)
    first = sizes[0]
    assert type(first) is Subscript  # of a shape
    whole = first.value
    return [Star(Subscript(whole, Slice(None, Text(str(count)), None))), *sizes[count:]]


def _is_short(way: Expr) -> bool:
    """Whether a size is read off a variable, and not off a part of a tree."""
    return "[" not in way.flat().replace(".shape[", "")


def _dimension(expr: Expr) -> tuple[str, int] | None:
    """(`x.shape`, axis) of `x.shape[axis]`."""
    if type(expr) is not Subscript or type(expr.value) is not Attribute or expr.value.name != "shape":
        return None
    index = expr.index.flat()
    return (expr.value.flat(), int(index)) if index.isdecimal() else None
