"""The flat statements of random programs: elementwise, reductions, shapes, indexing, random keys.

Each function draws one Statement from a Writer; `FAMILIES` lists them, the likelier ones repeated
and the simplest first, because hypothesis shrinks towards the front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from random_programs import Statement, Type

if TYPE_CHECKING:
    from strategies import Writer

Family = Callable[["Writer"], "Statement | None"]

LITERALS = ["2", "1.0", "-1", "0", "-0.0", "float('nan')", "float('inf')", "-float('inf')", "0.1"]
LITERALS += ["1e-40", "3", "True", "7", "1e30", "np.float32(0.3)", "np.int32(2)", "jnp.inf"]

UNARY = {
    "float": "jnp.sin jnp.cos jnp.tanh jnp.exp jnp.log jnp.sqrt lax.rsqrt lax.logistic jnp.abs "
    "jnp.negative jnp.sign jnp.floor jnp.ceil jnp.round lax.erf jnp.expm1 jnp.log1p jnp.isfinite "
    "jnp.cbrt jnp.square jnp.reciprocal lax.lgamma lax.digamma jnp.isnan jax.nn.relu jax.nn.silu "
    "jax.nn.gelu jax.nn.softplus jax.nn.softmax jnp.arctan jnp.sinh lax.erf_inv jnp.nan_to_num "
    "lax.stop_gradient jnp.tan jax.nn.sigmoid jnp.signbit jnp.frexp jnp.modf jnp.logical_not "
    "lax.optimization_barrier jnp.exp2 jnp.spacing jax.nn.log_softmax jnp.sinc jnp.i0 jax.nn.elu",
    "integer": "jnp.negative jnp.abs jnp.sign jnp.invert lax.population_count lax.clz jnp.square "
    "jnp.float32 jnp.bitwise_count jnp.sin jnp.logical_not lax.stop_gradient jnp.sqrt",
    "bool": "jnp.logical_not jnp.invert jnp.int32 jnp.float32 jnp.isnan",
    "complex": "jnp.real jnp.imag jnp.conj jnp.abs jnp.exp jnp.sin jnp.sqrt jnp.negative jnp.angle "
    "jnp.square jnp.log jnp.sign jnp.tanh",
}
BINARY = "+ - * / // % ** < <= > >= == != & | ^ << >>".split()
BINARY_FUNCTIONS = (
    "jnp.maximum jnp.minimum jnp.arctan2 jnp.power jnp.logaddexp jnp.hypot "
    "jnp.nextafter jnp.copysign jnp.logical_and jnp.logical_xor jnp.fmod jnp.remainder "
    "jnp.float_power jnp.heaviside jnp.gcd jnp.ldexp jnp.right_shift "
    "lax.shift_right_logical".split()
)
REDUCTIONS = "sum max min prod mean any all var argmax argmin std nansum ptp".split()
CUMULATIVE = "jnp.cumsum jnp.cumprod lax.cummax lax.cummin lax.cumlogsumexp".split()


def unary(w: Writer) -> Statement:
    """`jnp.sin(x)` and the like, `x**3`, `-x`."""
    kind = w.choose(["float", "float", "integer", "bool", "complex", "float"])
    x = w.value(kind)
    if w.chance(6) and kind != "bool":
        return Statement(w.choose(["{0}**3", "{0}**2", "-{0}", "{0}**-1", "abs({0})"]), (x.name,))
    return Statement(w.choose(UNARY[kind].split()) + "({0})", (x.name,))


def binary(w: Writer) -> Statement:
    """An operator or a function of two values, or of a value and a Python scalar."""
    x = w.value()
    if w.chance(3):
        other, names = w.choose(LITERALS), (x.name,)
    else:
        y = w.pick(where=lambda t: t.shape in ((), x.type.shape))
        if y is None or w.chance(4):
            y = w.made(Type(x.type.shape, x.type.dtype))
        other, names = "{1}", (x.name, y.name)
    if w.chance(3):
        return Statement(f"{w.choose(BINARY_FUNCTIONS)}({{0}}, {other})", names)
    if w.chance(4):
        return Statement(f"{other} {w.choose(BINARY)} {{0}}", names)
    return Statement(f"{{0}} {w.choose(BINARY)} {other}", names)


def reduction(w: Writer) -> Statement:
    """A reduction over some axes, or a cumulative one."""
    x = w.value(min_rank=w.choose([0, 1, 1, 2]))
    rank = len(x.type.shape)
    if rank and w.chance(4):
        name = w.choose(CUMULATIVE)
        more = ", reverse=True" if name.startswith("lax") and w.chance(2) else ""
        return Statement(f"{name}({{0}}, axis={w.integer(0, rank - 1)}{more})", (x.name,))
    if w.chance(8):
        return Statement("jax.nn.logsumexp({0}, axis=-1)", (x.name,))
    name = w.choose(REDUCTIONS)
    options = ["axis=None"]
    if rank:
        options += [f"axis={w.integer(0, rank - 1)}", "axis=-1, keepdims=True"]
    if rank > 1 and not name.startswith("arg"):
        options.append("axis=(0, 1)")
    if name == "sum" and x.type.is_float:
        options.append("dtype='float32'")
    return Statement(f"jnp.{name}({{0}}, {w.choose(options)})", (x.name,))


def shaping(w: Writer) -> Statement:
    """Reshape, transpose, broadcast, reverse, repeat: one value in, one out."""
    x = w.value(min_rank=w.choose([0, 1, 2]))
    shape = x.type.shape
    options = [
        "jnp.ravel({0})",
        "{0}[None]",
        "{0}[..., None]",
        "jnp.broadcast_to({0}, (2, *{0}.shape))",
    ]
    options += ["jnp.atleast_2d({0})", "jnp.squeeze({0})", "jnp.ones_like({0})"]
    options += ["lax.broadcast_in_dim({0}, (*{0}.shape, 2), tuple(range({0}.ndim)))"]
    if shape:
        axis = w.integer(0, len(shape) - 1)
        options += [f"jnp.flip({{0}}, {axis})", f"jnp.roll({{0}}, {w.integer(-2, 2)}, {axis})"]
        options += [f"jnp.repeat({{0}}, 2, axis={axis})", f"jnp.moveaxis({{0}}, {axis}, 0)"]
        options += ["{0}.T", "jnp.tile({0}, 2)", "{0}[::-1]", "{0}[1:]", "{0}[:-1:2]", "{0}[-1]"]
        options += [f"jnp.split({{0}}, [1], axis={axis})", "lax.reshape({0}, ({0}.size,))"]
        options += [
            "jnp.diff({0})",
            f"jnp.delete({{0}}, 0, axis={axis})",
            "jnp.array_split({0}, 2)",
        ]
    if len(shape) > 1:
        options += [
            "jnp.tril({0})",
            "jnp.diagonal({0})",
            "lax.transpose({0}, tuple(range({0}.ndim))[::-1])",
        ]
        options += [
            "{0}[:, ::-1]",
            "{0}[..., 0]",
            "lax.reshape({0}, ({0}.size,), (1, 0))",
            "jnp.trace({0})",
        ]
    return Statement(w.choose(options), (x.name,))


def joining(w: Writer) -> Statement:
    """Concatenate, stack, pad, where, clip, select: several values in, one out."""
    x = w.value(min_rank=w.choose([0, 1, 1, 2]))
    shape, dtype = x.type.shape, x.type.dtype
    y = w.made(Type(shape, dtype))
    z = w.made(Type(shape, dtype))
    mask = w.made(Type(w.choose([shape, ()]), "bool"))
    names = (x.name, y.name, z.name, mask.name)
    rank = len(shape)
    options = ["jnp.where({3}, {0}, {1})", "jnp.where({3}, {0}, 0)", "jnp.clip({0}, {1}, {2})"]
    options += [
        "jnp.stack([{0}, {1}, {0}])",
        "lax.select_n({3}, {0}, {1})",
        "lax.clamp({1}, {0}, {2})",
    ]
    options += [
        "jnp.stack([{0}, {1}], axis=-1)",
        "jnp.clip({0}, 0)",
        "jnp.where({3}, {0}, jnp.nan)",
    ]
    if rank:
        options += ["jnp.concatenate([{0}, {1}, {2}])", "jnp.concatenate([{0}, {1}], axis=-1)"]
        options += ["jnp.pad({0}, 1)", "jnp.hstack([{0}, {1}])", "jnp.append({0}, {1})"]
        padding = ", ".join([str((w.integer(-1, 1), w.integer(0, 1), w.integer(0, 2)))] * rank)
        options += [f"lax.pad({{0}}, {{1}}.ravel()[0], ({padding},))"]
        options += [f"jnp.pad({{0}}, 1, mode={m!r})" for m in ("edge", "wrap", "reflect")]
        options += ["jnp.select([{3}, ~{3}], [{0}, {1}], 0)", "jnp.insert({0}, 0, 1)"]
    return Statement(w.choose(options), names)


def indexing(w: Writer) -> Statement:
    """Static and dynamic indices, gather, scatter, dynamic slices, take."""
    x = w.value(min_rank=1)
    length = x.type.shape[0]
    i = w.made(Type((), w.choose(["int32", "int32", "uint8", "int8"])))
    ids = w.made(Type(w.choose([(2,), (2,), (2, 1), (0,)]), "int32"))
    mask = w.made(Type((length,), "bool"))
    update = w.made(Type((), x.type.dtype))
    row = w.made(Type(x.type.shape[1:], x.type.dtype))
    names = (x.name, i.name, ids.name, mask.name, update.name, row.name)
    sizes = tuple(max(0, n - 1) for n in x.type.shape)
    mode = w.choose(["fill", "clip", "drop", "promise_in_bounds", "wrap"])
    write = w.choose(["set", "add", "multiply", "min", "max", "power", "divide", "subtract"])
    options = ["{0}[{1}]", "{0}[{2}]", "{0}[{2}, ...]", f"{{0}}.at[{{2}}].{write}({{4}})"]
    options += [f"{{0}}.at[{{1}}].{write}({{5}})", f"{{0}}.at[{{2}}].get(mode='{mode}')"]
    options += [f"{{0}}.at[{{2}}].{write}({{4}}, mode='{mode}')", "{0}.at[1:].set({4})"]
    options += [f"{{0}}.at[{{2}}].{write}({{4}}, unique_indices=True, indices_are_sorted=True)"]
    options += ["{0}.at[{2}].apply(jnp.tanh)", "{0}.at[{2}].get(mode='fill', fill_value=1)"]
    options += ["jnp.take({0}, {2}, axis=0)", "jnp.where({3}, {0}.T, {4}).T"]
    options += [f"jnp.take({{0}}, {{2}}, axis=-1, mode='{w.choose(['fill', 'clip', 'wrap'])}')"]
    options += [
        "jnp.take_along_axis({0}.ravel(), {2}.ravel(), 0)",
        "jnp.searchsorted(jnp.sort({0}.ravel()), {4})",
    ]
    starts = ", ".join(["{1}"] * len(sizes))
    options += [
        f"lax.dynamic_slice({{0}}, ({starts},), {sizes})",
        "lax.dynamic_index_in_dim({0}, {1}, 0, False)",
    ]
    options += [f"lax.dynamic_update_slice({{0}}, {{5}}[None], ({starts},))"]
    options += ["lax.dynamic_slice_in_dim({0}, {1}, 1)", "jnp.nonzero({3}, size=2, fill_value=-1)"]
    options += [
        "jax.ops.segment_sum({0}, jnp.arange({0}.shape[0]) % 2, 2)",
        "jnp.bincount({2}.ravel() & 3, length=4)",
    ]
    if len(x.type.shape) > 1:
        options += [
            "{0}[{2}, {1}]",
            "{0}[:, {1}]",
            "{0}[{1}, 1:]",
            f"{{0}}.at[{{2}}, {{1}}].{write}({{4}})",
        ]
        options += [
            f"{{0}}.at[..., {{1}}].{write}({{4}})",
            "{0}[jnp.array([1, 0]), jnp.array([0, 1])]",
        ]
    return Statement(w.choose(options), names)


def sorting(w: Writer) -> Statement:
    """Sorts of one and several operands, top_k."""
    x = w.value(min_rank=1)
    y = w.made(Type(x.type.shape, w.choose(["int32", "float32", x.type.dtype])))
    axis = w.integer(0, len(x.type.shape) - 1)
    options = [f"jnp.sort({{0}}, axis={axis})", f"jnp.argsort({{0}}, axis={axis})"]
    options += [f"lax.sort(({{0}}, {{1}}), dimension={axis}, num_keys={w.integer(1, 2)})"]
    options += [f"lax.sort(({{0}}, {{1}}), dimension={axis}, is_stable=False)", "jnp.median({0})"]
    options += ["lax.top_k({0}, min(2, {0}.shape[-1]))", "jnp.lexsort(({1}, {0}))"]
    options += [f"jnp.argsort({{0}}, axis={axis}, descending=True)", "jnp.unique({0}, size=3)"]
    return Statement(w.choose(options), (x.name, y.name))


def product(w: Writer) -> Statement:
    """dot, einsum, dot_general, convolution, small linear algebra, FFT."""
    dtype = w.choose(["float32", "float32", "bfloat16", "int32", "complex64", "float16"])
    m, k, n = (w.choose([2, 3, 1, 4]) for _ in range(3))
    a, b = w.made(Type((m, k), dtype)), w.made(Type((k, n), dtype))
    batch = w.made(Type((2, m, k), dtype))
    vector = w.made(Type((k,), dtype))
    precision = w.choose(["None", "'highest'", "lax.Precision.HIGH"])
    wanted = w.choose(["None", "'float32'"])
    square = "({0} @ {0}.T + 3 * jnp.eye({0}.shape[0], dtype={0}.dtype))"  # positive definite
    options = ["{0} @ {1}", "jnp.dot({0}, {3})", "jnp.einsum('ij,jk->ki', {0}, {1})", "{2} @ {1}"]
    options += [
        "jnp.einsum('bij,ij->b', {2}, {0})",
        "jnp.outer({3}, {3})",
        "jnp.tensordot({0}, {1}, 1)",
    ]
    options += [f"jnp.matmul({{0}}, {{1}}, precision={precision}, preferred_element_type={wanted})"]
    options += [
        "lax.dot_general({2}, {2}, (((2,), (2,)), ((0,), (0,))))",
        "jnp.vdot({3}, {3})",
        "jnp.kron({0}, {1})",
    ]
    options += ["lax.dot_general({0}, {1}, (((1,), (0,)), ((), ())), preferred_element_type='float32')"]
    options += [
        "jnp.convolve({3}, {3})",
        "lax.conv_general_dilated({2}, {2}[:, :, :1], (1,), 'SAME')",
    ]
    options += [
        "lax.conv({2}[..., None], {2}[..., None], (1, 1), 'SAME')",
        "jnp.fft.fft({0})",
        "jnp.fft.irfft({0})",
    ]
    options += [f"jnp.linalg.cholesky({square})", "jnp.linalg.norm({0})"]
    options += ["jnp.linalg.qr({0})", f"jnp.linalg.solve({square}, {{0}})"]
    options += [f"jax.scipy.linalg.solve_triangular({square}, {{0}}, lower=True)"]
    options += [
        "lax.reduce_window({0}, 0.0, lax.add, (1, 2), (1, 1), 'SAME')",
        "jnp.cross({0}[:, :3], {0}[:, :3])",
    ]
    options += [
        "lax.reduce_window({0}, -jnp.inf, lax.max, (2, 1), (1, 1), 'VALID')",
        "jnp.linalg.slogdet({0} @ {0}.T)",
    ]
    return Statement(w.choose(options), (a.name, b.name, batch.name, vector.name))


def converting(w: Writer) -> Statement:
    """Casts, bit casts, reduced precision, complex numbers from parts."""
    x = w.value()
    options = [f"{{0}}.astype({w.dtype()!r})", f"lax.convert_element_type({{0}}, {w.dtype()!r})"]
    if x.type.is_float:
        bits = w.choose(["uint8", "int8", "uint16", "int32", "uint32"])
        options += ["lax.reduce_precision({0}, 5, 2)", f"lax.bitcast_convert_type({{0}}, {bits!r})"]
        options += ["lax.complex({0}, {0})", f"{{0}}.view({bits!r})", "jnp.asarray({0}, 'float16')"]
    return Statement(w.choose(options), (x.name,))


def creating(w: Writer) -> Statement:
    """New arrays from nothing: iota, full, eye, literals."""
    shape = w.shape()
    dtype = w.dtype()
    value = w.choose(["0", "1", "-0.0", "float('nan')", "2.5", "-float('inf')", "1e-40", "True"])
    options = [f"jnp.full({shape}, {value}, {dtype!r})", f"jnp.zeros({shape}, {dtype!r})"]
    options += [
        f"jnp.arange({w.integer(0, 5)}, dtype={dtype!r})",
        f"jnp.eye(2, 3, dtype={dtype!r})",
    ]
    options += [
        f"lax.full({shape}, {value}, {dtype!r})",
        f"jnp.asarray({value})",
        "lax.iota('int32', 4)",
    ]
    options += [
        "lax.broadcasted_iota('int32', (2, 3), 1)",
        "jnp.linspace(0, 1, 4)",
        "jnp.array([1.5, -0.0])",
    ]
    options += [
        "jnp.meshgrid(jnp.arange(2), jnp.arange(3.0))",
        "jnp.tri(3)",
        "jnp.array(np.array([3, 1, 2], 'int32'))",
    ]
    return Statement(w.choose(options), ())


def randomness(w: Writer) -> Statement:
    """Keys from seeds and keys, numbers from keys."""
    if w.pick("key") is None or w.chance(6):
        options = [f"jax.random.key({w.integer(0, 9)})", f"jax.random.PRNGKey({w.integer(0, 9)})"]
        options += ["jax.random.key(7, impl='rbg')", "jax.random.key(7, impl='unsafe_rbg')"]
        return Statement(w.choose(options), ())
    key = w.pick("key", lambda t: t.shape == ())
    if key is None:
        keys = w.pick("key")
        return Statement(w.choose(["{0}[0]", "{0}.reshape(-1)[1]", "jnp.flip({0})"]), (keys.name,))
    data = w.made(Type((), "uint32"))
    shape = w.shape()
    kind = w.choose(["float32", "float32", "bfloat16", "float16"])
    options = ["jax.random.split({0})", "jax.random.split({0}, 3)", "jax.random.fold_in({0}, {1})"]
    options += [
        f"jax.random.normal({{0}}, {shape}, {kind!r})",
        f"jax.random.uniform({{0}}, {shape}, {kind!r})",
    ]
    options += [
        f"jax.random.bits({{0}}, {shape}, 'uint8')",
        f"jax.random.bernoulli({{0}}, 0.3, {shape})",
    ]
    options += [f"jax.random.randint({{0}}, {shape}, -3, 9)", "jax.random.permutation({0}, 5)"]
    options += [
        "jax.random.categorical({0}, jnp.ones((3, 2)))",
        "jax.random.key_data({0})",
        "jax.random.clone({0})",
    ]
    options += [
        f"jax.random.gumbel({{0}}, {shape})",
        "jax.random.gamma({0}, 2.0)",
        "jnp.stack([{0}, {0}])",
    ]
    options += [
        f"jax.random.truncated_normal({{0}}, -1, 1, {shape})",
        "jax.random.choice({0}, 5, (2,))",
    ]
    return Statement(w.choose(options), (key.name, data.name))


def calling(w: Writer) -> Statement | None:
    """A call of a function that was defined before: shared sub-functions are called again."""
    functions = w.defined()
    if not functions:
        return binary(w)
    name, types = w.choose(functions)
    operands = tuple(w.made(t).name for t in types)
    arguments = ", ".join(f"{{{i + 1}}}" for i in range(len(operands)))
    return Statement(f"{{0}}({arguments})", (name, *operands))


def _families() -> list[Family]:
    from nested_operations import NESTED

    flat = [unary, binary, reduction, shaping, joining, indexing, calling, sorting, product]
    often = [unary, binary, binary, calling, calling, indexing, shaping]
    return [*flat, converting, creating, randomness, *often, *NESTED, *NESTED]


FAMILIES: list[Family] = _families()
