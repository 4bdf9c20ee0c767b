"""What is done to every leaf of a tree comes back as `jax.tree.map`, and only where it is that."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import program_of
from roundtrip import saved

import untrace
from untrace.capture.function import trace
from untrace.ir.check import check
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import TreeMap
from untrace.lift import lift

pytestmark = pytest.mark.usefixtures("unguarded")

KEY = jax.random.key(0)
PARAMS = {
    "dense": {"w": jax.random.normal(KEY, (3, 4)), "b": jnp.ones(4)},
    "out": {"w": jax.random.normal(KEY, (4, 2)), "b": jnp.zeros(2)},
    "scale": jnp.float32(2.0),
}
X = jax.random.normal(KEY, (5, 3))


def _state():
    class State(NamedTuple):  # a class that no module has
        params: dict
        momentum: dict

    return State


State = _state()


class Moments(NamedTuple):
    mu: dict
    nu: dict


def loss(params, x):
    h = jnp.tanh(x @ params["dense"]["w"] + params["dense"]["b"])
    y = h @ params["out"]["w"] + params["out"]["b"]
    return jnp.mean((params["scale"] * y) ** 2)


def sgd(params, x, rate):
    def update(w, d):
        d = d + 0.01 * w
        return w - rate * d

    return jax.tree.map(update, params, jax.grad(loss)(params, x))


def momentum_step(state, x):
    grads = jax.grad(loss)(state.params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, grads)
    return State(jax.tree.map(lambda p, m: p - 0.1 * m, state.params, momentum), momentum)


class Nothing(NamedTuple):
    """A part of an optimiser's state that holds nothing."""


def chained_step(params, state, x):
    """The momentum is all that a longer state holds: its leaves are those of `state`, its structure is not."""
    grads = jax.grad(loss)(params, x)
    momentum = jax.tree.map(lambda g, m: g + 0.9 * m, grads, state[0].momentum)
    updates = jax.tree.map(lambda m: -0.1 * m, momentum)
    return jax.tree.map(lambda p, u: p + u, params, updates), (state[0]._replace(momentum=momentum), state[1])


def normalised(params):
    length = jnp.sqrt(sum(jnp.sum(p * p) for p in jax.tree.leaves(params)))
    return jax.tree.map(lambda p: p / length, params)


def penalised(params, x):
    return loss(params, x) + 1e-3 * sum(jnp.sum(p**2) for p in jax.tree.leaves(params))


def zeros_like_each(params):
    return jax.tree.map(lambda p: p + jnp.cos(jnp.zeros(p.shape)), params)


def swapped(a, b, c):
    """The same for three leaves, but of no tree: two come from one argument."""
    return [jnp.sin(x) for x in (a["x"], a["y"], b, c)]


def crossed(params, other):
    """Leaves of two trees in another order: no map of both."""
    left, right = jax.tree.leaves(params), jax.tree.leaves(other)
    return [p.sum() - o.sum() for p, o in zip(left, right[1:] + right[:1], strict=True)]


