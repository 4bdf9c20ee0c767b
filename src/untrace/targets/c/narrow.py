"""Floats of 16 bits: C computes with them as with `float`, and has their bits in memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
NARROW = {BF16: "bf16", F16: "f16"}


def in_memory(dtype: np.dtype) -> np.dtype:
    """The type of C in which elements of a type stand."""
    return np.dtype(np.uint16) if dtype in NARROW else dtype
