"""Large products in C: by a helper, at whatever strides the matrices stand, or by a BLAS where the text is compiled for one."""

from __future__ import annotations

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_texts import same, written
from jax import lax

from untrace.targets.c.compiled import EXACT, Prepared, build

# A BLAS for the test: what the standard says of these parameters, and nothing else.
CBLAS = """
enum { CblasRowMajor = 101, CblasNoTrans = 111, CblasTrans = 112 };
int products;
void cblas_sgemm(int o, int ta, int tb, int m, int n, int k, float x, const float *a, int lda, const float *b,
        int ldb, float y, float *c, int ldc);
void cblas_sgemm(int o, int ta, int tb, int m, int n, int k, float x, const float *a, int lda, const float *b,
        int ldb, float y, float *c, int ldc)
{
    products += o == CblasRowMajor && lda >= (ta == CblasNoTrans ? k : m) && ldb >= (tb == CblasNoTrans ? n : k);
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            float s = 0;
            for (int p = 0; p < k; p++) {
                s += (ta == CblasNoTrans ? a[i * lda + p] : a[p * lda + i])
                        * (tb == CblasNoTrans ? b[p * ldb + j] : b[j * ldb + p]);
            }
            c[i * ldc + j] = y != 0 ? y * c[i * ldc + j] + x * s : x * s;
        }
    }
}
"""


def _arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def attend(x, w):
    """Products with all that may be transposed, a batch, and axes that go together."""
    q = jnp.einsum("bld,dhk->bhlk", x, w)
    s = jnp.einsum("bhlk,bhmk->bhlm", q, q)
    return jnp.einsum("bhlm,bhmk->blhk", s, q), x[0].T @ x[0]


CASES = {
    "plain": (lambda x, w: x @ w, (20, 33), (33, 40)),
    "one row": (lambda x, w: x @ w, (200,), (200, 100)),
    "one row, transposed": (lambda x, w: x @ w.T, (1, 200), (100, 200)),
    "transposed left": (lambda x, w: x.T @ w, (33, 21), (33, 37)),
    "transposed right": (lambda x, w: x @ w.T, (21, 33), (37, 33)),
    "one column of terms": (lambda x, w: x @ w, (300, 1), (1, 100)),
    "batch last": (lambda x, w: jnp.einsum("ikb,kjb->bij", x, w), (20, 40, 2), (40, 21, 2)),
    "computed": (lambda x, w: jnp.tanh(x) @ (w * 2 + x.sum()), (20, 33), (33, 40)),
    "a part": (lambda x, w: x[2:, 1:] @ w[1:], (22, 34), (34, 40)),
    "heads": (attend, (2, 37, 24), (24, 4, 12)),
}


@pytest.mark.parametrize("name", CASES)
def test_large_products_are_calls_of_the_helper_or_of_a_blas(name, tmp_path):
    fn, *shapes = CASES[name]
    args = _arrays(*shapes)
    text = written(fn, *args)
    assert "product_f32(" in text.source and "#ifdef UNTRACE_BLAS" in text.source
    same(text, fn, *args)
    (tmp_path / "cblas.h").write_text(CBLAS)
    library = build(text.program, (*EXACT, "-Wall", "-Wextra", "-Werror", "-DUNTRACE_BLAS", f"-I{tmp_path}"))
    found = Prepared(text.program, library)(*args)
    for got, wanted in zip(found, jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())
    calls = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "products").value
    batches = {"batch last": 2, "heads": 1 + 8 + 8 + 1, "one row": 0}  # which the text computes itself
    assert calls == batches.get(name, 1)


def test_float64_and_small_products():
    with jax.enable_x64(True):
        x = np.linspace(-1, 1, 33 * 33).reshape(33, 33)
        text = written(lambda x: x @ x, x)
        assert "product_f64(" in text.source
        same(text, lambda x: x @ x, x, tolerance=1e-14)
    small = written(lambda x: x @ x, np.ones((12, 12), np.float32))
    assert "product_f32" not in small.source


def test_numbers_that_are_none_stay_where_they_are():
    def product(x, w):
        return lax.dot(x, w)

    x, w = _arrays((33, 33), (33, 35))
    x[2, 3], w[5, 6] = np.nan, np.inf
    text = written(product, x, w)
    np.testing.assert_array_equal(np.isfinite(text(x, w)), np.isfinite(product(x, w)))


def test_a_saved_program_may_be_built_with_a_blas(tmp_path):
    x = np.ones((40, 40), np.float32)
    written(lambda x: x @ x, x).save(tmp_path / "large")
    assert "option(UNTRACE_BLAS" in (tmp_path / "large" / "CMakeLists.txt").read_text()
    written(lambda x: x + x, x).save(tmp_path / "none")
    assert "BLAS" not in (tmp_path / "none" / "CMakeLists.txt").read_text()


def test_where_little_is_left_of_a_sum_its_rounding_decides():
    def layers(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w)  # of large inputs nothing but signs

    text = written(layers, *_arrays((512, 512), (32, 512)))
    assert text.proof.at_least("close")
