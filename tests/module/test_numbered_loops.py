"""Python loops of the author's that number what they go through, `enumerate`, or count backwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

TURNS = 4
DECAY, STEP = 0.9, 0.25


def block(p, x, c):
    hidden = jnp.tanh(x @ p["w"] + c)
    return x + hidden, hidden.sum()


def collected(params, x, cs):
    sums = []
    for i, p in enumerate(params):
        x, total = block(p, x, cs[i])
        sums.append(total)
    return x, jnp.stack(sums)


def by_number(params, x, cs):
    for i in range(len(params)):
        p = params[i]
        x = x * 0.5 + jnp.tanh(x @ p["w"] + p["v"] * cs[i] + cs[i + 1])
    return x


def differentiated(params, x, cs):
    return jax.grad(lambda p: collected(p, x, cs)[0].sum())(params)


def keys_folded(params, x, cs):
    key = jax.random.key(3)
    for i, p in enumerate(params):
        noise = jax.random.normal(jax.random.fold_in(key, i), x.shape)
        x = x * 0.5 + jnp.tanh(x @ p["w"] + noise) * cs[0]
    return x


def weighted(params, x, cs):
    total = jnp.zeros_like(x)
    for i in range(TURNS):
        total = total + jnp.sin(x) * (i + 1) + cs[i]
    return total * params[0]["v"]


def powers(params, x, cs):
    out = 0.0
    for i in range(1, TURNS + 1):
        out = out + x**i / (i + 1)
    return out


def advantages(params, x, cs):
    rewards, values = jnp.outer(cs, x)[:TURNS], jnp.outer(cs, x + 1.0)
    last = jnp.zeros(x.shape)
    found = []
    for t in reversed(range(TURNS)):
        delta = rewards[t] + 0.99 * values[t + 1] - values[t]
        last = delta + 0.9 * last
        found.append(last)
    return jnp.stack(found[::-1])


def returns(params, x, cs):
    rewards = jnp.outer(cs, x)
    g = x
    found = []
    for t in range(TURNS - 1, -1, -1):
        g = rewards[t] + 0.9 * g
        found.insert(0, g)
    return jnp.stack(found)


def averaged(params, x, cs):
    m, v = 0.0, 0.0
    for t in range(TURNS):
        m = 0.9 * m + 0.1 * cs[t]
        v = 0.99 * v + 0.01 * cs[t] ** 2
        x = x - m / jnp.sqrt(v + 1e-8)
    return x


def faded(params, x, cs):
    total = jnp.zeros(x.shape)
    for i in range(TURNS):
        total = total + jnp.sin(x + cs[i]) * DECAY**i * (1.0 - STEP * (i + 1))
    return total


PARAMS = [
    {"w": np.random.default_rng(i).random((5, 5)).astype(np.float32), "v": np.full(5, i, np.float32)} for i in range(3)
]
X, CS = np.linspace(0.1, 1.0, 5, dtype=np.float32), np.arange(5, dtype=np.float32)


@pytest.mark.parametrize(
    ("fn", "loop", "inside"),
    [
        (collected, "for i, p in enumerate(params):", "block(p, x, cs[i])"),
        (by_number, "for i, param in enumerate(params):", "cs[i + 1]"),
        (differentiated, "for i, layer in enumerate(p):", "block(layer, x_2, cs[i])"),
        (keys_folded, "for i, p in enumerate(params):", "jax.random.fold_in(key, i)"),
        (weighted, "for i in range(TURNS):", "jnp.sin(x) * (i + 1) + cs[i]"),
        (powers, "for i in range(1, TURNS + 1):", "x**i / (i + 1)"),
        (advantages, "for t in reversed(range(TURNS)):", "rewards[t] + 0.99 * values[t + 1] - values[t]"),
        (averaged, "for t in range(TURNS):", "0.99 * v + 0.01 * cs[t] ** 2"),
        (faded, "for i in range(TURNS):", "* DECAY**i * (1.0 - STEP * (i + 1))"),
        (returns, "for t in range(TURNS - 1, -1, -1):", "rewards[t] + 0.9 * g"),
    ],
)
def test_is_a_loop_again(fn: Any, loop: str, inside: str, tmp_path: Path) -> None:
    """With the number of the turn where the author has it; the program is the same."""
    written = untrace.decompile(fn)(PARAMS, X, CS)
    assert written.proof.level == "jaxpr"
    function, source = saved(written, tmp_path)
    assert source.count(loop) == 1 and inside in source, source
    for one, other in zip(
        jax.tree.leaves(jax.jit(function)(PARAMS, X, CS)), jax.tree.leaves(jax.jit(fn)(PARAMS, X, CS)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_as_often_as_its_name_says(tmp_path: Path) -> None:
    """An edit of what the loop counts to is that of the author's source."""
    written = untrace.decompile(powers)(PARAMS, X, CS)
    source = written.source.replace("TURNS = 4", "TURNS = 2")
    assert source != written.source
    module: dict[str, Any] = {"__name__": "edited"}
    exec(compile(source, "edited.py", "exec"), module)
    np.testing.assert_allclose(module["powers"](PARAMS, X, CS), X / 2 + X**2 / 3, rtol=1e-6)
