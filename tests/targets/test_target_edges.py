"""Values at the edges of their types, which each library takes otherwise: unsigned, without axes, zeros of either sign."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

TARGETS = ["c", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]


def _same(target, fn, *args):
    text = untrace.decompile(fn, target=target, sizes="fixed")(*args)
    for found, expected in zip(jax.tree.leaves(text(*args)), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        found, wanted = np.asarray(found), np.asarray(expected)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_array_equal(found, wanted)
        if wanted.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    return text


@pytest.mark.parametrize("target", TARGETS)
def test_the_largest_unsigned_number_is_no_minus_one(target):
    x, y = (a.ravel() for a in np.meshgrid(np.uint8([0, 1, 128, 255]), np.uint8([0, 1, 2, 255])))
    _same(target, lambda x, y: (lax.div(x, y), lax.rem(x, y), x // y, x % y), x, y)


@pytest.mark.parametrize("target", TARGETS)
def test_an_array_without_axes_is_updated(target):
    _same(target, lambda x, i: (x.at[()].set(1.0), x.at[()].add(i), x.at[...].mul(i)), np.float32(2.5), np.float32(3))


@pytest.mark.parametrize("target", TARGETS)
def test_zeros_of_either_sign_stay_in_their_order(target):
    x = np.tile(np.float32([0.0, -0.0, 1.0, -0.0, 0.0, -1.0]), 6)
    _same(target, lambda x: (jnp.sort(x), jnp.sort(x[::-1].reshape(6, 6), axis=0)), x)


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_truths_says_whether_there_is_a_term(target):
    x = np.random.default_rng(0).random((5, 5)) < 0.3
    _same(target, lambda x: (x @ x, x @ x[0]), x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("types", [("int16", "uint16"), ("int8", "uint32")], ids="-".join)
def test_a_product_of_signed_and_unsigned_numbers_has_the_type_of_one(target, types):
    x = np.arange(12).reshape(4, 3).astype(types[0]) * np.array(-30, types[0])
    y = (np.arange(18).reshape(3, 6) * 5000).astype(types[1])

    def f(x, y):
        product = lax.dot(x, y)
        return product, (product >> 3).astype(np.float32)

    text = _same(target, f, x, y)
    if target == "c":
        from untrace.targets.c.compiled import STRICT, build

        build(text.program, (*STRICT, "-O1"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_factor_leaves_what_stands_above_the_diagonal(target, dtype):
    x = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(dtype)
    x = x @ np.swapaxes(x, -1, -2) + np.triu(np.full((4, 4), 7, dtype), 1)
    x[1] = -1
    text = untrace.decompile(lax.linalg.cholesky_p.bind, target=target, sizes="fixed")(x)
    np.testing.assert_allclose(text(x), jax.jit(lax.linalg.cholesky_p.bind)(x), rtol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_stacked_beside_arrays(target):
    def stacked(i, x, h):
        return jnp.stack([i, jnp.int32(0)]), jnp.stack([x, jnp.float32(0.5), x * x]), jnp.stack([jnp.float16(1), h])

    _same(target, stacked, np.int32(3), np.float32(2.5), np.float16(2))


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_integers_as_narrow_floats_is_summed_in_wider_ones(target):
    def product(x, y):
        products = [lax.dot(x, y, preferred_element_type=narrow) for narrow in (jnp.bfloat16, jnp.float16)]
        return [lax.bitcast_convert_type(p, jnp.int16) for p in products]

    r = np.random.default_rng(0)
    _same(target, product, *[r.integers(-9, 9, shape).astype(np.int8) for shape in ((4, 60), (60, 3))])


EAGER = [target for target in TARGETS if target != "c"]


def _follows(target, fn, *args):
    """The text in any size, and what it is on others."""
    text = untrace.decompile(fn, target=target)(*args)

    def check(*others):
        wanted = jax.tree.leaves(jax.jit(fn)(*others))
        given = jax.tree.map(np.asarray, others)
        if target == "torch":
            import torch

            given = jax.tree.map(lambda a: torch.tensor(np.array(a, np.float32)).to(torch.float16) if a.dtype == np.float16
                                 else torch.tensor(np.array(a)), given)  # fmt: skip
        for found, expected in zip(jax.tree.leaves(text(*given)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=2e-3)

    return check


@pytest.mark.parametrize("target", EAGER)
@pytest.mark.parametrize("size", [2**31 - 1, 99, 11, -12, -(2**31)])
def test_a_number_that_is_a_place_in_a_part_of_a_tree_may_be_outside(target, size):
    """Sizes are tried large, and of one number in a large sample none was outside."""
    cases = {
        "row": lambda p, i: p["x"][i] @ p["w"],
        "column": lambda p, i: p["x"][2:5, i] + p["w"].sum(),
        "taken": lambda p, i: jnp.take(p["x"], i, axis=0) @ p["w"],
    }
    params = {"x": jnp.arange(88.0).reshape(11, 8), "w": jnp.ones((8, 8))}
    for fn in cases.values():
        _follows(target, fn, params, jnp.int32(1))(params, jnp.int32(size))


@pytest.mark.parametrize("target", EAGER)
@pytest.mark.parametrize("fn", [jnp.var, jnp.median, jnp.std])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_the_same_of_many_numbers_is_tried_of_few(target, fn, dtype):
    """PyTorch's `var` divides by n - 1, and its `median` is the lower one of two."""
    x = jnp.asarray([[1, 2, 3, 10.0]] * 3, dtype) * jnp.arange(1, 4).astype(dtype)[:, None]
    check = _follows(target, lambda x: fn(x), x)
    check(x)
    check(x[:, :3])
    check(x[:2])


