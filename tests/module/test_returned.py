"""Results of local functions that go together into one tree."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.driver import attempts
from untrace.module.emit import Manner

X = jnp.linspace(-1.0, 1.0, 24).reshape(4, 6)


def dense(params, x):
    return jnp.tanh(x @ params["kernel"] + params["bias"])


def block(params, x):
    return x + dense(params["up"], dense(params["down"], x))


def network(params, x):
    x = block(params["first"], x)
    x = block(params["second"], x)
    return jnp.sum(x**2)


def a_dense(key, fan_in, fan_out):
    return {"kernel": jax.random.normal(jax.random.key(key), (fan_in, fan_out)), "bias": jnp.ones(fan_out)}


def a_block(key):
    return {"down": a_dense(key, 6, 3), "up": a_dense(key + 1, 3, 6)}


PARAMS = {"first": a_block(0), "second": a_block(2)}


def checked(function, *args):
    found = untrace.decompile(function)(*args)
    assert found.proof.at_least("bits")
    names: dict = {}
    exec(compile(found.source, "written.py", "exec"), names)
    ours, theirs = jax.jit(names[found.name])(*args), jax.jit(function)(*args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    return found.source


def test_gradients_of_a_layer_are_one_tree():
    text = checked(jax.grad(network, (0, 1)), PARAMS, X)
    assert '{"first": d_first, "second": d_second}' in text, text
    assert '{"bias": d_total.sum(axis=0), "kernel": x.T @ d_total}' in text, text
    assert 'return {"down": d_down, "up": d_up}, d_x + d_product' in text, text


@pytest.mark.usefixtures("written_out")
def test_what_a_map_takes_is_put_together_of_parts():
    def step(params, x):
        grads, d_x = jax.grad(network, (0, 1))(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), d_x

    text = checked(step, PARAMS, X)
    assert 'grads = {"first": d_first, "second": d_second}' in text, text


def test_part_of_a_dict_goes_into_it():
    def mixed(params, x):
        return jnp.tanh(x @ params["q"]) @ params["proj"]

    def fed(params, x):
        return jnp.sin(x @ params["up"]) @ params["down"]

    def loss(layers, x):
        for layer in layers:
            x = fed(layer, mixed(layer, x))
        return jnp.sum(x**2)

    layers = [{n: X[:3].T @ X[:3] * 0.1 for n in ("q", "proj", "up", "down")} for _ in range(3)]
    text = checked(jax.grad(loss, (0, 1)), layers, X)
    assert "d_layers.append({**d_fed, **d_mixed" in text, text


def test_branches_whose_keys_differ_are_trees_each():
    """Keys that are paths: the parts of one call stand below several keys, which are others at the next call."""

    def gated(params, name, x):
        up, gate = params[f"{name}/up"], params[f"{name}/gate"]
        hidden = jnp.tanh(x @ up["w"] + up["b"])
        return hidden * jnp.sin(x @ gate["w"] + gate["b"])

    def loss(params, x):
        return jnp.sum(gated(params, "second", jnp.cos(gated(params, "first", x))) ** 2)

    keys = [f"{a}/{b}" for a in ("first", "second") for b in ("up", "gate")]
    params = {k: {"w": X[:3].T @ X[:3] * (0.1 + i), "b": X[i % 3]} for i, k in enumerate(keys)}
    text = checked(jax.grad(loss, (0, 1)), params, X)
    assert '"first/gate": d_gate' in text and '"second/up": d_up' in text, text


def test_new_values_of_a_tree():
    def norm(params, stats, x):
        mean = jnp.mean(x, axis=0)
        var = jnp.var(x, axis=0)
        new = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * params, new

    def apply(params, stats, x):
        x, first = norm(params["first"], stats["first"], x)
        x, second = norm(params["second"], stats["second"], jnp.tanh(x))
        return x, {"first": first, "second": second}

    stats = {k: {"mean": jnp.zeros(6), "var": jnp.ones(6)} for k in ("first", "second")}
    text = checked(apply, {"first": jnp.ones(6), "second": jnp.ones(6)}, stats, X)
    assert '"mean": 0.9 * ' in text and '{"first": first, "second": second}' in text, text


def test_results_that_go_to_different_places_stay_apart():
    """The second call's results are no node of the tree."""

    def pair(x, y):
        z = jnp.tanh(x @ y.T)
        return jnp.sin(z) @ y, jnp.cos(z).T @ x

    def apply(x, y):
        a, b = pair(x, y)
        c, d = pair(a, b)
        return {"a": {"x": a, "y": b}, "b": [d, c]}

    text = checked(apply, X, X)
    assert "def pair" in text and '{"x":' in text, text


