"""Parts of what a call gives: the one that is read, and arrays that are bound to several names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

MATRIX = jnp.eye(3) + 0.5


def log_determinant(x):
    return jnp.linalg.slogdet(x)[1]


def log_determinant_by_name(x):
    sign, logdet = jnp.linalg.slogdet(x)
    return logdet * 2


def singular(x):
    return jnp.linalg.svd(x, full_matrices=False)[1].sum()


def pushed(x):
    return jax.jvp(jnp.tanh, (x,), (x,))[1]


def last(x):
    return jax.lax.scan(lambda c, row: (jnp.tanh(c + row), None), x[0], x)[0]


def drawn(x):
    key, first, second = jax.random.split(jax.random.key(0), 3)
    return jax.random.normal(first, x.shape) + jax.random.uniform(second, x.shape)


def two_of_three(x):
    a, _, c = x
    return a * c


def shifted(x):
    return jnp.stack([x[i] * x[i + 1] for i in range(2)])


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (log_determinant, "    return jnp.linalg.slogdet(x)[1]\n"),
        (log_determinant_by_name, "    _, logdet = jnp.linalg.slogdet(x)\n"),
        (singular, "    return jnp.linalg.svd(x, full_matrices=False)[1].sum()\n"),
        (pushed, "    return jax.jvp(jnp.tanh, (x,), (x,))[1]\n"),
        (last, ", x[0], x)[0]\n"),
        (drawn, "    _, first, second = jax.random.split("),
        (two_of_three, "    a, _, c = x\n"),
        (shifted, "x[1] * x[2]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_parts_are_said_as_the_author_says_them(program, line, tmp_path):
    found, text = saved(untrace.decompile(program)(MATRIX), tmp_path)
    assert line in text, text
    np.testing.assert_array_equal(jax.jit(found)(MATRIX), jax.jit(program)(MATRIX))


@pytest.mark.parametrize("target", ["numpy", "torch"])
def test_keys_are_unpacked_in_other_targets(target):
    if target == "torch":
        pytest.importorskip("torch")
    text = untrace.decompile(drawn, target=target)(MATRIX).source
    assert "    _, first, second = _split(" in text, text


def entropy(w, x, y):
    logits = x @ w
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[jnp.arange(y.shape[0]), y])


def of_two_batches(w, x, y, other, labels):
    one = jax.grad(entropy)(w, x[:1], y[:1])
    return one + jax.grad(entropy)(w, other, labels)


def test_sizes_are_read_off_the_array_that_the_author_reads_them_off(tmp_path):
    args = jnp.ones((3, 2)), jnp.ones((4, 3)), jnp.zeros(4, int), jnp.ones((5, 3)), jnp.ones(5, int)
    found, text = saved(untrace.decompile(of_two_batches)(*args), tmp_path)
    assert text.count("jnp.arange(y.shape[0])") == text.count("def entropy") == 1, text
    np.testing.assert_array_equal(jax.jit(found)(*args), jax.jit(of_two_batches)(*args))


def noisy(params, grads, scale):
    noise = {"b": jnp.cos(params["b"]), "w": jnp.sin(params["w"])}
    return jax.tree.map(lambda p, g, n: p - scale * g + 0.1 * n, params, grads, noise)


def test_a_map_over_two_leaves_may_put_one_of_several_trees_together(tmp_path):
    params = {"b": jnp.ones(2), "w": jnp.ones((3, 2))}
    found, text = saved(untrace.decompile(noisy)(params, params, 0.5), tmp_path)
    assert "jax.tree.map(lambda p, g, n: p - scale * g + 0.1 * n, params, grads, " in text, text
    for one, other in zip(*[jax.tree.leaves(jax.jit(f)(params, params, 0.5)) for f in (found, noisy)], strict=True):
        np.testing.assert_array_equal(one, other)
