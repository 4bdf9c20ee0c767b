"""What `untrace.doctor` does not tell: what goes wrong only where the inputs have no business to be, or that nobody could mend."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.capture.function import expand, trace
from untrace.capture.jaxpr import Importer
from untrace.tools.doctor import api
from untrace.tools.doctor.blame import Blamed
from untrace.tools.doctor.examine import LIMIT, examine
from untrace.tools.doctor.samples import samples_of
from untrace.tools.doctor.ulps import lost


def sagitta(radius, half_chord):
    return half_chord**2 / (radius + jnp.sqrt((radius - half_chord) * (radius + half_chord)))


def time_to_fall(speed, height):
    return 2 * height / (speed + jnp.sqrt(speed**2 + 2 * 9.81 * height))


def larger_root(p, q):
    larger = p + jnp.sqrt(p * p - q)
    return jnp.stack([larger, q / larger])


@pytest.mark.parametrize(
    "function, args", [(sagitta, (6.4e6, 250.0)), (time_to_fall, (3000.0, 0.5)), (larger_root, (100.0, 1.0))]
)
def test_several_positive_numbers_stay_positive(function, args):
    found = untrace.doctor(function)(*args)
    assert found, found


def test_one_positive_number_says_little():
    assert untrace.doctor(lambda x: jnp.sqrt(x * x + 1) + x)(1.0).findings


def test_what_has_no_repair_is_asked_of_inputs_of_the_given_sizes():
    def mass(first, second, rapidity_gap, angle_gap):
        opening = jnp.sinh(rapidity_gap / 2) ** 2 + jnp.sin(angle_gap / 2) ** 2
        return 2 * jnp.sqrt(first * second * opening)

    found = untrace.doctor(mass)(50.0, 45.0, 2.0**-7, 2.0**-8)
    assert found, found
    samples = samples_of([jnp.float32(50), jnp.float32(2.0**-7)])
    gaps = np.abs(np.asarray(samples.leaves[1])[samples.likely])
    assert gaps.max() <= 40 * 2.0**-7 and gaps[gaps > 0].min() >= 1e-4 * 2.0**-7


def test_an_input_that_is_next_to_nothing_beside_others():
    def log_odds_ratio(treated, control):
        return jnp.log1p((treated - control) / (control * (1 - treated)))

    found = untrace.doctor(log_odds_ratio)(0.5, 0.4999)
    assert found, found


def test_several_inputs_that_are_zero_at_once():
    def bound(ligands, enzyme, constant):
        b = enzyme + ligands + constant
        return 2 * enzyme * ligands / (b + jnp.sqrt(b * b - 4 * enzyme * ligands))

    found = untrace.doctor(bound)(np.array([0.5, 1, 2], np.float32), 0.25, 100.0)
    assert found, found
    assert untrace.doctor(lambda x, y: y * jnp.sin(x) / x)(1.0, 2.0).findings  # of one alone it is told


def test_of_arrays_of_one_shape_two_are_made_equal_at_once():
    def distance(spot, start, end):
        (x, y), (u, v) = spot - start, end - start
        return jnp.abs(u * y - v * x) / jnp.hypot(u, v)

    line = [np.array(p, np.float32) for p in ([60107, 43102.5], [60101, 43100], [60111, 43120])]
    found = untrace.doctor(distance)(*line)
    assert found, found


def test_a_derivative_of_what_is_infinite():
    def energy(places, charges):
        squares = jnp.sum((places[:, None] - places[None]) ** 2, axis=-1)
        same = jnp.eye(len(places), dtype=bool)
        distances = jnp.sqrt(jnp.where(same, 1.0, squares))
        return 0.5 * jnp.sum(jnp.where(same, 0.0, jnp.outer(charges, charges) / distances))

    places = np.array([[0, 0.5, 1], [2, -0.5, 0], [-1, 3, 0.25]], np.float32)
    found = untrace.doctor(jax.grad(energy))(places, np.array([1, -1, 2], np.float32))
    assert found, found


def test_what_a_mask_leaves_is_not_lost():
    exact = np.array([[1.0, 5e-324], [1.0, 1e-60]])
    assert lost(np.array([[1.0, 0.0], [1.0, 0.0]], np.float32), exact, np.dtype(np.float32)).tolist() == [
        [False, False],
        [False, True],
    ]
    # Of one number it is, and where all are as small.
    assert lost(np.zeros(1, np.float32), np.array([5e-324]), np.dtype(np.float32)).all()
    assert lost(np.zeros((1, 2), np.float32), np.full((1, 2), 5e-324), np.dtype(np.float32)).all()

    def pooled(scores, mask, values):
        def pool(row, seen):
            weights = jax.nn.softmax(jnp.where(seen > 0, row, -1e9))
            return (weights * seen) @ values

        return jnp.sum(jax.vmap(pool)(scores, mask) ** 2)

    scores, mask = np.array([[0.5, 2, -1], [1, 0.25, 3]], np.float32), np.array([[1, 1, 0], [1, 0, 0]], np.float32)
    found = untrace.doctor(jax.grad(pooled))(scores, mask, np.array([0.5, -1, 2], np.float32))
    assert not [f for f in found.findings if f.cause == "underflow"], found


def test_beside_an_extremum_the_last_bits_explain_more_than_small_steps():
    captured = trace(lambda x, y: 1e-9 + (x - y) ** 2, (np.float32(1), np.float32(1)), {}, frozenset(), frozenset())
    expand(captured)
    program = Importer(captured.expander, rules=False).function(captured.expanded, captured.name)
    found = examine(program, samples_of([jnp.float32(1), jnp.float32(1)]))
    (condition,) = found.conditions.of(np.array([0]))
    assert condition.item() > 50


def test_what_only_magnifies_a_little_and_has_no_repair():
    patient = api._Patient(lambda x: (x + 100.0) - 100.0, (0.5,), {}, frozenset(), frozenset(), 0)
    found = examine(patient._program, patient._samples)
    wrong = int(np.flatnonzero((found.unexplained > LIMIT) & patient._samples.likely)[0])
    heavy = Blamed(found.tape.steps[-1], 0, "cancellation", "", 0.0, False)  # of a sample on which nothing is wrong
    told = [
        patient._severity(found, api._Group(("", 0, ""), [heavy, dataclasses.replace(heavy, row=wrong, slight=slight)]))
        for slight in (False, True)
    ]
    assert told[0] is not None and told[1] is None
