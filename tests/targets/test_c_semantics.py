"""What C leaves undefined, or does otherwise, is what JAX gives: the same numbers, to the bit, on the values that tell."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace.targets.c.compiled import STRICT, build

FLOATS = np.array([0.0, -0.0, 1.0, -1.5, 2.5, -2.5, np.nan, np.inf, -np.inf, 3e9, -3e9, 300.0], np.float32)
INTS = np.array([7, -7, 0, 2147483647, -2147483648, 5, -1, 3], np.int32)


def _same(fn, *args):
    """The results in C and in JAX are the same bits."""
    text = untrace.decompile(fn, target="c", prove=False)(*args)
    for found, expected in zip(jax.tree.leaves(text(*args)), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        wanted = np.asarray(expected)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_array_equal(found, wanted)
        if wanted.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found)[~np.isnan(wanted)], np.signbit(wanted)[~np.isnan(wanted)])
    return text


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"])
def test_casts_saturate(dtype):
    _same(lambda x: x.astype(dtype), FLOATS)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "uint32", "bool", "float32"])
def test_casts_of_integers_wrap(dtype):
    _same(lambda x: x.astype(dtype), INTS)


def test_integer_division_by_zero_and_of_the_smallest():
    def divided(x, y):
        return lax.div(x, y), lax.rem(x, y), lax.div(x, jnp.int32(3)), lax.rem(x, jnp.int32(3))

    others = np.array([0, 0, 0, -1, -1, 2, 0, -2], np.int32)
    _same(divided, INTS, others)
    _same(lambda x, y: (lax.div(x, y), lax.rem(x, y)), INTS.astype(np.uint32), others.astype(np.uint32))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8])
def test_integers_wrap_around(dtype):
    x, y = INTS.astype(dtype), INTS[::-1].astype(dtype)
    _same(lambda x, y: (x + y, x - y, x * y, -x, x**3, jnp.sum(x, dtype=dtype), jnp.abs(x), jnp.sign(x)), x, y)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8])
def test_wide_shifts(dtype):
    x = INTS.astype(dtype)
    n = np.array([0, 1, 4, 7, 8, 31, 32, 100], dtype)

    def shifted(x, n):
        return lax.shift_left(x, n), lax.shift_right_logical(x, n), lax.shift_right_arithmetic(x, n)

    _same(shifted, x, n)
    _same(lambda x: (lax.population_count(x), lax.clz(x), ~x, x & n, x | n, x ^ n), x)


def test_signs_and_extremes():
    others = np.array([-0.0, 0.0, np.nan, 1.0, -1.0, np.nan, 0.0, np.nan, 1.0, -np.inf, np.inf, 2.0], np.float32)

    def extremes(x, y):
        return (
            jnp.sign(x),
            lax.max(x, y),
            lax.min(x, y),
            jnp.maximum(x, 0.0),
            jnp.minimum(x, 0.0),
            jnp.clip(x, -1.0, 2.0),
        )

    _same(extremes, FLOATS, others)
    _same(lambda x: (jnp.max(x), jnp.min(x[:6]), jnp.argmax(x), jnp.argmin(x), jnp.argmax(x[:6])), FLOATS)


def test_rounding_is_away_from_zero_or_to_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 1e20], np.float32)
    _same(lambda x: (lax.round(x), jnp.round(x), jnp.floor(x), jnp.ceil(x)), x)


def test_indices_outside():
    def indexed(x, i):
        taken = [x[i], x.at[i].get(mode="fill"), x.at[i].get(mode="clip"), x.at[i].get(mode="promise_in_bounds")]
        put = [x.at[i].set(9.0), x.at[i].add(1.0, mode="drop"), x.at[i].multiply(2.0, mode="clip"), x.at[i].max(2.5)]
        return taken[:3], put

    _same(indexed, np.arange(5, dtype=np.float32), np.array([7, -1, -9, 0, 4], np.int32))
    _same(lambda x, i: (x[i], x[i].sum()), np.arange(6, dtype=np.float32).reshape(3, 2), np.array([5, -1], np.int32))


def test_an_element_that_is_never_there_is_not_named():
    """Compilers look for it even where nothing goes there (clang: -Warray-bounds)."""

    def put(x):
        return x.at[10].add(jnp.exp(x[0])), x.at[jnp.array([-9])].get(mode="fill")

    def padded(x):
        return lax.reduce_window(x, 0.0, lax.add, (1,), (1,), [(-1, 4)]), lax.reduce_window(
            x, -jnp.inf, lax.max, (2,), (9,), [(9, 0)]
        )

    assert "in_range(" not in _same(put, np.arange(5, dtype=np.float32)).source
    text = _same(padded, np.arange(1, 2, dtype=np.float32))
    assert "[-" not in text.source and "x[1]" not in text.source


def put_nowhere(x, y):
    z = jnp.sqrt(x) * 2 + x * x
    return (z + 1).at[10].add(jnp.exp(y)) * z


def test_a_parameter_on_which_nothing_depends_is_not_given():
    def twice(x, y):
        z = put_nowhere(x, y)
        return put_nowhere(z * 2 + x, y * 3), z

    text = _same(twice, jnp.arange(1, 6, dtype=jnp.float32), jnp.float32(2))
    assert "static void put_nowhere(const float x[restrict 5], float result[restrict 5])" in text.source


def test_a_number_compared_with_itself_is_not():
    """Compilers ask why (clang: -Wtautological-compare); NaN alone is another than itself."""

    def compared(i, x):
        return i == i, (i + 1) < (i + 1), x == x

    text = _same(compared, INTS, FLOATS[: len(INTS)])
    assert "= true;" in text.source and "= false;" in text.source


def test_what_no_number_of_a_type_is_is_not_asked():
    """Compilers see it (gcc: -Wtype-limits)."""

    def asked(u, k):
        return u < 0, u >= 0, jnp.where(u < 0, u + 3, u), k > 127, k >= -128, k < 127

    u, k = np.array([0, 1, 2**32 - 1], np.uint32), np.array([127, -128, 0], np.int8)
    build(_same(asked, u, k).program, (*STRICT, "-O1"))


def test_unsigned_numbers_below_0_are_large():
    def wrapped(x):
        k = lax.iota(jnp.uint32, 3)
        return (
            jnp.where(k - jnp.uint32(5) > jnp.uint32(10), x, 0),
            x.at[k + jnp.uint32(2**32 - 1)].get(mode="fill"),
            x.at[k * jnp.uint32(2**31 + 1)].set(7.0, mode="drop"),
        )

    _same(wrapped, jnp.arange(1, 4, dtype=jnp.float32))


def test_a_slice_outside_is_moved_inside():
    x = np.arange(6, dtype=np.float32)

    def moved(x, i):
        return (
            lax.dynamic_slice(x, (i,), (3,)),
            lax.dynamic_update_slice(x, jnp.ones(3), (i,)),
            lax.dynamic_index_in_dim(x, i),
        )

    for start in (-2, 0, 4, 100):
        _same(moved, x, np.int32(start))


def test_segments_drop_what_is_outside():
    ids = np.array([0, 2, -1, 5, 2], np.int32)
    _same(lambda x, ids: jax.ops.segment_sum(x, ids, 3), np.arange(5, dtype=np.float32), ids)


def test_sorts_are_stable_and_nan_is_last():
    x = np.array([3.0, np.nan, -1.0, 3.0, -np.inf, np.nan, 0.0], np.float32)
    y = np.arange(7, dtype=np.int32)
    _same(lambda x, y: (jnp.sort(x), jnp.argsort(x), lax.sort((x, y), num_keys=1), lax.top_k(x[2:5], 2)), x, y)


def test_a_choice_of_several():
    def chosen(i, x):
        return lax.switch(i, [lambda x: x + 1.0, lambda x: x * 2.0, lambda x: -x], x)

    for branch in (-1, 0, 1, 2, 9):
        _same(chosen, np.int32(branch), np.float32(3.0))


def test_reductions_by_functions_of_ones_own():
    x, y = np.arange(12, dtype=np.float32).reshape(3, 4) - 5, np.arange(12, dtype=np.int32).reshape(3, 4)

    def best(x, y):
        def larger(one, other):
            chosen = abs(one[0]) >= abs(other[0])
            return jnp.where(chosen, one[0], other[0]), jnp.where(chosen, one[1], other[1])

        return lax.reduce((x, y), (jnp.float32(0), jnp.int32(-1)), larger, (0,))

    _same(best, x, y)
    _same(lambda x: lax.reduce(x, np.int32(3), lambda a, b: a * 3 + b, (0, 1)), y)
    _same(lambda x: (lax.reduce_xor(x, (1,)), lax.reduce_xor(x > 3, (0,))), y)


def test_windows_by_functions_with_gaps_and_padding():
    x = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    y = np.arange(12, dtype=np.int32).reshape(3, 4)

    def swept(x, y):
        window = {"window_dimensions": (2, 2), "window_strides": (1, 2), "padding": ((1, 0), (0, 1))}
        own = lax.reduce_window(x, np.float32(0.5), lambda a, b: a * 0.5 + b, **window, base_dilation=(2, 1))
        return own, lax.reduce_window(y, 0, lax.add, **window, base_dilation=(1, 3), window_dilation=(1, 2))

    _same(swept, x, y)


def test_a_product_of_two_types_is_of_the_larger():
    x, y = np.arange(6, dtype=np.int8).reshape(2, 3) + 60, np.arange(6, dtype=np.int32).reshape(3, 2) * 1000
    _same(lax.dot, x, y)
    _same(lax.dot, x, y.astype(np.float32))


def test_derivatives_at_kinks():
    x = np.array([0.0, -0.0, 1.0, -1.0], np.float32)
    _same(jax.vmap(jax.grad(lambda x: jnp.abs(x) + jax.nn.relu(x))), x)


def test_a_table_has_not_the_name_of_a_parameter():
    """It would be hidden by it: an index would be read from the data."""
    x = np.arange(30, dtype=np.float32).reshape(6, 5)
    _same(lambda x: (x[jnp.array([0, -1, 2])], x[:, np.array([1, 0])]), x)


def test_a_reshape_of_other_axes_order():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    _same(lambda x: lax.reshape(x, (4, 6), dimensions=(2, 0, 1)), x)


def test_the_largest_are_those_of_the_total_order():
    x = np.array([3, 1, np.nan, 0.0, -0.0, 5, -np.nan], np.float32)
    _same(lambda x: (lax.top_k(x, 7)[1], lax.top_k(-x, 7)[1], jnp.argpartition(x, 2)), x)
