"""What the tests of the rules of several targets share: small programs, arrays to run them on, and how a text's values are
compared with those that JAX has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

import untrace
from untrace import jax_compat

TINY = 1.2e-38  # XLA on a CPU has zero for what is smaller


def text_of(function: Callable[..., Any], *args: Any, target: str = "numpy") -> Any:
    """The text for a target, which nothing has checked yet."""
    return untrace.decompile(function, target=target, prove=False, sizes="fixed", guard=False)(*args)


def as_array(value: Any, target: str) -> Any:
    """What a text gives as an array; None where that is nothing of the target's own."""
    if target == "torch":
        from untrace.targets.torch.tensors import array_of

        return array_of(value)
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def check(
    function: Callable[..., Any],
    *args: Any,
    target: str = "numpy",
    tolerance: float | dict[str, float] = 2e-6,
    unsigned: Container[str] = (),
) -> str:
    """Compares what the text gives with what JAX gives: types, integers, signs of zeros (but for those of keys of the results
    in `unsigned`), and numbers to a tolerance, which may be one for each key. Returns the text."""
    args = jax.tree.map(_numpy, args)
    text = text_of(function, *args, target=target)
    paths, wanted = zip(*jax.tree_util.tree_leaves_with_path(jax.jit(function)(*args)), strict=True)
    found = jax.tree.leaves(text(*args))
    assert len(found) == len(wanted)
    wrong = []
    for path, g, w in zip(paths, found, wanted, strict=True):
        key = getattr(path[0], "key", "").split(" ")[0] if path else ""
        most = tolerance.get(key, 2e-6) if isinstance(tolerance, dict) else tolerance
        g = as_array(g, target)
        assert g is not None, path
        what = _difference(g, np.asarray(jax_compat.as_numpy(w)), most, key not in unsigned)
        if what:
            wrong.append(f"result{jax.tree_util.keystr(path)}: {what}")
    assert not wrong, "\n".join([*wrong, text.source])
    return text.source


def _difference(found: np.ndarray, wanted: np.ndarray, tolerance: float, signed: bool) -> str:
    """What is not the same; nothing if all is."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{list(found.shape)} is no {wanted.dtype}{list(wanted.shape)}"
    absolute = 0.0
    if jnp.issubdtype(wanted.dtype, np.inexact):
        if wanted.dtype.itemsize < 4 and tolerance:
            tolerance = max(tolerance, 2 * float(jnp.finfo(wanted.dtype).eps))
        if not np.iscomplexobj(wanted):
            found, wanted = found.astype(np.float64), wanted.astype(np.float64)
            zeros = (found == 0) & (wanted == 0)
            if signed and (np.signbit(found)[zeros] != np.signbit(wanted)[zeros]).any():
                return f"signs of zeros: {found} is not {wanted}"
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
        absolute = max(TINY, tolerance * largest / 8 if tolerance > 3e-6 else 0)
    else:
        tolerance = 0
    if np.allclose(found, wanted, rtol=tolerance, atol=absolute, equal_nan=True):
        return ""
    return f"{found} is not {wanted}"


def _numpy(x: Any) -> Any:
    return x if jax_compat.is_key(x) else np.asarray(x)[()]


F32 = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, -7.25, 88, -88, 1e30, np.nan, np.inf, -np.inf], "f4")
G32 = np.array([-0.0, 0.0, 3, 2, -0.5, np.nan, 1.5, -2.5, 2, 0, 1, -1, 2, -1e30, 1, -np.inf, np.inf], "f4")
I32 = np.array([0, 1, -1, 7, -7, 8, 100, 2**31 - 1, -(2**31), 5, -5, 12345, -(2**31)], "i4")
J32 = np.array([0, 0, 0, 2, 2, -3, 7, -1, -1, 32, -2, 40, 0], "i4")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(d) for d in "float32 float16 int32 int8 uint8 uint32 bool".split()] + [BFLOAT16]
WHOLE = [
    np.dtype("float32"),
    np.dtype("int32"),
    BFLOAT16,
]  # those for which scalars and numbers of the text are tried too

UNARY = (
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2"
    " expm1 floor is_finite lgamma log log1p logistic neg rsqrt sign sin sinh sqrt square tan tanh real imag"
    " bitwise_not clz population_count round"
).split()
BINARY = (
    "add atan2 div eq ge gt le lt max min mul mulhi ne nextafter pow rem sub bitwise_and bitwise_or bitwise_xor shift_left"
    " shift_right_arithmetic shift_right_logical igamma igammac polygamma zeta"
).split()
LOOSE = dict(lgamma=1e-5, digamma=2e-5, polygamma=1e-4, zeta=1e-5, igamma=1e-5, igammac=1e-5, erf_inv=1e-5, pow=1e-5)
# Where the two libraries have another zero: of two equal ones, or of SciPy's odd functions.
UNSIGNED = frozenset("max min nextafter sign erf_inv bessel_i1e".split())


def samples(dtype: np.dtype) -> tuple[Any, Any]:
    if jnp.issubdtype(dtype, np.floating):
        return F32.astype(dtype), G32.astype(dtype)
    if dtype == np.bool_:
        return np.array([True, True, False, False]), np.array([True, False, True, False])
    return I32.astype(dtype), J32.astype(dtype)


def taken(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Of the samples those on which the two libraries' functions can be compared."""
    kind = x.dtype.kind
    if name in ("lgamma", "digamma") and kind not in "iub":  # poles and zeros have no relative precision
        x = x[(x > 0) & (x < 1e4)]
    if name in ("sin", "cos", "tan") and kind not in "iub":
        x = x[~(np.abs(x) > 1e4)]
    if name == "exp2" and x.dtype == BFLOAT16:  # JAX rounds x * log(2) to bfloat16 first
        x = x[np.abs(x.astype("f4")) < 2]
    if name in ("igamma", "igammac", "polygamma", "zeta"):
        x, y = np.array([0.5, 1, 2, 3, 4]), np.array([0.25, 1, 2, 0.5, 8])
        x = np.floor(x) if name == "polygamma" else x + 1.5 if name == "zeta" else x
        x, y = x.astype(F32.dtype), y.astype(F32.dtype)
    return (x[:9], y[:9]) if name == "pow" else (x, y)


