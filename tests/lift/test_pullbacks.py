"""Derivatives of library functions: `jax.vjp` of the function, and a call of what it gives back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

pytestmark = pytest.mark.usefixtures("unguarded", "written_out")

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
COV = jnp.eye(4) + 0.1


def _source(fn, *args):
    d = untrace.decompile(fn)(*args)
    assert d.proof.at_least("bits")
    for got, expected in zip(jax.tree.leaves(d(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return d.source


def test_a_jitted_function_of_one_array():
    source = _source(jax.grad(lambda x: (jax.nn.log_softmax(x) * x).sum()), X)
    assert "log_softmax_vjp = jax.vjp(jax.nn.log_softmax, x)" in source
    assert "log_softmax_vjp(x)[0]" in source  # what comes back to it is its own argument
    assert "exp(" not in source


def test_keywords_stand_in_a_lambda():
    source = _source(jax.grad(lambda x: (jnp.var(x, axis=0) * x[0]).sum()), X)
    assert "var_vjp = jax.vjp(lambda x: x.var(axis=0), x)" in source


@pytest.mark.parametrize("name", ["softmax", "gelu", "logsumexp"])
def test_a_function_that_leaves_its_equations(name):
    function = getattr(jax.nn, name)
    source = _source(jax.grad(lambda x: (jnp.sin(function(jnp.cos(x)))).sum()), X)
    assert f"jax.vjp(jax.nn.{name}, jnp.cos(x))" in source
    assert f"{name}_vjp(" in source


def test_several_arrays_and_a_result_of_several():
    def loss(a, b):
        factor = jnp.linalg.cholesky(a)
        q, r = jnp.linalg.qr(factor)
        return (q * jax.scipy.linalg.solve_triangular(factor, b, lower=True) + r).sum()

    source = _source(jax.grad(loss, argnums=(0, 1)), COV, COV + 1.0)
    assert "cholesky_vjp = jax.vjp(jnp.linalg.cholesky, " in source
    assert "(q, _), qr_vjp = jax.vjp(lambda x: tuple(jnp.linalg.qr(x)), " in source
    assert "jax.scipy.linalg.solve_triangular(x, y, lower=True)" in source


def test_of_two_functions_that_do_the_same_it_is_the_author_s():
    covariance = lambda x: jnp.exp(-((x[:, None] - x) ** 2)) + jnp.eye(4)  # noqa: E731
    source = _source(jax.grad(lambda x: jax.scipy.linalg.cholesky(covariance(x), lower=True).sum()), X[:, 0])
    assert "jax.scipy.linalg.cholesky(x, lower=True)" in source
    assert "jnp.linalg.cholesky" not in source


def test_a_mapped_function_whose_parts_have_rules_is_that_of_the_whole_array():
    """`jax.nn.softplus` calls `jnp.logaddexp`, whose derivative rule was mapped with it."""
    source = _source(jax.grad(lambda x: jax.vmap(lambda row: jax.nn.softplus(row * row).sum())(x).mean()), X)
    assert "jax.vjp(jax.nn.softplus, x * x)" in source and "custom_jvp" not in source, source


def test_a_mapped_function_is_that_of_the_whole_array():
    def loss(x):
        return (jax.vmap(lambda row: jnp.var(row, keepdims=True) * row)(x)).sum()

    source = _source(jax.grad(loss), X)
    assert "jax.vjp(lambda x: x.var(axis=-1, keepdims=True), x)" in source


def test_layers_share_their_functions():
    def layer(w, x):
        return jax.nn.softmax(x @ w) @ w.T + x

    def loss(ws, x):
        for w in ws:
            x = layer(w, x)
        return (x**2).sum()

    source = _source(jax.grad(loss), [jnp.eye(5), jnp.eye(5) + 0.1, jnp.eye(5) - 0.2], X)
    assert source.count("jax.vjp(jax.nn.softmax, ") == 1
    assert source.count("softmax_vjp(") == 2  # the first layer has no cotangent to give back
    assert "def layer(" in source and "def layer_bwd(" in source


def test_a_residual_that_the_program_itself_reads_stays():
    def both(x):
        y, pull = jax.vjp(jax.nn.log_softmax, x)
        return y, pull(jnp.ones_like(y))[0], jax.tree.leaves(pull)

    assert "jax.vjp" not in _source(both, X)


def test_a_short_derivative_is_written_out():
    assert "vjp" not in _source(jax.grad(lambda x: jnp.where(x > 0, jnp.square(x), x).sum()), X)


def test_in_a_loop():
    def loss(w):
        return lax.scan(lambda h, _: (jax.nn.softmax(w @ h), None), jnp.ones(4), length=3)[0].sum()

    _source(jax.grad(loss), COV)


def test_a_choice_and_a_formula_stay_and_a_bound_is_a_pullback():
    source = _source(jax.grad(lambda x: jnp.where(x > 0.1, jnp.tanh(x), 0.0).sum()), X)
    assert "vjp" not in source
    source = _source(jax.grad(lambda x: jnp.sin(jnp.maximum(jnp.cos(x), 0.5)).sum()), X)
    assert "jax.vjp(lambda x: jnp.maximum(x, 0.5), jnp.cos(x))" in source


def test_a_gather_from_each_of_several_arrays():
    index = jnp.array([[0], [2], [1], [0]])
    source = _source(jax.grad(lambda x: jnp.sin(jnp.take_along_axis(x, index, axis=-1)).sum()), X)
    assert "take_along_axis_vjp(" in source and "jax.vmap" not in source


def test_what_is_added_to_another_gradient_of_the_same_array():
    def loss(x):
        y = jnp.cos(x)
        return (jax.nn.softmax(y) * jnp.sin(y)).sum()

    source = _source(jax.grad(loss), X)
    assert "jax.vjp(jax.nn.softmax, " in source and "+" in source


def test_inside_shard_map():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))

    def step(x):
        return jax.grad(lambda x: (jax.nn.log_softmax(x)[:, 0] ** 2).sum())(x)

    spec = jax.sharding.PartitionSpec("data")
    source = _source(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec), X)
    assert "log_softmax_vjp = jax.vjp(jax.nn.log_softmax, " in source


def _conv(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_convolutions():
    images, kernels = (
        jnp.ones((2, 6, 6, 1)),
        [jnp.ones((3, 3, 1, 4)), *[jnp.full((3, 3, 4, 4), 0.1 * i) for i in (1, 2, 3)]],
    )

    def loss(kernels):
        x = images
        for kernel in kernels:
            x = jnp.tanh(_conv(x, kernel))
        return (x**2).sum()

    source = _source(jax.grad(loss), kernels)
    assert "lax.rev" not in source and source.count("lax.conv_general_dilated(") == 2
    assert "for kernel in kernels[1:]:\n        conv_2, conv_vjp_2 = jax.vjp(" in source
    assert "saved.append(conv_vjp_2)" in source


def test_the_largest_numbers_of_windows():
    def loss(x):
        pooled = lax.reduce_window(jnp.sin(x), -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")
        return (pooled**2).sum()

    source = _source(jax.grad(loss), jnp.arange(16.0).reshape(4, 4))
    assert "window_max_vjp = jax.vjp(" in source and ".bind(" not in source


def test_a_function_that_saves_more_than_its_backward_part_does_is_a_pullback():
    def loss(x, y):
        return (jnp.clip(x, 0.8, 1.2) * y).sum()

    text = untrace.decompile(jax.grad(loss))(jnp.linspace(0.5, 1.5, 7), jnp.arange(7.0)).source
    assert "clip_vjp = jax.vjp(lambda x: jnp.clip(x, 0.8, 1.2), x)" in text, text


def test_both_operands_of_a_call_that_leaves_its_equations():
    def loss(x, y):
        ratio = jnp.exp(x)
        return -jnp.mean(jnp.minimum(ratio * y, jnp.sin(ratio) * y))

    x = jnp.linspace(-0.5, 0.5, 7)
    found = untrace.decompile(jax.value_and_grad(loss))(x, jnp.cos(x))
    assert "minimum_vjp = jax.vjp(jnp.minimum, " in found.source, found.source
    assert ", d_scaled_2 = minimum_vjp(" in found.source, found.source


def test_a_pullback_stays_whole_where_its_result_is_computed_twice():
    def both(x, y):
        return jnp.minimum(1.0, x) * y, jnp.minimum(1.0, x) * jnp.sin(y)

    def loss(x, y):
        a, b = both(jnp.exp(x), y)
        return a.sum() + (a * b).sum()

    text = untrace.decompile(jax.grad(loss))(jnp.linspace(-0.5, 0.5, 7), jnp.arange(7.0)).source
    assert "lax.select" not in text and "minimum_vjp" in text, text


def test_a_function_that_saves_a_pullback_alone_gives_it_after_its_result():
    def shifted(w, x):
        z = jax.nn.logsumexp(x @ w, axis=-1, keepdims=True)
        return z + x

    def loss(ws, x):
        a = shifted(ws[0], x)
        b = shifted(ws[1], jnp.sin(a))
        return (shifted(ws[2], jnp.cos(b) * a) ** 2).sum()

    text = _source(jax.grad(loss), [jnp.eye(5) * i for i in (1.0, 2.0, 3.0)], X)
    assert "z, logsumexp_vjp = jax.vjp(" in text
    assert "return z + x, logsumexp_vjp" in text
    assert "a, logsumexp_vjp = shifted(ws[0], x)" in text or "a, logsumexp_vjp = shifted(ws_0, x)" in text, text


def test_a_backward_part_of_one_pullback_is_no_function():
    def activation(x):
        return jax.nn.leaky_relu(x, 0.1)

    def loss(w, x):
        h = activation(activation(x @ w["a"]) @ w["b"])
        return jnp.mean(activation(h @ w["c"]) ** 2)

    weights = {k: jnp.eye(5) * i for k, i in zip("abc", (1.0, 2.0, 3.0), strict=True)}
    text = _source(jax.grad(loss), weights, X)
    assert "def activation_bwd" not in text and text.count("leaky_relu_vjp(d") == 1, text
