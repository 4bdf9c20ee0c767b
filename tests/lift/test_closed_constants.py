"""Arrays of the program that loops and branches close over: known inside, and written once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

VELOCITIES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]])
OPPOSITE = np.array([0, 3, 4, 1, 2])
F = jax.ShapeDtypeStruct((5, 4, 6), "float32")


def macroscopic(f: Any) -> Any:
    density = f.sum(axis=0)
    velocity = jnp.einsum("qd,qxy->dxy", VELOCITIES, f) / density
    return density, velocity


def test_a_function_in_a_loop_takes_no_constants() -> None:
    def simulate(f: Any) -> Any:
        def step(_: Any, f: Any) -> Any:
            density, velocity = macroscopic(f)
            return f - 0.1 * (density + velocity.sum(0))

        return macroscopic(lax.fori_loop(0, 3, step, f))

    d = untrace.decompile(simulate)(F)
    assert "def macroscopic(f):" in d.source and d.source.count("macroscopic(") == 3, d.source
    assert 'jnp.einsum("qd,qxy->dxy", VELOCITIES, f)' in d.source


def test_an_index_of_numpy_s_in_a_loop() -> None:
    def bounce(f: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, f: f[OPPOSITE] * 2.0, f)

    d = untrace.decompile(bounce)(F)
    assert "f[OPPOSITE] * 2.0" in d.source and "gather" not in d.source, d.source
    # What JAX makes of the index while it traces is not written beside it, nor is a module that nobody uses.
    assert "False" not in d.source and d.source.count("array(") == 1 and d.proof.level == "jaxpr"


def test_several_results_of_one_call_before_a_loop_are_not_one_constant() -> None:
    numbers = jax.jit(lambda s: (s * 0.3, s * 2.5, s + 1.0))

    def simulate(x: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            a, b, c = numbers(jnp.float32(0.5))
            return jnp.sin(a * x) + b * x - c, None

        return jnp.sum(lax.scan(step, x, None, length=3)[0])

    d = untrace.decompile(jax.grad(simulate))(jnp.ones(3))
    assert "x: f32[n]" in d.source  # else a rewrite made another program, and all were given up


@pytest.mark.parametrize("kind", ["cond", "while", "scan"])
def test_the_same_program(kind: str) -> None:
    table = np.arange(12.0, dtype=np.float32).reshape(3, 4)

    def function(x: Any) -> Any:
        if kind == "cond":
            return lax.cond(x.sum() > 0, lambda x: x @ table, lambda x: (x * 2) @ table, x)
        if kind == "while":
            return lax.while_loop(
                lambda s: s[0] < table.sum(), lambda s: (s[0] + 1, s[1] + table @ table.T @ s[1]), (0.0, x)
            )
        return lax.scan(lambda c, row: (c + table @ row, c), x, table)

    x = jnp.ones(3)
    d = untrace.decompile(function)(x)
    assert d.proof.level == "jaxpr" and not d.notes, (d.proof, d.notes, d.source)
    assert jnp.array_equal(jax.tree.leaves(d(x))[0], jax.tree.leaves(jax.jit(function)(x))[0])


def test_an_array_that_one_function_reads_and_another_returns() -> None:
    table = np.arange(4.0, dtype=np.float32)

    def function(x: Any) -> Any:
        start = (jnp.float32(0), x)
        return lax.while_loop(lambda s: s[0] < table.sum(), lambda s: (s[0] + 1.0, jnp.asarray(table)), start)

    d = untrace.decompile(function)(jnp.ones(4))
    assert not d.notes and jnp.array_equal(d(jnp.ones(4))[1], table), (d.notes, d.source)


def test_a_large_array_that_nothing_reads_is_not_saved() -> None:
    """An index of NumPy's is written as such; the array that JAX makes of it, and its file, are left out."""
    order = np.random.default_rng(0).permutation(600).astype(np.int32)

    def function(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, x: x[order] * 2.0, x)

    d = untrace.decompile(function)(jnp.ones(600))
    assert "gather" not in d.source and "False" not in d.source and d.proof.level == "jaxpr", d.source[:2000]
    assert "def _constants(" not in d.source
    assert jnp.array_equal(d(jnp.arange(600.0)), jax.jit(function)(jnp.arange(600.0)))


def upwards(x: Any) -> Any:
    return jnp.where(x[1] < 0, -x[1], 0.0) * jnp.array([0.0, 1.0])


def test_a_function_in_a_loop_that_is_differentiated_takes_no_constants() -> None:
    def loss(us: Any, x: Any) -> Any:
        def step(x: Any, u: Any) -> Any:
            return x + 0.1 * (upwards(x) + 0.5 * jnp.sin(upwards(2 * x)) + u), None

        return jnp.sum(lax.scan(step, x, us)[0] ** 2)

    d = untrace.decompile(lambda us, x: jax.value_and_grad(loss)(us, x))(jnp.arange(4.0), jnp.array([1.0, -2.0]))
    assert "def upwards(x):" in d.source and d.source.count("jnp.array(") == 1, d.source
    assert d.proof.level == "hlo"
