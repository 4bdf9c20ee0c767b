"""Products of arrays, convolutions and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Binary, Expr, Text, quoted
from untrace.targets.eager.rules.parts import einsum_letters
from untrace.targets.numpy.rules.table import rule

_LEAST_PRECISE = 4  # bytes of a float in which sums are made


@rule("dot_general")
def dot_general(
    w: Any, x: Any, y: Any, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any,
    out_sharding: Any = None,
) -> Expr:  # fmt: skip
    (contract_x, contract_y), (batch_x, batch_y) = dimension_numbers
    out, wide = np.dtype(w.out_avals[0].dtype), _sum_type(w)
    x, y = _in_type(w, (x, y), wide)
    made = _product(w, x, y, contract_x, contract_y, batch_x, batch_y)
    return made if wide == out else w.call(Attribute(made, "astype"), w.dtype(out))


def _sum_type(w: Any) -> np.dtype:
    """The type in which products are summed: float32 where they become narrow floats."""
    out = np.dtype(w.out_avals[0].dtype)
    return np.dtype(np.float32) if out.kind not in "iubc" and out.itemsize < _LEAST_PRECISE else out


def _in_type(w: Any, operands: Sequence[Expr], dtype: np.dtype) -> list[Expr]:
    return [
        x if np.dtype(a.dtype) == dtype else w.call(Attribute(x, "astype"), w.dtype(dtype))
        for x, a in zip(operands, w.avals, strict=True)
    ]


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
    equation = einsum_letters(w, contract_x, contract_y, batch_x, batch_y)
    return w.np("einsum", Text(quoted(equation)), x, y)


def _turned(w: Any, x: Expr, ndim: int) -> Expr:
    return Attribute(x, "T") if ndim == 2 else w.call(Attribute(x, "swapaxes"), -1, -2)


@rule("conv_general_dilated")
def conv_general_dilated(
    w: Any, x: Any, y: Any, *, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
    dimension_numbers: Any, feature_group_count: int, batch_group_count: int, precision: Any,
    preferred_element_type: Any, out_sharding: Any = None,
) -> Expr:  # fmt: skip
    out = w.out_avals[0]
    if 0 in out.shape:
        return w.np("zeros", tuple(out.shape), w.dtype(out.dtype))
    d, wide = dimension_numbers, _sum_type(w)
    made = w.call(
        w.helper("_convolved"), *_in_type(w, (x, y), wide), tuple(window_strides), tuple(map(tuple, padding)),
        tuple(lhs_dilation), tuple(rhs_dilation), (tuple(d.lhs_spec), tuple(d.rhs_spec), tuple(d.out_spec)),
        feature_group_count, **({"batches": batch_group_count} if batch_group_count != 1 else {}),
    )  # fmt: skip
    return made if wide == out.dtype else w.call(Attribute(made, "astype"), w.dtype(out.dtype))


@rule("fft")
def fft(w: Any, x: Any, *, fft_type: Any, fft_lengths: Any) -> Expr:
    name, lengths = ("fft", "ifft", "rfft", "irfft")[int(fft_type)], tuple(map(int, fft_lengths))
    out = w.out_avals[0]
    if 0 in out.shape:
        return w.np("zeros", tuple(out.shape), w.dtype(out.dtype))
    if 0 in lengths:
        return DECLINE
    if len(lengths) == 1:
        return w.np(f"fft.{name}", x, **({"n": lengths[0]} if name == "irfft" else {}))
    options = {"s": lengths} if name == "irfft" else {}
    return w.np(f"fft.{name}n", x, **options, axes=tuple(range(-len(lengths), 0)))
