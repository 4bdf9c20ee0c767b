"""Sizes that follow the arguments: numbers are read off shapes where they are those of the trace, and stay where not."""

import importlib.util
import itertools
import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace import jax_compat
from untrace.capture.sizes.correspondence import correspondence
from untrace.capture.sizes.dimensions import tied_dimensions
from untrace.driver import sizes as driver_sizes

_serial = itertools.count()


def f32(*shape):
    return jnp.linspace(0.1, 1.0, int(np.prod(shape)), dtype=jnp.float32).reshape(shape)


def written(function, *args, **options):
    return untrace.decompile(function, guard=False, **options)(*args)


def body(d):
    return d.source[d.source.index("def ") :]


@pytest.mark.parametrize(
    "function, args, text, others",
    [
        (lambda x: x / x.shape[0], (f32(4, 3),), "x / x.shape[0]", [(f32(9, 2),)]),
        (lambda x: x * x.shape[-1] ** -0.5, (f32(4, 8),), "x * x.shape[-1] ** (-0.5)", [(f32(2, 3),)]),
        (lambda x: x.reshape(x.shape[0], -1), (f32(4, 3, 2),), "x.reshape(x.shape[0], -1)", [(f32(5, 3, 2),)]),
        (lambda x: x + jnp.arange(x.shape[0]), (f32(4),), "jnp.arange(x.shape[0])", [(f32(9),)]),
        (lambda x: jnp.zeros(x.shape[:2]) + x[..., 0], (f32(4, 3, 2),), "x[..., 0]", [(f32(5, 6, 2),)]),
        (lambda x: x[: x.shape[0] // 2], (f32(8, 3),), "x[: x.shape[0] // 2]", [(f32(5, 3),), (f32(6, 2),)]),
        (lambda x: jnp.concatenate([x[1:], x[:1]]), (f32(4, 3),), "jnp.concatenate", [(f32(7, 3),)]),
        (lambda x, y: x @ y, (f32(4, 4), f32(4, 4)), "x @ y", [(f32(2, 3), f32(3, 5))]),
        (lambda x: lax.fori_loop(0, x.shape[0], lambda i, s: s + x[i], 0.0), (f32(4),), "x.shape[0]", [(f32(6),)]),
    ],
)
def test_numbers_that_follow_sizes(function, args, text, others):
    d = written(function, *args)
    assert text in body(d).replace("\n", " "), d.source
    for other in (args, *others):
        np.testing.assert_array_equal(jax.jit(d)(*other), jax.jit(function)(*other))


def test_a_mean_s_gradient_divides_by_the_rows():
    def loss(w, x, y):
        return jnp.mean((x @ w - y) ** 2)

    d = written(jax.grad(loss), f32(3), f32(4, 3), f32(4))
    assert "1.0 / x.shape[0] * (2.0 * (x @ w - y)) @ x" in d.source, d.source
    assert "x: f32[n,m]; y: f32[n]" in d.source and ", at m, n = 3, 4 and " in d.source
    assert any("other sizes were not tried" in note for note in d.proof.notes)


def test_the_author_s_words_for_sizes():
    def attention(x, w):
        batch, length, dim = x.shape
        q = (x @ w).reshape(batch, length, 2, -1)
        return jnp.einsum("bihd,bjhd->bhij", q, q) * dim**-0.5 + jnp.zeros((length, length))

    d = written(attention, f32(2, 6, 8), f32(8, 8))
    assert "batch, length, dim = x.shape" in d.source and "f32[batch,length," in d.source, d.source


def test_a_size_has_its_word_in_rules_and_bodies():
    """Functions that are no calls of the program bind the sizes that they need, or see those around them."""

    @jax.custom_vjp
    def whitened(x):
        rows, width = x.shape
        return x @ jnp.linalg.inv(x.T @ x + rows * jnp.eye(width))

    def forward(x):
        return whitened(x), x

    def backward(x, cotangent):
        rows, width = x.shape
        return (cotangent @ jnp.eye(width) / rows + jnp.zeros((rows, width)),)

    whitened.defvjp(forward, backward)

    def descended(x):
        rows = x.shape[0]
        return lax.scan(lambda y, _: (y - 0.1 * rows * jax.grad(lambda z: whitened(z).sum())(y), None), x, None, 3)[0]

    d = written(descended, f32(5, 3))
    assert "x: f32[n,m]" in d.source or "x: f32[rows,width]" in d.source, d.source
    for other in (f32(5, 3), f32(8, 4)):
        np.testing.assert_array_equal(jax.jit(d)(other), jax.jit(descended)(other))


def test_a_loop_over_a_size_stays_what_it_is():
    def unrolled(x):
        total = 0.0
        for i in range(x.shape[0]):
            total = total + jnp.sin(x[i]) * i
        return total

    d = untrace.decompile(unrolled)(f32(4))
    assert "x: f32[4]" in d.source and " at n" not in d.source
    with pytest.raises(TypeError, match="was written for"):
        d(f32(5))


def test_a_decision_on_a_size_is_seen():
    def chunked(x):
        return jnp.sum(x) if x.shape[0] < 100 else jnp.sum(x.reshape(-1)[::2])

    d = untrace.decompile(chunked)(f32(4))
    assert "most=" in d.source, d.source
    np.testing.assert_array_equal(jax.jit(d)(f32(50)), jax.jit(chunked)(f32(50)))
    with pytest.raises(TypeError, match="was written for"):
        d(f32(100))


def test_what_jax_says_is_of_another_size_stays_and_the_rest_follows():
    def predict(params, x):
        if x.shape[-1] != 5:  # as a library does that knows what it was set up with
            raise ValueError(f"this layer takes {5} features, not {x.shape[-1]}")
        hidden = jnp.tanh(x @ params["w"])
        return hidden @ params["v"] / hidden.shape[-1]

    d = written(predict, {"w": f32(5, 8), "v": f32(8, 3)}, f32(4, 5))
    assert "hidden.shape[-1]" in d.source, d.source
    other = {"w": f32(5, 6), "v": f32(6, 2)}, f32(7, 5)
    np.testing.assert_array_equal(jax.jit(d)(*other), jax.jit(predict)(*other))


def test_halves_are_of_even_sizes_and_strides_keep_their_factors():
    def down(x, k):
        return lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    d = untrace.decompile(down)(f32(2, 8, 12, 1), f32(3, 3, 1, 4))
    assert 'multiples={"m": 8, "k": 4}' in d.source, d.source
    np.testing.assert_array_equal(d(f32(3, 16, 4, 1), f32(3, 3, 1, 4)), down(f32(3, 16, 4, 1), f32(3, 3, 1, 4)))
    with pytest.raises(TypeError, match="was written for"):
        d(f32(2, 9, 12, 1), f32(3, 3, 1, 4))


def test_one_row_is_refused_unless_it_was_tried():
    """`jnp.squeeze` takes an axis of one away, and nothing of another size says so."""
    squeezed = lambda x: jnp.squeeze(x * 2.0)  # noqa: E731
    d = untrace.decompile(squeezed)(f32(4, 3))
    with pytest.raises(TypeError, match="was written for"):
        d(f32(1, 3))
    d = untrace.decompile(lambda w, x: x @ w, also=[(f32(3), f32(1, 3))])(f32(3), f32(4, 3))
    assert 'least={"n": 1}' in d.source and d(f32(3), f32(1, 3)).shape == (1,)
    with pytest.raises(untrace.ProofError, match="also"):
        untrace.decompile(squeezed, also=[(f32(1, 3),)])(f32(4, 3))


@pytest.mark.parametrize("rows", [7, 19, 20, 23])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (
            jnp.clip(jnp.arange(x.shape[0]) - (x.shape[0] - 5), 0) * x
        ),  # of 20 rows 15, of 2003 1998: 3 * (n // 3) too
        lambda x: (x[: x.shape[0] // 3], x[:-1]),
        lambda x: x[: (x.shape[0] - 1) // 3],
        lambda x: (x[: x.shape[0] // 4 * 4].sum(), x[-3:]),
        lambda x: x[: x.shape[0] // 12 * 12],  # of 23 rows 12, of 2003 1992
        lambda x: (jnp.zeros(min(x.shape[0], 5)), x),
        lambda x: x * 2 if x.shape[0] > 4 else x * 3,
        lambda x: x * (0.5 if x.shape[0] > 4 else 0.75),
        lambda x: sum(x[i] * x[i + 1] for i in range(min(4, x.shape[0] - 1))),
        lambda x: x.reshape(2, -1).sum(0) if x.shape[0] % 2 == 0 else x,
    ],
)
def test_no_size_is_taken_that_computes_something_else(function, rows):
    """A number may follow a size in several ways that agree at those that were traced, or from some size on only."""
    d = untrace.decompile(function)(jnp.arange(1.0, rows + 1))
    taken = []
    for other in range(2, 41):
        x = jnp.arange(1.0, other + 1)
        try:
            found = d(x)
        except TypeError as error:
            assert "was written for" in str(error)
            continue
        taken.append(other)
        expected = function(x)
        assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected), other
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert rows in taken


def test_places_that_follow_the_end_are_counted_from_there():
    d = untrace.decompile(lambda u: u.at[1:-1, -2].set(u[2:, 0] - u[:-2, -3]) + u[:, 5:6] + u[2, 1:-5].sum())(f32(8, 9))
    assert "u.at[1:-1, -2].set(u[2:, 0] - u[:-2, -3])" in d.source and "u[:, 5:6]" in d.source, d.source
    assert "u[2, 1:-5]" in d.source, d.source
    fixed = untrace.decompile(lambda u: u[1:-1] * 2, sizes="fixed")(f32(8))
    assert "u[1:-1]" in fixed.source


def test_the_smallest_size_is_searched_for():
    d = untrace.decompile(lambda x: x * 2 if x.shape[0] > 4 else x * 3)(jnp.arange(9.0))
    assert 'least={"n": 5}' in d.source and d(jnp.arange(5.0))[4] == 8.0
    with pytest.raises(TypeError, match="n ≥ 5"):
        d(jnp.arange(4.0))


def test_fixed_sizes_on_request():
    d = untrace.decompile(lambda x: x / x.shape[0], sizes="fixed")(f32(4, 3))
    assert "x / 4" in d.source and "x: f32[4,3]" in d.source
    assert "x: f32[4,3]" in untrace.decompile(lambda x: x * 2.0, style="exact")(f32(4, 3)).source
    with pytest.raises(untrace.OptionError, match="sizes"):
        untrace.decompile(lambda x: x, sizes="some")(f32(4))


def test_numbers_that_are_rounded_on_the_way_are_not_guessed():
    """`3.0 * (1 / n)` is rounded twice, and `3.0 / n` once: another bit at some sizes."""
    loss = lambda w, x: 3.0 * jnp.mean(x @ w)  # noqa: E731
    d = written(jax.grad(loss), f32(3), f32(4, 3))
    for rows in (5, 6, 7, 9, 10, 11, 13, 49):
        args = f32(3), f32(rows, 3)
        np.testing.assert_array_equal(jax.jit(d)(*args), jax.jit(jax.grad(loss))(*args))


@pytest.mark.parametrize(
    "function, args, expected",
    [
        (lambda w, x, y: (x @ w - y).sum(), (f32(3), f32(4, 3), f32(4)), [[(0, 0), (1, 1)], [(1, 0), (2, 0)]]),
        (lambda x, y: x + y, (f32(4, 4), f32(4, 4)), [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]),
        (lambda x: x.reshape(2, -1), (f32(4, 3),), []),
        (lambda x: x[0] + x[1] + x[2], (f32(3, 5),), [[(0, 1)]]),
        (
            lambda x, h: lax.scan(lambda c, e: (c + e, c), h, x),
            (f32(5, 3), f32(3)),
            [[(0, 0)], [(0, 1), (1, 0)]],
        ),
        (lambda t, i: t[i], (f32(5, 3), jnp.array([0, 1])), [[(0, 0)], [(0, 1)], [(1, 0)]]),
    ],
)
def test_dimensions_that_are_of_one_size(function, args, expected):
    found = tied_dimensions(jax.make_jaxpr(function)(*args))
    assert sorted(list(t.places) for t in found) == expected


def test_the_command_line(tmp_path):
    from untrace.cli import main

    (tmp_path / "model.py").write_text("import jax.numpy as jnp\n\n\ndef f(x):\n    return x / x.shape[0]\n")
    command = ["write", f"{tmp_path}/model.py:f", "f32[4,3]", "-o"]
    assert main([*command, f"{tmp_path}/one.py", "--also", "f32[6,3]"]) == 0
    assert "x / x.shape[0]" in (tmp_path / "one.py").read_text()
    assert main([*command, f"{tmp_path}/two.py", "--sizes", "fixed", "--no-guard"]) == 0
    text = (tmp_path / "two.py").read_text()
    assert "x / 4" in text and "_checked" not in text
    spec = importlib.util.spec_from_file_location("one", tmp_path / "one.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.f(f32(7, 3)).shape == (7, 3)


def test_sizes_around_a_mapped_function_with_calls_of_the_library():
    def augmented(key, image):
        k_flip, k_zoom = jax.random.split(key)
        image = jnp.where(jax.random.bernoulli(k_flip), image[::-1], image)
        scale, shift, gain = jax.random.uniform(k_zoom, (3,))
        zoom, moved = jnp.stack([scale, scale]), jnp.stack([shift, shift])
        return gain * jax.image.scale_and_translate(image, (4, 4), (0, 1), zoom, moved, "linear")

    def loss(w, batch):
        return jnp.mean(jax.nn.relu(batch @ w) ** 2)

    def step(w, images, key):
        batch = jax.vmap(augmented)(jax.random.split(key, images.shape[0]), images)
        return jax.value_and_grad(loss)(w, batch)

    d = written(step, f32(4), f32(5, 4, 4), jax.random.PRNGKey(0))
    assert "jax.random.split(key, images.shape[0])" in d.source, d.source
    other = f32(4), f32(3, 4, 4), jax.random.PRNGKey(1)
    for found, expected in zip(jax.tree.leaves(d(*other)), jax.tree.leaves(step(*other)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_share_of_a_size_that_a_call_is_passed_under_a_derivative():
    def weighted(s):
        return s * jnp.cumsum(jnp.full((s.shape[0],), 1.0 / s.shape[0]))

    def loss(p, x):
        return (p * jax.vmap(weighted)(x)).sum()

    d = written(lambda p, x: jax.value_and_grad(loss)(p, x), jnp.float32(2.0), f32(4, 5))
    assert "jnp.full(s.shape, 1.0 / s.shape[0])" in d.source and "jax.value_and_grad(loss)" in d.source, d.source
    args = jnp.float32(2.0), f32(3, 7)
    for found, expected in zip(d(*args), jax.value_and_grad(loss)(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_derivative_that_only_the_example_s_sizes_keep_is_worth_more_than_other_sizes(monkeypatch):
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    monkeypatch.setattr(driver_sizes, "_attempt", lambda *_: SimpleNamespace(lost_calls=True))
    d = written(lambda w, x: jax.grad(loss)(w, x) * 2.0, f32(3), f32(4, 3))
    assert "jax.grad(loss)(w, x)" in d.source and "x: f32[4,3]" in d.source, d.source


def test_a_size_of_a_part_of_a_tree_in_a_function_that_is_differentiated():
    class Batch(NamedTuple):
        nodes: jax.Array
        graph: jax.Array
        labels: jax.Array

    def pooled(h, graph, count):
        return jax.ops.segment_sum(jnp.tanh(h) * jnp.cos(h), graph, count)

    def loss(w, batch):
        count = batch.labels.shape[0]
        h = batch.nodes @ w
        return jnp.sum((pooled(h, batch.graph, count) + pooled(h * 2.0, batch.graph, count) - batch.labels) ** 2)

    def step(w, batch):
        return w - 0.1 * jax.grad(loss)(w, batch)

    d = written(step, f32(3), Batch(f32(10, 3), jnp.arange(10) % 4, f32(4)))
    assert "batch.labels.shape[0]" in d.source and "jax.grad(loss)" in d.source, d.source
    other = f32(3), Batch(f32(7, 3), jnp.arange(7) % 2, f32(2))
    np.testing.assert_allclose(d(*other), step(*other), rtol=1e-5)


def test_a_variable_that_a_size_is_read_off_is_not_hidden_in_a_loop():
    class State(NamedTuple):
        a: jax.Array
        b: jax.Array
        c: jax.Array

    def run(start, steps):
        mean = jnp.zeros(start.b.shape)

        def body(state, s):
            g = jax.tree.map(lambda t: jnp.where(jnp.isnan(t), jnp.zeros_like(t), t * s), state)
            mean = 0.1 * g.b
            return State(state.a - g.a, state.b - mean, state.c - g.c), jnp.sum(mean * mean)

        return lax.scan(body, State(start.a, start.b + mean, start.c), steps), mean

    d = written(run, State(jnp.float32(1.0), f32(4), jnp.float32(2.0)), f32(3))
    assert "primitives" not in d.source and "lax.scan(body" in d.source, d.source


def with_blanks(labels):
    return jnp.full(2 * labels.shape[0] + 1, 7).at[1::2].set(labels)


def test_twice_a_size_and_one():
    """Labels with a blank around each; inside of a function, of a mapped one too."""
    found = untrace.decompile(lambda rows: jax.vmap(with_blanks)(rows).sum(axis=0) + with_blanks(rows[0]))(
        jnp.arange(12).reshape(3, 4)
    )
    assert "labels.shape[0] * 2 + 1" in found.source and "rows: i32[n,m]" in found.source, found.source
    rows = jnp.arange(30).reshape(3, 10)
    np.testing.assert_array_equal(found(rows), jax.vmap(with_blanks)(rows).sum(axis=0) + with_blanks(rows[0]))


def _wide(x):
    return x.T @ x.sum(1) / math.sqrt(max(x.shape))


def _rows_per_column(x):
    return x.sum() * (x.shape[0] // x.shape[1])


def _degrees_left(x):
    return (x**2).sum() / max(x.shape[0] - x.shape[1], 1)


def _square_part(x):
    k = min(x.shape)
    return x[:k, :k].sum() * k


@pytest.mark.parametrize("shape", [(7, 3), (8, 5), (3, 6)])
@pytest.mark.parametrize("function", [_wide, _rows_per_column, _degrees_left, _square_part])
def test_a_decision_between_two_sizes_is_seen(function, shape):
    """What is so for more rows than columns is not so for fewer."""
    text = untrace.decompile(function)(jnp.ones(shape))
    for other in [(7, 3), (8, 5), (3, 6), (3, 16), (16, 3), (5, 5)]:
        x = jnp.arange(1.0, math.prod(other) + 1).reshape(other)
        try:
            found = text(x)
        except TypeError:  # refused
            continue
        np.testing.assert_allclose(found, function(x), rtol=1e-5, err_msg=f"{other}\n{text.source}")


def test_constants_that_nothing_reads_are_no_difference():
    """JAX keeps some of them in one trace and none in the next: the sizes that a text says depended on it."""
    closed = jax.make_jaxpr(lambda x: x * jnp.asarray(np.arange(4.0, dtype=np.float32)))(f32(4))
    kept = jax_compat.rebuilt_jaxpr(closed, [], closed.jaxpr.invars)
    assert kept.jaxpr.constvars
    correspondence(kept, jax.make_jaxpr(lambda x: x)(f32(4)))
