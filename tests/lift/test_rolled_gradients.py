"""Statements that repeat are loops again: layers of a gradient, forward and backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.module.loops import of_statements
from untrace.module.loops.align_turns import Turns
from untrace.python.statements import Assign
from untrace.python.tree import Binary, Call, Leaf, Name

pytestmark = pytest.mark.usefixtures("unguarded", "written_out")

X = jnp.linspace(-1.0, 1.0, 20).reshape(5, 4)


def array(number, *shape):
    return jax.random.normal(jax.random.key(number), shape)


def layers(count, **shapes):
    return [{name: array(100 * i + j, *shape) for j, (name, shape) in enumerate(shapes.items())} for i in range(count)]


def checked(function, *args, proofs=("jaxpr", "hlo")):
    found = untrace.decompile(function)(*args)
    assert found.proof.level in proofs, found.proof
    for ours, theirs in zip(jax.tree.leaves(found(*args)), jax.tree.leaves(function(*args)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return found.source


def body(text):
    """The statements of the last function, without its docstring and comments."""
    lines = text[text.rindex("\ndef ") :].split("\n")
    start = next(i for i, line in enumerate(lines) if line.rstrip().endswith('"""') and i > 1)
    kept = [line.partition("  #")[0] for line in lines[start + 1 :]]
    return "\n".join(line[4:] for line in kept if line.strip() and not line.strip().startswith("#"))


def residual_loss(params, x):
    h = x @ params["embed"]
    for layer in params["layers"]:
        z = jnp.sin(h @ layer["w"] + layer["b"])
        h = h + z @ layer["v"]
    return jnp.mean((h @ params["head"]) ** 2)


def residual_params(count):
    return {"embed": array(1, 4, 3), "layers": layers(count, w=(3, 6), b=(6,), v=(6, 3)), "head": array(2, 3, 2)}


@pytest.mark.usefixtures("as_given")
def test_train_step_of_six_layers():
    def train_step(params, x):
        loss, grads = jax.value_and_grad(residual_loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    text = checked(train_step, residual_params(6), X)
    assert (
        body(text)
        == """head = params["head"]
h = x @ params["embed"]
saved = []
for layer in params["layers"]:
    total = h @ layer["w"] + layer["b"]
    z = jnp.sin(total)
    saved.append((h, total, z))
    h = h + z @ layer["v"]
product = h @ head
loss = jnp.mean(product**2)
d_product = 0.1 * (2.0 * product)
d_h = d_product @ head.T
d_layers = []
for layer, (h_in, total, z) in zip(reversed(params["layers"]), reversed(saved)):
    d_total = d_h @ layer["v"].T * jnp.cos(total)
    d_layers.append(
        {"w": h_in.T @ d_total, "b": d_total.sum(axis=0), "v": z.T @ d_h}
    )
    d_h = d_h + d_total @ layer["w"].T
grads = {"embed": x.T @ d_h, "layers": d_layers[::-1], "head": h.T @ d_product}
return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss"""
    ), text


def test_sections_stand_around_loops():
    text = checked(jax.value_and_grad(residual_loss), residual_params(3), X)
    assert text.index("# forward") < text.index("saved = []") < text.index("# backward") < text.index("d_layers = []")


@pytest.mark.parametrize("count", [2, 3, 12])
def test_text_does_not_grow_with_depth(count):
    text = checked(jax.value_and_grad(residual_loss), residual_params(count), X)
    assert text.count("for layer") == 2, text
    assert len(text.split("\n")) < 45, text


def test_body_of_a_forward_loop():
    def forward(params, x):
        for block in params:
            h = x @ block["w"]
            x = x + jnp.sin(h)
        return x

    text = checked(forward, layers(5, w=(4, 4)), X, proofs=("jaxpr",))
    assert (
        body(text)
        == """for block in params:
    h = x @ block["w"]
    x = x + jnp.sin(h)
return x"""
    ), text


def test_layers_of_functions():
    def norm(x, scale):
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        return centered / jnp.sqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5) * scale

    def mixer(x, block):
        gate = jax.nn.softmax(x @ block["gate"], axis=-1)
        return (x * gate) @ block["out"]

    def loss(params, x):
        x = x @ params["embed"]
        for block in params["blocks"]:
            x = x + mixer(norm(x, block["norm"]), block)
        return jnp.mean(norm(x, params["norm"]) ** 2)

    params = {"blocks": layers(2, norm=(4,), gate=(4, 4), out=(4, 4)), "norm": jnp.ones(4), "embed": array(5, 4, 4)}
    text = checked(jax.value_and_grad(loss), params, X)
    assert "for block in params" in text and "saved.append(" in text, text
    assert "for norm_bwd, mixer_bwd in reversed(saved):" in text and "d_blocks[::-1]" in text, text
    assert text.count("mixer_bwd(") == 2, text  # its definition, and one call


