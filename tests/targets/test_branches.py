"""`lax.cond` and `lax.switch` where the public call is not plain to see: known predicates, numbers, references, gradients."""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

B = jnp.asarray(np.array([0.1, -0.2, 0.3], np.float32))


@pytest.mark.parametrize("flag", [False, True, np.bool_(False)])
@pytest.mark.parametrize("style", ["idiomatic", "exact"])
def test_a_cond_with_a_predicate_that_is_known(flag, style):
    """A flag that is no value of the program (an option that is off) stays a flag: both branches are traced."""

    def step(x):
        return lax.cond(flag, lambda x: x * 2.0, lambda x: x + 1.0, x)

    d = untrace.decompile(step, style=style)(jnp.arange(3.0))
    assert d.proof.level == "jaxpr"
    assert f"lax.cond({bool(flag)}, " in d.source and "_jaxpr(" not in d.source
    np.testing.assert_array_equal(d(jnp.arange(3.0)), step(jnp.arange(3.0)))


@pytest.mark.parametrize("style", ["idiomatic", "exact"])
@pytest.mark.parametrize("number", [2.0, np.float32(2.0), 3, True], ids=str)
def test_a_number_passed_to_branches(number, style):
    def program(x):
        return lax.cond(x[0] > 0, lambda a, b: a * b, lambda a, b: a - b * x, x, number)

    d = untrace.decompile(program, style=style)(jnp.arange(3.0))
    assert d.proof.level == "jaxpr" and "lax.cond(" in d.source and "_jaxpr(" not in d.source


@pytest.mark.parametrize("style", ["idiomatic", "exact"])
def test_references_in_branches_with_a_number(style):
    """A function over references can be traced only where they are: nothing but the public call can be written."""

    def program(x):
        total = jax.new_ref(jnp.zeros(3))

        def grow(x, y):
            total[0] = x[1] * y

        def shrink(x, y):
            total[1] = x[0] - y

        lax.cond(x[0] > 0, grow, shrink, x, 2.0)
        return total[...]

    d = untrace.decompile(program, style=style)(jnp.arange(3.0))
    assert d.proof.level == "jaxpr"


@pytest.mark.parametrize("style", ["idiomatic", "exact"])
def test_references_in_a_loop_whose_carry_is_only_passed_on(style):
    def program(image):
        counts = jax.new_ref(jnp.zeros(8, jnp.int32))

        def add(i, unused):
            counts[image[i]] += 1
            return unused

        lax.fori_loop(0, image.size, add, 0)
        return counts[...]

    d = untrace.decompile(program, style=style)(jnp.arange(6))
    assert d.proof.level == "jaxpr"


def test_the_gradient_of_a_cond_is_a_cond_on_the_same_predicate():
    def loss(w, x):
        return jnp.sum(lax.cond(x[0] > 0, lambda x: jnp.sin(x * w), lambda x: x - w, x))

    d = untrace.decompile(jax.grad(loss))(jnp.ones(3), B)
    source = d.source
    assert d.proof.at_least("bits")
    assert len(re.findall(r"lax\.cond\(\s*is_greater,", source)) == 2 and "_jaxpr(" not in source


def test_the_gradient_of_a_switch_is_a_switch_on_the_same_index():
    def loss(w, i, x):
        return jnp.sum(lax.switch(i, [lambda x: x * w, lambda x: jnp.sin(x * w), lambda x: x], x))

    d = untrace.decompile(jax.grad(loss))(jnp.ones(3), jnp.int32(1), jnp.arange(3.0))
    source = d.source
    assert d.proof.at_least("bits")
    assert len(re.findall(r"lax\.switch\(\s*i,", source)) == 2 and "_jaxpr(" not in source


