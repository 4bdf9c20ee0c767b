"""Linear algebra on arrays of matrices."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from untrace.python.helpers import helper


@helper("np", "scipy.linalg", last="_cholesky")
def _cholesky(x):
    """The lower factor of each matrix, which stays as it is above its diagonal; NaN where there is none."""
    (factor,) = scipy.linalg.get_lapack_funcs(("potrf",), (x,))
    out = np.zeros_like(x)
    for place in np.ndindex(x.shape[:-2]):
        if x[place].size:
            found, failed = factor(x[place], lower=True, clean=False)
            out[place] = np.nan if failed else found
    return out


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


@helper("np", last="_factored")
def _factored(factor, x, **options):
    """The factors of each matrix; NaN where it is not finite, or there are none."""
    if x.ndim > 2:
        return tuple(map(np.stack, zip(*[_factored(factor, matrix, **options) for matrix in x], strict=True)))
    try:
        return tuple(factor(x, **options))
    except ValueError:
        return tuple(np.full_like(part, np.nan) for part in factor(np.zeros_like(x), **options))


@helper("scipy.linalg", needs=("_factored",), last="_svd")
def _svd(x, full_matrices=False):
    """(singular values, left vectors, right vectors) of each matrix."""
    left, values, right = _factored(scipy.linalg.svd, x, full_matrices=full_matrices)
    return values, left, right


@helper("scipy.linalg", needs=("_factored",), last="_singular_values")
def _singular_values(x):
    """The singular values of each matrix."""
    return _factored(lambda x: [scipy.linalg.svdvals(x)], x)[0]


@helper("np", "scipy.linalg", needs=("_factored",), last="_eig")
def _eig(x, left=False):
    """(eigenvalues, left eigenvectors, if they are wanted, and eigenvectors) of each matrix, complex also where all are real."""
    kind = np.result_type(x.dtype, np.complex64)
    return tuple(part.astype(kind) for part in _factored(scipy.linalg.eig, x, left=left))


@helper("np", last="_permutation")
def _permutation(pivots, size):
    """The order of rows that are exchanged one after the other."""
    found = np.broadcast_to(np.arange(size, dtype=np.int32), (*pivots.shape[:-1], size)).copy()
    for place in np.ndindex(pivots.shape[:-1]):
        for row, other in enumerate(pivots[place]):
            found[place][[row, other]] = found[place][[other, row]]
    return found


@helper("np", "scipy.linalg", needs=("_permutation",), last="_lu")
def _lu(x):
    """(both factors of each matrix in one, with which row each was exchanged, the order of the rows)."""
    (factor,) = scipy.linalg.get_lapack_funcs(("getrf",), (x,))
    factors, pivots = np.array(x), np.zeros((*x.shape[:-2], min(x.shape[-2:])), np.int32)
    for place in np.ndindex(x.shape[:-2]):
        if factors[place].size:
            factors[place], pivots[place], _ = factor(x[place])
    return factors, pivots, _permutation(pivots, x.shape[-2])


@helper("np", "scipy.linalg", last="_tridiagonal_solved")
def _tridiagonal_solved(lower, diagonal, upper, b):
    """Linear equations with the diagonals of each matrix."""
    (solve,) = scipy.linalg.get_lapack_funcs(("gtsv",), (diagonal, b))
    x = np.array(b)
    for place in np.ndindex(b.shape[:-2]):
        *_, x[place], _ = solve(lower[place][1:], diagonal[place], upper[place][:-1], b[place])
    return x
