"""Backward parts inside their forward parts, and the zeros that make one function of several of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

pytestmark = pytest.mark.usefixtures("unguarded", "written_out")

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (3, 4))


def arrays(seed, **shapes):
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)}


def checked(function, *args, proofs=("jaxpr", "hlo")):
    found = untrace.decompile(function)(*args)
    assert found.proof.level in proofs, (found.proof, found.source)
    ours, theirs = jax.jit(found)(*args), jax.jit(function)(*args)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    return found.source


def gate(params, x):
    width = jnp.exp(params["width"])
    mixed = jnp.sin(x @ params["mix"]) * width
    return mixed / (1.0 + mixed**2)


def norm(x, scale):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)
    return centered / spread * scale


GATES = [arrays(i, width=(4,), mix=(4, 4)) for i in range(3)]


def test_what_every_call_passes_on_is_read_where_it_is():
    def loss(params, x):
        return jnp.sum(gate(params[0], jnp.sin(gate(params[1], x))) ** 2)

    text = checked(jax.value_and_grad(loss, (0, 1)), GATES[:2], X)
    assert re.search(r"    def gate_bwd\(d_\w+\):", text), text  # neither params nor x nor anything saved
    assert "saved" not in text and "gate_bwd_2(" in text, text


def test_a_variable_is_no_other_one_of_the_same_name():
    """The two parts have variables of equal names for different values."""

    def half(x, y):
        ratio = jnp.sin(x) * y
        return ratio * jnp.cos(ratio) + jnp.tanh(y) * ratio

    def loss(x, y):
        z = half(x, y)
        return jnp.sum(half(z, half(y, z) * x) ** 2)

    checked(jax.grad(loss, (0, 1)), X, X + 1.0)
    checked(jax.hessian(lambda x: loss(x, x * 2.0)), X[0])


def test_what_is_saved_in_a_loop_stays_an_array():
    def loss(params, x):
        def step(x, _):
            return gate(params[0], gate(params[1], x)), None

        return jnp.sum(jax.lax.scan(step, x, None, length=3)[0])

    text = checked(jax.grad(loss), GATES[:2], X, proofs=("jaxpr", "hlo", "bits"))
    assert re.search(r"^def gate_bwd\(", text, re.M) and "saved" in text, text


def test_both_parts_inside_a_loop_are_one_function():
    """A gradient inside a loop: what is saved does not leave it."""

    def loss(params, x):
        return jnp.sum(gate(params, gate(params, x)) ** 2)

    def descend(params, x):
        def step(state, _):
            value, grads = jax.value_and_grad(loss, (0, 1))(*state)
            return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

        return jax.lax.scan(step, (params, x), None, length=4)

    text = checked(descend, GATES[0], X, proofs=("jaxpr", "hlo", "bits"))
    assert "    def gate_bwd(" in text and "saved" not in text, text


def test_under_vmap_and_jit():
    def loss(params, x):
        return jnp.sum(gate(params[0], gate(params[1], x)) ** 2)

    batch = jnp.stack([X, X * 0.5])
    checked(jax.vmap(jax.grad(loss), (None, 0)), GATES[:2], batch)
    checked(jax.jit(jax.grad(loss)), GATES[:2], X)
    checked(jax.grad(jax.jit(loss)), GATES[:2], X)


def test_the_written_gradient_can_be_differentiated():
    def loss(params, x):
        return jnp.sum(norm(gate(params, x), params["width"]) * gate(params, x + 1.0))

    found = untrace.decompile(jax.grad(loss))(GATES[0], X)
    ours = jax.jvp(lambda x: found(GATES[0], x), (X,), (jnp.ones_like(X),))
    theirs = jax.jvp(lambda x: jax.grad(loss)(GATES[0], x), (X,), (jnp.ones_like(X),))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_key_like_the_name_of_the_function_is_no_call_of_it():
    def loss(params, x):
        return jnp.sum(gate(params["gate"], jnp.sin(gate(params["gate_2"], x))) ** 2)

    text = checked(jax.grad(loss, (0, 1)), {"gate": GATES[0], "gate_2": GATES[1]}, X)
    assert "    def gate_bwd(" in text, text


# ------------------------------------------------------------------ sums that begin with zeros


def residual_loss(params, x):
    for layer in params["layers"]:
        x = x + jnp.sin(norm(x, layer["scale"]) @ layer["w"])
    return jnp.mean(norm(x, params["final"]) ** 2)


RESIDUAL = {"layers": [arrays(i, scale=(4,), w=(4, 4)) for i in range(2)], "final": jnp.ones(4)}


@pytest.mark.usefixtures("as_given")
def test_the_last_norm_is_one_of_all():
    """Its input has no other use: beside the others' backward part, one addition is missing."""
    text = checked(jax.grad(residual_loss, (0, 1)), RESIDUAL, X)
    assert text.count("def norm_bwd(") == 1 and "jnp.zeros((3, 4))" in text, text
    assert len(re.findall(r"= norm_bwd\w*\(", text)) >= 2, text


def test_nothing_is_added_where_simplifications_are_not_wanted():
    found = untrace.decompile(jax.grad(residual_loss, (0, 1)), simplify=False)(RESIDUAL, X)
    assert found.proof.level == "jaxpr" and "jnp.zeros((3, 4))" not in found.source, found.source


def test_zeros_are_made_in_the_function_that_passes_them():
    def block(params, x):
        hidden = norm(x, params["first"]) @ params["w"]
        return x + norm(jnp.tanh(hidden), params["second"])

    def loss(params, x):
        for layer in params:
            x = block(layer, x)
        return jnp.sum(x**2)

    layers = [arrays(i, first=(4,), second=(4,), w=(4, 4)) for i in range(2)]
    text = checked(jax.grad(loss, (0, 1)), layers, X)
    inside = text[text.index("def block(") : text.index("def grad_loss(")]
    assert "jnp.zeros(" in inside and "jnp.zeros(" not in text[text.index("def grad_loss(") :], text


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_zeros_of_other_types(dtype):
    params = jax.tree.map(lambda a: a.astype(dtype), RESIDUAL)
    checked(jax.grad(residual_loss, (0, 1)), params, X.astype(dtype), proofs=("jaxpr", "hlo", "bits"))
