"""What loops and choices give is returned as it is, by the author's names where he has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace


def moved(x, v, us):
    def step(c, u):
        x, v = c
        v = v + u
        return (x + v, v), v.sum()

    return jax.lax.scan(step, (x, v), us)


def moved_by_name(x, v, us):
    (position, velocity), sums = moved(x, v, us)
    return (position, velocity), sums


def doubled(x, v, us):
    return jax.lax.while_loop(lambda c: c[1].sum() < 100.0, lambda c: (c[0] + c[1], c[1] * 2.0), (x, v + us[0] ** 2))


def chosen(x, v, us):
    return jax.lax.cond(us.sum() > 0.0, lambda x, v: (x + v, v), lambda x, v: (x, v - x), x, v)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (moved, "    return lax.scan(step, (x, v), us)\n"),
        (moved_by_name, "    return (position, velocity), sums\n"),
        (doubled, "    return lax.while_loop("),
        (chosen, "    return lax.cond("),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_loop_gives_is_returned_as_it_is_where_it_has_no_names(program, line, tmp_path):
    args = jnp.ones(3), jnp.ones(3), jnp.ones((5, 3))
    found, text = saved(untrace.decompile(program)(*args), tmp_path)
    assert line in text, text
    ours, theirs = jax.jit(found)(*args), jax.jit(program)(*args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def norm(g, x):
    return g * jnp.tanh(x - x.mean()) / jnp.sqrt(x.var() + 1e-5)


def test_a_function_has_its_name_before_a_part_of_an_argument():
    def net(params, xs):
        def one(x):
            for _ in range(2):
                x = norm(params["norm"], x @ params["w"])
            return x * params["norm"]

        return jax.vmap(one)(xs)

    text = untrace.decompile(net)({"norm": jnp.ones(3), "w": jnp.eye(3)}, jnp.ones((5, 3))).source
    assert "def norm(g, x):" in text, text
