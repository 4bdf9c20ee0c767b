"""Derivatives that the author called stay calls; see src/untrace/capture/calls/differentiated.py."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivative_texts import PARAMS, W, X, Y, layer, loss, step, written
from jax import grad, jacfwd, lax, linear_transpose

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_train_step():
    text = written(step, PARAMS, X, Y, level="jaxpr")
    assert "value, grads = jax.value_and_grad(loss)(params, x, y)" in text, text
    assert "\ndef loss(params, x, y):" in text and "backward" not in text


def gated(params, x, y):
    """Values that are used more than once: their cotangents are added up in JAX's order."""
    hidden = layer(params, x)
    hidden = hidden * (hidden + 1.0)
    return jnp.mean(hidden * hidden) + jnp.sum((hidden - y) * jnp.tanh(hidden)) / hidden.size


@pytest.mark.parametrize("transform", [jax.value_and_grad, jax.grad, jax.jacrev, jax.jacfwd])
def test_values_that_are_used_more_than_once(transform):
    def trained(params, x, y):
        found = transform(gated)(params, x, y)
        return jax.tree.map(jnp.cos, found)

    text = written(trained, PARAMS, X, Y, level="jaxpr")
    assert f"jax.{transform.__name__}(gated)(params, x, y)" in text, text


def last_position(masses, positions):
    """Differences of pairs, of which each position has two cotangents: after that of what it is used in later."""

    def move(positions, _):
        offsets = positions[None, :, :] - positions[:, None, :]
        inverse = 1.0 / (jnp.sum(offsets**2, axis=-1) + 1.0) ** 1.5
        return positions + 0.1 * jnp.einsum("ij,ijd,j->id", inverse, offsets, masses), None

    final, _ = lax.scan(move, positions, length=5)
    return jnp.sum(final**2)


def test_differences_of_pairs():
    def sensitivity(masses, positions):
        return 2.0 * jax.grad(last_position)(masses, positions)

    text = written(sensitivity, X[:, 0], X, level="jaxpr")
    assert "jax.grad(last_position)(masses, positions)" in text and "positions[None] - positions[:, None]" in text, text


def test_an_edit_of_the_loss_changes_what_is_trained():
    text = written(step, PARAMS, X, Y)
    edited = text.replace("error**2", "jnp.abs(error)")
    assert edited != text
    space: dict[str, Any] = {}
    exec(edited, space)

    def other(params, x, y):
        return jnp.mean(jnp.abs(layer(params, x) - y))

    value, grads = jax.value_and_grad(other)(PARAMS, X, Y)
    new, found = space["step"](PARAMS, X, Y)
    np.testing.assert_allclose(found, value, rtol=1e-6)
    np.testing.assert_allclose(new["w"], W - 0.1 * grads["w"], rtol=1e-5)


