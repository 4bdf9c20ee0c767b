"""Gradients through `jax.checkpoint`: the marked function is in the text once, and is differentiated there."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace import jax_compat

X = np.linspace(-1.0, 1.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4)
TABLE = np.arange(16.0, dtype=np.float32).reshape(4, 4)


@jax.checkpoint
def block(x, layer):
    hidden = jnp.tanh(x @ layer["w"] + layer["b"])
    return x + hidden * 0.5


LAYERS = {"w": np.stack([W, W.T, -W]), "b": np.ones((3, 4), np.float32)}


def scanned(layers, x):
    x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, layers)
    return jnp.sum(jnp.sin(x))


def unrolled(layers, x):
    for n in range(3):
        x = block(x, jax.tree.map(lambda leaf: leaf[n], layers))  # noqa: B023
    return jnp.sum(x**2)


@functools.partial(jax.checkpoint, prevent_cse=False)
def masked(x, mask, w):
    h = jnp.where(mask, jnp.sin(x @ w), 0.0)
    return jnp.sin(h), h.sum()


def of_mask(w, x):
    y, total = masked(x, x > 0, w)
    return jnp.sum(jnp.sin(y)) * total


@jax.checkpoint
def closing(x, w):
    return jnp.sin(x @ (w * TABLE)) + x


@functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
def saving(x, w):
    return jnp.sin(jnp.sin(x @ w))


def helper(x, w):
    y = jnp.sin(x @ w)
    return y - jnp.mean(y, axis=-1, keepdims=True)


@jax.checkpoint
def twice(x, w):
    return jax.nn.softmax(helper(helper(x, w), w))


def written(function, *args):
    d = untrace.decompile(function)(*args)
    assert d.proof.at_least("hlo"), d.proof
    assert "_recomputed" not in d.source and "remat_p" not in d.source, d.source
    return d.source


def test_a_scan_of_checkpointed_layers():
    source = written(jax.grad(scanned, argnums=(0, 1)), LAYERS, X)
    assert "def block(x, layer):" in source, source
    assert 'hidden = jnp.tanh(x @ layer["w"] + layer["b"])\n    return x + hidden * 0.5' in source, source
    assert source.count("jnp.tanh") == 1, source
    assert "lax.scan(lambda x, layer: (block(x, layer), x), x, layers)" in source, source
    assert "_, block_vjp = jax.vjp(jax.checkpoint(block), x, layer)\n" in source, source
    assert "d_x_2, d_layer = block_vjp(d_x)" in source, source


def test_calls_one_after_the_other():
    source = written(jax.grad(unrolled), LAYERS, X)
    assert source.count("def block(") == source.count("jnp.tanh") == 1, source
    assert source.count("jax.checkpoint(block)") == 3 and source.count("= block(") == 2, source
    # What is computed again belongs to the backward pass.
    assert source.index("# backward") < source.index("jax.vjp("), source


def test_what_is_not_differentiated_is_handed_in():
    source = written(jax.grad(of_mask, argnums=(0, 1)), W, X)
    assert "lambda x, w: jax.checkpoint(masked, prevent_cse=False)(x, mask, w), x, w" in source, source
    assert "= masked_vjp((" in source, source


def test_an_array_that_it_closes_over_is_the_modules():
    source = written(jax.grad(lambda w, x: jnp.sum(jnp.cos(closing(closing(x, w), w)))), W, X)
    assert "def closing(x, w):" in source and source.count("def closing") == 1, source
    assert "(d_w_2,) = closing_vjp_2(d_closing_2)" in source, source


def test_functions_inside_are_called():
    def loss(ws, x):
        return jnp.sum(jnp.sin(jax.lax.scan(lambda x, w: (twice(helper(x, w), w), None), x, ws)[0]))

    source = written(jax.grad(loss), np.stack([W, W.T]), X)
    assert source.count("def twice(x, w):") == 1 and source.count("jax.nn.softmax") == 1, source


def test_what_a_policy_saves_is_an_operand():
    d = untrace.decompile(jax.grad(lambda w: jnp.sum(jnp.sin(saving(X, w)))))(W)
    assert "_recomputed" in d.source and d.proof.at_least("hlo")


def test_the_text_is_the_same_whatever_was_traced_before():
    jax.clear_caches()
    first = untrace.decompile(jax.grad(scanned))(LAYERS, X).source
    jax.make_jaxpr(jax.grad(scanned))(LAYERS, X)
    assert untrace.decompile(jax.grad(scanned))(LAYERS, X).source == first
    assert "jax.checkpoint(block)" in first


def test_style_exact_binds_the_equation():
    d = untrace.decompile(jax.grad(scanned), style="exact")(LAYERS, X)
    assert d.proof.level == "jaxpr" and "checkpoint_vjp" not in d.source


@pytest.mark.parametrize("function, args", [(scanned, (LAYERS, X)), (of_mask, (W, X))])
def test_nothing_of_jax_is_changed(function, args):
    from jax.extend.core import primitives

    before = primitives.remat_p.bind
    d = untrace.decompile(jax.grad(function))(*args)
    assert primitives.remat_p.bind == before and "bind" not in vars(primitives.remat_p)
    for ours, theirs in zip(jax.tree.leaves(d(*args)), jax.tree.leaves(jax.grad(function)(*args)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with jax_compat.intercepted_checkpoints(lambda jaxpr: None):
        pass
    assert "bind" not in vars(primitives.remat_p)
