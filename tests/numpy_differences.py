"""Where NumPy means something else than JAX, and how a text for NumPy keeps what JAX means.

`docs/make_targets.py` writes this table into docs/targets.md, tests/targets/test_numpy_differences.py tries each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: what JAX does, what NumPy does, how the text keeps the first.

    `program` in JAX shows it on `args`; `plain` is what one would write in NumPy without a thought, and gives something
    else, raises or warns. `written`: a word that stands in the text.
    """

    name: str
    jax: str
    numpy: str
    kept: str
    program: Callable[..., Any]
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    written: str = ""


F = np.array([np.nan, 3e9, np.inf, -np.inf, -1.5, 2.5, -0.0, 0.5], "f4")
A = np.arange(12, dtype="f4").reshape(3, 4) + 1
PLACES = np.array([7, -1, -9, 1], "i4")
SEVENS, ZEROS = np.array([7, -7, -(2**31), 9], "i4"), np.array([0, 2, -1, -4], "i4")
HALF = np.ones(9000, ml_dtypes.bfloat16)
NARROW = np.array([1.5, np.nan, -2, 0.5], ml_dtypes.bfloat16)
BAD = np.array([[1.0, 2.0], [2.0, 1.0]], "f4")


def _put(x: Any, value: float, add: bool = False) -> Any:
    out = np.array(x)
    if add:
        out[PLACES] += value
    else:
        out[PLACES] = value
    return out


def _added(x: Any) -> Any:
    out = np.zeros(2, "f4")
    np.add.at(out, [0, -1, 1], x[:3])
    return out