def applies(function: Callable[..., Any], *args: Any) -> bool:
    try:
        jax.eval_shape(function, *args)
    except TypeError:
        return False
    return True


def check_functions_of_one_number(dtype: np.dtype, target: str = "numpy", without: Container[str] = ()) -> None:
    """Of an array and of a scalar."""
    functions = {n: getattr(lax, n) for n in UNARY if n not in without}
    given = {n: taken(n, *samples(dtype))[0] for n in functions if applies(functions[n], samples(dtype)[0])}
    if dtype in WHOLE:
        given |= {f"{n} of one": x[2] for n, x in given.items()}
    check(
        lambda given: {n: functions[n.split()[0]](x) for n, x in given.items()},
        given,
        target=target,
        tolerance=LOOSE,
        unsigned=UNSIGNED,
    )


def check_functions_of_two_numbers(dtype: np.dtype, target: str = "numpy", without: Container[str] = ()) -> None:
    """Of arrays, of scalars, and beside a number of the text."""
    functions = {n: getattr(lax, n) for n in BINARY if n not in without}
    given = {n: taken(n, *samples(dtype)) for n in functions if applies(functions[n], *samples(dtype))}
    given = {n: (x.astype(dtype), y.astype(dtype)) for n, (x, y) in given.items()}

    def program(given: Any) -> Any:
        out = {n: functions[n](x, y) for n, (x, y) in given.items()}
        if dtype in WHOLE:
            out |= {f"{n} of one": functions[n](x[3], y[3]) for n, (x, y) in given.items()}
            out |= {f"{n} of 2": functions[n](np.full((), 2, dtype), y) for n, (_, y) in given.items()}
            out |= {f"{n} by 3": functions[n](x, np.full((), 3, dtype)) for n, (x, _) in given.items()}
        return out

    check(program, given, target=target, tolerance=LOOSE, unsigned=UNSIGNED)


RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f4")


# What the arguments of the cases below are, by their names.
A, B, T, U = floats(3, 4), floats(4, 5), floats(2, 3, 4), floats(2, 5, 4)
ARRAYS: dict[str, Any] = {
    "f": F32, "g": G32, "i": I32, "j": J32, "a": A, "b": B, "t": T, "u": U,
    "c": (A + 1j * A[::-1]).astype("c8"), "h": A.astype(BFLOAT16), "half": A.astype("f2"),
    "n": np.arange(12, dtype="i4").reshape(3, 4), "m": np.arange(12, dtype="u1").reshape(3, 4),
    "nan": np.where(np.arange(12).reshape(3, 4) % 5 == 2, np.nan, A).astype("f4"),
    "places": np.array([-9, -1, 0, 1, 2, 7, 3], "i4"),
    "spd": (T[0] @ T[0].T + 3 * np.eye(3)).astype("f4"),
    "square": floats(3, 3) + 2 * np.eye(3, dtype="f4"), "squares": floats(2, 3, 3),
    "image": floats(2, 4, 7, 6), "kernel": floats(6, 2, 3, 2), "kernels": floats(6, 4, 3, 2),
    "narrow": floats(1, 2, 5).astype(BFLOAT16), "taps": floats(3, 2, 2).astype(BFLOAT16),
    "empty": np.zeros((0, 3), "f4"), "one": np.float32(0.5), "which": np.array([[0, 1, 2, 9], [-1, 0, 1, 2]], "i4"),
    "vector": np.arange(7, dtype="f4"), "wide": floats(2, 70), "odd": np.array([0.1, 449, 500, -0.3, 1e-9, np.nan, np.inf], "f4"),
    "key": jax.random.key(42), "keys": jax.random.split(jax.random.key(7), 6), "raw": jax.random.PRNGKey(3),
}  # fmt: skip
WINDOW = dict(window_dimensions=(2, 3), window_strides=(1, 2), padding=((1, 0), (1, 2)))
DILATED = dict(WINDOW, base_dilation=(2, 1), window_dilation=(1, 2))
STARTS = {lax.add: 0, lax.max: -np.inf, lax.min: np.inf}


