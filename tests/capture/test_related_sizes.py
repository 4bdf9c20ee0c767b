"""Sizes that are sums of others, and those that only some of the values let in: written texts in modules of their own."""

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace

_serial = itertools.count()


def f32(*shape):
    return jnp.linspace(0.1, 1.0, int(np.prod(shape)), dtype=jnp.float32).reshape(shape)


def imported(d, tmp_path):
    """The function of a written text, from a file."""
    path = tmp_path / f"written_{next(_serial)}.py"
    path.write_text(d.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, d.name)


def follows(function, tmp_path, args, others):
    """The written text and its function, which gives what the original gives for each of the arguments."""
    d = untrace.decompile(function)(*args)
    written = imported(d, tmp_path)
    for other in (args, *others):
        expected = jax.jit(function)(*other)
        jax.tree.map(np.testing.assert_array_equal, jax.jit(written)(*other), expected)
    return d, written


def lstm(p, h, c, x):
    gates = jnp.concatenate([x, h], -1) @ p["w"] + p["b"]
    i, f, o, u = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_arguments(hidden, width, batch):
    p = {"w": f32(width + hidden, 4 * hidden), "b": f32(4 * hidden)}
    return p, f32(batch, hidden), f32(batch, hidden), f32(batch, width)


def test_the_rows_of_a_weight_are_those_of_what_is_put_together(tmp_path):
    def gru(w, h, xs):
        def step(h, x):
            z = jax.nn.sigmoid(jnp.concatenate([x, h]) @ w["z"])
            h = (1 - z) * h + z * jnp.tanh(jnp.concatenate([x, h]) @ w["n"])
            return h, h

        return lax.scan(step, h, xs)

    def arguments(d, k, t):
        return {"z": f32(k + d, d), "n": f32(k + d, d)}, f32(d), f32(t, k)

    d, written = follows(gru, tmp_path, arguments(4, 4, 5), [arguments(5, 3, 2), arguments(2, 9, 3)])
    assert "sums=" in d.source, d.source
    w, h, xs = arguments(4, 4, 5)
    with pytest.raises(TypeError, match="was written for n = "):
        written({"z": f32(9, 4), "n": f32(9, 4)}, h, xs)


@pytest.mark.parametrize("loss", [False, True])
def test_gates_are_parts_of_one_dimension(tmp_path, loss):
    def gradient(p, h, c, x):
        return jax.grad(lambda p: (lstm(p, h, c, x)[0] ** 2).mean())(p)

    others = [lstm_arguments(5, 3, 2), lstm_arguments(2, 7, 4)]
    d, _ = follows(gradient if loss else lstm, tmp_path, lstm_arguments(4, 4, 3), others)
    assert "4*" in d.source.partition("sums=")[2][:40], d.source


def test_slices_that_are_a_dimension_in_turn(tmp_path):
    def gated(w, h, x):
        d = h.shape[0]
        g = w @ x
        return jnp.tanh(g[:d]) * h + g[d : 2 * d] - g[2 * d :]

    def arguments(d, k):
        return f32(3 * d, k), f32(d), f32(k)

    follows(gated, tmp_path, arguments(4, 3), [arguments(5, 3), arguments(2, 6)])


def test_a_part_of_a_sum_may_be_as_large_as_it_is(tmp_path):
    def featured(w, x):
        angles = jnp.stack([jnp.sin(x[:, 0]), jnp.cos(x[:, 0]), x[:, 0]], -1)
        return jnp.concatenate([x, angles], -1) @ w

    def arguments(d, b, o):
        return f32(d + 3, o), f32(b, d)

    d, _ = follows(featured, tmp_path, arguments(4, 5, 6), [arguments(3, 2, 5), arguments(7, 4, 9)])
    assert ' + 3"' in d.source, d.source


def test_the_target_numpy_knows_of_sums(tmp_path):
    def cell(w, h, x):
        return jnp.tanh(jnp.concatenate([x, h], -1) @ w)

    d = untrace.decompile(cell, target="numpy")(f32(8, 4), f32(4), f32(4))
    assert "sums=" in d.source, d.source
    written = imported(d, tmp_path)
    np.testing.assert_allclose(written(f32(8, 5), f32(5), f32(3)), cell(f32(8, 5), f32(5), f32(3)), rtol=1e-6)
    with pytest.raises(TypeError, match="was written for "):
        written(f32(9, 5), f32(5), f32(3))


def test_the_places_of_a_linspace_follow(tmp_path):
    def ramped(x):
        return x * jnp.linspace(1, -1, x.shape[0])

    d, _ = follows(ramped, tmp_path, (f32(4),), [(f32(6),), (f32(9),)])
    assert "jnp.linspace(1, -1, x.shape[0])" in d.source, d.source


def test_a_batch_of_as_many_as_are_stacked(tmp_path):
    def distance(a, b):
        return -jax.nn.logsumexp(-jnp.stack([a.sum(), b.sum(), a[0] * b[0]]), axis=0)

    def distances(a, bs):
        return jax.vmap(jax.value_and_grad(distance), (None, 0))(a, bs)

    d, _ = follows(distances, tmp_path, (f32(4), f32(3, 5)), [(f32(6), f32(2, 5)), (f32(4), f32(7, 3))])
    assert "bs: f32[3" not in d.source, d.source