def test_a_loss_that_is_computed_and_differentiated_is_one_function():
    def both(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return value + loss(params, 2.0 * x, y), grads

    text = written(both, PARAMS, X, Y)
    assert text.count("def loss") == 1 and "loss(params, 2.0 * x, y)" in text, text


def test_results_beside_the_value_with_several_arguments():
    def objective(params, x, y):
        h = layer(params, x)
        return jnp.sum((h - y) ** 2), {"h": h, "best": jnp.argmax(h)}

    def fn(params, x, y):
        (value, metrics), (d_x, d_params) = jax.value_and_grad(objective, argnums=(1, 0), has_aux=True)(params, x, y)
        return value, metrics, d_x, d_params

    text = written(fn, PARAMS, X, Y)
    assert (
        "(value, metrics), (d_x, d_params) = jax.value_and_grad(\n        objective, argnums=(1, 0), has_aux=True"
        in text
    ), text


def test_a_gradient_alone_bound_early():
    def fn(x):
        return grad(lambda z: jnp.sum(jnp.sin(z) * z))(x)

    assert "jax.grad(" in written(fn, X)


def test_partials_decorators_and_methods():
    class Model(NamedTuple):
        w: Any

        def energy(self, x):
            return jnp.sum(jnp.cos(x @ self.w))

    @functools.partial(jax.value_and_grad, has_aux=True)
    def decorated(w, x):
        return jnp.sum((x @ w) ** 2), x @ w

    def scaled(scale, w, x):
        return scale * jnp.sum(jnp.sin(x @ w))

    def fn(model, x):
        force = jax.grad(Model.energy)(model, x)
        (value, out), d_w = decorated(model.w, x)
        return force, value, out, d_w, jax.grad(functools.partial(scaled, 3.0))(model.w, x)

    text = written(fn, Model(W), X)
    assert "jax.grad(energy)(model, x)" in text and "jax.value_and_grad(decorated, has_aux=True)" in text, text
    assert "jax.grad(scaled)" in text, text


def test_closures_over_traced_values():
    def fn(params, x, y):
        target = jnp.sin(y)

        def objective(w):
            return jnp.sum((x @ w - target) ** 2)

        return jax.grad(objective)(params["w"])

    text = written(fn, PARAMS, X, Y)
    assert "    def objective(w):" in text and "jax.grad(objective)(" in text, text


def test_what_is_known_while_it_is_traced_stays_known():
    def power(x, n, kind="plain"):
        for _ in range(n):
            x = x * jnp.sin(x)
        return jnp.sum(x) if kind == "plain" else jnp.prod(x)

    def fn(x):
        return jax.grad(power)(x, 2) + jax.grad(power)(x, 3, kind="other")

    assert written(fn, X[0]).count("jax.grad(") == 2


def test_random_keys_and_integers():
    def noisy(w, key, index):
        return jnp.sum(jnp.sin(w) * jax.random.normal(key, w.shape)) * w[index, 0]

    def fn(w, key, index):
        return jax.value_and_grad(noisy)(w, key, index)

    assert "jax.value_and_grad(noisy)(w, key, index)" in written(fn, W, jax.random.key(0), 1)


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.5, 0.5),))


def test_custom_rules_under_the_call():
    def fn(x):
        return jax.grad(lambda z: jnp.sum(clipped(z) ** 2))(x)

    text = written(fn, X)
    assert "jax.grad(" in text and "defvjp" in text, text


def test_a_print_under_the_call(capsys):
    def noisy(x):
        jax.debug.print("sum {}", x.sum())
        return jnp.sum(x**2)

    def fn(x):
        return jax.grad(noisy)(x)

    d = untrace.decompile(fn)(X)
    assert "jax.grad(noisy)(x)" in d.source and "jax.debug.print(" in d.source, d.source
    space: dict[str, Any] = {}
    exec(d.source, space)
    np.testing.assert_array_equal(space["fn"](X), 2.0 * X)
    jax.effects_barrier()
    assert "sum" in capsys.readouterr().out


def test_per_example_gradients():
    def example_loss(params, x, y):
        return loss(params, x[None], y[None])

    def fn(params, x, y):
        grads = jax.vmap(jax.grad(example_loss), in_axes=(None, 0, 0))(params, x, y)
        return jax.tree.map(lambda g: jnp.clip(g, -1.0, 1.0).sum(0), grads)

    assert "jax.vmap(jax.grad(example_loss), in_axes=(None, 0, 0))(params, x, y)" in written(fn, PARAMS, X, Y)


def test_inside_loops_branches_and_jitted_functions():
    @jax.jit
    def jitted(params, x, y):
        return step(params, x, y)[0]

    def fn(params, x, y):
        params, values = lax.scan(lambda p, _: step(p, x, y), params, length=3)
        params = lax.while_loop(lambda p: loss(p, x, y) > 0.9, lambda p: jitted(p, x, y), params)
        return lax.cond(y[0, 0] > 0, lambda p: jitted(p, x, y), lambda p: p, params), values

    text = written(fn, PARAMS, X, Y)
    assert text.count("jax.value_and_grad(loss)(") == text.count("jax.grad(loss)(") == text.count("def loss(") == 1, (
        text
    )


