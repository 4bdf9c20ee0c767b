"""Each difference between JAX and NumPy that docs/targets.md lists: it is one, and the text does what JAX does."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_differences import DIFFERENCES, Difference

import untrace
from untrace.targets.numpy.rules.table import NUMPY

ROOT = Path(__file__).resolve().parents[2]


def _leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def _same(found: list[np.ndarray], wanted: list[np.ndarray], close: bool) -> bool:
    """Of the same types, values and signs of zeros."""
    if [(x.dtype, x.shape) for x in found] != [(x.dtype, x.shape) for x in wanted]:
        return False
    for x, y in zip(found, wanted, strict=True):
        if not jnp.issubdtype(y.dtype, np.inexact):
            if not np.array_equal(x, y):
                return False
            continue
        kind = np.complex128 if np.iscomplexobj(y) else np.float64
        a, b = x.astype(kind), y.astype(kind)
        alike = (
            np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) if close else np.array_equal(a, b, equal_nan=True)
        )
        signs = [np.signbit(v) & (v == 0) for x in (a, b) for v in (x.real, x.imag)]
        if not alike or not close and not np.array_equal(signs[:2], signs[2:]):
            return False
    return True


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: d.name.replace(" ", "_"))
def test_a_difference(difference: Difference) -> None:
    wanted = _leaves(jax.jit(difference.program)(*difference.args))
    text = untrace.decompile(difference.program, target="numpy", prove=False, sizes="fixed")(*difference.args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = _leaves(text(*difference.args))
    assert _same(found, wanted, close=True), text.source
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
        if not _same(plain, wanted, close=True):
            return True
        warnings.simplefilter("error")
        try:
            difference.plain(*difference.args)
        except RuntimeWarning:
            return True
    return not _same(plain, wanted, close=False)


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
