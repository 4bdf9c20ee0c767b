"""Loops over stacked layers, differentiated: what they go through and what they stack reads as the author's trees."""

from __future__ import annotations

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace.lift.naming.words import singular


def array(*shape):
    return jnp.linspace(-0.6, 0.9, int(np.prod(shape))).reshape(shape)


LAYERS = {"mlp": {"b": array(3, 4), "w": array(3, 4, 4)}, "norm": array(3, 4)}
PARAMS = {"head": array(4, 2), "layers": LAYERS}
X, Y = array(5, 4), array(5, 2)


def written(fn, *args):
    d = untrace.decompile(fn)(*args)
    assert d.proof.at_least("bits"), d.proof
    assert ".bind(" not in d.source, d.source
    results = jax.jit(d)(*args), jax.jit(fn)(*args)
    for got, expected in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(got, expected)
    return d.source


def block(x, layer):
    scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), x @ x.T, -1e9)
    x = x + jax.nn.softmax(scores) @ (x * layer["norm"])
    return x + jnp.tanh(x @ layer["mlp"]["w"] + layer["mlp"]["b"])


def loss(params, x, y):
    x, _ = lax.scan(lambda x, layer: (block(x, layer), None), x, params["layers"])
    return jnp.mean((x @ params["head"] - y) ** 2)


def remat_loss(params, x, y):
    x, _ = lax.scan(lambda x, layer: (jax.checkpoint(block)(x, layer), None), x, params["layers"])
    return jnp.mean((x @ params["head"] - y) ** 2)


def test_a_loop_over_layers_goes_through_their_tree_and_stacks_that_of_their_gradients():
    source = written(jax.grad(loss), PARAMS, X, Y)
    assert 'x, params["layers"]\n' in source or 'x, params["layers"])' in source, source
    assert 'layer["mlp"]["w"]' in source and 'layer["norm"]' in source
    assert "d_layers = lax.scan(" in source
    assert '"layers": d_layers' in source


def heads(params, x):
    """Its mask is broadcast over heads."""

    def step(x, layer):
        q = (x * layer["norm"]).reshape(5, 2, 2)
        scores = jnp.einsum("qhd,khd->hqk", q, q)
        scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), scores, -1e9)
        return x + jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), q).reshape(5, 4), None

    return jnp.sum(lax.scan(step, x, params["layers"])[0] ** 2)


def test_a_mask_is_not_broadcast_before_the_loop_that_chooses_by_it():
    source = written(jax.grad(heads), PARAMS, X)
    assert source.count("jnp.where(jnp.tril(jnp.ones((5, 5), dtype=bool)), ") == 2, source
    assert "broadcast_to" not in source


def test_what_checkpoint_marked_takes_the_authors_tree_in_both_passes():
    source = written(jax.grad(remat_loss), PARAMS, X, Y)
    assert source.count("def block(x, layer):") == 1
    assert "lambda x, layer: (block(x, layer), x)" in source
    assert "_, block_vjp = jax.vjp(jax.checkpoint(block), x, layer)" in source
    assert "d_x_2, d_layer = block_vjp(d_x)" in source
    assert '(xs, params["layers"]), reverse=True' in source


def test_so_it_does_in_a_loop_of_python():
    layers = [jax.tree.map(lambda a, i=i: a[i], LAYERS) for i in range(3)]

    def listed(params, x, y):
        x = x * params["head"].sum()
        for layer in params["layers"]:
            x = jax.checkpoint(block)(x, layer)
        return jnp.mean((x @ params["head"] - y) ** 2)

    source = written(jax.grad(listed), {**PARAMS, "layers": layers}, X, Y)
    assert 'for layer in params["layers"]:' in source, source
    assert re.search(r"(\w+) = block\(\1, layer\)", source), source
    assert re.search(r"jax.vjp\(jax.checkpoint\(block\), \w+, layer\)", source), source
    assert "d_layers.append(d_layer)" in source


def called_twice(x, layer):
    return block(block(x, layer), layer)


def test_calls_of_a_marked_function_in_a_row_are_told_apart_where_it_calls_another():
    def nested(params, x):
        x = x * params["scale"]
        for layer in params["layers"]:
            x = jax.checkpoint(called_twice)(x, layer)
        return jnp.sum(x**2)

    layers = [jax.tree.map(lambda a, i=i: a[i], LAYERS) for i in range(3)]
    source = written(jax.grad(nested), {"layers": layers, "scale": array(4)}, X)
    assert "called_twice_2" not in source, source
    assert re.search(r"(\w+) = called_twice\(\1, layer\)", source), source


