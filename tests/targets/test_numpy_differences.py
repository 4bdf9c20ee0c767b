"""Each difference between JAX and NumPy that docs/targets.md lists: it is one, and the text does what JAX does."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from differing import same
from numpy_differences import DIFFERENCES, Difference

import untrace
from untrace.targets.numpy.rules.table import NUMPY

ROOT = Path(__file__).resolve().parents[2]


def _leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: d.name.replace(" ", "_"))
def test_a_difference(difference: Difference) -> None:
    wanted = _leaves(jax.jit(difference.program)(*difference.args))
    text = untrace.decompile(difference.program, target="numpy", prove=False, sizes="fixed")(*difference.args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = _leaves(text(*difference.args))
    assert same(found, wanted, close=True), text.source
    assert difference.written in text.source
    assert _differs(difference, wanted)


def _differs(difference: Difference, wanted: list[np.ndarray]) -> bool:
    """Whether what one would write in NumPy gives something else, raises or warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = _leaves(difference.plain(*difference.args))
        except Exception:
            return True
        if not same(plain, wanted, close=True):
            return True
        warnings.simplefilter("error")
        try:
            difference.plain(*difference.args)
        except RuntimeWarning:
            return True
    return not same(plain, wanted, close=False)


def test_no_rule_swallows_a_parameter_that_it_does_not_know() -> None:
    """Only a loop has parameters that count its operands, and it asks for their names."""
    rules = {name: NUMPY.find(name) for name in NUMPY.names()}
    kinds = {
        name: [p.kind for p in inspect.signature(rule).parameters.values()] for name, rule in rules.items() if rule
    }
    assert [name for name, found in kinds.items() if inspect.Parameter.VAR_KEYWORD in found] == ["scan"]


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_targets.py"), "--check"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
