"""Floats of 16 bits in C: their bits stand in memory, `float` computes with them, and each result is rounded as JAX does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from c_texts import runs_clean, written
from jax import lax

import untrace

TYPES = [ml_dtypes.bfloat16, np.float16]
EVERY = np.arange(1 << 16, dtype=np.uint16)


def _bits(found, wanted):
    """The same bits, but of NaN."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


def _same(fn, *args):
    text = written(fn, *args)
    found, wanted = jax.tree.leaves(text(*args)), jax.tree.leaves(jax.jit(fn)(*args))
    for got, expected in zip(found, wanted, strict=True):
        assert got.dtype == expected.dtype
        scale = max(np.abs(np.asarray(expected, np.float32)).max(initial=0.0), 1e-3)
        np.testing.assert_allclose(
            np.asarray(got, np.float32) / scale, np.asarray(expected, np.float32) / scale, atol=2e-2
        )
    return text


@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_is_widened_and_rounded_as_it_should(dtype):
    every = EVERY.view(dtype)
    text = untrace.decompile(lambda x: x.astype(jnp.float32), target="c", prove=False)(every)
    np.testing.assert_array_equal(text(every), every.astype(np.float32))
    # What lies between two neighbours, just above and below the middle, and in it.
    exact = every[np.isfinite(every.astype(np.float32))].astype(np.float32)
    middle = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
    rng = np.random.default_rng(0).integers(0, 1 << 32, 5000, np.uint64).astype(np.uint32).view(np.float32)
    beside = [np.nextafter(middle, np.float32(end)) for end in (np.inf, -np.inf)]
    x = np.concatenate([middle, *beside, rng, np.array([np.inf, -np.inf, np.nan], np.float32)])
    text = untrace.decompile(lambda x: x.astype(dtype), target="c", prove=False)(x)
    with np.errstate(over="ignore", invalid="ignore"):
        _bits(text(x), x.astype(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_each_operation_is_rounded(dtype):
    x, y = np.linspace(-3, 3, 257).astype(dtype), np.linspace(1, 2, 257).astype(dtype)

    def chain(x, y):
        return x * y, x + y, x / y - x, jnp.where(x > y, x, -x), jnp.maximum(x, 0.5), abs(x) ** 2

    text = untrace.decompile(chain, target="c")(x, y)
    wide = x.astype(np.float32), y.astype(np.float32)
    product, total = (wide[0] * wide[1]).astype(dtype), (wide[0] + wide[1]).astype(dtype)
    _bits(text(x, y)[0], product)
    _bits(text(x, y)[1], total)
    quotient = (wide[0] / wide[1]).astype(dtype).astype(np.float32)
    _bits(text(x, y)[2], (quotient - wide[0]).astype(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_network_its_gradient_and_loops(dtype, tmp_path):
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(5, 5)).astype(dtype), rng.normal(size=(3, 5)).astype(dtype)

    def network(w, x):
        def step(h, row):
            h = jnp.tanh(h @ w + row)
            return h, jnp.sort(h)

        h, hs = lax.scan(step, jnp.zeros(5, dtype), x)
        return jax.nn.softmax(h), hs[jnp.array([2, 9])], jnp.cumsum(h), x.at[1].add(h), h.argmax()

    text = _same(network, w, x)
    assert f"uint16_t /* bits of a {np.dtype(dtype).name} */ w[" in text.header
    runs_clean(text, tmp_path / "project")
    _same(jax.grad(lambda w, x: network(w, x)[0].max() + network(w, x)[1].sum()), w, x)


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_tables_and_branches(dtype):
    table = np.linspace(0, 1, 7).astype(dtype)

    def chosen(x, i):
        return lax.cond(x > 1, lambda x: x * 2 + jnp.asarray(table)[i], lambda x: x - jnp.asarray(table).sum(), x)

    text = written(chosen, dtype(1.5), np.int32(2))
    for x in (0.25, 1.5, -2.0):
        _bits(text(dtype(x), np.int32(2)), chosen(dtype(x), np.int32(2)))
    # Through another type, and as bits.
    fn = lambda x: (lax.bitcast_convert_type(x, jnp.uint16) + 1, x.astype(jnp.int8), lax.reduce_precision(x, 8, 10))  # noqa: E731
    _same(fn, np.linspace(-9, 9, 8).astype(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_reductions_by_functions_of_the_authors(dtype):
    def ends(x, y):
        step = lambda a, b: (lax.max(a[0], b[0]), lax.min(a[1], b[1]) + a[1])  # noqa: E731
        return lax.reduce((x, y), (dtype(3), dtype(3)), step, (0,))

    x = np.arange(8).reshape(2, 4).astype(dtype)
    text = written(ends, x, x)
    for found, wanted in zip(text(x, x), jax.jit(ends)(x, x), strict=True):
        _bits(found, wanted)


def test_precision_of_float32_is_reduced_to_that_of_bfloat16():
    x = np.random.default_rng(1).normal(size=50).astype(np.float32)
    text = written(lambda x: lax.reduce_precision(x, 8, 7), x)
    np.testing.assert_array_equal(text(x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_what_asks_for_neighbours_is_refused():
    with pytest.raises(untrace.UnsupportedPrimitiveError, match="`nextafter` of floats of 16 bits"):
        untrace.decompile(lax.nextafter, target="c")(np.float16(1), np.float16(2))
