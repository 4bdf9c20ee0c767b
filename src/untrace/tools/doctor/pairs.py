"""What is often written, and how it should be: functions of JAX beside each other.

A pair is used where the first traces to what stands in a program, and kept where the second is shown to be right in more
places there (`repair`). So a pair may be bold: what it must be is the same for real numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from untrace.tools.doctor.array_pairs import ARRAYS
from untrace.tools.doctor.exp_pairs import EXPONENTIALS
from untrace.tools.doctor.pair import TWO, Pair
from untrace.tools.doctor.root_pairs import ROOTS

_BRANCHES = [
    # A zero of a branch that is not taken, times what has no value there.
    Pair("where before a product", "0 times the infinity or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, x, 0.0) * y], lambda m, x, y: jnp.where(m, x * y, 0.0),
         ("bool", "float", "float"), is_derivative=True),
    Pair("where before a product, other branch", "0 times the infinity or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, 0.0, x) * y], lambda m, x, y: jnp.where(m, 0.0, x * y),
         ("bool", "float", "float"), is_derivative=True),
    Pair("where before a quotient", "0 divided by the 0 or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, x, 0.0) / y], lambda m, x, y: jnp.where(m, x / y, 0.0),
         ("bool", "float", "float"), is_derivative=True),
    Pair("where before a quotient, other branch", "0 divided by the 0 or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: jnp.where(m, 0.0, x) / y], lambda m, x, y: jnp.where(m, 0.0, x / y),
         ("bool", "float", "float"), is_derivative=True),
    Pair("negative where before a product", "0 times the infinity or NaN of the branch that is not taken is NaN",
         [lambda m, x, y: -jnp.where(m, x, 0.0) * y], lambda m, x, y: jnp.where(m, -x * y, 0.0),
         ("bool", "float", "float"), is_derivative=True),
    Pair("mask times value", "0 times an infinity is NaN: a mask is no branch",
         [lambda m, y: m.astype(y.dtype) * y], lambda m, y: jnp.where(m, y, 0.0), ("bool", "float"), is_derivative=True),
]  # fmt: skip

# A derivative passes on nothing of a zero, whatever that is multiplied with: put in where there is NaN, not by what is written.
ZERO_FACTOR = Pair("zero before a product", "0 times an infinity or NaN is NaN, where nothing goes on",
                   (), lambda x, y: x * jnp.where(x == 0, 0.0, y), TWO, is_derivative=True)  # fmt: skip
ZERO_DIVIDEND = Pair("zero before a quotient", "0 divided by 0 or NaN is NaN, where nothing goes on",
                     (), lambda x, y: x / jnp.where(x == 0, 1.0, y), TWO, is_derivative=True)  # fmt: skip

PAIRS: Sequence[Pair] = (*EXPONENTIALS, *ROOTS, *_BRANCHES, *ARRAYS)
