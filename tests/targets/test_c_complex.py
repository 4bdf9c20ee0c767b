"""Complex numbers in C: structs of two parts, which functions compute with as XLA does."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_texts import runs_clean, written
from jax import lax

import untrace
from untrace.targets.c.compiled import STRICT, build

# What tells one formula from another: zeros with signs, infinities, NaN, what overflows on its way.
ENDS = [0.0, -0.0, 1.0, -2.5, 1e-3, 30.0, 1e10, np.inf, -np.inf, np.nan]
EDGES = np.array([complex(a, b) for a in ENDS for b in ENDS], np.complex64)
rng = np.random.default_rng(0)
Z, W = (rng.normal(size=(2, 300)) + 1j * rng.normal(size=(2, 300))).astype(np.complex64)
FUNCTIONS = [
    lax.exp, lax.log, lax.sqrt, lax.sin, lax.cos, lax.tan, lax.asin, lax.acos, lax.atan, lax.sinh, lax.cosh, lax.tanh, lax.asinh,
    lax.acosh, lax.atanh, lax.sign, lax.expm1, lax.log1p, lax.abs, lax.rsqrt, lax.logistic, lax.exp2, lax.neg, lax.conj, lax.square,
    lax.real, lax.imag,
]  # fmt: skip
# Of these XLA gives parts of NaN other numbers than all else does, or not the same ones in all its versions.
LOOSE = {lax.atan, lax.atanh, lax.abs}


def _apart(found, wanted):
    """How far numbers are apart, in units in the last place of their modulus; infinite where one is NaN or infinite alone."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    parts = [(found.real, wanted.real), (found.imag, wanted.imag)]
    finite = np.isfinite(found) & np.isfinite(wanted)
    same = np.all([(a == b) | np.isnan(a) & np.isnan(b) for a, b in parts], axis=0)
    eps = np.finfo(wanted.dtype).eps
    tiny = np.finfo(wanted.dtype).tiny
    with np.errstate(all="ignore"):
        near = np.abs(found - wanted) / (np.maximum(np.abs(wanted), tiny) * eps)
    return np.where(finite, near, np.where(same, 0.0, np.inf))


@pytest.fixture(scope="module")
def functions():
    """What all functions give in C and by XLA, on edge values and others, by name."""

    def every(z):
        return {fn.__name__: fn(z) for fn in FUNCTIONS}

    z = np.concatenate([EDGES, Z])
    text = untrace.decompile(every, target="c", prove=False)(z)
    build(text.program, (*STRICT, "-O1"))
    return text(z), jax.jit(every)(z)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_functions_are_xlas_on_edge_values_and_others(fn, functions):
    found, wanted = (given[fn.__name__] for given in functions)
    apart = _apart(found, wanted)
    edges, others = apart[: len(EDGES)], apart[len(EDGES) :]
    assert np.quantile(others, 0.98) <= 4
    if fn not in LOOSE:
        assert edges.max() <= 16, EDGES[edges.argmax()]


def test_operations_of_two_are_xlas_on_edge_values_and_others():
    operations = [lax.add, lax.sub, lax.mul, lax.div, lax.eq, lax.ne, lax.max, lax.min]
    x, y = np.meshgrid(EDGES[::3], EDGES[1::3])
    x, y = np.concatenate([x.ravel(), Z]), np.concatenate([y.ravel(), W])

    def every(x, y):
        return [fn(x, y) for fn in operations]

    text = untrace.decompile(every, target="c", prove=False)(x, y)
    for fn, found, wanted in zip(operations, text(x, y), jax.jit(every)(x, y), strict=True):
        if found.dtype == bool:
            np.testing.assert_array_equal(found, wanted)
        else:
            apart = _apart(found, wanted)
            assert apart.max() <= 4, (fn, x[apart.argmax()], y[apart.argmax()])


def test_powers():
    fn = lambda z, w: (z**w, z**3, z**-2, z**0, lax.integer_pow(z, 7), jnp.power(z, 0.5))  # noqa: E731
    for found, wanted in zip(written(fn, Z, W)(Z, W), jax.jit(fn)(Z, W), strict=True):
        assert np.quantile(_apart(found, wanted), 0.9) <= 4
    zeros, others = np.zeros(4, np.complex64), np.array([0, 2, 1.5, 3], np.complex64)
    text = untrace.decompile(lax.pow, target="c", prove=False)(zeros, others)
    np.testing.assert_array_equal(text(zeros, others), [1, 0, 0, 0])


