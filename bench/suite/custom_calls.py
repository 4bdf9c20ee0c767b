"""ffi_call, custom_vmap, linear_call, roots and linear solves, tokens, copies, empties."""

from __future__ import annotations

import functools

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.custom_derivatives import closure_convert, linear_call

from suite.control import matrix, vector
from suite.registry import Program, case

# ---------------------------------------------------------------------------- FFI


def lu_ffi(a, **options):
    """LAPACK's `getrf` by its FFI target: jaxlib registers it, and calls it in column order."""
    types = (
        jax.ShapeDtypeStruct(a.shape, a.dtype),
        jax.ShapeDtypeStruct((a.shape[-1],), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    call = jax.ffi.ffi_call(
        "lapack_sgetrf_ffi",
        types,
        input_layouts=[(1, 0)],
        output_layouts=[(1, 0), (0,), ()],
        **options,
    )
    return call(a)


def with_lapack(fn, *args) -> Program:
    """`(fn, args)`, once jaxlib has loaded its LAPACK functions (else the call would crash)."""
    jax.block_until_ready(lax.linalg.lu(jnp.eye(2)))
    return fn, args


@case("ffi_call")
def ffi_plain() -> Program:
    return with_lapack(lu_ffi, matrix(3, 3))


@case("ffi_call", "scan")
def ffi_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (lu_ffi(c + x)[0], x.sum()), c, xs)

    return with_lapack(fn, matrix(3, 3), jnp.stack([matrix(3, 3)] * 2))


@case("ffi_call", "jit", vmap=True)
def ffi_batched_one_by_one() -> Program:
    def fn(a):
        return jax.jit(lambda v: lu_ffi(v, vmap_method="sequential"))(a)

    return with_lapack(fn, matrix(3, 3))


@case("ffi_call")
def ffi_attributes_and_aliases() -> Program:
    """LAPACK's `potrf` with an attribute, its argument's buffer reused for the result."""

    def fn(a):
        spd = a @ a.T + jnp.eye(3)
        call = jax.ffi.ffi_call(
            "lapack_spotrf_ffi",
            (jax.ShapeDtypeStruct((3, 3), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)),
            input_layouts=[(1, 0)],
            output_layouts=[(1, 0), ()],
            input_output_aliases={0: 0},
        )
        return call(spd, uplo=np.uint8(ord("L")))

    return with_lapack(fn, matrix(3, 3))


# --------------------------------------------------------------------- custom_vmap


@custom_vmap
def scaled(x, y):
    """`x * y`; its batched form multiplies by 10 as well, so that the rule shows."""
    return x * y


@scaled.def_vmap
def _scaled_rule(axis_size, in_batched, x, y):
    return 10 * (x * y), True


@case("custom_vmap_call", vmap=True)
def custom_vmap_plain() -> Program:
    return lambda x, y: scaled(x, y) + 1, (vector(), vector())


@case("custom_vmap_call", "scan", vmap=True)
def custom_vmap_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (scaled(c, x), c + x), c, xs)

    return fn, (jnp.float32(1.5), vector())


@case("custom_vmap_call", "scan", vmap=True)
def custom_vmap_sequential() -> Program:
    """`sequential_vmap`: its batched form is a loop."""
    return sequential_vmap(lambda x: jnp.sin(x) @ x), (vector(),)


@case("custom_vmap_call", vmap=True)
def custom_vmap_pytrees_in_cond() -> Program:
    @custom_vmap
    def f(d):
        return {"out": d["a"] + d["b"][0]}

    @f.def_vmap
    def rule(axis_size, in_batched, d):
        (batched,) = in_batched
        out = f({"a": d["a"], "b": d["b"]})
        return out, {"out": batched["a"] or batched["b"][0]}

    def fn(p, x):
        return lax.cond(p, lambda v: f({"a": v, "b": (v,)}), lambda v: {"out": v}, x)

    return fn, (jnp.bool_(True), vector())


# --------------------------------------------------------------------- linear_call


def scale_linear(by, x):
    """`by * x`, linear in `x`; its transpose is deliberately twice that, so that it shows."""
    return linear_call(lambda r, v: r * v, lambda r, ct: 2.0 * r * ct, by, x)


@case("linear_call", grad=True)
def linear_call_plain() -> Program:
    return lambda x: scale_linear(3.0, x) + 1, (vector(),)


@case("linear_call", "scan")
def linear_call_in_scan() -> Program:
    def fn(c, xs):
        return lax.scan(lambda c, x: (scale_linear(2.0, c) + x, c), c, xs)

    return fn, (jnp.float32(1), vector())


