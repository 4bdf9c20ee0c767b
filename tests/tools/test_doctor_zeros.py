"""The zeros of a derivative that `untrace.doctor` passes on as zeros."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np

import untrace


def repaired(diagnosis: untrace.Diagnosis) -> types.ModuleType:
    module = types.ModuleType("repaired")
    exec(compile(diagnosis.source or "", "repaired.py", "exec"), module.__dict__)
    return module


def test_an_infinite_slope_times_zero():
    def dissipation(strains):
        return jnp.sum(jnp.sum(strains**2, axis=1) ** (2 / 3))

    strains = np.array([[0.5, 1, -2], [0, 0, 0], [1e-3, 0, 2e-3]], np.float32)
    found = untrace.doctor(jax.grad(dissipation))(strains)
    assert found.repairs == ("zero before a product",)
    slope = repaired(found).dissipation
    wide = strains[::2].astype(np.float64)
    wanted = 4 / 3 * np.sum(wide**2, axis=1, keepdims=True) ** (-1 / 3) * wide
    np.testing.assert_allclose(slope(strains)[::2], wanted, rtol=1e-6)
    assert not np.any(slope(strains)[1]) and not np.any(slope(np.zeros((2, 3), np.float32)))


def test_a_branch_that_is_not_taken_far_behind_its_where():
    def pool(scores, mask):
        def of_row(row, seen):
            kept = row + jnp.where(seen > 0, 0.0, -jnp.inf)
            top = jnp.max(kept)
            return jnp.where(jnp.any(seen > 0), top + jnp.log(jnp.sum(jnp.exp(kept - top))), 0.0)

        return jnp.sum(jax.vmap(of_row)(scores, mask))

    scores, mask = np.array([[[1, 0.5, -1], [0.25, 2, 0]], [[1, 1, 0], [0, 0, 0]]], np.float32)
    found = untrace.doctor(jax.grad(pool))(scores, mask)
    weights = np.exp(scores[0, :2]) / np.sum(np.exp(scores[0, :2]))
    np.testing.assert_allclose(repaired(found).pool(scores, mask), [[*weights, 0], [0, 0, 0]], rtol=1e-5)


def test_where_a_zero_factor_has_another_limit_there_is_no_repair():
    def geodesic(rotation):
        return jnp.arccos((jnp.trace(rotation) - 1) / 2) ** 2

    found = untrace.doctor(jax.grad(geodesic))(np.eye(3, dtype=np.float32))
    assert found.findings and found.source is None
