"""The source map: which expression of the text computes which equation, and which of the author's that was."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import untrace


def f32(*shape):
    return jnp.linspace(0.1, 1.0, max(1, int(jnp.prod(jnp.asarray(shape)))), dtype=jnp.float32).reshape(shape)


def text_at(source, span):
    lines = source.split("\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column]
    return " ".join([lines[0][span.column :], *[line.strip() for line in lines[1:]]])


def table(d):
    """(primitive, expressions of the text from the entry inwards, the author's expression) of each equation."""
    return [
        (e.primitive, [text_at(d.source, s) for s in e.calls], e.author.text if e.author else None)
        for e in d.source_map
    ]


def scale(x):
    return x * 2.0


def layer(p, x):
    return jnp.tanh(x @ p["w"])


def network(params, x):
    for p in params:
        x = layer(p, x)
    return x


def quadratic(w, x):
    return jnp.sum((x @ w) ** 2)


def step(w, x):
    value, grads = jax.value_and_grad(quadratic)(w, x)
    return value, w - 0.1 * grads


def looped(x):
    def body(i, c):
        return c + jnp.sin(c)

    return lax.fori_loop(0, 3, body, x)


def scanned(c, xs):
    def body(c, x):
        c = c * x
        return c, c + 1.0

    return lax.scan(body, c, xs)


def chosen(p, x):
    return lax.cond(p, lambda x: jnp.exp(x), lambda x: -x, x)


@jax.jit
def jitted(x):
    return jnp.cos(x) + 1.0


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1.0, 1.0)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, d: (d,))


@functools.partial(jax.checkpoint)
def marked(x):
    return jnp.sin(jnp.sin(x))


def while_loop(x):
    return lax.while_loop(lambda c: jnp.sum(c) < 10.0, lambda c: c * 2.0, x)


MAPS = [
    (
        lambda x: jnp.sin(x) + 1.0,
        (f32(3),),
        [("sin", ["jnp.sin(x)"], "jnp.sin(x)"), ("add", ["jnp.sin(x) + 1.0"], "jnp.sin(x) + 1.0")],
    ),
    (
        lambda x, y: (x + y) * y,
        (f32(3), f32(3)),
        [("add", ["x + y"], "x + y"), ("mul", ["(x + y) * y"], "(x + y) * y")],
    ),
    (
        lambda x: scale(x) + scale(x + 1.0),
        (f32(3),),
        [("mul", ["x * 2.0"], "x * 2.0"), ("mul", ["(x + 1.0) * 2.0"], "x * 2.0")],
    ),
    (
        lambda x: jnp.mean(x, axis=0),
        (f32(3, 2),),
        [
            ("reduce_sum", ["jnp.mean(x, axis=0)"], "jnp.mean(x, axis=0)"),
            ("div", ["jnp.mean(x, axis=0)"], "jnp.mean(x, axis=0)"),
        ],
    ),
    (lambda x: x[1:, None], (f32(3),), [("broadcast_in_dim", ["x[1:][:, None]"], "x[1:, None]")]),
    (
        network,
        ([{"w": f32(2, 2)}] * 3, f32(4, 2)),
        [
            ("dot_general", ["layer(p, x)", 'x @ p["w"]'], 'x @ p["w"]'),
            ("tanh", ["layer(p, x)", 'jnp.tanh(x @ p["w"])'], 'jnp.tanh(x @ p["w"])'),
        ],
    ),
    (
        step,
        (f32(3), f32(4, 3)),
        [
            ("integer_pow", ["jax.value_and_grad(quadratic)(w, x)", "(x @ w) ** 2"], "(x @ w) ** 2"),
            ("mul", ["0.1 * grads"], "0.1 * grads"),
        ],
    ),
    (looped, (f32(3),), [("sin", ["lax.fori_loop(0, 3, body, x)", "jnp.sin(c)"], "jnp.sin(c)")]),
    (
        scanned,
        (jnp.float32(1.0), f32(4)),
        [
            ("mul", ["lax.scan(body, c, xs)", "c * x"], "c * x"),
            ("add", ["lax.scan(body, c, xs)", "c + 1.0"], "c + 1.0"),
        ],
    ),
    (chosen, (jnp.asarray(True), f32(3)), [("exp", None, "jnp.exp(x)"), ("neg", None, "-x")]),
    (jitted, (f32(3),), [("cos", ["jnp.cos(x)"], "jnp.cos(x)")]),
    (
        lambda x: jitted(x) * 2.0,
        (f32(3),),
        [("cos", ["jitted(x)", "jnp.cos(x)"], "jnp.cos(x)"), ("mul", ["jitted(x) * 2.0"], "jitted(x) * 2.0")],
    ),
    (lambda x: clipped(x) * 3.0, (f32(3),), [("mul", ["clipped(x) * 3.0"], "clipped(x) * 3.0")]),
    (lambda x: marked(x), (f32(3),), [("sin", None, "jnp.sin(x)"), ("sin", None, "jnp.sin(jnp.sin(x))")]),
    (while_loop, (f32(3),), [("mul", None, "c * 2.0"), ("reduce_sum", None, "jnp.sum(c)")]),
    (
        lambda x: jax.vmap(lambda r: jnp.sum(r * r))(x),
        (f32(3, 2),),
        [("mul", None, "r * r"), ("reduce_sum", None, "jnp.sum(r * r)")],
    ),
    (
        jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w))),
        (f32(3), f32(4, 3)),
        [("cos", None, "jnp.sin(x @ w)"), ("dot_general", None, "x @ w")],
    ),
    (lambda t: jax.tree.map(lambda a: a + 1.0, t), ({"a": f32(2), "b": f32(3)},), [("add", None, "a + 1.0")]),
    (lambda x: jax.nn.softmax(x), (f32(4),), [("exp", ["jax.nn.softmax(x)"], "jax.nn.softmax(x)")]),
    (
        lambda x: jnp.where(x > 0, x, 0.1 * x),
        (f32(4),),
        [
            ("gt", ["x > 0.0"], "x > 0"),
            ("select_n", ["jnp.where(x > 0.0, x, 0.1 * x)"], "jnp.where(x > 0, x, 0.1 * x)"),
        ],
    ),
]


