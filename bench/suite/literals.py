"""Literals and constants bit for bit: special values, big arrays, shared arrays, empty ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.control import matrix, vector
from suite.registry import Program, case

F32 = np.float32
SUBNORMAL = np.float32(1e-45)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 0.1], np.float32)
PAYLOAD = np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)


@case(vmap=True)
def literal_special_floats() -> Program:
    def fn(x):
        return [x * F32(v) for v in (np.inf, -np.inf, np.nan, -0.0, 0.0)] + [
            jnp.maximum(x, F32(np.nan)),
            x + SUBNORMAL,
            x / F32(-0.0),
        ]

    return fn, (vector(),)


@case()
def literal_python_scalars() -> Program:
    def fn(x, i):
        return (
            x * 0.1,
            x + 1,
            i * 3,
            i + True,
            x * 1e-30,
            x - float("inf"),
            jnp.where(x > 0.5, float("nan"), -0.0),
            x.astype(complex) * (1 - 2j),
        )

    return fn, (vector(), jnp.arange(6))


@case()
def literal_odd_dtypes() -> Program:
    def fn(b, h, u, c):
        return (
            b * jnp.bfloat16(3.14159),
            h + np.float16(6e-8),
            u ^ np.uint8(255),
            c * np.complex64(complex(np.nan, -0.0)),
            c + np.complex64(complex(-0.0, np.inf)),
        )

    return fn, (
        vector().astype(jnp.bfloat16),
        vector().astype(jnp.float16),
        jnp.arange(3, dtype=jnp.uint8),
        vector().astype(jnp.complex64),
    )


@case()
def constant_special_values() -> Program:
    return lambda x: x + jnp.asarray(SPECIAL), (jnp.zeros(9, jnp.float32),)


@case()
def constant_returned_unchanged() -> Program:
    """Constants are outputs: each bit of a NaN, each sign of a zero is seen."""

    def fn(x):
        return x, SPECIAL, PAYLOAD, np.float32(-0.0), np.int8(-128), None, True, 2.5, 1 + 2j

    return fn, (vector(),)


@case()
def constant_nan_payload_bits() -> Program:
    def fn(x):
        return lax.bitcast_convert_type(jnp.asarray(PAYLOAD), jnp.uint32) + x

    return fn, (jnp.arange(3, dtype=jnp.uint32),)


@case(grad=True, vmap=True)
def constant_big() -> Program:
    """Four kilobytes: beyond what is written as a literal."""
    weights = jnp.asarray(np.random.RandomState(5).randn(32, 32).astype(np.float32))
    return lambda x: jnp.tanh(x @ weights), (vector(32),)


@case(grad=True)
def constant_big_twice() -> Program:
    """The same array in the outer program, in a jitted one and in a loop."""
    weights = jnp.asarray(np.random.RandomState(5).randn(32, 32).astype(np.float32))

    def fn(x):
        y = jax.jit(lambda v: v @ weights)(x)
        z = lax.fori_loop(0, 2, lambda i, v: jnp.tanh(v @ weights), y)
        return z + weights[0]

    return fn, (vector(32),)


@case()
def constant_big_special_and_odd() -> Program:
    rng = np.random.RandomState(2)
    many = np.tile(SPECIAL, 60)
    half = jnp.asarray(rng.randn(700), jnp.bfloat16)
    bits = rng.randint(0, 2, 2000).astype(bool)
    small = rng.randint(-128, 127, 1500).astype(np.int8)
    both = (rng.randn(200) + 1j * rng.randn(200)).astype(np.complex64)

    def fn(x):
        return x + many, half * 2, bits, small + np.int8(1), both * x[0]

    return fn, (jnp.zeros(540, jnp.float32),)


@case(grad=True)
def constant_patterns() -> Program:
    """Constants that are `arange`, `eye`, `full`, `linspace`, triangles."""
    arrays = [
        np.arange(6, dtype=np.float32),
        np.eye(6, dtype=np.float32),
        np.full((6,), 2.5, np.float32),
        np.zeros((6, 6), np.float32),
        np.ones(6, np.float32),
        np.tril(np.ones((6, 6), np.float32)),
        np.linspace(0, 1, 6, dtype=np.float32),
        np.arange(0, 12, 2, dtype=np.float32),
    ]
    return lambda x: [x * array for array in arrays], (vector(),)


@case()
def constant_empty_and_scalar() -> Program:
    def fn(x):
        return (
            jnp.concatenate([x, np.zeros((0,), np.float32)]),
            jnp.asarray(np.zeros((0, 3), np.int32)),
            np.array(7, np.int16) + jnp.int16(1),
            np.zeros((2, 0, 3), np.float32).sum(1),
        )

    return fn, (vector(),)


@case("while")
def constant_in_every_body() -> Program:
    table = np.array([1.5, -2.0, np.inf], np.float32)

    def fn(x):
        y = lax.while_loop(lambda v: v.sum() < table[0] * 20, lambda v: v + abs(table[1]), x)
        return lax.cond(y[0] > 0, lambda v: v * table, lambda v: v + table, y)

    return fn, (vector(3),)


@case()
def no_arguments_at_all() -> Program:
    return lambda: {"a": jnp.arange(4.0), "b": jnp.float32(1) / 3}, ()


@case()
def nothing_computed() -> Program:
    return lambda x, y: (y, x, y), (vector(), matrix())


@case()
def nothing_returned() -> Program:
    return lambda x: None, (vector(),)


@case("iota", vmap=True)
def iotas_and_fulls() -> Program:
    def fn(x):
        return (
            jnp.arange(5, dtype=jnp.int8),
            lax.broadcasted_iota(jnp.float32, (2, 3), 1),
            jnp.full((2,), np.nan, jnp.bfloat16),
            jnp.eye(3, k=1) * x[0],
            jnp.zeros_like(x, dtype=bool),
        )

    return fn, (vector(),)


@case(x64=True)
def literal_float64() -> Program:
    def fn(x, i):
        return x * 0.1, x + 5e-324, i * (2**62), x / 3, jnp.uint64(2**64 - 1), x * np.pi

    return fn, (jnp.asarray(np.linspace(0, 1, 4)), jnp.arange(2))