def test_inside_what_is_mapped_and_loops():
    def log_density(z):
        return -0.5 * jnp.sum(z**2) + jnp.sum(jnp.cos(z))

    def fn(starts):
        def chain(z):
            return lax.scan(lambda z, _: (z + 0.1 * jax.grad(log_density)(z), log_density(z)), z, length=3)

        return jax.vmap(chain)(starts)

    assert "jax.grad(log_density)(" in written(fn, X)


def test_inside_shard_map():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def local(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        return jax.tree.map(lambda g: lax.pmean(g, "d"), grads)

    def fn(params, x, y):
        rows = spec("d")
        return jax.shard_map(local, mesh=mesh, in_specs=(spec(), rows, rows), out_specs=spec())(params, x, y)

    d = untrace.decompile(fn)(PARAMS, X, Y)
    assert d.proof.at_least("bits")
    assert "jax.grad(loss)(" in d.source, d.source


def test_inside_the_authors_own_rules():
    @jax.custom_vjp
    def root(a):
        return lax.fori_loop(0, 8, lambda _, x: x - (x**3 - a) / (3.0 * x**2), jnp.ones_like(a))

    def forward(a):
        x = root(a)
        return x, (a, x)

    def backward(saved, ct):
        a, x = saved
        slope = jax.grad(lambda x: jnp.sum(x**3 - a))(x)
        return (ct / slope,)

    root.defvjp(forward, backward)
    text = written(lambda a: root(a) + 1.0, X[0] + 3.0, level="bits")
    assert "defvjp" in text and "jax.grad(" in text, text


def test_products_with_a_hessian():
    def fn(params, v, x, y):
        def objective(p):
            return loss(p, x, y)

        return jax.jvp(jax.grad(objective), (params,), (v,))[1]

    assert "jax.jvp(jax.grad(objective), (params,), (v,))" in written(fn, PARAMS, PARAMS, X, Y)


def test_adaptation_inside_what_is_trained():
    def adapted(params, x, y):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y))

    def meta_loss(params, xs, ys):
        return jnp.mean(jax.vmap(lambda x, y: loss(adapted(params, x, y), x, y))(xs, ys))

    def fn(params, xs, ys):
        return jax.value_and_grad(meta_loss)(params, xs, ys)

    text = written(fn, PARAMS, np.stack([X, X + 1]), np.stack([Y, Y]))
    assert "jax.value_and_grad(meta_loss)(params, xs, ys)" in text and "jax.grad(loss)(" in text, text


def test_pullbacks_that_are_called_several_times_and_closed_over():
    def fn(w, x, y):
        def residuals(w):
            return jnp.tanh(x @ w) - y

        r, pullback = jax.vjp(residuals, w)
        _, pushed = jax.linearize(residuals, w)
        (d_w,) = pullback(r)

        def product(v):
            return pullback(pushed(v))[0] + 0.1 * v

        return lax.fori_loop(0, 5, lambda _, d: d - 0.01 * (product(d) - d_w), d_w)

    text = written(fn, W, X, Y)
    assert "r, pullback = jax.vjp(residuals, w)" in text and "_, pushed = jax.linearize(residuals, w)" in text, text
    assert "(d_w,) = pullback(r)" in text and "i32[]" not in text, text