@pytest.mark.parametrize("target", TARGETS)
def test_a_bound_of_truths(target):
    x = jnp.array([[True, False, True]])
    _same(target, lambda x: (jnp.maximum(x, False), jnp.minimum(True, x), jnp.max(x, initial=False, where=x)), x)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_integers_in_c_compile_without_a_warning_under_a_sanitizer_too(dtype):
    from untrace.targets.c.compiled import STRICT, build

    info = np.iinfo(dtype)
    values = np.array([info.min, info.max, 0, 1, -1 if info.min else info.max - 1, 2, 7], dtype)
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    shifts = (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)

    def f(x, y):
        return lax.div(x, y), lax.rem(x, y), x // y, x % y, lax.sign(x), jnp.abs(x), [s(x, y) for s in shifts]

    build(_same("c", f, x, y).program, (*STRICT, "-O1", "-fsanitize=undefined"))


def test_an_unused_parameter_in_c_may_have_the_name_of_a_field():
    from untrace.targets.c.compiled import STRICT, build

    build(_same("c", lambda x, i: {"i": x * 2}, np.ones(3, np.float32), np.ones(2, np.float32)).program, STRICT)


@pytest.mark.parametrize("target", EAGER)
@pytest.mark.parametrize(
    "fn",
    [lambda x: jnp.searchsorted(jnp.sort(x), x), lambda x: jnp.interp(x, jnp.sort(x), x)],
    ids=["places", "between"],
)
def test_a_search_of_so_many_steps_is_right_or_refused_at_other_sizes(target, fn):
    try:
        d = untrace.decompile(fn, target=target)(np.linspace(-1.0, 1.0, 6, dtype=np.float32))
    except untrace.UnsupportedPrimitiveError as error:  # JAX 0.12 has a primitive of its own for it
        assert "call_hi_primitive" in str(error)
        return
    for size in (6, 7, 4000):
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        try:
            found = d(x)
        except TypeError as error:
            assert "this was written for" in str(error)
            continue
        np.testing.assert_allclose(found, jax.jit(fn)(x), rtol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: (jnp.any(x > 0, axis=()), jnp.all(x > 0, axis=())),
        lambda x, i: jnp.roll(x, i),
        lambda x, i: jnp.roll(x, i, axis=1),
    ],
    ids=["no axis", "moved", "moved along"],
)
def test_what_pytorch_maps_otherwise_is_no_call_of_it(fn):
    torch = pytest.importorskip("torch")
    x = np.array([[-1.0, 2.0, 3.0], [4.0, -5.0, 6.0]], np.float32)
    d = untrace.decompile(fn, target="torch")(x, 1)
    mapped = torch.func.vmap(getattr(d.module, d.name), in_dims=(0, None))(
        torch.tensor(np.stack([x, -x])), torch.tensor(1)
    )
    expected = [jax.tree.leaves(jax.jit(fn)(y, 1)) for y in (x, -x)]
    for found, both in zip(jax.tree.leaves(mapped), zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(found.numpy(), np.stack(both))


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_the_ends_of_half_a_transform_have_no_sign(length):
    d = untrace.decompile(lambda x: jnp.angle(jnp.fft.rfft(x)), target="c")(np.arange(length, dtype=np.float32))
    x = -np.arange(1.0, length + 1, dtype=np.float32)
    np.testing.assert_allclose(d(x), jnp.angle(jnp.fft.rfft(x)), rtol=1e-5)


def test_factors_of_what_is_not_a_number_are_none():
    d = untrace.decompile(jnp.linalg.qr, target="c")(np.eye(3, dtype=np.float32))
    x = np.full((3, 3), np.nan, np.float32)
    jax.tree.map(np.testing.assert_array_equal, tuple(d(x)), tuple(jnp.linalg.qr(x)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_variance_beside_arrays_of_a_fixed_size(dtype):
    """Of the sizes at which the text is traced one is small, and `n - 1` is as good as `n` in 16 bits."""
    pytest.importorskip("torch")
    x = jnp.linspace(-1.0, 2.0, 20).reshape(4, 5).astype(dtype)

    def fn(x):
        return x.var(), jax.ops.segment_sum(x, jnp.array([0, 0, 1, 0]), 2)

    found = untrace.decompile(fn, target="torch")(x)(x)[0]
    np.testing.assert_allclose(float(found), float(jax.jit(fn)(x)[0]), rtol=1e-2)


def test_what_has_no_helper_of_its_own_in_c():
    _same("c", lambda x: lax.bitcast_convert_type(x, jnp.float32), np.array([[1.0, -2.0, np.nan]], np.float32))


def test_the_largest_of_a_window_with_what_is_not_a_number():
    def fn(x):
        return jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID").sum())(x)

    x = np.array([1, np.nan, np.nan, 2, np.nan, np.nan], np.float32)
    d = untrace.decompile(fn, target="c")(np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(d(x), fn(x))


def test_bounds_of_truths_in_c():
    d = untrace.decompile(lax.clamp, target="c", prove=False)(np.bool_(False), np.ones(2, bool), np.bool_(True))
    assert [d(np.bool_(a), np.array([False, True]), np.bool_(b)).tolist() for a, b in [(0, 1), (1, 1), (0, 0)]] == [
        [False, True], [True, True], [False, False]
    ]  # fmt: skip


def test_a_compiled_text_takes_further_sizes():
    torch = pytest.importorskip("torch")
    d = untrace.decompile(lambda x: jnp.sin(x[1:]) - x[:-1], target="torch")(np.ones(5, np.float32))
    torch.compiler.reset()
    compiled = torch.compile(getattr(d.module, d.name), fullgraph=True, backend="aot_eager")
    for size in (5, 7, 9):
        x = np.linspace(0.0, 1.0, size, dtype=np.float32)
        np.testing.assert_allclose(compiled(torch.tensor(x)).numpy(), np.sin(x[1:]) - x[:-1], rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="this was written for"):
        compiled(torch.ones(5, 2))


def test_truths_and_complex_numbers_of_which_pytorch_has_no_bounds():
    pytest.importorskip("torch")
    d = untrace.decompile(lax.clamp, target="torch", prove=False)(np.bool_(False), np.ones(2, bool), np.bool_(True))
    assert d(np.bool_(False), np.array([True, False]), np.bool_(True)).tolist() == [True, False]
    for fn in (lax.cummax, lambda x: lax.clamp(x[0], x, x[1])):
        with pytest.raises(untrace.UnsupportedPrimitiveError, match="PyTorch"):
            untrace.decompile(fn, target="torch")(np.ones(3, np.complex64))


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_that_a_linear_call_is_given_has_no_methods(target):
    def scaled(scale, x):
        return jax.custom_derivatives.linear_call(jnp.multiply, jnp.multiply, scale, x)

    _same(target, lambda x: scaled(3.0, x) + 1, np.float32([0.5, -2.0]))
