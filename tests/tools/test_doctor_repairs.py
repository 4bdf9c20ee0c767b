"""How `untrace.doctor` finds a better way of writing in programs that are not written as its table has it."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace import jax_compat
from untrace.capture.jaxpr import Importer
from untrace.ir.evaluate import evaluate
from untrace.tools.doctor.pairs import PAIRS
from untrace.tools.doctor.patterns import Names, matches_in, without_dead
from untrace.tools.doctor.terms import Terms, inlined, restored

VECTOR = np.array([0.5, 1.25, -0.75, 2.0], np.float32)


def repaired(diagnosis: untrace.Diagnosis) -> types.ModuleType:
    module = types.ModuleType("repaired")
    exec(compile(diagnosis.source or "", "repaired.py", "exec"), module.__dict__)
    return module


def names(function, *args):
    """The names of what is found in a function, without running it."""
    traced = inlined(Importer(rules=False).function(jax.make_jaxpr(function)(*args), "f"))
    return {m.pattern.pair.name for m in matches_in(traced, None)}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("softplus of -x", lambda x: jnp.log(1 + 3 * jnp.exp(-0.5 * x))),
        ("tanh", lambda x: (jnp.exp(x) - 1) / (jnp.exp(x) + 1)),
        ("sinc", lambda x: jnp.sin(3 * x) / (3 * x)),
        ("sinc", lambda x: 5 * jnp.sin(3 * x) / x),
        ("exp(x) - 1 - x", lambda x: -0.5 * (1 + x - jnp.exp(x))),
        ("expm1", lambda x: jnp.exp(x) + (jnp.cos(x) - 1)),
        ("logarithm of a number times exp", lambda x: jnp.log(0.4 * jnp.exp(-x * x))),
        ("x * log(x)", lambda x: (f := 1 / (jnp.exp(x) + 1)) * jnp.log(f)),
    ],
)
def test_other_numbers_and_orders_are_the_same_pattern(name, function):
    assert name in names(function, 1.0)


def test_an_order_that_is_another_function_is_not_found():
    assert "exp(x) - 1 - x" not in names(lambda x: 1 + x + jnp.exp(x), 1.0)
    assert "sinc" not in names(lambda x: jnp.sin(x) * x, 1.0)
    assert "tanh" not in names(lambda x: (jnp.exp(x) - 1) / (jnp.exp(2 * x) + 1), 1.0)


def test_a_sum_that_is_multiplied_by_zero_is_no_pattern():
    assert not names(lambda x: jnp.tanh(x) * 0.1 * 0, 1.0)
    names(lambda x: (1 + jnp.exp(x)) * 0.0 + jax.nn.gelu(x) - jax.nn.softplus(x), 1.0)


def test_what_is_bound_may_be_a_multiple_of_a_value_or_stand_beside_an_array():
    def reflected(v, t):
        d = 0.5 * v * jnp.sqrt(t)
        return jax.scipy.stats.norm.cdf(d) - jax.scipy.stats.norm.cdf(-d)

    assert "normal distribution and its reflection" in names(reflected, 1.0, 2.0)
    assert "saturation by a power" in names(lambda x, h, n: x**n / (h**n + x**n), VECTOR, 2.0, 4.0)
    assert "norm" in names(lambda x: jnp.sqrt(3 * jnp.sum(x * x)), VECTOR)


def squared_angle(c):
    return jnp.sum(jnp.where(c < 1, jnp.arccos(c), 0.0) ** 2)


def test_a_zero_before_the_reciprocal_of_a_root():
    found = untrace.doctor(jax.grad(squared_angle))(np.array([0.25, 1.0], np.float32))
    assert repaired(found).squared_angle(np.array([0.5, 1], np.float32)) == pytest.approx([-2.4183991, 0])


def test_a_call_whose_operands_are_gone_is_not_put_back():
    def f(x):
        both = jax.jit(lambda h, x: (h + 1, x * 2))
        return both(jnp.sin(x), x)[1]

    calls = []
    program = without_dead(inlined(Importer(rules=False).function(jax.make_jaxpr(f)(1.0), "f"), calls))
    assert calls and evaluate(restored(program, calls), jnp.float32(3)) == [6]


def test_products_of_vectors_are_sums():
    assert "norm" in names(lambda x: jnp.sqrt(jnp.dot(x, x)), VECTOR)
    assert "softmax" in names(lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x)), jnp.asarray(VECTOR, jnp.bfloat16))


def cross_entropy(x):
    return -jnp.log(jax.nn.softmax(x)[1])


def test_behind_an_index_and_before_the_derivative():
    x = np.array([0, -200, 3, 1], np.float32)
    found = untrace.doctor(cross_entropy)(VECTOR)
    assert repaired(found).cross_entropy(x) == pytest.approx(203.16985)
    slope = untrace.doctor(jax.grad(cross_entropy))(VECTOR)
    assert np.allclose(repaired(slope).cross_entropy(x), jax.nn.softmax(x) - np.array([0, 1, 0, 0]), atol=1e-6)


def test_what_takes_the_same_derivative():
    inner, derivative = jax_compat.differentiated(jax.jit(jax.value_and_grad(cross_entropy, has_aux=False)))
    assert inner is cross_entropy
    assert derivative(lambda x: 2 * jnp.sum(x))(VECTOR)[1].tolist() == [2, 2, 2, 2]
    assert jax_compat.differentiated(cross_entropy) is None and jax_compat.differentiated(jax.vmap(jnp.sin)) is None


def regression(x, y):
    n = x.size
    return (n * jnp.sum(x * y) - jnp.sum(x) * jnp.sum(y)) / (n * jnp.sum(x * x) - jnp.sum(x) ** 2)


def test_two_places_that_hide_each_other():
    x, y = VECTOR + 1000, VECTOR * 2
    found = untrace.doctor(regression)(VECTOR + 100, y)
    assert len(found.repairs) == 2
    assert repaired(found).regression(x, y) == pytest.approx(2.0, rel=1e-6)


def rescaled(x):
    return x * 1000 / 2000


def test_sixteen_bits_are_widened_where_nothing_else_helps():
    found = untrace.doctor(rescaled)(jnp.float16(2))
    assert found.repairs == ("in float32",) and found.source, found.proof
    result = repaired(found).rescaled(jnp.float16(300))
    assert result == 150 and result.dtype == jnp.float16


def root_mean_square(x):
    return jnp.sqrt(jnp.mean(x * x))


def test_a_value_that_is_widened_once_is_read_twice():
    """The conversion is one equation, which a product of both could take in for one of its operands only."""
    found = untrace.doctor(root_mean_square)(jnp.full(8, 300, jnp.float16))
    assert found.source, found.proof
    assert repaired(found).root_mean_square(jnp.full(8, 300, jnp.float16)) == 300


@pytest.mark.parametrize(
    "function", [lambda p: -p * jnp.log(p), lambda x: jnp.log(jnp.sinh(x)) - jnp.log(jnp.expm1(x))]
)
def test_no_derivative_where_there_is_none(function):
    """Beside 0 the first grows without end; the second has no value at negative numbers."""
    found = untrace.doctor(jax.grad(function))(0.75)
    assert not any("-" in f.example or f.example == "p = 0." for f in found.findings)


@pytest.mark.parametrize(
    ("function", "args", "exact"),
    [
        (lambda e, p: jnp.log((e + p) / (e - p)), (10.0, 1e-3), lambda e, p: 2 * np.arctanh(p / e)),
        (lambda x, e: (x + e) ** 5 - (x - e) ** 5, (3.0, 1e-3), lambda x, e: 2 * e * (5 * x**4 + 10 * x**2 * e**2 + e**4)),
        (lambda x, h: jax.nn.sigmoid(x + h) - jax.nn.sigmoid(x - h), (2.0, 1e-3),
         lambda x, h: -np.expm1(-2 * h) / ((1 + np.exp(-x - h)) * (1 + np.exp(x - h)))),
    ],
)  # fmt: skip
def test_a_difference_is_that_of_what_is_different(function, args, exact):
    """What two values have in common is left out, and not computed twice and taken away."""

    def difference(*args):
        return function(*args)

    diagnosis = untrace.doctor(difference)(*args)
    assert diagnosis.findings
    better = repaired(diagnosis).difference
    for scale in (1.0, 1e-2):
        point = [np.float32(x) for x in (args[0], args[1] * scale)]
        wanted = exact(*np.float64(point))
        np.testing.assert_allclose(np.float64(better(*point)), wanted, rtol=5e-7)


def test_what_is_no_sum_has_no_common_part():
    def of(function, *args):
        traced = inlined(Importer(rules=False).function(jax.make_jaxpr(function)(*args), "f"))
        return Terms(traced).difference([(traced.results[0], 1.0), (traced.results[1], -1.0)])

    assert of(lambda x, y: (x * y, x), 1.0, 2.0) is None
    gap = of(lambda x, y: (x + y + 1, x - 2 * y + 3), 1.0, 2.0)
    assert gap is not None and [times for _, times in gap.items] == [3.0] and gap.number == -2.0
    only = of(lambda x: (x + 0.5, x - 0.5), 1.0)
    assert only is not None and not only.items and only.number == 1.0


def test_the_sign_of_what_is_never_negative_is_left_out():
    assert "softplus" in names(lambda x: jnp.log(jnp.abs(1 + jnp.exp(x))), 1.0)
    assert "log1p" not in names(lambda x: jnp.log(jnp.abs(1 + x)), 1.0)


def test_only_what_a_program_has_the_operations_of_is_looked_for():
    traced = inlined(Importer(rules=False).function(jax.make_jaxpr(lambda x: 1 / jnp.sqrt(1 + x) - 1)(1.0), "f"))
    sought = {pair.name for pair in PAIRS if [*Names(Terms(traced).operations, None, None).ways(pair)]}
    assert {"1 / sqrt(1 + x) - 1", "difference of squares"} <= sought
    assert not sought & {"softplus", "sinc", "logsumexp", "tanh"}
    # Of a derivative what is differentiated says more.
    assert [*Names(Terms(traced).operations, frozenset({"log", "exp"}), None).ways(PAIRS[0])]


def survival(deaths, at_risk):
    return jnp.log(jnp.cumprod(1 - deaths / at_risk))


def total_return(returns):
    return jnp.prod(1 + returns) - 1


def effective_size(log_weights):
    return jnp.sum(jnp.exp(log_weights)) ** 2 / jnp.sum(jnp.exp(2 * log_weights))


def regressed(query, places, heights):
    weights = jnp.exp(-0.5 * ((query - places) / 0.5) ** 2)
    return jnp.sum(weights * heights) / jnp.sum(weights)


def pull(place, sun):
    d = place - sun
    return -1.327e20 * d / jnp.sum(d * d) ** 1.5


SMALL = np.array([1e-3, 2e-4, 5e-4, 3e-3], np.float32)
FAR = np.array([2e13, 3e13, -1e12], np.float32)
WEIGHTS = np.array([-100, -101.5, -99, -104], np.float32)


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (survival, (np.array([1, 2, 1, 1], np.float32), np.array([4e3, 39e2, 385e1, 37e2], np.float32)),
         "logarithm of a running product"),
        (total_return, (SMALL,), "growth of many"),
        (effective_size, (WEIGHTS,), "effective sample size"),
        (regressed, (10.0, np.array([0, 0.5, 2], np.float32), np.array([1, 3, 4], np.float32)),
         "mean weighted by exponentials"),
        (pull, (FAR, 0 * FAR), "vector by the cube of its length"),
    ],
)  # fmt: skip
def test_sums_and_products_of_many(function, args, name):
    found = untrace.doctor(function)(*args)
    assert name in found.repairs, found
    with jax.enable_x64(True):
        wanted = function(*[jnp.asarray(np.asarray(a, np.float64)) for a in args])
    np.testing.assert_allclose(getattr(repaired(found), function.__name__)(*args), wanted, rtol=1e-6)


def test_what_helps_only_together_wherever_it_is_found():
    def correlation(x, y):
        def moment(a, b):
            return jnp.mean(a * b) - jnp.mean(a) * jnp.mean(b)

        return moment(x, y) / jnp.sqrt(moment(x, x) * moment(y, y))

    x, y = np.array([[10001.25, 10002, 10004.5, 10009.25], [5030.5, 5050, 5041.5, 5120]], np.float32)
    found = untrace.doctor(correlation)(x, y)
    assert sorted(found.repairs) == ["covariance by differences", "variance by differences"]
    wanted = np.corrcoef(x.astype(np.float64), y.astype(np.float64))[0, 1]
    assert abs(float(repaired(found).correlation(x, y)) - wanted) < 1e-6


@pytest.mark.parametrize(
    ("name", "function", "args"),
    [
        ("(exp(c x) - 1) / x", lambda x, c: (jnp.exp(c * x) - 1) / x, (-2.0, 0.01)),
        ("second difference of cosines", lambda x, h: jnp.cos(x + h) - 2 * jnp.cos(x) + jnp.cos(x - h), (0.7, 0.01)),
        ("standardised", jax.vmap(lambda v: (v - jnp.mean(v)) / jnp.std(v)), (np.stack([VECTOR, VECTOR * 0 + 3]),)),
        ("logarithm of the size of exp over something",
         lambda x, s: jnp.log(jnp.prod(jnp.exp(-x * x) / s)), (10 * VECTOR, VECTOR**2)),
    ],
)  # fmt: skip
def test_repairs_at_their_limits(name, function, args):
    found = untrace.doctor(function)(*args)
    assert name in found.repairs, found


def test_a_power_that_keeps_its_sign_has_a_derivative_at_zero():
    def loss(x):
        return jnp.sum(x * jnp.abs(x) ** 0.75)

    found = untrace.doctor(jax.grad(loss))(np.array([0.5, -2.0, 0.0], np.float32))
    assert found.repairs == ("x * |x|**p",)
    slope = repaired(found).loss
    np.testing.assert_allclose(slope(np.array([0.0, 1.0, -1.0], np.float32)), [0.0, 1.75, 1.75], rtol=1e-6)


def test_points_have_no_distance_from_themselves_however_they_are_moved():
    """The derivative there is known from points that are a little apart."""

    def repulsion(places):
        gaps = places[:, None] - places[None]
        distances = jnp.sqrt(jnp.sum(gaps * gaps, axis=-1))
        return jnp.sum(jnp.exp(-distances))

    places = np.array([[0, 1], [2, -0.5], [-1, 3], [0.5, 0.25]], np.float32)
    found = untrace.doctor(jax.grad(repulsion))(places)
    assert found.repairs == ("norm, its derivative",)
    gaps = places[:, None] - places[None]
    distances = np.linalg.norm(gaps, axis=-1, keepdims=True) + 1e-30
    wanted = np.sum(-2 * np.exp(-distances) * gaps / distances, axis=1)
    np.testing.assert_allclose(repaired(found).repulsion(places), wanted, rtol=1e-5)


def test_a_repair_holds_at_other_sizes_whatever_was_traced_before():
    def slope(places):
        distances = jnp.linalg.norm(places[:, None] - places[None], axis=-1)
        return jnp.sum(distances**2 / (1 + distances))

    jax.clear_caches()  # else what looks for pairs has been traced before, and takes no equations
    found = untrace.doctor(jax.grad(slope))(jnp.array([[0, 1, 0.5], [2, -0.5, 1], [-1, 3, 0.25]], jnp.float32))
    assert "places: f32[n,m]" in found.source


def test_a_small_repair_leaves_a_larger_one_its_place():
    def log_likelihood(hits, tries, chances):
        return hits * jnp.log(chances) + (tries - hits) * jnp.log(1 - chances)

    args = [np.array(x, np.float32) for x in ([0, 3, 5], [4, 10, 5], [0, 0.25, 1])]
    found = untrace.doctor(log_likelihood)(*args)
    assert set(found.repairs) == {"x * log(1 - y)", "x * log(y)"}


def test_complex_numbers_and_long_programs_are_read():
    def strength(signal):
        spectrum = jnp.fft.rfft(signal)
        return jnp.sum(jnp.real(spectrum * (1 - 0.5j)) ** 2)

    def settled(x):
        for _ in range(300):
            x = jnp.cos(x) * 0.5 + x * 0.25
        return x

    signal = np.array([0.5, -1, 2, 0.25], np.float32)
    assert not untrace.doctor(jax.grad(strength))(signal).findings
    assert not untrace.doctor(settled)(0.3).findings