@case("linear_call", "jit")
def linear_call_gradient_inside() -> Program:
    return lambda x: jax.grad(lambda v: jax.jit(scale_linear)(2.0, v).sum())(x), (vector(),)


@case("linear_call")
def linear_call_pytrees_and_consts() -> Program:
    table = np.arange(6, dtype=np.float32)

    def fn(x):
        def forward(r, v):
            return {"p": r["s"] * v[0] * table, "q": v[1]}

        def transpose(r, ct):
            return ct["p"] * r["s"] * table, ct["q"]

        return linear_call(forward, transpose, {"s": x[0]}, (x, x * 2))

    return fn, (vector(),)


@case()
def linear_transpose_of_function() -> Program:
    def fn(x, ct):
        return jax.linear_transpose(lambda v: jnp.cumsum(v * 2)[::2], x)(ct)

    return fn, (vector(), vector(3))


@case(grad=True)
def closure_converted() -> Program:
    def fn(x, y):
        converted, consts = closure_convert(lambda v: v * x + jnp.sin(y), x)
        return converted(x, *consts)

    return fn, (vector(), vector())


# ------------------------------------------------------------------ roots and solves


@case(grad=True)
def custom_root_scalar() -> Program:
    def fn(c):
        def solve(f, guess):
            return lax.fori_loop(0, 20, lambda i, x: x - f(x) / (2 * x + 1e-3), guess)

        start = jnp.float32(1.0)
        return lax.custom_root(lambda x: x * x - c, start, solve, lambda g, y: y / g(1.0))

    return fn, (jnp.float32(2.0),)


@case("jit", grad=True)
def custom_root_in_jit_with_aux() -> Program:
    def fn(c, d):
        def solve(f, guess):
            x = lax.fori_loop(0, 10, lambda i, x: x - f(x) / 4.0, guess)
            return x, {"residual": f(x)}

        def root(c):
            return lax.custom_root(lambda x: x * x - c * d, jnp.float32(1), solve, lambda g, y: y / g(1.0), True)

        return jax.jit(root)(c)

    return fn, (jnp.float32(2), jnp.float32(1.5))


@case("scan")
def custom_root_in_scan() -> Program:
    def fn(cs):
        def solve(f, guess):
            return lax.fori_loop(0, 10, lambda i, x: x - f(x) / 4.0, guess)

        def body(x, c):
            x = lax.custom_root(lambda v: v * v - c, x, solve, lambda g, y: y / g(1.0))
            return x, x

        return lax.scan(body, jnp.float32(1), cs)

    return fn, (vector() + 1,)


@case("custom_linear_solve", grad=True, vmap=True)
def linear_solve_plain() -> Program:
    def fn(a, b):
        def matvec(x):
            return a @ x + 4 * x

        dense = a + 4 * jnp.eye(4)
        return lax.custom_linear_solve(
            matvec,
            b,
            lambda _, rhs: jnp.linalg.solve(dense, rhs),
            lambda _, rhs: jnp.linalg.solve(dense.T, rhs),
        )

    return fn, (matrix(4, 4), vector(4))


@case("custom_linear_solve", grad=True)
def linear_solve_symmetric_aux() -> Program:
    def fn(d, b):
        def solve(mv, rhs):
            x = lax.fori_loop(0, 3, lambda i, x: x - (mv(x) - rhs) / 3, rhs)
            return x, {"iterations": jnp.int32(3)}

        return lax.custom_linear_solve(lambda x: d * x, b, solve, symmetric=True, has_aux=True)

    return fn, (vector() + 2, vector())


@case("custom_linear_solve", "while", grad=True)
def linear_solve_conjugate_gradient() -> Program:
    def fn(a, b):
        spd = a @ a.T + jnp.eye(4)
        x, _ = jax.scipy.sparse.linalg.cg(lambda v: spd @ v, b, maxiter=10)
        return x

    return fn, (matrix(4, 4), vector(4))


@case("custom_linear_solve", "scan", vmap=True)
def linear_solve_in_scan() -> Program:
    def fn(a, bs):
        def body(c, b):
            x = jnp.linalg.solve(a + 4 * jnp.eye(4), b + c)
            return x, x.sum()

        return lax.scan(body, jnp.zeros(4), bs)

    return fn, (matrix(4, 4), matrix(3, 4))


# ------------------------------------------------------------ tokens, copies, empties


