"""Where C means something else than JAX, or nothing at all, and how a text in C keeps what JAX means.

`docs/make_targets.py` writes this table into docs/targets.md, tests/targets/test_c_differences.py tries each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: what JAX does, what C does, how the text keeps the first.

    `program` in JAX shows it on `args`, arrays of one length; `plain` is what one would write in C for one element of each
    without a thought, and gives something else, or is what a sanitizer stops. `written`: a word that stands in the text.
    """

    name: str
    jax: str
    c: str
    kept: str
    program: Callable[..., Any]
    plain: str
    args: tuple[np.ndarray, ...]
    written: str = ""


F = np.array([np.nan, 3e9, np.inf, -np.inf, -1.5, 2.5, -0.0, 0.5], "f4")
G = np.array([1.0, np.nan, 2.0, 0.0, np.nan, -2.5, 0.0, 0.5], "f4")
LARGE = np.array([2**31 - 1, -(2**31), 7, -7, 1, 2, 3, 4], "i4")
SEVENS, ZEROS = np.array([7, -7, -(2**31), 9], "i4"), np.array([0, 2, -1, -4], "i4")
BY = np.array([1, 32, 40, 31], "i4")
PLACES = np.array([7, -1, -9, 1], "i4")
SHORT = np.array([200, 100, 255, 1], "u1")

DIFFERENCES = (
    Difference(
        "integers that overflow", "wrap around", "undefined", "`add_T`, `sub_T`, `mul_T`, where the numbers are not known to fit",
        lambda x: x + x, "x + x", (LARGE,), "add_i32",
    ),
    Difference(
        "short integers", "stay short: 200 + 100 of `uint8` is 44", "are computed with as `int`: 300",
        "`add_T` and a cast", lambda x, y: (x + y) // jnp.uint8(2), "(x + y) / 2", (SHORT, SHORT), "add_u8",
    ),
    Difference(
        "floats that no integer is", "the nearest there is; of NaN 0", "undefined", "`to_T`",
        lambda x: x.astype(jnp.int32), "(int)x", (F,), "to_i32",
    ),
    Difference(
        "division of integers by 0", "-1, or all bits", "undefined: mostly the end of the process", "`div_T`",
        lax.div, "x / y", (SEVENS, ZEROS), "div_i32",
    ),
    Difference(
        "the remainder of integers by 0", "the number itself", "undefined", "`rem_T`", lax.rem, "x % y", (SEVENS, ZEROS), "rem_i32",
    ),
    Difference(
        "shifts by all bits and more", "0, or the sign", "undefined", "`shift_left_T`, `shift_right_..._T`",
        lax.shift_left, "x << y", (SEVENS, BY), "shift_left_i32",
    ),
    Difference(
        "logical shifts", "zeros come in, in signed numbers too", "`>>` repeats the sign, as compilers do it",
        "`shift_right_logical_T`", lax.shift_right_logical, "x >> (y & 31)", (SEVENS, np.ones(4, "i4")), "shift_right_logical_i32",
    ),
    Difference(
        "the larger of two floats", "NaN where one is; 0 is more than -0", "`fmaxf` prefers the number to NaN",
        "`max_T`, `min_T`; with a number a comparison that NaN fails", lax.max, "fmaxf(x, y)", (F, G), "max_f32",
    ),
    Difference(
        "the sign of a float", "of NaN it is NaN, of -0 it is -0", "a comparison says 0 of both", "`sign_T`",
        lax.sign, "x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f", (F,), "sign_f32",
    ),
    Difference(
        "rounding", "`lax.round` takes halves away from zero, `jnp.round` to the even one", "one function for each",
        "`round`, `nearbyint`", jnp.round, "roundf(x)", (np.array([0.5, 1.5, 2.5, -2.5], "f4"),), "nearbyintf",
    ),
    Difference(
        "an index outside", "the nearest inside, or what `mode` says; a write is dropped", "undefined", "`clamp_index`, `in_range`",
        lambda x, i: x[i], "(const float[]){1, 2, 3, 4}[y] + 0 * x", (np.arange(1, 5, dtype="f4"), PLACES), "clamp_index",
    ),
    Difference(
        "the absolute value of the smallest integer", "is itself", "`abs` of it is undefined", "`abs_T`",
        jnp.abs, "abs(x)", (LARGE,), "abs_i32",
    ),
)  # fmt: skip

BY_NARROW = np.array([0.1, 1.003, 2.5, 3.1], "f4").astype(jnp.bfloat16)

DIFFERENCES += (
    Difference(
        "`bfloat16` and `float16`", "are types", "has none for them", "their bits are `uint16_t`; `float` computes, and each "
        "result is rounded: `wide_bf16`, `narrow_bf16`", lambda x: x * x, "(uint16_t)(x * x)", (BY_NARROW,), "narrow_bf16",
    ),
)  # fmt: skip

NOT_KEPT = (
    (
        "convolutions of infinities, beside padding or with a dilated input",
        "what stands for the zeros in between is multiplied with them here and not there, and 0 times infinity is NaN",
    ),
    ("subnormal numbers", "XLA on a CPU makes zeros of them, C has them, unless it is told otherwise"),
    (
        "the last digits of `exp`, `tanh` and the like, and of sums",
        "both are right to a few units in the last place; the proof says how many",
    ),
    (
        "products and sums in one operation",
        "with `-march=native` compilers make them where the C standard is not asked for (`-std=gnu11`); what is proven is "
        "compiled with `-ffp-contract=off`",
    ),
    (
        "powers of complex numbers, and `abs`, `atan` and `atanh` of those with NaN in them",
        "a power is right to as many digits as its angle leaves it, here and in XLA, which need not be the same ones; what XLA "
        "gives for NaN beside an infinity is not the same in all its versions",
    ),
    ("payloads and signs of NaN", "any NaN is as good as any other"),
)


def shown(difference: Difference) -> Any:
    """What JAX makes of it."""
    return jax.jit(difference.program)(*difference.args)
