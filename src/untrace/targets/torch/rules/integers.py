"""Bits of integers. The operands of the helpers have as many bits as their JAX type, whatever type stands for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace.python.tree import Binary, Expr, Text
from untrace.targets.torch.rules.table import rule
from untrace.targets.torch.tensors import word_bits


def _width(w: Any) -> int:
    return 8 * np.dtype(w.avals[0].dtype).itemsize


def _is_unsigned(w: Any) -> bool:
    return np.dtype(w.avals[0].dtype).kind in "ub"


def _fixed(w: Any) -> int | None:
    """By how many bits it is shifted, where that is known and fits."""
    value = getattr(w.equation.inputs[1], "value", None)
    known = value is not None and np.ndim(value) == 0 and 0 <= int(value) < _width(w)
    return int(value) if known else None


@rule("not")
def not_(w: Any, x: Any) -> Expr:
    bits = word_bits(w.avals[0].dtype)
    return w.torch("bitwise_not", x) if bits is None else Binary(x, "^", Text(hex((1 << bits) - 1)))


@rule("shift_left")
def shift_left(w: Any, x: Any, y: Any) -> Expr:
    known = _fixed(w)
    made = Binary(w.tensor(0, x), "<<", Text(str(known))) if known is not None else w.call(
        w.helper("_shifted_left"), w.tensor(0, x), w.tensor(1, y), _width(w)
    )  # fmt: skip
    return w.wrapped(made, w.avals[0].dtype)


@rule("shift_right_logical")
def shift_right_logical(w: Any, x: Any, y: Any) -> Expr:
    if _is_unsigned(w) and _fixed(w) is not None:
        return Binary(w.tensor(0, x), ">>", Text(str(_fixed(w))))
    return w.call(w.helper("_shifted_right"), w.tensor(0, x), w.tensor(1, y), _width(w))


@rule("shift_right_arithmetic")
def shift_right_arithmetic(w: Any, x: Any, y: Any) -> Expr:
    x, bits = w.tensor(0, x), _width(w)
    if _is_unsigned(w):  # whose first bit counts as a sign
        half = Text(hex(1 << (bits - 1)))
        x = Binary(Binary(w.cast(x, np.int64), "^", half), "-", half)
    if _fixed(w) is not None:
        made = Binary(x, ">>", Text(str(_fixed(w))))
    else:
        made = w.call(w.helper("_shifted_right_with_sign"), x, w.tensor(1, y), bits)
    if not _is_unsigned(w):
        return made
    return w.cast(Binary(made, "&", Text(hex((1 << bits) - 1))), w.avals[0].dtype)


@rule("population_count")
def population_count(w: Any, x: Any) -> Expr:
    return w.call(w.helper("_ones"), x, _width(w))


@rule("clz")
def clz(w: Any, x: Any) -> Expr:
    return w.call(w.helper("_leading_zeros"), x, _width(w))
