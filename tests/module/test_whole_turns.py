"""The turns of a loop are the author's: none is shifted, and the last one does nothing that he does not."""

import re

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
