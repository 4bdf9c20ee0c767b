"""The exact arithmetic beside which the doctor looks at a program."""

from __future__ import annotations

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from untrace.capture.jaxpr import Importer
from untrace.tools.doctor import exact
from untrace.tools.doctor.pairs import PAIRS
from untrace.tools.doctor.tape import taped
from untrace.tools.doctor.terms import Terms, inlined
from untrace.tools.doctor.ulps import errors, lost, truth_of

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


def value(name, *args, **params):
    exact.set_digits(np.float32)
    found = exact.primitive(name, [exact.exact_of(np.array([x])) for x in args], params)
    return exact.parts_of(found)[0][0]


@settings(deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_sums_lose_nothing(x, y, z):
    exact.set_digits(np.float32)
    a, b, c = (exact.exact_of(np.array([v])) for v in (x, y, z))
    total = exact.primitive("sub", [exact.primitive("add", [exact.primitive("mul", [a, b], {}), c], {}), c], {})
    wanted = fractions.Fraction(x) * fractions.Fraction(y)
    high, low = exact.parts_of(total)
    assert fractions.Fraction(high[0]) + fractions.Fraction(low[0]) == pytest.approx(wanted, rel=1e-25)


@given(st.floats(min_value=-600, max_value=600))
def test_what_is_left_of_a_difference_from_one(x):
    exact.set_digits(np.float32)
    one = exact.exact_of(np.array([1.0]))
    s = exact.primitive("logistic", [exact.exact_of(np.array([x]))], {})
    left = exact.parts_of(exact.primitive("sub", [one, s], {}))[0][0]
    assert left == pytest.approx(1 / (1 + math.exp(x)), rel=1e-12)


def test_zeros_that_are_meant_and_zeros_that_happen():
    exact.set_digits(np.float32)
    infinite = exact.exact_of(np.array([np.inf]))
    meant, happened = exact.exact_of(np.zeros(1), True), exact.exact_of(np.zeros(1))
    assert exact.parts_of(exact.primitive("mul", [meant, infinite], {}))[0][0] == 0
    assert np.isnan(exact.parts_of(exact.primitive("mul", [happened, infinite], {}))[0][0])


@pytest.mark.parametrize(
    ("name", "x", "left"),
    [
        ("erf", 5.0, math.erfc(5)),
        ("erf", 25.0, math.erfc(25)),
        ("tanh", 20.0, 2 * math.exp(-40)),
        ("tanh", 0.5, 1 - math.tanh(0.5)),
    ],
)
def test_what_is_nearly_one_is_not_one(name, x, left):
    whole = exact.primitive(name, [exact.exact_of(np.array([x]))], {})
    rest = exact.primitive("sub", [exact.exact_of(np.ones(1)), whole], {})
    assert exact.parts_of(rest)[0][0] == pytest.approx(left, rel=1e-12)
    assert value(name, -x) == -exact.parts_of(whole)[0][0]
    assert value("erfc", -x) == pytest.approx(2 - math.erfc(x), rel=1e-12)


def test_two_numbers_that_are_nearly_one_are_not_known_to_be_the_same():
    far = [exact.primitive("logistic", [exact.exact_of(np.array([x]))], {}) for x in (1e6, 1e9)]
    assert np.isnan(exact.parts_of(exact.primitive("sub", far, {}))[0][0])
    near = [exact.primitive("logistic", [exact.exact_of(np.array([x]))], {}) for x in (3.0, 3.0)]
    assert exact.parts_of(exact.primitive("sub", near, {}))[0][0] == 0


def test_no_value_outside_of_a_domain():
    assert np.isnan(value("log", -1.0)) and np.isnan(value("sqrt", -1.0)) and np.isnan(value("asin", 2.0))
    assert value("log", 0.0) == -np.inf


@pytest.mark.parametrize("name", ["exp", "log1p", "expm1", "sin", "tanh", "erf", "erfc", "logistic", "lgamma", "cbrt"])
@settings(max_examples=20, deadline=None)
@given(st.floats(min_value=0.01, max_value=20))
def test_elementary_functions_are_those_of_jax(name, x):
    with jax.enable_x64(True):
        primitive = getattr(jax.lax, name)
        at_its_zeros = 1e-13 if name == "lgamma" else 1e-300  # JAX's rounds there
        assert value(name, x) == pytest.approx(float(primitive(jnp.float64(x))), rel=1e-9, abs=at_its_zeros)


@given(NUMBERS)
def test_a_number_is_not_off_from_itself(x):
    truth = truth_of(exact.exact_of(np.array([x])))
    assert errors(np.array([np.float32(x)]), truth, np.float32)[0] == 0
    assert errors(np.array([np.nextafter(np.float32(x), np.float32(0))]), truth, np.float32)[0] <= 2


def test_what_is_too_large_or_too_small_is_lost_but_right():
    exact.set_digits(np.float32)
    large = exact.primitive("exp", [exact.exact_of(np.array([100.0, -2000.0, 5000.0]))], {})
    truth, rounded = truth_of(large), np.array([np.inf, 0, np.inf], np.float32)
    assert not errors(rounded, truth, np.float32).any()
    assert lost(rounded, truth.low[0], np.float32).all()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(min_value=-3, max_value=3, width=32, allow_subnormal=False), min_size=4, max_size=4))
