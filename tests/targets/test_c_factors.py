"""Factors of matrices in C, and arrays without elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_texts import runs_clean, written


@pytest.mark.parametrize(
    ("shape", "mode"), [((2, 5, 3), "complete"), ((5, 3), "reduced"), ((3, 5), "complete"), ((4, 4), "r")]
)
def test_orthogonal_factors_have_the_signs_of_lapack(shape, mode, tmp_path):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[..., 0, 0] = -1
    fn = lambda x: jnp.linalg.qr(x, mode=mode)  # noqa: E731
    text = written(fn, x)
    for found, wanted in zip(jax.tree.leaves(text(x)), jax.tree.leaves(fn(x)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6 * max(1.0, float(np.abs(wanted).max())))
    if mode == "reduced":
        # A column that is no longer than its first number is not reflected.
        np.testing.assert_array_equal(
            jax.tree.leaves(text(np.eye(*shape, dtype="f4") * -2))[0], np.eye(*shape, dtype="f4")
        )
        runs_clean(text, tmp_path / "project")


def test_arrays_without_elements_are_passed_and_given(tmp_path):
    def joined(x, y):
        return jnp.concatenate([x, y]), x * 2, x.sum(0), jnp.sort(x, 0), x @ x.T, {"none": x[:, :2]}

    x, y = np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)
    text = written(joined, x, y)
    for found, wanted in zip(jax.tree.leaves(text(x, y)), jax.tree.leaves(joined(x, y)), strict=True):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    runs_clean(text, tmp_path / "project")


def test_a_result_without_elements_is_no_warning(tmp_path):
    x = np.ones((2, 3), np.uint8)
    text = written(lambda x: jax.lax.pad(x, np.uint8(0), ((0, 0, 0), (-2, -3, 1))), x)
    assert text(x).shape == (2, 0)
    runs_clean(text, tmp_path / "project")
