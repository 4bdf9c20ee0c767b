"""Gradients of control flow within control flow are written with public functions, and proven."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import nests
import numpy as np
import pytest

import untrace

PAIRS = """
scan cond, scan switch, scan layers, fori cond, mapped cond, mapped layers, cond cond, cond switch, switch scan,
cond associative, jitted switch, remat scan, remat mapped, layers cond, layers fori, layers scan
"""


@pytest.mark.parametrize("pair", [tuple(pair.split()) for pair in PAIRS.split(",")], ids=" in ".join)
def test_a_gradient_has_no_binds(pair):
    function = jax.grad(nests.loss(*pair))
    d = untrace.decompile(function)(nests.PARAMS, nests.X)
    assert d.proof.at_least("bits"), d.proof
    assert ".bind(" not in d.source, d.source
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(d)(nests.PARAMS, nests.X),
        jax.jit(function)(nests.PARAMS, nests.X),
    )


def source_of_gradient(outer, inner):
    return untrace.decompile(jax.grad(nests.loss(outer, inner)))(nests.PARAMS, nests.X).source


def test_what_is_saved_of_a_choice_is_what_it_was_made_of():
    assert "lax.cond(\n            is_greater, true_branch, false_branch" in source_of_gradient("scan", "cond")
    source = source_of_gradient("fori", "switch")
    assert source.count("lax.switch(") == 2 and "clamp" not in source, source


def test_gradients_of_equal_layers_are_mapped_in_the_order_of_the_tree():
    """JAX adds them up in the order in which a layer's backward pass gives them: mix, gate, read, bias."""
    source = source_of_gradient("layers", "cond")
    for name in nests.PARAMS:
        assert f'"{name}": d_{name} + ' in source, source


def test_a_number_that_the_author_gives_of_a_choice_stays_a_number():
    def f(xs):
        def step(c, x):
            chosen = (x > 0).astype(jnp.int32)
            return lax_switch(chosen, c, x), chosen

        lax_switch = lambda i, c, x: jax.lax.switch(i, [lambda: c * x, lambda: c + x])  # noqa: E731
        return jax.lax.scan(step, 1.0, xs)

    d = untrace.decompile(f)(jnp.arange(3.0))
    assert "chosen" in d.source and d(jnp.arange(3.0))[1].dtype == jnp.int32, d.source


def by_each(y, flags):
    return jax.lax.scan(lambda c, p: (jax.lax.cond(p, jnp.sin, lambda c: c * y, c), None), y, flags)[0]


def by_numbers(y, numbers):
    branches = [jnp.sin, lambda c: c * y, jnp.exp]
    return jax.lax.scan(lambda c, i: (jax.lax.switch(i, branches, c), None), y, numbers)[0]


def by_one(y, flag):
    step = lambda c, _: (jax.lax.cond(flag, jnp.sin, lambda c: c * y, c), None)  # noqa: E731
    return jax.lax.scan(step, y, length=3)[0]


def between_bounds(y, xs):
    """Numbers that are clamped and given are none that a choice is made by."""

    def step(c, x):
        return jax.lax.switch(jnp.int32(x), [jnp.sin, lambda c: c * y], c), jax.lax.clamp(0.25, x, jnp.inf)

    c, clipped = jax.lax.scan(step, y, xs)
    return c + jnp.sum(clipped)


@pytest.mark.parametrize(
    "function, chosen_by",
    [
        (by_each, jnp.array([True, False, True])),
        (by_numbers, jnp.array([0, 2, 7])),
        (by_one, jnp.array(True)),
        (between_bounds, jnp.array([0.0, 1.0, 0.5])),
    ],
)
def test_a_loop_that_chooses_by_what_it_is_given(function, chosen_by):
    d = untrace.decompile(jax.grad(function))(jnp.float32(2.0), chosen_by)
    assert ".bind(" not in d.source and d.proof.at_least("bits"), d.source
    np.testing.assert_array_equal(
        jax.jit(d)(jnp.float32(2.0), chosen_by), jax.jit(jax.grad(function))(jnp.float32(2.0), chosen_by)
    )
