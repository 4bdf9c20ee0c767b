"""What a program does beside computing: mutable arrays of its own, and what it prints."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

EAGER = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
TARGETS = ["c", *EAGER]


def histogram(values, edges):
    counts = jax.new_ref(jnp.zeros(edges.shape[0] + 1, jnp.int32))

    def observe(total, value):
        counts[jnp.sum(value > edges)] += 1
        return total + value, lax.cond(value > 0, lambda: counts[0], lambda: counts[-1])

    total, seen = lax.scan(observe, 0.0, values)
    return counts[...], total, seen


@pytest.mark.parametrize("target", TARGETS)
def test_a_mutable_array_is_one_that_loops_pass_on(target):
    args = np.float32([0.5, -1.5, 2.5, 0.1, 3.0]), np.float32([-1.0, 0.0, 1.0])
    text = untrace.decompile(histogram, target=target)(*args)
    for found, expected in zip(text(*args), histogram(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_a_mutable_array_that_is_given_is_refused(target):
    def bumped(counts):
        counts[0] += 1

    with pytest.raises(untrace.UnsupportedPrimitiveError, match="`swap` from .*test_effects.py"):
        untrace.decompile(bumped, target=target)(jax.new_ref(jnp.zeros(3)))


def shown(x):
    y = jnp.cumsum(x)
    jax.debug.print("the sum {} of {n}", y[-1], n=y.shape[0])

    def step(total, one):
        jax.debug.print("at {}", total)
        return total + one, total * one

    return lax.scan(step, jnp.int32(0), y)


@pytest.mark.parametrize("target", EAGER)
def test_what_is_printed_is_printed(target, capsys):
    x = np.arange(3, dtype=np.int32)
    text = untrace.decompile(shown, target=target)(x)
    assert capsys.readouterr().out == ""  # of what the proof runs
    text(x)
    assert capsys.readouterr().out == "the sum 3 of 3\nat 0\nat 0\nat 1\n"


def test_c_prints_nothing_and_says_so():
    text = untrace.decompile(shown, target="c")(np.arange(3, dtype=np.int32))
    assert text.notes == (
        "the text prints nothing: `jax.debug.print('the sum {} of {n}')` is not in it",
        "the text prints nothing: `jax.debug.print('at {}')` is not in it",
    )


@pytest.mark.parametrize("target", TARGETS)
def test_what_calls_back_is_refused(target):
    def seen(x):
        jax.debug.callback(print, x)
        return x * 2

    with pytest.raises(untrace.UnsupportedPrimitiveError, match="`debug_callback` from .*test_effects.py"):
        untrace.decompile(seen, target=target)(np.float32(1))
