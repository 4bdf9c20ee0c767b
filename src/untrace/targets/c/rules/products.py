"""Products of matrices, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace.targets.c.arrays import Array, num, plus, stored, times
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, INDEX, Expr, Op, Read, Var
from untrace.targets.c.rules.elementwise import arithmetic, cast, converted
from untrace.targets.c.rules.reductions import inside_of, when
from untrace.targets.c.rules.table import rule


@rule("dot_general")
def _dot_general(
    b: Builder,
    x: Array,
    y: Array,
    *,
    dimension_numbers: Any,
    precision: object = None,
    preferred_element_type: Any = None,
    out_sharding: object = None,
) -> Array:
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else x.dtype
    (xc, yc), (xb, yb) = dimension_numbers
    xf = [d for d in range(len(x.shape)) if d not in xc and d not in xb]
    yf = [d for d in range(len(y.shape)) if d not in yc and d not in yb]
    batch, rows, columns = [x.shape[d] for d in xb], [x.shape[d] for d in xf], [y.shape[d] for d in yf]
    terms = [x.shape[d] for d in xc]
    x, y = converted(b, b.often(x), dtype), converted(b, b.often(y), dtype)
    nb, nr = len(batch), len(rows)

    def product(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> Expr:
        xi = _placed(len(x.shape), (xb, outer[:nb]), (xf, outer[nb : nb + nr]), (xc, inner))
        yi = _placed(len(y.shape), (yb, outer[:nb]), (yf, outer[nb + nr :]), (yc, inner))
        return arithmetic("*", x.at(xi), y.at(yi), dtype)

    shape = [*batch, *rows, *columns]
    if math.prod(terms) == 1:
        zeros = tuple([num(0, INDEX)] * len(terms))
        return Array(tuple(shape), dtype, lambda index: product(index, zeros), 1 + x.cost + y.cost)
    out = b.new(shape, dtype)

    def add(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> None:
        b.write(out, outer, arithmetic("+", Read(out, outer), product(outer, inner), dtype))

    if math.prod(columns) > 1 and not _steps_along(y, yc, yf):
        # Row by row of the second matrix: all that the innermost loop touches is contiguous.
        def row(outer: tuple[Expr, ...]) -> None:
            b.fill(Read(out, outer), Array(tuple(columns), dtype, lambda index: num(0, dtype)))
            if 0 not in terms:
                b.loops(terms, lambda inner: b.loops(columns, lambda last: add((*outer, *last), inner)))

        b.loops([*batch, *rows], row)
        return stored(out)

    def element(outer: tuple[Expr, ...]) -> None:
        b.write(out, outer, num(0, dtype))
        if 0 not in terms:
            b.loops(terms, lambda inner: add(outer, inner))

    b.loops(shape, element)
    return stored(out)


def _placed(rank: int, *groups: tuple[Sequence[int], Sequence[Expr]]) -> tuple[Expr, ...]:
    found: list[Expr] = [num(0, INDEX)] * rank
    for dimensions, index in groups:
        for d, i in zip(dimensions, index, strict=True):
            found[d] = i
    return tuple(found)


def _steps_along(y: Array, contracted: Sequence[int], free: Sequence[int]) -> bool:
    """Whether neighbours in memory are those that are summed over, as in a transposed matrix."""
    index = [Var(n) for n in y.shape]
    value = y.at(tuple(index))
    if not isinstance(value, Read) or not value.index:
        return False
    return any(value.index[-1] is index[d] for d in contracted) and not any(value.index[-1] is index[d] for d in free)


@rule("conv_general_dilated")
def _convolution(
    b: Builder,
    x: Array,
    kernel: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    precision: object = None,
    preferred_element_type: Any = None,
    out_sharding: object = None,
) -> Array:
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else x.dtype
    dn = dimension_numbers
    (xn, xc, *xs), (ko, ki, *ks), (on, oc, *os) = dn.lhs_spec, dn.rhs_spec, dn.out_spec
    x, kernel = b.often(x), b.often(kernel)
    sizes = [x.shape[d] for d in xs]
    window = [kernel.shape[d] for d in ks]
    space = [
        ((n - 1) * ld + 1 + low + high - (w - 1) * rd - 1) // s + 1 if n else 0
        for n, ld, (low, high), w, rd, s in zip(
            sizes, lhs_dilation, padding, window, rhs_dilation, window_strides, strict=True
        )
    ]
    features, inputs = kernel.shape[ko], kernel.shape[ki]
    batch = x.shape[xn] // batch_group_count
    shape = [0] * len(x.shape)
    shape[on], shape[oc] = batch, features
    for d, n in zip(os, space, strict=True):
        shape[d] = n
    out = b.new(shape, dtype)
    per_group = features // feature_group_count
    per_batch = features // batch_group_count

    def element(outer: tuple[Expr, ...]) -> None:
        b.write(out, outer, num(0, dtype))
        n, o, at = outer[on], outer[oc], [outer[d] for d in os]
        group = num(0, INDEX) if feature_group_count == 1 else _over(o, per_group)
        image = n if batch_group_count == 1 else plus(times(_over(o, per_batch), batch), n)

        def add(inner: tuple[Expr, ...]) -> None:
            c, *k = inner
            places: list[Expr] = []
            conditions: list[Expr] = []
            for place, i, s, rd, ld, (low, _) in zip(
                at, k, window_strides, rhs_dilation, lhs_dilation, padding, strict=True
            ):
                where = plus(plus(times(place, s), times(i, rd)), -low)
                if ld != 1:
                    remainder = Op("i%", (where, num(ld, INDEX)), INDEX)
                    conditions.append(Op("==", (remainder, num(0, INDEX)), BOOL))
                    where = Op("i/", (where, num(ld, INDEX)), INDEX)
                places.append(where)
            conditions += inside_of(places, sizes)
            xi = _placed(len(x.shape), ([xn], [image]), ([xc], [plus(times(group, inputs), c)]), (xs, places))
            ki_ = _placed(len(kernel.shape), ([ko], [o]), ([ki], [c]), (ks, k))
            product = arithmetic("*", cast(x.at(xi), dtype), cast(kernel.at(ki_), dtype), dtype)
            when(b, conditions, lambda: b.write(out, outer, arithmetic("+", Read(out, outer), product, dtype)))

        if 0 not in (inputs, *window):
            b.loops([inputs, *window], add)

    if 0 not in shape:
        b.loops(shape, element)
    return stored(out)


def _over(index: Expr, count: int) -> Expr:
    return index if count == 1 else Op("i/", (index, num(count, INDEX)), INDEX)
