"""Arrays that a program has as they are: indices of NumPy's, mapped indices, arrays in which calls of one function differ."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

FIRST, SECOND = np.array([0, 1, 3]), np.array([1, 2, 4])
THIRD, FOURTH = np.array([0, 2, 3]), np.array([2, 1, 4])
NARROW, WIDE = jnp.array([1.0, 2.0, 4.0, 5.0, 7.0]), jnp.array([3.0, 2.0, 4.0, 9.0, 7.0])
X = jnp.arange(25.0).reshape(5, 5) + 1.0
IDS = jnp.array([0, 2, 1, 3, 3])


def _written(fn, *args):
    d = untrace.decompile(fn)(*args)
    assert d.proof.at_least("bits")
    assert ".bind(" not in d.source
    for got, expected in zip(jax.tree.leaves(d(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_array_equal(got, expected)
    return d


def springs(x):
    return jnp.sum((x[FIRST] - x[SECOND]) ** 2)


def test_the_gradient_at_indices_of_numpy_reads_and_adds_at_them():
    d = _written(jax.grad(springs), X)
    assert "2.0 * (x[FIRST] - x[SECOND])" in d.source
    assert ".at[FIRST].add(" in d.source and ".at[SECOND].add(" in d.source
    assert "where" not in d.source and "select" not in d.source


@pytest.mark.usefixtures("written_out")
def test_so_does_a_gradient_inside_a_loop():
    """The body reads each array where its gradient adds at it as well: what is negative is closed over more often then."""

    def descend(x):
        def step(c, _):
            return c - 0.1 * jax.grad(springs)(c), springs(c)

        return lax.scan(step, x, length=5)

    d = _written(descend, X)
    assert "lax.scan(step, x, length=5)" in d.source
    assert "c[FIRST]" in d.source or "x[FIRST]" in d.source
    assert ".at[SECOND].add(" in d.source and "lax.gather" not in d.source
    assert d.proof.level == "hlo" and "close over more than once" in str(d.proof)


def energy(x, first, second, rest):
    lengths = jnp.linalg.norm(x[second] - x[first], axis=-1)
    strain = lengths - rest
    return 0.5 * jnp.sum(strain**2) / jnp.max(lengths)


def weigh(x, w):
    y = jnp.tanh(x * w)
    return jnp.sum(y**2) / jnp.max(y) + jnp.sin(y).mean()


def test_calls_that_differ_in_indices_and_numbers_share_a_function():
    def total(x):
        return energy(x, FIRST, SECOND, 0.3) + energy(x, THIRD, FOURTH, 0.4)

    source = _written(total, X).source
    assert source.count("def ") == 2
    assert "def energy(x, first, second, rest):" in source
    assert "energy(x, FIRST, SECOND, 0.3) + energy(x, THIRD, FOURTH, 0.4)" in source
    assert "first, second: i32[3]; rest: float" in source


def test_so_do_calls_that_differ_in_arrays():
    def both(x):
        return weigh(x, NARROW) + weigh(x, WIDE)

    source = _written(both, X).source
    assert "def weigh(x, w):" in source and source.count("def ") == 2
    assert "weigh(x, NARROW) + weigh(x, WIDE)" in source


def test_and_calls_of_which_one_has_an_array_and_the_other_an_argument():
    def both(x, v):
        return weigh(x, NARROW) + weigh(x, v)

    source = _written(both, X, WIDE).source
    assert "weigh(x, NARROW) + weigh(x, v)" in source and source.count("def ") == 2


def test_an_array_that_all_calls_read_stays_where_it_is():
    def both(x, y):
        return weigh(x, NARROW) * weigh(y, NARROW)

    source = _written(both, X, X + 1.0).source
    assert "weigh(x) * weigh(y)" in source and "jnp.tanh(x * NARROW)" in source


def test_many_arrays_are_no_arguments():
    def layer(x, weights):
        for w in weights:
            x = jnp.tanh(x * w) + jnp.sin(x)
        return x

    first = [jnp.arange(5.0) + i for i in range(8)]
    second = [jnp.arange(5.0) * (i + 2) for i in range(8)]
    source = _written(lambda x: layer(layer(x, first), second), X).source
    assert max(line.count(",") for line in source.splitlines() if line.startswith("def ")) < 3


def test_a_mapped_index_under_grad():
    def loss(e, i):
        return jnp.sum(jax.vmap(lambda i: e[i])(i) ** 2)

    d = _written(jax.grad(loss), X, IDS)
    assert 'e.at[i].get(mode="clip")' in d.source and ".at[i].add(" in d.source and "lax." not in d.source
    np.testing.assert_array_equal(d(X, IDS + 3), jax.grad(loss)(X, IDS + 3))  # JAX puts indices where they fit


def test_mapped_indices_of_several_axes_under_grad():
    def loss(e, i, j):
        return jnp.sum(jax.vmap(lambda i, j: e[i, j])(i, j) ** 2)

    d = _written(jax.grad(loss), X, IDS, IDS)
    assert 'e.at[i, j].get(mode="clip")' in d.source and ".at[i, j].add(" in d.source and "lax." not in d.source
    np.testing.assert_array_equal(d(X, IDS + 3, IDS), jax.grad(loss)(X, IDS + 3, IDS))


def test_rows_with_an_index_each_under_grad():
    def loss(e, i):
        return jnp.sum(jax.vmap(lambda r, i: r[i] ** 2)(e, i))

    source = _written(jax.grad(loss), X, IDS).source
    assert "jax.vmap(lambda x, i: x[i])(e, i)" in source
    assert "x.at[i].add(value" in source and "lax." not in source


def test_an_array_with_a_weak_type_that_a_loop_changes():
    def fill(i):
        def body(c):
            i, p = c
            return i + 1, p.at[i].set(i * 2)

        return lax.while_loop(lambda c: c[0] < 4, body, (i, jnp.full(10, 3)))

    assert "return i + 1, p.at[i].set(i * 2)" in _written(fill, jnp.int32(0)).source