def test_a_function_that_a_loop_calls_as_well_gives_its_results_one_by_one():
    def both(x):
        y = jnp.tanh(x * 2.0) + jnp.sin(x)
        return y * 3.0 - x, jnp.cos(y) * y

    def apply(x):
        first, second = both(x)

        def turn(carry, _):
            a, b = both(carry)
            return a + b, None

        last, _ = jax.lax.scan(turn, first, length=3)
        return {"pair": {"first": first, "second": second}, "last": last}

    checked(apply, X)


def test_what_took_a_tree_passes_the_tree_on():
    def gated(params, x):
        return jax.nn.sigmoid(dense(params, x)) * x

    def apply(params, x):
        for name in ("first", "second"):
            x = gated(params[name], dense(params["in"], x))
        return x

    params = {k: a_dense(i, 6, 6) for i, k in enumerate(("in", "first", "second"))}
    text = checked(apply, params, X)
    assert "dense(params, x)" in text, text


def cell(params, h, x):
    z = jnp.tanh(x @ params["wx"] + h @ params["wh"] + params["b"])
    return z + 0.5 * h


def recurrent(params, xs):
    def step(h, x):
        h = cell(params["cell"], h, x)
        return h, h

    _, hs = jax.lax.scan(step, jnp.zeros((2, 3)), xs)
    return jnp.sum((hs @ params["out"]) ** 2)


PAIRS = jnp.stack([X[:2], X[2:]])
RECURRENT = {"cell": {"wx": jnp.ones((6, 3)), "wh": 0.1 * jnp.ones((3, 3)), "b": jnp.ones(3)}, "out": jnp.ones((3, 2))}


def test_the_gradients_that_a_loop_adds_up_are_one_tree():
    text = checked(jax.value_and_grad(recurrent), RECURRENT, PAIRS)
    assert "jax.tree.map(jnp.add, d_cell, " in text, text
    assert 'jax.tree.map(jnp.zeros_like, params["cell"])' in text, text
    assert '{"cell": d_cell, "out": ' in text, text


def test_a_loop_that_adds_up_all_parameters_gives_their_gradient():
    text = checked(
        jax.grad(lambda params: recurrent({"cell": params, "out": jnp.ones((3, 2))}, PAIRS)), RECURRENT["cell"]
    )
    assert "return d_params" in text and "(jax.tree.map(jnp.zeros_like, params), " in text, text


def affine(params, x):
    return x @ params["w"] + params["b"]


def lstm(params, state, x):
    h, c = state
    i, g, f, o = jnp.split(affine(params, jnp.concatenate([x, h], axis=-1)), 4, axis=-1)
    c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, (h, c)


def test_the_function_that_gives_what_a_loop_adds_gives_a_tree():
    def loss(params, xs):
        def step(carry, x):
            first, second = carry
            h, first = lstm(params["first"], first, x)
            h, second = lstm(params["second"], second, jax.nn.relu(h))
            return (first, second), h

        zeros = jnp.zeros((2, 3))
        _, hs = jax.lax.scan(step, ((zeros, zeros), (zeros, zeros)), xs)
        return jnp.sum(hs**2)

    params = {
        "first": {"w": jnp.ones((9, 12)), "b": jnp.ones(12)},
        "second": {"w": jnp.ones((6, 12)), "b": jnp.ones(12)},
    }
    text = checked(jax.grad(loss), params, PAIRS)
    assert 'jax.tree.map(jnp.add, d_params, {"first": d_first, "second": d_second})' in text, text


