"""What a target has no rule for is written as JAX runs it; the words of other primitives are what LAPACK and JAX compute."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace.targets.plain_forms import plain_form

TARGETS = ["c", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
X = np.random.default_rng(0).uniform(0.5, 2.5, (4, 6)).astype(np.float32)


def _close(target, fn, *args, **options):
    text = untrace.decompile(fn, target=target, sizes="fixed", **options)(*args)
    for found, expected in zip(jax.tree.leaves(text(*args)), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)
    return text


def _double_max_pool(x):
    def pool(y):
        return lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID")

    return jax.jvp(pool, (x,), (x * x,))


PROGRAMS = {
    "approx_top_k": lambda x: lax.approx_min_k(x, 3),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, axis=1, reverse=True),
    "bessel_i0e": lambda x: lax.bessel_i0e(x),
    "regularized_incomplete_beta": lambda x: lax.betainc(x, x + 1.0, x / 4.0),
    "select_and_gather_add": _double_max_pool,
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(x[0], x[1] + 4.0, x[2], x[3][:, None]),
    "psum over a name that vmap has": lambda x: jax.vmap(lambda r: r - lax.pmean(r, "rows"), axis_name="rows")(x),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_by_the_code_that_jax_runs(program, target):
    _close(target, program, X)


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "c"])
def test_a_rejection_loop(target):
    _close(target, lambda key: jax.random.gamma(key, 2.5, (3,)), jax.random.key(0))


@pytest.mark.parametrize("shape", [(5, 3), (3, 3), (3, 5), (2, 4, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_reflections_are_those_of_lapack(shape, dtype):
    random = np.random.default_rng(1)
    a = random.standard_normal(shape).astype(dtype)
    if a.dtype.kind == "c":
        a = a + 1j * random.standard_normal(shape).astype(np.float32)
    geqrf, ormqr = _primitives()
    expected = geqrf.bind(a)
    for found, wanted in zip(plain_form(geqrf, {})(a), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    rows = shape[-2]
    for left in (True, False):
        c = random.standard_normal((*shape[:-2], *((rows, 2) if left else (2, rows)))).astype(dtype)
        for transpose in (True, False):
            options = {"left": left, "transpose": transpose}
            (found,) = plain_form(ormqr, options)(*expected, c)
            np.testing.assert_allclose(found, ormqr.bind(*expected, c, **options), rtol=1e-4, atol=1e-5)


def _primitives():
    """`geqrf` and `ormqr`, which have no public name: as they stand in a solver's program."""
    found = {}
    from jax._src.lax import linalg

    for name in ("geqrf", "ormqr"):
        found[name] = getattr(linalg, f"{name}_p")
    return found["geqrf"], found["ormqr"]


def test_a_column_that_is_done_has_no_reflection():
    geqrf, _ = _primitives()
    a = np.triu(X[:3, :3])
    for found, wanted in zip(plain_form(geqrf, {})(a), geqrf.bind(a), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_an_element_is_what_a_function_makes_of_it(target):
    """As often as its index comes; nothing outside."""

    def program(x, places):
        return x.at[places].apply(jnp.cos), x.at[places, 1].apply(lambda y: y * y, mode="clip"), x.at[1].apply(jnp.exp)

    text = _close(target, program, X, np.array([1, 3, 1, 9], np.int32))
    assert "cos" in text.source
    for places in ([2, 2, 2, 2], [-1, -(2**31), 2**31 - 1, 0], [-9, 4, 4, -4]):
        given = np.array(places, np.int32)
        wanted = jax.jit(program)(X, given)
        for found, one in zip(jax.tree.leaves(text(X, given)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(found), one, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_that_never_ends_for_the_least_integer(target):
    text = untrace.decompile(jnp.gcd, target=target)(np.array([12, 18], np.int32), np.array([8, 27], np.int32))
    np.testing.assert_array_equal(text(np.array([9, 5], np.int32), np.array([6, 10], np.int32)), [3, 5])


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "c"])
def test_what_a_library_computes_of_numbers_alone_is_a_number(target):
    """A quantile's places, a deviation's divisor and an index that is not negative are no sums and no cases in the text."""

    def program(x, i):
        return jnp.quantile(x, 0.3, method="midpoint"), jnp.std(x, ddof=1), x[:, i]

    text = _close(target, program, X, 2)
    body = text.source[: text.source.index("def _")]
    for word in ("floor", "isnan", "1, dtype=torch.int32", "np.int32(0) < np.int32(0)", "- np.float32(1.0)"):
        assert word not in body
    for i in (-1, 9):
        np.testing.assert_allclose(np.asarray(text(X, i)[2]), program(jnp.asarray(X), i)[2])
