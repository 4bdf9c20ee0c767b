"""`untrace.watch`: which values it shows, where it says they stand, and that they are those of the function."""

import dataclasses
import re
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from work import lines_run

import untrace
from untrace.tools import render
from untrace.tools.instrument import instrumented

Weights = namedtuple("Weights", "w b")
QUICK = {"sizes": "fixed"}


def layer(p, x):
    hidden = jnp.tanh(x @ p.w + p.b)
    return hidden * (hidden > 0.1)


def model(p, x):
    first = layer(p, x)
    second = layer(p, first)
    return (second**2).sum()


def step(p, x):
    loss, grads = jax.value_and_grad(model)(p, x)
    new = jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)
    return loss, new


def weights():
    rng = np.random.default_rng(0)
    return Weights(jnp.asarray(rng.standard_normal((3, 3)), jnp.float32), jnp.ones(3) / 3)


X = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3)), jnp.float32)


@pytest.fixture(scope="module")
def text():
    return untrace.decompile(step, guard=False)(weights(), X)


@pytest.fixture(scope="module")
def stepped(text):
    return untrace.watch(text)(weights(), X)


def named(watched, name, kind="value"):
    return [r for r in watched.records() if r.name == name and r.kind == kind]


# ---------------------------------------------------------------- values


def test_the_result_is_the_originals(stepped):
    loss, new = stepped.result
    want, want_new = step(weights(), X)
    assert type(new) is Weights
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), new, want_new)


def test_values_are_those_of_the_variables(stepped):
    first, second = (r.value for r in named(stepped, "hidden"))
    p = weights()
    np.testing.assert_allclose(first, jnp.tanh(X @ p.w + p.b), rtol=1e-6)
    np.testing.assert_allclose(second, jnp.tanh((first * (first > 0.1)) @ p.w + p.b), rtol=1e-5)
    np.testing.assert_array_equal(stepped["hidden"], second)
    np.testing.assert_array_equal(stepped["layer.hidden"], second)
    assert set(stepped["grads"]) == {"grads.w", "grads.b"}


def test_each_cotangent_stands_behind_its_value(stepped):
    p = weights()
    first = jnp.tanh(X @ p.w + p.b)
    wanted = jax.grad(lambda h: (layer(p, h * (h > 0.1)) ** 2).sum())(first)
    shown = render.beside(stepped)
    place = next(i for i, r in enumerate(shown) if r.name == "hidden")
    assert [shown[place + 1].kind, shown[place + 1].name] == ["cotangent", "hidden"]
    np.testing.assert_allclose(shown[place + 1].value, wanted, rtol=1e-5)
    assert len(shown) == len(stepped)


def test_places(stepped):
    found = named(stepped, "hidden")[0]
    assert found.function == "layer"
    assert [f.function for f in found.frames] == ["step", "model", "layer"]
    assert stepped.source.split("\n")[found.line - 1].strip() == found.statement
    line = next(i for i, s in enumerate(open(__file__), 1) if "hidden = jnp.tanh" in s)
    assert found.author == f"test_watch.py:{line}"


def test_the_text_for_a_terminal():
    def f(x, n):
        y = x * 2.0
        z = y / n
        return y, z

    watched = untrace.watch(f, guard=False)(jnp.arange(4.0), jnp.float32(0.0))
    text = re.sub(r"test_watch.py:\d+", "here", str(watched))
    assert (
        text
        == """\
x   f32[4]  mean 1.5  min 0  max 3  █▁█▁▁█▁█  0: 1
n   f32[]  0.0
y = x * 2.0   f32[4]  mean 3  min 0  max 6  █▁█▁▁█▁█  0: 1  here
z = y / n   f32[4]  nan: 1  +inf: 3  here"""
    )


def test_json_lines_are_read_back(stepped):
    import json

    rows = [json.loads(line) for line in stepped.json_lines()]
    assert [r["name"] for r in rows] == [r.name for r in stepped.records()]
    loss = next(r for r in rows if r["name"] == "loss")
    assert loss["value"] == pytest.approx(float(stepped.result[0]))


# ---------------------------------------------------------------- loops, branches, rules


def test_turns_of_scan_forward_and_backward():
    def f(x):
        def turn(c, a):
            c = jnp.sin(c) * a
            return c, c

        c, _ = lax.scan(turn, x, jnp.arange(1.0, 4.0))
        return c

    watched = untrace.watch(lambda x: jax.grad(f)(x) + 1.0, **QUICK)(jnp.float32(0.3))
    values, cotangents = named(watched, "c"), named(watched, "c", "cotangent")
    inside = [r for r in values if r.turns]
    assert [r.turns for r in inside] == [((0, 3),), ((1, 3),), ((2, 3),)]
    back = [r for r in cotangents if r.turns]
    assert [r.turns for r in back] == [((2, 3),), ((1, 3),), ((0, 3),)]
    # of the last turn's value the cotangent is 1, of the one before cos(c) * 3
    np.testing.assert_allclose(back[0].value, 1.0)
    np.testing.assert_allclose(back[1].value, np.cos(inside[1].value) * 3, rtol=1e-6)


