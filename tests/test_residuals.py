"""Backward parts of functions that are called several times, and what goes to them from the forward parts."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.capture.function import program_of, trace
from untrace.ir.check import check
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Local, Pack, Unpack, walk_functions
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


X = jax.random.normal(KEY, (3, 4))
PROGRAMS = {
    "two_norms": (jax.value_and_grad(two_norms, argnums=(0, 1)), (layer(), X)),
    "two_blocks": (jax.grad(two_blocks, argnums=(0, 1)), ([layer(1), layer(2)], X)),
    "used_otherwise": (jax.grad(used_otherwise), (layer(), X)),
    "three_blocks": (jax.value_and_grad(two_blocks), ([layer(1), layer(2), layer(3)], X)),
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
    assert {"norm", "norm_bwd"} <= set(found)
    assert found["two_norms_and_grad"].count("norm_bwd(") == 2
    assert "saved = (" in found["norm"] and re.search(r"^    .* = saved$|^    \) = saved$", found["norm_bwd"], re.M)


def test_what_is_saved_inside_goes_along():
    """A function that calls another one passes on what that saved, as one value."""
    function, args = PROGRAMS["three_blocks"]
    found = bodies(untrace.decompile(function)(*args).source)
    assert "norm_saved" in found["block"] and "norm_bwd(" in found["block_bwd"]
    assert found["two_blocks_and_grad"].count("block_bwd(") == 2


def test_names_inside_a_backward_part_are_those_of_the_forward_part():
    function, args = PROGRAMS["two_norms"]
    found = bodies(untrace.decompile(function)(*args).source)
    head = found["norm_bwd"].splitlines()[0]
    assert "first" not in found["norm_bwd"] and "second" not in found["norm_bwd"], head


def test_starred_arguments_have_the_names_of_the_parameters():
    text = untrace.decompile(lambda params, x: norm(norm(x, *params["first"]), *params["second"]))(layer(), X).source
    assert "scale, bias = params" in text