def test_a_pullback_in_a_loop_after_a_loop_of_the_same_function():
    def block(p, x):
        h = jnp.tanh(x @ p["w"] + p["b"])
        return x + jnp.sin(h) @ p["v"]

    def encode(blocks, x):
        for p in blocks:
            x = block(p, x)
        return x

    def step(blocks, chunks):
        encoded = jax.lax.map(lambda chunk: encode(blocks, chunk), chunks)

        def accumulate(grads, xs):
            chunk, cotangent = xs
            _, pullback = jax.vjp(lambda blocks: encode(blocks, chunk), blocks)
            return jax.tree.map(jnp.add, grads, pullback(cotangent)[0]), None

        return jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, blocks), (chunks, encoded))[0]

    blocks = [{"b": i + Y[0], "v": i - W.T, "w": W} for i in range(3)]
    text = written(step, blocks, np.stack([X, X + 1.0]))
    assert text.count("block(") == 2 and text.count("def encode(") == 1 and "encode(blocks, chunk)" in text, text
    assert text.count("jax.vjp(") == 1


@pytest.mark.parametrize("scale, level", [(0.5, "jaxpr"), (np.float32(0.5), "hlo")])
def test_numbers_that_a_pullback_in_a_loop_holds(scale, level):
    def adjoint(t, z):
        _, pullback = jax.vjp(lambda z: scale * jnp.tanh(t * z) + jax.nn.gelu(z) / 3.0, z)
        return lax.fori_loop(0, 4, lambda i, u: z + pullback(u)[0], z)

    text = written(adjoint, W[0, 0], W[1], level=level)
    assert "jax.vjp(" in text and "pullback(u)" in text, text


def test_transposed_functions_that_are_called_later():
    def blur(x):
        return jnp.convolve(x, jnp.array([0.25, 0.5, 0.25]), mode="same") * 2.0

    def deblurred(x, y):
        blur_t = linear_transpose(blur, x)
        (u,) = blur_t(y)
        return u + blur_t(u + x)[0]

    text = written(deblurred, X[:, 0], X[:, 1])
    assert "blur_t = jax.linear_transpose(blur, x)" in text and "(u,) = blur_t(y)" in text, text
    assert text.count("blur_t(") == 2, text

    def solved(w, y):
        def apply(x):
            return jnp.tanh(w) @ x

        transposed = jax.linear_transpose(apply, jax.ShapeDtypeStruct((4,), jnp.float32))

        def step(x, _):
            (d,) = transposed(apply(x) - y)
            return x - 0.1 * d, jnp.sum(d)

        return lax.scan(step, y, None, length=4)

    text = written(solved, X @ X.T, X[:, 0])
    assert "lambda x: apply(w, x), jax.ShapeDtypeStruct((4,), jnp.float32)" in text, text
    assert "(d,) = transposed(" in text, text

    def in_a_jitted_function(w, y):
        def apply(x):
            return jnp.tanh(w) * x

        transposed = jax.linear_transpose(apply, y)
        return jax.jit(lambda z: transposed(z)[0] + z)(y)

    assert "jax.linear_transpose(apply, y)" in written(in_a_jitted_function, X, X + 1)


def test_transposed_functions_of_trees_and_numbers():
    def split(pair, shift):
        return {"sum": pair["left"] + pair["right"][0] + shift, "difference": pair["left"] - pair["right"][0]}

    def fn(pair, y):
        split_t = jax.linear_transpose(split, pair, pair["left"])
        d_pair, d_shift = split_t({"sum": y, "difference": 2 * y})
        return jax.tree.map(lambda p, d: p - d, pair, d_pair), d_shift

    text = written(fn, {"left": X, "right": (Y[:, :1],)}, X + 1)
    assert 'split_t = jax.linear_transpose(split, pair, pair["left"])' in text, text
    assert re.search(r"d_pair, d_shift = split_t\(\{.*y.*\}\)", text), text
    text = written(lambda y: jax.linear_transpose(lambda x: 3.0 * x, 1.0)(y)[0], np.float32(2))
    assert "jax.linear_transpose(function, 0.0)(y)" in text, text
    mapped = written(lambda xs: jax.vmap(lambda x: jax.linear_transpose(jnp.cumsum, x)(x)[0])(xs), X)
    assert "jax.linear_transpose(cumsum, x)(x)" in mapped and "jax.vmap(one)(xs)" in mapped, mapped


