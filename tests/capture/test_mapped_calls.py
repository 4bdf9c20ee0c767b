"""Calls of library functions that were batched: `jax.vmap` of the function, where it takes no axis of its own for that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

MATRICES = jnp.eye(3) * 3 + jnp.arange(36, dtype=jnp.float32).reshape(4, 3, 3) * 0.1
VECTORS = jnp.ones((4, 3)) + jnp.arange(12, dtype=jnp.float32).reshape(4, 3)
NUMBERS = jnp.arange(4)


def _written(fn, *args):
    d = untrace.decompile(fn)(*args)
    assert d.proof.at_least("hlo")
    assert ".bind(" not in d.source
    for got, expected in zip(jax.tree.leaves(d(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    return d


@pytest.mark.parametrize(
    ("function", "args", "call"),
    [
        (jnp.linalg.solve, (MATRICES, VECTORS), "jax.vmap(jnp.linalg.solve)(a, b)"),
        (jnp.linalg.inv, (MATRICES,), "jax.vmap(jnp.linalg.inv)(a)"),
        (jnp.linalg.cholesky, (MATRICES @ MATRICES.mT,), "jax.vmap(jnp.linalg.cholesky)(a)"),
        (jnp.cov, (MATRICES,), "jax.vmap(jnp.cov)(m)"),
        (jnp.interp, (VECTORS, VECTORS, VECTORS), "jax.vmap(jnp.interp)(x, xp, fp)"),
        (jnp.polyval, (VECTORS, VECTORS), "jax.vmap(jnp.polyval)(p, x)"),
        (jnp.roll, (VECTORS, NUMBERS), "jax.vmap(jnp.roll)(a, shift)"),
        (lambda b: jnp.linalg.solve(jnp.eye(3) * 2, b), (VECTORS,), "jax.vmap(lambda y: jnp.linalg.solve("),
    ],
    ids=["solve", "inv", "cholesky", "cov", "interp", "polyval", "roll", "shared_matrix"],
)
def test_a_function_of_one_element_is_mapped(function, args, call):
    d = _written(jax.vmap(function), *args)
    assert call in d.source


def test_a_function_of_whole_arrays_is_not():
    source = _written(jax.vmap(lambda m, x: jnp.clip(jnp.where(m, x, 0.0), 0.1, 0.5)), VECTORS > 2, VECTORS).source
    assert "jax.vmap" not in source


def test_the_gradient_of_a_mapped_function():
    def loss(a, b):
        return jnp.sum(jax.vmap(jnp.linalg.solve)(a @ a, b) ** 2)

    source = _written(jax.grad(loss, (0, 1)), MATRICES, VECTORS).source
    assert "solution, solve_vjp = jax.vjp(jax.vmap(jnp.linalg.solve), a @ a, b)" in source
    assert "= solve_vjp(2.0 * solution)" in source


def test_the_gradient_of_a_function_that_was_mapped_over_one_of_its_arguments():
    def loss(b, a):
        return jnp.sum(jax.vmap(lambda b: jnp.linalg.solve(a, b))(b) ** 2)

    source = _written(jax.grad(loss), VECTORS, MATRICES[0]).source
    assert "jax.vjp(jax.vmap(lambda y: jnp.linalg.solve(a, y)), b)" in source


def test_what_shares_its_name_with_a_parameter():
    source = _written(jax.vmap(lambda y, v: jnp.interp(v, y, y + y[0])), VECTORS, VECTORS).source
    assert "jax.vmap(" in source


def test_a_library_function_of_a_list_may_be_mapped():
    """No guess of `jax.vmap(jnp.block)` fits a list of lists; and one that fails must not cost the text its style."""

    def framed(a, b):
        return jnp.block([[a, jnp.zeros((3, 3))], [-a @ b, a]])

    source = _written(jax.vmap(framed), MATRICES, MATRICES).source
    assert "jnp.block(" in source or "jnp.concatenate(" in source, source