def test_in_the_authors_order_what_a_call_takes_in_its_line_is_not_computed_once_more(monkeypatch):
    monkeypatch.setattr(attempts, "Manner", lambda **known: Manner(**{**known, "in_order": True}))

    def shifted(key, x):
        k_flip, k_noise = jax.random.split(key)
        x = jnp.where(jax.random.bernoulli(k_flip, 0.5, (x.shape[0], 1)), x[:, ::-1], x)
        return x + 0.1 * jax.random.normal(k_noise, x.shape)

    def step(params, x, key):
        value, grads = jax.value_and_grad(lambda p, x: jnp.sum(network(p, x) ** 2))(params, shifted(key, x))
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda p, g: p - g / norm, params, grads), value

    text = checked(step, PARAMS, X, jax.random.PRNGKey(0))
    assert text.count("shifted(") == 2, text  # its definition, and one call

    def scored(params, x):
        def score(row):
            hidden = dense(params["first"]["down"], row)
            return jnp.sum(hidden**2) + jnp.sum(row * jnp.linspace(0.0, 1.0, 6))

        scores = jax.vmap(score)(x)
        return jnp.abs(scores - scores.mean()).max(), scores.sum()

    assert "def score(" in checked(scored, PARAMS, X)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["height", "flow"], meta_fields=[])
@dataclasses.dataclass
class Water:
    height: jax.Array
    flow: jax.Array


def walls(water):
    return dataclasses.replace(water, flow=water.flow.at[0].set(0.0))


def change(water):
    steep = jnp.roll(water.height, -1) - water.height
    return Water(-(water.flow - jnp.roll(water.flow, 1)), -9.81 * steep - 0.1 * water.flow * jnp.abs(water.flow))


def runge_kutta(water, _):
    def blend(old, new, rate):
        return walls(jax.tree.map(lambda a, b, d: a / 3 + 2 * (b + 0.01 * d) / 3, old, new, rate))

    half = blend(water, water, change(water))
    return blend(water, half, change(half)), jnp.mean(half.height)


def test_a_dataclass_is_returned_and_passed_whole():
    def simulate(water):
        return jax.lax.scan(runge_kutta, walls(water), length=3)

    found = checked(simulate, Water(jnp.linspace(1.0, 2.0, 6), jnp.ones(6)))
    assert found.count("def change(water):") == 1 and "def change_2" not in found, found
    assert "half = blend(water, water, change(water))" in found, found
    assert "return blend(water, half, change(half)), jnp.mean(half.height)" in found, found


@functools.partial(jax.tree_util.register_dataclass, data_fields=["height", "east", "north"], meta_fields=[])
@dataclasses.dataclass
class Sea:
    height: jax.Array
    east: jax.Array
    north: jax.Array


def test_what_is_put_together_and_taken_twice_has_a_name():
    def drift(sea):
        steep = jnp.roll(sea.height, -1) - sea.height
        return Sea(-sea.east * steep - sea.north, sea.north - 9.81 * steep, -sea.east - 0.1 * jnp.abs(sea.north) * sea.north)

    def step(sea):
        new = jax.tree.map(lambda a, d: a + 0.01 * d, sea, drift(sea))
        half = dataclasses.replace(new, north=jnp.sin(new.north))
        return jax.tree.map(lambda a, b, d: 0.5 * (a + b) + 0.01 * d, sea, half, drift(half))

    found = checked(step, Sea(jnp.linspace(1.0, 2.0, 6), jnp.ones(6), X[0]))
    assert found.count("def drift(sea):") == 1 and found.count("dataclasses.replace(") == 1, found
    assert "half = dataclasses.replace(" in found or "sea_2 = dataclasses.replace(" in found, found


def test_a_dataclass_that_computes_its_fields_is_given_by_its_parts():
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["low", "high"], meta_fields=[])
    @dataclasses.dataclass
    class Range:
        low: jax.Array
        high: jax.Array

        def __post_init__(self):
            self.high = self.high

    def widened(r):
        return Range(r.low - jnp.abs(jnp.sin(r.low)), r.high + jnp.exp(-jnp.abs(r.high)))

    def twice(r):
        r = widened(widened(r))
        return r.low, r.high

    assert "return Range(" not in checked(twice, Range(X[0], X[1]))