def gathered(x: Any, indices: Any, dims: Any, sizes: Any, mode: str, **options: Any) -> Any:
    return lax.gather(x, indices, lax.GatherDimensionNumbers(*dims), sizes, mode=mode, **options)


def scattered(function: Any, x: Any, places: Any, mode: Any) -> Any:
    updates = np.arange(7 * 4).reshape(7, 4).astype(x.dtype)
    return function(x, places[:, None], updates, lax.ScatterDimensionNumbers((1,), (0,), (0,)), mode=mode)


def windowed(x: Any, function: Any, **options: Any) -> Any:
    return lax.reduce_window(x, np.asarray(STARTS[function], x.dtype)[()], function, **options)


def pooled(x: Any, function: Any = lax.max, padding: Any = ((0, 1), (1, 0))) -> Any:
    return windowed(x, function, window_dimensions=(2, 2), window_strides=(1, 2), padding=padding)


def argmax_by_hand(x: Any, i: Any, axes: Any = (1,)) -> Any:
    def larger(p, q):
        (a, i), (b, j) = p, q
        return jnp.where(a >= b, a, b), jnp.where(a >= b, i, j)

    return lax.reduce((x, i), (np.float32(-np.inf), np.int32(-1)), larger, axes)


def collatz(n: Any) -> Any:
    def turn(state: Any) -> Any:
        n, turns, x = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), turns + 1, x * 0.5 + jnp.arange(3.0)

    return lax.while_loop(lambda state: state[0] > 1, turn, (n, 0, jnp.zeros(3)))


def walk(x: Any, key: Any) -> Any:
    def turn(state: Any) -> Any:
        x, key = state
        return x + 1 + jax.random.uniform(key), jax.random.split(key)[0]

    return lax.while_loop(lambda state: state[0] < 5, turn, (x, key))


E8 = [
    getattr(jnp, n)
    for n in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz")
    if hasattr(jnp, n)
]

