"""Programs in C: how they read, what they give, how they are called and saved."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_texts import runs_clean, same, written
from jax import lax

import untrace
from untrace.prove.execute import Endless
from untrace.targets.c import compiled
from untrace.targets.c.compiled import compiler


def softplus(x):
    return jnp.log(1 + jnp.exp(x))


def body_of(text):
    """The lines of the entry."""
    source = text.source
    return source[source.rindex("\n\n") + 2 :] if "\n\n" in source else source


def test_the_papers_example_is_an_if_four_floats_and_a_return():
    text = written(jax.grad(lambda x: lax.cond(x > 87, lambda x: x, softplus, x)), 1.0)
    assert body_of(text) == (
        "float grad_lambda(float x)\n"
        "{\n"
        "    float d_x;\n"
        "    if (x > 87.0f) {\n"
        "        d_x = 1.0f;\n"
        "    } else {\n"
        "        const float exp_x = expf(x);\n"
        "        d_x = 1.0f / (1.0f + exp_x) * exp_x;\n"
        "    }\n"
        "    return d_x;\n"
        "}\n"
    )
    assert float(text(100.0)) == 1.0
    np.testing.assert_allclose(text(0.5), jax.nn.sigmoid(0.5), rtol=1e-6)
    assert "float grad_lambda(float x);" in text.header


def test_so_does_a_where():
    text = written(jax.grad(lambda x: jnp.where(x > 87, x, softplus(x))), 1.0)
    assert "?" in text.source and "return" in text.source and text.source.count("expf") == 1


def attention(q, k, v):
    scores = q @ k.T / 2.0
    return jax.nn.softmax(scores) @ v


def test_loops_are_joined_and_what_a_maximum_needs_is_computed_once(tmp_path):
    args = np.ones((5, 4), np.float32), np.ones((6, 4), np.float32), np.ones((6, 4), np.float32)
    text = written(attention, *args)
    assert "void attention(const float q[restrict 5][4]" in text.source
    assert text.source.count("for (int i = 0") == 1  # one loop over the rows
    assert text.source.count("expf(") == 1 and text.source.count("q[i]") == 1
    runs_clean(text, tmp_path / "project")


def layer(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def loss(params, x, y):
    for one in params:
        x = layer(one, x)
    return jnp.mean((x - y) ** 2)


def _net():
    key = np.random.default_rng(0)
    params = [{"w": key.normal(size=(4, 4)).astype(np.float32), "b": np.zeros(4, np.float32)} for _ in range(3)]
    return params, key.normal(size=(5, 4)).astype(np.float32), np.zeros((5, 4), np.float32)


def test_trees_are_structs_with_the_authors_names_and_functions_are_functions(tmp_path):
    fn = jax.value_and_grad(loss)
    text = written(fn, *_net())
    same(text, fn, *_net())
    assert "struct value_and_grad_loss" in text.header or "struct loss_and_grad" in text.header
    assert "    float w[4][4];\n" in text.header and "[3];" in text.header
    assert "static void layer(" in text.source
    assert "_Static_assert(sizeof(struct" in text.source
    assert "malloc" not in text.source and "**" not in text.source
    runs_clean(text, tmp_path / "project")


def test_a_scan_is_a_loop_and_its_gradient_two():
    def run(w, h, xs):
        def step(h, x):
            h = jnp.tanh(w @ h + x)
            return h, h.sum()

        return lax.scan(step, h, xs)

    args = np.eye(4, dtype=np.float32), np.ones(4, np.float32), np.ones((10, 4), np.float32)
    text = written(run, *args)
    same(text, run, *args)
    assert text.source.count("i < 10") == 1
    gradient = jax.grad(lambda w, h, xs: run(w, h, xs)[1].sum())
    text = written(gradient, *args)
    same(text, gradient, *args)
    assert text.source.count("i < 10") == 1 and text.source.count("int i = 9; i >= 0; i--") == 1


def kmeans(points, centers):
    def moves(state):
        return (state[1] > 1e-3) & (state[2] < 50)

    def move(state):
        c, _, i = state
        nearest = jnp.argmin(jnp.sum((points[:, None] - c[None]) ** 2, -1), 1)
        one = jax.nn.one_hot(nearest, c.shape[0])
        new = one.T @ points / jnp.maximum(one.sum(0)[:, None], 1.0)
        return new, jnp.abs(new - c).max(), i + 1

    return lax.while_loop(moves, move, (centers, jnp.inf, 0))


def test_a_while_loop_is_one(tmp_path):
    rng = np.random.default_rng(1)
    args = rng.random((20, 2)).astype(np.float32), rng.random((3, 2)).astype(np.float32)
    text = written(kmeans, *args)
    found, expected = text(*args), kmeans(*args)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert found[2] == expected[2]
    assert "while (" in text.source and "sort" not in text.source
    runs_clean(text, tmp_path / "project")


def three_bodies(positions, velocities, masses):
    def acceleration(positions):
        d = positions[None] - positions[:, None]
        r = jnp.sqrt((d**2).sum(-1) + 1e-3)
        return (masses[None, :, None] * d / r[..., None] ** 3).sum(1)

    def step(state, _):
        p, v = state
        v = v + 0.01 * acceleration(p)
        p = p + 0.01 * v
        return (p, v), p

    return lax.scan(step, (positions, velocities), length=20)


def test_loops_that_end_one_by_one_are_one():
    def root(a):
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-3 * a, lambda x: 0.5 * (x + a / x), a)

    d = untrace.decompile(jax.vmap(root), target="c")(np.float32([1.0, 2.0, 90.0, 1e4]))
    assert d.source.count("while (") == 1 and "is_going[i] ?" in d.source, d.source
    x = np.float32([4.0, 0.5, 7.0, 1e-3])
    np.testing.assert_allclose(d(x), jax.vmap(root)(x), rtol=1e-6)


def test_an_array_may_be_given_for_two_parameters():
    """A parameter that is `restrict` is no other one: gcc says so where it sees both."""

    def mixed(x, y):
        for _ in range(3):
            x = jnp.tanh(x @ y) + jnp.sin(y @ x)
        return x

    def function(x, y):
        first = jnp.sin(x)
        second = jnp.sin(x)
        return mixed(first, second) + mixed(y, x)

    d = untrace.decompile(function, target="c")(np.eye(2, dtype=np.float32), np.ones((2, 2), np.float32))
    assert "mixed(const float x[2][2], const float y[2][2]" in d.source, d.source


def test_three_bodies():
    rng = np.random.default_rng(2)
    args = (
        rng.normal(size=(3, 2)).astype(np.float32),
        rng.normal(size=(3, 2)).astype(np.float32),
        np.ones(3, np.float32),
    )
    text = written(three_bodies, *args)
    same(text, three_bodies, *args, tolerance=1e-4)
    assert "static void acceleration(" in text.source


def estimate(state, z, u):
    def move(x):
        return jnp.array([x[0] + u[0] * jnp.cos(x[2]), x[1] + u[0] * jnp.sin(x[2]), x[2] + u[1]])

    def look(x):
        return jnp.array([jnp.hypot(x[0], x[1]), jnp.arctan2(x[1], x[0]) - x[2]])

    x, p = state["mean"], state["cov"]
    f, x = jax.jacfwd(move)(x), move(x)
    p = f @ p @ f.T + 0.01 * jnp.eye(3)
    h = jax.jacfwd(look)(x)
    gain = jnp.linalg.solve(h @ p @ h.T + 0.1 * jnp.eye(2), h @ p).T
    return {"mean": x + gain @ (z - look(x)), "cov": (jnp.eye(3) - gain @ h) @ p}


def test_a_step_of_a_kalman_filter(tmp_path):
    state = {"mean": np.array([1.0, 2.0, 0.3], np.float32), "cov": np.eye(3, dtype=np.float32)}
    args = state, np.array([2.0, 0.4], np.float32), np.array([0.1, 0.02], np.float32)
    text = written(estimate, *args)
    same(text, estimate, *args)
    assert "state->mean" in text.source and "float cov[3][3];" in text.header
    runs_clean(text, tmp_path / "project")


def convolved(w, x):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return (y**2).sum()


def test_a_convolution_its_gradient_and_memory_of_the_callers(tmp_path):
    rng = np.random.default_rng(3)
    args = rng.normal(size=(3, 3, 2, 4)).astype(np.float32), rng.normal(size=(2, 8, 8, 2)).astype(np.float32)
    fn = jax.grad(convolved, (0, 1))
    text = written(fn, *args)
    same(text, fn, *args)
    assert "struct grad_convolved_work {" in text.header and "work" in text.source
    runs_clean(text, tmp_path / "project")


def test_random_numbers_are_the_same():
    def noise(key, x):
        one, other = jax.random.split(key)
        return jax.random.normal(one, (4,)) + x, jax.random.bits(other, (3,)), jax.random.permutation(one, 5)

    text = written(noise, jax.random.key(3), 1.0)
    found, expected = text(jax.random.key(7), 2.0), noise(jax.random.key(7), 2.0)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)


def test_what_is_read_in_the_returned_expression_is_declared_outside_of_the_loop():
    def noise():
        return jax.random.uniform(jax.random.key(42))

    text = written(noise)
    assert text() == noise()


def test_large_constants_stand_in_a_file_of_their_own(tmp_path):
    table, small = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32), np.arange(12, dtype=np.float32)

    def weighed(x):
        return jnp.asarray(table) @ x + jnp.concatenate([jnp.asarray(small), x[:28]])

    x = np.ones(30, np.float32)
    text = written(weighed, x)
    same(text, weighed, x)
    assert "static const float" in text.source and "extern const float weighed_table[40][30];" in text.source
    assert len(text.source) < 4000
    text.save(tmp_path / "p")
    assert (tmp_path / "p" / "weighed_data.c").exists()


def test_what_calls_and_derivatives_have_in_common_is_computed_once():
    def energy(q, w):
        return jnp.sum(jnp.cumsum(w * jnp.cos(q)) ** 2) + jnp.sum(jnp.cumsum(jnp.sin(q)))

    def forces(q, w):
        return jax.grad(energy)(q, w), jax.grad(energy, 1)(q, w)

    q, w = np.linspace(-1, 1, 4, dtype=np.float32), np.ones(4, np.float32)
    text = written(forces, q, w)
    same(text, forces, q, w)
    assert text.source.count("cosf(") == 1 and text.source.count("sinf(") == 1


def test_indices_that_are_known_to_be_inside_are_not_checked():
    a, y = np.eye(3, dtype=np.float32) + 0.1, np.arange(3, dtype=np.float32)
    text = written(jnp.linalg.solve, a, y)
    assert "clamp_index" not in text.source and "< 0" not in text.source
    same(text, jnp.linalg.solve, a, y)


def test_differences_of_numbers_that_are_known_to_be_small_are_plain():
    def apart(x):
        k = jnp.arange(5)
        return x * (5 - jnp.maximum(k[:, None], k) + jnp.minimum(k[:, None], k))

    text = written(apart, np.float32(2))
    assert "max_i32(" in text.source and "sub_i32" not in text.source and "add_i32" not in text.source
    same(text, apart, np.float32(2))


# ------------------------------------------------------------ refusals


def test_what_c_has_not_is_refused_at_once_with_the_authors_lines(tmp_path):
    def fails(x):
        y = jnp.linalg.svd(x.reshape(2, 2), compute_uv=False)
        return jnp.abs(y).astype(jnp.bfloat16), jax.pure_callback(np.sin, x, x)

    with pytest.raises(untrace.UnsupportedPrimitiveError) as error:
        untrace.decompile(fails, target="c")(np.ones(4, np.float32))
    message = str(error.value)
    assert "`svd`" in message and "pure_callback" in message and message.count("test_c.py") >= 2


def test_other_sizes_are_not_for_c():
    with pytest.raises(untrace.OptionError, match="sizes of its example"):
        untrace.decompile(softplus, target="c", also=[(np.ones(3, np.float32),)])(np.ones(2, np.float32))


def test_comparisons_of_comparisons_have_parentheses():
    def compared(x, y):
        return ((x < y) != (y != 0)) == (x != y), (x > 0) ^ (y > 0) ^ (x != y)

    x, y = np.array([-1, 0, 2], np.int32), np.array([0, 0, 1], np.int32)
    same(written(compared, x, y), compared, x, y)


# ------------------------------------------------------------ names


def test_names_that_c_keeps_for_itself_and_hostile_ones():
    def double(int, register, y0, x):
        return {"while": int + register, "*/ system(0); /*": y0 * x, "a-b": x, "1": -x}

    double.__doc__ = '*/ int main(void) { return 1; } /* \\\n"'
    args = (np.float32(1), np.float32(2), np.float32(3), np.ones(2, np.float32))
    text = written(double, *args)
    same(text, double, *args)
    assert "system(" not in text.source + text.header


def test_two_names_of_one_word_are_two():
    def add(x):
        i = jnp.sum(x, -1)
        j = jnp.cumsum(i)
        return {"i": i, "j": j, "I": x[0]}

    x = np.ones((3, 4), np.float32)
    same(written(add, x), add, x)


# ------------------------------------------------------------ calling and saving


def test_a_compiled_program_keeps_its_memory():
    text = written(attention, *(np.ones((3, 4), np.float32),) * 3)
    fast = text.compile(reuse=True)
    args = [np.random.default_rng(k).normal(size=(3, 4)).astype(np.float32) for k in range(3)]
    first = fast(*args)
    np.testing.assert_allclose(first, attention(*args), rtol=1e-5)
    assert fast(*args) is first or np.shares_memory(fast(*args), first)
    for place, value in zip(fast.inputs, args, strict=True):
        place[...] = value + 1
    fast.run()
    np.testing.assert_allclose(fast.outputs[0], attention(*[a + 1 for a in args]), rtol=1e-5)
    np.testing.assert_allclose(text.compile(native=True)(*args), attention(*args), rtol=1e-4)


def test_a_call_of_a_compiled_program_leaves_what_an_earlier_one_gave():
    text = written(lambda x: {"a": x + 1, "b": x.sum()}, np.ones(3, np.float32))
    for native in (False, True):
        made = text.compile(native=native)
        first, _ = made(np.zeros(3, np.float32)), made(np.full(3, 5, np.float32))
        np.testing.assert_array_equal(first["a"], np.ones(3))
        assert first["b"] == 0
    for made in (text.compile(reuse=True), text):  # numbers are never written over
        first, _ = made(np.zeros(3, np.float32)), made(np.full(3, 5, np.float32))
        assert first["b"] == 0
    squared = written(lambda x: x * x, np.float32(1)).compile(reuse=True)
    assert (squared(2.0), squared(3.0)) == (4, 9)
    assert "WRITES OVER" in (type(text).compile.__doc__ or "")


def test_other_types_and_shapes_are_refused():
    text = written(softplus, np.ones(3, np.float32))
    with pytest.raises(TypeError, match=r"float32\[4\]"):
        text(np.ones(4, np.float32))
    with pytest.raises(TypeError, match="int32"):
        text(np.ones(3, np.int32))
    with pytest.raises(TypeError, match="was written for"):
        text({"x": np.ones(3, np.float32)})


def test_arrays_of_64_bits_are_taken_as_jax_takes_them():
    x, i = np.arange(4.0), np.array([3, 1])
    text = written(lambda x, i: x[i], x, i)
    assert "const float x[restrict 4], const int32_t i[restrict 2]" in text.source
    np.testing.assert_array_equal(text(x, i), [3.0, 1.0])


def test_saving_refuses_to_overwrite(tmp_path):
    text = written(softplus, np.ones(3, np.float32))
    folder = tmp_path / "project"
    text.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["CMakeLists.txt", "main.c", "softplus.c", "softplus.h"]
    with pytest.raises(untrace.OutputExistsError):
        text.save(folder)
    text.save(folder, overwrite=True)


def test_the_header_is_one_of_cplusplus(tmp_path):
    text = written(jax.value_and_grad(loss), *_net())
    text.save(tmp_path)
    (tmp_path / "user.cc").write_text(
        f'#include "{text.name}.h"\n#include "{text.name}.h"\nint main() {{ return 0; }}\n'
    )
    command = [compiler(), "-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "user.cc"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_only_the_entry_is_exported(tmp_path):
    text = written(jax.value_and_grad(loss), *_net())
    text.save(tmp_path)
    command = [compiler(), "-std=c11", "-O0", "-c", f"{text.name}.c", "-o", "x.o"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    names = subprocess.run(["nm", "-g", "--defined-only", "x.o"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in names.splitlines()] == [text.name]


def test_the_command_line_writes_a_folder(tmp_path):
    from untrace.cli import main

    (tmp_path / "model.py").write_text(
        "import jax.numpy as jnp\n\n\ndef softplus(x):\n    return jnp.log(1 + jnp.exp(x))\n"
    )
    out = tmp_path / "out"
    assert main(["write", f"{tmp_path}/model.py:softplus", "f32[3]", "--to", "c", "-o", str(out)]) == 0
    assert "void softplus(const float x[restrict 3], float result[restrict 3])" in (out / "softplus.c").read_text()
    assert main(["write", f"{tmp_path}/model.py:softplus", "f32[3]", "--to", "c", "-o", str(out)]) != 0
    assert main(["write", f"{tmp_path}/model.py:softplus", "f32[3]", "--to", "c", "-o", str(out), "--force"]) == 0


def test_a_program_that_did_not_end_once_is_waited_for_less(monkeypatch):
    d = untrace.decompile(lambda x: jnp.sin(x), target="c")(np.ones(3, np.float32))
    waited = []

    def never_ready(reading, writing, failing, seconds):
        waited.append(seconds)
        return [], [], []

    text = compiled.Apart(d.program, compiled.build(d.program), 10.0)
    monkeypatch.setattr(compiled.select, "select", never_ready)
    for _ in range(3):
        with pytest.raises(Endless):
            text(np.ones(3, np.float32))
    assert waited[0] == 10.0 and waited[1] == waited[2] < 10.0
