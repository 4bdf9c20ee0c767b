"""Loops take and give the author's pytrees: `state, losses = lax.scan(step, State(...), batches)`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from programs import program_of

import untrace
from untrace.capture.function import trace
from untrace.ir.bodies import forget_trees
from untrace.ir.nodes import walk_functions

pytestmark = pytest.mark.usefixtures("unguarded")


def f32(*shape: int) -> Any:
    return jnp.linspace(0.1, 0.9, int(np.prod(shape)), dtype=jnp.float32).reshape(shape)


class State(NamedTuple):
    params: Any
    mu: Any
    step: Any


class Particle(NamedTuple):
    x: Any
    v: Any


def loss_fn(params: Any, batch: Any) -> Any:
    x, y = batch
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


def train(params: Any, batches: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, state.mu, grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state.params, mu)
        return State(params, mu, state.step + 1), loss

    init = State(params, jax.tree.map(jnp.zeros_like, params), jnp.array(0))
    state, losses = lax.scan(step, init, batches)
    return state.params, losses


def swings(state: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        vel = s["vel"] - 0.1 * s["pos"]
        return {"pos": s["pos"] + 0.1 * vel, "vel": vel}

    return lax.fori_loop(0, 10, body, state)


def fibonacci(x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return {"last": s["next"], "next": s["last"] + s["next"]}

    return lax.fori_loop(0, 10, body, {"last": x, "next": x})["last"]


def powers(state: Any, n: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return {"m": s["m"], "v": s["m"] @ s["v"], "n": s["n"] + i}

    return lax.fori_loop(0, n, body, state)["v"]


def solve(a: Any, b: Any) -> Any:
    def cond(s: Any) -> Any:
        return (jnp.sum(s["r"] ** 2) > 1e-6) & (s["k"] < 20)

    def body(s: Any) -> Any:
        ap = a @ s["p"]
        alpha = s["rs"] / (s["p"] @ ap)
        r = s["r"] - alpha * ap
        rs = r @ r
        x = s["x"] + alpha * s["p"]
        return {"x": x, "r": r, "p": r + rs / s["rs"] * s["p"], "rs": rs, "k": s["k"] + 1, "tol": s["tol"]}

    init = {"x": jnp.zeros_like(b), "r": b, "p": b, "rs": b @ b, "k": 0, "tol": 1e-3}
    return lax.while_loop(cond, body, init)["x"]


def carried(carry: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        params, (low, high), count = carry
        value = jnp.tanh(x["a"] @ params["w"] + params["b"]) * x["b"]
        return (params, (jnp.minimum(low, value), jnp.maximum(high, value)), count + 1), {"value": value}

    return lax.scan(step, carry, xs)


def mapped(batch: Any) -> Any:
    def one(example: Any) -> Any:
        return {"sum": example["a"].sum() + example["b"], "product": example["a"] * example["b"]}

    return lax.map(one, batch)


def verlet(particle: Any, dt: Any) -> Any:
    def step(p: Any, _: Any) -> Any:
        v = p.v - dt * p.x
        new = Particle(p.x + dt * v, v)
        return new, new

    return lax.scan(step, particle, None, length=8)


def counted(y: Any, limit: Any) -> Any:
    def unfinished(state: Any) -> Any:
        i, y, dt = state
        return (i < 3) & (y.sum() < limit)

    def halved(state: Any) -> Any:
        i, y, dt = state
        return [i + 1, y + dt * jnp.sin(y), dt * 0.5]

    count, y, _ = lax.while_loop(unfinished, halved, [0, y, 0.1])
    return y, count


PARAMS = {"w1": f32(4, 8), "b1": f32(8), "w2": f32(8, 2), "b2": f32(2)}
CASES: list[Any] = [
    (
        train,
        (PARAMS, (f32(5, 6, 4), f32(5, 6, 2))),
        [
            "def step(state, batch):",
            "x, y = batch",
            "mu = jax.tree.map(lambda m, g: 0.9 * m + g, state.mu, grads)",
            "return State(params=params, mu=mu, step=state.step + 1), loss",
            "State(params=params, mu=jax.tree.map(jnp.zeros_like, params), step=0)",
            "return state.params, losses",
        ],
    ),
    (
        swings,
        ({"pos": f32(3), "vel": f32(3)},),
        ["def body(_, s):", 'return {"pos": ', "return lax.fori_loop(0, 10, body, state)"],
    ),
    # What one leaf becomes is another one as it is.
    (fibonacci, (f32(3),), ['lax.fori_loop(0, 10, body, {"last": x, "next": x})', 'return s["last"]']),
    (powers, ({"m": f32(3, 3), "v": f32(3), "n": 0}, 4), ["def body(i, s):", "lax.fori_loop(0, n, body, state)"]),
    (solve, (jnp.eye(3) * 2, f32(3)), ['s["rs"]', '"tol": s["tol"]', 'return s["x"]']),
    (
        carried,
        (({"w": f32(3, 2), "b": f32(2)}, (f32(2), f32(2)), 0), {"a": f32(5, 3), "b": f32(5, 2)}),
        [
            "params, carry_1, count = carry",
            "low, high = carry_1",
            'x["a"] @ params["w"] + params["b"]',
            '{"value": value}',
        ],
    ),
    (counted, (f32(3), 9.0), ["i, y, _ = state", "i, y, dt = state", "return [i + 1, y + dt * jnp.sin(y), dt * 0.5]"]),
    (mapped, ({"a": f32(5, 3), "b": f32(5)},), ["return lax.map(one, batch)"]),
    (verlet, (Particle(f32(3), f32(3)), 0.1), ["def step(p, _):", "return lax.scan(step, particle, length=8)"]),
]


@pytest.mark.parametrize("function, args, fragments", CASES, ids=[c[0].__name__ for c in CASES])
def test_trees_of_loops(function: Any, args: Any, fragments: list[str]) -> None:
    d = untrace.decompile(function)(*args)
    assert d.proof.at_least("hlo")
    for fragment in fragments:
        assert fragment in d.source, d.source
    ours, theirs = d(*args), jax.jit(function)(*args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(d)(*args), theirs)


def test_it_does_not_matter_what_was_traced_before() -> None:
    args = ({"pos": f32(3), "vel": f32(3)},)
    jax.jit(swings)(*args)
    function = lambda state: jax.jit(swings)(state)  # noqa: E731
    text = untrace.decompile(function)(*args).source
    assert "def body(_, s):" in text, text
    jax.clear_caches()
    assert untrace.decompile(function)(*args).source == text


def test_batched_loops_keep_their_trees() -> None:
    d = untrace.decompile(jax.vmap(swings))({"pos": f32(2, 3), "vel": f32(2, 3)})
    assert '"pos"' in d.source and d.proof.at_least("hlo")
    d = untrace.decompile(jax.vmap(lambda s, n: powers(s, n), (None, 0)))(
        {"m": f32(3, 3), "v": f32(3), "n": 0}, np.arange(3)
    )
    assert d.proof.at_least("hlo")


def test_a_gradient_through_a_loop_is_written_without_trees() -> None:
    d = untrace.decompile(jax.grad(lambda p, b: train(p, b)[1].sum()))(PARAMS, (f32(5, 6, 4), f32(5, 6, 2)))
    assert d.proof.at_least("bits")


def test_refused_loops_forget_their_trees() -> None:
    captured = trace(swings, ({"pos": f32(3), "vel": f32(3)},), {}, note_calls=True)
    program = program_of(captured, "swings", None)
    bodies = [f for f in walk_functions(program.entry) if f.facts.trees is not None]
    assert len(bodies) == 1
    forget_trees(program, {e.origin for e in program.entry.equations})
    assert bodies[0].facts.trees is None


class Pair(NamedTuple):
    x: Any
    p: Any


def accepted(state: Any, proposal: Any, key: Any) -> Any:
    take = jax.random.uniform(key) < 0.5
    return lax.cond(take, lambda pair: pair[0], lambda pair: pair[1], (proposal, state)), take


def switched(i: Any, s: Any) -> Any:
    def up(s: Any) -> Any:
        return Pair(s.x + 1, s.p)

    def down(s: Any) -> Any:
        return Pair(s.x - 1, {"w": s.p["w"] * 2, "b": s.p["b"] * 3})

    found = lax.switch(i, [up, down], s)
    return found.x + found.p["b"].sum(), found


def stepped(params: Any, first: Any, second: Any) -> Any:
    @jax.jit
    def step(params: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params, before = step(params, first)
    params, after = step(params, second)
    return params, after - before


def checkpointed(params: Any, x: Any) -> Any:
    @jax.checkpoint
    def block(p: Any, x: Any) -> Any:
        return x + jnp.tanh(x @ p["w1"]) @ p["w2"]

    return lax.scan(lambda x, p: (block(p, x), None), x, params)[0].sum()


PAIR = Pair(f32(3), {"w": f32(2), "b": f32(2)})
BATCH = (f32(6, 4), f32(6, 2))
CALLS: list[Any] = [
    (
        accepted,
        (PAIR, PAIR, jax.random.key(0)),
        ["lax.cond(take, lambda pair: pair[0], lambda pair: pair[1], (proposal, state))"],
    ),
    (
        switched,
        (1, PAIR),
        ["def up(s):", "s._replace(x=s.x + 1.0)", "[up, down], s)", 'found.p["b"].sum(), found'],
    ),
    (
        checkpointed,
        ({"w1": f32(3, 4, 8), "w2": f32(3, 8, 4)}, f32(2, 4)),
        ["@jax.checkpoint\ndef block(p, x):", "lambda x, p: (block(p, x), None), x, params)"],
    ),
    (
        stepped,
        (PARAMS, BATCH, BATCH),
        [
            "@jax.jit\ndef step(params, batch):",
            "x, y = batch",
            "return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss",
            "params, before = step(params, first)",
            "params, after = step(params, second)",
            "return params, after - before",
        ],
    ),
]


@pytest.mark.parametrize("function, args, fragments", CALLS, ids=[c[0].__name__ for c in CALLS])
def test_trees_of_branches_and_functions(function: Any, args: Any, fragments: list[str]) -> None:
    test_trees_of_loops(function, args, fragments)


def test_a_function_that_is_jitted_as_a_whole_is_one() -> None:
    d = untrace.decompile(jax.jit(swings))({"pos": f32(3), "vel": f32(3)})
    assert "@jax.jit\ndef swings(state):" in d.source and d.source.count("def ") == 2
    donated = untrace.decompile(jax.jit(lambda state, n: {"x": state["x"] * n, "y": n}, donate_argnums=0))
    d = donated({"x": f32(3), "y": f32()}, f32())
    assert "donate_argnums=(0,)" in d.source and d.proof.at_least("jaxpr")


def test_static_arguments_of_jitted_functions_are_none_of_the_written_one() -> None:
    function = jax.jit(lambda p, n, x: {k: v * n + x for k, v in p.items()}, static_argnums=1)
    d = untrace.decompile(lambda p, x: function(p, 3, x))({"a": f32(2), "b": f32(2)}, f32(2))
    assert d.proof.at_least("jaxpr") and '{"a": ' in d.source
    jax.tree.map(
        np.testing.assert_array_equal,
        d({"a": f32(2), "b": f32(2)}, f32(2)),
        function({"a": f32(2), "b": f32(2)}, 3, f32(2)),
    )


def test_trees_that_read_badly_stay_flat() -> None:
    """A class that takes more than its children is put together by its registration alone."""

    @jax.tree_util.register_pytree_node_class
    class Odd:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

        def tree_flatten(self) -> Any:
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    def function(x: Any) -> Any:
        odd = lax.fori_loop(0, 3, lambda i, s: Odd(s.a + s.b, s.b * 2), Odd(x, x))
        return odd.a

    d = untrace.decompile(function)(f32(3))
    assert "s_0, s_1 = s" in d.source and d.proof.at_least("jaxpr")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Training:
    params: Any
    count: Any
    rate: Any = dataclasses.field(metadata={"static": True}, default=lambda count: 0.1)


def trained(state: Any, batch: Any) -> Any:
    @jax.jit
    def step(state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
        rate = state.rate(state.count)
        params = jax.tree.map(lambda p, g: p - rate * g, state.params, grads)
        return dataclasses.replace(state, params=params, count=state.count + 1), loss

    state, before = step(state, batch)
    return lax.fori_loop(0, 3, lambda i, s: step(s, batch)[0], state), before


def test_what_is_no_array_of_a_state_stays_in_it() -> None:
    """The text has no source for the function in the state, and needs none: the state is replaced."""
    state = Training(PARAMS, jnp.int32(0))
    d = untrace.decompile(trained)(state, BATCH)
    assert "dataclasses.replace(state, params=" in d.source and "x, y = batch" in d.source, d.source
    assert "lambda_(" not in d.source and "_node(" not in d.source
    ours, theirs = jax.jit(d)(state, BATCH), jax.jit(trained)(state, BATCH)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_elements_that_stop_apart_are_mapped() -> None:
    """No public function takes a condition of several elements but `vmap`."""

    def count(x: Any) -> Any:
        return lax.while_loop(lambda s: s["v"] < 3, lambda s: {"v": s["v"] + x, "n": s["n"] + 1}, {"v": x, "n": 0})

    d = untrace.decompile(jax.vmap(count))(f32(5))
    assert "jax.vmap(count)(x)" in d.source and "lax.while_loop(" in d.source and not d.notes, d.source
    assert d.proof.level == "jaxpr"


def test_a_text_that_does_not_trace_with_trees_is_written_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from untrace.targets.jax import loop_trees

    def wrong(w: Any, tree: Any, operands: Any, word: str = "") -> Any:
        return loop_trees.Text("None")

    monkeypatch.setattr(loop_trees, "given", wrong)
    d = untrace.decompile(swings)({"pos": f32(3), "vel": f32(3)})
    assert "pos, vel = s" in d.source and not d.notes and d.proof.level == "jaxpr"


def test_a_body_that_only_calls_a_function_is_that_function() -> None:
    step = jax.jit(lambda s, x: ({"n": s["n"] + x}, x * 2))

    def function(xs: Any) -> Any:
        return lax.scan(lambda s, x: step(s, x), {"n": 0.0}, xs)

    d = untrace.decompile(function)(f32(5))
    assert "return lax.scan(step, {" in d.source or "return lax.scan(fn, {" in d.source, d.source
    assert d.proof.level == "jaxpr"


def test_a_second_decompilation_gives_the_same_text() -> None:
    """What JAX traced before it does not call again: untrace traces afresh then, and so must the rules that come later."""

    @jax.jit
    def rank(x: Any) -> Any:
        return jnp.sin(x) * jnp.cos(x) + jnp.exp(-x)

    def order(x: Any) -> Any:
        return x + rank(x)

    ranked = jax.custom_vjp(order)
    ranked.defvjp(lambda x: (order(x), (x, order(x))), lambda kept, g: (g * kept[0] + kept[1],))

    def step(state: Any, x: Any) -> Any:
        return {"n": state["n"] + ranked(x)}, x

    def function(x: Any) -> Any:
        return lax.scan(step, {"n": x[0]}, x)

    first, second = (untrace.decompile(function)(f32(5, 3)) for _ in range(2))
    assert first.source == second.source


def test_what_filter_jit_calls_takes_the_authors_trees() -> None:
    """equinox hands `jax.jit` the leaves, and how they make trees as a static argument; its marker nobody reads."""
    equinox = pytest.importorskip("equinox")

    class Net(equinox.Module):
        layers: list
        activation: Any

        def __init__(self, key):
            one, two = jax.random.split(key)
            self.layers = [equinox.nn.Linear(3, 4, key=one), equinox.nn.Linear(4, 2, key=two)]
            self.activation = jnp.tanh

        def __call__(self, x):
            return self.layers[1](self.activation(self.layers[0](x)))

    def step(params, x, y):
        model = equinox.combine(params, static)

        @equinox.filter_jit
        def make_step(model, x, y):
            def loss(model):
                return jnp.mean((jax.vmap(model)(x) - y) ** 2)

            value, grads = equinox.filter_value_and_grad(loss)(model)
            return equinox.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), value

        model, value = make_step(model, x, y)
        return equinox.filter(model, equinox.is_array), value

    params, static = equinox.partition(Net(jax.random.key(0)), equinox.is_array)
    d = untrace.decompile(step)(params, jnp.ones((5, 3)), jnp.ones((5, 2)))
    assert "def make_step(model, x, y):" in d.source
    assert "jax.tree.map(" in d.source
    assert "return make_step(params, x, y)" in d.source
    assert "first_0" not in d.source
    assert d.proof.at_least("hlo")


def test_a_name_for_a_checkpoint_is_imported() -> None:
    """`import jax` alone does not bind `jax.ad_checkpoint`: where nothing else has imported it, the module must."""
    from jax.ad_checkpoint import checkpoint_name

    d = untrace.decompile(lambda x: checkpoint_name(jnp.sin(x), "pre") * 2.0)(f32(3))
    assert "from jax.ad_checkpoint import checkpoint_name" in d.source
    assert 'checkpoint_name(jnp.sin(x), "pre")' in d.source