def _halves(x: Any) -> Any:
    return lax.while_loop(lambda v: v > 1, lambda v: v // 2, x)


DIFFERENCES = [
    Difference(
        "casts to integers",
        "what lies outside becomes the nearest integer, NaN becomes 0",
        "INT_MIN, or what is left of the bits",
        "`_as_integers`",
        lambda f: (f.astype(jnp.int32), f.astype(jnp.uint8)),
        lambda f: (f.astype("i4"), f.astype("u1")),
        (F,),
        "_as_integers",
    ),
    Difference(
        "integer division",
        "towards zero; by 0 it is -1",
        "downwards; by 0 it is 0, with a warning",
        "`_divided`",
        lax.div,
        lambda x, y: x // y,
        (SEVENS, ZEROS),
        "_divided",
    ),
    Difference(
        "integer remainders",
        "of the sign of the first; by 0 it is all",
        "of the sign of the second; by 0 it is 0",
        "`_remainder`",
        lax.rem,
        lambda x, y: x % y,
        (SEVENS, ZEROS),
        "_remainder",
    ),
    Difference(
        "logical shifts",
        "zeros come in, in signed numbers too",
        "`>>` repeats the sign",
        "`_shifted_right`",
        lambda x: lax.shift_right_logical(x, jnp.int32(1)),
        lambda x: x >> 1,
        (SEVENS,),
        "_shifted_right",
    ),
    Difference("sign", "of -0. it is -0.", "of -0. it is 0.", "`_sign`", lax.sign, np.sign, (F,), "_sign"),
    Difference(
        "rounding",
        "`lax.round` takes halves away from zero",
        "to the even one",
        "`_rounded`, or `np.rint` where the program asks for even",
        lax.round,
        np.rint,
        (F[4:],),
        "_rounded",
    ),
    Difference(
        "sums of integers",
        "in the array's own type",
        "widened to 64 bits",
        "`dtype=` at each sum, product and cumulative sum",
        lambda x: (jnp.sum(x), jnp.cumsum(x)),
        lambda x: (x.sum(), x.cumsum()),
        (SEVENS,),
        "dtype=np.int32",
    ),
    Difference(
        "sums of narrow floats",
        "in float32, then rounded",
        "in their own type: 256 of 9,000 ones",
        "`dtype=np.float32`, then `.astype`",
        jnp.sum,
        np.sum,
        (HALF,),
        "np.float32",
    ),
    Difference(
        "products of narrow floats",
        "bfloat16 for bfloat16",
        "float32, or an error",
        "summed in float32, then `.astype`",
        lambda x: x[:6].reshape(2, 3) @ x[:6].reshape(3, 2),
        lambda x: x[:6].reshape(2, 3) @ x[:6].reshape(3, 2),
        (HALF,),
        "ml_dtypes.bfloat16",
    ),
    Difference(
        "sorting narrow floats",
        "NaN last",
        "NaN where it was",
        "sorted as float32",
        jnp.sort,
        np.sort,
        (NARROW,),
        "np.float32",
    ),
    Difference(
        "indices that are read",
        "negative ones count from the end, once; what still lies outside is the nearest",
        "IndexError",
        '`np.take(..., mode="clip")` or `_gathered`',
        lambda a: a.ravel()[:5][PLACES],
        lambda a: a.ravel()[:5][PLACES],
        (A,),
    ),
    Difference(
        "`jnp.take`",
        "outside it is NaN (or the least integer)",
        "IndexError",
        "`_gathered(..., fill=)`",
        lambda a: jnp.take(a, PLACES, axis=0),
        lambda a: np.take(a, PLACES, axis=0),
        (A,),
        "fill=np.nan",
    ),
    Difference(
        "indices that are written",
        "what lies outside is dropped",
        "IndexError",
        "`_scattered`",
        lambda a: a.at[PLACES].set(9.0),
        lambda a: _put(a, 9.0),
        (A,),
        "_scattered",
    ),
    Difference(
        "sums at indices",
        "equal ones are all added",
        "`x[i] += v` adds the last alone",
        "`np.add.at` in `_scattered`",
        lambda a: a.at[PLACES % 3].add(1.0),
        lambda a: _put(a, 1.0, add=True),
        (np.concatenate([A] * 4),),
        "np.add",
    ),
    Difference(
        "`segment_sum`",
        "negative segments are dropped",
        "they count from the end",
        "`_scattered`, which drops them",
        lambda x: jax.ops.segment_sum(x, jnp.array([0, -1, 1, 9]), 2),
        lambda x: _added(x),
        (A[0],),
        "_scattered",
    ),
    Difference(
        "slices at an index",
        "moved inside",
        "shorter, or empty",
        "`_sliced`, `_updated`",
        lambda a, i: (lax.dynamic_slice(a, (i, i), (2, 2)), lax.dynamic_update_slice(a, a[:2, :2], (i, i))),
        lambda a, i: (a[i : i + 2, i : i + 2], a),
        (A, np.int32(2**30)),
        "_sliced",
    ),
    Difference(
        "a maximum of nothing",
        "-inf, or the least integer",
        "ValueError",
        "`np.full` of that number",
        lambda a: lax.reduce_max_p.bind(a[:0], axes=(0,), out_sharding=None),
        lambda a: a[:0].max(0),
        (A,),
        "np.full",
    ),
    Difference(
        "`cholesky` of what has no factor",
        "NaN",
        "LinAlgError",
        "`_cholesky`",
        jnp.linalg.cholesky,
        np.linalg.cholesky,
        (BAD,),
        "_cholesky",
    ),
    Difference(
        "`eig` of real matrices",
        "complex, always",
        "real where all eigenvalues are",
        "`_eig`",
        jnp.linalg.eigvals,
        np.linalg.eigvals,
        (BAD,),
        "_eig",
    ),
    Difference(
        "the largest of equal elements",
        "`top_k` takes the first of equal ones, NaN before all",
        "`argsort` from behind takes the last",
        "`_top`",
        lambda a: lax.top_k(a // 2, 2),
        lambda a: (np.sort(a // 2)[:, :1:-1], np.argsort(a // 2)[:, :1:-1]),
        (A,),
        "_top",
    ),
    Difference(
        "loops of which each element ends at its own time",
        "those that have ended stay as they are",
        "one condition for all",
        "`np.where(going, ...)` in a `while np.any(going)`",
        lambda x: jax.vmap(_halves)(x),
        lambda x: x // 2,
        (np.array([1, 40, 7], "i4"),),
        "np.any",
    ),
    Difference(
        "derivatives at kinks",
        "of `abs` at 0 it is 1, by the sign bit of JAX's rule; of ties in `max` a half each",
        "it has none",
        "written out as JAX differentiates",
        jax.grad(lambda x: (jnp.abs(x) + jnp.maximum(x, 0.0)).sum()),
        np.sign,
        (np.array([0.0, -1.0, 2.0], "f4"),),
    ),
    Difference(
        "types of numbers",
        "a Python number takes the array's type, arrays of 64 bits become 32",
        "float64 where a function makes the type",
        "`dtype=` and typed numbers; the entry narrows what it is given",
        lambda x: jnp.where(x > 2, 1, 0.5) + jnp.arange(4),
        lambda x: np.where(x > 2, 1, 0.5) + np.arange(4),
        (A[0],),
    ),
    Difference(
        "keys",
        "Threefry; how it counts depends on `jax_threefry_partitionable`",
        "PCG64",
        "Threefry in NumPy, both ways; a key is its two words",
        lambda raw: (jax.random.uniform(raw, (3,)), jax.random.split(raw)),
        lambda raw: np.random.default_rng(0).random(3),
        (np.array([0, 7], "u4"),),
        "_random_bits",
    ),
    Difference(
        "the bits of total orders",
        "-0 < 0, and NaN has a place",
        "-0 == 0, NaN has none",
        "`_total_order`",
        lambda f: lax.lt_to_p.bind(f, -f),
        lambda f: f < -f,
        (F,),
        "_total_order",
    ),
    Difference(
        "complex numbers of two parts",
        "each part as it is",
        "`x + 1j * y` makes NaN of infinities",
        "`_complex`",
        lambda f: lax.complex(f[4:], f[:4]),
        lambda f: (f[4:] + 1j * f[:4]).astype("c8"),
        (F,),
        "_complex",
    ),
    Difference(
        "overflow, division by zero, NaN",
        "silent",
        "RuntimeWarning",
        '`@np.errstate(all="ignore")` on the entry',
        lambda f: (jnp.exp(f), jnp.log(f), 1 / f),
        lambda f: (np.exp(f), np.log(f), 1 / f),
        (F,),
        "np.errstate",
    ),
]

# What is not kept, and said by the proof: no rounding makes these the same.
NOT_KEPT = (
    (
        "convolutions of infinities, beside padding or with a dilated input",
        "what stands for the zeros in between is multiplied with them here and not there, and 0 times infinity is NaN",
    ),
    (
        "complex numbers with an infinity in a part, quotients by 0 and those of which a part overflows",
        "NumPy and XLA differ in which parts are NaN then, which the proof takes for rounding",
    ),
    ("subnormal numbers", "XLA on a CPU makes zeros of them, NumPy has them"),
    ("`max(-0., 0.)`", "0. in JAX; in NumPy it depends on the order of the two"),
    (
        "the last digits of `exp`, `tanh` and the like, and of sums",
        "both are right to a few units in the last place; the proof says how many",
    ),
    (
        "`x**0.5` and `x**-0.5` of -inf and -0.",
        "JAX raises to a power and gives inf and 0.; NumPy takes a root and gives NaN and -0.",
    ),
    ("`sqrt` of a complex number below its branch cut, `-2.5-0j`", "NumPy goes by the sign of that zero, XLA does not"),
    ("payloads and signs of NaN", "any NaN is as good as any other"),
)