def test_a_tree_of_which_a_marked_function_takes_a_part_comes_leaf_by_leaf():
    def some(params, x):
        def step(x, layer):
            part = jax.checkpoint(lambda x, p: jnp.tanh(x @ p["w"] + p["b"]))(x, {**layer["mlp"]})
            return part * layer["norm"], None

        return jnp.sum(lax.scan(step, x, params["layers"])[0] ** 2)

    source = written(jax.grad(some), PARAMS, X)
    assert "d_layers" in source or "grads" in source, source


def test_a_leaf_that_nobody_reads_stays_in_the_tree():
    def unread(params, x):
        return jnp.sum(lax.scan(lambda x, p: (jnp.tanh(x @ p["w"]), None), x, params)[0])

    source = written(jax.grad(unread), {"unread": array(3, 2), "w": array(3, 4, 4)}, X)
    assert "lax.scan(" in source and 'param["w"]' in source, source


def biased(x, layer):
    return x + (jnp.tanh(x @ layer["w"] + layer["b"]) @ layer["w"] + layer["last"])


def test_what_the_derivative_of_a_marked_function_does_not_need_is_zeros_in_its_tree():
    """JAX hands the backward pass no bias that is added last."""

    def scanned(params, x):
        x, _ = lax.scan(lambda x, layer: (jax.checkpoint(biased)(x, layer), None), x, params)
        return jnp.sum(x**2)

    params = {"b": array(3, 4), "last": array(3, 4), "w": array(3, 4, 4)}
    source = written(jax.grad(scanned), params, X)
    assert "_recomputed" not in source and source.count("def biased(x, layer):") == 1, source
    assert '"last": zeros' in source and "d_x_2, d_layer = biased_vjp(d_x)" in source
    assert "return grads" in source


def test_so_is_what_it_does_not_read_at_all():
    def some(x, layer):
        return jnp.tanh(x @ layer["w"])

    def scanned(params, x):
        x, _ = lax.scan(lambda x, layer: (jax.checkpoint(some)(x, layer), None), x, params)
        return jnp.sum(x**2)

    source = written(jax.grad(scanned), {"b": array(3, 4), "w": array(3, 4, 4)}, X)
    assert "_recomputed" not in source and "jax.vjp(" in source, source


class Layer(NamedTuple):
    w: jax.Array
    b: jax.Array


class Model(NamedTuple):
    layers: Layer
    head: jax.Array


@pytest.mark.usefixtures("written_out")
def test_gradients_that_are_named_tuples():
    def step(model, x, y):
        def loss(m):
            x_, _ = lax.scan(lambda h, layer: (jax.nn.relu(h @ layer.w + layer.b), None), x, m.layers)
            return jnp.mean((x_ @ m.head - y) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, model, jax.grad(loss)(model))

    source = written(step, Model(Layer(array(3, 4, 4), array(3, 4)), array(4, 2)), X, Y)
    assert "Model(layers=d_layers, head=" in source, source


def test_gradients_that_a_loop_without_a_carry_stacks():
    def mapped(params, x):
        return jnp.sum(lax.map(lambda p: jnp.tanh(x @ p["w"] + p["b"]), params) ** 2)

    source = written(jax.grad(mapped), LAYERS["mlp"], X)
    assert 'return None, {"b": ' in source and "_, grads = lax.scan(" in source, source


def test_statistics_that_a_loop_stacks_have_the_authors_name():
    def measured(params, x):
        def step(c, p):
            y = jnp.tanh(c @ p["w"] + p["b"])
            return y, {"mean": y.mean(), "norm": jnp.sum(y * y)}

        c, stats = lax.scan(step, x, params)
        return jnp.sum(c**2), stats

    source = written(jax.value_and_grad(measured, has_aux=True), LAYERS["mlp"], X)
    assert "(stats, " in source and "stats), grads" in source, source


def test_gradients_that_are_cast_one_by_one_are_cast_as_a_tree():
    def mixed(params, x, y):
        low = jax.tree.map(lambda p: p.astype(jnp.float16), params)
        return loss(low, x.astype(jnp.float16), y).astype(jnp.float32)

    source = written(jax.grad(mixed), PARAMS, X, Y)
    assert source.count("jax.tree.map(lambda ") == 2, source
    assert '"layers": d_layers' in source


@pytest.mark.parametrize(
    "name, one",
    [
        ("layers", "layer"), ("batches", "batch"), ("caches", "cache"), ("leaves", "leaf"), ("time_indices", "time_index"),
        ("bias", "bias"), ("entries", "entry"), ("xs", "x"), ("axes", "axis"), ("boxes", "box"),
    ],
)  # fmt: skip
def test_the_name_of_one_of_several(name, one):
    assert singular(name) == one
