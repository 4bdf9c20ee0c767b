"""Iterative solvers of `jax.scipy.sparse.linalg`: one call again, with the author's product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from jax.scipy.sparse.linalg import bicgstab, cg

import untrace

A = np.eye(3, dtype=np.float32) * 2 + 0.1
B = np.array([0.5, -1.0, 2.0], np.float32)


def written(fn, *args):
    """The text of `fn`, proven to be the same jaxpr, run in a module of its own and differentiated there."""
    d = untrace.decompile(fn, comments="none")(*args)
    assert d.proof.level == "jaxpr", f"{d.proof}\n{d.source}"
    module = {}
    exec(compile(d.source, "written", "exec"), module)
    text = module[d.name]
    np.testing.assert_array_equal(jax.jit(text)(*args), jax.jit(fn)(*args))
    gradients = [jax.jit(jax.grad(lambda *a, f=f: f(*a).sum(), (0, 1)))(*args) for f in (text, fn)]
    for left, right in zip(*gradients, strict=True):
        np.testing.assert_array_equal(left, right)
    return d.source


@pytest.mark.parametrize("solver", [cg, bicgstab], ids=["cg", "bicgstab"])
def test_a_solver_is_its_call(solver):
    name = f"jax.scipy.sparse.linalg.{solver.__name__}"

    def f(a, b):
        solution, _ = solver(lambda u: a @ u, b, maxiter=7)
        return solution

    assert f"{name}(lambda u: a @ u, b, maxiter=7)[0]" in written(f, A, B)


def test_tolerances_and_a_first_guess():
    def f(a, b, start):
        return cg(lambda u: a @ u, b, start, tol=1e-3, atol=1e-2)[0]

    assert "lambda u: a @ u, b, start, tol=0.001, atol=0.01" in written(f, A, B, B)


def test_a_product_of_the_authors_own():
    def f(values, b):
        indices = jnp.array([[0, 0], [1, 1], [2, 2], [0, 1], [1, 0]])

        def product(u):
            scaled = sparse.BCOO((values, indices), shape=(3, 3)) @ u
            return scaled + u * values[0]

        solution, _ = cg(product, b, maxiter=20)
        return solution

    values = np.array([4.0, 5.0, 6.0, 0.5, 0.5], np.float32)
    source = written(f, values, B)
    assert "def product(u):" in source and "solution = jax.scipy.sparse.linalg.cg(product, b, maxiter=20)[0]" in source


def test_with_a_preconditioner_it_is_written_out():
    def f(a, b):
        return cg(lambda u: a @ u, b, M=lambda r: r / jnp.diagonal(a), maxiter=5)[0]

    assert "lax.custom_linear_solve" in written(f, A, B)


def test_inside_a_loop():
    def f(a, b):
        def step(b, _):
            return cg(lambda u: a @ u + b * u, b * 2, maxiter=4)[0], None

        return jax.lax.scan(step, b, None, length=3)[0]

    assert "b * 2.0, maxiter=4)[0]" in written(f, A, B)