def test_a_program_beside_its_exact_self(xs):
    def program(x):
        y = jnp.where(x > 0, jnp.sort(x)[::-1], jnp.concatenate([x[1:], x[:1]]))
        total, _ = jax.lax.scan(lambda c, v: (0.5 * c + v, None), 0.0, y)
        return jax.lax.cond(total > 0, jnp.sin, jnp.cos, total) + y[jnp.argmax(x)]

    exact.set_digits(np.float32)
    x = np.array([xs, xs[::-1]], np.float32)
    function = Importer().function(jax.make_jaxpr(program)(x[0]), "program")
    tape = taped(function, [x], 2)
    (found,) = tape.results
    assert np.allclose(exact.parts_of(np.asarray(found.exact))[0], jax.vmap(program)(x), atol=1e-5)


def test_the_ways_of_writing_the_same_are_one_term():
    def term(function):
        traced = inlined(Importer().function(jax.make_jaxpr(function)(1.0, 2.0), "f"))
        terms = Terms(traced)

        def shown(x):
            found = terms.term(x)
            if isinstance(found, float):
                return found
            return (found.name, *map(shown, found.args)) if hasattr(found, "args") else traced.params.index(found)

        return shown(traced.results[0])

    assert term(lambda x, y: x - 1) == term(lambda x, y: x + -1)
    assert term(lambda x, y: x * x) == term(lambda x, y: x**2) == term(lambda x, y: jnp.square(x))
    assert term(lambda x, y: -x * y / 2) == term(lambda x, y: 0.5 * (x * -y))
    assert term(lambda x, y: x * (1 / y)) == term(lambda x, y: x / y)
    assert term(lambda x, y: x - y) != term(lambda x, y: y - x)


@pytest.mark.parametrize("pair", [p for p in PAIRS if not p.arrays], ids=lambda p: p.name)
def test_both_sides_of_a_pair_are_the_same_function(pair):
    def sample(kind, seed):
        values = np.random.default_rng(seed).uniform(0.05, 0.9, 64)
        return jnp.asarray(values < 0.5 if kind == "bool" else values)

    with jax.enable_x64(True):
        args = [sample(kind, i) for i, kind in enumerate(pair.holes)]
        better = pair.better(*args)
        for written in pair.written:
            assert np.allclose(written(*args), better, rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("pair", [p for p in PAIRS if p.arrays], ids=lambda p: p.name)
def test_both_sides_of_a_pair_of_arrays_are_the_same_function(pair):
    with jax.enable_x64(True):
        args = [jnp.asarray(np.random.default_rng(i).uniform(0.05, 0.9, 6)) for i in range(len(pair.holes))]
        better = pair.better(*args, axis=0, keepdims=False)
        for written in pair.written:
            assert np.allclose(written(*args, axis=0, keepdims=False), better, rtol=1e-6, atol=1e-9)
