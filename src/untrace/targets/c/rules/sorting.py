"""Sorting: the order of the keys is found by a stable merge sort, and everything is read in that order."""

from __future__ import annotations

import numpy as np

from untrace.targets.c.arrays import Array, num, stored
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import INDEX, PARTS, Buffer, Expr, Invoke, Loop, Op, Read, Var, part_of
from untrace.targets.c.rules.elementwise import cast, helper
from untrace.targets.c.rules.table import rule


def _ordered(b: Builder, outer: tuple[Expr, ...], keys: list[Read], n: int) -> Buffer:
    """A buffer with the order of some rows, of which the first counts most."""
    order, spare = Buffer("order", (n,), INDEX), Buffer("spare", (n,), INDEX)
    b.fill(Read(order, ()), Array((n,), INDEX, lambda index: index[0]))
    for key in reversed(keys):
        b.block.append(Invoke(helper("sort", key.dtype), [num(n, INDEX), key], [Read(order, ()), Read(spare, ())]))
    return order


@rule("sort")
def _sort(b: Builder, *xs: Array, dimension: int, is_stable: bool, num_keys: int) -> list[Array]:
    shape, n = xs[0].shape, xs[0].shape[dimension]
    if n <= 1:
        return list(xs)
    kept = [b.often(x) for x in xs]
    outs = [b.new(x.shape, x.dtype, place) for place, x in enumerate(xs)]

    def row(outer: tuple[Expr, ...]) -> None:
        def element(x: Array, i: Expr) -> Expr:
            return x.at((*outer[:dimension], i, *outer[dimension:]))

        def key(v: Expr, part: str) -> Expr:
            return Op(part, (v,), part_of(v.dtype)) if part else v

        keys = [
            b.whole(
                Array((n,), part_of(x.dtype), lambda index, x=x, part=part: key(element(x, index[0]), part), 1), "key"
            )
            for x in kept[:num_keys]
            for part in (PARTS if x.dtype.kind == "c" else ("",))
        ]
        order = _ordered(b, outer, keys, n)
        loop = Loop(Var(n), [])
        with b.inside(loop.body):
            place = Read(order, (loop.var,))
            for out, x in zip(outs, kept, strict=True):
                b.write(out, (*outer[:dimension], loop.var, *outer[dimension:]), element(x, place))
        b.block.append(loop)

    if 0 not in shape:
        b.loops([m for d, m in enumerate(shape) if d != dimension], row)
    return [stored(out) for out in outs]


@rule("top_k")
def _top_k(b: Builder, x: Array, *, k: int, axis: int = -1, is_stable: bool = True) -> list[Array]:
    axis %= len(x.shape)
    n = x.shape[axis]
    x = b.often(x)
    shape = [k if d == axis else m for d, m in enumerate(x.shape)]
    values, places = b.new(shape, x.dtype, 0), b.new(shape, np.dtype(np.int32), 1)

    def row(outer: tuple[Expr, ...]) -> None:
        key = b.whole(Array((n,), x.dtype, lambda index: x.at((*outer[:axis], index[0], *outer[axis:])), 1), "key")
        order, spare = Buffer("order", (n,), INDEX), Buffer("spare", (n,), INDEX)
        b.fill(Read(order, ()), Array((n,), INDEX, lambda index: index[0]))
        b.block.append(Invoke(helper("sort_down", x.dtype), [num(n, INDEX), key], [Read(order, ()), Read(spare, ())]))
        loop = Loop(Var(k), [])
        with b.inside(loop.body):
            place = Read(order, (loop.var,))
            index = (*outer[:axis], loop.var, *outer[axis:])
            b.write(values, index, x.at((*outer[:axis], place, *outer[axis:])))
            b.write(places, index, cast(place, np.dtype(np.int32)))
        b.block.append(loop)

    b.loops([m for d, m in enumerate(x.shape) if d != axis], row)
    return [stored(values), stored(places)]
