"""What `untrace.doctor` does not tell: what goes wrong only where nobody's inputs are, or what nobody could mend."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import untrace
from untrace.tools.doctor import api, exact
from untrace.tools.doctor.blame import Blamed
from untrace.tools.doctor.examine import LIMIT, examine


def sagitta(radius, half_chord):
    return half_chord**2 / (radius + jnp.sqrt((radius - half_chord) * (radius + half_chord)))


def test_what_has_no_repair_is_asked_of_inputs_of_the_given_signs():
    found = untrace.doctor(sagitta)(6.4e6, 250.0)
    assert found, found


def test_what_has_no_repair_is_asked_of_inputs_of_the_given_sizes():
    def mass(first, second, rapidity_gap, angle_gap):
        opening = jnp.sinh(rapidity_gap / 2) ** 2 + jnp.sin(angle_gap / 2) ** 2
        return 2 * jnp.sqrt(first * second * opening)

    found = untrace.doctor(mass)(50.0, 45.0, 2.0**-7, 2.0**-8)
    assert found, found
    assert untrace.doctor(mass)(50.0, 45.0, 64.0, 2.0).findings


def test_nor_of_one_that_is_next_to_nothing_beside_others():
    def log_odds_ratio(treated, control):
        return jnp.log1p((treated - control) / (control * (1 - treated)))

    found = untrace.doctor(log_odds_ratio)(0.5, 0.4999)
    assert found, found


def test_where_signs_were_given_or_one_number_only_they_are_asked_of_too():
    assert untrace.doctor(sagitta)(-6.4e6, 250.0).findings
    assert untrace.doctor(lambda x: jnp.sqrt(x * x + 1) + x)(1.0).findings


def test_a_derivative_of_what_is_infinite():
    def energy(places, charges):
        squares = jnp.sum((places[:, None] - places[None]) ** 2, axis=-1)
        same = jnp.eye(len(places), dtype=bool)
        distances = jnp.sqrt(jnp.where(same, 1.0, squares))
        return 0.5 * jnp.sum(jnp.where(same, 0.0, jnp.outer(charges, charges) / distances))

    places = np.array([[0, 1, 0], [2, 0.5, 4], [-1, 3, 1]], np.float32)
    found = untrace.doctor(jax.grad(energy))(places, np.array([1, 0.5, 2], np.float32))
    assert found, found


def test_a_repair_that_is_for_the_given_signs_has_to_help_there():
    def time_to_fall(speed, height):
        return 2 * height / (speed + jnp.sqrt(speed**2 + 2 * 9.81 * height))

    found = untrace.doctor(time_to_fall)(3000.0, 0.5)
    assert found, found
    assert untrace.doctor(time_to_fall)(-3000.0, 0.5).findings


def test_of_several_arrays_two_are_made_equal():
    def distance(spot, start, end):
        (x, y), (u, v) = spot - start, end - start
        return jnp.abs(u * y - v * x) / jnp.hypot(u, v)

    line = [np.array(p, np.float32) for p in ([60107, 43102.5], [60101, 43100], [60111, 43120])]
    found = untrace.doctor(distance)(*line)
    assert found, found

    def height(spot, start, end):  # without a value where two are equal, which are made so
        return jnp.linalg.norm(end - spot) / jnp.linalg.norm(start - spot) * jnp.linalg.norm(start - spot)

    assert untrace.doctor(height)(*line).findings


def test_what_is_only_magnified_a_little_and_has_no_repair():
    patient = api._Patient(lambda x: (x + 100.0) - 100.0, (0.5,), {}, frozenset(), frozenset(), 0)
    found = examine(patient._program, patient._samples)
    wrong = int(np.flatnonzero((found.unexplained > LIMIT) & patient._samples.likely)[0])
    heavy = Blamed(found.tape.steps[-1], 0, "cancellation", "", 0.0, False)  # of a sample on which nothing is wrong
    told = [
        patient._severity(found, api._Group(("", 0, ""), [heavy, dataclasses.replace(heavy, row=wrong, slight=slight)]))
        for slight in (False, True)
    ]
    assert told[0] is not None and told[1] is None


def attention_pool(scores, mask, values):
    def pool(row, seen):
        return (jax.nn.softmax(jnp.where(seen > 0, row, -1e9)) * seen) @ values

    return jnp.sum(jax.vmap(pool)(scores, mask))


def test_what_is_left_of_a_difference_beyond_all_bits_is_not_known():
    exact.set_digits(np.dtype(np.float32))
    one = exact.exact_of(np.ones(1))
    tiny = exact.primitive("exp", [exact.exact_of(np.full(1, -1e9))], {})
    nearly = exact.primitive("sub", [one, tiny], {})
    left = exact.primitive("sub", [one, nearly], {})
    assert exact.is_unknown(left).all()
    assert exact.is_unknown(exact.primitive("mul", [left, one], {})).all()
    nothing = exact.primitive("div", [one * 0, one * 0], {})
    assert np.isnan(exact.parts_of(nothing)[0]).all() and not exact.is_unknown(nothing).any()


def test_the_derivative_of_a_softmax_of_which_one_is_left():
    scores = np.array([[1, 0.5, -1], [0.25, 2, 0]], np.float32)
    mask = np.array([[1, 1, 0], [0, 0, 0]], np.float32)
    found = untrace.doctor(jax.grad(attention_pool))(scores, mask, np.array([1, -2, 3], np.float32))
    assert found, found


def test_what_is_often_wrong_but_seldom_matters():
    def jensen_shannon(p, q):
        middle = (p + q) / 2
        return jnp.sum(jax.scipy.special.rel_entr(p, middle) + jax.scipy.special.rel_entr(q, middle)) / 2

    found = untrace.doctor(jensen_shannon)(*[np.array(x, np.float32) for x in ([0, 0.25, 0.75, 0], [0.5, 0, 0.5, 0])])
    assert found, found


def test_a_derivative_of_which_little_is_left_beside_its_others():
    def attention(x):
        scores = jnp.where(jnp.tri(3, dtype=bool), x @ x.T, -1e9)
        return jnp.sum(jax.nn.softmax(scores, axis=-1) @ x)

    found = untrace.doctor(jax.grad(attention))(np.array([[0.2, 1], [-0.5, 0.3], [1.5, 0.7]], np.float32))
    assert found, found


def test_what_the_last_bits_of_the_inputs_explain_only_by_their_squares():
    def kurtosis(x):
        off = x - jnp.mean(x)
        return jnp.mean(off**4) / jnp.mean(off**2) ** 2

    found = untrace.doctor(kurtosis)(np.array([0.5, 1.25, -0.75, 4], np.float32))
    assert found, found


def test_a_better_way_for_inputs_that_are_far_larger_and_rare():
    def kernel(angles, centre, concentration):
        return jnp.exp(concentration * (jnp.cos(angles - centre) - 1))

    angles = np.array([0.01, 0.5, 3], np.float32)
    assert untrace.doctor(kernel)(angles, 0.02, 2.0), "only a concentration of 100 loses digits"
    assert untrace.doctor(kernel)(angles, 0.02, 200.0).findings
