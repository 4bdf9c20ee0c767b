"""Arrays while a function is built: what is there in a buffer, and what is computed where it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from untrace.targets.c.loops import BOOL, COMPLEX, INDEX, Buffer, Expr, Num, Op, Read, Var, part_of
from untrace.targets.c.narrow import NARROW

Element = Callable[[tuple[Expr, ...]], Expr]


@dataclass(eq=False, slots=True)
class Array:
    """A value of the program. `at(index)`: the expression of an element.

    `cost`: how many operations that is; 0 of what may be read as often as one likes. `region`: where all of it stands, in
    order, in one buffer; None where it does not.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    at: Element
    cost: int = 0
    region: Read | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def number(self) -> Num | None:
        """The number that it is, where that is known."""
        if self.shape or self.cost or self.region is not None:
            return None
        value = self.at(())
        return value if isinstance(value, Num) else None


def stored(buffer: Buffer, prefix: tuple[Expr, ...] = ()) -> Array:
    """A buffer, or the part of it at some first indices."""
    shape = buffer.shape[len(prefix) :]
    return Array(shape, buffer.dtype, lambda index: Read(buffer, (*prefix, *index)), 0, Read(buffer, prefix))


def number(value: object, dtype: np.dtype, shape: tuple[int, ...] = ()) -> Array:
    """An array of one number throughout."""
    made = constant(value, dtype)
    return Array(shape, dtype, lambda index: made)


def constant(value: object, dtype: np.dtype) -> Expr:
    """A number of any type."""
    if dtype.kind != "c":
        return num(value, dtype)
    found = np.asarray(value).astype(dtype)
    return Op(COMPLEX, (num(found.real, part_of(dtype)), num(found.imag, part_of(dtype))), dtype)


def num(value: object, dtype: np.dtype) -> Num:
    return Num(np.asarray(value).astype(dtype).item(), dtype)


def int_of(value: int) -> Num:
    return Num(value, INDEX)


# ------------------------------------------------------------ floats of 16 bits

_FLOAT = np.dtype(np.float32)


def widened(x: Array) -> Array:
    """The same, as floats of 32 bits, where it is one of 16."""
    return Array(x.shape, _FLOAT, lambda index: _wide(x.at(index)), x.cost) if x.dtype in NARROW else x


def narrowed(x: Array, dtype: np.dtype) -> Array:
    """The same, rounded to floats of 16 bits."""
    return Array(x.shape, dtype, lambda index: _narrow(x.at(index), dtype), x.cost + 1)


def _wide(value: Expr) -> Expr:
    if isinstance(value, Num):
        return num(value.value, _FLOAT)
    word = NARROW[value.dtype]
    if isinstance(value, Op) and value.name == f"narrow_{word}":
        return Op(f"rounded_{word}", value.args, _FLOAT)
    return Op(f"wide_{word}", (value,), _FLOAT)


def _narrow(value: Expr, dtype: np.dtype) -> Expr:
    word = NARROW[dtype]
    if isinstance(value, Num):
        return num(value.value, dtype)
    if isinstance(value, Op) and value.name == f"wide_{word}":
        return value.args[0]
    return Op(
        f"narrow_{word}", value.args if isinstance(value, Op) and value.name == f"rounded_{word}" else (value,), dtype
    )


# ------------------------------------------------------------ indices


def plus(a: Expr, b: Expr | int) -> Expr:
    """a + b, of indices."""
    b = b if isinstance(b, Num | Var | Read | Op) else int_of(int(b))
    if isinstance(a, Num) and isinstance(b, Num):
        return int_of(int(a.value) + int(b.value))
    if isinstance(a, Num):
        a, b = b, a
    if isinstance(b, Num):
        if b.value == 0:
            return a
        if isinstance(a, Op) and a.name == "i+" and isinstance(a.args[1], Num):
            return plus(a.args[0], int(a.args[1].value) + int(b.value))
        if isinstance(a, Op) and a.name == "i-" and isinstance(a.args[0], Num):
            return Op("i-", (int_of(int(a.args[0].value) + int(b.value)), a.args[1]), INDEX)
    return Op("i+", (a, b), INDEX)


def minus(a: int, b: Expr) -> Expr:
    """a - b, of indices."""
    return int_of(a - int(b.value)) if isinstance(b, Num) else Op("i-", (int_of(a), b), INDEX)


def times(a: Expr, b: int) -> Expr:
    """a * b, of indices."""
    if b == 1:
        return a
    if b == 0:
        return int_of(0)
    return int_of(int(a.value) * b) if isinstance(a, Num) else Op("i*", (a, int_of(b)), INDEX)


