"""Derivatives of library functions of several results: `jax.vjp` with an auxiliary one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import untrace

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)


def _source(fn, *args):
    d = untrace.decompile(fn)(*args)
    assert d.proof.at_least("hlo")
    for got, expected in zip(jax.tree.leaves(d(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return d.source


def _flat(text):
    """Without the breaks of long lines."""
    return "".join(text.split())


def _gate(x):
    gates = jnp.tanh(x)
    weights, experts = lax.top_k(gates, 2)
    return (weights**2 * experts).sum()


def test_the_places_of_the_largest_of_each_row_are_auxiliary():
    source = _source(jax.grad(_gate), X)
    call = "weights, top_k_vjp, experts = jax.vjp(lambda x: lax.top_k(x, 2), gates, has_aux=True)"
    assert _flat(call) in _flat(source)
    assert "top_k_vjp(" in source and ".at[" not in source


def test_places_that_nobody_reads():
    source = _source(jax.grad(lambda x: jnp.sin(lax.top_k(jnp.cos(x), 2)[0]).sum()), X)
    assert "top_k_vjp, _ = jax.vjp(lambda x: lax.top_k(x, 2), jnp.cos(x), has_aux=True)" in source


def test_the_largest_of_one_row_are_written_out():
    source = _source(jax.grad(_gate), X[0])
    assert "vjp" not in source and "lax.top_k(" in source


def test_the_sign_of_a_determinant_is_auxiliary():
    def loss(x, scale):
        sign, logdet = jnp.linalg.slogdet(jnp.sin(x))
        return jnp.cos(logdet * scale) + sign

    source = _source(jax.value_and_grad(loss), jnp.eye(3) + 0.1, jnp.float32(2.0))
    call = "jax.vjp(lambda x: jnp.linalg.slogdet(x)[::-1], jnp.sin(x), has_aux=True)"
    assert _flat("logdet, slogdet_vjp, sign = " + call) in _flat(source)
    assert "custom_linear_solve" not in source


def test_a_cotangent_that_is_a_number():
    source = _source(jax.value_and_grad(lambda x: -0.5 * jnp.linalg.slogdet(x)[1]), jnp.eye(3) + 0.1)
    assert "slogdet_vjp(np.float32(-0.5))[0]" in source and "custom_linear_solve" not in source


_LIBRARY = """
def scored(logits, x, y):
    return jax.nn.log_softmax(logits) * x + jnp.sin(jax.nn.log_softmax(logits) * y)
"""


def _library():
    names = {"jax": jax, "jnp": jnp}
    exec(compile(_LIBRARY, "/lib/site-packages/library/scored.py", "exec"), names)
    return names["scored"]


def test_equal_pullbacks_of_one_expression_are_one():
    """A library's function computes the same twice, and the author once more for himself."""
    scored = _library()

    def loss(w, x, y):
        logits = jnp.exp(w)
        return (scored(logits, x, y) * jax.nn.log_softmax(logits)).sum()

    source = _source(jax.grad(loss), X, X + 1.0, X - 1.0)
    assert source.count("jax.vjp(jax.nn.log_softmax, logits)") == 2, source
    assert source.count("log_softmax_vjp(") == 2 and source.count("log_softmax_vjp_2(") == 1, source


def test_equal_pullbacks_in_the_function_of_a_loop():
    scored = _library()

    def loss(w, xs):
        step = lambda c, x: (c + scored(jnp.exp(w * x), x, c), None)  # noqa: E731
        return lax.scan(step, w, xs)[0].sum()

    d = untrace.decompile(jax.grad(loss))(X[0], X)
    np.testing.assert_allclose(d(X[0], X), jax.grad(loss)(X[0], X), rtol=1e-5)
    assert d.proof.at_least("bits")