def test_lists_of_tuples():
    def loss(params, x):
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b)
        w, b = params[-1]
        return jnp.mean((x @ w + b) ** 2)

    def train_step(params, x):
        grads = jax.grad(loss)(params, x)
        return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]

    sizes = [4, 5, 5, 5, 5, 2]
    params = [(array(i, m, n), jnp.zeros(n)) for i, (m, n) in enumerate(zip(sizes, sizes[1:], strict=False))]
    text = checked(train_step, params, X)
    assert "xs = [x]\n    for w, b in params[:-1]:\n        x = jnp.tanh(x @ w + b)\n        xs.append(x)\n" in text, (
        text
    )
    assert "for (w, b), x_out in zip(reversed(params[1:]), reversed(xs[1:])):" in text, text
    assert "*reversed(d_params)," in text, text


def test_numbered_keys():
    def loss(params, x):
        for i in range(6):
            layer = params[f"layer_{i}"]
            x = x + jnp.sin(x @ layer["w"] + layer["b"])
        return jnp.sum(x**2)

    params = {f"layer_{i}": layer for i, layer in enumerate(layers(6, w=(4, 4), b=(4,)))}
    text = checked(jax.grad(loss, (0, 1)), params, X)
    assert 'for i in range(6):\n        layer = params[f"layer_{i}"]\n' in text, text
    assert "reversed(range(6))" in text and 'd_layers[f"layer_{i}"] = {' in text, text
    assert "return d_layers, d_x" in text or "{**d_layers}" in text, text


def test_several_dicts_of_numbered_keys():
    def loss(params, x):
        for i in range(4):
            x = x + jnp.sin(x @ params[f"h{i}/attention"]["w"])
            mlp = params[f"h{i}/mlp"]
            x = x + jnp.cos(x @ mlp["w"] + mlp["b"])
        return jnp.sum(x**2)

    params = {}
    for i, layer in enumerate(layers(4, w=(4, 4), b=(4,))):
        params[f"h{i}/attention"] = {"w": array(i, 4, 4)}
        params[f"h{i}/mlp"] = layer
    text = checked(jax.grad(loss), params, X)
    assert 'params[f"h{i}/attention"]["w"]' in text and 'd_layers[f"h{i}/mlp"] = {' in text, text


