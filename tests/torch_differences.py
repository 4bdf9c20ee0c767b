"""Where PyTorch means something else than JAX, and how a text for PyTorch keeps what JAX means.

`docs/make_targets.py` writes this table into docs/targets.md, tests/targets/test_torch_differences.py tries each row. Nothing
here imports PyTorch: the page is made without it as well.
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
    """One difference: what JAX does, what PyTorch does, how the text keeps the first.

    `program` in JAX shows it on `args`; `plain` is what one would write in PyTorch without a thought, from the module `torch`
    and the arguments as tensors, and gives something else or raises. `fatal`: that it ends the process. `written`: a word
    that stands in the text.
    """

    name: str
    jax: str
    torch: str
    kept: str
    program: Callable[..., Any]
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    written: str = ""
    fatal: bool = False


F = np.array([np.nan, 3e9, np.inf, -np.inf, -1.5, 2.5, -0.0, 0.5], "f4")
A = np.arange(12, dtype="f4").reshape(3, 4) + 1
PLACES = np.array([7, -1, -9, 1], "i4")
SEVENS, ZEROS = np.array([7, -7, -(2**31), 9], "i4"), np.array([0, 2, 5, -4], "i4")
HUGE, SMALL = (
    np.tile(np.array([3e38, -1e38, 7.5, np.inf], "f4"), 16),
    np.tile(np.array([1e-5, -0.1, 2.0, 3.0], "f4"), 16),
)
LEAST, MINUS_ONE = np.array([-(2**31), 6], "i4"), np.array([-1, -1], "i4")
WORDS = np.array([2**32 - 1, 2**31, 5], "u4")
HALF = np.array([1.5, 1, -2, 0.5], ml_dtypes.bfloat16)
BAD = np.array([[1.0, 2.0], [2.0, 1.0]], "f4")
TIES = np.tile(np.array([1.0, 3.0], "f4"), 20)


def _put(x: Any, places: Any, value: float) -> Any:
    out = x.clone()
    out[places] = value
    return out


def _added(x: Any, places: Any) -> Any:
    out = x.clone()
    out[places] += 1.0
    return out


def _halves(x: Any) -> Any:
    return lax.while_loop(lambda v: v > 1, lambda v: v // 2, x)


def _halves_of_one(x: Any) -> Any:
    while x > 1:
        x = x // 2
    return x


DIFFERENCES = [
    Difference(
        "casts to integers",
        "what lies outside becomes the nearest integer, NaN becomes 0",
        "INT_MIN, or what is left of the bits",
        "`_as_integers`",
        lambda f: (f.astype(jnp.int32), f.astype(jnp.uint8)),
        lambda torch, f: (f.to(torch.int32), f.to(torch.uint8)),
        (F,),
        "_as_integers",
    ),
    Difference(
        "integer division",
        "towards zero; by 0 it is -1",
        "by 0 it raises",
        "`_divided`",
        lax.div,
        lambda torch, x, y: torch.div(x, y, rounding_mode="trunc"),
        (SEVENS, ZEROS),
        "_divided",
    ),
    Difference(
        "the least integer divided by -1",
        "itself",
        "ends the process (SIGFPE)",
        "`_divided` negates instead",
        lax.div,
        lambda torch, x, y: torch.div(x, y, rounding_mode="trunc"),
        (LEAST, MINUS_ONE),
        "_divided",
        fatal=True,
    ),
    Difference(
        "integer remainders",
        "of the sign of the first; by 0 it is all",
        "`%` is of the sign of the second; by 0 both it and `fmod` raise",
        "`_remainder`",
        lax.rem,
        lambda torch, x, y: torch.fmod(x, y),
        (SEVENS, ZEROS),
        "_remainder",
    ),
    Difference(
        "float remainders of which the quotient is infinite",
        "exact",
        "NaN, where it computes several elements at once",
        "`_fmod`, in two steps",
        lax.rem,
        lambda torch, x, y: torch.fmod(x, y),
        (HUGE, SMALL),
        "_fmod",
    ),
    Difference(
        "logical shifts",
        "zeros come in, in signed numbers too",
        "`>>` repeats the sign",
        "`_shifted_right`",
        lambda x: lax.shift_right_logical(x, jnp.int32(1)),
        lambda torch, x: x >> 1,
        (SEVENS,),
        "_shifted_right",
    ),
    Difference(
        "unsigned integers of 16 and 32 bits",
        "have arithmetic",
        "have storage alone: `+`, `>>`, `<` raise",
        "wider signed ones inside the text, masked where a result may leave its bits; in and out as JAX has them",
        lambda x, y: (x + y, x >> 1, x < y, x.sum()),
        lambda torch, x, y: (x + y, x >> 1, x < y, x.sum()),
        (WORDS, WORDS[::-1].copy()),
        "0xffffffff",
    ),
    Difference(
        "sign",
        "of -0. it is -0., of NaN it is NaN",
        "0. for both",
        "`_sign`",
        lax.sign,
        lambda torch, f: torch.sign(f),
        (F,),
        "_sign",
    ),
    Difference(
        "rounding",
        "`lax.round` takes halves away from zero",
        "to the even one",
        "`_rounded`, or `torch.round` where the program asks for even",
        lax.round,
        lambda torch, f: torch.round(f),
        (F[4:],),
        "_rounded",
    ),
    Difference(
        "sums of integers",
        "in the array's own type",
        "int64",
        "`dtype=` at each sum, product and cumulative sum",
        lambda x: (jnp.sum(x), jnp.cumsum(x)),
        lambda torch, x: (x.sum(), x.cumsum(0)),
        (SEVENS,),
        "dtype=torch.int32",
    ),
    Difference(
        "places",
        "int32",
        "int64",
        "`.to(torch.int32)`",
        lambda x: (jnp.argmax(x), jnp.argsort(x)),
        lambda torch, x: (x.argmax(), x.argsort()),
        (A[0],),
        "torch.int32",
    ),
    Difference(
        "types that a function makes",
        "int32 and float32",
        "int64, and what `torch.set_default_dtype` says",
        "`dtype=` at each; the entry narrows what it is given",
        lambda x: jnp.arange(4) * jnp.sum(x > 2),
        lambda torch, x: torch.arange(4) * (x > 2).sum(),
        (A[0],),
        "dtype=torch.int32",
    ),
    Difference(
        "types beside an array without axes",
        "its type counts as any array's",
        "it does not count within one kind: bfloat16 beside a float32 stays bfloat16",
        "casts",
        lambda h, x: h + x,
        lambda torch, h, x: h + x,
        (HALF, np.float32(0.1)),
        "torch.float32",
    ),
    Difference(
        "products of two types",
        "of the wider type",
        "RuntimeError",
        "casts",
        lambda h, x: h @ x,
        lambda torch, h, x: h @ x,
        (HALF, A.T),
        "torch.float32",
    ),
    Difference(
        "maxima along an axis",
        "the maxima",
        "`max` and `cummax` give pairs, of maxima and places",
        "`amax`, `.values`",
        lambda x: (x.max(0), lax.cummax(x, 0)),
        lambda torch, x: (x.max(0), x.cummax(0)),
        (A,),
        "amax",
    ),
    Difference(
        "sorting",
        "the sorted array",
        "a pair, of values and places",
        "`.values`",
        lambda x: jnp.sort(x),
        lambda torch, x: x.sort(),
        (F,),
        ".values",
    ),
    Difference(
        "products along several axes",
        "as sums",
        "TypeError: one axis",
        "one after the other",
        lambda t: jnp.prod(t, axis=(0, 2)),
        lambda torch, t: t.prod(dim=(0, 2)),
        (A[None],),
        ".prod(",
    ),
    Difference(
        "a maximum of nothing",
        "-inf, or the least integer",
        "IndexError",
        "`torch.full` of that number",
        lambda a: lax.reduce_max_p.bind(a[:0], axes=(0,), out_sharding=None),
        lambda torch, a: a[:0].amax(0),
        (A,),
        "torch.full",
    ),
    Difference(
        "variances",
        "divided by n",
        "divided by n - 1",
        "written out, or `correction=0`",
        jnp.var,
        lambda torch, a: a.var(),
        (A,),
    ),
    Difference(
        "`gelu`",
        "by `tanh`, where nothing else is said",
        "by `erf`",
        "written out",
        jax.nn.gelu,
        lambda torch, a: torch.nn.functional.gelu(a),
        (A / 4,),
        "torch.tanh",
    ),
    Difference(
        "slices with a negative step",
        "backwards",
        "ValueError",
        "`.flip`",
        lambda a: a[::-1],
        lambda torch, a: a[::-1],
        (A,),
        ".flip(",
    ),
    Difference(
        "indices that are read",
        "negative ones count from the end, once; what still lies outside is the nearest",
        "IndexError",
        "`_gathered`",
        lambda a: a.ravel()[:5][PLACES],
        lambda torch, a: a.ravel()[:5][PLACES.tolist()],
        (A,),
    ),
    Difference(
        "`jnp.take`",
        "outside it is NaN (or the least integer)",
        "IndexError",
        "`_gathered(..., fill=)`",
        lambda a: jnp.take(a, PLACES, axis=0),
        lambda torch, a: a[PLACES.tolist()],
        (A,),
        "fill=torch.nan",
    ),
    Difference(
        "indices that are written",
        "what lies outside is dropped",
        "IndexError",
        "`_scattered`",
        lambda a: a.at[PLACES].set(9.0),
        lambda torch, a: _put(a, PLACES.tolist(), 9.0),
        (A,),
        "_scattered",
    ),
    Difference(
        "sums at indices",
        "equal ones are all added",
        "`x[i] += v` adds the last alone",
        "`index_put(..., accumulate=True)` in `_scattered`",
        lambda a: a.at[PLACES % 3].add(1.0),
        lambda torch, a: _added(a, (PLACES % 3).tolist()),
        (A,),
        "_scattered",
    ),
    Difference(
        "`segment_sum`",
        "negative segments are dropped",
        "`scatter_add` raises",
        "`_scattered`, which drops them",
        lambda x: jax.ops.segment_sum(x, jnp.array([0, -1, 1, 9]), 2),
        lambda torch, x: torch.zeros(2).scatter_add(0, torch.tensor([0, -1, 1, 9]), x),
        (A[0],),
        "_scattered",
    ),
    Difference(
        "slices at an index",
        "moved inside",
        "shorter, or empty",
        "`_sliced`, `_updated`",
        lambda a, i: (lax.dynamic_slice(a, (i, i), (2, 2)), lax.dynamic_update_slice(a, a[:2, :2], (i, i))),
        lambda torch, a, i: (a[i : i + 2, i : i + 2], a),
        (A, np.int32(2**30)),
        "_sliced",
    ),
    Difference(
        "the largest of equal elements",
        "`top_k` takes the first of equal ones",
        "`topk` takes any",
        "`_top`",
        lambda x: lax.top_k(x, 5),
        lambda torch, x: (x.topk(5).values, x.topk(5).indices.int()),
        (TIES,),
        "_top",
    ),
    Difference(
        "`cholesky` of what has no factor",
        "NaN",
        "LinAlgError",
        "`_cholesky`",
        jnp.linalg.cholesky,
        lambda torch, x: torch.linalg.cholesky(x),
        (BAD,),
        "_cholesky",
    ),
    Difference(
        "`eigh` and `svd` of what is not finite",
        "NaN",
        "LinAlgError",
        "`_factored`",
        lambda x: (jnp.linalg.eigh(x * jnp.nan), jnp.linalg.svd(x * jnp.nan)),
        lambda torch, x: (torch.linalg.eigh(x * torch.nan), torch.linalg.svd(x * torch.nan)),
        (BAD,),
        "_factored",
    ),
    Difference(
        "`eigvals` of what is not finite",
        "NaN",
        "may end the process (SIGSEGV, by MKL)",
        "`_factored`, which gives PyTorch another matrix",
        lambda x: jnp.linalg.eigvals(x * jnp.nan),
        lambda torch, x: torch.linalg.eigvals(x * torch.nan),
        (BAD,),
        "_factored",
        fatal=True,
    ),
    Difference(
        "complex numbers of two parts",
        "each part as it is",
        "`x + 1j * y` makes NaN of infinities",
        "`torch.complex`",
        lambda f: lax.complex(f[4:], f[:4]),
        lambda torch, f: f[4:] + 1j * f[:4],
        (F,),
        "torch.complex",
    ),
    Difference(
        "the bits of total orders",
        "-0 < 0, and NaN has a place",
        "-0 == 0, NaN has none",
        "`_total_order`",
        lambda f: lax.lt_to_p.bind(f, -f),
        lambda torch, f: f < -f,
        (F,),
        "_total_order",
    ),
    Difference(
        "loops of which each element ends at its own time",
        "those that have ended stay as they are",
        "a condition of many elements is none",
        "`torch.where(going, ...)` in a `while torch.any(going)`",
        lambda x: jax.vmap(_halves)(x),
        lambda torch, x: _halves_of_one(x),
        (np.array([1, 40, 7], "i4"),),
        "torch.any",
    ),
    Difference(
        "derivatives at kinks, in a program that holds them",
        "of `abs` at 0 it is 1, by the sign bit of JAX's rule",
        "0",
        "written out as JAX differentiates",
        jax.grad(lambda x: jnp.abs(x).sum()),
        lambda torch, x: torch.func.grad(lambda x: x.abs().sum())(x),
        (np.array([0.0, -1.0, 2.0], "f4"),),
    ),
    Difference(
        "keys",
        "Threefry; how it counts depends on `jax_threefry_partitionable`",
        "one hidden generator, Mersenne twister or Philox",
        "Threefry on int64 with masks, both ways; a key is its two words",
        lambda raw: (jax.random.uniform(raw, (3,)), jax.random.split(raw)),
        lambda torch, raw: torch.rand(3),
        (np.array([0, 7], "u4"),),
        "_random_bits",
    ),
]

# What is not kept: no rounding makes these the same, and of the derivatives only the text of `jax.grad` has JAX's.
NOT_KEPT = (
    (
        "convolutions of infinities, beside padding or with a dilated input",
        "what stands for the zeros in between is multiplied with them here and not there, and 0 times infinity is NaN",
    ),
    (
        "`x**0.5` and `x**-0.5` of -inf and -0.",
        "JAX raises to a power and gives inf and 0.; PyTorch takes a root and gives NaN and -0.",
    ),
    (
        "`sqrt` of a complex number below its branch cut, `-2.5-0j`",
        "PyTorch goes by the sign of that zero, XLA does not",
    ),
    ("the derivative of `abs` at 0", "1 in JAX, 0 where PyTorch differentiates the text"),
    (
        "other derivatives where a function has none, where PyTorch differentiates the text",
        "of equal largest numbers in a window JAX takes the first one, PyTorch shares among them; `leaky_relu` at 0 and "
        "`hard_sigmoid` at its corners have the other side's slope, a norm at 0 has 0 and not NaN; what is read outside of an "
        "array is that of the nearest element there, which JAX drops. Derivatives that your function calls are JAX's",
    ),
    (
        "derivatives of choices",
        "`lax.cond` is `torch.where` of both branches: where the one not taken has an infinite derivative, PyTorch's is NaN",
    ),
    (
        "derivatives of eigenvalues, singular values and their vectors at what is not finite",
        "NaN in JAX, 0 where PyTorch differentiates the text",
    ),
    (
        "derivatives of a function that has a rule of yours (`custom_jvp`, `custom_vjp`)",
        "by the rule in JAX, of what the function computes in PyTorch, which the notes of the text say",
    ),
    ("signs of eigenvectors and singular vectors", "each library's LAPACK chooses them"),
    (
        "complex numbers with an infinity in a part, quotients by 0 and those of which a part overflows",
        "PyTorch and XLA differ in which parts are NaN then, which the proof takes for rounding",
    ),
    ("subnormal numbers", "XLA on a CPU makes zeros of them, PyTorch has them"),
    ("`max(-0., 0.)`", "0. in JAX; in PyTorch it depends on the order of the two"),
    (
        "the last digits of `exp`, `tanh` and the like, and of sums",
        "both are right to a few units in the last place; the proof says how many",
    ),
    ("payloads and signs of NaN", "any NaN is as good as any other; `top_k` of bfloat16 takes each for the largest"),
)
