"""Products of arrays, convolutions and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Binary, Expr, Text, quoted
from untrace.targets.eager.rules.parts import einsum_letters
from untrace.targets.torch.rules.table import rule


def _in_type(w: Any, operands: Sequence[Expr], dtype: np.dtype) -> list[Expr]:
    return [x if np.dtype(a.dtype) == dtype else w.cast(x, dtype) for x, a in zip(operands, w.avals, strict=True)]


@rule("dot_general")
def dot_general(
    w: Any, x: Any, y: Any, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any,
    out_sharding: Any = None,
) -> Expr:  # fmt: skip
    (contract_x, contract_y), (batch_x, batch_y) = dimension_numbers
    out = np.dtype(w.out_avals[0].dtype)
    if out == np.bool_:  # whether there is a term, of which PyTorch has sums of numbers alone
        x, y = _in_type(w, (x, y), np.dtype(np.int32))
        return Binary(_product(w, x, y, contract_x, contract_y, batch_x, batch_y), "!=", Text("0"))
    x, y = _in_type(w, (x, y), out)
    return w.wrapped(_product(w, x, y, contract_x, contract_y, batch_x, batch_y), out)


def _product(w: Any, x: Expr, y: Expr, contract_x: Any, contract_y: Any, batch_x: Any, batch_y: Any) -> Expr:
    m, n, count = w.avals[0].ndim, w.avals[1].ndim, len(batch_x)
    leading = tuple(range(count))
    single = len(contract_x) == 1 and tuple(batch_x) == tuple(batch_y) == leading
    if single and m - count in (1, 2) and n - count in (1, 2) and (not count or m - count == n - count == 2):
        if m - count == 2 and contract_x[0] == m - 2:
            x = _turned(x, m)
        if n - count == 2 and contract_y[0] == n - 1:
            y = _turned(y, n)
        return Binary(x, "@", y)
    if not count and len(contract_x) == 1 and contract_x[0] == m - 1 and n == 2:
        return Binary(x, "@", y if contract_y[0] == 0 else _turned(y, n))
    if not contract_x and not count and (not m or not n):
        return Binary(x, "*", y)
    equation = einsum_letters(w, contract_x, contract_y, batch_x, batch_y)
    return w.torch("einsum", Text(quoted(equation)), x, y)


def _turned(x: Expr, ndim: int) -> Expr:
    return Attribute(x, "T" if ndim == 2 else "mT")


@rule("conv_general_dilated")
def conv_general_dilated(
    w: Any, x: Any, y: Any, *, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
    dimension_numbers: Any, feature_group_count: int, batch_group_count: int, precision: Any,
    preferred_element_type: Any, out_sharding: Any = None,
) -> Expr:  # fmt: skip
    out, rank = w.out_avals[0], len(window_strides)
    if 0 in out.shape or 0 in w.avals[0].shape:
        return w.torch("zeros", tuple(out.shape), dtype=w.dtype(out.dtype))
    if rank > 3 or np.dtype(out.dtype).kind in "iub":
        return DECLINE
    d = dimension_numbers
    x, y = _in_type(w, (x, y), np.dtype(out.dtype))
    x, y = _ordered(w, x, d.lhs_spec), _ordered(w, y, d.rhs_spec)
    if rank in (1, 2, 3) and batch_group_count == 1 and set(lhs_dilation) == {1}:
        pads = [tuple(p) for p in padding]
        options: dict[str, Any] = {}
        if all(a == b >= 0 for a, b in pads):
            if any(a for a, _ in pads):
                options["padding"] = _plain([a for a, _ in pads])
        else:
            x = w.functional("pad", x, tuple(int(n) for pair in pads[::-1] for n in pair))
        if set(window_strides) != {1}:
            options["stride"] = _plain(window_strides)
        if set(rhs_dilation) != {1}:
            options["dilation"] = _plain(rhs_dilation)
        if feature_group_count != 1:
            options["groups"] = feature_group_count
        made = w.functional(f"conv{rank}d", x, y, **options)
    else:
        made = w.call(
            w.helper("_convolved"), x, y, tuple(window_strides), tuple(map(tuple, padding)), tuple(lhs_dilation),
            tuple(rhs_dilation), feature_group_count,
            **({"batches": batch_group_count} if batch_group_count != 1 else {}),
        )  # fmt: skip
    return _ordered(w, made, np.argsort(d.out_spec).tolist())


def _plain(numbers: Sequence[int]) -> int | tuple[int, ...]:
    """`2` for `(2, 2)`, as PyTorch takes it."""
    return int(numbers[0]) if len(set(numbers)) == 1 else tuple(map(int, numbers))


def _ordered(w: Any, x: Expr, axes: Sequence[int]) -> Expr:
    return x if tuple(axes) == tuple(range(len(axes))) else w.method(x, "permute", *map(int, axes))


@rule("fft")
def fft(w: Any, x: Any, *, fft_type: Any, fft_lengths: Any) -> Expr:
    name, lengths = ("fft", "ifft", "rfft", "irfft")[int(fft_type)], tuple(map(int, fft_lengths))
    out = w.out_avals[0]
    if 0 in out.shape:
        return w.torch("zeros", tuple(out.shape), dtype=w.dtype(out.dtype))
    if 0 in lengths:
        return DECLINE
    if len(lengths) == 1:
        return w.torch(f"fft.{name}", x, **({"n": lengths[0]} if name == "irfft" else {}))
    options = {"s": lengths} if name == "irfft" else {}
    return w.torch(f"fft.{name}n", x, **options, dim=tuple(range(-len(lengths), 0)))
