"""Backward parts of functions that are called several times, and what goes to them from the forward parts."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import program_of

import untrace
from untrace.capture.function import trace
from untrace.ir.check import check
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Local, Pack, TupleType, Unpack, walk_functions
from untrace.lift import lift

KEY = jax.random.key(0)


def norm(x, scale, bias):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)
    return centered / spread * scale + bias


def block(x, params):
    mixed = jnp.tanh(norm(x, *params["first"]) @ params["mix"])
    return x + norm(mixed, *params["second"]) @ params["out"]


def two_norms(params, x):
    y = norm(x, *params["first"])
    return jnp.sum(jnp.sin(norm(y @ params["mix"], *params["second"])))


def two_blocks(params, x):
    for layer in params:
        x = block(x, layer)
    return jnp.sum(x**2)


def used_otherwise(params, x):
    """One of the two calls is differentiated with respect to its parameters only: another backward part."""
    y = norm(jax.lax.stop_gradient(x), *params["first"])
    return jnp.sum(jnp.sin(norm(y @ params["mix"], *params["second"])))


def layer(seed=0, width=4):
    keys = jax.random.split(jax.random.key(seed), 4)
    return {
        "first": (jax.random.normal(keys[0], (width,)), jnp.ones(width)),
        "mix": jax.random.normal(keys[1], (width, width)),
        "out": jax.random.normal(keys[2], (width, width)),
        "second": (jax.random.normal(keys[3], (width,)), jnp.zeros(width)),
    }


def cell(params, hidden, x):
    """What it saves has one of its arguments in the midst."""
    candidate = jnp.tanh(jnp.concatenate([x, hidden]) @ params["mix"])
    gate = jax.nn.sigmoid(candidate @ params["gate"] + params["bias"])
    return gate * hidden + jnp.sin(candidate) * jnp.cos(hidden)


def recurrent(params, xs):
    def step(carry, x):
        low, high = carry
        low = cell(params["low"], low, x)
        high = cell(params["high"], high, jnp.exp(low))
        return (low, high), high.sum()

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), xs)[1].sum()


def recurrent_in_parts(params, xs):
    """JAX keeps no caller for what stands in the body of a loop and is marked by `jax.checkpoint`."""
    marked = jax.checkpoint(cell, policy=jax.checkpoint_policies.dots_saveable)

    def step(carry, x):
        low = marked(params["low"], carry[0], x)
        high = marked(params["high"], carry[1], low)
        return (low, high), high

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), xs)[1].sum()


def cell_parameters(seed, width):
    keys = jax.random.split(jax.random.key(seed), 2)
    mix = jax.random.normal(keys[0], (width + 4, 4))
    return {"bias": jnp.ones(4), "gate": jax.random.normal(keys[1], (4, 4)), "mix": mix}


RECURRENT = {"low": cell_parameters(1, 3), "high": cell_parameters(2, 4)}
X = jax.random.normal(KEY, (3, 4))
PROGRAMS = {
    "two_norms": (jax.value_and_grad(two_norms, argnums=(0, 1)), (layer(), X)),
    "two_blocks": (jax.grad(two_blocks, argnums=(0, 1)), ([layer(1), layer(2)], X)),
    "used_otherwise": (jax.grad(used_otherwise), (layer(), X)),
    "three_blocks": (jax.value_and_grad(two_blocks), ([layer(1), layer(2), layer(3)], X)),
    "recurrent": (jax.grad(recurrent), (RECURRENT, X[:, :3])),
    "recurrent_in_parts": (jax.grad(recurrent_in_parts), (RECURRENT, X[:, :3])),
    "recurrent_of_one_size": (
        jax.value_and_grad(recurrent),
        ({"low": RECURRENT["high"], "high": RECURRENT["high"]}, X),
    ),
    "per_example": (jax.vmap(jax.grad(two_norms), (None, 0)), (layer(), jnp.stack([X, X + 1.0]))),
}


def bodies(text):
    return {m[1]: m[0] for m in re.finditer(r"^def (\w+)\(.*?(?=^def |\Z)", text, re.M | re.S)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_written_function_is_the_same_program(name):
    function, args = PROGRAMS[name]
    found = untrace.decompile(function)(*args)
    assert found.proof.level in ("jaxpr", "hlo")
    for ours, theirs in zip(
        jax.tree.leaves(jax.jit(found)(*args)), jax.tree.leaves(jax.jit(function)(*args)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pass_keeps_the_meaning(name):
    function, args = PROGRAMS[name]
    program = program_of(trace(function, args, {}), function, "f")
    flat = jax.tree.leaves(args)
    before = evaluate(program.entry, *flat)
    lift(program)
    check(program.entry)
    for ours, theirs in zip(evaluate(program.entry, *flat), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    calls = [e for f in walk_functions(program.entry) for e in f.equations]
    kinds = {type(e.callee) for e in calls}
    assert name in ("used_otherwise", "per_example") or {Pack, Unpack, Local} <= kinds


def test_two_calls_share_one_backward_part():
    function, args = PROGRAMS["two_norms"]
    text = untrace.decompile(function)(*args).source
    found = bodies(text)
    assert re.search(r"^    def norm_bwd\(", found["norm"], re.M) and text.count("def norm_bwd(") == 1
    assert re.search(r"^    return .*, norm_bwd$", found["norm"], re.M) and "saved" not in text
    assert len(re.findall(r"= norm_bwd(_2)?\(", found["two_norms_and_grad"])) == 2


def test_what_is_saved_inside_goes_along():
    """The backward part of a function that calls another one calls what that returned."""
    function, args = PROGRAMS["three_blocks"]
    found = bodies(untrace.decompile(function)(*args).source)
    forward, backward = found["block"].split("    def block_bwd(")
    assert "norm_2, norm_bwd = norm_fwd(" in forward and "= norm_bwd(" in backward and "= norm_bwd_2(" in backward
    assert len(re.findall(r"= block_bwd(_2)?\(", found["two_blocks_and_grad"])) == 2


def test_names_inside_a_backward_part_are_those_of_the_forward_part():
    function, args = PROGRAMS["two_norms"]
    found = bodies(untrace.decompile(function)(*args).source)
    assert "first" not in found["norm"] and "second" not in found["norm"], found["norm"]


def test_starred_arguments_have_the_names_of_the_parameters():
    text = untrace.decompile(lambda params, x: norm(norm(x, *params["first"]), *params["second"]))(layer(), X).source
    assert "def norm(x, scale, bias):" in text and 'norm(norm(x, *params["first"]), *params["second"])' in text


def test_a_loop_hands_over_what_its_functions_save():
    """One tuple for each call inside a loop, which the backward loop gives to the backward part as it is."""
    function, args = PROGRAMS["recurrent"]
    found = bodies(untrace.decompile(function, sizes="fixed")(*args).source)
    assert {"cell", "cell_bwd"} <= set(found) and "cell_bwd_2" not in found  # of both sizes
    step, backward = found["grad_recurrent"].split("def step_bwd")
    assert "_, (_, residuals) = lax.scan" in step and "one, residuals = inputs" in backward
    assert step.count("= cell(") == 2 and backward.count("= cell_bwd(") == 2
    assert "(cell_saved, x_2, cell_saved_2)" in step and "cell_saved, x_2, cell_saved_2 = residuals" in backward
    assert "saved = (" in found["cell"] and "hidden," in found["cell"].partition("saved = (")[2]


def test_a_loop_adds_up_what_its_functions_give():
    """The sums over the turns are no matter of the function that the terms come from."""
    function, args = PROGRAMS["recurrent"]
    found = bodies(untrace.decompile(function)(*args).source)
    assert "d_low_mix" not in found["cell_bwd"] and " + d_low_mix" in found["grad_recurrent"]


def test_what_is_given_back_and_not_read_is_one_star():
    function, args = PROGRAMS["recurrent"]
    assert ", *_)" in untrace.decompile(function)(*args).source


def test_residuals_of_loops_stay_apart_where_the_loop_is_refused():
    """A loop that has to be bound takes and gives single arrays."""
    function, args = PROGRAMS["recurrent"]
    program = program_of(trace(function, args, {}), function, "f")
    loops = frozenset(e.origin for e in program.entry.equations if e.callee.name == "scan")
    lift(program, loops)
    left = [e for e in program.entry.equations if e.callee.name == "scan"]
    assert len(left) == 2 and all(
        type(v.aval) is not TupleType for e in left for v in [*e.inputs, *filter(None, e.outputs)]
    )


def test_a_second_lift_starts_from_the_loops_as_they_were():
    """The pipeline lifts again and again: bodies that were changed are copies."""
    function, args = PROGRAMS["recurrent"]
    program = program_of(trace(function, args, {}), function, "f")
    plain = [(f, f.equations, list(f.params), list(f.results)) for f in walk_functions(program.entry)]
    lift(program)
    assert all(list(f.params) == params and list(f.results) == results for f, _, params, results in plain)


def test_names_inside_a_loop_do_not_give_way_to_keys():
    function, args = PROGRAMS["recurrent"]
    assert "low, high = carry" in untrace.decompile(function)(*args).source


def test_what_only_a_loop_is_passed_and_does_not_read_is_not_written():
    """Zeros that JAX made for a cotangent of `x` are handed to the loop, and no equation in it uses them."""
    function, args = PROGRAMS["recurrent"]
    text = bodies(untrace.decompile(function)(*args).source)["grad_recurrent"]
    for name in re.findall(r"^    (\w+) = ", text, re.M):
        assert len(re.findall(rf"\b{name}\b", text)) > 1, name


def test_calls_in_a_loop_that_checkpoint_marked():
    function, args = PROGRAMS["recurrent_in_parts"]
    found = bodies(untrace.decompile(function)(*args).source)
    assert found["grad_recurrent_in_parts"].count("= cell(params[") == 2


def test_names_in_shared_parts_are_of_the_parameters_not_of_one_call():
    """Numbered layers: what is computed from `layers_1_scale` is called after `scale` in a function that serves all."""

    def norm(x, scale):
        return x * jax.lax.rsqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * scale

    def layer(x, params):
        hidden = jnp.tanh(norm(x, params["before"]["scale"]) @ params["w"])
        return x + norm(hidden, params["after"]["scale"])

    def loss(params, x):
        return (layer(jnp.sin(layer(x, params["layer_0"])), params["layer_1"]) ** 2).sum()

    ones = np.ones(4, np.float32)
    one = {"before": {"scale": ones}, "after": {"scale": ones}, "w": np.ones((4, 4), np.float32)}
    d = untrace.decompile(jax.grad(loss))({"layer_0": one, "layer_1": one}, np.ones((3, 4), np.float32))
    assert "scale_wide" in d.source and "_scale_wide" not in d.source.replace(" scale_wide", ""), d.source
    assert "d_layer_1_w" not in d.source, d.source