@pytest.mark.parametrize(("turns", "kept"), [(2, [0, 1, 9]), ({3, 5}, [3, 5])])
def test_chosen_turns(turns, kept):
    def f(x):
        def turn(c, _):
            c = c + 1.0
            return c, None

        return lax.scan(turn, x, length=10)[0]

    watched = untrace.watch(f, turns=turns, **QUICK)(jnp.float32(0.0))
    inside = [r for r in watched.records() if r.turns]
    assert [r.turns[0][0] for r in inside] == kept
    assert [float(r.value) for r in inside] == [k + 1.0 for k in kept]
    assert any("turns=" in note for note in watched.notes)


def test_the_turns_of_while_and_the_branch_that_ran():
    def f(x):
        def one(x):
            up = x + 1.0
            return up

        def other(x):
            down = x * 0.5
            return down

        def turn(s):
            x, n = s
            x = lax.cond(n > 1, one, other, x)
            return x, n + 1

        return lax.while_loop(lambda s: s[1] < 3, turn, (x, 0))

    watched = untrace.watch(f, **QUICK)(jnp.float32(8.0))
    np.testing.assert_allclose(watched.result[0], 3.0)
    # One of the two keeps its name or is a lambda of the text: their values say which ran.
    inside = [r for r in watched.records() if len(r.turns) == 1 and r.type == "f32[]"]
    assert {float(r.value) for r in inside} >= {4.0, 2.0, 3.0}
    assert 5.0 not in {float(r.value) for r in inside}
    assert max(r.turns[0][0] for r in inside) == 2


def test_vmap_says_its_axis():
    def f(w, xs):
        def one(x):
            y = w @ x
            return y.sum()

        s = jax.vmap(one)(xs)
        return s

    watched = untrace.watch(f, **QUICK)(jnp.ones((2, 3)), jnp.ones((4, 3)))
    (y,) = named(watched, "y")
    assert y.batch and y.shape[y.batch[0]] == 4
    np.testing.assert_array_equal(np.moveaxis(y.value, y.batch[0], 0), np.full((4, 2), 3.0))


def test_custom_rules_and_checkpoints():
    @jax.custom_vjp
    def clip(x):
        low = jnp.minimum(x, 1.0)
        return low

    def backward(x, g):
        masked = g * (x < 1.0)
        return (masked * 2.0,)

    clip.defvjp(lambda x: (clip(x), x), backward)

    @jax.checkpoint
    def block(x):
        h = jnp.sin(x)
        return jnp.sin(h) * 2.0

    def f(x):
        return jax.grad(lambda x: (clip(block(x)) * 3.0).sum())(x) + 0.0

    watched = untrace.watch(f, **QUICK)(jnp.array([0.2, 3.0]))
    np.testing.assert_allclose(watched.result, f(jnp.array([0.2, 3.0])), rtol=1e-6)
    again = [r for r in watched.records() if r.again]
    assert "h" in {r.name for r in again}
    assert {r.function for r in again} == {"block"}
    assert any("bwd" in r.function or "backward" in r.function for r in watched.records())


def test_a_jitted_function_has_its_caller_each_time():
    @jax.jit
    def f(x):
        a = jnp.sin(x)
        return a * 2.0

    def g(x):
        y = f(x)
        z = f(y)
        return z

    watched = untrace.watch(g, **QUICK)(jnp.ones(3))
    lines = [r.frames[0].line for r in named(watched, "a")]
    assert len(lines) == 2 and lines[0] < lines[1]
    assert watched.source.split("\n")[lines[1] - 1].strip().startswith("z = ")


def test_nested_loops_show_each_turn_at_its_own_function():
    def inner(x):
        def t(c, a):
            c = c + a * x.sum()
            return c, c

        return lax.scan(t, 0.0, x)[0]

    def turn(c, a):
        g = jax.grad(inner)(c)
        return c - 0.1 * g * a, g.sum()

    watched = untrace.watch(lambda x: lax.scan(turn, x, jnp.ones(2)), **QUICK)(jnp.arange(2.0))
    heads = [line for line in watched.lines() if "▸" in line]
    assert [re.sub(r".*\bt  turn", "t  turn", line.strip()) for line in heads if "of 2" in line and ".t " in line] == [
        "t  turn 0 of 2", "t  turn 1 of 2"
    ] * 2  # fmt: skip
    assert [line.partition("turn  ")[2] for line in heads if ".turn  " in line or "▸ turn  " in line] == [
        "turn 0 of 2", "turn 1 of 2"
    ]  # fmt: skip


