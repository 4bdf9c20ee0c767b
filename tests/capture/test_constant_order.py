"""Constants reach the compiler as the original's do: in its order, and held as it holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

A, B, C = (np.arange(1.0, 4.0, dtype=np.float32) * k for k in (1, 2, 3))


def _lowered(function: Callable[..., Any], x: Any) -> list[str]:
    """The StableHLO of a function without its name."""
    return jax.jit(function).lower(x).as_text().splitlines()[1:]


def unused_first(x: Any) -> Any:
    lax.add(C, lax.mul(A, x))  # dropped, but it has met C and A before anything else has
    return lax.mul(lax.add(x, A), lax.add(B, C))


def unused_last(x: Any) -> Any:
    y = lax.add(x, A)
    lax.mul(C, x)
    return lax.mul(y, lax.add(B, C))


def swapped(x: Any) -> Any:
    lax.mul(B, lax.mul(A, x))
    return lax.select(x > 0, A, B)


def in_order(x: Any) -> Any:
    return lax.mul(lax.add(x, A), lax.add(B, C))


@pytest.mark.parametrize("dropped", [unused_first, unused_last, swapped])
def test_the_order_of_constants_is_kept(dropped: Callable[..., Any]) -> None:
    """JAX drops dead equations when it simplifies a jaxpr, and leaves the constants in their order."""
    closed = jax.make_jaxpr(dropped)(A)
    kept = _without_dead_equations(closed)
    d = untrace.from_jaxpr(kept, style="exact")
    assert d.proof.level == "jaxpr"
    assert "lax.optimization_barrier(" in d.source
    assert _lowered(lambda x: d(x)[0], A) == _lowered(dropped, A)
    assert float(jax.grad(lambda x: d(x)[0].sum())(A)[0]) == float(jax.grad(lambda x: dropped(x).sum())(A)[0])


def _without_dead_equations(closed: Any) -> Any:
    from untrace import jax_compat

    jaxpr, _ = jax_compat.open_jaxpr(closed)
    needed, kept = set(jaxpr.outvars), []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            needed.update(v for v in eqn.invars if type(v) is not jax_compat.LITERAL_TYPE)
            kept.append(eqn)
    return jax_compat.rebuilt_jaxpr(closed, kept[::-1], jaxpr.outvars)


def test_nothing_is_mentioned_where_the_order_is_right() -> None:
    d = untrace.decompile(in_order, style="exact")(A)
    assert "optimization_barrier" not in d.source
    assert _lowered(d, A) == _lowered(in_order, A)


@pytest.mark.parametrize(
    "constant",
    [
        np.broadcast_to(np.float32(2), (3,)),
        A[:, None],
        np.broadcast_to(A[:, None], (3, 2)),
        np.broadcast_to(A, (1, 3)),
        np.broadcast_to(np.arange(2000, dtype=np.float32), (2, 2000)),
        np.zeros((1, 3), np.float32),
    ],
    ids=lambda c: f"{c.shape}-{c.strides}",
)
def test_a_repeated_array_is_repeated_in_the_text(constant: np.ndarray) -> None:
    """JAX lowers an array with zero strides as a small constant and a broadcast."""

    def function(x: Any) -> Any:
        return lax.add(lax.broadcast_in_dim(x, constant.shape, ()), constant)

    d = untrace.decompile(function, style="exact")(jnp.float32(1))
    assert d.proof.level == "jaxpr"
    assert _lowered(d, jnp.float32(1)) == _lowered(function, jnp.float32(1))


@pytest.mark.parametrize("loop", ["scan", "while", "cond"])
def test_a_converted_constant_that_nobody_reads_is_met_where_it_was(loop: str) -> None:
    """`lax.convert_element_type` converts an array of NumPy at once: a body would close over another constant."""
    a, b = jnp.asarray(A), jnp.arange(5.0)

    def body(carry: Any) -> Any:
        a.astype("int32")
        return carry[0] + 1, b, a

    def function(x: Any) -> Any:
        carry = x, b, a
        if loop == "scan":
            return lax.scan(lambda c, _: (body(c), None), carry, None, length=3)[0]
        if loop == "while":
            return lax.while_loop(lambda c: c[0] < 3, body, carry)
        return lax.cond(x > 0, body, lambda c: c, carry)

    d = untrace.decompile(function, style="exact")(jnp.float32(1))
    assert d.proof.level == "jaxpr"
    assert _lowered(d, jnp.float32(1)) == _lowered(function, jnp.float32(1))
