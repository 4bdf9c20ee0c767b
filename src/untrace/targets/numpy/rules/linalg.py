"""Linear algebra: factors of matrices and what is solved with them.

Where vectors have signs that are free, SciPy has those that JAX has on a CPU: both call the same LAPACK, NumPy another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace.module.rules import DECLINE
from untrace.python.tree import Slice, Subscript, Text, Tuple
from untrace.targets.eager.rules.parts import is_whole
from untrace.targets.numpy.rules.table import rule


@rule("cholesky")
def cholesky(w: Any, x: Any, *, symmetrize_input: bool = False) -> Any:
    return w.call(w.helper("_cholesky"), x)


@rule("triangular_solve")
def triangular_solve(
    w: Any, a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    if conjugate_a and np.issubdtype(w.avals[0].dtype, np.complexfloating):
        a = w.np("conj", a)
    options = {
        name: True
        for name, value in (("lower", lower), ("transpose", transpose_a), ("unit_diagonal", unit_diagonal))
        if value
    }
    if not left_side:
        options["from_right"] = True
    return w.call(w.helper("_solved"), a, b, **options)


@rule("tridiagonal_solve")
def tridiagonal_solve(w: Any, lower: Any, diagonal: Any, upper: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    if perturb_singular or 0 in w.out_avals[0].shape or w.avals[1].shape[-1] < 2:
        return DECLINE
    return w.call(w.helper("_tridiagonal_solved"), lower, diagonal, upper, b)


@rule("lu")
def lu(w: Any, x: Any) -> Any:
    return w.call(w.helper("_lu"), x)


@rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(w: Any, pivots: Any, *, permutation_size: int) -> Any:
    return w.call(w.helper("_permutation"), pivots, int(permutation_size))


def _empty(w: Any) -> Any:
    """The factors of matrices that have no elements, where they have none either."""
    if any(a.size for a in w.out_avals):
        return DECLINE
    return Tuple([w.np("zeros", tuple(a.shape), w.dtype(a.dtype)) for a in w.out_avals])


@rule("qr")
def qr(w: Any, x: Any, *, pivoting: bool, full_matrices: bool, use_magma: Any = None) -> Any:
    if 0 in w.avals[0].shape:
        return _empty(w)
    w.module.modules.add("scipy.linalg")
    options = {"mode": Text('"full"' if full_matrices else '"economic"'), **({"pivoting": True} if pivoting else {})}
    if w.avals[0].ndim == 2:
        return w.call("scipy.linalg.qr", x, **options, check_finite=False)
    return w.call(w.helper("_factored"), Text("scipy.linalg.qr"), x, **options)


@rule("eigh")
def eigh(w: Any, x: Any, *, lower: bool, sort_eigenvalues: bool, subset_by_index: Any, algorithm: Any = None) -> Any:
    """The vectors come first; the eigenvalues rise in both. Of LAPACK's algorithms it is JAX's: each has its own signs."""
    if not is_whole(subset_by_index, w.avals[0].shape[-1]):
        return DECLINE
    if 0 in w.avals[0].shape:
        return _empty(w)
    w.module.modules.add("scipy.linalg")
    options = {} if lower else {"lower": False}
    found = w.call(w.helper("_factored"), Text("scipy.linalg.eigh"), x, **options, driver=Text('"evd"'))
    return Subscript(found, Slice(None, None, Text("-1")))


@rule("eig")
def eig(
    w: Any, x: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, implementation: Any = None,
    enable_eigvec_derivs: bool = False,
) -> Any:  # fmt: skip
    if 0 in w.avals[0].shape:
        return _empty(w)
    found = w.call(w.helper("_eig"), x, **({"left": True} if compute_left_eigenvectors else {}))
    return found if compute_right_eigenvectors else Subscript(found, Text(":-1"))


@rule("schur")
def schur(w: Any, x: Any, *, compute_schur_vectors: bool, sort_eig_vals: bool, select_callable: Any) -> Any:
    if sort_eig_vals:
        return DECLINE
    if 0 in w.avals[0].shape:
        return _empty(w)
    w.module.modules.add("scipy.linalg")
    found = w.call(w.helper("_factored"), Text("scipy.linalg.schur"), x)
    return found if compute_schur_vectors else Subscript(found, Text(":1"))


@rule("svd")
def svd(w: Any, x: Any, *, full_matrices: bool, compute_uv: bool, subset_by_index: Any, algorithm: Any = None) -> Any:
    """The singular values come first."""
    if not is_whole(subset_by_index, min(w.avals[0].shape[-2:])):
        return DECLINE
    if 0 in w.avals[0].shape:
        return _empty(w)
    if not compute_uv:
        return Tuple([w.call(w.helper("_singular_values"), x)])
    return w.call(w.helper("_svd"), x, **({"full_matrices": True} if full_matrices else {}))
