"""Orders. Source of what JAX does with NaN and ties: jax/_src/lax/lax.py, `sort` and `top_k`."""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace.python.tree import Attribute, Expr, Tuple
from untrace.targets.numpy.rules.table import rule


@rule("sort")
def sort(w: Any, *operands: Any, dimension: int, is_stable: bool, num_keys: int) -> Expr:
    if len(operands) == 1:
        kind = np.dtype(w.avals[0].dtype)
        is_narrow = kind.isbuiltin != 1  # NaN is not last there
        x = w.call(Attribute(operands[0], "astype"), w.dtype(np.float32)) if is_narrow else operands[0]
        options: dict[str, object] = {} if dimension == w.avals[0].ndim - 1 else {"axis": dimension}
        if kind.kind not in "iub":  # zeros of either sign are equal and stay in their order
            options["kind"] = "stable"
        made = w.np("sort", x, **options)
        return Tuple([w.call(Attribute(made, "astype"), w.dtype(kind)) if is_narrow else made])
    return w.call(w.helper("_sorted_together"), *operands, axis=dimension, keys=num_keys)


@rule("top_k")
def top_k(w: Any, x: Any, *, k: int, axis: int = -1, is_stable: bool = True) -> Expr:
    return w.call(w.helper("_top"), x, k, axis)
