"""Elementwise and reducing primitives, and linear algebra, that JAX's corpus never reaches."""

from __future__ import annotations

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax

from suite.control import matrix, vector
from suite.registry import Case, Program, case, register_case

INTEGERS = np.array([0, 1, 2, 7, 100, 127], np.int8)


def three(name: str, fn, args, *, grad: bool = False, vmap: bool = True, primitive=None) -> None:
    """Registers `NAME_plain`, `NAME_in_scan` and `NAME_in_cond`: one function in three places."""

    def in_scan():
        def looped(*xs):
            def body(c, x):
                out = fn(*x)
                return c + 1, out

            return lax.scan(body, 0, tuple(jnp.stack([x, x]) for x in xs))

        return looped, args()

    def in_cond():
        def branch(*xs):
            inner = jax.jit(fn)
            return lax.cond(jnp.ravel(xs[0])[0] == 0, inner, lambda *a: inner(*a), *xs)

        return branch, args()

    chosen = {"grad": grad, "vmap": vmap}
    name_in_jaxpr = primitive or name
    for suffix, build in (("plain", lambda: (fn, args())), ("scan", in_scan), ("cond", in_cond)):
        extra = () if suffix == "plain" else (suffix,)
        register_case(Case(f"{name}_{suffix}", "special", (name_in_jaxpr, *extra), build, **chosen))


three("clz", lax.clz, lambda: (jnp.asarray(INTEGERS),))
three("not", lambda x: (~x, ~(x > 3)), lambda: (jnp.asarray(INTEGERS),))
three("square", lax.square, lambda: (vector(),), grad=True)
three("exp2", lax.exp2, lambda: (vector(),), grad=True)
three("polygamma", lambda m, x: lax.polygamma(m, x), lambda: (jnp.float32(2), vector()[0]))
three("zeta", lambda x, q: lax.zeta(x + 2, q), lambda: (vector(), vector()))
three("igamma_grad_a", lax.igamma_grad_a, lambda: (vector(2), vector(2) + 1), vmap=False)
three(
    "reduce_xor",
    lambda x: lax.reduce(x, np.int8(0), lax.bitwise_xor, (0,)),
    lambda: (jnp.asarray(INTEGERS),),
)
three(
    "reduce_xor_bool",
    lambda x: lax.reduce(x > 1, np.bool_(False), lax.bitwise_xor, (0,)),
    lambda: (jnp.asarray(INTEGERS),),
    primitive="reduce_xor",
)
three("eq_to", lambda x, y: primitives.eq_to_p.bind(x, y), lambda: (vector(), -vector()))
three("le_to", lambda x, y: primitives.le_to_p.bind(x, y), lambda: (vector(), -vector()))
three("lt_to", lambda x, y: primitives.lt_to_p.bind(x, y), lambda: (vector(), -vector()))
three(
    "total_order_special",
    lambda x, y: (primitives.lt_to_p.bind(x, y), primitives.eq_to_p.bind(x, y)),
    lambda: (
        jnp.array([0.0, -0.0, np.nan, np.inf], jnp.float32),
        jnp.array([-0.0, 0.0, np.nan, np.nan], jnp.float32),
    ),
    primitive="lt_to",
)
three(
    "hessenberg",
    lambda a: lax.linalg.hessenberg(a),
    lambda: (matrix(4, 4),),
)
three(
    "householder_product",
    lambda a, t: lax.linalg.householder_product(a, t),
    lambda: (matrix(4, 3), vector(3)),
)
three("schur", lambda a: lax.linalg.schur(a), lambda: (matrix(4, 4),), vmap=True)
three(
    "schur_without_vectors",
    lambda a: lax.linalg.schur(a, compute_schur_vectors=False),
    lambda: (matrix(3, 3),),
    primitive="schur",
)
three("tridiagonal", lambda a: lax.linalg.tridiagonal(a + a.T), lambda: (matrix(4, 4),))
three(
    "tridiagonal_upper",
    lambda a: lax.linalg.tridiagonal(a + a.T, lower=False),
    lambda: (matrix(4, 4),),
    primitive="tridiagonal",
)
three(
    "jnp_select_and_scatter_max_pool",
    lambda x: jax.grad(lambda v: lax.reduce_window(v, -np.inf, lax.max, (2,), (2,), "VALID").sum())(x),
    lambda: (vector(),),
    primitive="select_and_scatter_add",
)


def select_and_scatter(x, source):
    """The primitive itself: no public function makes it; `lax` binds it for custom reductions."""
    select = jax.make_jaxpr(lambda a, b: a >= b)(np.float32(0), np.float32(0))
    scatter = jax.make_jaxpr(lambda a, b: a + b)(np.float32(0), np.float32(0))
    return primitives.select_and_scatter_p.bind(
        x,
        source,
        jnp.float32(0),
        select_jaxpr=select.jaxpr,
        select_consts=(),
        scatter_jaxpr=scatter.jaxpr,
        scatter_consts=(),
        window_dimensions=(2,),
        window_strides=(2,),
        padding=((0, 0),),
    )


