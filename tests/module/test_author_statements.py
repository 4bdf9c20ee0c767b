"""Statements of the author's are statements of the text: in one line, under his names, whole trees as such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from roundtrip import saved

import untrace

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
W = {"w": jnp.full((4, 4), 0.2), "b": jnp.full(4, 0.1)}


def dense(p, x):
    return x @ p["w"] + p["b"]


def residual(p, x):
    h = jax.nn.silu(dense(p, jnp.concatenate([x, jnp.cos(x)], axis=0)))
    h = h + dense(p, jax.nn.silu(dense(p, jnp.tanh(h))))
    return dense(p, jnp.tanh(dense(p, jnp.stack([h, h * 2.0]))))


def counted(p, x):
    u, v = lax.fori_loop(0, 3, lambda i, s: (s[0] + i, jnp.tanh(s[1])), (x, x + 1.0))
    return u * v


def counted_up_to(p, x):
    total = lax.fori_loop(0, x.shape[0] + p["b"].astype(int)[0], lambda i, s: jnp.tanh(s * i), x)
    return total * total


def cell(p, state, x):
    h, c = state
    i, f = jnp.split(dense(p, jnp.concatenate([x[:2], h])), 2)
    c = jax.nn.sigmoid(f) * c + jnp.tanh(i)
    h = jnp.tanh(c)
    return (h, c), h


def run(p, xs, reverse=False):
    start = jnp.zeros(2), jnp.ones(2)
    return lax.scan(lambda state, x: cell(p, state, x), start, xs, reverse=reverse)[1]


def both_ways(p, x):
    return jnp.concatenate([run(p, x), run(p, x, reverse=True)], axis=-1)


def recurrent(p, x):
    def cell(state, row):
        h, c = state
        c = c * 0.9 + row[0] * h
        h = jnp.tanh(c)
        return (h, c), h

    return lax.scan(cell, (p["b"], x[0]), x)[1]


def with_statistics(p, x):
    def loss(p):
        y = dense(p, x)
        return jnp.mean(y**2), (y, {"statistics": {"mean": y.mean(), "var": y.var()}})

    (_, (y, updates)), grads = jax.value_and_grad(loss, has_aux=True)(p)
    return grads, updates["statistics"], y


def score(p, x, y):
    return jnp.tanh(dense(p, jnp.concatenate([x, y], axis=-1)))[..., 0]


def compared(p, x):
    def loss(q):
        return jnp.mean((score(q, x[:, :1], x[:, 1:]) - score(p, x[:, 1:], x[:, :1])) ** 2)

    return jax.grad(loss)(p)


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (residual, [
            "    h = jax.nn.silu(dense(p, jnp.concatenate([x, jnp.cos(x)])))\n",
            "    h = h + dense(p, jax.nn.silu(dense(p, jnp.tanh(h))))\n",
            "    return dense(p, jnp.tanh(dense(p, jnp.stack([h, h * 2.0]))))\n",
        ]),
        (counted, ["    u, v = lax.fori_loop(0, 3, ", "    return u * v\n"]),
        (counted_up_to, ["    total = lax.fori_loop(", "    return total * total\n"]),
        (both_ways, ["def run(p, xs, reverse):", "run(p, x, False), run(p, x, True)"]),
        (recurrent, ["        h = jnp.tanh(c)\n        return (h, c), h\n"]),
        (with_statistics, [
            "    (_, (y, updates)), grads = jax.value_and_grad(loss, has_aux=True)(p)\n",
            '    return grads, updates["statistics"], y\n',
        ]),
        (compared, ["def score(p, x, y):"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_each_line_is_the_authors(program, lines, tmp_path):
    found, text = saved(untrace.decompile(program)(W, X), tmp_path)
    assert [line for line in lines if line not in text] == [], text
    for one, other in zip(*[jax.tree.leaves(jax.jit(f)(W, X)) for f in (found, program)], strict=True):
        np.testing.assert_array_equal(one, other)
