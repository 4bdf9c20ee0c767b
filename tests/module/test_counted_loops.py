"""Python loops of the author's over a range of numbers, which tracing unrolls, are loops again, and run as often as he says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

TURNS, FIRST, STEP, INNER = 4, 1, 0.01, 2
A = np.random.default_rng(0).random((5, 5)).astype(np.float32)
X = A[0]


class State(NamedTuple):
    x: jax.Array
    v: jax.Array


def two_carries(cost, a, b):
    u, v = jnp.ones_like(a), jnp.ones_like(b)
    kernel = jnp.exp(-cost)
    for _ in range(TURNS):
        u = a / (kernel @ v)
        v = b / (kernel.T @ u)
    return u[:, None] * kernel * v


def handed_on_without_a_name(s, k):
    for _ in range(TURNS):
        v = s.v - 0.5 * STEP * k * s.x
        x = s.x + STEP * v
        s = State(x, v - 0.5 * STEP * k * x)
    return s


def summed(x):
    total = 0.0
    for _ in range(TURNS):
        x = x + STEP * jnp.sin(x) * jnp.cos(x) - 0.5 * x**3
        total = total + (x**2).sum()
    return total / TURNS


def collected(x):
    found = []
    for _ in range(TURNS):
        x = x + STEP * jnp.sin(x) * jnp.cos(x) - 0.5 * x**3
        found.append(x)
    return jnp.stack(found)


def cell(h, x, w):
    return jnp.tanh(h @ w + x)


def called(w, xs):
    h = jnp.zeros(w.shape[0])
    for t in range(TURNS):
        h = cell(h, xs[t], w)
    return h


def before_and_now(c, x):
    y = jnp.zeros_like(x)
    for i in range(FIRST, TURNS):
        y = y * x + c[i] - c[i - 1]
    return y


def columns(w, xs):
    h = jnp.zeros((xs.shape[0], w.shape[0]))
    for t in range(xs.shape[1]):
        z = jax.nn.sigmoid(xs[:, t] @ w)
        h = (1 - z) * h + z * jnp.tanh(h @ w)
    return h


def picked(w, xs):
    h = jnp.zeros((xs.shape[0], w.shape[0]))
    for t in range(xs.shape[1]):
        h = jnp.tanh(h @ w + jax.lax.index_in_dim(xs, t, axis=1, keepdims=False)) * 0.5 + h
    return h


def inner(x):
    for _ in range(INNER):
        x = cell(x, 0.5, A)
    return x


def calls_alone(x):
    for _ in range(TURNS):
        x = inner(x)
    return x


def kept_by_name(x, w):
    found = {}
    for i in range(FIRST, TURNS):
        x = jnp.tanh(x * w[i]) + 0.5 * jnp.sin(x * w[i]) * jnp.cos(x) + w[i - 1]
        found[f"l{i}"] = x
    return x, found


def trained(p, x, y):
    for _ in range(TURNS):
        p = p - STEP * jax.grad(lambda p: jnp.mean((x @ p - y) ** 2))(p)
    return p


CASES: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "two carries": (two_carries, (A, X, X), "for _ in range(TURNS):"),
    "handed on": (handed_on_without_a_name, (State(X, X), 2.0), "for _ in range(TURNS):"),
    "summed": (summed, (X,), "for _ in range(TURNS):"),
    "collected": (collected, (X,), "for _ in range(TURNS):"),
    "called": (called, (A, A), "for t in range(TURNS):"),
    "before and now": (before_and_now, (X, A[1]), "for i in range(FIRST, TURNS):"),
    "columns": (columns, (A, np.stack([A, A + 1, A * 2])), "for t in range(5):"),
    "picked": (picked, (A, np.stack([A, A + 1, A * 2])), "for t in range(5):"),
    "calls alone": (calls_alone, (X,), "for _ in range(TURNS):"),
    "kept by name": (kept_by_name, (X, A), "for i in range(FIRST, TURNS):"),
    "trained": (trained, (X, A, X), "for _ in range(TURNS):"),
}


@pytest.mark.parametrize(("fn", "args", "head"), CASES.values(), ids=list(CASES))
def test_one_loop_stands_for_its_turns(fn: Any, args: tuple[Any, ...], head: str, tmp_path: Path) -> None:
    written = untrace.decompile(fn)(*args)
    function, source = saved(written, tmp_path)
    assert source.count(head) == 1 and written.proof.at_least("hlo"), source
    for one, other in zip(jax.tree.leaves(jax.jit(fn)(*args)), jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "name", ["two carries", "handed on", "summed", "collected", "called", "before and now", "trained"]
)
def test_another_number_of_turns_is_one_edit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args, _ = CASES[name]
    source = untrace.decompile(fn, guard=False)(*args).source
    edited, count = re.subn(r"^TURNS = 4$", "TURNS = 3", source, flags=re.MULTILINE)
    assert count == 1, source
    module: dict[str, Any] = {}
    exec(edited, module)
    monkeypatch.setitem(fn.__globals__, "TURNS", 3)
    for one, other in zip(jax.tree.leaves(fn(*args)), jax.tree.leaves(module[fn.__name__](*args)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_what_only_looks_like_a_loop_stays_as_it_is() -> None:
    def repeated(x):
        x = x + STEP * jnp.sin(x) * jnp.cos(x) - 0.5 * x**3
        x = x + STEP * jnp.sin(x) * jnp.cos(x) - 0.5 * x**3
        return x + STEP * jnp.sin(x) * jnp.cos(x) - 0.5 * x**3

    def of_other_things(x):
        for flag in (False, True, False, False, False):
            x = (-x if flag else x) + STEP * jnp.sin(x) * jnp.cos(x)
        return x

    for fn in (repeated, of_other_things):
        assert "range(" not in untrace.decompile(fn)(X).source


def test_the_squares_of_a_trees_leaves_are_no_loop() -> None:
    def norm(tree):
        return jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))

    source = untrace.decompile(norm)({"a": X, "b": A, "c": X}).source
    assert "sum(" in source and "leaf" in source and source.count("**2") == 1, source
