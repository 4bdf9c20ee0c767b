"""Layers that are mapped inside a mapped model, and functions without a name that are mapped."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_vmaps import X, written

pytestmark = pytest.mark.usefixtures("unguarded")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: jax.Array
    b: jax.Array

    def __call__(self, x):
        return self.w @ x + self.b


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Net:
    first: Layer
    last: Layer

    def __call__(self, x):
        return jax.vmap(self.last)(jnp.tanh(jax.vmap(self.first)(x)))


@pytest.mark.parametrize("derivative", [False, True])
def test_layers_that_are_mapped_inside_a_mapped_model(derivative):
    net = Net(Layer(X, X[:, 0]), Layer(X.T, X[0]))

    def fn(net, xs):
        return jax.vmap(net)(xs).sum()

    def step(net, xs):
        return jax.value_and_grad(fn)(net, xs)

    text = written(step if derivative else fn, net, np.stack([X, X + 1, X * 2, X - 1]), count=3)
    assert "def layer(params, x):" in text and text.count(" @ ") == 1
    assert "jax.vmap(lambda x: layer(net.first, x))(x)" in text and "jax.vmap(lambda x: layer(net.last, x))(" in text


def test_a_function_that_nobody_named_is_a_lambda():
    def fn(w, x):
        return jax.vmap(lambda row: jnp.tanh(w @ row) + 1.0)(x)

    assert "    return jax.vmap(lambda row: jnp.tanh(w @ row) + 1.0)(x)" in written(fn, X[0], X)


def test_a_function_that_nobody_named_and_two_calls_take_has_a_name():
    def fn(w, x):
        doubled = lambda row: jnp.tanh(w @ row) * 2.0  # noqa: E731
        return jax.vmap(doubled)(x) + jax.vmap(doubled)(x + 1.0)

    assert "lambda" not in written(fn, X[0], X, count=2)


def test_a_function_with_the_authors_name_keeps_it():
    def fn(w, x):
        def score(row):
            return jnp.tanh(w @ row)

        return jax.vmap(score)(x)

    assert "def score(row):" in written(fn, X[0], X)
