"""Products of arrays, convolutions and what is solved."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Binary, Expr, Text, quoted
from untrace.targets.numpy.rules.table import rule

_LEAST_PRECISE = 4  # bytes of a float in which sums are made


@rule("dot_general")
def dot_general(
    w: Any, x: Any, y: Any, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any,
    out_sharding: Any = None,
) -> Expr:  # fmt: skip
    (contract_x, contract_y), (batch_x, batch_y) = dimension_numbers
    out = np.dtype(w.out_avals[0].dtype)
    dtypes = {np.dtype(a.dtype) for a in w.avals}
    is_narrow = any(d.kind not in "iubc" and d.itemsize < _LEAST_PRECISE for d in dtypes)
    wide = np.dtype(np.float32) if is_narrow and out.itemsize < _LEAST_PRECISE else out
    if dtypes != {wide}:
        x, y = (
            v if np.dtype(a.dtype) == wide else w.call(Attribute(v, "astype"), w.dtype(wide))
            for v, a in zip((x, y), w.avals, strict=True)
        )
    made = _product(w, x, y, contract_x, contract_y, batch_x, batch_y)
    return made if wide == out else w.call(Attribute(made, "astype"), w.dtype(out))


def _product(w: Any, x: Expr, y: Expr, contract_x: Any, contract_y: Any, batch_x: Any, batch_y: Any) -> Expr:
    m, n, count = w.avals[0].ndim, w.avals[1].ndim, len(batch_x)
    leading = tuple(range(count))
    single = len(contract_x) == 1 and tuple(batch_x) == tuple(batch_y) == leading
    if single and m - count in (1, 2) and n - count in (1, 2) and (not count or m - count == n - count == 2):
        if m - count == 2 and contract_x[0] == m - 2:
            x = _turned(w, x, m)
        if n - count == 2 and contract_y[0] == n - 1:
            y = _turned(w, y, n)
        return Binary(x, "@", y)
    if not count and len(contract_x) == 1 and contract_x[0] == m - 1 and n == 2:
        return Binary(x, "@", y if contract_y[0] == 0 else _turned(w, y, n))
    letters = iter(string.ascii_lowercase)
    first = [next(letters) for _ in range(m)]
    second = [""] * n
    for a, b in [*zip(batch_x, batch_y, strict=True), *zip(contract_x, contract_y, strict=True)]:
        second[b] = first[a]
    second = [s or next(letters) for s in second]
    batch = [first[a] for a in batch_x]
    free = [f for i, f in enumerate(first) if i not in (*batch_x, *contract_x)]
    free += [s for i, s in enumerate(second) if i not in (*batch_y, *contract_y)]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(batch + free)}"
    return w.np("einsum", Text(quoted(equation)), x, y)


def _turned(w: Any, x: Expr, ndim: int) -> Expr:
    return Attribute(x, "T") if ndim == 2 else w.call(Attribute(x, "swapaxes"), -1, -2)


@rule("conv_general_dilated")
def conv_general_dilated(
    w: Any, x: Any, y: Any, *, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
    dimension_numbers: Any, feature_group_count: int, batch_group_count: int, precision: Any,
    preferred_element_type: Any, out_sharding: Any = None,
) -> Expr:  # fmt: skip
    if batch_group_count != 1 or np.dtype(w.out_avals[0].dtype) != np.float32:
        return DECLINE
    d = dimension_numbers
    return w.call(
        w.helper("_convolved"), x, y, tuple(window_strides), tuple(map(tuple, padding)), tuple(lhs_dilation),
        tuple(rhs_dilation), (tuple(d.lhs_spec), tuple(d.rhs_spec), tuple(d.out_spec)), feature_group_count,
    )  # fmt: skip


@rule("cholesky")
def cholesky(w: Any, x: Any, *, symmetrize_input: bool = False) -> Expr:
    return w.call(w.helper("_cholesky"), x)


@rule("triangular_solve")
def triangular_solve(
    w: Any, a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Expr:
    if conjugate_a and np.issubdtype(w.avals[0].dtype, np.complexfloating):
        return DECLINE
    options = {
        name: True
        for name, value in (("lower", lower), ("transpose", transpose_a), ("unit_diagonal", unit_diagonal))
        if value
    }
    if not left_side:
        options["from_right"] = True
    return w.call(w.helper("_solved"), a, b, **options)