def test_kernels_and_pullbacks_stay_as_they_are():
    from jax.experimental import pallas as pl

    def kernel(x_ref, o_ref):
        v = x_ref[...]
        o_ref[...] = jnp.sin(v) * 2

    def f(x):
        y = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
        z, back = jax.vjp(jnp.sin, y)
        return z, back(y)[0]

    watched = untrace.watch(f, **QUICK)(jnp.ones(4))
    np.testing.assert_allclose(watched.result[1], f(jnp.ones(4))[1], rtol=1e-6)
    assert not {r.name for r in watched.records()} & {"v", "back"}
    np.testing.assert_allclose(watched["y"], 2 * np.sin(np.ones(4)), rtol=1e-6)


def test_dtypes_and_keys():
    def f(key, n):
        k, other = jax.random.split(key)
        bits = jax.random.bits(k, (2,), jnp.uint8)
        half = jax.random.normal(other, (3,), jnp.bfloat16)
        flags = half > 0
        both = half.astype(jnp.float32) + 1j
        small = half.astype(jnp.float8_e4m3fn)
        return bits, flags, both, small, n + 1

    watched = untrace.watch(f, **QUICK)(jax.random.key(3), 4)
    types = {r.name.partition("[")[0]: r.type for r in watched.records()}
    assert types["k"] == "key<fry>[]" and types["half"] == "bf16[3]"
    kinds = {r.type for r in watched.records()}
    assert {"u8[2]", "bool[3]", "c64[3]", "f8_e4m3fn[3]", "i32[]"} <= kinds
    assert watched.result[4] == 5
    assert str(watched)


def test_a_number_that_a_branch_gives_has_its_dtype():
    def f(x):
        y, count = lax.cond(x > 0.0, lambda x: (x, 7), lambda x: (x + 1.0, 8), x)
        return y, count

    (count,) = named(untrace.watch(f, **QUICK)(jnp.float32(1.0)), "count")
    assert (count.type, count.value.dtype, int(count.value)) == ("i32[]", jnp.int32, 7)


# ---------------------------------------------------------------- what is recorded


def bad(x):
    y = x - 2.0
    z = jnp.log(y)
    return z * 0.0


def test_the_first_non_finite():
    x = jnp.array([1.0, 2.0, 3.0])
    watched = untrace.watch(bad, **QUICK)(x)
    found = watched.where_first_nonfinite()
    assert found is not None and found.name == "z"
    assert (found.statistics.nans, found.statistics.minus_infs) == (1, 1)
    alone = untrace.watch(bad, only="first non-finite", **QUICK)(x)
    assert [r.name for r in alone.records()] == ["z"]
    assert untrace.watch(bad, only="first non-finite", **QUICK)(x + 5).where_first_nonfinite() is None


def test_the_first_non_finite_is_found_in_a_turn_that_was_not_chosen():
    def f(x):
        def turn(c, _):
            c = 1.0 / (5.0 - c) * (5.0 - c) + c
            return c, None

        return lax.scan(turn, x, length=9)[0]

    watched = untrace.watch(f, turns=1, **QUICK)(jnp.float32(0.0))
    found = watched.where_first_nonfinite()
    assert found is not None and found.turns == ((5, 9),)


@pytest.mark.parametrize(
    ("only", "holds"),
    [
        ("hidden", lambda r: r.name == "hidden"), ("model", lambda r: r.function == "model"),
        ("layer.hid*", lambda r: r.name == "hidden"), (["loss", "grads"], lambda r: r.name in ("loss", "grads.w", "grads.b")),
    ],
)  # fmt: skip
def test_only(only, holds, text, stepped):
    wanted = [(r.name, r.kind, r.line) for r in stepped.records() if holds(r)]
    found = untrace.watch(text, only=only)(weights(), X).records()
    assert [(r.name, r.kind, r.line) for r in found] == wanted
    assert 0 < len(wanted) < len(stepped)


def test_memory_is_bounded():
    def f(x):
        def turn(c, _):
            c = c + 1.0
            return c, None

        c, _ = lax.scan(turn, x, length=200)
        return c

    came = []
    watched = untrace.watch(f, turns=1000, keep=100, records=10, to=came.append, **QUICK)(jnp.float32(0.0))
    assert len(watched) == 10 and len(came) > 200
    turns = [r.turns[0][0] for r in watched.records() if r.turns]
    assert turns[:3] == [0, 1, 2] and turns[-1] == 199
    assert sum(r.value.nbytes for r in came if r.value is not None) <= 100
    assert [bool(re.search(w, " ".join(watched.notes))) for w in ("records=", "keep=")] == [True, True]
    with pytest.raises(untrace.OptionError, match="keep="):
        watched["c"]


