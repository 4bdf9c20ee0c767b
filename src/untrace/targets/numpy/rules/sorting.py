"""Orders. Source of what JAX does with NaN and ties: jax/_src/lax/lax.py, `sort` and `top_k`."""

from __future__ import annotations

from typing import Any

from untrace.python.tree import Expr, Tuple
from untrace.targets.numpy.rules.table import rule


@rule("sort")
def sort(w: Any, *operands: Any, dimension: int, is_stable: bool, num_keys: int) -> Expr:
    if len(operands) == 1:
        last = dimension == w.avals[0].ndim - 1
        made = w.np("sort", operands[0], **({} if last else {"axis": dimension}))
        return Tuple([made])
    return w.call(w.helper("_sorted_together"), *operands, axis=dimension, keys=num_keys)


@rule("top_k")
def top_k(w: Any, x: Any, *, k: int, axis: int = -1, **_: Any) -> Expr:
    return w.call(w.helper("_top"), x, k, axis)