CASES: dict[str, Any] = {
    # types
    "saturates": lambda f, odd: [lax.convert_element_type(x, d) for x in (f, odd) for d in (jnp.int32, jnp.uint8, jnp.int16)],
    "saturates_int4": lambda f, odd, half, i: [x.astype(d).astype(jnp.int32) for x in (f, odd, half, i) for d in (jnp.int4, jnp.uint4)],
    "saturates_bf16": lambda f: lax.convert_element_type(f.astype(jnp.bfloat16), jnp.int8),
    "to_bool": lambda f, c: (lax.convert_element_type(f, bool), lax.convert_element_type(c, bool)),
    "wraps": lambda i: (lax.convert_element_type(i, jnp.uint8), i.astype(jnp.int16).astype(jnp.uint32)),
    "to_half": lambda f: (f.astype(jnp.float16), f.astype(jnp.bfloat16)),
    "bool_to": lambda i: ((i > 0).astype(jnp.float32), (i > 0).astype(jnp.int8), (i > 0).astype(jnp.bfloat16)),
    "complex_to_real": lambda c: lax.convert_element_type(c, jnp.float32),
    "real_to_complex": lambda a: lax.convert_element_type(a, jnp.complex64),
    "bytes": lambda odd, f: [x.astype(d).astype(jnp.float32) for x in (odd, f) for d in E8],
    "bytes_from_half": lambda half, h: [x.astype(d).astype(jnp.float32) for x in (half, h) for d in E8],
    "bitcast": lambda f, i: (lax.bitcast_convert_type(f, jnp.int32), lax.bitcast_convert_type(i, jnp.float32)),
    "bitcast_smaller": lambda a: lax.bitcast_convert_type(a, jnp.uint16),
    "bitcast_larger": lambda n: lax.bitcast_convert_type(n.astype(jnp.uint16).reshape(3, 2, 2), jnp.float32),
    "bitcast_transposed": lambda a: (lax.bitcast_convert_type(a.T, jnp.uint8), lax.bitcast_convert_type(a.T, jnp.int32)),
    "bitcast_one": lambda one: (lax.bitcast_convert_type(one, jnp.uint8), lax.bitcast_convert_type(one, jnp.uint32)),
    "reduce_precision": lambda f, half, h: [lax.reduce_precision(x, e, m) for x in (f, half, h)
                                            for e, m in ((5, 10), (8, 7), (3, 2), (8, 23))],
    "conj": lambda c, a: (lax.conj(c), lax.conj(a)),
    "complex": lambda f, g: lax.complex(f, g),
    "complex_parts": lambda c: (jnp.abs(c), jnp.sign(c), lax.real(c), lax.imag(c), -c),
    "barrier": lambda a, f: (lax.optimization_barrier(a), lax.optimization_barrier((a, f))),
    # elementwise of more operands
    "integer_pow": lambda f: [lax.integer_pow(f[:13], y) for y in (0, 1, 2, 3, -1, -2)],
    "integer_pow_int": lambda i: [lax.integer_pow(i, y) for y in (0, 1, 2, 5)],
    "pow_int": lambda f, j: lax.pow(f[:9], j[:9]),
    "round": lambda: [lax.round(jnp.array([0.5, -0.5, 1.5, 2.5, -0.3, 0.49999997, 8388609.0, jnp.nan]), m)
                      for m in lax.RoundingMethod],
    "round_given": lambda f: [lax.round(f, m) for m in lax.RoundingMethod],
    "clamp": lambda f: lax.clamp(0.0, f, 1.0),
    "clamp_crossed": lambda f, g: lax.clamp(g, f, g[::-1]),
    "clamp_int": lambda i: lax.clamp(np.int32(-3), i, np.int32(7)),
    "clamp_bf16": lambda h: (jnp.clip(h, -0.5, 0.5), lax.clamp(h[0, 0] - 1, h, h[0, 1] + 1)),
    "select": lambda a: (jnp.where(a > 0, a, 0.0), jnp.where(a > 0, 1.0, 2.0), lax.select(a[0, 0] > 0, a, -a)),
    "select_n": lambda which, a: [lax.select_n(w, a[:2], -a[:2], a[:2] * 2) for w in (which, which[0, 1], which[0, 3])],
    "select_one": lambda which, a: lax.select_n(which == 5, a[:2], a[:2]),
    "relu_bf16": lambda h: jax.nn.relu(h) + 1.0,
    "total_order": lambda f, g, i, j, h: [o(x, y) for x, y in ((f, g), (i, j), (h, h[::-1])) for o in (
        lambda x, y: lax.eq_to_p.bind(x, y), lambda x, y: lax.lt_to_p.bind(x, y), lambda x, y: lax.le_to_p.bind(x, y))],
    # shapes
    "broadcast": lambda a: [lax.broadcast_in_dim(a, s, d) for s, d in (
        ((3, 4, 1), (0, 1)), ((1, 3, 4), (1, 2)), ((2, 3, 4), (1, 2)), ((3, 5, 4), (0, 2)), ((3, 4, 2), (0, 1)),
        ((3, 1, 4), (0, 2)))],
    "broadcast_scalar": lambda one: [jnp.full((2, 3), v, d) for v, d in ((0, "f4"), (1, "i4"), (-0.0, "f4"), (7, "u1"))]
    + [jnp.full((2,), one), jnp.broadcast_to(one, ())],
    "broadcast_one": lambda: lax.broadcast_in_dim(jnp.ones((3, 1)), (3, 4), (0, 1)),
    "reshape": lambda a, empty: (lax.reshape(a, (4, 3)), lax.reshape(a, (12,)), jnp.reshape(a[:1, :1], ()), empty.reshape(-1)),
    "reshape_turned": lambda a: lax.reshape(a, (12,), (1, 0)),
    "squeeze": lambda a: (lax.squeeze(a[:, None], (1,)), lax.squeeze(a[:1, :1], (0, 1)), lax.squeeze(a, ())),
    "transpose": lambda a, t: (a.T, lax.transpose(t, (1, 0, 2)), lax.transpose(a, (0, 1))),
    "rev": lambda t: (lax.rev(t, (0,)), lax.rev(t, (0, 2)), lax.rev(t, (2,))),
    "slice": lambda t, a: (lax.slice(t, (0, 1, 0), (2, 3, 4), (1, 1, 3)), a[1:2, 2:], a[2:2]),
    "concatenate": lambda a, h: (jnp.concatenate([a, a]), jnp.concatenate([a, a], 1), jnp.concatenate([h, h])),
    "stack": lambda a, one: (jnp.stack([a, a], 1), jnp.unstack(a), list(a[0]), jnp.stack([one, one]), jnp.unstack(a, axis=1)),
    "tile": lambda a, one: (jnp.tile(a, (2, 3)), jnp.tile(a, (2, 1, 1)), jnp.tile(one, 2)),
    "split": lambda a: (jnp.split(a, [1], 0), jnp.split(a, 2, 1), lax.split(a, (1, 0, 3), 1)),
    "pad": lambda a: [lax.pad(a, np.float32(v), c) for v, c in (
        (0, ((1, 1, 0), (1, 1, 0))), (2, ((0, 1, 0), (2, 0, 0))), (2, ((-1, 1, 0), (1, -2, 2))), (1, ((-2, -1, 0),) * 2))],
    "pad_more": lambda f, h, empty, one: (lax.pad(f, np.float32(0), ((1, 2, 0),)), lax.pad(h, jnp.bfloat16(2), ((1, 2, 0),) * 2),
                                          lax.pad(empty, one, ((1, 2, 1), (0, 0, 0)))),
    "iota": lambda: [lax.broadcasted_iota(d, s, i) for d, s, i in (
        ("i4", (3, 4), 0), ("f4", (3, 4), 1), ("u1", (200,), 0), ("i4", (2, 3, 1), 1), ("i4", (3, 1), 0), ("i1", (5,), 0))],
    "few_bits": lambda odd: [odd.astype(d) for d in (jnp.int4, jnp.uint4)],
    "iota_narrow": lambda: [jnp.arange(5, dtype=d) for d in (jnp.bfloat16, jnp.float16)] + [lax.iota(jnp.uint8, 300)],
    # reductions
    "sums": lambda a, n, m, half: [jnp.sum(x, axis=s) for x in (a, n, m, half) for s in (None, 0, (0, 1))],
    "sums_bf16": lambda h: [jnp.sum(jnp.broadcast_to(h[0, 0] * 0 + 1, (9000,))), jnp.sum(h, axis=1), jnp.cumsum(h, axis=0)],
    "sums_of_nothing": lambda empty: [f(empty, axis=0) for f in (jnp.sum, jnp.prod, jnp.any, jnp.all)],
    "prods": lambda a, n, h: [jnp.prod(x, axis=s) for x in (a, n + 1, h) for s in (None, 1)],
    "extremes": lambda a, n, nan, h: [o(x, axis=s) for o in (jnp.max, jnp.min) for x in (a, n, nan, h) for s in (None, 1)],
    "extremes_of_bools": lambda a: [o(a > 0, axis=1) for o in (jnp.max, jnp.min)],
    "extremes_of_nothing": lambda empty: [p.bind(x, axes=(0,), out_sharding=None) for p in (lax.reduce_max_p, lax.reduce_min_p)
                                          for x in (empty, empty.astype(jnp.int8), empty.astype(jnp.bfloat16), empty > 0)],
    "bits": lambda a, n: [p.bind(x, axes=s) for p in (lax.reduce_and_p, lax.reduce_or_p, lax.reduce_xor_p)
                          for x in (a > 0, n) for s in ((1,), (0, 1))],
    "args": lambda a, n, nan: [o(x, axis=1) for o in (jnp.argmax, jnp.argmin)
                               for x in (a, n, nan, nan.astype(jnp.bfloat16), nan.astype(jnp.float16), a > 0)],
    "cumulative": lambda a, n, nan: [o(x, 1, reverse=r) for o in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)
                                     for x in (a, n, nan) for r in (False, True)] + [lax.cumlogsumexp(a, 0)],
    "cumulative_bf16": lambda h: [o(h, 1) for o in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)],
    "reduced": lambda a, n: [argmax_by_hand(a, n), argmax_by_hand(a, n, (0, 1)),
                             lax.reduce(a, np.float32(0), lambda x, y: x + y + x * y, (0,))],
    "reduced_to_scalars": lambda n: lax.reduce(n, np.int32(5), lambda x, y: (x * y + x + y) % 13, (1, 0)),
    # loops of elements that each stop at a time of their own
    "loops": lambda n: jax.vmap(collatz)(n.ravel() + 1),
    "loops_with_keys": lambda keys, f: jax.vmap(jax.vmap(walk, (None, 0)), (0, None))(f[2:5], keys[:2]),
    # windows
    "windows": lambda a, half: [windowed(x, o, **k) for k in (WINDOW, DILATED) for x in (a, half) for o in STARTS],
    "windows_nan": lambda nan: [windowed(nan, o, **WINDOW) for o in STARTS],
    "windows_bf16": lambda h: [windowed(h, o, **WINDOW) for o in STARTS],
    "windows_int": lambda n: (windowed(n, lax.add, **WINDOW), lax.reduce_window(n, np.int32(-(2**31)), lax.max, (2, 2), (1, 1), "SAME")),
    "windows_cut": lambda a: windowed(a, lax.add, window_dimensions=(2, 2), window_strides=(1, 1), padding=((-1, 1), (2, -1))),
    "windows_bool": lambda a: lax.reduce_window(a > 0, False, lax.bitwise_or, (2, 2), (1, 1), "SAME"),
    "windows_own": lambda a: lax.reduce_window(a, np.float32(1), lambda x, y: jnp.abs(x) * jnp.abs(y), **WINDOW),
    "pool_gradient": lambda a, nan: [jax.grad(lambda x, o=o: (pooled(x, o) * 2).sum())(x) for o in (lax.max, lax.min)
                                     for x in (jnp.round(a), nan, a * jnp.inf)],
    "pool_gradient_nhwc": lambda image: jax.grad(lambda x: (lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 2), "SAME") ** 2).sum())(image),
    "pool_tangent": lambda a, nan: [jax.jvp(pooled, (x,), (x * 2 + 1,)) for x in (jnp.round(a), a, a * jnp.inf)],
    # sorting
    "sort": lambda nan, n, h: [lax.sort(x, dimension=d) for x in (nan, n[::-1], h) for d in (0, 1)],
    "sort_zeros": lambda f: (lax.sort(f), lax.sort(f, is_stable=False), lax.sort(f.astype(jnp.bfloat16))),
    "sort_several": lambda a, n: [lax.sort((jnp.round(a), n, a), num_keys=k, dimension=d) for k in (1, 2) for d in (0, 1)],
    "sort_nan": lambda nan, n: [lax.sort((x.ravel(), n.ravel())) for x in (nan, nan.astype(jnp.bfloat16))],
    "top_k": lambda nan, n, h: [lax.top_k(x, 2) for x in (nan, n, n // 3, h, nan.astype(jnp.bfloat16))],
    "top_k_axis": lambda n: lax.top_k(n // 3, 2, axis=0),
    "top_k_order": lambda f, h: (lax.top_k(jnp.concatenate([f, -f]), 9), lax.top_k(-jnp.abs(h[0] * 0), 4)),
    # indexing
    "dynamic_slice": lambda a, places: [lax.dynamic_slice(a, (places[p], places[q]), (2, 2)) for p, q in ((0, 3), (5, 5), (3, 1))],
    "dynamic_update": lambda a, places: [lax.dynamic_update_slice(a, jnp.ones((2, 2)), (places[p], places[q])) for p, q in ((0, 3), (5, 5))],
    "index_rows": lambda a, places: (a[places], a[places, places], a[:, places], a[places.astype(jnp.uint8)]),
    "take_fill": lambda a, n, m, places: [jnp.take(x, places, axis=s) for x in (a, n, a > 0, m, a.astype(jnp.bfloat16)) for s in (0, 1)],
    "take_clip": lambda t, places: jnp.take(t, places, axis=1, mode="clip"),
    "index_one": lambda f, places: [f[:5][places[p]] for p in (5, 1, 0)],
    "gather_windows": lambda t, places: [gathered(t, places[:, None], ((0, 2, 3), (), (1,)), (2, 2, 3), m)
                                         for m in ("clip", "fill")],
    "gather_in_bounds": lambda a, places: gathered(a, places[2:5, None], ((1,), (0,), (0,)), (1, 4), "promise_in_bounds"),
    "gather_batched": lambda a, places: [jnp.take_along_axis(a, places[:6].reshape(3, 2), 1),
                                         jax.vmap(lambda x, i: x[i])(a, places[3:6])],
    "gather_empty": lambda empty, places: (empty.T[places[2:4]], jnp.take(empty, places, axis=1)),
    "gather_value": lambda a, places: a.at[places].get(mode="fill", fill_value=-1),
    "scatter": lambda a, places: [scattered(o, a, places[1:6] if o is lax.scatter and m == "clip" else places, m)
                                  if o is not lax.scatter or m != "clip" else a
                                  for m in ("drop", "clip")
                                  for o in (lax.scatter, lax.scatter_add, lax.scatter_mul, lax.scatter_min, lax.scatter_max)],
    "scatter_sub": lambda a, places: a.at[places].subtract(1.0),
    "scatter_bf16": lambda h, places: scattered(lax.scatter_add, h, places, "drop"),
    "scatter_int": lambda n, places: [scattered(o, n, places, "drop") for o in (lax.scatter_add, lax.scatter_min)],
    "scatter_nan": lambda nan, places: [scattered(o, nan, places, "drop") for o in (lax.scatter_min, lax.scatter_max)],
    "scatter_windows": lambda t, places: lax.scatter_add(
        t, places[:, None], np.ones((7, 2, 2, 3), "f4"), lax.ScatterDimensionNumbers((1, 2, 3), (), (1,)), mode="drop"),
    "scatter_batched": lambda a, places: jax.vmap(lambda x, i: x.at[i].add(1.0))(a, places[3:6]),
    "segment_sum": lambda f, places: jax.ops.segment_sum(f[2:9], places, 4),
    # products
    "dots": lambda a, b, t, u, n, c: [lax.dot_general(x, y, d) for x, y, d in (
        (a, b, (((1,), (0,)), ((), ()))), (a, a, (((1,), (1,)), ((), ()))), (a, a, (((0,), (0,)), ((), ()))),
        (a, a.T, (((0,), (1,)), ((), ()))), (a[0], b, (((0,), (0,)), ((), ()))), (a, a[0], (((1,), (0,)), ((), ()))),
        (a, a[:, 0], (((0,), (0,)), ((), ()))), (a[0], a, (((0,), (1,)), ((), ()))), (a[0], a[1], (((0,), (0,)), ((), ()))),
        (t, b, (((2,), (0,)), ((), ()))), (t, a, (((2,), (1,)), ((), ()))), (t, a, (((1, 2), (0, 1)), ((), ()))),
        (b, t, (((0,), (2,)), ((), ()))), (t, u, (((2,), (2,)), ((0,), (0,)))), (u, t.swapaxes(1, 2), (((2,), (1,)), ((0,), (0,)))),
        (t, a, (((), ()), ((), ()))), (a, a, (((), ()), ((0, 1), (0, 1)))), (t, t, (((0,), (0,)), ((2,), (2,)))),
        (a[0], a[1], (((), ()), ((0,), (0,)))), (n, n.T, (((1,), (0,)), ((), ()))), (c, c, (((1,), (1,)), ((), ()))),
        (a[0, 0], t, (((), ()), ((), ()))))],
    "dots_narrow": lambda h, half, m, a: [lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=p)
                                       for x, p in ((h, None), (h, jnp.float32), (half, None), (m, None), (m, jnp.int32))],
    "convolutions": lambda image, kernel: [lax.conv_general_dilated(image, kernel, (1, 2), p, feature_group_count=2, **k)
                             for p, k in (("SAME", {}), ("VALID", dict(rhs_dilation=(2, 1))),
                                          (((2, 1), (-1, 3)), dict(lhs_dilation=(1, 2))))],
    "convolution_orders": lambda image, kernel: lax.conv_general_dilated(
        image.transpose(0, 2, 3, 1), kernel.transpose(2, 3, 1, 0), (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2),
    "convolution_batch_groups": lambda image, kernels: lax.conv_general_dilated(
        image, kernels, (1, 1), "VALID", batch_group_count=2),
    "convolution_gradients": lambda image, kernel: jax.grad(lambda x, k: (lax.conv_general_dilated(
        x, k, (1, 2), "SAME", feature_group_count=2) ** 2).sum(), (0, 1))(image, kernel),
    "convolution_narrow": lambda narrow, taps: [lax.conv_general_dilated(narrow, taps, (1,), "SAME", preferred_element_type=p)
                                                for p in (None, jnp.float32)],
    "convolution_int": lambda n: lax.conv_general_dilated(n[None, :, :], n[:2, None, :3].astype(jnp.int32).repeat(3, 1), (1,), "SAME"),
    "convolution_empty": lambda image, kernels: lax.conv_general_dilated(image[:0], kernels, (1, 1), "SAME"),
    "ffts": lambda c, a: [jnp.fft.fft(c), jnp.fft.ifft(c), jnp.fft.rfft(a), jnp.fft.irfft(c, 7), jnp.fft.fft2(c), jnp.fft.rfft2(a),
                     jnp.fft.irfft2(c)],
    "fft_gradient": lambda a: jax.grad(lambda x: (jnp.abs(jnp.fft.rfft(x)) ** 2).sum())(a),
    # linear algebra
    "cholesky": lambda spd: [jnp.linalg.cholesky(x) for x in (spd, -spd, jnp.stack([spd, -spd]), spd * jnp.nan, spd[:0, :0])],
    "triangular": lambda spd, a: [lax.linalg.triangular_solve(spd, a, left_side=True, lower=lo, transpose_a=t, unit_diagonal=u)
                           for lo in (True, False) for t in (True, False) for u in (True, False)],
    "triangular_right": lambda spd, a: lax.linalg.triangular_solve(spd, a.T, lower=True),
    "triangular_complex": lambda c, b: [lax.linalg.triangular_solve(c[:, :3], c, left_side=True, transpose_a=t, conjugate_a=True)
                                        for t in (True, False)],
    "lu": lambda t, a, squares, c, empty: (lax.linalg.lu(t), lax.linalg.lu(a.T), lax.linalg.lu(squares), lax.linalg.lu(c), lax.linalg.lu(empty)),
    "lu_singular": lambda spd: lax.linalg.lu(spd[:1] + spd * 0),
    "lu_by_library": lambda a: jax.scipy.linalg.lu(a.T),
    "solve": lambda square, squares, a: (jnp.linalg.solve(square, a), jnp.linalg.solve(squares, a[None].repeat(2, 0)),
                                         jnp.linalg.inv(squares), jnp.linalg.det(square), jnp.linalg.slogdet(squares)),
    "solve_gradient": lambda square, a: jax.grad(lambda m, b: (jnp.linalg.solve(m, b) ** 2).sum(), (0, 1))(square, a),
    "solve_spd": lambda spd, a: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(spd), a),
    "solve_cg": lambda spd, a: jax.scipy.sparse.linalg.cg(spd, a[:, 0], tol=1e-6)[0],
    "tridiagonal": lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[1] + 5, a[2], b),
    "qr": lambda a, t: (jnp.linalg.qr(a.T), jnp.linalg.qr(a.T, mode="complete"), jnp.linalg.qr(t), jnp.linalg.qr(a)),
    "qr_pivots": lambda a: lax.linalg.qr(a, pivoting=True, full_matrices=False),
    "eigenvalues": lambda spd, squares: (lax.linalg.eigh(spd)[1], jnp.linalg.eigvalsh(squares), jnp.linalg.eigvalsh(spd * jnp.nan)),
    "eigenvectors": lambda spd, squares: (jnp.linalg.eigh(spd), jnp.linalg.eigh(squares),
                                          lax.linalg.eigh(jnp.triu(spd), lower=False, symmetrize_input=False)),
    "eigenvectors_gradient": lambda spd: jax.grad(lambda x: (jnp.linalg.eigh(x)[0] ** 3).sum())(spd),
    "eigenvalues_any": lambda square, squares: (jnp.linalg.eig(square), lax.linalg.eig(squares), jnp.linalg.eigvals(square * jnp.nan)),
    "schur": lambda square, squares, c: (lax.linalg.schur(square), lax.linalg.schur(squares), lax.linalg.schur(c[:, :3]),
                                         lax.linalg.schur(square, compute_schur_vectors=False), lax.linalg.schur(square * jnp.nan)),
    "singular_vectors": lambda a, t: [jnp.linalg.svd(x, full_matrices=o) for x in (a, t, a.T, a * jnp.nan) for o in (True, False)],
    "singular_values": lambda a, nan: (jnp.linalg.svd(a, compute_uv=False), jnp.linalg.pinv(a), jnp.linalg.norm(a, 2)),
    # random
    "keys_seeded": lambda: [jax.random.key_data(jax.random.key(s)) for s in (0, 42, -1, 2**31 - 1)],
    "keys_used": lambda key: (jax.random.split(key), jax.random.split(key, (2, 3)), jax.random.fold_in(key, 7),
                              jax.random.split(key, 3)[1], jax.random.key_data(key), jax.random.clone(key)),
    "keys_moved": lambda key: (jax.random.split(key, 6).reshape(2, 3).T, jnp.stack([key, key]), jax.random.split(key, 4)[::-1],
                               jax.random.split(key, 4)[jnp.array([3, 1, 9])], jnp.broadcast_to(key, (2, 3)),
                               jnp.concatenate([jax.random.split(key, 2)] * 2), jax.random.split(key, (2, 3))[:, 1]),
    "keys_chosen": lambda keys, a: [jnp.where(a[0, 0] > c, keys[0], keys[1]) for c in (-9, 9)]
    + [jnp.where(a[0, :3] > 0, keys[:3], keys[3:]), lax.dynamic_slice(keys, (jnp.int32(5),), (2,))],
    "keys_mapped": lambda key: jax.vmap(lambda k: (jax.random.uniform(k, (3,)), jax.random.split(k)))(jax.random.split(key, 4)),
    "keys_bits": lambda key: [jax.random.bits(key, s, d) for s in ((), (3,), (5, 3), (0,)) for d in ("uint8", "uint16", "uint32")],
    "keys_drawn": lambda key, a: (jax.random.normal(key, (5,)), jax.random.bernoulli(key, 0.3, (4,)), jax.random.randint(key, (5,), 0, 9),
                                  jax.random.permutation(key, 9), jax.random.categorical(key, a)),
    "linear": lambda a: jax.custom_derivatives.linear_call(lambda r, x: jnp.sin(x * r) + x, lambda r, y: y * r, a, a),
    "platforms": lambda a: lax.platform_dependent(a, cpu=jnp.sin, tpu=jnp.cos, default=jnp.tan),
    "platforms_other": lambda a: lax.platform_dependent(a, tpu=jnp.cos, default=jnp.tan),
    "keys_raw": lambda raw: (jax.random.uniform(raw, (4,)), jax.random.split(raw), jax.random.fold_in(raw, 5)),
}  # fmt: skip
TOLERANCES = dict(
    ffts=1e-5, fft_gradient=1e-5, dots=1e-5, dots_narrow=1e-5, cumulative=1e-5, reduced=1e-5, keys_drawn=1e-5
)
TOLERANCES |= dict.fromkeys(
    "lu lu_singular lu_by_library solve solve_gradient solve_spd solve_cg tridiagonal qr qr_pivots cholesky triangular triangular_right"
    " triangular_complex triangular_singular eigenvalues eigenvectors eigenvectors_gradient eigenvalues_any schur singular_vectors"
    " singular_values convolutions convolution_orders convolution_batch_groups convolution_gradients convolution_narrow".split(),
    1e-4,
)  # fmt: skip


def check_case(name: str, target: str = "numpy", function: Callable[..., Any] | None = None) -> None:
    """Runs one of the cases. function: what stands for it."""
    function = function or CASES[name]
    given = [ARRAYS[word] for word in inspect.signature(function).parameters]
    unsigned = ("",) if name in ("clamp", "clamp_crossed", "sort_zeros") else ()
    check(function, *given, target=target, tolerance=TOLERANCES.get(name, 2e-6), unsigned=unsigned)
