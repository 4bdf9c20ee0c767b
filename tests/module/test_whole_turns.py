"""The turns of a loop are the author's: none is shifted, and the last one does nothing that he does not."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
from roundtrip import saved

import untrace

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def test_the_last_layer_is_not_in_the_loop(tmp_path):
    def network(layers, x):
        hidden = x
        for layer in layers[:-1]:
            total = hidden @ layer["w"] + layer["b"]
            hidden = jnp.tanh(total) * total
        return hidden @ layers[-1]["w"] + layers[-1]["b"]

    layers = [{"w": jnp.eye(3) * (i + 1), "b": jnp.ones(3)} for i in range(4)]
    written, text = saved(untrace.decompile(network)(layers, X), tmp_path)
    assert "for layer in layers[:-1]:" in text, text
    assert text.index("jnp.tanh(") < text.index("return hidden @ layers[-1]"), text
    np.testing.assert_allclose(written(layers, X), network(layers, X), rtol=1e-6)


def test_a_turn_is_not_shifted_where_the_first_one_could_do_less(tmp_path):
    def polished(x):
        y = x.T
        for _ in range(3):
            a = y @ y.T
            y = 0.1 * a @ y + y
        return y.T

    written, text = saved(untrace.decompile(polished)(X), tmp_path)
    assert re.search(r"    y = x\.T\n    for \w+ in range\(3\):\n        a = y @ y\.T\n", text), text
    np.testing.assert_allclose(written(X), polished(X), rtol=1e-5)


POWERS = 2


def normalized(v):
    return v / (jnp.linalg.norm(v) + 1e-6)


def largest(w, u):
    for _ in range(POWERS):
        v = normalized(w.T @ u)
        u = normalized(w @ v)
    u, v = jax.lax.stop_gradient((u, v))
    return u @ w @ v, u


def summed(ws, us):
    total, found = 0.0, []
    for w, u in zip(ws, us, strict=True):
        norm, u = largest(w, u)
        total = total + jnp.sum(jnp.sin(w / norm))
        found.append(u)
    return total, found


def test_a_loop_that_is_called_in_another_one_and_what_that_adds_up(tmp_path):
    """Two calls of one function in a turn come from two lines; a sum of no tree stays in the turns."""
    sizes = (3, 4, 2, 5)
    ws = [jnp.ones(shape) + jnp.arange(shape[1]) for shape in itertools.pairwise(sizes)]
    us = [jnp.arange(1.0, 1 + n) for n in sizes[:-1]]
    written, text = saved(untrace.decompile(summed)(ws, us), tmp_path)
    assert "for _ in range(POWERS):\n        v = normalized(w.T @ u)\n        u = normalized(w @ v)\n" in text, text
    assert re.search(r"for w, \w+ in zip\(ws, us\):", text) and text.count("largest(") == 2, text
    assert re.search(r"        total = total \+ jnp\.sin\(w / \w+\)\.sum\(\)\n", text), text
    for a, b in zip(jax.tree.leaves(written(ws, us)), jax.tree.leaves(summed(ws, us)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def cached(layers, x, keys, values):
    for i, layer in enumerate(layers):
        both = jnp.tanh(x @ layer["in"])
        k = jnp.sin((both @ layer["attention"]["projection_of_keys"]).reshape(2, 5, 3, 4))
        v = (both @ layer["attention"]["projection_of_values"]).reshape(2, 5, 3, 4)
        keys = jax.lax.dynamic_update_slice(keys, k[None], (i, 0, 0, 0, 0))
        values = jax.lax.dynamic_update_slice(values, v[None], (i, 0, 0, 0, 0))
        x = x + (keys[i] * values[i]).reshape(2, 5, 12)
    return x, keys, values


def test_the_same_statement_stands_at_the_same_place_in_all_turns():
    """What one turn has inside another expression, and is a statement of its own elsewhere, is put before what reads it in all."""
    projections = {"projection_of_keys": jnp.eye(12), "projection_of_values": jnp.eye(12)}
    layers = [{"in": jnp.eye(12) * (i + 1), "attention": projections} for i in range(2)]
    cache = jnp.zeros((2, 2, 5, 3, 4))
    text = untrace.decompile(cached)(layers, jnp.ones((2, 5, 12)), cache, cache).source
    assert "for i, layer in enumerate(layers):" in text, text
