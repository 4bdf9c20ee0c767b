"""`custom_root` is written as the public call: one equation in JAX 0.12, a `custom_jvp` of JAX's before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace import jax_compat


def _newton(f: Any, start: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 30, lambda c: (c[0] + 1, c[1] - f(c[1]) / 3), (0, start))[1]


def _scalar(g: Any, y: Any) -> Any:
    return y / g(jnp.ones_like(y))


def cube_root(x: Any) -> Any:
    return lax.custom_root(lambda y: y**3 - x, x, _newton, _scalar)


def of_a_tree(x: Any) -> Any:
    def solve(f: Any, guess: Any) -> Any:
        return jax.tree.map(lambda a, b: a - b / 4, guess, f(guess)), (jnp.float32(3), guess["b"])

    def tangent_solve(g: Any, y: Any) -> Any:
        return jax.tree.map(jnp.divide, y, g({"a": jnp.ones_like(x), "b": jnp.ones_like(x)}))

    guess = {"a": x, "b": x + 1}
    return lax.custom_root(lambda v: {"a": v["a"] ** 3 - x, "b": v["b"] * x}, guess, solve, tangent_solve, has_aux=True)


def transposed(x: Any) -> Any:
    def tangent_solve(g: Any, y: Any) -> Any:
        return y / jax.linear_transpose(g, y)(jnp.ones_like(y))[0]

    return lax.custom_root(lambda v: v**3 - x, x, _newton, tangent_solve)


def of_numbers(x: Any) -> Any:
    """The functions close over an array without axes, which is a number in the equation."""
    two = jnp.full((), 2.0)
    return lax.custom_root(lambda v: v**3 - two, two, lambda f, v: f(v) * 0.5, lambda g, y: y / g(1.0)) * x


def jacobian(x: Any) -> Any:
    """`g` is batched, so that the call cannot be written: its implementation is, with its derivative."""
    return lax.custom_root(lambda v: v**3 - x, x, _newton, lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y))


X = np.array([1.0, 1.5], np.float32)
MAPPED = jax.vmap(cube_root)
CASES = [(cube_root, X), (MAPPED, X), (of_a_tree, X[0]), (transposed, X), (of_numbers, X[0])]


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
@pytest.mark.parametrize(("function", "x"), CASES)
def test_it_is_the_same_equation(function: Callable[..., Any], x: Any, style: str) -> None:
    d = untrace.decompile(function, style=style, derivatives="written")(x)
    if IS_WRAPPED and function is MAPPED:
        assert d.proof.level == "hlo" and "with its own derivative rule" in str(d.notes)
        return
    assert d.proof.level == "jaxpr", d.source
    if IS_AN_OBJECT:
        assert "lax.custom_root(" in d.source and not d.notes


@pytest.mark.parametrize(("function", "x"), [*CASES, (jacobian, X)])
def test_its_derivatives_are_implicit(function: Callable[..., Any], x: Any) -> None:
    d = untrace.decompile(function, style="exact")(x)

    def total(f: Any) -> Any:
        return lambda x: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(f(x)) if leaf.dtype == np.float32)

    ours, theirs = total(d), total(function)
    for _ in range(2):
        ours, theirs = total(jax.grad(ours)), total(jax.grad(theirs))
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-6)


def _object(function: Callable[..., Any]) -> Any:
    (equation,) = jax_compat.open_jaxpr(jax.make_jaxpr(function)(X))[0].eqns
    return jax_compat.hi_primitive(equation)


IS_AN_OBJECT = _object(cube_root) is not None
# JAX 0.11 maps each of its objects in one way, which knows nothing of roots.
IS_WRAPPED = type(_object(MAPPED)).__name__ == "VmapOf"


@pytest.mark.skipif(not IS_AN_OBJECT, reason="this JAX refuses to trace such a `tangent_solve`")
def test_a_tangent_solve_that_nobody_could_run_harms_nobody() -> None:
    """JAX differentiates `f` for `g` only where `g` is used, and would refuse a number of another dtype."""

    def function(x: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        unused = lax.custom_root(lambda v: v**3 - x, x, lambda f, v: v * 0.5, lambda g, y: y / g(1.0))  # noqa: F841
        return (x * x).astype(jnp.float32)

    d = untrace.decompile(jax.jit(function), style="exact")(X[0])
    assert jax.grad(d)(X[0]) == jax.grad(function)(X[0])


@pytest.mark.skipif(not IS_AN_OBJECT, reason="this JAX refuses to trace such a `tangent_solve`")
@pytest.mark.parametrize("used", [True, False])
def test_a_rule_through_a_tangent_solve_that_nobody_could_run(used: bool) -> None:
    """It raises where the original's does, and only there."""

    def plain(x: Any) -> Any:
        root = lax.custom_root(lambda v: v**3 - x, x, lambda f, v: v * 0.5, lambda g, y: y / g(1.0))
        return root if used else x

    f = jax.custom_jvp(plain)
    f.defjvp(lambda xs, ts: jax.jvp(plain, xs, ts))
    x = X[0].astype(jnp.bfloat16)
    d = untrace.decompile(f, style="exact")(x)
    assert d.proof.level == "jaxpr"
    for g in (f, d):
        derivative = jax.jit(lambda x, g=g: jax.jvp(g, (x,), (x,))[1])
        if used:
            with pytest.raises((TypeError, NotImplementedError)):
                derivative(x)
        else:
            assert derivative(x) == x
