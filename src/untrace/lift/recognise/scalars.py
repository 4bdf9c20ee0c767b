"""Literals of a jaxpr as the Python numbers that a person would write: 1e-05 for the float32 nearest to it."""

from __future__ import annotations

from typing import Any

import numpy as np


def python_scalar(value: Any, aval: Any) -> bool | int | float | complex | None:
    """The shortest Python number that becomes this very scalar in the literal's dtype; None where there is none."""
    dtype = getattr(aval, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return None
    with np.errstate(all="ignore"):
        array = np.asarray(value).astype(dtype)
    kind = dtype.kind
    if kind == "b":
        return bool(array)
    if kind in "iu":
        return int(array)
    if kind == "c":
        python = complex(_shortest_real(array.real), _shortest_real(array.imag))
        if not python.imag and np.asarray(python.real).astype(dtype).tobytes() == array.tobytes():
            return python.real  # JAX makes the same of it where something else is complex
        return python if np.asarray(python).astype(dtype).tobytes() == array.tobytes() else None
    if dtype.name.startswith(("int", "uint")):  # int4 and its like
        return int(array)
    number = float(array)
    if number != number:
        return number if np.asarray(float("nan")).astype(dtype).tobytes() == array.tobytes() else None
    if kind == "f":
        number = _shortest_real(array)
    else:
        number = _shortest(array, dtype)
    with np.errstate(all="ignore"):
        same = np.asarray(number).astype(dtype).tobytes() == array.tobytes()
    return number if same else float(array)


def _shortest_real(array: Any) -> float:
    """The same for single and double precision: str() of a NumPy scalar is the shortest."""
    return float(str(array[()])) if array.itemsize < 8 else float(array)


def _shortest(array: Any, dtype: np.dtype) -> float:
    """Fewest digits that round to the same bfloat16 or float8."""
    exact = float(array)
    for digits in range(1, 18):
        number = float(f"{exact:.{digits}g}")
        if np.asarray(number).astype(dtype).tobytes() == array.tobytes():
            return number
    return exact