def divided(a: Expr, b: int, limit: int) -> Expr:
    """a / b, of an index below `limit`."""
    if b == 1:
        return a
    if limit <= b:
        return int_of(0)
    return int_of(int(a.value) // b) if isinstance(a, Num) else Op("i/", (a, int_of(b)), INDEX)


def remainder(a: Expr, b: int, limit: int) -> Expr:
    """a % b, of an index below `limit`."""
    if limit <= b:
        return a
    if b == 1:
        return int_of(0)
    return int_of(int(a.value) % b) if isinstance(a, Num) else Op("i%", (a, int_of(b)), INDEX)


def reshaped(old: Sequence[int], new: Sequence[int]) -> Callable[[tuple[Expr, ...]], tuple[Expr, ...]]:
    """From the indices of an array to those of the one that it was before it had another shape."""
    if 0 in old:  # nothing is read
        return lambda index: tuple([int_of(0)] * len(old))
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [i] if i < len(old) else [], [j] if j < len(new) else []
        p = old[i] if olds else 1
        q = new[j] if news else 1
        i, j = i + len(olds), j + len(news)
        while p != q:
            if p < q:
                p *= old[i]
                olds.append(i)
                i += 1
            else:
                q *= new[j]
                news.append(j)
                j += 1
        groups.append((olds, news))

    def back(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        found: list[Expr] = [int_of(0)] * len(old)
        for olds, news in groups:
            if [old[d] for d in olds if old[d] != 1] == [new[d] for d in news if new[d] != 1]:
                for d, e in zip([d for d in olds if old[d] != 1], [e for e in news if new[e] != 1], strict=True):
                    found[d] = index[e]
                continue
            flat: Expr = int_of(0)
            for e in news:
                flat = plus(times(flat, new[e]), index[e])
            total = math.prod([old[d] for d in olds])
            for d in olds:
                total_inside = total // old[d]
                found[d] = divided(flat, total_inside, total)
                flat, total = remainder(flat, total_inside, total), total_inside
        return tuple(found)

    return back


# ------------------------------------------------------------ expressions


def bounds(expr: Expr) -> tuple[int, int] | None:
    """Between which numbers an integer is, where that is known."""
    if isinstance(expr, Num):
        return (int(expr.value), int(expr.value)) if expr.dtype.kind in "iub" else None
    if isinstance(expr, Var):
        return 0, max(expr.extent - 1, 0)
    if isinstance(expr, Read):
        return expr.buffer.limits
    if not isinstance(expr, Op):
        return (0, 1) if expr.dtype == BOOL else None
    if expr.dtype == BOOL:
        return 0, 1
    if expr.name == "clamp_index":
        last = expr.args[1]
        return (0, int(last.value)) if isinstance(last, Num) else None
    parts = [bounds(a) for a in expr.args]
    if expr.name == "?:":
        one, other = parts[1], parts[2]
        return (min(one[0], other[0]), max(one[1], other[1])) if one and other else None
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    if expr.name == "cast":
        low, high = known[0]
        info = np.iinfo(expr.dtype) if expr.dtype.kind in "iu" else None
        return (low, high) if info is not None and info.min <= low and high <= info.max else None
    one, other = known[0], known[-1]
    if expr.name.startswith("max_"):
        return max(one[0], other[0]), max(one[1], other[1])
    if expr.name.startswith("min_"):
        return min(one[0], other[0]), min(one[1], other[1])
    if expr.name not in ("i+", "+", "i-", "-", "i*", "*"):
        return None
    (a, b), (c, d) = one, other
    match expr.name[-1]:
        case "+":
            found = (a + c, b + d)
        case "-":
            found = (a - d, b - c)
        case _:
            ends = [a * c, a * d, b * c, b * d]
            found = (min(ends), max(ends))
    low, high = _range(expr.dtype)
    return found if low <= found[0] and found[1] <= high else None  # unsigned ones begin at 0 again


def _range(dtype: np.dtype) -> tuple[int, int]:
    """The smallest and the largest integer of a type."""
    return (0, 1) if dtype == BOOL else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def fits(expr: Expr, dtype: np.dtype) -> bool:
    """Whether an integer is known to be one of a type."""
    found = bounds(expr)
    low, high = _range(dtype)
    return found is not None and low <= found[0] and found[1] <= high


_COMPARED = {"<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__, "==": int.__eq__, "!=": int.__ne__}


def folded(expr: Expr) -> Expr:
    """The same, where integers that are known decide it."""
    if not isinstance(expr, Op):
        return expr
    args = expr.args
    if expr.name == "?:" and isinstance(args[0], Num):
        return args[1] if args[0].value else args[2]
    if expr.name in _COMPARED and all(a.dtype.kind in "iub" for a in args):
        if args[0] == args[1]:
            return Num(_COMPARED[expr.name](0, 0), BOOL)
        one, other = [bounds(a) or _range(a.dtype) for a in args]
        ends = {_COMPARED[expr.name](a, b) for a in one for b in other}
        # What is so at all ends of an order is so between them.
        if len(ends) == 1 and (expr.name not in ("==", "!=") or one[0] == one[1] and other[0] == other[1]):
            return Num(ends.pop(), BOOL)
    if expr.name in ("+", "-") and expr.dtype.kind in "iu" and isinstance(args[1], Num) and args[1].value == 0:
        return args[0]
    return expr
