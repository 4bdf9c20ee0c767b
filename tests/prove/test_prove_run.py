"""Comparison by running: sample inputs, bits and ULPs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from untrace.prove.run import close_ulps, compare_runs, same_bits, ulps_apart, weaker_proof
from untrace.prove.sample import (
    CannotSample,
    LeafType,
    float_edges,
    integer_edges,
    sample_inputs,
)

FLOATS = ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"]
INTEGERS = ["int4", "uint4", "int8", "uint8", "int16", "int32", "uint32"]


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4)])
def test_samples_have_the_type(name, shape):
    spec = jax.ShapeDtypeStruct(shape, jnp.dtype(name))
    drawn = list(sample_inputs([spec], samples=12))
    assert len(drawn) == 12
    for (value,) in drawn:
        assert value.shape == shape and value.dtype == jnp.dtype(name) and not value.weak_type


def test_samples_in_64_bits():
    with jax.enable_x64(True):
        for name in ("float64", "int64", "uint64", "complex128"):
            for (value,) in sample_inputs([jax.ShapeDtypeStruct((5,), name)], samples=10):
                assert value.dtype == name


def test_samples_are_the_same_for_the_same_seed():
    spec = [jax.ShapeDtypeStruct((40,), jnp.float32), jax.random.key(0)]

    def bits(seed):
        return [
            (np.asarray(a).tobytes(), np.asarray(jax.random.key_data(k)).tobytes())
            for a, k in sample_inputs(spec, samples=8, seed=seed)
        ]

    assert bits(0)[1:] == bits(0)[1:]
    assert bits(0)[6:] != bits(1)[6:]


def test_the_first_sample_is_what_was_given():
    given = [jnp.arange(3.0), 2.5, 7, True, np.float32(1), jax.random.key(5)]
    first, second, *_ = sample_inputs(given, samples=5)
    assert first[:5] == given[:5] or all(a is b for a, b in zip(first, given, strict=True))
    assert first[5] is given[5]
    assert [type(v) for v in second[1:4]] == [float, int, bool]


def test_keys_of_every_implementation():
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        spec = jax.eval_shape(lambda i=impl: jax.random.split(jax.random.key(0, impl=i), 3))
        for (keys,) in sample_inputs([spec], samples=3):
            assert keys.shape == (3,) and keys.dtype == spec.dtype
            jax.random.normal(keys[0])


def test_weak_types_stay_weak():
    aval = jax.make_jaxpr(lambda x: x)(1.0).in_avals[0]
    assert LeafType.of(aval).weak_type
    for (value,) in sample_inputs([aval], samples=3):
        assert value.weak_type and value.dtype == jnp.float32


def test_edges_are_among_the_samples():
    (everywhere,) = list(sample_inputs([jax.ShapeDtypeStruct((400,), jnp.float32)], samples=4))[3]
    values = np.asarray(everywhere)
    assert np.isnan(values).any() and np.isinf(values).any()
    assert (np.signbit(values) & (values == 0)).any()
    tiny = np.abs(values[values != 0])
    assert np.nanmin(tiny) < np.finfo(np.float32).tiny  # a sub-normal
    assert values[np.isfinite(values)].max() == np.finfo(np.float32).max


@pytest.mark.parametrize("name", FLOATS)
def test_float_edges(name):
    values = float_edges(jnp.dtype(name)).astype(np.float64)
    info = jnp.finfo(name)
    assert float(info.max) in values and float(info.smallest_subnormal) in values


@pytest.mark.parametrize("name", [*INTEGERS, "int64", "uint64"])
def test_integer_edges(name):
    info = jnp.iinfo(name)
    assert {int(info.min), int(info.max)} <= {int(v) for v in integer_edges(jnp.dtype(name))}


def test_refs_are_not_sampled():
    with pytest.raises(CannotSample):
        list(sample_inputs([jax.new_ref(jnp.ones(3))]))


# ---------------------------------------------------------------- bits and ULPs


def test_same_bits():
    nan, other = np.array([np.nan, 1.0]), -np.array([np.nan, -1.0])
    assert nan.tobytes() != other.tobytes()
    assert same_bits(nan, other)
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert same_bits(np.array([np.nan + 1j]), np.array([-np.nan + 1j]))
    assert not same_bits(np.array([1], np.int32), np.array([2], np.int32))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_neighbours_are_one_apart(name):
    dtype = jnp.dtype(name)
    start = np.array([1.0, -1.0, 0.0, 1e-3, 100.0], np.float64).astype(dtype)
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    after = (start.view(unsigned) + unsigned(1)).view(dtype)
    assert ulps_apart(start, after).tolist() == [1.0] * 5
    assert ulps_apart(after, start).tolist() == [1.0] * 5
    zeros = np.array([0.0], dtype), -np.array([0.0], dtype)
    assert ulps_apart(*zeros).tolist() == [0.0]
    smallest = np.array([jnp.finfo(dtype).smallest_subnormal], dtype)
    assert ulps_apart(smallest, -smallest).tolist() == [2.0]
    assert ulps_apart(start, np.full_like(start, np.nan)).tolist() == [np.inf] * 5


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"])
def test_small_floats_are_counted_out(name):
    dtype = jnp.dtype(name)
    every = np.unique(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64))
    every = every[np.isfinite(every)].astype(dtype)
    assert set(ulps_apart(every[:-1], every[1:]).tolist()) == {1.0}


def test_integers_and_complex_numbers():
    with jax.enable_x64(True):
        big = np.array([2**63 - 1], np.int64), np.array([-(2**63)], np.int64)
        assert ulps_apart(*big).tolist() == [float(2**64 - 1)]
    assert ulps_apart(np.array([True]), np.array([False])).tolist() == [1.0]
    z = np.array([1 + 1j], np.complex64)
    assert ulps_apart(z, z + np.complex64(np.spacing(np.float32(1)) * 1j)).tolist() == [1.0]


# ---------------------------------------------------------------- whole runs


def test_the_same_function_has_the_same_bits():
    def f(x, key):
        return jnp.log(x) / x, jax.random.normal(key, x.shape)

    runs = compare_runs(f, lambda x, k: f(x, k), [jnp.ones((4,)), jax.random.key(0)], samples=16)
    assert runs.differences == () and runs.samples == 16 and runs.close


def test_a_difference_is_measured():
    def f(x):
        return x * 2, x + 1

    def g(x):
        return x * 2, jnp.nextafter(x + 1, jnp.float32(jnp.inf))

    runs = compare_runs(f, g, [jnp.ones(3)], samples=16)
    (difference,) = runs.differences
    assert difference.path == "output 1" and difference.max_ulp == 1.0
    assert difference.differing_samples == 16
    assert "1 ULP" in str(difference)


def test_finite_against_not_finite():
    def f(x):
        return jnp.sqrt(x)

    def g(x):
        return jnp.sqrt(jnp.maximum(x, 0))

    runs = compare_runs(f, g, [jnp.ones(5)])
    (difference,) = runs.differences
    mismatch = difference.not_finite
    assert difference.max_ulp == np.inf
    assert np.isnan(mismatch.first) and mismatch.second == 0
    assert np.asarray(mismatch.inputs[0])[mismatch.index] < 0
    assert not runs.close
    text = str(difference)
    where = f"first at index {list(mismatch.index)} of sampled input {mismatch.sample}; "
    assert text.startswith(f"output 0: 0.0 where the original has nan, {where}")
    counted = f"{difference.not_finite_count} values in {difference.not_finite_samples} samples"
    assert text.endswith(counted) and "ULP" not in text


def compared(first, second):
    """The difference of two functions that return these values, and its sentence without the sample."""
    first, second = jnp.array(first, jnp.float32), jnp.array(second, jnp.float32)
    (difference,) = compare_runs(lambda x: first, lambda x: second, [jnp.zeros(())], samples=1).differences
    return difference, str(difference)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1.0, np.nan, "nan where the original has 1.0, first at sampled input 0; 1 value in 1 sample"),
        ([1, np.inf], [1, 2], "2.0 where the original has inf, first at index [1] of sampled input 0; 1 value in 1 sample"),
        ([np.nan], [np.inf], "inf where the original has nan, first at index [0] of sampled input 0; 1 value in 1 sample"),
        ([np.inf], [-np.inf], "-inf where the original has inf, first at index [0] of sampled input 0; 1 value in 1 sample"),
        (
            [[0, 1, np.nan, 3]],
            [[np.nan, np.nextafter(np.float32(1), np.float32(2)), np.nan, np.inf]],
            "nan where the original has 0.0, first at index [0, 0] of sampled input 0; 2 values in 1 sample; "
            "where both are finite, up to 1 ULP apart",
        ),
    ],
)  # fmt: skip
def test_what_is_not_finite_is_counted_apart(first, second, expected):
    difference, text = compared(first, second)
    assert text == f"output 0: {expected}"
    assert difference.not_finite is not None


def test_numbers_are_said_to_be_apart_in_ulps():
    difference, text = compared([1.0], [np.nextafter(np.float32(1), np.float32(2))])
    assert text == "output 0: up to 1 ULP apart, at sampled input 0, in 1 sample"
    assert difference.not_finite is None and difference.not_finite_count == 0


def test_types_that_differ():
    runs = compare_runs(lambda x: x, lambda x: x.astype(jnp.float16), [jnp.ones(5)])
    assert "float32 against float16" in runs.differences[0].type_difference
    runs = compare_runs(lambda x: (x, x), lambda x: x, [jnp.ones(5)])
    assert "2 leaves in one" in str(runs.differences[0])


def test_weaker_proof_levels():
    x = [jnp.ones(3)]
    assert weaker_proof(lambda a: a + a, lambda a: a * 2, x, "why").level == "bits"

    def rounded(a):
        ordinary = (jnp.abs(a) > 1e-3) & (jnp.abs(a) < 1e3)
        return jnp.where(ordinary, jnp.nextafter(a * 2, jnp.float32(0)), a * 2)

    proof = weaker_proof(lambda a: a * 2, rounded, x, "why", ("a note",))
    assert proof.level == "close" and proof.notes == ("a note",) and "1 ULP" in proof.detail
    assert weaker_proof(jnp.sin, jnp.cos, x, "why").level == "unproven"
    ref = [jax.new_ref(jnp.ones(3))]
    assert weaker_proof(jnp.sin, jnp.cos, ref, "why").level == "unproven"


def test_what_callbacks_raise_on_sampled_inputs_is_not_logged(caplog):
    def refuse(x):
        if x.any():
            raise ValueError("not this one")
        return x

    def fn(x):
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct((2,), jnp.float32), x)

    compare_runs(fn, lambda x: fn(x), [jnp.zeros(2)], samples=4)
    assert not caplog.records


def test_how_far_apart_results_are_close_depends_on_their_type():
    assert [close_ulps(t) for t in (jnp.float32, jnp.float16, jnp.bfloat16)] == [1024, 64, 8]
    x = jnp.float16(1.0)
    assert not compare_runs(lambda x: x, lambda x: x * jnp.float16(1.1), [x], samples=4).close
    assert compare_runs(lambda x: x, lambda x: x * jnp.float16(1.01), [x], samples=3).close
