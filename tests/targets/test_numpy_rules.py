"""The rules of the NumPy target: small functions whose written text, executed as a module, has the values that JAX has."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rule_cases import (
    ARRAYS,
    CASES,
    DTYPES,
    I32,
    A,
    check,
    check_case,
    check_functions_of_one_number,
    check_functions_of_two_numbers,
    text_of,
)

import untrace


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_number(dtype: np.dtype) -> None:
    check_functions_of_one_number(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_two_numbers(dtype: np.dtype) -> None:
    check_functions_of_two_numbers(dtype)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    check_case(name)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("keys_")])
def test_keys_counted_together(name: str) -> None:
    with jax.threefry_partitionable(False):
        check_case(name)


def test_numbers_of_64_bits() -> None:
    with jax.enable_x64(True):
        key = jax.random.key(42)
        check(lambda k: [jax.random.bits(k, s, "uint64") for s in ((), (3,))], key)
        check(lambda: [jax.random.key_data(jax.random.key(s)) for s in (2**40 + 5, -7)])
        with jax.threefry_partitionable(False):
            check(lambda k: [jax.random.bits(k, s, "uint64") for s in ((), (3,))], key)
        i = I32.astype("i8")
        check(lambda i: (lax.clz(i), jnp.sum(i), jnp.cumsum(i)), i)
        f = np.array([1e30, -1e30, np.nan, 2.0**63, -(2.0**63), 2.0**64])
        check(lambda f: (f.astype("i8"), f.astype("u8")), f)
        check(
            lambda a: (jnp.linalg.qr(a), jnp.fft.fft(a), lax.conv(a[None], a[:3, :3, None], (1,), "SAME")),
            A.astype("f8"),
        )


REFUSED: dict[str, Any] = {
    "reduce": lambda a: lax.reduce(a, np.float32(0), lambda x, y: lax.cond(x > y, jnp.sin, jnp.cos, x) + y, (0,)),
    "rng_bit_generator": lambda raw: lax.rng_bit_generator(jnp.tile(raw, 2), (3,)),
    "eigh": lambda spd: lax.linalg.eigh(spd, subset_by_index=(0, 2)),
    "reduce_precision": lambda a: lax.reduce_precision(a.astype(jnp.float8_e5m2), 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name: str) -> None:
    function = REFUSED[name]
    given = [ARRAYS[word] for word in inspect.signature(function).parameters]
    try:
        jax.eval_shape(function, *given)
    except (NotImplementedError, TypeError):
        pytest.skip("JAX refuses it as well")
    with pytest.raises(untrace.UnsupportedPrimitiveError, match=rf"(?s)`{name}`.*from .*test_numpy_rules\.py:\d+"):
        text_of(function, *given)
