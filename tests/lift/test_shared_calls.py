"""Long calls of `lax` that come back again and again have a helper."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")

NHWC = ("NHWC", "HWIO", "NHWC")


def conv(x, w, strides=(1, 1), dilation=(1, 1)):
    return jax.lax.conv_general_dilated(x, w, strides, "SAME", rhs_dilation=dilation, dimension_numbers=NHWC)


def network(weights, x):
    x = jax.nn.relu(conv(x, weights[0]))
    x = jax.nn.relu(conv(x, weights[1], (2, 2)))
    x = jax.nn.relu(conv(x, weights[2]))
    return jnp.sum(conv(x, weights[3], dilation=(2, 2)) ** 2)


WEIGHTS = [jnp.ones((3, 3, 2, 2)) * n for n in (0.1, 0.2, 0.3, 0.4)]
X = jax.random.normal(jax.random.key(0), (1, 6, 6, 2))


def test_convolutions_have_a_helper_with_the_usual_settings():
    found = untrace.decompile(network)(WEIGHTS, X)
    assert found.source.count("lax.conv_general_dilated(") == 1
    assert "def convolve(lhs, rhs, window_strides=(1, 1), rhs_dilation=None):" in found.source
    assert "weights[1], window_strides=(2, 2))" in found.source
    assert found.proof.level == "jaxpr"


def test_transposed_convolutions_have_a_helper_of_their_own():
    def transposed(x, ds):
        found = []
        for act, d in zip((jax.nn.relu, jnp.sin, jnp.cos), ds, strict=True):  # other layers, so that no loop is made
            x = act(conv(x, WEIGHTS[0]))
            found += jax.linear_transpose(lambda w: conv(x, w), WEIGHTS[0])(d)  # noqa: B023
        return found

    args = X, [X * n for n in (1.0, 2.0, 3.0)]
    found = untrace.decompile(transposed, derivatives="written")(*args)
    helpers = re.findall(r"^(?:def )?(conv\w*)(?: = |\()", found.source, re.M)
    assert len(helpers) == 2 and helpers[1].endswith("_bwd"), found.source
    for ours, theirs in zip(jax.jit(found)(*args), jax.jit(transposed)(*args), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_helper_stands_for_a_lambda_that_only_calls_it():
    found = untrace.decompile(jax.grad(network))(WEIGHTS, X)
    assert found.source.count("lax.conv_general_dilated(") == 1 and "_bwd" not in found.source, found.source
    assert " = jax.vjp(convolve, " in found.source
    assert "lambda x, y: convolve(x, y, window_strides=(2, 2))" in found.source
    for ours, theirs in zip(jax.jit(found)(WEIGHTS, X), jax.jit(jax.grad(network))(WEIGHTS, X), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_calls_with_little_in_common_share_that():
    def several(weights, x):
        x = conv(x, weights[0], (1, 1), (2, 2))
        x = conv(x, weights[1], (2, 2))
        x = jax.lax.conv_general_dilated(x, weights[2], (1, 1), ((1, 1), (1, 1)), (2, 2), dimension_numbers=NHWC)
        return conv(x, weights[3], (1, 2))

    found = untrace.decompile(several)(WEIGHTS, X)
    assert "functools.partial(" in found.source and found.source.count('"NHWC", "HWIO", "NHWC"') == 1
    assert found.proof.level == "jaxpr"


def test_two_calls_and_short_ones_stand_where_they_are():
    def two(x):
        return conv(conv(x, WEIGHTS[0]), WEIGHTS[1])

    def short(x):
        return jax.lax.rsqrt(jax.lax.rsqrt(jax.lax.rsqrt(jax.lax.rsqrt(x))))

    assert untrace.decompile(two)(X).source.count("lax.conv_general_dilated(") == 2
    assert untrace.decompile(short)(X).source.count("def ") == 1


def test_usual_keyword_arguments_are_fixed_and_others_passed():
    def solves(a, b):
        lower = jnp.linalg.cholesky(a @ a.T + jnp.eye(4))
        for transposed in (False, True, False, True, False, False, False):
            b = jax.lax.linalg.triangular_solve(lower, b, left_side=True, lower=True, transpose_a=transposed)
        return jax.lax.linalg.triangular_solve(lower.T, b, left_side=True)

    a, b = jnp.arange(16.0).reshape(4, 4), jnp.ones((4, 2))
    found = untrace.decompile(solves)(a, b)
    assert "functools.partial(" in found.source and "left_side=True, lower=True" in found.source
    assert "lower=False" in found.source and found.source.count("transpose_a=True") == 2
    assert found.proof.level == "jaxpr"


def test_rules_that_say_the_same_are_written_once():
    """JAX traces a rule anew wherever its function is called; the functions in it come along each time."""

    def halving(scale):
        @jax.custom_vjp
        def f(x):
            return jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * scale + c, x)

        def f_fwd(x):
            return f(x), x

        def f_bwd(x, d):
            return (jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c * 2.0 + jnp.cos(c), d * x),)

        f.defvjp(f_fwd, f_bwd)
        return f

    def fn(x):
        return halving(2.0)(x) + halving(2.0)(x * x)

    x = jnp.linspace(0.1, 0.9, 3)
    found = untrace.decompile(fn)(x)
    assert found.proof.level == "jaxpr"
    assert found.source.count("def f_bwd(") == 1 and "def f_2" not in found.source, found.source
    gradients = [jax.grad(lambda x, g=g: g(x).sum())(x) for g in (fn, found)]
    assert np.array_equal(*gradients)
