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


def cell(params, x):
    r = jax.nn.sigmoid(x @ params["skip"] + x @ params["reset"])
    z = jax.nn.sigmoid(x @ params["output"] + r @ params["update"])
    return jnp.tanh(z @ params["input"] + r * (z @ params["candidate"]))


def in_a_jitted_function(params, xs):
    return jnp.sum(jax.jit(cell)(params, xs[0]) ** 2)


def in_branches(params, xs):
    def one(x):
        return jnp.tanh(x @ params["skip"] + x @ params["reset"]) @ params["output"]

    def other(x):
        return jnp.sin(x @ params["update"]) @ params["input"] + x @ params["candidate"]

    return jnp.sum(jax.lax.cond(xs[0, 0, 0] > 0.0, one, other, xs[0]) ** 2)


def in_branches_of_one_code(params, xs):
    branches = [lambda x, name=name: jnp.tanh(x @ params[name]) for name in NAMES]
    return jnp.sum(jax.lax.switch(jnp.int32(xs[0, 0, 0]), branches, xs[0]) ** 2)


def in_a_mapped_function(params, xs):
    return jnp.sum(jax.lax.map(lambda x: cell(params, x), xs) ** 2)


def in_turns(params, xs):
    return jnp.sum(jax.lax.fori_loop(0, 4, lambda i, x: cell(params, x), xs[0]) ** 2)


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


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize(
    "function",
    [loss, in_a_jitted_function, in_branches, in_branches_of_one_code, in_a_mapped_function, in_turns],
)
def test_an_optimisers_step_knows_gradients_of_one_shape_by_where_they_are_computed(function):
    def step(params, xs):
        grads = jax.grad(function)(params, xs)
        return jax.tree.map(lambda w, g: w - 0.1 * jnp.tanh(g) * jnp.cos(w), params, grads)

    found = untrace.decompile(step)(PARAMS, jnp.ones((5, 3, 4)))
    pairs = list(named_gradients(found.source))
    assert len(pairs) > 2, found.source
    for key, name in pairs:
        others = [other for other in NAMES if other != key]
        assert not any(name == f"d_{other}" or name.startswith(f"d_{other}_") for other in others), found.source
