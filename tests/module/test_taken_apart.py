"""Loops of the author's over what JAX takes apart: keys of a split, rows of an array, results of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

X = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)
W = np.cos(np.arange(16, dtype=np.float32)).reshape(4, 4)
LAYERS = [{"w": W * scale, "b": W[0]} for scale in (1.0, 0.5, 0.25)]
KEY = jax.random.key(3)
CONV_WIDTH = 3


def keys_of_a_split(w: Any, x: Any, key: Any) -> Any:
    for k in jax.random.split(key, 3):
        x = jnp.tanh(x @ w) + 0.1 * jax.random.normal(k, x.shape)
    return x


def layers_and_keys(layers: Any, x: Any, key: Any) -> Any:
    for p, k in zip(layers, jax.random.split(key, len(layers)), strict=True):
        x = x + jnp.tanh(x @ p["w"] + p["b"]) * jax.random.bernoulli(k, 0.5, x.shape)
    return x @ layers[0]["w"]


def rows(w: Any, x: Any, b: Any) -> Any:
    for row in b:
        x = jnp.tanh(x @ w + row)
    return x


def split_in_each_turn(w: Any, x: Any, key: Any) -> Any:
    for _ in range(3):
        key, k = jax.random.split(key)
        x = jnp.tanh(x @ w) + 0.1 * jax.random.normal(k, x.shape)
    return x


def windows(x: Any, kernel: Any, bias: Any) -> Any:
    padded = jnp.pad(x, ((CONV_WIDTH - 1, 0), (0, 0)))
    out = bias
    for i in range(CONV_WIDTH):
        out = out + kernel[i] * padded[i : i + x.shape[0]]
    return jnp.tanh(out)


@pytest.mark.parametrize(
    ("fn", "args", "loop"),
    [
        (keys_of_a_split, (W, X, KEY), "    for k in keys:\n        x = jnp.tanh(x @ w) + 0.1 * jax.random.normal(k, x.shape)\n"),
        (layers_and_keys, (LAYERS, X, KEY), "    for p, k in zip(layers, keys):\n"),
        (rows, (W, X, W[:3]), "    for row in b:\n        x = jnp.tanh(x @ w + row)\n"),
        (
            split_in_each_turn,
            (W, X, KEY),
            "    for _ in range(3):\n        key, k = jax.random.split(key)\n        x = jnp.tanh(x @ w) + 0.1 * jax.random.normal(k, x.shape)\n",
        ),
        (windows, (X, W[:3], W[0]), "    for i in range(CONV_WIDTH):\n        out = out + kernel[i] * padded[i : x.shape[0] + i]\n"),
        (windows, (X, W[:3], X), "    for i in range(CONV_WIDTH):\n"),
    ],
)  # fmt: skip
def test_is_a_loop_again(fn: Any, args: Any, loop: str, tmp_path: Path) -> None:
    d = untrace.decompile(fn)(*args)
    assert loop in d.source, d.source
    assert d.proof.level == "jaxpr"
    again, _ = saved(d, tmp_path)
    np.testing.assert_array_equal(jax.jit(again)(*args), jax.jit(fn)(*args))


def one_part_is_read_elsewhere(w: Any, x: Any, key: Any) -> Any:
    first, second, third = jax.random.split(key, 3)
    for k in (first, second, third):
        x = jnp.tanh(x @ w) + 0.1 * jax.random.normal(k, x.shape)
    return x + jax.random.normal(second, x.shape)


def not_all_parts(w: Any, x: Any, key: Any) -> Any:
    first, second, third = jax.random.split(key, 3)
    for k in (second, third):
        x = jnp.tanh(x @ w) + 0.1 * jax.random.normal(k, x.shape)
    return x + jax.random.uniform(first, x.shape)


@pytest.mark.parametrize("fn", [one_part_is_read_elsewhere, not_all_parts])
def test_what_is_taken_apart_for_something_else_as_well_stays(fn: Any, tmp_path: Path) -> None:
    d = untrace.decompile(fn)(W, X, KEY)
    assert " in keys" not in d.source, d.source
    again, _ = saved(d, tmp_path)
    np.testing.assert_array_equal(jax.jit(again)(W, X, KEY), jax.jit(fn)(W, X, KEY))


def other_shapes(w: Any, x: Any, b: Any) -> Any:
    out = b
    for row in w[:3]:
        out = out + row * x + jnp.ones(out.shape).sum()
    return out


def test_a_shape_that_is_another_one_in_the_first_turn(tmp_path: Path) -> None:
    d = untrace.decompile(other_shapes)(W, X, W[0])
    again, _ = saved(d, tmp_path)
    np.testing.assert_array_equal(jax.jit(again)(W, X, W[0]), jax.jit(other_shapes)(W, X, W[0]))
