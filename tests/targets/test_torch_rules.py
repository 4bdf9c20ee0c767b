"""The rules of the PyTorch target: small functions whose written text, executed as a module, has the values that JAX has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rule_cases import (
    CASES,
    DTYPES,
    I32,
    A,
    applies,
    check,
    check_case,
    check_functions_of_one_number,
    check_functions_of_two_numbers,
    samples,
    text_of,
)

import untrace

torch = pytest.importorskip("torch")

# Cases of which PyTorch has no types, or nothing for a primitive.
REFUSED = frozenset(
    "saturates_int4 few_bits bytes bytes_from_half bitcast_smaller bitcast_larger bitcast_transposed bitcast_one"
    " reduce_precision convolution_int qr_pivots schur".split()
)


def _of_columns(vectors: Any) -> Any:
    """Vectors that may have any sign, in columns, each times what stands first in it."""
    return vectors * jnp.conj(vectors[..., :1, :])


def _eigenvectors(found: Any) -> Any:
    values, vectors = found
    return values, _of_columns(vectors)


def _singular_vectors(found: Any) -> Any:
    left, values, right = found
    count = values.shape[-1]
    product = (left[..., :count] * values[..., None, :]) @ right[..., :count, :]
    return _of_columns(left), values, _of_columns(right.mT), product


# The signs of eigenvectors and singular vectors are the library's choice: what no sign changes, for cases that have them.
WITHOUT_SIGNS = {
    "eigenvectors": lambda spd, squares: (
        [_eigenvectors(jnp.linalg.eigh(x)) for x in (spd, squares)],
        _eigenvectors(lax.linalg.eigh(jnp.triu(spd), lower=False, symmetrize_input=False)[::-1]),
    ),
    "eigenvalues_any": lambda square, squares: (
        _eigenvectors(jnp.linalg.eig(square)), jnp.linalg.eigvals(square * jnp.nan),
    ),
    "singular_vectors": lambda a, t: [
        _singular_vectors(jnp.linalg.svd(x, full_matrices=o)) for x in (a, t, a.T, a * jnp.nan) for o in (True, False)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(untrace.UnsupportedPrimitiveError):
            check_case(name, "torch")
        return
    check_case(name, "torch", WITHOUT_SIGNS.get(name))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("keys_")])
def test_keys_counted_together(name: str) -> None:
    with jax.threefry_partitionable(False):
        check_case(name, "torch")


def test_numbers_of_64_bits() -> None:
    with jax.enable_x64(True):
        check(lambda: [jax.random.key_data(jax.random.key(s)) for s in (2**40 + 5, -7)], target="torch")
        i = I32.astype("i8")
        check(lambda i: (lax.clz(i), jnp.sum(i), jnp.cumsum(i), lax.div(i, i[::-1]), jnp.argmax(i)), i, target="torch")
        f = np.array([1e30, -1e30, np.nan, 2.0**63, -(2.0**63), 2.0**64, 0.1])
        check(lambda f: (f.astype("i8"), f.astype("i4"), jnp.sin(f[-1:]) + 0.1, lax.top_k(f, 3)), f, target="torch")
        a = A.astype("f8")
        check(
            lambda a: (jnp.linalg.qr(a), jnp.fft.fft(a), lax.conv(a[None], a[:3, :3, None], (1,), "SAME")),
            a,
            target="torch",
        )


def test_unsigned_numbers_of_64_bits_are_refused() -> None:
    with jax.enable_x64(True), pytest.raises(untrace.UnsupportedPrimitiveError, match="uint64"):
        text_of(lambda x: x + 1, np.uint64(3), target="torch")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_number(dtype: np.dtype) -> None:
    check_functions_of_one_number(dtype, "torch")


NO_FUNCTIONS = frozenset(("polygamma", "mulhi"))  # of two numbers, that PyTorch has not


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_two_numbers(dtype: np.dtype) -> None:
    check_functions_of_two_numbers(dtype, "torch", without=NO_FUNCTIONS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_that_it_has_not_are_refused(dtype: np.dtype) -> None:
    for name in NO_FUNCTIONS:
        function = getattr(lax, name)
        if applies(function, *samples(dtype)):
            with pytest.raises(untrace.UnsupportedPrimitiveError, match=name):
                text_of(function, *samples(dtype), target="torch")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_products_of_unsigned_numbers_lose_the_bits_that_their_type_has_not(dtype: type) -> None:
    """`jnp.prod` is not `torch.prod`, whose product of 64 bits is another number once it is compared."""
    x = np.array([[7, 200, 3], [251, 9, 11]], dtype)

    def program(x: Any) -> Any:
        products = jnp.prod(x), lax.reduce_prod(x, (0, 1)), lax.reduce_prod(x, (1,)), lax.cumprod(x, 1), jnp.cumprod(x)
        return [p > 1000 for p in products], products

    check(program, x, target="torch")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_triangular_matrices_of_narrow_floats_are_solved_in_wider_ones(dtype: Any) -> None:
    a, b = jnp.asarray([[2, 0, 0], [1, 2, 0], [4, 2, 2]], dtype), jnp.asarray([[2], [4], [8]], dtype)
    check(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), a, b, target="torch")
