"""A number that a function has in a variable or as a default, and reads at several places, is a number of the text's module."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from work import lines_run

import untrace
from untrace._identity import IdentityMap
from untrace.lift.naming.scopes import Scope
from untrace.provenance.frames import Frame

DENSITY, RATE, ATTACK = 2.0, 16_000, 5.0


def pressure(density, gamma=7):
    return DENSITY / gamma * ((density / DENSITY) ** gamma - 1.0)


def blended(a, b, k=0.25):
    h = jnp.clip(0.5 + 0.5 * (b - a) / k, 0.0, 1.0)
    return b * (1 - h) + a * h - k * h * (1 - h)


def slope(x):
    eps = 0.125

    def at(y):
        return jnp.sin(y) * eps

    return (at(x + eps) - at(x - eps)) / (2 * eps)


def once(x, floor=0.375):
    return jnp.maximum(x, floor)


def turned(x, times=1):
    return jnp.roll(x, times) * times


def smoothing(ms, scale=1000.0):
    """Of a filter."""
    return math.exp(-scale / (ms * RATE))


def filtered(x):
    a = smoothing(ATTACK)
    y = a * x + (1 - a) * jnp.tanh(x)
    return y * smoothing(ms=50.0)


def turned_by(frequency):
    return 2 * math.pi * frequency / RATE


def peaking(x, frequency, q):
    w = turned_by(frequency)
    a0 = 1 + math.sin(w) / (2 * q) + math.cos(w)
    return x / a0 + jnp.tanh(x) * a0


def bank(x):
    for band in ((120.0, 0.8), (1000.0, 1.2), (4000.0, 0.7)):
        x = peaking(x, *band)
    return x


def flow(x):
    return pressure(x)


def surface(x):
    return blended(x, x[::-1])


def kept(x):
    return once(x)


def counted(x):
    return turned(x)


def body_of(text):
    return text.split("\n\n\ndef _")[0].split("\n\n\n", 1)[1]


@pytest.mark.parametrize(
    ("function", "line", "digits"),
    [
        (flow, "PRESSURE_GAMMA = 7", "7"),
        (surface, "BLENDED_K = 0.25", "0.25"),
        (slope, "SLOPE_EPS = 0.125", "0.125"),
    ],
)
def test_one_line_says_it(function, line, digits):
    d = untrace.decompile(function)(jnp.linspace(0.5, 2.0, 5))
    assert line in d.source and digits not in body_of(d.source), d.source
    assert d.proof.level == "jaxpr", d.proof


def test_an_edit_of_it_is_an_edit_of_all():
    x = jnp.linspace(0.5, 2.0, 5)
    edited: dict[str, Any] = {}
    exec(untrace.decompile(flow)(x).source.replace("PRESSURE_GAMMA = 7", "PRESSURE_GAMMA = 5"), edited)
    np.testing.assert_allclose(edited["flow"](x), 2.0 / 5 * ((x / 2.0) ** 5 - 1.0), rtol=1e-5)


def test_what_is_read_once_or_says_nothing_stays_in_digits():
    x = jnp.arange(4.0)
    assert "0.375" in body_of(untrace.decompile(kept)(x).source)
    assert "TIMES" not in untrace.decompile(counted)(x).source


def test_what_a_function_of_numbers_gives_is_its_expression():
    d = untrace.decompile(filtered)(jnp.arange(4.0))
    assert "FILTERED_A = math.exp(-1000.0 / (ATTACK * RATE))" in d.source, d.source
    assert "FILTERED_A * x + (1 - FILTERED_A) * jnp.tanh(x)" in d.source, d.source
    assert "math.exp(-1000.0 / (50.0 * RATE))" in body_of(d.source), d.source
    assert d.proof.level == "jaxpr", d.proof
    assert np.array_equal(d(jnp.arange(4.0)), jax.jit(filtered)(jnp.arange(4.0)))


def test_what_differs_from_call_to_call_is_no_number_of_the_module():
    d = untrace.decompile(bank)(jnp.arange(4.0))
    assert d.proof.level == "jaxpr", d.proof
    assert d.source.count("def peaking(") == 1 and "PEAKING" not in d.source, d.source


def test_a_long_function_is_read_once(tmp_path):
    """And not for each of its variables: a train step of some hundred lines took most of its time for that."""
    path = tmp_path / "long_function.py"
    path.write_text("def long(x):\n" + "".join(f"    a{i} = {i}.5 + 1\n" for i in range(400)) + "    return x * a7\n")
    spec = importlib.util.spec_from_file_location("long_function", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        scope = Scope.of((Frame(module.long.__code__, -1, False, IdentityMap()),))
        assert ast.unparse(scope.meaning("a7")[0]) == "7.5 + 1"
        assert lines_run(lambda: [scope.meaning(f"a{i}") for i in range(400)]) < 400 * 200
    finally:
        del sys.modules[spec.name]
