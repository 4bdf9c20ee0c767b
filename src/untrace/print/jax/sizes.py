"""Sizes that follow the inputs: `x.shape[0]` in the place of a number.

A capture may trace a program at sizes that stand for nothing else (`torch.sizes`), and say which integers of the
program follow them (`program.extra["sizes"]`). Where one of these is to be written, it is looked up among the shapes of
the function's own parameters, as it is or with a little arithmetic. A function that has none of it takes the size as
one parameter more. Nothing here is trusted: the text is traced again at other sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from untrace.ir.nodes import Program, Value, walk_functions
from untrace.print.names import identifier
from untrace.print.tree import (
    Assign,
    Attribute,
    Binary,
    Expr,
    Name,
    Slice,
    Star,
    Statement,
    Subscript,
    Text,
    Unpack,
)

# Divisors and summands of sizes: strides, the width of a kernel, a place for a class token.
_DIVISORS = (2, 3, 4, 5, 6, 7, 8, 14, 16, 32)
_SUMMANDS = (0, 1, -1, 2, -2, 3, -3, 4, -4)
# A longer unpacking of a shape is no shorter than its parts.
_LONGEST_SHAPE = 5


class Sizes:
    """What is known about sizes inside one function.

    `names`: the author's word for a size. `words`: those for sizes that become parameters. `outer`: of the function
    around a nested one.
    """

    __slots__ = ("w", "variable", "names", "words", "outer", "is_open", "parameters", "_named", "_bound")

    def __init__(self, w: Any, outer: Sizes | None = None):
        self.w = w
        self.variable: Mapping[int, Sequence[int]] = w.module.variable_sizes
        self.names: dict[int, str] = {}
        self.words: Sequence[str] = ()
        self.outer = outer
        self.is_open = False  # whether sizes may become parameters
        self.parameters: dict[int, Name] = {}
        self._named: dict[int, Name] = {}
        self._bound: set[int] = set()  # names that have their statement already

    def expression(self, size: int) -> Expr | None:
        """The source of a size that follows the inputs; None of any other number, and of one that nothing here gives."""
        if size not in self.variable:
            return None
        found = self._named.get(size) or self._computed(size)
        if found is not None:
            return found
        if self.outer is not None:
            return self.outer.expression(size)
        if not self.is_open:
            self.w.module.built_in.add(size)
            return None
        word = self.words[0] if len(self.words) == 1 else "size"
        made = self.parameters[size] = self._named[size] = Name(self.w.scope.fresh(identifier(word, "size")))
        return made

    def reshape(self, operand: Expr, old: Sequence[int], sizes: Sequence[Any]) -> list[Any]:
        """The arguments of a reshape from the shape `old`: a shape that is there already as such, and -1 for the one
        size that would have to be computed, or that the operand's width gives."""
        if not any(n in self.variable for n in sizes):
            return list(sizes)
        for value in self.w.sized:
            if tuple(sizes) == getattr(value.aval, "shape", None) and value in self.w.names and len(sizes) > 1:
                return [Attribute(self.w.names[value], "shape")]
        if self._is_ambiguous() and type(operand) is Name:
            shape = Attribute(operand, "shape")
            kept = next((i for i, (a, b) in enumerate(zip(old, sizes, strict=False)) if a != b), len(sizes))
            sizes = [
                Subscript(shape, Text(str(i))) if i < kept and n in self.variable else n for i, n in enumerate(sizes)
            ]
        known = {size for size, _, _ in self._dimensions(locals_too=True)} | set(self._named)
        open_ = [i for i, n in enumerate(sizes) if n in self.variable and n not in known]
        if not open_:
            open_ = _changed(old, sizes)[-1:]
            if open_ and sizes[open_[0]] in self.variable:
                return list(sizes)
        return [-1 if open_ == [i] else n for i, n in enumerate(sizes)]

    def _is_ambiguous(self) -> bool:
        """Whether several tensors are given: two of one size here may have different ones in another call."""
        tensors = [p for p in self.w.sized if sum(n in self.variable for n in getattr(p.aval, "shape", ())) > 1]
        return len(tensors) > 1

    @staticmethod
    def joined(sizes: Sequence[Expr]) -> list[Expr]:
        return joined(sizes)

    def _computed(self, size: int) -> Expr | None:
        way = self._way(size)
        if way is not None:
            return self._name(size) if size in self.names else way
        way = self._way(size, locals_too=True)
        if way is None or size not in self.names:
            return way
        name = self._name(size)
        self._bound.add(size)  # here and now: in front of everything the variable is not there yet
        self.w.statements.append(Assign([name.id], way))
        return name

    def _name(self, size: int) -> Name:
        """The author's word for a size, from here on."""
        name = self._named[size] = Name(self.w.scope.fresh(identifier(self.names[size], "size")))
        return name

    # ------------------------------------------------------------ arithmetic

    def _dimensions(self, locals_too: bool = False) -> list[tuple[int, Value, int]]:
        """(size, value, axis) of what the shapes of parameters tell (those of variables that are there by now as well)."""
        found: dict[int, tuple[int, Value, int]] = {}
        names = self.w.names
        values = [v for v in self.w.sized if v in names]
        if locals_too:
            values += [v for v, name in names.items() if type(name) is Name]
        for value in values:
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
        return self._name(size) if size in self.names else self._shape(value, axis)

    def _way(self, size: int, locals_too: bool = False) -> Expr | None:
        known = self._dimensions(locals_too)
        for base, value, axis in known:
            if base == size:
                return self._shape(value, axis)
        # The same arithmetic has to hold at every size that the program was traced at.
        wanted = (size, *self.variable[size])
        points = [((base, *self.variable[base]), (base, value, axis)) for base, value, axis in known]
        for point, place in points:
            found = _of_one(wanted, point)
            if found is not None:
                return found(self._base(*place))
        for i, (point, place) in enumerate(points):
            for other, other_place in points[i:]:
                found = _of_one(wanted, [a * b for a, b in zip(point, other, strict=True)])
                if found is not None:
                    return found(Binary(self._base(*place), "*", self._base(*other_place)))
                if all(a + b == w for a, b, w in zip(point, other, wanted, strict=True)):
                    return Binary(self._base(*place), "+", self._base(*other_place))
        return None

    # ------------------------------------------------------------ the author's names

    def prologue(self) -> list[Statement]:
        """The statements that bind the names that were used: `batch, length, _ = x.shape`."""
        given = {id(n) for n in self.parameters.values()}
        named = {s: name for s, name in self._named.items() if id(name) not in given and s not in self._bound}
        statements: list[Statement] = []
        by_value: dict[Value, dict[int, Name]] = {}
        rest: list[tuple[int, Name]] = []
        known = {size: (value, axis) for size, value, axis in self._dimensions()}
        for size, name in named.items():
            if size in known:
                by_value.setdefault(known[size][0], {})[known[size][1]] = name
            else:
                rest.append((size, name))
        for value, axes in by_value.items():
            rank = len(value.aval.shape)
            if len(axes) > 1 and rank <= _LONGEST_SHAPE:
                targets = [axes[i].id if i in axes else "_" for i in range(rank)]
                statements.append(Unpack(targets, Attribute(self.w.names[value], "shape")))
            else:
                statements.extend([Assign([axes[i].id], self._shape(value, i)) for i in sorted(axes)])
        for size, name in rest:
            statements.append(Assign([name.id], self._way(size)))
        return statements


