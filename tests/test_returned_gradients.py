"""Gradients that are returned in a tree like the parameters are called after the parameter at their place."""

from __future__ import annotations

import ast

import jax
import jax.numpy as jnp
import pytest

import untrace

NAMES = ["reset", "update", "candidate", "input", "output", "skip"]
PARAMS = {name: jnp.eye(4) * (i + 1) / 7.0 for i, name in enumerate(NAMES)}


def loss(params, xs):
    def step(h, x):
        r = jax.nn.sigmoid(x @ params["skip"] + h @ params["reset"])
        z = jax.nn.sigmoid(x @ params["output"] + h @ params["update"])
        n = jnp.tanh(x @ params["input"] + r * (h @ params["candidate"]))
        h = (1.0 - z) * n + z * h
        return h, h

    _, hs = jax.lax.scan(step, jnp.zeros((3, 4)), xs)
    return jnp.sum(hs**2)


def named_gradients(source):
    """(key, variable) of the dicts that gradients are returned in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name) and value.id.startswith("d_"):
                    yield key.value, value.id


@pytest.mark.parametrize("function", [jax.grad(loss), jax.value_and_grad(loss)])
def test_gradients_of_one_shape_are_not_mixed_up(function):
    found = untrace.decompile(function)(PARAMS, jnp.ones((5, 3, 4)))
    assert found.proof.at_least("bits"), found.proof
    pairs = list(named_gradients(found.source))
    assert all(f"d_{key}" in name for key, name in pairs), found.source
    for name in NAMES:
        others = [other for other in NAMES if other != name]
        line = [row for row in found.source.split("\n") if row.strip().startswith((f'"{name}":', f"d_{name} + "))]
        assert not any(f"d_{other}" in row for row in line for other in others), found.source


def test_a_result_like_an_argument_that_is_no_gradient_keeps_its_name():
    def step(params, x):
        return {name: w @ x for name, w in params.items()}

    source = untrace.decompile(step)(PARAMS, jnp.eye(4)).source
    assert "d_" not in source.partition('"""')[2].partition('"""')[2], source


def test_an_optimisers_step_knows_the_gradients_of_a_loop_by_where_they_are_computed():
    def step(params, xs):
        grads = jax.grad(loss)(params, xs)
        return jax.tree.map(lambda w, g: w - 0.1 * jnp.tanh(g) * jnp.cos(w), params, grads)

    found = untrace.decompile(step)(PARAMS, jnp.ones((5, 3, 4)))
    pairs = list(named_gradients(found.source))
    assert len(pairs) == len(NAMES), found.source
    assert all(f"d_{key}" in name for key, name in pairs), found.source
