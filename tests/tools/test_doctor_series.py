"""Differences that cancel near a point, or far out, become their power series there, whatever they are of."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import untrace
from untrace.capture.jaxpr import Importer
from untrace.tools.doctor.patterns import matches_in
from untrace.tools.doctor.terms import inlined

MP = mpmath.mp.clone()
MP.prec = 300


def repaired(function, *args):
    diagnosis = untrace.doctor(function)(*args)
    assert diagnosis.source is not None, diagnosis
    module = types.ModuleType("repaired")
    exec(compile(diagnosis.source, "repaired.py", "exec"), module.__dict__)
    return module.__dict__["lambda_"]


LIMIT = 16  # beyond which the doctor finds fault


def ulp(found, exact):
    assert np.isfinite(found)
    return float(abs(MP.mpf(float(found)) - exact) / MP.mpf(float(np.spacing(np.float32(abs(float(exact)))))))


@pytest.mark.parametrize(
    ("function", "exact", "points"),
    [
        (lambda x: x - jnp.tan(x), lambda x: x - MP.tan(x), [1e-3, 0.02, -0.4, 0.9, 1.2]),
        (lambda x: jnp.exp(x) - 2 + jnp.exp(-x), lambda x: 4 * MP.sinh(x / 2) ** 2, [1e-4, -0.03, 0.5, 3.0]),
        (lambda x: 1 / x - 1 / jnp.tan(x), lambda x: 1 / x - 1 / MP.tan(x), [1e-4, 0.01, -0.3, 1.0]),
        (
            lambda x: 1 / (x + 1) - 2 / x + 1 / (x - 1),
            lambda x: 2 / (x * (x * x - 1)),
            [1.5, 4.0, 100.0, -3e3, 1e5],
        ),
        (
            lambda x: (x - jnp.sin(x)) / (x - jnp.tan(x)),
            lambda x: (x - MP.sin(x)) / (x - MP.tan(x)),
            [1e-3, 0.05, -0.6, 1.2],
        ),
        (lambda x: x * jnp.log(x) - x + 1, lambda x: x * MP.log(x) - x + 1, [1.001, 0.98, 1.3, 3.0]),
    ],
)
def test_what_no_pattern_says_becomes_a_series(function, exact, points):
    better = repaired(function, np.float32(2.0))
    for point in map(np.float32, points):
        assert ulp(better(point), exact(MP.mpf(float(point)))) <= LIMIT, point


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda x, y: x / y - 1 - jnp.log(x / y), lambda r: r - 1 - MP.log(r)),
        (lambda x, y: jnp.log(x / y) - jnp.sin(x / y - 1), lambda r: MP.log(r) - MP.sin(r - 1)),
    ],
)
def test_of_a_quotient_near_1_by_the_difference(function, exact):
    better = repaired(function, np.float32(2.0), np.float32(1.75))
    for x, y in [(2, 1.75), (2, 2.0001), (100.5, 101), (3, 7)]:
        x, y = np.float32(x), np.float32(y)
        assert ulp(better(x, y), exact(MP.mpf(float(x)) / MP.mpf(float(y)))) <= LIMIT, (x, y)


def test_of_the_value_that_all_of_it_comes_from():
    """Not of the arguments: the product is the one variable here."""

    def f(a, x):
        t = a * x
        return jnp.sum((jnp.tanh(t) - t) * x)

    traced = inlined(Importer(rules=False).function(jax.make_jaxpr(f)(jnp.ones(3), jnp.ones(3)), "f"))
    (found,) = [m for m in matches_in(traced, None) if m.pattern.pair.name.startswith("power series")]
    assert found.pattern.pair.name == "power series near 0"
    assert found.bound[0].atom is next(e for e in traced.equations if e.callee.name == "mul").outputs[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - jnp.sin(x + 1),  # nothing cancels at 0
        lambda x: jnp.sqrt(x) - x,  # no power series
        lambda x: x - jnp.abs(x),
        lambda x: jnp.log(x) - x,
    ],
)
def test_what_has_no_series_or_needs_none_has_none(function):
    traced = inlined(Importer(rules=False).function(jax.make_jaxpr(function)(1.0), "f"))
    assert not [m for m in matches_in(traced, None) if m.pattern.pair.name == "power series near 0"]