def words_of_sizes(program: Program) -> dict[int, str]:
    """A word for each size that may differ, for docstrings: the author's where it means one size only, else a letter."""
    found: dict[int, str] = {}
    for function in reversed(walk_functions(program.entry)):
        for size, word in function.extra.get("size_names", {}).items():
            if size in program.extra["sizes"] and word not in found.values():
                found.setdefault(size, word)
    left = (letter for letter in "nmklpqrstuvw" if letter not in found.values())
    shapes = [p.aval.shape for f in walk_functions(program.entry)[::-1] for p in f.params if hasattr(p.aval, "shape")]
    for size in (n for shape in shapes for n in shape if n in program.extra["sizes"]):
        if size not in found:
            found[size] = next(left, "_")
    return {**dict.fromkeys(program.extra["sizes"], "_"), **found}


def _of_one(wanted: Sequence[int], base: Sequence[int]) -> Callable[[Expr], Expr] | None:
    """How to make each size of `wanted` from that of `base`: `k * n`, `n + c`, `(n + c) // k`, `j * ((n + c) // k)`."""
    pairs = list(zip(wanted, base, strict=True))
    if all(w == b for w, b in pairs):
        return lambda e: e
    if base[0] and all(w == b * (wanted[0] // base[0]) for w, b in pairs):
        return lambda e: Binary(e, "*", Text(str(wanted[0] // base[0])))
    for summand in _SUMMANDS[1:]:
        if all(w == b + summand for w, b in pairs):
            return lambda e: _plus(e, summand)
    for divisor, summand in itertools.product(_DIVISORS, _SUMMANDS):
        parts = [(b + summand) // divisor for b in base]
        if parts[0] < 1:
            continue
        factor = wanted[0] // parts[0]
        if factor and all(w == factor * p for w, p in zip(wanted, parts, strict=True)):
            return lambda e: _times(Binary(_plus(e, summand), "//", Text(str(divisor))), factor)
    return None


def _changed(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """The places of a new shape that do not stand for the same dimension as before."""
    left = right = 0
    while left < min(len(old), len(new)) and old[left] == new[left]:
        left += 1
    while right < min(len(old), len(new)) - left and old[-1 - right] == new[-1 - right]:
        right += 1
    return list(range(left, len(new) - right))


def _plus(expr: Expr, summand: int) -> Expr:
    return expr if not summand else Binary(expr, "+" if summand > 0 else "-", Text(str(abs(summand))))


def _times(expr: Expr, factor: int) -> Expr:
    return expr if factor == 1 else Binary(expr, "*", Text(str(factor)))


def joined(sizes: Sequence[Expr]) -> list[Expr]:
    """Sizes with the leading dimensions of one shape together: `x.shape[0], x.shape[1], 8` -> `*x.shape[:2], 8`."""
    count = 0
    while count < len(sizes) and _dimension(sizes[count]) == (_dimension(sizes[0]) or ("",))[:1] + (count,):
        count += 1
    if count < 2:
        return list(sizes)
    whole = sizes[0].value  # type: ignore[attr-defined]
    return [Star(Subscript(whole, Slice(None, Text(str(count)), None))), *sizes[count:]]


def _dimension(expr: Expr) -> tuple[str, int] | None:
    """(`x.shape`, axis) of `x.shape[axis]`."""
    if type(expr) is not Subscript or type(expr.value) is not Attribute or expr.value.name != "shape":
        return None
    index = expr.index.flat()
    return (expr.value.flat(), int(index)) if index.isdecimal() else None
