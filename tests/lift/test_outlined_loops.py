"""Functions that hold a loop, in gradients: one forward part and one backward part for all calls."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

pytestmark = pytest.mark.usefixtures("unguarded", "written_out")


def array(number, *shape):
    return 0.3 * jax.random.normal(jax.random.key(number), shape)


def lstm(layer, xs):
    def step(carry, x):
        h, c = carry
        i, f, g = jnp.split(x @ layer["wx"] + h @ layer["wh"] + layer["b"], 3, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((xs.shape[1], layer["wh"].shape[0]))
    return jax.lax.scan(step, (zeros, zeros), xs)[1]


def stacked(params, xs):
    for layer in params["layers"]:
        xs = lstm(layer, xs)
    return jnp.mean((xs @ params["head"]) ** 2)


def attention(layer, x):
    def head(weights):
        q, k = x @ weights["q"], x @ weights["k"]
        return jnp.tanh(q @ k.T) @ x

    return jnp.sum(jax.lax.map(head, {"q": layer["q"], "k": layer["k"]}), axis=0) @ layer["out"]


def mapped(params, x):
    for layer in params["layers"]:
        x = x + attention(layer, jnp.sin(x))
    return jnp.mean((x @ params["head"]) ** 2)


def encode(layer, xs):
    def step(h, x):
        return jnp.tanh(x @ layer["w"] + h @ layer["u"]), None

    return jax.lax.scan(step, jnp.zeros(4), xs)[0]


def two_encoders(params, left, right):
    inputs = left @ params["in"], right @ params["in"]
    return jnp.sum(encode(params["left"], inputs[0]) * encode(params["right"], inputs[1]))


def layers(**shapes):
    return [{n: array(10 * i + j, *s) for j, (n, s) in enumerate(shapes.items())} for i in range(3)]


PROGRAMS = {
    "stacked": (
        stacked,
        ({"layers": layers(wx=(4, 12), wh=(4, 12), b=(12,)), "head": array(1, 4, 2)}, array(2, 6, 3, 4)),
    ),
    "mapped": (
        mapped,
        ({"layers": layers(q=(2, 4, 3), k=(2, 4, 3), out=(4, 4)), "head": array(1, 4, 2)}, array(2, 5, 4)),
    ),
    "two_encoders": (
        two_encoders,
        (
            {"in": array(3, 4, 4), **dict(zip(("left", "right"), layers(w=(4, 4), u=(4, 4)), strict=False))},
            array(1, 6, 4),
            array(2, 6, 4),
        ),
    ),
}


def written(name):
    function, args = PROGRAMS[name]
    original = jax.value_and_grad(function)

    def gradient(*args):
        return original(*args)

    found = untrace.decompile(gradient)(*args)
    assert found.proof.level in ("jaxpr", "hlo", "bits"), found.proof
    for ours, theirs in zip(jax.tree.leaves(found(*args)), jax.tree.leaves(gradient(*args)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    text = found.source
    return text, {part.partition("(")[0]: part for part in text.split("\ndef ")[1:]}


@pytest.mark.parametrize(("name", "function", "calls"), [("stacked", "lstm", 3), ("two_encoders", "encode", 2)])
def test_forward_parts_are_one_function(name, function, calls):
    text, found = written(name)
    main = found["gradient"].partition("# backward")[0]
    assert main.count(f" {function}(") == calls and text.count(f"def {function}(") == 1, text
    assert "scan(" not in main and "map(" not in main, text


@pytest.mark.parametrize(("name", "function"), [("stacked", "lstm"), ("two_encoders", "encode")])
def test_backward_parts_with_equal_loops_are_one_function(name, function):
    """The first layer needs no gradient of its inputs: its backward loop is another one."""
    text, found = written(name)
    backward = found["gradient"].partition("# backward")[2]
    assert len(re.findall(rf" {function}_bwd(_2)?\(", backward)) == 2 and text.count(f"def {function}_bwd(") == 1, text
    assert backward.count("scan(") == (name == "stacked"), text


def test_mapped_loops_are_shared():
    """Whether the first layer is among them is up to the release of JAX: its inputs need no gradient."""
    text, _ = written("mapped")
    assert text.count("def attention(") == text.count("def attention_bwd(") == 1, text
    assert text.count("lax.map(one, ") + text.count("lax.map(\n") <= 2, text


def test_what_a_loop_stacks_goes_through_the_functions_as_one_tuple():
    _, found = written("stacked")
    assert "_, (hs, residuals) = lax.scan(" in found["lstm"] and "return hs, residuals" in found["lstm"]
    assert "(d_hs, xs, saved)" in found["lstm_bwd"] or "(d_hs, hs, saved)" in found["lstm_bwd"], found["lstm_bwd"]
    assert "lstm_saved)" in found["gradient"].partition("def step_bwd")[2], found["gradient"]


@pytest.mark.usefixtures("as_given")
def test_what_a_loop_adds_up_in_a_shared_function_is_not_called_after_one_call():
    _, found = written("two_encoders")
    assert "d_right" not in found["encode"] and "d_w, d_u" in found["encode"], found["encode"]


def test_the_gradient_of_a_loop_in_a_loop():
    """The body of the backward loop is put into another order before its own loop is looked at."""
    params = {name: jnp.eye(4) * (i + 1) / 5.0 for i, name in enumerate(["mix", "gate", "read", "write"])}

    def loss(params, x):
        def outer(c, _):
            def turn(c, _):
                return jnp.tanh(c @ params["mix"] + jnp.sin(c @ params["gate"]) @ params["read"]), None

            c, _ = jax.lax.scan(turn, c, None, length=3)
            return jnp.sin(c @ params["write"]) @ params["read"], None

        c, _ = jax.lax.scan(outer, x, None, length=2)
        return jnp.sum(c**2)

    found = untrace.decompile(jax.grad(loss))(params, jnp.ones((3, 4)))
    assert found.proof.at_least("bits"), found.proof
    assert "scan_p.bind" not in found.source and "def turn_bwd(" in found.source, found.source


def decayed(layer, xs):
    """Its loop computes much from what it closes over: JAX takes that out where it differentiates the loop."""

    def step(state, x):
        total, largest = state
        new = jnp.maximum(largest - jnp.exp(layer["decay"]), x + layer["bonus"])
        old = jnp.exp(largest - jnp.exp(layer["decay"]) - new) * total
        total = old + jnp.exp(x - new)
        return (total, new), total

    zeros = jnp.zeros(xs.shape[1])
    return jnp.tanh(jax.lax.scan(step, (zeros, zeros), xs @ layer["w"])[1] @ layer["out"])


def test_what_is_taken_out_of_a_loop_is_no_call_between_two_halves_of_its_function():
    def loss(layers, xs):
        for layer in layers:
            xs = xs + decayed(layer, xs)
        return jnp.mean(xs**2)

    def layer(seed):
        return {
            "w": array(seed, 4, 4),
            "out": array(seed + 1, 4, 4),
            "decay": array(seed + 2, 4),
            "bonus": jnp.full(4, 0.3),
        }

    source = untrace.decompile(jax.grad(loss, (0, 1)))([layer(0), layer(10)], array(5, 6, 4)).source
    assert source.count("lax.scan(") == 2
    assert "decayed_bwd" in source, source
