"""A library's functions that take several neighbouring leaves of one tree at each call, as optimisers do, are functions;
the library's own words are the names in them. Each test is of the written text, which is proven as always."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.example_libraries import optimizers
from libraries import library

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")


def text(fn, *args):
    found = untrace.decompile(fn)(*args)
    assert found.proof.at_least("bits"), found.proof
    return found.source


PARAMS = [jnp.ones((4, 3)), jnp.ones(3), jnp.ones((3, 2)), jnp.ones(2)]
TRAINER = library("""
class Variable:
    def __init__(self, value):
        self.value = value

    def assign(self, value):
        self.value = value


class Trainer:
    def __init__(self, step, rate):
        self.step, self.rate = step, rate

    def assign_add(self, variable, value):
        variable.assign(variable.value + value)

    def update_step(self, gradient, variable, slots):
        m, v = slots
        count = self.step + 1
        self.assign_add(m, (gradient - m.value) * 0.1)
        self.assign_add(v, (jnp.square(gradient) - v.value) * 0.01)
        size = self.rate * jnp.sqrt(1.0 - 0.99**count) / (1.0 - 0.9**count)
        self.assign_add(variable, -size * m.value / (jnp.sqrt(v.value) + 1e-7))

    def apply(self, gradients, variables, slots):
        for gradient, variable, slot in zip(gradients, variables, slots):
            self.update_step(gradient, variable, slot)

def rotated(pairs):
    return [rotate(first * 2.0, second + 0.5) for first, second in pairs]

def rotate(first, second):
    return jnp.cos(first) * second - jnp.sin(second), jnp.sin(first) * second + jnp.cos(second)

def scaled(leaves):
    return [shrink(leaf) for leaf in leaves]

def shrink(leaf):
    return jnp.tanh(leaf * 0.5) + jnp.cos(leaf) * jnp.sin(leaf)
""")


def quadratic(params):
    return sum(jnp.sum(jnp.cos(p) * p) for p in params)


def test_a_state_of_leaves_beside_each_other_is_passed_whole_to_the_librarys_update():
    init, update, get_params = optimizers.adam(1e-2)

    def step(i, state):
        return update(i, jax.grad(quadratic)(get_params(state)), state)

    source = text(step, 0, init(PARAMS))
    assert "def update(i, g, state):\n    x, m, v = state\n" in source, source
    assert "    m = 0.1 * g + 0.9 * m\n" in source, source
    assert source.count("update(i, ") == 1 + len(PARAMS), source


def train(step, rate, variables, slots, gradients):
    trainer = TRAINER["Trainer"](step, rate)
    variables = [TRAINER["Variable"](v) for v in variables]
    slots = [[TRAINER["Variable"](s) for s in pair] for pair in zip(slots[::2], slots[1::2], strict=True)]
    trainer.apply(gradients, variables, slots)
    return [v.value for v in variables], [s.value for pair in slots for s in pair]


def test_a_flat_list_of_states_is_passed_leaf_by_leaf_under_the_librarys_names():
    slots = [jnp.full(p.shape, 0.5, jnp.float32) for p in PARAMS for _ in range(2)]
    source = text(train, 3, jnp.float32(0.1), PARAMS, slots, [jnp.cos(p) for p in PARAMS])
    assert source.count("def trainer_update_step(") == 1, source
    head = source.split("def trainer_update_step(")[1].split(")")[0]
    assert set(head.split(", ")) == {"step", "rate", "m", "v", "gradient", "variable"}, source
    # What a call changes in place is called like that, in the function and around it.
    assert "    m = m + (gradient - m) * 0.1\n" in source, source
    assert "m, v, variable = trainer_update_step(" in source and "slots_2.extend([m, v])" in source, source


def test_the_names_are_those_of_the_operations_also_where_they_are_turned_around():
    def step(pairs):
        return TRAINER["rotated"](pairs)

    pairs = [(p, p + 1.0) for p in PARAMS]
    source = text(step, pairs)
    assert "def rotate(first, second):" in source or "first, second = " in source, source


def test_one_leaf_at_each_call_is_a_map_over_the_tree():
    def step(leaves):
        return TRAINER["scaled"](leaves)

    source = text(step, PARAMS)
    assert "jax.tree.map(shrink, leaves)" in source, source


def test_a_map_over_two_trees_stays_one():
    def step(state, grads):
        params, mean = state
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m / (1.0 + jnp.abs(m)), params, mean), mean

    mean = jax.tree.map(jnp.zeros_like, PARAMS)
    source = text(step, (PARAMS, mean), mean)
    assert source.count("jax.tree.map(") == 2, source


def test_the_written_update_is_the_same_for_other_values(tmp_path):
    init, update, get_params = optimizers.momentum(0.1, 0.9)

    def step(i, state):
        return update(i, jax.grad(quadratic)(get_params(state)), state)

    found = untrace.decompile(step)(0, init(PARAMS))
    assert "x, velocity = state" in found.source, found.source
    names: dict = {}
    exec(compile(found.source, "written.py", "exec"), names)
    state = init([p * 0.3 for p in PARAMS])
    for ours, theirs in zip(jax.tree.leaves(names["step"](2, state)), jax.tree.leaves(step(2, state)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
