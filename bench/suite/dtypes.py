"""Element types: 2- and 4-bit integers, 8-bit floats, bfloat16, complex, 64 bits, weak types."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.control import matrix, vector
from suite.registry import Case, Program, case, register_case

FLOAT8 = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


def float8_case(name: str) -> Case:
    """A case that goes from and to one 8-bit float type, with a constant of it."""

    def build() -> Program:
        dtype = jnp.dtype(name)
        const = jnp.asarray([0.5, -2.0, np.nan, 0.0625], dtype)

        def fn(x, y):
            z = x.astype(jnp.float32) * y
            return z.astype(dtype), const, lax.convert_element_type(const, jnp.bfloat16), -x

        return fn, (vector(4).astype(dtype), vector(4))

    return Case(f"dtype_{name}", "dtypes", ("convert_element_type",), build)


for _name in FLOAT8:
    register_case(float8_case(_name))


@case("convert_element_type", vmap=True)
def dtype_int4_uint4() -> Program:
    def fn(a, b):
        wide = a.astype(jnp.int8) * 2
        three = jnp.asarray(3, jnp.uint4)
        return wide, wide.astype(jnp.int4), b.astype(jnp.float32) + 0.5, a, three

    return fn, (jnp.array([-8, 0, 7], jnp.int4), jnp.array([0, 9, 15], jnp.uint4))


@case("dot_general")
def dtype_int8_dot() -> Program:
    def fn(a, b):
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)

    return fn, (jnp.ones((2, 3), jnp.int8) * 100, jnp.ones((3, 2), jnp.int8) * -100)


@case(grad=True, vmap=True)
def dtype_bfloat16() -> Program:
    def fn(x, w):
        h = jnp.tanh(x @ w).astype(jnp.bfloat16)
        return h.sum(), h.mean(), jnp.exp(h) * 1.5, jnp.dot(x, w, preferred_element_type=float)

    return fn, (matrix().astype(jnp.bfloat16), matrix(3, 2).astype(jnp.bfloat16))


@case(grad=True, vmap=True)
def dtype_float16() -> Program:
    return lambda x: (jnp.sin(x) / 3, x.sum(), x * np.float32(2)), (vector().astype(jnp.float16),)


@case("complex", grad=True, vmap=True)
def dtype_complex64() -> Program:
    def fn(x, z):
        w = lax.complex(x, x * 2) * z
        return jnp.exp(w), jnp.abs(w), w.conj() @ z, w.real, jnp.angle(w), jnp.sqrt(w)

    return fn, (vector(), (vector() + 1j * vector()).astype(jnp.complex64))


@case(x64=True, grad=True, vmap=True)
def dtype_float64_complex128() -> Program:
    def fn(x, i):
        z = x + 1j * jnp.sin(x)
        return z * z, (x * i).sum(), x.astype(jnp.float32), jnp.linalg.norm(z), i << 40

    return fn, (jnp.asarray(np.linspace(0.1, 1, 5)), jnp.arange(5))


@case("scan", x64=True, grad=True)
def dtype_x64_scan() -> Program:
    def fn(x, xs):
        return lax.scan(lambda c, v: (c * 0.5 + v.astype(float), c), x, xs)

    return fn, (jnp.float64(0.1), jnp.arange(4, dtype=jnp.float32))


@case("while", x64=True)
def dtype_x64_mixed_loop() -> Program:
    def fn(n, x):
        return lax.fori_loop(np.int64(0), n, lambda i, c: c + i.astype(c.dtype), x)

    return fn, (jnp.int64(5), jnp.float32(1))


@case(grad=True, vmap=True)
def weak_types_in_and_out() -> Program:
    """Python numbers as arguments: weak in, weak out, promoted on the way."""

    def fn(a, b, x):
        return a * 2, b + 1, a * b, x * a, x.astype(jnp.bfloat16) * a, jnp.asarray(a)

    return fn, (2.5, 3, vector())


@case()
def weak_bool_and_complex() -> Program:
    return lambda p, c, x: (p, ~jnp.asarray(p), c * 2, x * c, jnp.where(p, 1, 2.5)), (
        True,
        1 + 2j,
        vector(),
    )


@case("cond", "while")
def weak_types_through_control_flow() -> Program:
    def fn(a, p):
        b = lax.cond(p, lambda: a, lambda: 1.0)
        c = lax.while_loop(lambda v: v < 10, lambda v: v * 2, a)
        return b, c, lax.fori_loop(0, 3, lambda i, v: v + 1, 0)

    return fn, (1.5, True)


@case(grad=True)
def zero_sized_arrays() -> Program:
    def fn(x, y):
        return x.sum(), x @ y, jnp.concatenate([x, x]), jnp.sin(x), x.reshape(0, 6), x.T

    return fn, (jnp.zeros((0, 3)), jnp.zeros((3, 2)))


@case(grad=True, vmap=True)
def zero_dimensional_arrays() -> Program:
    def fn(x, i):
        return jnp.sin(x), x[None], i + 1, jnp.stack([x, x]).sum(), x.reshape(()), x > 0

    return fn, (jnp.float32(0.3), jnp.int32(4))


@case("bitcast_convert_type", vmap=True)
def bitcasts() -> Program:
    def fn(x, i):
        return (
            lax.bitcast_convert_type(x, jnp.int32),
            lax.bitcast_convert_type(x, jnp.uint8),
            lax.bitcast_convert_type(i.reshape(-1, 2), jnp.float32),
        )

    return fn, (vector(), jnp.arange(6, dtype=jnp.uint16))


@case(grad=True)
def float0_tangents() -> Program:
    """Integer arguments have tangents of type float0."""

    def fn(x, i):
        def f(x, i):
            return x[i] * i.sum()

        zero = np.zeros(i.shape, jax.dtypes.float0)
        out, tangent = jax.jvp(f, (x, i), (x, zero))
        return out, tangent, jax.vjp(lambda v: f(v, i), x)[1](out)

    return fn, (vector(), jnp.array([1, 2]))


@case("population_count", vmap=True)
def integer_operations() -> Program:
    def fn(a, u):
        return (
            a // 3,
            a % 3,
            lax.population_count(u),
            a << 2,
            lax.shift_right_logical(a, jnp.int8(1)),
            lax.rem(a, jnp.int8(5)),
            a**3,
            jnp.sign(a),
            lax.mulhi(u, u) if hasattr(lax, "mulhi") else u,
        )

    return fn, (jnp.array([-128, -1, 5, 127], jnp.int8), jnp.array([1, 2**31], jnp.uint32))