@pytest.mark.parametrize("number", range(len(MAPS)))
def test_hand_made_maps(number):
    function, args, expected = MAPS[number]
    d = untrace.decompile(function)(*args)
    rows = table(d)
    for primitive, calls, author in expected:
        fitting = [row for row in rows if row[0] == primitive and row[2] == author]
        assert fitting, (primitive, author, rows, d.source)
        assert calls is None or calls in [row[1] for row in fitting], (primitive, calls, fitting, d.source)


def test_every_equation_is_on_the_map():
    d = untrace.decompile(step)(f32(3), f32(4, 3))
    assert len(d.source_map) == len(d.jaxpr.eqns) and all(e.calls and e.author for e in d.source_map)
    assert [e.path for e in d.source_map] == [(i,) for i in range(len(d.jaxpr.eqns))]


def test_turns_of_a_loop_and_calls_of_a_shared_function_are_all_there():
    d = untrace.decompile(network)([{"w": f32(2, 2)}] * 3, f32(4, 2))
    line = next(n for n, text in enumerate(d.source.split("\n"), 1) if "return jnp.tanh(" in text)
    assert [e.primitive for e in d.source_map.at(line)] == ["dot_general", "tanh"] * 3
    assert [e.primitive for e in d.source_map.at(line, d.source.split("\n")[line - 1].index('x @ p["w"]'))].count(
        "tanh"
    ) == 3


def test_from_the_author_s_line_to_the_text_and_back():
    d = untrace.decompile(step)(f32(3), f32(4, 3))
    place = quadratic.__code__.co_firstlineno + 1
    found = d.source_map.of("test_source_map.py", place)
    assert {e.primitive for e in found} >= {"dot_general", "integer_pow", "reduce_sum"}
    assert any(e.backward for e in found) and not all(e.backward for e in found)
    line = next(n for n, text in enumerate(d.source.split("\n"), 1) if "** 2" in text)
    assert {span.line for span in d.source_map.authors(line)} == {place}


def test_a_simplified_program_and_the_style_exact_have_one():
    def f(x):
        return jnp.transpose(jnp.transpose(x)) * 1.0 + 2.0

    for style in ("idiomatic", "exact"):
        d = untrace.decompile(f, style=style)(f32(3, 2))
        assert [e.primitive for e in d.source_map][-1] == "add" and all(e.calls for e in d.source_map)


def test_a_saved_text_s_columns_count_characters():
    def f(größe):
        return jnp.sin(größe) + größe * 2.0

    d = untrace.decompile(f)(f32(3))
    assert ("mul", ["größe * 2.0"], "größe * 2.0") in table(d)