def test_a_transposed_function_is_differentiated():
    def energy(x):
        (u,) = jax.linear_transpose(lambda v: jnp.cumsum(v) * 0.5, x)(x)
        return jnp.sum(u**4)

    text = written(lambda x: x - jax.grad(energy)(x), X[0])
    assert "jax.grad(energy)(x)" in text and "jax.linear_transpose(" in text, text


def test_a_transposed_function_of_integers_is_written_out():
    d = untrace.decompile(lambda k: jax.linear_transpose(lambda v: 2 * v, k)(k))(np.arange(3))
    assert "linear_transpose" not in d.source and any("derivatives" in note for note in d.notes), d.notes


def test_jacobians_and_hessians_bound_early():
    def dynamics(state, u):
        return {"q": state["q"] + 0.1 * jnp.tanh(state["v"]), "v": state["v"] + u}

    def fn(x):
        state = {"q": x[0], "v": x[1]}
        return jacfwd(dynamics, argnums=(0, 1))(state, x[2]), jax.hessian(lambda z: jnp.sum(jnp.tanh(z) ** 2))(x[0])

    text = written(fn, X)
    assert "jax.jacfwd(dynamics, argnums=(0, 1))" in text and "jax.hessian(" in text, text


def test_what_is_handed_over_is_written_out():
    assert "jax.grad" not in written(jax.grad(loss), PARAMS, X, Y)
    assert "jax.grad(loss)(" in written(jax.grad(loss), PARAMS, X, Y, derivatives="called")
    assert "jax.value_and_grad" not in written(step, PARAMS, X, Y, derivatives="written")
    assert "jax.value_and_grad" not in untrace.decompile(step, style="exact")(PARAMS, X, Y).source
    assert "jax.grad(" in written(lambda p, x, y: jax.grad(loss)(p, x, y), PARAMS, X, Y)
    with pytest.raises(untrace.OptionError, match="derivatives='maybe'"):
        untrace.decompile(step, derivatives="maybe")(PARAMS, X, Y)


