"""Linear algebra on tensors of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from untrace.python.helpers import helper

if TYPE_CHECKING:
    import torch


@helper("torch", last="_cholesky", target="torch")
def _cholesky(x):
    """The lower factor of each matrix, which stays as it is above its diagonal; NaN where there is none, and so is the
    derivative."""
    factor, failed = torch.linalg.cholesky_ex(x)
    factor = factor + x.detach().triu(1)
    return factor * torch.where((failed != 0)[..., None, None], torch.nan, torch.ones_like(factor))


@helper("torch", last="_factored", target="torch")
def _factored(factor, x, **options):
    """The factors of each matrix; NaN where it is not finite."""
    good = torch.isfinite(x).all(-1).all(-1)
    parts = factor(torch.where(good[..., None, None], x, torch.eye(*x.shape[-2:], dtype=x.dtype)), **options)
    like = [good.reshape(good.shape + (1,) * (part.ndim - good.ndim)) for part in parts]
    return tuple([torch.where(keep, part, torch.nan) for keep, part in zip(like, parts, strict=True)])


@helper("torch", needs=("_factored",), last="_svd", target="torch")
def _svd(x, full_matrices=False):
    """(singular values, left vectors, right vectors) of each matrix."""
    left, values, right = _factored(torch.linalg.svd, x, full_matrices=full_matrices)
    return values, left, right


@helper("torch", last="_permutation", target="torch")
def _permutation(pivots, size):
    """The order of rows that are exchanged one after the other."""
    rows = torch.arange(size, dtype=torch.int32)
    found = rows.expand(*pivots.shape[:-1], size)
    for row in range(pivots.shape[-1]):
        other = pivots[..., row, None]
        there = found.gather(-1, other.to(torch.int64))
        found = torch.where(rows == other, found[..., row, None], torch.where(rows == row, there, found))
    return found


@helper("torch", needs=("_permutation",), last="_lu", target="torch")
def _lu(x):
    """(both factors of each matrix in one, with which row each was exchanged, the order of the rows)."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(x)
    return factors, pivots - 1, _permutation(pivots - 1, x.shape[-2])
