"""Calls of `jax.vmap` beside others, in jitted functions, over classes and derivatives; see src/untrace/capture/calls/vmaps.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import roundtrip
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(fn, *args, count=1):
    """The text, in which `jax.vmap` stands `count` times, after a run of the saved module beside the original."""
    d = untrace.decompile(fn)(*args)
    assert d.source.count("jax.vmap(") == count, d.source
    again, _ = roundtrip.saved(d, Path.cwd())
    want, got = jax.jit(fn)(*args), jax.jit(again)(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    jax.tree.map(np.testing.assert_array_equal, want, got)
    return d.source


def wave(w, t, x):
    return -jnp.sin(jnp.pi * x) + t * jnp.tanh(x * w).sum()


def test_one_call_that_is_batched_by_hand_leaves_the_others():
    """What Python computes of a number before it is traced is no function of an array."""

    def residual(w, t, x):
        r = jax.vmap(lambda t: jax.vmap(lambda x: jax.grad(wave, argnums=2)(w, t, x))(x))(t)
        return jnp.mean(r**2) + jnp.mean(jax.vmap(wave, in_axes=(None, 0, None))(w, t, -1.0) ** 2)

    written = untrace.decompile(residual)(jnp.ones(7), jnp.ones(6), jnp.ones(8))
    assert written.source.count("jax.vmap(") == 2 and "jax.grad(wave, argnums=2)" in written.source, written.source
    assert written.proof.level == "jaxpr"


RATES = 0.5 ** jnp.arange(6)


def test_over_an_array_of_the_module_in_a_jitted_function():
    def stepped(x, rate):
        return jax.lax.scan(lambda x, _: (x - rate * jnp.sin(x), x.sum()), x, length=3)

    @jax.jit
    def best(x):
        def body(x, _):
            xs, losses = jax.vmap(lambda rate: stepped(x, rate))(RATES)
            return xs[losses[:, -1].argmin()], None

        return jax.lax.scan(body, x, length=2)[0]

    written = untrace.decompile(best)(jnp.ones(4))
    assert written.source.count("jax.vmap(") == 1 and "(RATES)" in written.source, written.source


GOAL = jnp.linspace(0.0, 1.0, 3)


def cost(x, u):
    return ((x - GOAL) ** 2 * u).sum()


def test_a_derivative_of_what_closes_over_an_array_of_the_module():
    def derivatives(xs, us):
        first = jax.vmap(jax.grad(cost, argnums=(0, 1)))(xs, us)
        return first, jax.vmap(jax.hessian(cost, argnums=(0, 1)))(xs, us), jax.vmap(jax.jacfwd(cost))(xs, us)

    source = written(derivatives, jnp.ones((4, 3)), jnp.ones((4, 3)), count=3)
    assert "jax.vmap(jax.grad(cost, argnums=(0, 1)))(xs, us)" in source, source
    assert (
        "jax.vmap(jax.hessian(cost, argnums=(0, 1)))(xs, us)" in source and "jax.vmap(jax.jacfwd(cost))(" in source
    ), source


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Walk:
    """A class that does not say which attributes its parts are."""

    drift: jax.Array
    scale: jax.Array

    def tree_flatten(self):
        return (self.drift, self.scale), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


def walked(walk, x):
    def step(x, _):
        x = lax.cond(x.sum() > 1.0, lambda x: x * walk.scale, lambda x: x + walk.drift, x)
        return x, x.sum()

    return lax.scan(step, x, length=3)[1], Walk(walk.drift + 1.0, walk.scale)


def test_over_a_class_that_does_not_name_its_parts():
    walks = Walk(jnp.linspace(0.1, 1.0, 4), jnp.linspace(1.0, 2.0, 4))
    source = written(lambda walks, x: jax.vmap(walked, (0, None))(walks, x), walks, X[0])
    assert (
        "lax.cond(" in source and "walk.scale" in source and "jax.vmap(walked, in_axes=(0, None))(walks, x)" in source
    )


def test_the_derivative_of_a_class_that_does_not_name_its_parts():
    def step(walk, x):
        grads = jax.grad(lambda walk: (x * walk.scale + walk.drift).sum())(walk)
        return jax.tree.map(lambda p, g: p - 0.1 * g, walk, grads)

    source = written(step, Walk(jnp.ones(3), jnp.ones(3)), X[0], count=0)
    assert "jax.grad(" in source, source
