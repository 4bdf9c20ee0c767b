"""Texts of derivatives: what their tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import roundtrip

import untrace

W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(4, 3)
Y = np.ones((4, 2), np.float32)
PARAMS = {"b": np.zeros(2, np.float32), "w": W}


def written(fn, *args, level: str = "hlo", **options: Any) -> str:
    """The text, after a run of the saved module beside the original."""
    d = untrace.decompile(fn, **options)(*args)
    assert d.proof.at_least(level), (d.proof, d.source)
    again, _ = roundtrip.saved(d, Path.cwd())
    want, got = jax.jit(fn)(*args), jax.jit(again)(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)
    return d.source


def layer(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def loss(params, x, y):
    error = layer(params, x) - y
    return jnp.mean(error**2)


def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
