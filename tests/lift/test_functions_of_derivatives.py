"""Functions of the author's that do little but differentiate, map or call another one are functions of the text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace


def layers(params, x):
    for p in params:
        x = jnp.tanh(x @ p["w"] + p["b"])
    return x


def field(params, t, x):
    return layers(params, jnp.stack([t, x]))[0]


def field_t(params, t, x):
    return jax.grad(field, argnums=1)(params, t, x)


def field_x(params, t, x):
    return jax.grad(field, argnums=2)(params, t, x)


def field_xx(params, t, x):
    return jax.grad(field_x, argnums=2)(params, t, x)


def residual(params, t, x):
    return field_t(params, t, x) + field(params, t, x) * field_x(params, t, x) - 0.1 * field_xx(params, t, x)


def physics(params, ts, xs):
    inside = jnp.mean(jax.vmap(residual, (None, 0, 0))(params, ts, xs) ** 2)
    start = jax.vmap(lambda x: field(params, 0.0, x))(xs)
    left = jax.vmap(lambda t: field(params, t, -1.0))(ts)
    right = jax.vmap(lambda t: field(params, t, 1.0))(ts)
    return inside + jnp.mean((start - xs) ** 2) + jnp.mean(left**2) + jnp.mean(right**2)


def energy(position):
    return jnp.sum(jnp.cos(position) + position**4)


def force(position):
    return -jax.grad(energy)(position)


def swung(position, velocity):
    def step(state, _):
        position, velocity = state
        velocity = velocity + 0.01 * force(position)
        return (position + 0.01 * velocity, velocity), energy(position)

    return jax.lax.scan(step, (position, velocity), length=5)


def predict(w, x):
    return jnp.tanh(x @ w)


def predicted(w, xs):
    return jax.vmap(predict, in_axes=(None, 0))(w, xs)


def likelihood(w, xs):
    return -jnp.mean(jnp.log(predicted(w, xs)[:, jnp.arange(2)]))


def fitted(w, xs):
    return w - 0.1 * jax.grad(likelihood)(w, xs)


def plant(state, force):
    angle, speed = state
    speed = speed + 0.1 * (jnp.sin(angle) + force)
    return jnp.stack([angle + 0.1 * speed, speed])


def driven(state, forces):
    def step(state, force):
        state = plant(state, force)
        return state, state

    return jax.lax.scan(step, state, forces)[1]


def checked(program, args, tmp_path):
    found, text = saved(untrace.decompile(program)(*args), tmp_path)
    for one, other in zip(
        jax.tree.leaves(jax.jit(found)(*args)), jax.tree.leaves(jax.jit(program)(*args)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    return text


LAYERS = [{"w": jnp.full((a, b), 0.2), "b": jnp.full(b, 0.1)} for a, b in ((2, 3), (3, 1))]
MADE = [
    (physics, (LAYERS, jnp.linspace(0.1, 1.0, 4), jnp.linspace(-1.0, 1.0, 4)), [
        "def field(params, t, x):", "def field_x(params, t, x):", "    return jax.grad(field_x, argnums=2)(params, t, x)\n",
        "jax.vmap(lambda x: field(params, 0.0, x))(xs)", "jax.vmap(lambda t: field(params, t, -1.0))(ts)",
    ]),
    (swung, (jnp.ones(3), jnp.zeros(3)), ["    return -jax.grad(energy)(position)\n", "0.01 * force(position)"]),
    (fitted, (jnp.ones((3, 2)), jnp.ones((4, 3))), [
        "    return jax.vmap(predict, in_axes=(None, 0))(w, xs)\n",
        "    return -jnp.mean(jnp.log(predicted(w, xs)[:, jnp.arange(2)]))\n",
    ]),
    (driven, (jnp.ones(2), jnp.ones(5)), ["def plant(state, force):", "state = plant(state, force)", "[1]\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("program", "args", "lines"), MADE, ids=lambda value: getattr(value, "__name__", ""))
def test_each_is_one_function(program, args, lines, tmp_path):
    text = checked(program, args, tmp_path)
    assert [line for line in lines if line not in text] == [], text


def test_one_function_stands_before_all_that_call_it(tmp_path):
    text = checked(physics, MADE[0][1], tmp_path)
    assert text.count("jnp.tanh(") == 1, text
    assert text.index("def field(") < text.index("def field_x(") < text.index("def residual("), text


def norm_2(x):
    return x / jnp.sqrt(jnp.sum(x**2) + 1e-6)


def test_a_number_in_the_authors_name_stays(tmp_path):
    def both(x, y):
        return norm_2(x) * norm_2(y)

    text = checked(both, (jnp.ones(3), jnp.arange(3.0)), tmp_path)
    assert "return norm_2(x) * norm_2(y)\n" in text, text
