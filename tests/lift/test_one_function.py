"""An author's function is one function in the text, however it is called: an edit of it reaches every call."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")


class State(NamedTuple):
    h: jax.Array
    u: jax.Array
    v: jax.Array


def mix(a, b):
    c = jnp.sin(a) * b + jnp.cos(b) * a
    return jnp.tanh(c) + 0.5 * a * b


def edges(x):
    slope = jnp.tanh(x[:, 2:] - x[:, :-2])
    inner = x[:, 1:-1]
    return (inner + 0.5 * slope)[:, :-1], (inner - 0.5 * slope)[:, 1:]


def energy(pos, box):
    d = pos - box * jnp.round(pos / box)
    return jnp.sum(jnp.tanh(d) ** 2)


def skew(w):
    x, y, z = w
    zero = jnp.zeros_like(x)
    return jnp.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]])


def turned(w, point):
    cross = skew(w)
    return (jnp.eye(3) + 0.5 * cross) @ point


def text(fn, *args):
    found = untrace.decompile(fn)(*args)
    assert found.proof.at_least("bits"), found.proof
    return found.source


@pytest.mark.parametrize("first", [True, False], ids=["twice first", "twice last"])
def test_one_array_for_two_parameters_is_no_other_function(first):
    def model(xs, ys):
        if first:
            start = jax.vmap(lambda p: mix(p, p))(xs)
            return jax.vmap(lambda x: jax.vmap(lambda y: mix(x, y))(ys))(xs) - start
        table = jax.vmap(lambda x: jax.vmap(lambda y: mix(x, y))(ys))(xs)
        return table - jax.vmap(lambda p: mix(p, p))(xs)

    source = text(model, jnp.arange(4.0), jnp.arange(4.0) + 1)
    assert source.count("def mix") == 1 and source.count("jnp.tanh") == 1, source
    assert "mix(p, p)" in source and "mix(x, y)" in source


def test_a_function_whose_every_call_passes_one_array_twice_has_one_parameter_for_it():
    source = text(lambda x: mix(x, x) - mix(x * 2, x * 2), jnp.arange(4.0))
    assert source.count("jnp.tanh") == 1


def test_what_is_mapped_and_what_of_it_has_an_argument_bound_are_one():
    def model(pos, box):
        return jax.vmap(energy, in_axes=(0, None))(pos, box) - jax.vmap(partial(energy, box=box))(jnp.sin(pos))

    def derived(pos, box):
        return jax.vmap(energy, in_axes=(0, None))(pos, box), jax.grad(partial(energy, box=box))(pos[0])

    for fn in (model, derived):
        source = text(fn, jnp.ones((4, 9, 3)), jnp.float32(5.0))
        assert source.count("jnp.round") == 1, source


def test_calls_in_a_comprehension_are_calls_also_where_types_differ():
    def model(state):
        pairs = [edges(x) for x in (state.h, state.u * 2.0, state.v)]
        left, right = [p[0] for p in pairs], [p[1] for p in pairs]
        return jnp.maximum(left[0], 0.0) * left[1] + left[2] - right[0] * right[1] * right[2]

    weak = 1.0 * jax.lax.full((5, 7), 1.0)  # an array that gives way to other types
    assert weak.aval.weak_type
    source = text(model, State(weak, jnp.ones((5, 7)), jnp.ones((5, 7))))
    assert source.count("def edges") == 1 and source.count("edges(") == 4, source


def divergence(state):
    fluxes = [state.h * state.u, state.u**2 + state.h, state.u * state.v]
    div = [jnp.diff(f, axis=1, append=0.0) / 2.0 for f in fluxes]
    return div[0], div[1] + 9.81 * state.h, div[2]


def test_a_list_that_nobody_maps_over_is_no_tree_of_a_class():
    def model(state, dt):
        new = state
        for share in (0.0, 0.5):
            change = State(*(-d for d in divergence(new)))
            new = jax.tree.map(lambda u0, u, f, a=share: a * u0 + (1 - a) * u + dt * f, state, new, change)
        return new

    source = text(model, State(*(jnp.ones((5, 7)) for _ in range(3))), jnp.float32(0.1))
    body = source.partition("def divergence(")[2].partition("def model(")[0]
    assert body and "tree.map" not in body and source.count("def divergence") == 1, source


def test_a_product_of_the_authors_is_not_turned_round():
    def gain(dx, dz, cov):
        cross = dx.T @ dz
        return jnp.linalg.solve(cov, cross.T).T

    source = text(gain, jnp.ones((7, 5)), jnp.ones((7, 2)), jnp.eye(2))
    assert "cross = dx.T @ dz" in source


def test_mapped_functions_under_a_pullback_that_a_loop_calls_stay_mapped():
    """The pullback holds numbers, which JAX hands to the loop or not, as they are Python's or its own."""

    def step(w, points):
        def residual(v):
            return jax.vmap(turned)(v.reshape(-1, 3), points).ravel()

        r, pullback = jax.vjp(residual, w)
        return w - jax.lax.fori_loop(0, 3, lambda _, x: x + pullback(residual(x))[0], pullback(r)[0])

    source = text(step, jnp.arange(12.0), jnp.ones((4, 3)))
    assert source.count("def turned") == source.count("def skew") == 1 and "x, y, z = w" in source, source