def test_flax_modules_with_numbered_names():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.Dense(4)(jnp.sin(nn.Dense(8)(x)))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(4, name="embed")(x)
            for i in range(4):
                x = Block(name=f"layers_{i}")(x)
            return nn.Dense(2, name="head")(x)

    model = Model()

    def train_step(params, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((model.apply(p, x) - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    text = checked(train_step, model.init(jax.random.key(0), X), X, jnp.ones((5, 2)))
    assert "for i in range(4):" in text, text
    assert 'd_layers[f"layers_{i}"], d_x = block_bwd(d_x)' in text, text
    assert "**d_layers," in text, text


def test_equinox_list_of_blocks():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key):
            self.up, self.down = eqx.nn.Linear(4, 8, key=key), eqx.nn.Linear(8, 4, key=key)

        def __call__(self, x):
            return x + self.down(jnp.sin(self.up(x)))

    class Model(eqx.Module):
        embed: eqx.nn.Linear
        blocks: list[Block]
        head: eqx.nn.Linear

        def __call__(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def train_step(model, x, y):
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2))(model)
        return jax.tree.map(lambda p, g: p - 0.1 * g, model, grads), loss

    blocks = [Block(jax.random.key(i)) for i in range(3)]
    model = Model(eqx.nn.Linear(4, 4, key=jax.random.key(8)), blocks, eqx.nn.Linear(4, 2, key=jax.random.key(9)))
    text = checked(train_step, model, X, jnp.ones((5, 2)))
    assert "in model.blocks:" in text and "for block_bwd in reversed(saved):" in text, text


def test_value_is_read_after_the_next_one_is_there():
    def loss(params, x):
        for p in params:
            h = jnp.sin(x @ p["w"])
            x = h + jnp.cos(h * x)
        return jnp.sum(x**2)

    checked(jax.grad(loss, (0, 1)), layers(5, w=(4, 4)), X)


def test_two_values_are_handed_on():
    def loss(params, x, y):
        for p in params:
            x, y = y + jnp.sin(x @ p["w"]), x * y
        return jnp.sum(x * y)

    text = checked(jax.value_and_grad(loss, (0, 1, 2)), layers(5, w=(4, 4)), X, X + 1.0)
    assert "for p in params:" in text, text
    checked(loss, layers(5, w=(4, 4)), X, X + 1.0, proofs=("jaxpr", "hlo"))


def test_gradient_of_what_all_layers_share():
    def loss(params, x):
        for layer in params["layers"]:
            x = x + jnp.sin(x @ layer["w"]) @ params["shared"]
        return jnp.sum(x**2)

    checked(jax.grad(loss), {"layers": layers(4, w=(4, 4)), "shared": array(3, 4, 4)}, X)


def test_names_of_the_program_are_not_hidden():
    def loss(saved, zip_, x):
        for layer in saved:
            x = x + jnp.sin(x @ layer["w"]) * zip_
        return jnp.sum(x**2) * jnp.sum(saved[0]["w"])

    checked(jax.grad(loss, (0, 2)), layers(4, w=(4, 4)), 2.0, X)


def test_layers_that_differ_stay():
    def forward(params, x):
        for activation, p in zip((jnp.tanh, jnp.sin, jnp.cos), params, strict=True):
            x = x + activation(x @ p["w"])
        return x

    assert "for " not in checked(forward, layers(3, w=(4, 4)), X)


@pytest.mark.parametrize(("hands_on", "loops"), [(lambda k: Name(f"total_{k}"), True), (lambda k: part(k, "w"), False)])
def test_turns_hand_on_what_they_make_of_what_they_are_handed(hands_on, loops):
    turns = [
        [
            Assign([f"total_{k}"], Binary(Name(f"h_{k - 1}" if k else "h"), "+", part(k, "b"))),
            Assign([f"h_{k}"], Call("jnp.square", [hands_on(k)])),
        ]
        for k in range(3)
    ]
    assert Turns(turns, {}.get).is_recurrence() is loops


def part(number, key):
    return Leaf(Name("layers"), (("item", str(number), 3), ("item", f'"{key}"', 0)))


def test_no_loop_where_it_would_be_longer():
    def forward(params, x):
        return (x @ params[0]) @ params[1]

    assert "for " not in checked(forward, [array(0, 4, 4), array(1, 4, 4)], X)


def test_scans_of_calls_are_still_made():
    def block(x, layer):
        h = jnp.sin(x @ layer["w"])
        return x + h * jnp.cos(h)

    def forward(params, x):
        for layer in params:
            x = block(x, layer)
        return x

    found = untrace.decompile(forward, reroll="scan")(layers(4, w=(4, 4)), X)
    assert "lax.scan(step, x, " in found.source, found.source
    found = untrace.decompile(jax.grad(residual_loss), reroll="scan")(residual_params(3), X)
    assert found.proof.at_least("hlo"), found.proof


def test_text_that_is_not_proven_is_written_statement_by_statement(monkeypatch):
    write = of_statements.write_loop

    def wrong(*args):
        made = write(*args)
        if made is not None:
            made[1][-1].body.append(made[1][-1].body[-1])
        return made

    monkeypatch.setattr(of_statements, "write_loop", wrong)
    text = checked(jax.value_and_grad(residual_loss), residual_params(6), X)
    assert "for layer" not in text, text


def test_what_no_turn_of_a_loop_needs_has_no_name():
    @jax.jit
    def layer(w, x):
        hidden = jnp.tanh(x @ w)
        gate = jnp.cos(hidden) * x
        return hidden + gate, jnp.sum(hidden * gate)

    def net(params, x):
        x, first = layer(params["first"], x)
        for w in params["layers"]:
            x, _ = layer(w, x)
        return x, first

    params = {"first": jnp.eye(4), "layers": [jnp.eye(4) * i for i in range(1, 6)]}
    source = untrace.decompile(net)(params, jnp.ones((3, 4))).source
    assert 'in params["layers"]:' in source
    assert ", _ = layer(" in source
