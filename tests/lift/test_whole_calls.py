"""A call that is all that a function does stays one, where the author's function is called elsewhere as well."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

ARGS = np.float32(0.3), np.float32(0.5)


def cell(t, z):
    return 0.5 * jnp.tanh(t * z)


def written(fn, *args):
    d = untrace.decompile(fn)(*args)
    assert d.proof.level == "jaxpr", d.proof
    assert d.source.count("jnp.tanh(") == 1 and "def cell(t, z):" in d.source, d.source
    return d.source


def test_functions_that_are_differentiated():
    def over_values(t, z):
        out = cell(t, cell(t, z))
        return out, jax.grad(lambda z: cell(t, z))(out), jax.grad(lambda t: cell(t, out))(t)

    text = written(over_values, *ARGS)
    assert "jax.grad(lambda z: cell(t, z))(" in text and text.count("cell(") > 3, text

    def of_nothing_else(t, z):
        out = cell(t, cell(t, z))
        return out, jax.grad(lambda t, z: cell(t, z))(t, out)

    assert "jax.grad(cell)(t, out)" in written(of_nothing_else, *ARGS)

    def of_partials(t, z):
        out = cell(t, cell(t, z))
        return out, jax.grad(functools.partial(cell, t))(out)

    assert "jax.grad(lambda z: cell(t, z))(" in written(of_partials, *ARGS)


def test_bodies_of_loops_and_maps():
    def loops(t, z):
        x, _ = lax.scan(lambda c, _: (cell(t, c), None), z, length=5)
        y = lax.fori_loop(0, 3, lambda i, c: cell(t, c), x)
        return lax.while_loop(lambda c: c < 3.0, lambda c: cell(t, c), y)

    text = written(loops, *ARGS)
    assert "lambda c: cell(t, c)" in text and "lambda _, c: cell(t, c)" in text, text

    def maps(t, zs):
        return jax.vmap(lambda z: cell(t, z))(zs) + cell(t, zs[0]) + jax.vmap(functools.partial(cell, t + 1.0))(zs)

    assert written(maps, ARGS[0], np.ones(3, np.float32)).count("cell(") >= 4


def test_a_function_that_is_called_in_one_place_only_is_where_it_is_used():
    def outer(t, z):
        return jax.grad(lambda z: cell(t, z))(z)

    text = untrace.decompile(outer)(*ARGS).source
    assert text.count("jnp.tanh(") == 1 and "return cell(" not in text, text


def move(s, u):
    return s + 0.1 * jnp.stack([s[1], jnp.sin(s[0]) + u])


def follow(s, us):
    def step(s, u):
        new = move(s, u)
        return new, s

    return lax.scan(step, s, us)[1]


def linearised(s, us):
    states = follow(s, us)
    return states, jax.vmap(jax.jacfwd(move, argnums=(0, 1)))(states, us)


def test_a_function_that_is_differentiated_itself_and_called_in_a_loop():
    text = untrace.decompile(linearised)(np.float32([0.1, 0.2]), np.ones(5, np.float32)).source
    assert text.count("jnp.sin(") == 1 and "jax.jacfwd(move, argnums=(0, 1))" in text, text
    assert "def follow(s, us):" in text and "new = move(s, u)" in text, text


def error(p, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ p) - y) ** 2)


def test_a_function_that_is_differentiated_itself_and_closed_over():
    def program(p, v, batch):
        curvature = jax.jvp(jax.grad(lambda q: error(q, batch)), (p,), (v,))[1]
        return jax.grad(error)(p, batch), curvature

    batch = np.ones((5, 3), np.float32), np.ones(5, np.float32)
    text = untrace.decompile(program)(np.ones(3, np.float32), np.arange(3, dtype=np.float32), batch).source
    assert text.count("jnp.tanh(") == 1 and "jax.grad(error)(p, batch)" in text, text
    assert "jax.jvp(jax.grad(lambda q: error(q, batch)), (p,), (v,))" in text, text