PROGRAMS = {
    "sgd": (sgd, (PARAMS, X, jnp.float32(0.1))),
    "momentum_step": (momentum_step, (State(PARAMS, PARAMS), X)),
    "chained_step": (chained_step, (PARAMS, (State(None, PARAMS), Nothing()), X)),
    "normalised": (normalised, (PARAMS,)),
    "penalised": (jax.value_and_grad(penalised), (PARAMS, X)),
    "zeros_like_each": (zeros_like_each, ({k: PARAMS[k] for k in ("dense", "out")},)),
    "swapped": (swapped, ({"x": X, "y": X}, X + 1.0, X + 2.0)),
    "crossed": (crossed, (PARAMS, PARAMS)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_written_function_is_the_same_program(name):
    function, args = PROGRAMS[name]
    found = untrace.decompile(function)(*args)
    assert found.proof.level in ("jaxpr", "hlo")
    expected = jax.jit(function)(*args)
    result = jax.jit(found)(*args)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pass_keeps_the_meaning(name):
    function, args = PROGRAMS[name]
    program = program_of(trace(function, args, {}), function, "f")
    flat = jax.tree.leaves(args)
    before = evaluate(program.entry, *flat)
    lift(program)
    check(program.entry)
    for ours, theirs in zip(evaluate(program.entry, *flat), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert name == "crossed" or any(type(e.callee) is TreeMap for e in program.entry.equations)


@pytest.mark.parametrize(
    "name, line",
    [
        ("sgd", "jax.tree.map(update, params, grads)"),
        ("momentum_step", "jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, grads)"),
        ("momentum_step", "return state._replace(params=new_params, momentum=momentum)"),
        ("chained_step", "jax.tree.map(lambda g, m: g + 0.9 * m, grads, state[0].momentum)"),
        ("chained_step", "jax.tree.map(lambda p, u: p + u, params, updates)"),
        ("normalised", "jax.tree.map(lambda x: x / length, params)"),
        ("normalised", "sum((p * p).sum() for p in jax.tree.leaves(params))"),
        ("zeros_like_each", "jnp.zeros(x.shape)"),
    ],
)
def test_the_line(name, line):
    function, args = PROGRAMS[name]
    text = untrace.decompile(function)(*args).source
    text = text.replace("lambda p:", "lambda x:").replace("p.shape", "x.shape").replace("p / length", "x / length")
    assert line in text


@pytest.mark.parametrize("name", ["swapped", "crossed"])
def test_leaves_of_no_tree_stay_apart(name):
    function, args = PROGRAMS[name]
    assert "jax.tree" not in untrace.decompile(function)(*args).source


def test_layers_are_no_leaves():
    """Calls of one function in a row of which each needs the one before."""

    def layer(w, x):
        y = jnp.tanh(x @ w) * 2.0
        return y - jnp.mean(y, axis=-1, keepdims=True)

    def stack(weights, x):
        for w in weights:
            x = layer(w, x)
        return x

    weights = [jnp.ones((3, 3)), jnp.ones((3, 4)), jnp.ones((4, 2))]
    text = untrace.decompile(stack)(weights, X).source
    assert "jax.tree" not in text and "layer(" in text


def test_a_function_takes_the_tree_that_a_map_gave():
    def network(params, x):
        h = jnp.tanh(x @ params["dense"]["w"] + params["dense"]["b"])
        y = h @ params["out"]["w"] + params["out"]["b"]
        return params["scale"] * y - jnp.mean(y, axis=0)

    def step(params, x):
        new = jax.tree.map(lambda p: 0.9 * p, params)
        return new, network(new, x), jnp.sum(x)

    text = untrace.decompile(step)(PARAMS, X).source
    assert "def network(params, x):" in text and "network(new, x)" in text


def test_trees_are_told_apart_by_structure():
    """Arrays in examples of other trees are not asked whether they are equal."""

    class Nothing(NamedTuple):
        pass

    class Moments(NamedTuple):
        count: jax.Array
        mu: list
        nu: list

    def step(moments, params, x):
        def loss(layers):
            return jnp.sum(jnp.tanh(x @ layers[0]["w"] @ layers[1]["w"] @ layers[2]["w"]))

        grads = jax.grad(loss)(params)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments.mu, grads)
        nu = jax.tree.map(lambda m, g: 0.9 * m + g * g, moments.nu, grads)
        return Moments(moments.count + 1, mu, nu)

    def layers():
        return [{"w": jnp.ones((3, 3)), "b": Nothing()} for _ in range(3)]

    found = untrace.decompile(step)(Moments(jnp.int32(0), layers(), layers()), layers(), X)
    assert "moments._replace(count=" in found.source and "jax.tree.map(" in found.source
    assert found.proof.at_least("bits")


@dataclasses.dataclass
class Training:
    """A training state with functions in it, as Flax has it."""

    params: dict
    moments: Moments
    step: int
    apply: object = dataclasses.field(metadata={"static": True}, default=None)


jax.tree_util.register_dataclass(Training, ["params", "moments", "step"], ["apply"])


@pytest.mark.parametrize("standalone", [False, True])
def test_a_state_with_functions_in_it_is_replaced(standalone):
    """Its class cannot be called without those functions: an argument of the class has them."""
    params = {"w": jnp.ones((3, 4)), "b": jnp.zeros(4)}
    state = Training(params, Moments(mu=params, nu=params), 0, apply=lambda params, x: x @ params["w"] + params["b"])

    def step(state, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.tanh(state.apply(p, x))))(state.params)
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, state.moments.mu, grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state.params, mu)
        return dataclasses.replace(state, params=params, moments=state.moments._replace(mu=mu), step=state.step + 1)

    d = untrace.decompile(step, standalone=standalone)(state, X)
    assert "unflatten" not in d.source
    assert "dataclasses.replace(" in d.source and "moments=state.moments._replace(mu=" in d.source, d.source
    assert jax.tree.structure(d(state, X)) == jax.tree.structure(step(state, X))
    assert d.proof.at_least("bits")