def test_a_number_that_a_differentiated_function_computes_with_is_jaxs():
    def price(x, rate):
        step = rate / 6
        total, _ = jax.lax.scan(lambda c, _: (c * jnp.sin(rate) + jnp.cos(c * step) * rate, None), x, length=3)
        return total.sum()

    found = untrace.decompile(lambda x: jax.grad(price)(x, jnp.float32(0.5)))(jnp.arange(3.0))
    assert found.proof.level == "jaxpr", found.proof
    assert "jax.grad(price)(x, jnp.float32(0.5))" in found.source and "f32[n]" in found.source
    np.testing.assert_array_equal(found(jnp.arange(3.0)), jax.grad(price)(jnp.arange(3.0), jnp.float32(0.5)))


def objective(h, x, y):
    residual = jnp.tanh(x @ h["w"]) + h["b"] - y
    return jnp.sum(residual**2) + 0.1 * jnp.sum(h["w"] ** 2)


def moved(a, x, y):
    return jax.tree.map(lambda u, v: v + a * u, x, y)


def backtracked(f, h, value, grad, lr):
    def body(carry):
        t, _ = carry
        return 0.5 * t, f(moved(-0.5 * t, grad, h))

    t, _ = jax.lax.while_loop(lambda c: c[1] > value, body, (lr, f(moved(-lr, grad, h))))
    return moved(-t, grad, h)


def test_a_function_without_a_name_is_not_called_where_it_stands():
    def search(h, x, y, lr):
        f = partial(objective, x=x, y=y)
        value, grad = jax.value_and_grad(f)(h)
        return backtracked(f, h, value, grad, lr)

    h = {"w": jnp.ones(3), "b": jnp.float32(0.0)}
    source = text(search, h, jnp.ones((5, 3)), jnp.ones(5), jnp.float32(0.1))
    assert "(lambda h" in source and "(lambda h: objective(h, x, y))(" not in source.replace("grad(lambda", ""), source


def mlp(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def test_the_last_layer_is_that_behind_a_loop_over_all_but_it():
    widths = (4, 8, 8, 2)
    layers = [(jnp.ones((m, n)), jnp.ones(n)) for m, n in zip(widths, widths[1:], strict=False)]
    source = text(lambda layers, x: jnp.sum(mlp(layers["net"], x) ** 2), {"net": layers}, jnp.ones((5, 4)))
    assert "for w, b in layers[:-1]:" in source and "return x @ layers[-1][0] + layers[-1][1]" in source, source
