"""The parameters of outlined functions: the author's order, his names, his trees."""

from __future__ import annotations

import ast
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import untrace
from untrace.lift.naming.unpacked import parts_in

pytestmark = pytest.mark.usefixtures("unguarded")


class Coefficients(NamedTuple):
    cx: jax.Array
    cy: jax.Array


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True) + 1e-6) * scale


def swiglu(p, x):
    return (jax.nn.silu(x @ p["w1"]) * (x @ p["w3"])) @ p["w2"]


def block(p, x):
    x = x + swiglu(p["mlp"], rms_norm(x, p["ln1"]))
    return x + jnp.tanh(rms_norm(x, p["ln2"]))


def decoder(params, x):
    for p in params["blocks"]:
        x = block(p, x)
    return rms_norm(x, params["ln_f"])


def upwind(u, c, axis):
    back, ahead = u - jnp.roll(u, 1, axis), jnp.roll(u, -1, axis) - u
    return jnp.where(c > 0, c * back, c * ahead)


def rhs(u, p):
    return -upwind(u, p.cx, 0) - upwind(u, p.cy, 1)


def advect(u, p):
    u = u + 0.1 * rhs(u, p)
    return u + 0.1 * rhs(u, p)


def last_layer(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    last = params[-1]
    return x @ last["w"] + last["b"]


def two_towers(params, x):
    return last_layer(params["left"], x).sum() * last_layer(params["right"], jnp.sin(x)).sum()


def log_gaussian(x, mean, cov):
    return -0.5 * (x - mean) @ jnp.linalg.inv(cov) @ (x - mean)


def responsibilities(x, weights, means, covs):
    logs = jax.vmap(lambda m, c: jax.vmap(lambda xi: log_gaussian(xi, m, c))(x))(means, covs)
    logs = logs + jnp.log(weights)[:, None]
    return jnp.exp(logs - jax.nn.logsumexp(logs, axis=0))


def fit(x, state):
    return jax.lax.scan(lambda s, _: ((s[0] + responsibilities(x, *s).mean(), *s[1:]), None), state, None, length=3)[0]


def recorded(c, source, gain):
    def step(u, t):
        u = jnp.sin(u * c).at[source].add(gain * jnp.cos(t))
        return u, u[source]

    damped = jnp.exp(-jnp.abs(c)) * c / (1.0 + c**2)
    return jax.lax.scan(step, damped, jnp.arange(5.0))[1]


def misfit(c, source, gain):
    return jnp.sum(recorded(c, source, gain) ** 2)


def update(c, source, gain):
    return c - 0.1 * jax.grad(misfit)(c, source, gain)


class Gaussian(NamedTuple):
    mean: jax.Array
    cov: jax.Array


def predict(state, noise):
    F = jnp.array([[1.0, 0.1], [-jnp.cos(state.mean[0]), 1.0]])
    return Gaussian(F @ jnp.sin(state.mean), F @ state.cov @ F.T + noise * jnp.eye(2)), F


def corrected(prior, y):
    gain = jnp.linalg.solve(prior.cov + jnp.eye(2), prior.cov)
    mean = prior.mean + gain @ (y - prior.mean)
    return Gaussian(mean, prior.cov - gain @ prior.cov), jnp.sum((y - prior.mean) ** 2)


def filtered(init, ys, noise):
    def step(state, y):
        prior, F = predict(state, noise)
        posterior, error = corrected(prior, y)
        return posterior, (prior, F, error)

    return jax.lax.scan(step, init, ys)


def small(*shape):
    return jnp.linspace(-0.5, 0.7, int(jnp.prod(jnp.array(shape)))).reshape(shape)


BLOCK = {
    "mlp": {"w1": small(4, 8), "w2": small(8, 4), "w3": 2 * small(4, 8)},
    "ln1": small(4) + 1.0,
    "ln2": small(4) + 2.0,
}
LAYER = {"w": small(4, 4), "b": small(4)}
PROGRAMS = {
    "trees": (
        decoder,
        ({"blocks": [BLOCK, BLOCK, BLOCK], "ln_f": small(4)}, small(6, 4)),
        ["rms_norm(x, scale)", "swiglu(p, x)", "block(p, x)", "decoder(params, x)"],
    ),
    "attributes": (
        advect,
        (small(4, 5), Coefficients(jnp.float32(0.5), jnp.float32(-0.25))),
        ["upwind(u, c, axis)", "rhs(u, p)", "advect(u, p)"],
    ),
    "a loop over a list": (
        two_towers,
        ({"left": [LAYER, LAYER, LAYER], "right": [LAYER, LAYER, LAYER]}, small(3, 4)),
        ["last_layer(params, x)", "two_towers(params, x)"],
    ),
    "mapped lambdas": (
        fit,
        (small(7, 2), (jnp.full(3, 0.3), small(3, 2), jnp.stack([jnp.eye(2)] * 3))),
        ["responsibilities(x, weights, means, covs)", "fit(x, state)"],
    ),
    "closed over by a loop": (
        update,
        (small(3, 4), (1, 2), jnp.float32(0.5)),
        ["recorded(c, source, gain)", "misfit(c, source, gain)"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_parameters_are_the_author_s(name):
    function, args, expected = PROGRAMS[name]
    written = untrace.decompile(function, style="idiomatic", derivatives="called")(*args)
    assert written.proof.at_least("bits")
    definitions = [d for d in ast.parse(written.source).body if isinstance(d, ast.FunctionDef)]
    heads = {f"{d.name}({', '.join([a.arg for a in d.args.args])})" for d in definitions}
    assert set(expected) <= heads


def test_what_a_function_gives_back_is_a_tree_of_its_author_s():
    written = untrace.decompile(filtered)(Gaussian(small(2), jnp.eye(2)), small(5, 2), jnp.float32(0.1))
    assert written.proof.at_least("bits")
    for line in (
        "def predict(state, noise):",
        "def corrected(prior, y):",
        "prior, F = predict(state, noise)",
        "posterior, error = corrected(prior, y)",
        "return posterior, (prior, F, error)",
    ):
        assert line in written.source, written.source


def parts_of(function):
    (definition,) = ast.parse(function).body
    return parts_in(definition)


@pytest.mark.parametrize(
    ("body", "expression", "expected"),
    [
        ("w = p['w']", "w", ("p", (("item", "w"),))),
        ("w, (a, b) = p", "b", ("p", (("item", 1), ("item", 1)))),
        ("last = p[-1]", "last.mu", ("p", (("item", -1), ("attribute", "mu")))),
        ("x = x + 1", "x", ("x", ())),
        ("p = p['inner']", "p['w']", None),
        ("w = p['w'] if flag else p['v']", "w", None),
        ("w = p['w']\n    w = w * 2", "w", None),
        ("for w in p: pass", "w", None),
    ],
)
def test_what_part_of_a_parameter_an_expression_is(body, expression, expected):
    parts = parts_of(f"def f(p, x):\n    {body}\n    return x")
    assert parts.part(ast.parse(expression, mode="eval").body) == expected


@pytest.mark.parametrize(
    ("loop", "name", "expected"),
    [
        ("for layer in p[:-1]: pass", "layer", ("p", ())),
        ("for layer in p['layers']: pass", "layer", ("p", (("item", "layers"),))),
        ("for i, (w, b) in enumerate(p): pass", "b", ("p", ())),
        ("for w, x in zip(p, xs): pass", "x", ("xs", ())),
        ("for k, v in p.items(): pass", "k", None),
        ("for k, v in p.items(): pass", "v", ("p", ())),
        ("y = [g * 2 for g in xs]", "g", ("xs", ())),
        ("for w in p: w = w + 1", "w", ("p", ())),
        ("for w in unknown: pass", "w", None),
    ],
)
def test_what_a_loop_goes_through(loop, name, expected):
    parts = parts_of(f"def f(p, xs):\n    {loop}\n    return p")
    assert parts.some_part(ast.Name(name)) == expected


def rollout(params, position, velocity):
    def step(state, _):
        x, v = state
        v = v - 0.1 * jnp.tanh(x @ params["w"] + params["b"])
        return (x + 0.1 * v, v), x

    return jax.lax.scan(step, (position, velocity), None, length=3)[1]


def distance(params, position, velocity, target):
    path = rollout(params, position, velocity)
    return jnp.mean((path - target) ** 2)


def trained(params, position, velocity, target):
    value, grads = jax.value_and_grad(distance)(params, position, velocity, target)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_a_loop_that_is_a_function_of_its_author_s_stays_one():
    args = (LAYER, small(5, 4), small(5, 4), jnp.zeros((3, 5, 4)))
    source = untrace.decompile(trained)(*args).source
    assert "def rollout(params, position, velocity):" in source, source
    assert "(rollout(params, position, velocity) - target)" in source, source


def adam(grads, state, params, *, rate):
    count = state["count"] + 1

    def leaf(g, m, p):
        m = 0.9 * m + 0.1 * g
        return p - rate * m / (1.0 - 0.9**count), m

    pairs = [leaf(*leaves) for leaves in zip(*map(jax.tree.leaves, (grads, state["m"], params)), strict=True)]
    structure = jax.tree.structure(params)
    new, m = (structure.unflatten([pair[i] for pair in pairs]) for i in range(2))
    return new, {"m": m, "count": count}


def adam_step(params, state, x):
    grads = jax.grad(lambda p: jnp.sum(jnp.sin(x @ p["a"]) @ p["b"] + p["c"]["d"]))(params)
    return adam(grads, state, params, rate=0.1 * x[0, 0])


def test_trees_that_nobody_takes_apart_by_name_are_seen():
    """`jax.tree.leaves` leaves no keys in the source: what was passed for what is known from the call."""
    params = {"a": small(4, 4), "b": small(4), "c": {"d": small(3)}}
    state = {"m": jax.tree.map(jnp.zeros_like, params), "count": jnp.int32(0)}
    source = untrace.decompile(adam_step)(params, state, small(3, 4)).source
    assert "def adam(grads, state, params, rate):" in source, source
    assert "adam(grads, state, params, " in source, source


def rotated(matrix, state, axis):
    turned = jnp.tensordot(matrix, state, axes=(1, axis))
    return jnp.moveaxis(turned / (1.0 + jnp.abs(turned)), 0, axis)


def circuit(matrix, state):
    gates = [functools.partial(rotated, matrix, axis=axis) for axis in (0, 1, 0, 2)]
    return functools.reduce(lambda value, gate: gate(state=value), gates, state)


def test_what_a_partial_function_is_called_with_is_seen():
    """`functools.reduce` and `functools.partial` call from C: no statement says what is passed."""
    source = untrace.decompile(circuit)(small(2, 2), small(2, 2, 2)).source
    definitions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    found = [[a.arg for a in d.args.args] for d in definitions if "rotated" in d.name]
    assert found == [["matrix", "state"]] * 3, source


def attend(params, path, x):
    return jax.nn.softmax(x @ params[f"{path}/query"] @ (x @ params[f"{path}/key"]).T) @ x


def test_calls_that_differ_in_a_key_take_what_they_have_in_common():
    params = {f"{block}/{name}": small(4, 4) for block in ("a", "b") for name in ("query", "key")}
    source = untrace.decompile(lambda p, x: attend(p, "b", jnp.tanh(attend(p, "a", x))))(params, small(3, 4)).source
    assert source.count("def attend") == 1, source


def divergence(p):
    return jnp.roll(p["dx"], 1, 0) - p["dx"] + (jnp.roll(p["dy"], 1, 1) - p["dy"])


def mahalanobis(prior, point):
    return jnp.sum((point - prior.mean) @ jnp.linalg.inv(prior.cov) * (point - prior.mean))


def put_together(field, x, y):
    grown = jax.tree.map(lambda leaf: leaf * (1.0 + x[0]), field)
    first = divergence(field) + divergence({"dx": jnp.outer(x, y), "dy": jnp.outer(y, x)}) * divergence(grown)
    return first.sum() * mahalanobis(Gaussian(x, jnp.outer(y, y) + jnp.eye(3)), y)


def test_trees_that_the_author_puts_together_are_put_together():
    source = untrace.decompile(put_together)({"dx": small(3, 3), "dy": small(3, 3)}, small(3), 2.0 * small(3)).source
    assert "def divergence(p):" in source and source.count("def divergence") == 1, source
    assert "divergence(field)" in source and 'divergence({"dx": ' in source, source
    assert "def mahalanobis(prior, point):" in source and "mahalanobis(Gaussian(mean=x, cov=" in source, source


def test_a_tree_of_many_leaves_is_not_put_together():
    def summed(leaves):
        return sum(jnp.sin(leaf) * number for number, leaf in enumerate(jax.tree.leaves(leaves), 1))

    def doubled(x):
        made = [{f"leaf_{n}": x * n for n in range(9)}, {f"leaf_{n}": x + n for n in range(9)}]
        return summed(made[0]) * summed(made[1])

    source = untrace.decompile(doubled)(small(3)).source
    assert '{"leaf_0"' not in source, source


def written_at(table, new, layer, start):
    old = jnp.sin(table[layer])
    return table.at[layer, start:].add(jnp.tanh(new[start:] - old[start:]))


def two_layers(table, x):
    table = written_at(table, jnp.sin(x), 0, start=1)
    return written_at(table, jnp.cos(x) * table[1], 1, start=2)


def test_numbers_in_which_calls_differ_are_called_as_their_author_calls_them():
    source = untrace.decompile(two_layers)(small(2, 4), small(4)).source
    assert "def written_at(table, new, layer, start):" in source and source.count("def written_at") == 1, source
