"""Derivatives of linear functions of the library, and of what is set in a part of an array."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

X = jnp.linspace(-1.0, 1.0, 20).reshape(4, 5)


def proven(function, *args):
    d = untrace.decompile(function)(*args)
    assert d.proof.at_least("bits"), d.proof
    jax.tree.map(np.testing.assert_array_equal, jax.jit(d)(*args), jax.jit(function)(*args))
    return d.source


@pytest.mark.usefixtures("as_given")
@pytest.mark.parametrize(
    "shift, axis, written",
    [
        (1, 0, "1, axis=0"),
        (-1, 1, "-1, axis=1"),
        (3, 1, "-2, axis=1"),
        ((1, -2), (0, 1), "(1, -2), axis=(0, 1)"),
        ((0, 1), (1, 0), "(0, 1), axis=(1, 0)"),
    ],
)
def test_the_derivative_of_a_roll_is_a_roll_transposed(shift, axis, written):
    """It is no roll back: where something is -0.0, that is another number."""
    source = proven(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.roll(x, shift, axis)) * jnp.roll(x, shift, axis))), X)
    for name, digits in re.findall(r"^([A-Z]+) = (.+)$", source, re.M):
        source = re.sub(rf"\b{name}\b", digits, source)
    assert f"_transposed(jnp.roll, d_joined, {written})" in source or f", {written})" in source, source
    assert "jnp.split(" not in source and "jnp.pad(" not in source, source


def test_a_roll_transposed_in_a_loop():
    def step(u, _):
        return u + 0.1 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) - 2.0 * u) * u, None

    source = proven(jax.grad(lambda u: jnp.sum(jax.lax.scan(step, u, length=3)[0] ** 2)), X)
    assert source.count("_transposed(jnp.roll, ") == 2, source


@pytest.mark.parametrize("negative", [np.float32(-0.0), np.float32(np.nan)])
def test_a_roll_transposed_keeps_every_bit(negative):
    def f(x, d):
        return jax.vjp(lambda x: jnp.roll(x, 2, axis=1), x)[1](d)[0]

    d = untrace.decompile(f)(X, X)
    ours, theirs = (np.asarray(jax.jit(g)(X, jnp.full_like(X, negative))) for g in (d, f))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    "where, written",
    [
        ((0,), "[0]"),
        ((slice(None), -1), "[:, -1]"),
        ((slice(1, 3),), "[1:3]"),
        ((2, slice(1, None)), "[2, 1:]"),
        ((1, 2), "[1, 2]"),
    ],
)
def test_the_derivative_of_what_is_set_is_a_part(where, written):
    shape = X[where].shape

    def f(x, v):
        return jnp.sum(jnp.sin(x.at[where].set(v)) ** 2)

    source = proven(jax.grad(f, argnums=(0, 1)), X, jnp.ones(shape))
    assert f"d_updated{written}" in source and "lax.gather" not in source, source


def test_the_derivative_of_what_is_set_at_an_index_is_read_there():
    """Outside of the array nothing was set, and the derivative is zero."""
    f = jax.grad(lambda x, v, i: jnp.sum(jnp.sin(x.at[i].set(v)) ** 2), argnums=(0, 1))
    source = proven(f, X, jnp.ones(5), jnp.int32(2))
    assert '.at[i].get(mode="fill", fill_value=0)' in source, source
    d = untrace.decompile(f)(X, jnp.ones(5), jnp.int32(2))
    np.testing.assert_array_equal(d(X, jnp.ones(5), jnp.int32(7))[1], jnp.zeros(5))


def test_the_gradient_of_a_bias_is_one_sum_whatever_the_size_of_the_batch():
    def loss(params, x):
        return jnp.sum(jnp.tanh(x * params["w"] + params["b"]) ** 2)

    params = {"w": jnp.ones((4, 1)), "b": jnp.ones(5)}
    for batch in (1, 3):
        source = proven(jax.grad(loss), params, jnp.linspace(0.0, 1.0, 20 * batch).reshape(batch, 4, 5))
        assert ".sum(axis=(0, 1))" in source and "squeeze" not in source and "reshape" not in source