def test_calls_inside_what_is_handed_over_stay_calls():
    def adapted(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        return loss(jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x, y)

    for handed_over in (jax.grad(adapted), jax.jit(jax.grad(adapted))):
        text = written(handed_over, PARAMS, X, Y)
        assert "grads, pullback = jax.vjp(lambda params: jax.grad(loss)(params, x, y), params)" in text, text
        assert text.count("pullback(") == 1, text

    def product(a, b):
        d_a, d_b = jax.grad(lambda a, b: jnp.sum(jnp.sin(a) * b**2), argnums=(0, 1))(a, b)
        return jnp.sum(d_a * d_b)

    text = written(jax.value_and_grad(product, argnums=(0, 1)), X, X + 1)
    assert "(d_a, d_b), pullback = jax.vjp(jax.grad(function, argnums=(0, 1)), a, b)" in text, text


def test_closures_and_results_beside_inside_what_is_handed_over():
    def fn(x, w):
        def energy(z):
            h = jnp.tanh(w * z)
            return jnp.sum(h**2), {"h": h}

        (value, aux), grads = jax.value_and_grad(energy, has_aux=True)(x)
        return value + jnp.sum(aux["h"]) + jnp.sum(grads * w)

    text = written(jax.grad(fn), X[0], X[1])
    assert "pullback = jax.vjp(jax.value_and_grad(energy, has_aux=True), x)" in text, text

    def of_what_it_closes_over(w, x):
        return jnp.sum(jax.grad(lambda z: jnp.sum(jnp.tanh(w * z) ** 2))(x) ** 2)

    text = written(jax.grad(of_what_it_closes_over), X[0], X[1])
    assert "grads, pullback = jax.vjp(gradient, w)" in text, text
    assert "return jax.grad(lambda z: (jnp.tanh(w * z) ** 2).sum())(x)" in text, text


def test_calls_inside_what_is_handed_over_that_do_not_come_back_are_written_out():
    def in_a_loop(x):
        step = lambda _, z: z - 0.1 * jax.grad(lambda z: jnp.sum(jnp.sin(z)))(z)  # noqa: E731
        return jnp.sum(lax.fori_loop(0, 3, step, x))

    assert "jax.vjp(" not in written(jax.grad(in_a_loop), X[0])

    def by_a_pullback(x):
        y, pullback = jax.vjp(lambda z: jnp.sum(jnp.sin(z) ** 2), x)
        return jnp.sum(pullback(y)[0])

    d = untrace.decompile(jax.grad(by_a_pullback))(X[0])
    assert "jax.vjp(" not in d.source and any("1 of 1 derivatives" in note for note in d.notes), d.notes
    assert not untrace.decompile(jax.grad(loss))(PARAMS, X, Y).notes


def test_a_function_with_a_state_is_the_one_that_was_traced_first():
    calls = iter(range(100))

    def counted(x):
        return jnp.sum(jnp.sin(x)) * next(calls)

    def fn(x):
        return jax.grad(counted)(x)

    d = untrace.decompile(fn)(X)
    assert d.proof.at_least("bits")
    space: dict[str, Any] = {}
    exec(d.source, space)
    np.testing.assert_allclose(space["fn"](X), 0.0 * np.cos(X), atol=0)


def test_a_call_that_does_not_come_back_is_written_out_and_the_others_stay():
    seen = []

    def twice(x):  # another function each time
        seen.append(1)
        return jnp.sum(jnp.sin(x)) if len(seen) % 2 else jnp.sum(jnp.cos(x))

    def fn(params, x, y):
        return jax.grad(twice)(x), jax.grad(loss)(params, x, y)

    d = untrace.decompile(fn)(PARAMS, X, Y)
    assert d.proof.at_least("bits")


_ALONE = """
import sys
sys.path[:0] = {folders!r}
import jax, numpy as np, untrace, test_derivatives as t
if {before}:
    jax.jit(t.step)(t.PARAMS, t.X, t.Y), jax.grad(t.loss)(t.PARAMS, t.X, t.Y)
print(untrace.decompile(t.step)(t.PARAMS, t.X, t.Y).source)
"""


def test_what_jax_remembers_decides_nothing():
    texts = set()
    for seed, before in (("1", False), ("2", True), ("3", True)):
        code = _ALONE.format(folders=[str(p) for p in Path(__file__).parents[:2]], before=before)
        env = {**__import__("os").environ, "PYTHONHASHSEED": seed}
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        texts.add(found.stdout)
    assert len(texts) == 1 and "jax.value_and_grad(loss)" in texts.pop()


def test_a_number_that_is_differentiated():
    """JAX converts the number that the author passes while it traces, and leaves an equation for the parameter it is of."""

    def linearised(m):
        matrix, column = jax.jacobian(lambda x, u: x + u * jnp.sin(m * x * u), argnums=(0, 1))(
            jnp.zeros(3), jnp.array(0.5)
        )
        return matrix, column[:, None]

    assert "jax.jacrev(" in written(linearised, jnp.float32(2.0))


def test_arrays_that_a_rule_makes_under_a_derivative_in_a_loop():
    def plain(scale, x):
        return scale * jnp.sum(x[jnp.array([0, 2])] ** 2)

    radius = jax.custom_vjp(plain)

    def backward(residuals, cotangent):
        _, pullback = jax.vjp(plain, *residuals)
        return pullback(cotangent)

    radius.defvjp(lambda scale, x: (plain(scale, x), (scale, x)), backward)

    def fitted(scale, xs):
        def body(scale, _):
            value, slope = jax.value_and_grad(lambda s: jnp.sum(jax.vmap(radius, (None, 0))(s, xs) ** 2))(scale)
            return scale - 0.1 * slope, value

        return lax.scan(body, scale, None, length=3)

    assert "jax.value_and_grad(" in written(fitted, jnp.float32(0.5), X)
