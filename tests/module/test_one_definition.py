"""One definition for functions that differ in what is counted from sizes, or in a number that is passed elsewhere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import untrace


def sampled(image, places):
    """Bilinear, at places of [-1, 1]."""
    height, width = image.shape
    y = 0.5 * (places[:, 0] + 1.0) * (height - 1)
    x = 0.5 * (places[:, 1] + 1.0) * (width - 1)
    rows = jnp.clip(jnp.floor(y), 0, height - 1).astype(jnp.int32)
    columns = jnp.clip(jnp.floor(x), 0, width - 1).astype(jnp.int32)
    inside = (y >= 0) & (y <= height - 1)
    return jnp.sum(inside * image[rows, columns]) / (height * width)


def test_what_is_counted_from_a_size_is_written_so_where_functions_have_several():
    def program(coarse, fine, places):
        return sampled(coarse, places) + sampled(fine, places)

    args = jnp.ones((8, 7)), jnp.ones((16, 14)), jnp.linspace(-1.0, 1.0, 10).reshape(5, 2)
    text = untrace.decompile(program, sizes="fixed", guard=False)(*args).source
    assert text.count("def sampled") == 1 and "def sampled(image, places):" in text, text
    assert "* (image.shape[0] - 1)" in text and "/ image.size" in text and "(image.shape[-1] - 1)" in text, text


def state_at(orbit, t=0.0):
    rate = jnp.sqrt(orbit["mu"] / orbit["a"] ** 3)
    angle = orbit["mean"] + rate * t
    return orbit["a"] * jnp.stack([jnp.cos(angle), jnp.sin(angle)]) + jnp.tanh(angle)


def test_a_number_may_be_passed_where_an_array_is_elsewhere():
    def moved(orbit, times):
        start = state_at(orbit)
        return jax.vmap(state_at, in_axes=(None, 0))(orbit, times) - start, state_at(orbit, 2.5)

    orbit = {"a": jnp.float32(2.0), "mean": jnp.float32(0.3), "mu": jnp.float32(1.0)}
    found = untrace.decompile(moved, guard=False)(orbit, jnp.linspace(0.0, 1.0, 5))
    assert found.source.count("def state_at") == 1 and found.proof.at_least("hlo"), found.source
    assert "state_at(orbit, 0.0)" in found.source and "state_at(orbit, 2.5)" in found.source, found.source
    assert "t: f32[]." in found.source


def test_a_function_that_is_called_further_in_is_not_hidden_by_another_of_its_name():
    def run(x, y):
        def energy(p):
            return jnp.sum(jnp.sin(p) * y)

        def pressure(q):
            def energy(strain):
                return jnp.sum(jnp.sin(q * (1.0 + strain)) * y)

            return jax.grad(energy)(0.0)

        def outer(s, _):
            q = lax.fori_loop(0, 3, lambda i, q: q - 0.1 * jax.grad(energy)(q), s)
            return q, pressure(q)

        return lax.scan(outer, x - jax.grad(energy)(x), None, length=4)

    d = untrace.decompile(run)(jnp.ones(4), jnp.ones(4))
    assert d.proof.level == "jaxpr", d.proof
    assert d.source.count("def energy(p)") == d.source.count("jax.grad(energy)(q)") == 1, d.source


def test_a_number_is_a_size_only_where_it_is_at_every_call():
    """One text serves the strides 1 at 8 and at 3 channels: `b.shape[-1] // 8` would be 0 for the second."""

    def conv(p, x, stride=1):
        y = lax.conv_general_dilated(x, p["w"], (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        return jnp.tanh(y + p["b"]) * jax.nn.sigmoid(y)

    def net(params, x):
        first = conv(params[0], x)
        return conv(params[2], conv(params[1], first, stride=2)), first

    def layer(n, m):
        return {"w": jnp.ones((3, n, m)) / n, "b": jnp.zeros(m)}

    params, x = [layer(4, 8), layer(8, 16), layer(16, 3)], jnp.linspace(0.0, 1.0, 48).reshape(2, 6, 4)
    found = untrace.decompile(net, sizes="fixed")(params, x)
    assert found.source.count("def conv") == 1 and "// 8" not in found.source, found.source
    jax.tree.map(np.testing.assert_array_equal, jax.jit(found)(params, x), jax.jit(net)(params, x))


def convolved(x, kernel, stride=1):
    y = lax.conv_general_dilated(x, kernel, (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return jnp.tanh(y - jnp.mean(y, axis=-1, keepdims=True))


def test_a_stride_is_no_part_of_a_size():
    """24 // 12 and 12 // 12 say nothing of 2 and 1."""
    x, kernel = jnp.ones((3, 24, 8)) * jnp.arange(8), jnp.ones((3, 8, 8)) / 9
    found = untrace.decompile(lambda x, k: convolved(convolved(x, k, 2), k, 1), sizes="fixed", guard=False)(x, kernel)
    assert "def convolved(x, kernel, stride):" in found.source and "//" not in found.source, found.source
