"""`reroll="scan"`: unrolled layers as a `lax.scan` over their stacked parameters, and why some stay as they are."""

from __future__ import annotations

import ast
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

WIDTH = 8


def block(params: Any, x: Any) -> Any:
    hidden = jax.nn.gelu(x @ params["up"])
    total = x + hidden @ params["down"]
    centered = total - total.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * params["scale"]


def gpt(params: Any, x: Any) -> Any:
    for layer in params["layers"]:
        x = block(layer, x)
    return x @ params["out"]


def layer(number: int, hidden: int = 16) -> dict[str, Any]:
    up, down = jax.random.split(jax.random.key(number))
    return {
        "up": jax.random.normal(up, (WIDTH, hidden)),
        "down": jax.random.normal(down, (hidden, WIDTH)),
        "scale": jnp.ones(WIDTH),
    }


X = jnp.linspace(-1.0, 1.0, 4 * WIDTH).reshape(4, WIDTH)


def params(*layers: Any) -> dict[str, Any]:
    return {"layers": list(layers), "out": jnp.ones((WIDTH, 3))}


def scanned(function: Any, *args: Any) -> Any:
    """The Decompiled of `function`, whose loop is a scan that computes the same as `function`."""
    d = untrace.decompile(function, reroll="scan")(*args)
    assert d.source.count("lax.scan(") == 1 and "for " not in d.source, d.source
    assert d.proof.level in ("bits", "close") and "1 loop became a scan" in d.proof.detail, d.proof
    loops = [e for e in jax.make_jaxpr(d)(*args).eqns if e.primitive.name == "scan"]
    assert len(loops) == 1
    close(d(*args), function(*args))
    return d


def close(left: Any, right: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), left, right)


def test_layers_become_a_scan() -> None:
    args = params(*map(layer, range(6))), X
    d = scanned(gpt, *args)
    assert 'layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])' in d.source
    assert "        return block(layer, x), None\n" in d.source

    def total(function: Any) -> Any:
        return jax.grad(lambda *args: jnp.sum(function(*args) ** 2))(*args)

    close(total(d), total(gpt))


def test_it_is_off_by_default_and_the_loop_is_the_same_program() -> None:
    d = untrace.decompile(gpt)(params(layer(0), layer(1)), X)
    assert d.proof.at_least("hlo") and "for layer in" in d.source and "lax.scan" not in d.source


def test_exact_arithmetic_gives_the_same_bits() -> None:
    def step(p: Any, x: Any) -> Any:
        doubled = x * p["scale"]
        return jnp.maximum(doubled, p["floor"]) + x

    def model(parts: Any, x: Any) -> Any:
        for p in parts:
            x = step(p, x)
        return x

    parts = [{"scale": jnp.full(3, i), "floor": jnp.full(3, -i)} for i in range(4)]
    d = scanned(model, parts, jnp.arange(3))
    assert d.proof.level == "bits"


def test_several_carries_keys_and_what_stays_the_same() -> None:
    def step(p: Any, x: Any, memory: Any, shift: Any) -> Any:
        y = jnp.tanh(x @ p["w"] + shift)
        return y + memory, memory * 0.5 + y

    def model(parts: Any, x: Any, shift: Any) -> Any:
        memory = jnp.zeros_like(x)
        for name in ("first", "second", "third"):
            x, memory = step(parts[name], x, memory, shift)
        return x, memory

    parts = {name: {"w": layer(i)["up"][:, :WIDTH]} for i, name in enumerate(["first", "second", "third"])}
    d = scanned(model, parts, X, jnp.ones(WIDTH))
    assert "def step_2(carry, " in d.source and '["second"]' in d.source


def test_arrays_in_a_list_are_stacked_and_no_parameters_make_a_counted_scan() -> None:
    def turn(w: Any, x: Any) -> Any:
        y = jnp.sin(x @ w)
        return y * x

    def over_arrays(ws: Any, x: Any) -> Any:
        for w in ws:
            x = turn(w, x)
        return x

    d = scanned(over_arrays, [layer(i)["up"][:, :WIDTH] for i in range(3)], X)
    assert "= jnp.stack(ws)" in d.source

    def counted(w: Any, x: Any) -> Any:
        for _ in range(5):
            x = turn(w, x)
        return x

    d = scanned(counted, layer(0)["up"][:, :WIDTH], X)
    assert "length=5" in d.source


def test_a_list_in_reverse() -> None:
    def model(params: Any, x: Any) -> Any:
        for part in reversed(params["layers"]):
            x = block(part, x)
        return x

    d = scanned(model, params(layer(0), layer(1), layer(2)), X)
    assert '*reversed(params["layers"])' in d.source


@pytest.mark.usefixtures("as_given")
def test_layers_of_other_shapes_stay_and_a_note_says_why() -> None:
    d = untrace.decompile(gpt, reroll="scan")(params(layer(0, 16), layer(1, 20), layer(2, 24)), X)
    assert "scan(" not in d.source and d.proof.at_least("hlo")
    assert d.notes == (
        'reroll="scan" leaves calls of `block` as they are: '
        "a parameter is float32[8,16] in one of them and float32[8,20] in the next",
        'reroll="scan" leaves calls of `block` as they are: '
        "a parameter is float32[8,20] in one of them and float32[8,24] in the next",
    )


def test_layers_that_cannot_be_stacked_stay_and_a_note_says_why() -> None:
    args = params(layer(0), {**layer(1), "unused": jnp.ones(3)}, layer(2)), X
    d = untrace.decompile(gpt, reroll="scan")(*args)
    assert "for layer in" in d.source and d.proof.at_least("hlo")
    (note,) = d.notes
    assert note.startswith('reroll="scan" was taken back') and "number" in note and "\n" not in note


def test_a_program_that_calls_the_host_is_not_run_for_the_proof() -> None:
    calls = []

    def model(params: Any, x: Any) -> Any:
        jax.debug.callback(lambda value: calls.append(value), x.sum())
        return gpt(params, x)

    d = untrace.decompile(model, reroll="scan")(params(layer(0), layer(1)), X)
    assert not calls and "for layer in" in d.source
    assert any("calls the host" in note for note in d.notes)


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(untrace.OptionError, match="reroll='vmap' is not known; this version has 'loop', 'scan'"):
        untrace.decompile(gpt, reroll="vmap")


def test_names_stay_apart() -> None:
    def step(layer: Any, layers: Any) -> Any:
        return jnp.tanh(layers @ layer["up"]) @ layer["down"] + layers

    def model(layers: Any, x: Any) -> Any:
        inputs = x
        for part in layers:
            inputs = step(part, inputs)
        return inputs + x

    d = scanned(model, [layer(i) for i in range(3)], X)
    ast.parse(d.source)
