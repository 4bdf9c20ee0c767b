"""What `untrace.doctor` does not tell: what goes wrong only where nobody's inputs are, or what nobody could mend."""

from __future__ import annotations

import jax.numpy as jnp

import untrace


def sagitta(radius, half_chord):
    return half_chord**2 / (radius + jnp.sqrt((radius - half_chord) * (radius + half_chord)))


def test_what_has_no_repair_is_asked_of_inputs_of_the_given_signs():
    found = untrace.doctor(sagitta)(6.4e6, 250.0)
    assert found, found


def test_where_signs_were_given_or_one_number_only_they_are_asked_of_too():
    assert untrace.doctor(sagitta)(-6.4e6, 250.0).findings
    assert untrace.doctor(lambda x: jnp.sqrt(x * x + 1) + x)(1.0).findings