def test_arguments_of_a_custom_vjp_are_called_as_the_author_calls_them():
    """An argument that is not differentiated is none of the operands; a tree is several."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def solve(f, params, x0):
        return f(params, x0)

    solve.defvjp(lambda f, params, x0: (f(params, x0), params), lambda f, params, g: (params, g))

    def step(params, x):
        return solve(lambda p, x: jnp.tanh(p["w"] * x + p["b"]), params, x)

    source = untrace.decompile(step)({"w": jnp.ones(3), "b": jnp.zeros(3)}, B).source
    assert "def solve(b, w, x0):" in source


def test_of_a_state_that_a_branch_hands_on_it_takes_nothing_apart():
    class Inner(NamedTuple):
        first_moment_of_gradients: dict
        second_moment_of_gradients: dict

    def step(updates, state, rate):
        def kept(updates, state, rate):
            return jax.tree.map(jnp.zeros_like, updates), state

        def moved(updates, state, rate):
            first = jax.tree.map(lambda m, g: 0.9 * m + g, state["optimiser_state"].first_moment_of_gradients, updates)
            second = state["optimiser_state"].second_moment_of_gradients
            new = {"optimiser_state": Inner(first, jax.tree.map(lambda v: 0.5 * v, second))}
            return jax.tree.map(lambda m: rate * m, first), new

        return jax.lax.cond(updates["bias_of_layer"].sum() > 0.0, kept, moved, updates, state, rate)

    params = {"bias_of_layer": jnp.ones(4), "scale_of_layer": jnp.ones(3), "weight_of_layer": jnp.ones((2, 3))}
    d = untrace.decompile(step)(params, {"optimiser_state": Inner(params, params)}, jnp.float32(0.1))
    kept = d.source[d.source.index("def kept(") :].split("\n\n")[0]
    assert kept.startswith("def kept(_updates, state, _rate):"), d.source
    assert " = " not in kept, d.source  # no names for what only goes where the whole state goes


class Agent(NamedTuple):
    actor: dict
    target: dict
    optimiser: dict
    step: jax.Array


def moved(grads, optimiser, params, rate):
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, optimiser["mean"], grads)
    moments = {"count": optimiser["count"] + 1, "mean": mean}
    return jax.tree.map(lambda p, m: p - rate * m, params, mean), moments


def improved(agent, x):
    value, grads = jax.value_and_grad(lambda p: jnp.sum(jnp.tanh(x @ p["w"] + p["b"])))(agent.actor)
    actor, optimiser = moved(grads, agent.optimiser, agent.actor, 0.1)
    return agent._replace(actor=actor, optimiser=optimiser), value


def delayed(agent, x):
    agent, value = lax.cond(agent.step % 2 == 0, lambda a: improved(a, x), lambda a: (a, jnp.zeros(())), agent)
    return agent._replace(step=agent.step + 1), value


PARAMS = {"b": jnp.zeros(2), "w": jnp.ones((3, 2)), "z": jnp.ones(1)}


def test_branches_take_and_give_a_state_of_which_they_change_a_part():
    """JAX takes what all branches hand on out of the results of the equation, and the names off the branch with closed-over
    values more."""
    agent = Agent(PARAMS, PARAMS, {"count": jnp.int32(0), "mean": PARAMS}, jnp.int32(0))
    found = untrace.decompile(delayed, guard=False)(agent, jnp.ones((4, 3)))
    assert found.proof.level == "jaxpr"
    text = found.source[found.source.index("def delayed") :]
    assert "return a._replace(actor=actor, optimiser=optimiser), value" in text
    assert "agent, value = lax.cond(" in text and "lambda a: (a, " in text and text.count(", agent\n") == 1
    assert "return agent._replace(step=agent.step + 1), value" in text
    assert " = moved(grads, a.optimiser, a.actor)" in text


def test_branches_that_close_over_different_values_take_the_tree():
    def either(agent, x, y):
        def one(a):
            return a._replace(actor=jax.tree.map(lambda p: p + x[0], a.actor))

        def other(a):
            return a._replace(actor=jax.tree.map(lambda p: p * y[0], a.actor))

        return lax.switch(agent.step, [one, other, lambda a: a], agent)

    agent = Agent(PARAMS, PARAMS, {"count": jnp.int32(0), "mean": PARAMS}, jnp.int32(0))
    found = untrace.decompile(either, guard=False)(agent, jnp.ones(2), jnp.ones(3))
    assert found.proof.level == "jaxpr"
    assert found.source.count("return a._replace(actor=") == 2 and "lambda a: a]" in found.source
