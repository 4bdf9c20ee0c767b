"""What a function of the author's gives and one of its calls does not read: it is one function all the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import untrace


def assign(x, c):
    d = (x[:, None] - c) ** 2
    return jnp.argmin(d, axis=1), jnp.min(d, axis=1)


def fit(x, c):
    labels, near = assign(x, c)
    c = c + jnp.mean(near) * jnp.sin(labels.sum())
    labels, _ = assign(x, c)
    return labels, near


def test_a_result_that_one_call_does_not_read():
    args = np.arange(7.0, dtype=np.float32), np.arange(3.0, dtype=np.float32)
    written = untrace.decompile(fit)(*args)
    assert written.source.count("argmin") == 1 and "labels, _ = assign(x, " in written.source
    for found, expected in zip(written(*args), fit(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def forward(h, obs):
    def step(a, o):
        a = jnp.tanh(a @ h) * o
        return a, a.sum()

    last, sums = lax.scan(step, jnp.ones(h.shape[0]), obs)
    return jnp.log(sums).sum() + last.max(), last


def train(h, obs):
    likelihood, last = forward(h, obs)
    return h + 0.1 * jax.grad(lambda h: forward(h, obs)[0])(h), likelihood, last


def test_a_result_that_a_derivative_does_not_read():
    args = np.full((3, 3), 0.1, np.float32), np.ones(5, np.float32)
    written = untrace.decompile(train)(*args)
    assert written.source.count("jnp.tanh") == 1 and "jax.grad(" in written.source
    for found, expected in zip(written(*args), train(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_call_that_nobody_reads_is_none():
    def program(x):
        assign(x, x[:2])
        return assign(x, x[:3])[0]

    source = untrace.decompile(program, sizes="fixed")(np.arange(7.0, dtype=np.float32)).source
    assert source.count("argmin") == 1