@pytest.mark.parametrize("fixed", ["heads", "width"])
def test_heads_are_parts_of_a_size_that_varies(tmp_path, fixed):
    def attention(p, x):
        batch, length, dim = x.shape
        count = 4 if fixed == "heads" else dim // 4

        def heads(y):
            return y.reshape(batch, length, count, -1).transpose(0, 2, 1, 3)

        q, k, v = heads(x @ p["q"]), heads(x @ p["k"]), heads(x @ p["v"])
        a = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * (dim // count) ** -0.5, -1)
        return x + (a @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1) @ p["o"]

    def arguments(dim, batch, length):
        return {name: f32(dim, dim) for name in "qkvo"}, f32(batch, length, dim)

    others = [arguments(16, 3, 2), arguments(20, 5, 4)]
    d, written = follows(attention, tmp_path, arguments(8, 2, 5), others)
    assert 'multiples={"dim": 4}' in d.source, d.source
    with pytest.raises(TypeError, match="was written for"):
        written(*arguments(6, 2, 5))


def test_heads_of_which_both_sizes_are_written_down_stay_and_the_rest_follows(tmp_path):
    def attention(p, x):
        batch, length, _ = x.shape
        q, k = ((x @ p[name]).reshape(batch, length, 4, 2) for name in "qk")
        return jnp.einsum("bihd,bjhd->bhij", q, k)

    def arguments(dim, batch, length):
        return {name: f32(dim, 8) for name in "qk"}, f32(batch, length, dim)

    follows(attention, tmp_path, arguments(8, 2, 5), [arguments(3, 3, 2), arguments(9, 2, 4)])


@pytest.mark.parametrize(
    "function, rows, multiple",
    [
        (lambda x: jnp.sin(x).reshape(2, x.shape[0] // 2), 8, 2),
        (lambda x: jnp.sin(x).reshape(-1, 10).sum(0), 40, 10),
        (lambda x: (x.reshape(-1, 4)[:, 0], x.reshape(6, -1)[0]), 24, 12),
        (lambda x: sum(jnp.split(jnp.sin(x), 3)), 9, 3),
    ],
)
def test_what_is_taken_apart_is_a_multiple(tmp_path, function, rows, multiple):
    d, written = follows(function, tmp_path, (f32(rows),), [(f32(k * multiple),) for k in (2, 3, 7)])
    assert f'multiples={{"n": {multiple}}}' in d.source, d.source
    with pytest.raises(TypeError, match="was written for"):
        written(f32(rows + 1))


def test_rows_that_are_shuffled_and_shared_out(tmp_path):
    def epoch(w, x, y, key):
        order = jax.random.permutation(key, x.shape[0])
        batches = x[order].reshape(4, x.shape[0] // 4, -1), y[order].reshape(4, -1)

        def step(w, batch):
            return w - 0.1 * jax.grad(lambda w: ((batch[0] @ w - batch[1]) ** 2).mean())(w), None

        return lax.scan(step, w, batches)[0]

    def arguments(rows, width):
        return f32(width), f32(rows, width), f32(rows), jax.random.key(0)

    d, _ = follows(epoch, tmp_path, arguments(16, 3), [arguments(8, 2), arguments(20, 5)])
    assert "y: f32[n]" in d.source, d.source


@pytest.mark.parametrize("rows", [8, 1200])
def test_a_size_goes_as_far_as_the_program_is_the_same(tmp_path, rows):
    """The rounds of a shuffle are two from 1626 rows on."""

    def shuffled(x, key):
        return x[jax.random.permutation(key, x.shape[0])]

    key = jax.random.key(1)
    d, written = follows(shuffled, tmp_path, (f32(rows), key), [(f32(n), key) for n in (2, 3, 100, 1400)])
    assert "most=" in d.source, d.source
    with pytest.raises(TypeError, match="was written for"):
        written(f32(5000), key)


@pytest.mark.parametrize("rows", [12, 64, 70])
def test_a_program_that_is_another_one_at_each_size_stays(rows):
    """However alike two of them are by chance."""
    d = untrace.decompile(lambda x: lax.associative_scan(lambda a, b: a * b + b, x))(f32(rows))
    assert f"x: f32[{rows}]" in d.source, d.source


def test_a_size_of_which_a_half_is_taken_is_even_and_the_others_follow(tmp_path):
    def embedding(t, dim):
        half = dim // 2
        angles = t[:, None] * jnp.exp(-jnp.arange(half) / half)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)

    def embedded(w, t, x):
        return embedding(t, w.shape[0]) @ w + embedding(t + 1.0, w.shape[0]) @ w, jnp.tanh(x)

    d, written = follows(
        embedded,
        tmp_path,
        (f32(10, 12), f32(3), f32(6, 7)),
        [(f32(4, 5), f32(2), f32(3, 9)), (f32(6, 3), f32(7), f32(2, 2))],
    )
    assert 'multiples={"n": 2}' in d.source and "x: f32[10" not in d.source, d.source
    with pytest.raises(TypeError, match="was written for"):
        written(f32(9, 12), f32(3), f32(6, 7))


def test_an_image_that_convolutions_keep_has_any_size(tmp_path):
    def network(w, x):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.tanh(y) + x

    def trained(w, x):
        return w - 0.1 * jax.grad(lambda w: (network(w, x) ** 2).mean())(w)

    d, _ = follows(
        trained,
        tmp_path,
        (f32(3, 3, 2, 2), f32(3, 6, 7, 2)),
        [(f32(3, 3, 2, 2), f32(2, 5, 9, 2)), (f32(3, 3, 4, 4), f32(5, 9, 4, 4))],
    )
    assert "6" not in d.source.partition("x: f32[")[2].partition("]")[0], d.source


@pytest.mark.parametrize(
    "part",
    [
        lambda n: (n + 5) // 6,
        lambda n: n // 5 + 1,
        lambda n: n // 6 + 1,
        lambda n: n // 3 + 2,
        lambda n: n // 7 - 1,
        lambda n: max(1, n // 4),
        lambda n: max(2, n // 4),
        lambda n: max(1, n // 8),
        lambda n: n - n // 3,
        lambda n: n // 3 * 2,
        lambda n: (n - 3) // 3 + 1,
    ],
)
@pytest.mark.parametrize("rows", [9, 25, 32])
def test_a_part_of_a_size_is_that_part_at_every_size(part, rows):
    """Or the text refuses it: two ways to compute it may agree at the sizes that it is traced at."""

    def spread(x):
        return jnp.zeros(max(part(x.shape[0]), 0)), x.sum()

    written = untrace.decompile(spread)(f32(rows))
    for n in range(1, 70):
        try:
            found = jax.eval_shape(written, f32(n))[0].shape
        except TypeError as error:
            assert n != rows and "was written for" in str(error)
            continue
        assert found == (max(part(n), 0),), written.source


def test_a_size_is_no_multiple_because_another_one_cannot_follow():
    d = untrace.decompile(lambda x: x + jnp.arange(4.0))(jnp.ones((6, 4)))
    np.testing.assert_array_equal(d(jnp.ones((7, 4))), jnp.ones((7, 4)) + jnp.arange(4.0))


def test_a_size_that_is_the_programs_own_leaves_the_others(tmp_path):
    def attention(h, w):
        n, dim = h.shape
        q, k = (t.reshape(n, 2, dim // 2) for t in jnp.split(h @ w, 2, axis=-1))
        return jnp.einsum("ihd,jhd->hij", q, k)

    def fn(h, w):
        return jax.vmap(attention, (0, None))(h, w)

    d, _ = follows(fn, tmp_path, (f32(3, 6, 8), f32(8, 16)), [(f32(2, 5, 8), f32(8, 16))])
    assert "[m,n,8]" in d.source


def lagged(x, bias):
    return bias + jnp.concatenate([x, x])[: x.shape[0]]


def windowed(x, bias):
    padded = jnp.pad(x, ((2, 0), (0, 0)))
    return x * padded[1 : 1 + x.shape[0]] + jnp.sin(bias)


@pytest.mark.parametrize("function", [lagged, windowed])
def test_sizes_that_have_to_be_one_are(tmp_path, function):
    d, _ = follows(function, tmp_path, (f32(8, 5), f32(8, 5)), [(f32(3, 4), f32(3, 4))])
    assert "x, bias: f32[n,m]" in d.source
    with pytest.raises(TypeError, match=r"not for f32\[7,5\]"):
        imported(d, tmp_path)(f32(8, 5), f32(7, 5))


@pytest.mark.parametrize(
    "function", [lambda h, q: h[1:] * q[1:], lambda h, q: h[1:-1] * q[2:] + q[1:-1] * h[:-2]], ids=["one", "both"]
)
def test_sizes_that_meet_in_slices_are_one(tmp_path, function):
    d, _ = follows(function, tmp_path, (f32(12), f32(12)), [(f32(7), f32(7)), (f32(30), f32(30))])
    assert "h: f32[n]; q: f32[n]" in d.source


def of_pairs(x, y):
    n = x.shape[0]
    i, j = jnp.triu_indices(n, 1)
    return jnp.sum(x * y) / (n * (n - 1)), (x[i] - x[j]) + jnp.zeros(n * (n - 1) // 2)


def test_how_many_pairs_there_are_follows(tmp_path):
    d, _ = follows(of_pairs, tmp_path, (f32(4), f32(4)), [(f32(6), f32(6))])
    assert "n * (n - 1)" in d.source


def rows_of(c, p):
    return jnp.tanh(c) * p + c


def in_rows(w, cs):
    return jax.vmap(rows_of)(cs, w.reshape(-1, 2))


def test_a_shape_is_open_at_one_place_the_authors(tmp_path):
    d, _ = follows(in_rows, tmp_path, (f32(8), f32(4)), [(f32(12), f32(6))])
    assert "w.reshape(-1, 2)" in d.source
