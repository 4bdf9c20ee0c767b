"""The evaluator that computes one operation after the other, beside a jitted run."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from untrace.capture.jaxpr import Importer
from untrace.ir.stepwise import evaluate_stepwise


class Seen:
    def __init__(self):
        self.turns, self.names, self.depth, self.alive = [], [], 0, []
        self._refs = []

    def enter(self, equation, function, args, turn):
        self.depth += 1
        if turn is not None:
            self.turns.append((turn.number, turn.count, turn.is_first))

    def leave(self):
        self.depth -= 1

    def replaces(self, equation, inputs):
        return None

    def computed(self, equation, outputs):
        self.names.append(equation.callee.name)
        self.alive.append(sum(r() is not None for r in self._refs))
        self._refs += [weakref.ref(o) for o in outputs if isinstance(o, jax.Array)]


def stepwise(fn, *args):
    closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    seen = Seen()
    found = evaluate_stepwise(Importer(rules=False).function(closed, "f"), jax.tree.leaves(args), seen)
    assert seen.depth == 0
    return jax.tree.unflatten(jax.tree.structure(shape), found), seen


def backwards(x):
    return lax.scan(lambda c, a: (c * a, (c, jax.random.fold_in(jax.random.key(0), 1))), 1.0, x, reverse=True)


def batched_while(x):
    return jax.vmap(lambda x: lax.while_loop(lambda s: s < 10, lambda s: s * 2, x))(x)


def solved(x):
    a = jnp.eye(3) * 2 + jnp.ones((3, 3))
    return lax.custom_linear_solve(lambda v: a @ v, x, lambda _, b: jnp.linalg.solve(a, b), symmetric=True)


def branches(x):
    return lax.switch(x.astype(int).sum(), [jnp.sin, jnp.cos, lambda x: x + 1], x), lax.cond(
        x[0] > 5, jnp.sin, jnp.cos, x
    )


@pytest.mark.parametrize(
    "fn",
    [
        backwards, batched_while, solved, branches, jax.grad(lambda x: jax.nn.softplus(jax.nn.relu(x)).sum()),
        lambda x: lax.scan(lambda c, a: (c, a), x, jnp.zeros((0, 2))), lambda x: lax.associative_scan(jnp.add, x),
        jax.jit(lambda x: jnp.linalg.qr(jnp.outer(x, x) + jnp.eye(3))),
    ],
)  # fmt: skip
def test_results_are_those_of_a_jitted_run(fn):
    x = jnp.array([1.0, 2.0, 3.0])
    found, _ = stepwise(fn, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(fn)(x)), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_turns():
    _, seen = stepwise(backwards, jnp.ones(3))
    assert seen.turns == [(2, 3, True), (1, 3, False), (0, 3, False)]
    _, seen = stepwise(lambda x: lax.while_loop(lambda s: s < 3, lambda s: s + 1, x), 1)
    assert seen.turns == [(0, None, True), (0, None, False), (1, None, False), (1, None, False), (2, None, False)]


def test_only_the_branch_that_is_chosen_runs():
    _, seen = stepwise(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), 1.0)
    assert "sin" in seen.names and "cos" not in seen.names


def test_a_value_is_let_go_after_its_last_use():
    def chain(x):
        for _ in range(20):
            x = jnp.sin(x) + 1.0
        return x

    _, seen = stepwise(chain, jnp.ones(3))
    assert len(seen.alive) == 40 and max(seen.alive) <= 2
