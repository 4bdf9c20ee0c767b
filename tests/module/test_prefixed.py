"""Functions that are called with keys of a flat dict take the dict and how the keys begin."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import untrace

KEYS = jax.random.split(jax.random.key(0), 20)


def text(fn, *args):
    found = untrace.decompile(fn)(*args)
    assert found.proof.at_least("bits"), found.proof
    return found.source


def plain_norm(weight, bias, x):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return jnp.tanh(centered * jax.lax.rsqrt(jnp.mean(jnp.square(centered)) + 0.1)) * weight + bias


def norm(states, name, x):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(centered)) + 0.1)
    return jnp.tanh(centered * scale) * states[f"{name}.weight"] + states[f"{name}.bias"]


def mlp(states, name, x):
    return jnp.sin(x @ states[f"{name}.up.weight"] + states[f"{name}.up.bias"]) @ states[f"{name}.down.weight"]


def block(states, name, x):
    x = x + norm(states, f"{name}.norm1", x)
    y = norm(states, f"{name}.norm2", jnp.cos(x))
    return x + mlp(states, f"{name}.mlp", y)


def test_keys_that_are_gone_through_are_said_once():
    def forward(states, x):
        for name in ("stem", "body", "head"):
            x = plain_norm(states[f"{name}/weight"], states[f"{name}/bias"], x)
        return x

    states = {f"{n}/{k}": jnp.full((4,), 0.5) for n in ("stem", "body", "head") for k in ("weight", "bias")}
    written = text(forward, states, jax.random.normal(KEYS[2], (3, 4)))
    assert 'for name in ("stem", "body", "head"):' in written
    assert 'plain_norm(states[f"{name}/weight"], states[f"{name}/bias"], x)' in written
    assert "def plain_norm(weight, bias, x):" in written  # as its author has it


def states_of(names):
    shapes = {"norm1.weight": 4, "norm1.bias": 4, "norm2.weight": 4, "norm2.bias": 4, "mlp.up.bias": 6}
    found = {f"{n}.{k}": jnp.full((s,), 0.5) for n in names for k, s in shapes.items()}
    found |= {f"{n}.mlp.up.weight": jax.random.normal(KEYS[0], (4, 6)) for n in names}
    return found | {f"{n}.mlp.down.weight": jax.random.normal(KEYS[1], (6, 4)) for n in names}


def test_functions_take_the_dict_and_the_beginning_of_keys():
    def forward(states, x):
        return block(states, "last", block(states, "first", x) * 2.0)

    written = text(forward, states_of(["first", "last"]), jax.random.normal(KEYS[2], (3, 4)))
    assert "def norm(states, name, x):" in written
    assert 'states[f"{name}.weight"]' in written
    assert 'norm(states, f"{name}.norm1", x)' in written and 'norm(states, f"{name}.norm2", jnp.cos(x))' in written
    assert 'mlp(states, f"{name}.mlp", ' in written
    assert 'block(states, "first", x)' in written
    assert "name: str" in written


def test_layers_with_numbered_keys_are_a_loop_with_such_calls():
    def forward(states, x):
        for i in range(3):
            x = block(states, f"layers.{i}", x)
        return x

    written = text(forward, states_of([f"layers.{i}" for i in range(3)]), jax.random.normal(KEYS[2], (3, 4)))
    assert 'x = block(states, f"layers.{i}", x)' in written


def test_keys_that_do_not_go_together_are_passed_one_by_one():
    def forward(states, x):
        x = plain_norm(states["a.weight"], states["a.bias"], x)
        return plain_norm(states["b.gain"], states["a.shift"], jnp.sin(x))

    states = {k: jnp.full((4,), 0.5) for k in ("a.weight", "a.bias", "b.gain", "a.shift")}
    written = text(forward, states, jax.random.normal(KEYS[2], (3, 4)))
    assert 'plain_norm(states["b.gain"], states["a.shift"], jnp.sin(x))' in written


def test_a_name_that_the_function_binds_is_not_taken():
    def norm(states, key, x):
        name = jnp.tanh(x) * states[f"{key}.weight"]
        return name * jnp.sin(name) + states[f"{key}.bias"] * jnp.sum(states[f"{key}.weight"])

    def forward(states, x):
        return norm(states, "a", x) * norm(states, "b", x)

    states = {f"{n}.{k}": jnp.full((4,), 0.5) for n in "ab" for k in ("weight", "bias")}
    written = text(forward, states, jax.random.normal(KEYS[2], (3, 4)))
    assert "def norm(states, name_2, x):" in written
    assert 'weight = states[f"{name_2}.weight"]' in written
