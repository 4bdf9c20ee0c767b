"""What arrays of the program are in C: their shapes and types."""

from __future__ import annotations

import numpy as np

from untrace import jax_compat
from untrace.ir.types import Aval
from untrace.targets.c.narrow import NARROW
from untrace.targets.c.rules.table import Declined

TYPES = frozenset(
    np.dtype(t)
    for t in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
) | frozenset(NARROW)


def is_key(aval: Aval) -> bool:
    """Whether an array is one of typed keys."""
    return jax_compat.is_key_dtype(getattr(aval, "dtype", np.float32))


def shape_of(aval: Aval) -> tuple[int, ...]:
    """The shape of an array in C: a key is two words."""
    return (*aval.shape, 2) if is_key(aval) else tuple(aval.shape)


def dtype_of(aval: Aval) -> np.dtype:
    """The type of an array in C. Raises Declined for those that this target does not have."""
    dtype = getattr(aval, "dtype", None)
    if is_key(aval):
        if jax_compat.key_impl_name(aval) != "threefry2x32":
            raise Declined("keys of another implementation than threefry2x32")
        return np.dtype(np.uint32)
    if isinstance(dtype, np.dtype) and dtype in TYPES:
        return dtype
    raise Declined(f"an array of {getattr(dtype, 'name', dtype)}, which is none of C's arithmetic types here")
