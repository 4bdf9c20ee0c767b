"""A library's `custom_jvp` with the rule that JAX derives by itself is the function that it is of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library

import untrace
from untrace.jaxprs.expand.expand import expand_library_primitives

X = np.array([0.5, 1.0, 2.0], np.float32)
RULES = """
import jax
import jax.numpy as jnp


@jax.custom_jvp
def as_float(x):
    return jnp.asarray(x, jnp.float32)


@as_float.defjvp
def _as_float_jvp(primals, tangents):
    return as_float(*primals), as_float(*tangents)


@jax.custom_jvp
def handed_on(x, count):
    return x, count


@handed_on.defjvp
def _handed_on_jvp(primals, tangents):
    return handed_on(*primals), tangents


@jax.custom_jvp
def waved(x):
    return jnp.sin(handed_on(x, 3)[0]) * x


@waved.defjvp
def _waved_jvp(primals, tangents):
    return jax.jvp(lambda x: jnp.sin(handed_on(x, 3)[0]) * x, primals, tangents)


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


@straight_through.defjvp
def _straight_through_jvp(primals, tangents):
    return straight_through(*primals), tangents[0]


@jax.custom_jvp
def curved(x):
    return x + 0.0


@curved.defjvp
def _curved_jvp(primals, tangents):
    return curved(*primals), steep(*tangents) + 0.0


@jax.custom_jvp
def steep(x):
    return x


@steep.defjvp
def _steep_jvp(primals, tangents):
    return steep(*primals), 2.0 * tangents[0]


WEIGHTS, OTHERS = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 4.0])


@jax.custom_jvp
def weighted(x):
    return x * WEIGHTS


@weighted.defjvp
def _weighted_jvp(primals, tangents):
    return primals[0] * OTHERS, tangents[0] * OTHERS


@jax.custom_jvp
def fixed(x):
    return x


def _fixed_jvp(primals, tangents):
    if type(tangents[0]) is not jax.custom_derivatives.SymbolicZero:
        raise ValueError("not to be differentiated")
    return primals[0], tangents[0]


fixed.defjvp(_fixed_jvp, symbolic_zeros=True)


@jax.custom_jvp
def one_sided(x, y):
    return x * 1.0, y


def _one_sided_jvp(primals, tangents):
    x, y = primals
    return (x * 1.0, y), (tangents[0] * 1.0, jax.custom_derivatives.zero_from_primal(y, symbolic_zeros=True))


one_sided.defjvp(_one_sided_jvp, symbolic_zeros=True)
"""


@pytest.fixture(scope="module")
def wrappers() -> SimpleNamespace:
    return SimpleNamespace(**library(RULES))


def _rules(function: Any, *args: Any) -> int:
    closed, _ = expand_library_primitives(jax.make_jaxpr(function)(*args))
    return str(closed).count("custom_jvp_call[")


def test_a_rule_that_calls_its_own_function(wrappers: Any) -> None:
    assert _rules(wrappers.as_float, X) == 0


def test_functions_in_one_another(wrappers: Any) -> None:
    assert _rules(lambda x: wrappers.handed_on(wrappers.handed_on(x, 2)[0], 3), X) == 0
    assert _rules(wrappers.waved, X) == 0
    assert _rules(jax.vmap(wrappers.waved), X[None]) == 0


@pytest.mark.parametrize("name", ["straight_through", "steep", "curved", "weighted"])
def test_a_rule_of_another_derivative_stays(wrappers: Any, name: str) -> None:
    """`curved` has another second derivative: its rule calls a function with a rule of its own. `weighted` has other numbers."""
    assert _rules(getattr(wrappers, name), X) == 1


def test_a_rule_that_refuses_a_tangent_or_gives_none_stays(wrappers: Any) -> None:
    assert _rules(wrappers.fixed, X) == 1
    assert _rules(wrappers.one_sided, X, X) == 1


def test_an_author_s_own_rule_stays() -> None:
    @jax.custom_jvp
    def same(x: Any) -> Any:
        return x + 0.0

    same.defjvp(lambda primals, tangents: (same(*primals), tangents[0] + 0.0))
    assert _rules(same, X) == 1


def test_the_text_has_the_function_and_the_derivatives(wrappers: Any) -> None:
    def energy(x: Any) -> Any:
        x, _ = wrappers.handed_on(wrappers.as_float(x), 3)
        return jnp.sum(wrappers.waved(x) ** 3)

    written = untrace.decompile(energy)(X)
    assert written.proof.at_least("bits")
    assert "custom_jvp" not in written.source
    for derivative in (jax.grad, jax.hessian):
        assert np.array_equal(derivative(written)(X), derivative(energy)(X))
