"""Factorizations of small matrices and triangular solves, by helpers over one matrix at a time."""

from __future__ import annotations

import numpy as np

from untrace.targets.c.arrays import Array, constant, num, stored
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, INDEX, Expr, Invoke, Op, Read
from untrace.targets.c.rules.elementwise import arithmetic, elementwise, helper
from untrace.targets.c.rules.table import Declined, rule


@rule("cholesky")
def _cholesky(b: Builder, x: Array, *, symmetrize_input: bool = False) -> Array:
    n = x.shape[-1]
    if symmetrize_input:
        given = b.often(x)
        half = constant(0.5, x.dtype)

        def mean(index: tuple[Expr, ...]) -> Expr:
            other = conjugated(given.at((*index[:-2], index[-1], index[-2])))
            return arithmetic("*", half, arithmetic("+", given.at(index), other, x.dtype), x.dtype)

        x = Array(x.shape, x.dtype, mean, 2)
    whole = b.whole(x, "matrix")
    out = b.new(x.shape, x.dtype)
    b.loops(
        x.shape[:-2],
        lambda i: b.block.append(
            Invoke(helper("cholesky", x.dtype), [num(n, INDEX), Read(whole.buffer, (*whole.index, *i))], [Read(out, i)])
        ),
    )
    return stored(out)


def conjugated(v: Expr) -> Expr:
    """The conjugate of a number; a real one itself."""
    return Op(helper("conj", v.dtype), (v,), v.dtype) if v.dtype.kind == "c" else v


@rule("triangular_solve")
def _triangular_solve(
    b: Builder,
    a: Array,
    y: Array,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Array:
    n = a.shape[-1]
    # From the right it is the transposed system from the left.
    rows, columns = (y.shape[-2], y.shape[-1]) if left_side else (y.shape[-1], y.shape[-2])
    if conjugate_a and a.dtype.kind == "c":
        a = elementwise(b, a.dtype, conjugated, a)
    matrix = b.whole(a, "matrix")
    out = b.new((*y.shape[:-2], rows, columns), y.dtype)
    b.fill(
        Read(out, ()),
        Array(out.shape, y.dtype, lambda i: y.at(i if left_side else (*i[:-2], i[-1], i[-2])), y.cost),
    )
    flags = [num(f, BOOL) for f in (lower, transpose_a == left_side, unit_diagonal)]
    b.loops(
        y.shape[:-2],
        lambda i: b.block.append(
            Invoke(
                helper("solve_triangular", y.dtype),
                [num(n, INDEX), num(columns, INDEX), Read(matrix.buffer, (*matrix.index, *i)), *flags],
                [Read(out, i)],
            )
        ),
    )
    if left_side:
        return stored(out)
    return Array(y.shape, y.dtype, lambda i: Read(out, (*i[:-2], i[-1], i[-2])))


@rule("lu")
def _lu(b: Builder, x: Array) -> list[Array]:
    *batch, m, n = x.shape
    if m != n:
        raise Declined("`lu` of a matrix that is not square")
    out = b.new(x.shape, x.dtype, 0)
    b.fill(Read(out, ()), x)
    pivots, order = b.new((*batch, n), INDEX, 1), b.new((*batch, n), INDEX, 2)
    pivots.limits = order.limits = (0, n - 1)
    b.loops(
        batch,
        lambda i: b.block.append(
            Invoke(helper("lu", x.dtype), [num(n, INDEX)], [Read(out, i), Read(pivots, i), Read(order, i)])
        ),
    )
    return [stored(out), stored(pivots), stored(order)]


@rule("qr")
def _qr(b: Builder, x: Array, *, full_matrices: bool, pivoting: bool = False, use_magma: object = None) -> list[Array]:
    if pivoting:
        raise Declined("`qr` with pivoting")
    *batch, m, n = x.shape
    columns = m if full_matrices else min(m, n)
    upper, q = b.new(x.shape, x.dtype, 1), b.new((*batch, m, columns), x.dtype, 0)
    b.fill(Read(upper, ()), x)
    sizes = [num(k, INDEX) for k in (m, n, columns)]
    if 0 not in (m, n):
        b.loops(batch, lambda i: b.block.append(Invoke(helper("qr", x.dtype), sizes, [Read(upper, i), Read(q, i)])))
    else:  # nothing is reflected
        b.fill(Read(q, ()), Array(q.shape, x.dtype, lambda i: _unit(i[-2], i[-1], x.dtype)))
    return [stored(q), Array((*batch, columns, n), x.dtype, lambda i: Read(upper, i))]


def _unit(i: Expr, j: Expr, dtype: np.dtype) -> Expr:
    return Op("?:", (Op("==", (i, j), BOOL), num(1, dtype), num(0, dtype)), dtype)


@rule("lu_pivots_to_permutation")
def _permutation(b: Builder, pivots: Array, *, permutation_size: int) -> Array:
    *batch, n = pivots.shape
    whole = b.whole(pivots, "pivots")
    out = b.new((*batch, permutation_size), INDEX)
    out.limits = (0, permutation_size - 1)
    sizes = [num(permutation_size, INDEX), num(n, INDEX)]
    b.loops(
        batch,
        lambda i: b.block.append(
            Invoke("permutation", [*sizes, Read(whole.buffer, (*whole.index, *i))], [Read(out, i)])
        ),
    )
    return stored(out)