@case("create_token", "after_all")
def token_plain() -> Program:
    def fn(x):
        first = lax.create_token(x)
        lax.after_all(first, lax.create_token(x))
        return x * 2

    return fn, (vector(),)


@case("create_token", "after_all", "jit")
def token_in_jit() -> Program:
    def fn(x):
        @jax.jit
        def inner(v):
            lax.after_all(lax.create_token(v))
            return v + 1

        return inner(x) * inner(x)

    return fn, (vector(),)


@case("create_token", "after_all", "scan")
def token_in_scan() -> Program:
    def fn(c, xs):
        def body(c, x):
            lax.after_all(lax.create_token(x), lax.create_token(c))
            return c + x, c

        return lax.scan(body, c, xs)

    return fn, (jnp.float32(0), vector())


@case("create_token", "after_all", "cond", grad=True)
def token_in_cond() -> Program:
    def fn(p, x):
        def yes(v):
            lax.after_all(lax.create_token(v))
            return jnp.sin(v)

        return lax.cond(p, yes, jnp.cos, x)

    return fn, (jnp.bool_(True), vector())


@case("copy", grad=True, vmap=True)
def copy_plain() -> Program:
    return lambda x: jnp.array(x, copy=True) * jnp.copy(x), (vector(),)


@case("copy", "scan", grad=True)
def copy_in_scan() -> Program:
    return lambda c, xs: lax.scan(lambda c, x: (jnp.copy(c * x), c), c, xs), (
        jnp.float32(2),
        vector(),
    )


@case("copy", "cond")
def copy_in_cond() -> Program:
    return lambda p, x: lax.cond(p, jnp.copy, jnp.sin, x), (jnp.bool_(True), vector())


def empty_scalar():
    """The primitive `empty2`: an uninitialised scalar, which the CPU fills with zero."""
    return primitives.empty2_p.bind(dtype=np.dtype("float32"), memory_space=jax.memory.Space.Device)


@case("empty2")
def empty2_plain() -> Program:
    return lambda x: x + empty_scalar() * 0, (vector(),)


@case("empty2", "scan")
def empty2_in_scan() -> Program:
    return lambda c, xs: lax.scan(lambda c, x: (c * x + 0 * empty_scalar(), c), c, xs), (
        jnp.float32(2),
        vector(),
    )


@case("empty2", "cond", "jit")
def empty2_in_cond() -> Program:
    def fn(p, x):
        return lax.cond(p, lambda v: v + jax.jit(empty_scalar)() * 0, jnp.sin, x)

    return fn, (jnp.bool_(True), vector())


@case("empty")
def empty_plain() -> Program:
    return lambda x: x + lax.empty(x.shape, jnp.float32) * 0, (vector(),)


@case("stop_gradient" if hasattr(primitives, "stop_gradient_p") else "mul", grad=True, vmap=True)
def stop_gradient_plain() -> Program:
    return lambda x: x * lax.stop_gradient(jnp.sin(x)), (vector(),)


@case(grad=True)
def searchsorted_nonzero_and_friends() -> Program:
    """Objects in `call_hi_primitive` on newer lines."""

    def fn(x):
        edges = jnp.linspace(0, 1, 5)
        where = jnp.searchsorted(edges, x)
        return x[jnp.nonzero(x > 0.4, size=3, fill_value=0)[0]], where, jnp.digitize(x, edges)

    return fn, (vector(),)


@case("jit", vmap=True)
def searchsorted_methods() -> Program:
    def fn(x):
        edges = jnp.linspace(0, 1, 5)
        return [
            jnp.searchsorted(edges, x, side=side, method=method)
            for side in ("left", "right")
            for method in ("scan", "scan_unrolled", "sort", "compare_all")
        ]

    return fn, (vector(),)


@case(vmap=True)
def nonzero_unique_sets() -> Program:
    def fn(x):
        return (
            jnp.unique(x, size=4, fill_value=-1),
            jnp.argwhere(x > 2, size=3),
            jnp.flatnonzero(x, size=5),
            jnp.bincount(x, length=8),
            jnp.where(x > 1, size=4),
        )

    return fn, (jnp.array([3, 1, 0, 3, 5, 1], jnp.int32),)


@case(grad=True)
def partial_application() -> Program:
    """`jax.vjp` and `jax.linearize` objects as pytrees through `jit`."""

    def fn(x):
        out, pull = jax.vjp(functools.partial(jnp.power, 2.0), x)
        return out, jax.jit(lambda p, ct: p(ct))(pull, out)

    return fn, (vector(),)