def test_static_arguments_and_a_text_that_is_there():
    def f(x, n, *, scale=1.0):
        for _ in range(n):
            x = jnp.sin(x) * scale
        return x

    watched = untrace.watch(f, static_argnums=1, static_argnames="scale", **QUICK)(jnp.ones(2), 3, scale=2.0)
    np.testing.assert_allclose(watched.result, f(jnp.ones(2), 3, scale=2.0), rtol=1e-6)
    text = untrace.decompile(bad)(X)
    np.testing.assert_array_equal(untrace.watch(text)(X + 3.0)["z"], jnp.log(X + 3.0 - 2.0))


# ---------------------------------------------------------------- what is refused


def test_refusals(stepped):
    with pytest.raises(untrace.OptionError, match="needs values"):
        untrace.watch(bad)(jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(untrace.OptionError, match="target="):
        untrace.watch(bad, target="numpy")
    with pytest.raises(untrace.OptionError, match="records=-1"):
        untrace.watch(bad, records=-1)
    with pytest.raises(KeyError, match="no statement gave 'nothing' a value; there are .*hidden"):
        stepped["nothing"]


# ---------------------------------------------------------------- long texts


def test_statements_are_cut_out_of_the_text_byte_by_byte():
    def f(β, größe):
        λ = β * 2.0 + größe
        return {"ä": (λ - β).sum(), "b": λ}

    text = untrace.decompile(f, **QUICK)(jnp.ones(3), jnp.ones(3))
    for record in untrace.watch(text)(jnp.ones(3), jnp.ones(3)).records():
        if record.statement:
            lines = " ".join(" ".join(text.source.split("\n")[record.line - 1 :]).split())
            assert lines.startswith(record.statement)


def test_the_work_to_put_probes_in_grows_with_the_text_and_not_its_square():
    def work(count):
        lines = "".join(f"    x = jnp.sin(x) * {i}.0\n" for i in range(count))
        source = f"import jax.numpy as jnp\n\n\ndef f(x):\n{lines}    return x\n"
        text = dataclasses.replace(small, source=source, name="f", _module=None)
        sites = []
        ran = lines_run(lambda: sites.extend(instrumented(text).sites))
        assert len(sites) == count + 1
        return ran

    small = untrace.decompile(lambda x: x + 1.0, **QUICK)(jnp.ones(3))
    work(1)
    assert work(800) < 10 * work(100)


def test_a_name_that_is_none_is_said():
    found = untrace.watch(lambda x: jnp.sin(x) * 2.0, only="hiden")(jnp.ones(3))
    assert not len(found) and "nothing that ran is named 'hiden'" in str(found)


@pytest.mark.parametrize(
    "options", [{"onyl": "x"}, {"only": 5}, {"turns": 2.5}, {"turns": -1}, {"turns": {-1}}, {"turns": "3"}, {"keep": "1MB"}, {"to": 3}]
)  # fmt: skip
def test_what_is_no_option_is_refused(options):
    with pytest.raises(untrace.OptionError):
        untrace.watch(lambda x: x, **options)(1.0)


def test_values_are_needed():
    with pytest.raises(untrace.OptionError, match="watch the transformed function|Watch the transformed function"):
        jax.jit(lambda x: untrace.watch(lambda y: y + 1.0)(x).result)(1.0)
    with pytest.raises(untrace.OptionError, match="has a name"):
        untrace.watch(lambda x: x + 1.0)(1.0)[0]


def test_what_a_callback_raises_is_said():
    def with_host(x):
        return jax.pure_callback(lambda a: 1 / 0, jax.ShapeDtypeStruct((), jnp.float32), x) + 1

    with pytest.raises(untrace.CaptureError, match="calls back has raised on these values: ZeroDivisionError"):
        untrace.watch(with_host)(jnp.ones(3))


def test_the_author_s_line_is_that_of_the_value():
    def chained(x, w):
        h = x @ w
        h = h - 5.0
        h = h * 1.5
        h = jnp.log(h)
        return h.sum() + h.max()

    first = chained.__code__.co_firstlineno
    found = untrace.watch(chained)(jnp.eye(3), jnp.ones((3, 3))).where_first_nonfinite()
    assert found is not None and found.author.endswith(f":{first + 4}"), (found.author, found.statement)
