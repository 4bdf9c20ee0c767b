"""A function that a derivative rule differentiates is the one that the rest of the text calls: an edit of it changes both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

RELAX = 0.5
ARGS = np.float32(0.3), np.array([0.5, -0.2, 0.9], np.float32)
_active: dict[str, Callable[[Any], Any]] = {"tanh": jnp.tanh}


def cell(t: Any, z: Any) -> Any:
    return RELAX * _active["tanh"](t * z) + 0.1 * jax.nn.relu(z)


def by_vjp(t: Any, z: Any, g: Any) -> Any:
    _, pullback = jax.vjp(lambda z: cell(t, z), z)
    return jax.vjp(lambda t: cell(t, z), t)[1](g + pullback(g)[0])[0]


def in_a_loop(t: Any, z: Any, g: Any) -> Any:
    _, pullback = jax.vjp(lambda z: cell(t, z), z)
    u = lax.fori_loop(0, 4, lambda i, u: g + pullback(u)[0], g)
    return jax.vjp(lambda t: cell(t, z), t)[1](u)[0]


def until_it_is_small(t: Any, z: Any, g: Any) -> Any:
    _, pullback = jax.vjp(lambda z: cell(t, z) / 2.0, z)
    u, _ = lax.while_loop(lambda c: c[1] < 3, lambda c: (g + pullback(c[0])[0], c[1] + 1), (g, 0))
    return jax.vjp(lambda t: cell(t, z), t)[1](u)[0]


def of_a_partial(t: Any, z: Any, g: Any) -> Any:
    return jax.vjp(functools.partial(cell, z=z), t)[1](g)[0]


def by_linearize(t: Any, z: Any, g: Any) -> Any:
    _, pushed = jax.linearize(lambda t: cell(t, z), t)
    return jnp.vdot(pushed(jnp.ones_like(t)), g)


def by_grad(t: Any, z: Any, g: Any) -> Any:
    return jax.grad(lambda t: jnp.vdot(cell(t, z), g))(t)


def with_vjp_rule(backward: Callable[..., Any]) -> Callable[..., Any]:
    @jax.custom_vjp
    def fixed(t: Any, z: Any) -> Any:
        return cell(t, cell(t, z))

    def forward(t: Any, z: Any) -> Any:
        out = fixed(t, z)
        return out, (t, out)

    fixed.defvjp(forward, lambda saved, g: (backward(*saved, g), jnp.zeros_like(saved[1])))
    return lambda t, z: jax.grad(lambda t: fixed(t, z).sum())(t)


def with_a_fixed_argument(t: Any, z: Any) -> Any:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def fixed(f: Any, t: Any, z: Any) -> Any:
        return f(t, f(t, z))

    def backward(f: Any, saved: Any, g: Any) -> Any:
        t, z = saved
        return jax.vjp(lambda t: f(t, z), t)[1](g)[0], jnp.zeros_like(z)

    fixed.defvjp(lambda f, t, z: (fixed(f, t, z), (t, z)), backward)
    return jax.grad(lambda t: fixed(cell, t, z).sum())(t)


def with_jvp_rule(t: Any, z: Any) -> Any:
    @jax.custom_jvp
    def fixed(t: Any, z: Any) -> Any:
        return cell(t, cell(t, z))

    @fixed.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        t, z = primals
        out = fixed(t, z)
        return out, jax.jvp(lambda t: cell(t, out), (t,), (tangents[0],))[1]

    return jax.grad(lambda t: fixed(t, z).sum())(t)


RULES = by_vjp, in_a_loop, until_it_is_small, of_a_partial, by_linearize, by_grad


@pytest.mark.parametrize(
    "step",
    [*map(with_vjp_rule, RULES), with_a_fixed_argument, with_jvp_rule],
    ids=[*(rule.__name__ for rule in RULES), "with_a_fixed_argument", "with_jvp_rule"],
)
def test_an_edit_of_the_function_changes_the_derivative(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    d = untrace.decompile(step)(*ARGS)
    assert d.proof.at_least("hlo"), d.proof
    text = d.source
    assert text.count("jnp.tanh(") == 1 and text.count("def cell(") == 1 and "written out" not in text, text
    space: dict[str, Any] = {}
    exec(text.replace("jnp.tanh(", "jnp.sin("), space)
    before = step(*ARGS)
    monkeypatch.setitem(_active, "tanh", jnp.sin)
    jax.clear_caches()
    after = space[d.name](*ARGS)
    np.testing.assert_allclose(after, step(*ARGS), rtol=1e-5)
    assert not np.allclose(after, before, rtol=1e-3)


def test_functions_whose_rules_are_too_deep_are_others() -> None:
    def several(x: Any) -> Any:
        @jax.custom_jvp
        def bent(y: Any) -> Any:
            return jnp.sin(y) * 2.0 + 1.0

        bent.defjvp(lambda primals, tangents: (bent(*primals), tangents[0] * 3.0 * jnp.cos(primals[0])))
        return bent(x) * jnp.cos(x) + 1.0

    def with_rule(inner: Any) -> Any:
        @jax.custom_jvp
        def doubled(x: Any) -> Any:
            return x * 2.0

        doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0] * inner(primals[0])))
        return doubled

    outer = with_rule(with_rule(lambda x: several(x) + several(x * 3.0)))

    def whole(x: Any) -> Any:
        return outer(x) + several(x) + several(2.0 * x)

    d = untrace.decompile(whole)(ARGS[0])
    assert d.source.count("* jnp.cos(x) + 1.0") == 2 and d.source.count("def several") == 2, d.source
    np.testing.assert_allclose(jax.grad(d)(ARGS[0]), jax.grad(whole)(ARGS[0]))