def filtered(state, x):
    """A recursion, a branch, products, choices, sums and orders."""

    def step(h, z):
        h = lax.cond(jnp.abs(h) > 2, lambda h: h / 2, lambda h: h * z + 1j, h)
        return h, h.conj() * z

    h, hs = lax.scan(step, state["h"], x)
    m = jnp.outer(hs, x[:3])
    chosen = jnp.where(m.real > 0, m, 2.0)
    return {
        "h": h, "product": m.T @ m, "sum": chosen.sum(0), "runs": jnp.cumsum(x), "all": jnp.prod(x[:4]),
        "sorted": jnp.sort(x), "taken": x[jnp.array([1, 99])], "put": x.at[jnp.array([0, 0])].add(h),
        "parts": (x.real, x.imag, lax.complex(x.real, x.real)), "cast": state["n"].astype(jnp.complex64), "table": x + TABLE,
    }  # fmt: skip


TABLE = (np.arange(6) * (1 + 2j)).astype(np.complex64)


def test_a_program_and_its_gradient_under_sanitizers(tmp_path):
    args = {"h": np.complex64(0.5 - 0.25j), "n": np.arange(3)}, Z[:6]
    text = written(filtered, *args)
    found, wanted = jax.tree.leaves(text(*args)), jax.tree.leaves(jax.jit(filtered)(*args))
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert "    struct complex64 h;\n" in text.header and "#ifndef UNTRACE_COMPLEX64" in text.header
    runs_clean(text, tmp_path / "project")
    gradient = jax.grad(lambda x: jnp.abs(filtered(args[0], x)["sum"]).sum())
    np.testing.assert_allclose(written(gradient, Z[:6])(Z[:6]), gradient(Z[:6]), rtol=1e-4, atol=1e-4)


def test_numbers_are_passed_and_returned_as_structs_of_two_parts(tmp_path):
    z = np.complex64(complex(1.5, -0.0))
    text = written(lambda z, x: z * 2 + x, z, np.float32(0.5))
    assert "struct complex64 z, float x)" in text.header.replace("\n", " ")
    assert text(z, np.float32(0.5)) == np.complex64(3.5)
    runs_clean(text, tmp_path / "project")
    text.save(tmp_path / "plus")
    # A program in C++ has it as std::complex, in the same memory.
    (tmp_path / "plus" / "use.cpp").write_text(
        f'#include "{text.name}.h"\n#include <complex>\nstatic_assert(sizeof(struct complex64) == sizeof(std::complex<float>), "");\n'
        "int main() { return 0; }\n"
    )
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-c", "use.cpp"], cwd=tmp_path / "plus", check=True
    )


def test_what_has_no_words_for_complex_numbers_is_refused():
    # XLA's own is neither that of the real parts nor that of the order of complex numbers.
    with pytest.raises(untrace.UnsupportedPrimitiveError, match="`clamp` of complex numbers"):
        untrace.decompile(lambda z: lax.clamp(z[2], z, z[0]), target="c")(Z)


@pytest.mark.parametrize("n", [2, 15])
def test_fourier_transforms(n):
    z = (rng.normal(size=(2, 3, n)) + 1j * rng.normal(size=(2, 3, n))).astype(np.complex64)

    def transformed(z):
        one = jnp.fft.fft(z), jnp.fft.ifft(z), jnp.fft.rfft(z.real), jnp.fft.irfft(z, n=2 * n - 1)
        return *one, jnp.fft.fft2(z), jnp.fft.rfft2(z.real), jnp.fft.irfft2(z, s=(3, 2 * n - 1)), jnp.fft.ifftn(z)

    text = written(transformed, z)
    for found, wanted in zip(text(z), transformed(z), strict=True):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_factors_of_matrices_and_what_is_solved_with_them():
    a = (rng.normal(size=(2, 4, 4)) + 1j * rng.normal(size=(2, 4, 4))).astype(np.complex64)

    def solved(a):
        h = a @ a.conj().swapaxes(-1, -2) + jnp.eye(4)
        turned = [jax.scipy.linalg.solve_triangular(a[0], a[1], trans=t, lower=t == 1) for t in (0, 1, 2)]
        return jnp.linalg.cholesky(h), lax.linalg.lu(a), jnp.linalg.solve(h, a), turned

    for found, wanted in zip(jax.tree.leaves(written(solved, a)(a)), jax.tree.leaves(solved(a)), strict=True):
        assert found.dtype == wanted.dtype
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_orders_are_by_the_real_part_and_then_by_the_other():
    z = np.array([1 + 2j, 1 - 1j, -1, 3j, 1 + 3j, -1 - 1j], np.complex64)

    def ordered(z):
        return jnp.sort(z), jnp.argsort(z), z.max(), z.min(), lax.max(z, z[::-1]), lax.cummax(z)

    for found, wanted in zip(written(ordered, z)(z), ordered(z), strict=True):
        np.testing.assert_array_equal(found, wanted)