@pytest.mark.parametrize("standalone", [False, True])
def test_a_named_tuple_of_new_leaves_is_put_together_by_its_parts(standalone):
    def step(moments, grads):
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, moments.mu, grads)
        nu = jax.tree.map(lambda n, g: 0.9 * n + g * g, moments.nu, grads)
        finite = jnp.isfinite(grads["scale"])
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), Moments(mu, nu), moments)

    d = untrace.decompile(step, standalone=standalone)(Moments(PARAMS, PARAMS), PARAMS)
    made = "moments._replace(mu=mu, nu=nu)" if standalone else "Moments(mu=mu, nu=nu)"
    assert made in d.source and "unflatten" not in d.source, d.source
    assert d.proof.at_least("bits")


def test_steps_of_a_chain_that_no_name_tells_apart_are_one_map():
    """The second and third `updates` of an optimiser stand in what takes them; the first keeps its name."""

    def step(params, grads, rate):
        updates = jax.tree.map(lambda g: g / 2.0, grads)
        updates = jax.tree.map(lambda u, p: u + 0.1 * p, updates, params)
        updates = jax.tree.map(lambda u: -rate * u, updates)
        return jax.tree.map(lambda p, u: p + u, params, updates)

    found = untrace.decompile(step)(PARAMS, PARAMS, 0.1)
    assert found.source.count("jax.tree.map(") == 2 and "updates_2" not in found.source, found.source
    assert found.proof.at_least("hlo")
    ours, theirs = jax.jit(found)(PARAMS, PARAMS, 0.1), jax.jit(step)(PARAMS, PARAMS, 0.1)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_that_were_just_computed_are_like_the_parameters():
    """No tree of theirs is at hand: neither an optimiser's state nor an update has their structure."""

    def loss(params, x):
        return (jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]).sum()

    def clipped(params, x):
        grads = jax.grad(loss)(params, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)

    params = {"w": np.ones((3, 4), np.float32), "b": np.ones(4, np.float32), "v": np.ones((4, 2), np.float32)}
    d = untrace.decompile(clipped)(params, np.ones((2, 3), np.float32))
    assert "jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)" in d.source, d.source
    assert "sum((g**2).sum() for g in jax.tree.leaves(grads))" in d.source and d.proof.at_least("hlo")


def test_a_leaf_with_one_element_is_summed_like_the_others():
    def norm(grads):
        return jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))

    d = untrace.decompile(norm)({n: np.ones(s, np.float32) for n, s in (("w", (2, 3)), ("b", 1), ("v", 4))})
    assert "sum(jnp.square(g).sum() for g in jax.tree.leaves(grads))" in d.source, d.source
    assert d.proof.at_least("hlo")


@pytest.mark.filterwarnings("ignore:optax.global_norm")
def test_a_librarys_norm_of_a_tree_is_written_where_the_tree_is() -> None:
    """`optax.global_norm` gets the leaves of gradients that no tree has in the trace: its function would have a parameter for
    each."""
    optax = pytest.importorskip("optax")

    def step(params, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p["w"] + p["b"]) * p["scale"]))(params)
        norm = optax.global_norm(grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), norm, optax.global_norm(params)

    params = {"w": jnp.ones((3, 4)), "b": jnp.ones((4,)), "scale": jnp.ones((4,))}
    d = untrace.decompile(step)(params, jnp.ones((2, 3)))
    assert "sums = jax.tree.map(lambda x: jnp.square(x).sum(), grads)" in d.source
    assert "jnp.sqrt(sum(jax.tree.leaves(sums)))" in d.source
    assert "def tree_norm" not in d.source
    assert ".copy()" not in d.source
    assert d.proof.at_least("hlo")


def test_a_tree_with_one_branch_is_mapped_as_a_whole():
    """All its leaves are below `params["layers"]`, which says less than `params`."""

    def predict(params, x):
        for layer in params["layers"]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.sum(x**2)

    def fit(params, x):
        def body(carry, _):
            params, velocity = carry
            value, grads = jax.value_and_grad(predict)(params, x)
            velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
            return (jax.tree.map(lambda p, v: p - 0.01 * v, params, velocity), velocity), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(body, (params, zeros), None, length=3)

    layers = [{"w": jnp.ones((4, 4)), "b": jnp.ones(4)} for _ in range(3)]
    written = untrace.decompile(fit)({"layers": layers}, jnp.ones((5, 4)))
    assert written.proof.at_least("hlo")
    assert "jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)" in written.source, written.source


