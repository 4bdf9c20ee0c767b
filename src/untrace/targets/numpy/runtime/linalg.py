"""Linear algebra on arrays of matrices."""

from __future__ import annotations

import numpy as np

from untrace.print.jax.runtime import helper


@helper("np", last="_cholesky")
def _cholesky(x):
    """The lower factor of each matrix; NaN where there is none."""
    if x.ndim > 2:
        return np.stack([_cholesky(matrix) for matrix in x]) if len(x) else np.array(x)
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return np.full_like(x, np.nan)


@helper("np", last="_solved")
def _solved(a, b, lower=False, transpose=False, unit_diagonal=False, from_right=False):
    """`a x = b`, or `x a = b` from the right, for a triangular matrix: one row after the other."""
    if from_right:
        return _solved(a, b.swapaxes(-1, -2), lower, not transpose, unit_diagonal).swapaxes(-1, -2)
    a = np.tril(a) if lower else np.triu(a)
    if transpose:
        a, lower = a.swapaxes(-1, -2), not lower
    x = np.zeros_like(b)
    for i in range(a.shape[-1]) if lower else reversed(range(a.shape[-1])):
        rest = b[..., i, :] - (a[..., i, None, :] @ x)[..., 0, :]
        x[..., i, :] = rest if unit_diagonal else rest / a[..., i, i, None]
    return x
