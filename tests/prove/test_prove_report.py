"""A proof reads as one line."""

from __future__ import annotations

import pytest

from untrace.prove.report import LEVELS, Proof


def test_lines():
    assert str(Proof("jaxpr", "276 equations")) == "proven: same jaxpr (276 equations)"
    assert str(Proof("hlo")) == "proven: same compiled program"
    assert str(Proof("bits", "on 64 sampled inputs")) == "proven: same bits (on 64 sampled inputs)"
    assert str(Proof("close", "within 3 ULP")) == "checked: close to the original (within 3 ULP)"
    assert str(Proof("unproven", "prove=False")) == "unproven: prove=False"
    assert str(Proof("jaxpr", "1 equation", ("a", "b"))).endswith("; note: a (and 1 more)")


def test_a_proof_is_one_line_whatever_it_quotes():
    assert "\n" not in str(Proof("unproven", "error:\n  below", ("a\nnote",)))


def test_levels_are_ordered():
    for i, weaker in enumerate(LEVELS):
        for j, stronger in enumerate(LEVELS):
            assert Proof(stronger).at_least(weaker) == (j >= i)


def test_a_level_that_does_not_exist():
    with pytest.raises(ValueError, match="'sure' is no proof level; they are unproven, close"):
        Proof("sure")
    with pytest.raises(ValueError):
        Proof("bits").at_least("sure")
