"""Linear algebra: factors of matrices and what is solved with them. PyTorch calls the LAPACK functions that JAX calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Slice, Subscript, Text
from untrace.targets.eager.rules.parts import is_whole
from untrace.targets.torch.rules.table import rule


@rule("cholesky")
def cholesky(w: Any, x: Any, *, symmetrize_input: bool = False) -> Any:
    return w.call(w.helper("_cholesky"), x)


@rule("triangular_solve")
def triangular_solve(
    w: Any, a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    if conjugate_a and np.issubdtype(w.avals[0].dtype, np.complexfloating):
        a = w.torch("conj", a)
    if transpose_a:
        a, lower = Attribute(a, "mT"), not lower
    options = {"upper": not lower} | ({} if left_side else {"left": False})
    if unit_diagonal:
        options["unitriangular"] = True
    dtype = np.dtype(w.avals[0].dtype)
    if dtype.itemsize >= np.dtype(np.float32).itemsize:
        return w.torch("linalg.solve_triangular", a, b, **options)
    wide = w.torch("linalg.solve_triangular", w.cast(a, np.float32), w.cast(b, np.float32), **options)
    return w.cast(wide, dtype)


@rule("lu")
def lu(w: Any, x: Any) -> Any:
    return w.call(w.helper("_lu"), x)


@rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(w: Any, pivots: Any, *, permutation_size: int) -> Any:
    return w.call(w.helper("_permutation"), pivots, int(permutation_size))


@rule("qr")
def qr(w: Any, x: Any, *, pivoting: bool, full_matrices: bool, use_magma: Any = None) -> Any:
    if pivoting:
        return DECLINE
    return w.torch("linalg.qr", x, **({"mode": Text('"complete"')} if full_matrices else {}))


@rule("geqrf")
def geqrf(w: Any, x: Any) -> Any:
    return w.torch("geqrf", x)


@rule("householder_product")
def householder_product(w: Any, x: Any, taus: Any) -> Any:
    return w.torch("linalg.householder_product", x, taus)


def _path(w: Any, path: str) -> Text:
    w.module.modules.add("torch")
    return Text(path)


@rule("eigh")
def eigh(w: Any, x: Any, *, lower: bool, sort_eigenvalues: bool, subset_by_index: Any, algorithm: Any = None) -> Any:
    """The vectors come first; the eigenvalues rise in both."""
    if not is_whole(subset_by_index, w.avals[0].shape[-1]):
        return DECLINE
    options = {} if lower else {"UPLO": Text('"U"')}
    found = w.call(w.helper("_factored"), _path(w, "torch.linalg.eigh"), x, **options)
    return Subscript(found, Slice(None, None, Text("-1")))


@rule("eig")
def eig(
    w: Any, x: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, implementation: Any = None,
    enable_eigvec_derivs: bool = False,
) -> Any:  # fmt: skip
    if compute_left_eigenvectors:
        return DECLINE
    if compute_right_eigenvectors:
        return w.call(w.helper("_factored"), _path(w, "torch.linalg.eig"), x)
    return Subscript(w.call(w.helper("_factored"), _path(w, "torch.linalg.eig"), x), Slice(None, Text("1")))


@rule("svd")
def svd(w: Any, x: Any, *, full_matrices: bool, compute_uv: bool, subset_by_index: Any, algorithm: Any = None) -> Any:
    """The singular values come first."""
    if not is_whole(subset_by_index, min(w.avals[0].shape[-2:])):
        return DECLINE
    if not compute_uv:
        return Subscript(w.call(w.helper("_svd"), x), Slice(None, Text("1")))
    return w.call(w.helper("_svd"), x, **({"full_matrices": True} if full_matrices else {}))