def test_what_a_leaf_gives_on_the_way_is_a_tree_of_its_own():
    def scaled(g):
        size = jnp.sin(g)
        return g * size, size

    def both(params, x):
        leaves, structure = jax.tree.flatten(jax.grad(loss)(params, x))
        pairs = [scaled(g) for g in leaves]
        return tuple(jax.tree.unflatten(structure, part) for part in zip(*pairs, strict=True))

    d = untrace.decompile(both)(PARAMS, X)
    assert d.source.count("jax.tree.map(") == 2 and d.source.count("jnp.sin") == 1, d.source
    for got, want in zip(jax.tree.leaves(d(PARAMS, X)), jax.tree.leaves(both(PARAMS, X)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_leaves_that_share_zeros_are_mapped():
    """Zeros of one shape are one array in the program, and in the function of a leaf each time its own."""
    optax = pytest.importorskip("optax")

    def without_nan(params, state, grads):
        updates, state = optax.zero_nans().update(grads, state, params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, updates), state

    params = {name: jnp.ones(shape) for name, shape in {"a": (3,), "b": (2, 3), "c": (3,), "d": (3,)}.items()}
    found = untrace.decompile(without_nan)(params, optax.zero_nans().init(params), params)
    assert "jnp.where(x, jnp.zeros(x.shape), x_2)" in found.source and "jnp.where(is_nan" not in found.source, (
        found.source
    )


def test_a_sum_over_a_tree_with_a_number_among_its_leaves():
    """JAX leaves no equation where the number itself is its sum."""
    optax = pytest.importorskip("optax")

    def clipped(grads):
        norm = optax.tree.norm(grads)
        return jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads), optax.tree.norm(grads)

    found = untrace.decompile(clipped)(PARAMS)
    assert found.proof.at_least("hlo")
    assert found.source.count("x.sum() if x.ndim > 0 else x") == found.source.count("jax.tree.leaves(") == 1, (
        found.source
    )


def test_products_of_leaves_of_any_rank_are_one_call():
    def averaged(weights, deltas):
        return jax.tree.map(lambda d: jnp.tensordot(weights, d, axes=1), deltas)

    def clipped(grads):
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: g * jnp.minimum(1.0, 10.0 / norm), grads)

    deltas = {"a": jnp.ones((3, 4, 2)), "b": jnp.ones((3, 5)), "c": jnp.ones(3)}
    source = untrace.decompile(averaged)(jnp.ones(3), deltas).source
    assert "jax.tree.map(lambda d: jnp.tensordot(weights, d, axes=1), deltas)" in source, source
    source = untrace.decompile(clipped)({"a": jnp.ones((3, 4)), "b": jnp.ones(5), "c": jnp.float32(1.0)}).source
    assert "sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads))" in source and ".ravel()" not in source, source


TWO = {"w": jnp.ones((4, 2)) * 0.5, "b": jnp.linspace(0.0, 1.0, 2)}


def fitted(params, velocity, x, y):
    def squares(p):
        return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

    value, grads = jax.value_and_grad(squares)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity)
    return params, velocity, value


def clipped_by_norm(grads):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)


def by_hand(params, grads):
    return {"w": params["w"] - 0.1 * grads["w"], "b": params["b"] - 0.1 * grads["b"]}


@pytest.mark.parametrize(
    "program, args, lines",
    [
        (
            fitted,
            (TWO, TWO, jnp.ones((3, 4)), jnp.ones((3, 2))),
            [
                "    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)\n"
                "    params = jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity)\n"
                "    return params, velocity, value\n"
            ],
        ),
        (
            clipped_by_norm,
            (TWO,),
            [
                "    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))\n",
                "    return jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)\n",
            ],
        ),
        (by_hand, (TWO, TWO), ['params["w"] - 0.1 * grads["w"]']),
    ],
    ids=["fitted", "clipped_by_norm", "by_hand"],
)
def test_two_leaves_of_a_tree_that_the_author_maps(program, args, lines, tmp_path):
    found = untrace.decompile(program)(*args)
    assert found.proof.level == "jaxpr", found.proof
    written, text = saved(found, tmp_path)
    for line in lines:
        assert line in text, text
    for one, other in zip(
        jax.tree.leaves(jax.jit(written)(*args)), jax.tree.leaves(jax.jit(program)(*args)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_function_that_maps_one_tree_twice_is_the_one_that_maps_two(tmp_path):
    def blend(old, new):
        return jax.tree.map(lambda a, b: jnp.tanh(a) / 3 + 2 * jnp.sin(b) / 3, old, new)

    def step(params):
        half = blend(params, params)
        return blend(params, half), half

    written, text = saved(untrace.decompile(step)(TWO), tmp_path)
    assert "half = blend(params, params)\n" in text and "blend_2" not in text, text
    np.testing.assert_array_equal(jax.jit(written)(TWO)[0]["w"], jax.jit(step)(TWO)[0]["w"])
