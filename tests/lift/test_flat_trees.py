"""Trees that a program makes vectors of, and takes apart again: `ravel_pytree`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from roundtrip import saved

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")


class Fit(NamedTuple):
    slope: jax.Array
    knots: jax.Array
    table: jax.Array


PARAMS = {"a": jnp.ones((2, 3)), "b": jnp.ones(3), "c": jnp.ones(()), "d": jnp.ones((1, 4))}
FIT = Fit(jnp.ones(()), jnp.arange(3.0), jnp.ones((2, 2)))
X = jnp.linspace(-1.0, 1.0, 10).reshape(5, 2)


def loss(p, x):
    return jnp.sum((x @ p["a"] + p["b"]) ** 2) * p["c"] + jnp.sum(p["d"])


def newton(params, x):
    flat, unravel = ravel_pytree(params)

    def objective(v):
        return loss(unravel(v), x)

    slope = jax.grad(objective)(flat)
    curvature = jax.hessian(objective)(flat)
    candidate = unravel(flat - jnp.linalg.solve(curvature + jnp.eye(flat.size), slope))
    return candidate, jnp.linalg.norm(slope)


def perturbed(fit, key):
    """Only the other function that `ravel_pytree` gives is used."""
    vector, back = ravel_pytree(fit)
    noise = back(jax.random.normal(key, vector.shape))
    return jax.tree.map(lambda p, n: p + 0.1 * n, fit, noise)


def norm_of(fit):
    return jnp.sqrt(jnp.sum(ravel_pytree(fit)[0] ** 2))


def by_hand(params, rate):
    """What `optax.flatten` does."""
    leaves, structure = jax.tree.flatten(params)
    vector = jnp.concatenate([jnp.reshape(leaf, -1) for leaf in leaves])
    vector = vector - rate * jnp.tanh(vector)
    parts = jnp.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(structure, [jnp.reshape(p, leaf.shape) for p, leaf in zip(parts, leaves, strict=True)])


def step_in_loop(fit, key):
    """The vector is a loop's; what takes it apart was made outside."""
    flat, unravel = ravel_pytree(fit)

    def turn(carry, key):
        moved = unravel(carry + jax.random.normal(key, carry.shape))
        return carry + 0.1 * moved.slope, moved.table.sum()

    flat, sums = jax.lax.scan(turn, flat, jax.random.split(key, 4))
    return unravel(flat), sums


def again_inside(fit, x):
    """A function inside makes a vector itself, and has a variable of the name that is taken around it."""
    flat, unravel = ravel_pytree(fit)

    def objective(v):
        inner, back = ravel_pytree(unravel(v * x))
        unravel_2 = jnp.sin(inner) * 2.0 + jnp.cos(inner)
        return jnp.sum(back(unravel_2 * inner).table) + jnp.sum(unravel_2 * x)

    return jax.grad(objective)(flat), unravel(flat + 1.0)


KEY = jax.random.key(0)
SAID = {
    newton: ("flat, unravel = ravel_pytree(params)", "return loss(unravel(v), x)", "candidate = unravel(flat - "),
    perturbed: ("_, back = ravel_pytree(fit)", "noise = back(jax.random.normal(key, (8,)))"),
    norm_of: ("ravel_pytree(fit)[0]",),
    by_hand: ("vector, unravel = ravel_pytree(params)", "unravel(vector - rate * jnp.tanh(vector))"),
    step_in_loop: ("flat, unravel = ravel_pytree(fit)", "moved = unravel(carry + "),
    again_inside: ("flat, unravel = ravel_pytree(fit)", "unravel(flat + 1.0)"),
}
ARGS = {newton: (PARAMS, X), perturbed: (FIT, KEY), norm_of: (FIT,), by_hand: (PARAMS, 0.5), step_in_loop: (FIT, KEY)}
ARGS[again_inside] = (FIT, jnp.linspace(0.5, 1.0, 8))


@pytest.mark.parametrize("function", SAID, ids=lambda f: f.__name__)
def test_a_tree_as_a_vector(function, tmp_path):
    written = untrace.decompile(function, sizes="fixed")(*ARGS[function])
    for text in SAID[function]:
        assert text in written.source, written.source
    assert "jnp.split" not in written.source and "concatenate" not in written.source
    again, _ = saved(written, tmp_path)
    got, expected = jax.jit(again)(*ARGS[function]), jax.jit(function)(*ARGS[function])
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def in_another_order(fit):
    return jnp.concatenate([fit.table.ravel(), fit.knots, fit.slope[None]])


def a_part(fit):
    return jnp.concatenate([fit.slope[None], fit.knots])


def without_a_tree(x, y, z):
    flat = jnp.concatenate([x.ravel(), y.ravel(), z.ravel()])
    return jnp.split(2.0 * flat, [10, 20])


@pytest.mark.parametrize(
    ("function", "args"), [(in_another_order, (FIT,)), (a_part, (FIT,)), (without_a_tree, (X, X, X))]
)
def test_what_is_no_tree_stays(function, args):
    assert "ravel_pytree" not in untrace.decompile(function)(*args).source


@pytest.mark.parametrize("target", ["numpy", "c"])
def test_other_targets_write_the_reshapes(target):
    written = untrace.decompile(by_hand, target=target)(PARAMS, jnp.float32(0.5))
    assert "ravel_pytree" not in written.source
    assert written.proof.level in ("bits", "close")
