"""Loops in style exact: what the author's body only hands on, and functions that a condition shares with its program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

X = np.array([1.0, 2.0, 4.0], np.float32)


def _total(a: Any) -> Any:
    return jnp.where(a.sum() > 0, a.sum(), 1.0)


def kept_values(x: Any, y: Any) -> Any:
    """Three values are carried and never changed, beside one that the body closes over."""
    z = jnp.cos(y)

    def body(state: Any) -> Any:
        i, a, b, c, d = state
        return i + 1, a * z + c + jnp.where(b > 0, d, c), b, c, d

    return lax.while_loop(lambda s: (s[0] < 3) & (_total(s[1]) < 10), body, (0, x, y, z, 0.0))


def one_kept_value(x: Any, y: Any) -> Any:
    return lax.while_loop(lambda s: s[0].sum() < 9, lambda s: (s[0] * s[1] + 1, s[1]), (x, y))


def unread_and_twice(x: Any, y: Any) -> Any:
    """The same array in two places of the carry, and one that nothing reads."""
    return lax.while_loop(lambda s: s[0].sum() < 9, lambda s: (s[0] * s[1] + s[2], *s[1:]), (x, y, y, x))


def _without_names(function: Any) -> list[str]:
    lines = jax.jit(function).lower(X, X).as_text().splitlines()[1:]
    names: dict[str, str] = {}
    return [
        " ".join(
            names.setdefault(w, f"@{len(names)}") if w.startswith("@") else w for w in line.replace("(", " ( ").split()
        )
        for line in lines
    ]


@pytest.mark.parametrize("function", [kept_values, one_kept_value, unread_and_twice])
def test_values_that_are_handed_on_are_carried(function: Any) -> None:
    """JAX makes constants of them, which come before what the body closes over and may be anything."""
    d = untrace.decompile(function, style="exact")(X, X)
    assert d.proof.level == "jaxpr"
    assert "lax.while_loop(" in d.source
    assert _without_names(d) == _without_names(function)
    for got, expected in zip(jax.tree.leaves(d(X, X)), jax.tree.leaves(function(X, X)), strict=True):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("after", [True, False])
def test_a_condition_shares_functions_with_the_program(after: bool) -> None:
    """JAX takes dead code out of the condition, and of the program when it lowers that: the copies are one."""

    @jax.jit
    def shared(a: Any) -> Any:
        jnp.sin(a)
        return a.sum() * 2

    def function(x: Any, y: Any) -> Any:
        first = 0.0 if after else shared(x)
        loop = lax.while_loop(lambda s: shared(s[0]) < 9, lambda s: (s[0] * s[1] + shared(s[0]) + 1, s[1]), (x, y))
        return loop, first, shared(y) if after else 0.0

    d = untrace.decompile(function, style="exact")(X, X)
    assert d.proof.level == "jaxpr"
    assert d.source.count("@jax.jit") == 1
    assert _without_names(d) == _without_names(function)


@pytest.mark.parametrize("nested", [False, True], ids=["outside", "in a branch"])
def test_a_condition_keeps_its_dead_code_where_the_order_of_constants_looks_like_a_carry(nested: bool) -> None:
    """`lax.while_loop` drops that of a condition where the body hands something on: then nothing was handed on here."""

    def dead(i: Any) -> Any:
        return lax.while_loop(lambda j: j < i, lambda j: j + 1, 0)

    def keep_going(i: Any) -> Any:
        if nested:
            return lax.cond(i < 3, lambda: (dead(i), i < 4)[1], lambda: False)
        dead(i)
        return i < 4

    def function(x: Any, y: Any) -> Any:
        def body(i: Any) -> Any:
            flat = jnp.ravel(x)  # leaves no equation, but its operand is met first
            added = y + i
            return i + (added + flat).sum().astype(int)

        return lax.while_loop(keep_going, body, 0)

    d = untrace.decompile(function, style="exact")(X, X)
    assert d.proof.level == "jaxpr"
    assert _without_names(d) == _without_names(function)