three("select_and_scatter", select_and_scatter, lambda: (vector(), vector(3)), vmap=False)


def log2_of(x):
    """log2: a primitive on newer lines."""
    return jnp.log2(x), jnp.exp2(x), jnp.log10(x)


@case(grad=True, vmap=True)
def log2_exp2_log10() -> Program:
    return log2_of, (vector(),)


def _has(name: str) -> bool:
    return hasattr(primitives, name + "_p")


if _has("one_minus_square"):
    three("one_minus_square", lambda x: lax.one_minus_square(x), lambda: (vector(),), grad=True)


def _polynomial(coefficients, x):
    """`sum(c[i] * x ** i)` by the primitive, whatever the order of its arguments is."""
    return lax.polynomial(coefficients, x)


if _has("polynomial"):
    three(
        "polynomial",
        lambda c, x: (lax.polynomial(x, [c, 2.0, c * x]), lax.polynomial(x, [1.0, 5.0], unroll=1)),
        lambda: (jnp.float32(0.5), vector()),
        grad=True,
    )


@case(grad=True, vmap=True)
def hyperbolic_gradients() -> Program:
    """Their derivatives use `one_minus_square` on newer lines."""
    return lambda x: (jnp.tanh(x), jax.nn.sigmoid(x), jnp.arctanh(x), jnp.arcsin(x)), (vector(),)


@case("igamma", "igammac", vmap=True)
def gamma_functions() -> Program:
    def fn(a, x):
        return (
            jax.scipy.special.gammainc(a, x),
            jax.scipy.special.gammaincc(a, x),
            jax.scipy.special.digamma(a),
            jax.scipy.special.betainc(1.5, 2.5, x),
            jax.scipy.special.gammaln(a),
        )

    return fn, (vector(), vector())


@case("cholesky", "triangular_solve", grad=True, vmap=True)
def linalg_solves() -> Program:
    def fn(a, b):
        spd = a @ a.T + 4 * jnp.eye(4)
        c = jax.scipy.linalg.cho_factor(spd)
        return jax.scipy.linalg.cho_solve(c, b), jnp.linalg.solve(spd, b), jnp.linalg.slogdet(spd)

    return fn, (matrix(4, 4), vector(4))


@case(grad=True)
def linalg_decompositions() -> Program:
    def fn(a):
        q, r = jnp.linalg.qr(a)
        values, vectors = jnp.linalg.eigh(a @ a.T)
        return q @ r, values, jnp.linalg.svd(a, compute_uv=False), jnp.linalg.pinv(a)

    return fn, (matrix(4, 3),)


@case("eig", "lu")
def linalg_nonsymmetric() -> Program:
    def fn(a):
        return (
            jnp.linalg.eig(a),
            jax.scipy.linalg.lu(a),
            jax.scipy.linalg.expm(a),
            lax.linalg.tridiagonal_solve(a[0], a[1] + 4, a[2], a[3][:, None]),
            jax.scipy.linalg.sqrtm(a @ a.T + jnp.eye(4)),
        )

    return fn, (matrix(4, 4),)


@case("fft", grad=True, vmap=True)
def fft_family() -> Program:
    def fn(x):
        spectrum = jnp.fft.rfft(x)
        return jnp.fft.irfft(spectrum * 2, 6), jnp.fft.fft2(jnp.outer(x, x)).real, spectrum.imag

    return fn, (vector(),)


@case("approx_top_k", grad=True, vmap=True)
def approx_top_k_both() -> Program:
    def fn(x):
        return lax.approx_max_k(x, 2), lax.approx_min_k(x, 3, recall_target=0.8, aggregate_to_topk=False)

    return fn, (vector(),)


@case("reduce_precision", grad=True, vmap=True)
def reduce_precision_both() -> Program:
    return lambda x: lax.reduce_precision(x, 5, 10) + lax.reduce_precision(x, 8, 7), (vector(),)


@case("conv_general_dilated", grad=True, vmap=True)
def convolutions() -> Program:
    def fn(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            (1, 2),
            "SAME",
            rhs_dilation=(2, 1),
            feature_group_count=2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    x = jnp.asarray(np.arange(2 * 5 * 6 * 4, dtype=np.float32).reshape(2, 5, 6, 4) / 99)
    return fn, (x, x[0, :3, :3, :2][..., None] * jnp.ones(4))


@case(grad=True, vmap=True)
def einsum_and_precision() -> Program:
    def fn(a, b):
        return (
            jnp.einsum("ij,kj->ik", a, b, precision="highest"),
            lax.dot(a, b.T, precision=("high", "default")),
            lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32),
        )

    return fn, (matrix(), matrix())


@case("ragged_dot_general", grad=True)
def ragged_dot_plain() -> Program:
    def fn(a, b, sizes):
        return lax.ragged_dot(a, b, sizes)

    b = jnp.asarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    return fn, (matrix(5, 3), b, jnp.array([2, 3], jnp.int32))
