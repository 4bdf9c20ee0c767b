"""Settings of JAX that change a trace: the text is the idiomatic one under each, and proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

SETTINGS = {
    "jax_enable_checks": True,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_enable_x64": True,
    "jax_disable_jit": True,
    "jax_use_simplified_jaxpr_constants": True,
    "jax_check_tracer_leaks": True,
}
# Those under which the programs below are traced to the equations that they are traced to without.
SILENT = {"jax_enable_checks", "jax_numpy_dtype_promotion", "jax_check_tracer_leaks"}
X, H = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
W = np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3)


@contextmanager
def set_to(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.clear_caches()
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)
        jax.clear_caches()


def recurrent(w: Any, xs: Any, h: Any) -> Any:
    """Its gradient has an outer product, which is recognised by a trace of `jnp.outer`."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ w + h)
        return h, h

    return jnp.sum(lax.scan(step, h, xs)[1] ** 2)


def train_step(w: Any, xs: Any, h: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean(jax.nn.softmax(xs @ w + h[None, :]) ** 2)

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, d: p - 0.1 * d, w, gradient), value


def loops(w: Any, xs: Any, h: Any) -> Any:
    scale = np.arange(3.0, dtype=np.float32)

    def body(state: Any) -> Any:
        h, i = state
        return lax.cond(jnp.sum(h) > 0, lambda h: jnp.where(h > 0.5, h * 0.5, h - scale), jax.nn.relu, h), i + 1

    return lax.while_loop(lambda s: s[1] < 5, body, (h, 0)), jax.vmap(jnp.dot)(xs, xs)


PROGRAMS = [jax.grad(recurrent), train_step, loops]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_text_is_idiomatic_and_proven_under_a_setting(setting: str, program: Callable[..., Any]) -> None:
    plain = untrace.decompile(program)(W, X, H)
    with set_to(setting, SETTINGS[setting]):
        found = untrace.decompile(program)(W, X, H)
        expected, got = program(W, X, H), found(W, X, H)
    assert found.proof.at_least("bits")
    assert not any("style exact" in note for note in found.notes), found.notes
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if setting in SILENT:
        assert found.source == plain.source
    # What was recognised under a setting must not be taken for what there is without.
    assert untrace.decompile(program)(W, X, H).source == plain.source


def leaks(x: Any, kept: list[Any] = []) -> Any:  # noqa: B006
    kept.append(x)
    return x


@pytest.mark.parametrize(
    ("setting", "program", "said"),
    [
        ("jax_numpy_rank_promotion", lambda x: x + H, "jax_numpy_rank_promotion='raise'"),
        ("jax_numpy_dtype_promotion", lambda x: x + jnp.arange(3), "jax_numpy_dtype_promotion=strict"),
        ("jax_disable_jit", lambda x: lax.scan(lambda c, a: (c + a, c), 0.0, x[0, :0]), "zero-length scan"),
        ("jax_check_tracer_leaks", leaks, "Leaked trace"),
    ],
)
def test_what_a_setting_forbids_is_said(setting: str, program: Callable[..., Any], said: str) -> None:
    with (
        set_to(setting, SETTINGS[setting]),
        pytest.raises(untrace.CaptureError, match="could not be traced by JAX") as error,
    ):
        untrace.decompile(program)(X)
    assert said in str(error.value)
