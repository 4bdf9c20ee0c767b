"""How the tests of differences between libraries compare arrays."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np


def same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], close: bool) -> bool:
    """Of the same types, values and signs of zeros."""
    if [(x.dtype, x.shape) for x in found] != [(x.dtype, x.shape) for x in wanted]:
        return False
    for x, y in zip(found, wanted, strict=True):
        if not jnp.issubdtype(y.dtype, np.inexact):
            if not np.array_equal(x, y):
                return False
            continue
        kind = np.complex128 if np.iscomplexobj(y) else np.float64
        a, b = x.astype(kind), y.astype(kind)
        alike = (
            np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) if close else np.array_equal(a, b, equal_nan=True)
        )
        signs = [np.signbit(v) & (v == 0) for x in (a, b) for v in (x.real, x.imag)]
        if not alike or not close and not np.array_equal(signs[:2], signs[2:]):
            return False
    return True
