"""Products of matrices, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from untrace.targets.c.arrays import Array, constant, minus, num, plus, stored, times
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, COMPLEX, INDEX, PARTS, Buffer, Expr, Invoke, Op, Read, Var, part_of
from untrace.targets.c.rules.elementwise import arithmetic, cast, converted, helper
from untrace.targets.c.rules.indexing import when
from untrace.targets.c.rules.reductions import inside_of
from untrace.targets.c.rules.table import rule

_LARGE = 1 << 14  # multiplications, from which on a product is worth a call
_NARROW = 8  # columns of a product, up to which each element is summed up by itself: there is nothing to vectorise


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
    dtype = np.dtype(preferred_element_type or jax.numpy.promote_types(x.dtype, y.dtype))
    if dtype.kind in "iu":  # of a signed and an unsigned type it is no wider than both
        dtype = b.type_of_result()
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
    if dtype.kind == "f" and math.prod(columns) > _NARROW and math.prod([*rows, *columns, *terms]) >= _LARGE:
        return _of_matrices(b, x, y, (xb, xf, xc), (yb, yc, yf))
    if math.prod(terms) == 1:
        zeros = tuple([num(0, INDEX)] * len(terms))
        return Array(tuple(shape), dtype, lambda index: product(index, zeros), 1 + x.cost + y.cost)
    out = b.new(shape, dtype)

    def add(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> None:
        b.write(out, outer, arithmetic("+", Read(out, outer), product(outer, inner), dtype))

    if math.prod(columns) > _NARROW and not _steps_along(y, yc, yf):
        # Row by row of the second matrix: all that the innermost loop touches is contiguous.
        def row(outer: tuple[Expr, ...]) -> None:
            b.fill(Read(out, outer), Array(tuple(columns), dtype, lambda index: constant(0, dtype)))
            if 0 not in terms:
                b.loops(terms, lambda inner: b.loops(columns, lambda last: add((*outer, *last), inner)))

        b.loops([*batch, *rows], row)
        return stored(out)

    def element(outer: tuple[Expr, ...]) -> None:
        b.write(out, outer, constant(0, dtype))
        if 0 not in terms:
            b.loops(terms, lambda inner: add(outer, inner))

    b.loops(shape, element)
    return stored(out)


def _of_matrices(b: Builder, x: Array, y: Array, of_x: Sequence[Sequence[int]], of_y: Sequence[Sequence[int]]) -> Array:
    """A product of large matrices, by the helper. of_x, of_y: which axes are of the batch, of rows, and of columns."""
    (left, a_row, a_column), (right, b_row, b_column) = _matrix(b, x, *of_x), _matrix(b, y, *of_y)
    batch, rows, columns = [[x.shape[d] for d in of_x[0]], [x.shape[d] for d in of_x[1]], [y.shape[d] for d in of_y[2]]]
    terms = math.prod([x.shape[d] for d in of_x[2]])
    out = b.new([*batch, *rows, *columns], x.dtype)
    sizes = [num(n, INDEX) for n in (math.prod(rows), math.prod(columns), terms)]

    def one(i: tuple[Expr, ...]) -> None:
        given = [Read(left, i), num(a_row, INDEX), num(a_column, INDEX)]
        given += [Read(right, i), num(b_row, INDEX), num(b_column, INDEX)]
        b.block.append(Invoke(helper("product", x.dtype), [*sizes, *given], [Read(out, i)]))

    b.loops(batch, one)
    return stored(out)


def _matrix(
    b: Builder, x: Array, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> tuple[Buffer, int, int]:
    """The buffer in which an array stands as matrices, behind the axes of the batch, and how far apart in it rows and
    columns are: one of them by one element. What stands otherwise is copied."""
    index = [Var(n) for n in x.shape]
    value = x.at(tuple(index))
    if isinstance(value, Read) and len(value.index) == len(x.shape) and set(value.index) == set(index):
        place = {d: value.index.index(index[d]) for d in range(len(x.shape))}
        apart = {d: math.prod(value.buffer.shape[place[d] + 1 :]) for d in place}
        width = math.prod([x.shape[d] for d in columns])
        steps = [_step(x.shape, apart, rows, width), _step(x.shape, apart, columns, 1)]
        if [place[d] for d in batch] == list(range(len(batch))) and steps[0] and steps[1] and 1 in steps:
            return value.buffer, steps[0], steps[1]
    order = (*batch, *rows, *columns)
    made = b.new([x.shape[d] for d in order], x.dtype, None, "matrix")
    b.fill(Read(made, ()), Array(made.shape, x.dtype, lambda i: x.at(_placed(len(order), (order, i))), x.cost))
    return made, math.prod([x.shape[d] for d in columns]), 1


def _step(shape: Sequence[int], apart: Mapping[int, int], group: Sequence[int], alone: int) -> int:
    """How far apart the elements along some axes, taken as one, are; 0 where that is not the same for all, `alone` where
    there is one."""
    found, size = 0, 1
    for d in reversed(group):
        if shape[d] == 1:
            continue
        found = found or apart[d]
        if apart[d] != found * size:
            return 0
        size *= shape[d]
    return found or alone


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
        b.write(out, outer, constant(0, dtype))
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


@rule("fft")
def _fft(b: Builder, x: Array, *, fft_type: Any, fft_lengths: Sequence[int]) -> Array:
    """Axis by axis, the last one first; of half a transform (irfft) last, for that one makes real numbers of it.

    Source: `lax.fft_p`, jax/_src/lax/fft.py.
    """
    kind, lengths = ("fft", "ifft", "rfft", "irfft")[int(fft_type)], list(map(int, fft_lengths))
    inverse, dtype = kind.startswith("i"), np.dtype(f"c{x.dtype.itemsize * (2 if kind == 'rfft' else 1)}")
    first = len(x.shape) - len(lengths)
    axes = list(range(first, len(x.shape)))
    for axis in axes if kind == "irfft" else axes[::-1]:
        half = axis == axes[-1] and kind.endswith("rfft")
        x = _transformed(b, b.often(x), axis, lengths[axis - first], dtype, inverse, half)
    return x


def _transformed(b: Builder, x: Array, axis: int, n: int, dtype: np.dtype, inverse: bool, half: bool) -> Array:
    """Along one axis, of n numbers. half: those of real numbers, of which one side says the other."""
    shape = [(n if inverse or not half else n // 2 + 1) if d == axis else m for d, m in enumerate(x.shape)]
    out = b.new(shape, part_of(dtype) if half and inverse else dtype)
    part = part_of(dtype)
    scale = num(1 / n if inverse and n else 1, part)

    def row(outer: tuple[Expr, ...]) -> None:
        line, spare = Buffer("line", (n,), dtype), Buffer("spare", (n,), dtype)

        def element(i: Expr) -> Expr:
            return x.at((*outer[:axis], i, *outer[axis:]))

        def given(index: tuple[Expr, ...]) -> Expr:
            i = index[0]
            if not (half and inverse):
                return cast(element(i), dtype)
            here = Op("<=", (i, num(n // 2, INDEX)), BOOL)
            other = element(Op("?:", (here, i, minus(n, i)), INDEX))
            return Op("?:", (here, other, Op(helper("conj", dtype), (other,), dtype)), dtype)

        b.fill(Read(line, ()), Array((n,), dtype, given))
        b.block.append(
            Invoke(helper("fft", dtype), [num(n, INDEX), num(inverse, BOOL)], [Read(line, ()), Read(spare, ())])
        )

        def write(index: tuple[Expr, ...]) -> None:
            parts = [Op(p, (Read(line, index),), part) for p in PARTS]
            made = [Op("*", (p, scale), part) if inverse else p for p in parts]
            if half and not inverse:  # the ends of a half are real, with no sign
                middle = num(n // 2 if n % 2 == 0 else n, INDEX)
                is_end = Op("==", (Op("i%", (index[0], middle), INDEX), num(0, INDEX)), BOOL)
                made[1] = Op("?:", (is_end, constant(0, part), made[1]), part)
            value = made[0] if half and inverse else Op(COMPLEX, tuple(made), dtype)
            b.write(out, (*outer[:axis], *index, *outer[axis:]), value)

        b.loops([shape[axis]], write)

    if 0 not in (*shape, n):
        b.loops([m for d, m in enumerate(shape) if d != axis], row)
    return stored(out)


def _over(index: Expr, count: int) -> Expr:
    return index if count == 1 else Op("i/", (index, num(count, INDEX)), INDEX)
