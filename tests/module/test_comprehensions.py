"""Lists and sums of the same for each element of a list are comprehensions."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace
from untrace.python.tree import Comprehension

X = jnp.linspace(-1.0, 1.0, 16).reshape(4, 4)
P = [{"w": X * (i + 1), "b": X[i]} for i in range(3)]


def head(p, x):
    a = jax.nn.softmax(x @ p["w"])
    return a @ x + p["b"]


def stacked(params, x):
    return jnp.stack([head(p, x) for p in params])


def of_two(params, x):
    return jnp.concatenate([head(q, x) for q in params[:2]], axis=-1)


def appended(params, x):
    found = []
    for p in params:
        found.append(head(p, x))
    return found


def penalty(params, x):
    reg = sum(jnp.sum(jnp.square(p["w"])) + jnp.sum(jnp.abs(p["b"])) for p in params)
    return jnp.mean(head(params[0], x) ** 2) + 0.01 * reg


def zipped(params, x):
    return sum(g * head(p, x) for g, p in zip(x, params[:3], strict=False))


def mixed(params, x):
    return sum(jnp.mean((p["w"] - x) ** 2) for p in params) + jnp.sum(x)


def nested(blocks, x):
    for block in blocks:
        x = jnp.concatenate([head(p, x) for p in block], axis=-1) @ jnp.ones((12, 4))
    return x


def long_in_a_loop(blocks, x):
    outer = jnp.sin(x)
    for block in blocks:
        heads = [head(p, x) * jnp.sum(jnp.sin(p["w"]), axis=-1) + jnp.cos(head(p, x)) for p in block]
        x = jnp.concatenate(heads, axis=-1) @ jnp.ones((12, 4)) + jnp.concatenate([head(block[0], outer)], axis=-1)
    return x


def by_hand(params, x):
    return jnp.stack([head(params[0], x), head(params[2], x)])


MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])


def moved(params, x):
    y = jnp.tanh(x)
    return jnp.stack([jnp.roll(y[q] * x, MOVES[q], axis=(0, 1)) for q in range(4)])


def shifted(params, x):
    y = jnp.tanh(x)
    return sum(jnp.roll(y, (dy, dx), axis=(0, 1)) for dy, dx in ((0, 1), (1, 0), (0, -1)))


def nested_targets(params, x):
    y = jnp.tanh(x)
    return sum(w * jnp.roll(y, (dy, dx), axis=(0, 1)) for w, (dy, dx) in ((1.5, (0, 1)), (2.5, (1, 0)), (3.5, (0, 2))))


def polynomial(params, x):
    y = x - 1.0
    return sum(x[0, i] * y**i for i in range(4))


PROGRAMS = [
    (moved, P, "[jnp.roll(y[q] * x, MOVES[q], axis=(0, 1)) for q in range(4)]"),
    (shifted, P, "for dy, dx in ((0, 1), (1, 0), (0, -1))"),
    (nested_targets, P, "for w, (dy, dx) in "),
    (polynomial, P, "sum(x[0, i] * y**i for i in range(4))"),
    (stacked, P, "jnp.stack([head(p, x) for p in params])"),
    (of_two, P, "jnp.concatenate([head(q, x) for q in params[:-1]], axis=-1)"),
    (appended, P, "return [head(p, x) for p in params]"),
    (penalty, P, 'sum(jnp.square(p["w"]).sum() + jnp.abs(p["b"]).sum() for p in params)'),
    (mixed, P, 'sum(jnp.mean((p["w"] - x) ** 2) for p in params) + x.sum()'),
    (nested, [P, P], "for block in blocks:\n        joined = jnp.concatenate([head(p, x) for p in block], axis=-1)\n"),
    (long_in_a_loop, [P, P], "for p in block\n        ]\n"),
    (by_hand, P, "jnp.stack([head(params[0], x), head(params[2], x)])"),
    (zipped, P, "head(params[0], x)"),  # rows of an array are no list
]


@pytest.mark.parametrize(("program", "params", "line"), PROGRAMS, ids=[p.__name__ for p, *_ in PROGRAMS])
def test_comprehensions_are_the_authors(program, params, line, tmp_path):
    found = untrace.decompile(program)(params, X)
    assert found.proof.level == "jaxpr", found.proof
    written, text = saved(found, tmp_path)
    assert line in text, text
    np.testing.assert_array_equal(
        jax.tree.leaves(jax.jit(written)(params, X)), jax.tree.leaves(jax.jit(program)(params, X))
    )


def test_a_sum_stays_where_it_was_computed(tmp_path):
    """A derivative adds up in that order."""

    def gradient(params, x):
        return jax.grad(penalty)(params, x)

    found = untrace.decompile(gradient)(P, X)
    assert found.proof.level == "jaxpr", found.proof
    written, text = saved(found, tmp_path)
    assert re.search(r"    reg = sum\(\s*jnp.square", text) and "+ 0.01 * reg" in text, text
    for one, other in zip(jax.tree.leaves(written(P, X)), jax.tree.leaves(gradient(P, X)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_name_in_the_comprehension_hides_nothing_that_it_reads(tmp_path):
    def heads(params, p):
        return jnp.stack([head(q, p) for q in params]) + jnp.stack([head(w, p) for w in params])

    def of_p(params, p):
        return jnp.stack([head(params_of_one, p) for params_of_one in params]) * p

    for program in (heads, of_p):
        written, _ = saved(untrace.decompile(program)(P, X), tmp_path)
        np.testing.assert_array_equal(jax.jit(written)(P, X), jax.jit(program)(P, X))


def test_a_comprehension_that_is_not_proven_is_taken_back_and_loops_stay(tmp_path, monkeypatch):
    def network(params, x):
        for p in params:
            x = jnp.sin(head(p, x)) + x
        return jnp.stack([head(p, x) for p in params])

    def backwards(self):
        return f"{self.opening}{self.body.flat()} for {self.target} in reversed({self.iterable.flat()}){self.closing}"

    monkeypatch.setattr(Comprehension, "flat", backwards)
    found = untrace.decompile(network)(P, X)
    assert found.proof.level == "jaxpr" and "reversed" not in found.source
    assert "for p in params:\n        x = jnp.sin(head(p, x)) + x\n" in found.source, found.source


def test_a_long_comprehension_is_broken_over_lines(tmp_path):
    def long(parameters_of_all_heads, activations):
        return jnp.concatenate(
            [head(parameters, activations) * jnp.sum(jnp.sin(parameters["w"]), axis=-1) + jnp.max(activations)
             for parameters in parameters_of_all_heads],
            axis=-1,
        )  # fmt: skip

    written, text = saved(untrace.decompile(long)(P, X), tmp_path)
    assert "\n        for parameters in parameters_of_all_heads\n    ]\n" in text, text
    np.testing.assert_array_equal(jax.jit(written)(P, X), jax.jit(long)(P, X))


def by_key(params, xs):
    return {k: head(params[k], x) for k, x in xs.items()}


def updated(params, grads):
    found = jnp.sin(grads[0][1])
    return [(w - 0.1 * dw, b - found * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]


@pytest.mark.parametrize(
    ("program", "args", "line"),
    [
        (
            by_key,
            (dict(zip("cab", P, strict=False)), dict.fromkeys("abc", X)),
            "{k: head(params[k], x) for k, x in xs.items()}",
        ),
        (
            updated,
            ([(X, X[0])] * 3, [(X, X[0])] * 3),
            "return [(w - 0.1 * dw, b - found * db) for (w, b), (dw, db) in zip(params, grads)]\n",
        ),
    ],
    ids=["by_key", "updated"],
)
def test_the_authors_targets(program, args, line, tmp_path):
    written, text = saved(untrace.decompile(program)(*args), tmp_path)
    assert line in text, text
    for one, other in zip(
        jax.tree.leaves(jax.jit(written)(*args)), jax.tree.leaves(jax.jit(program)(*args)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
