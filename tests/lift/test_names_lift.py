"""Names of values: the author's, cotangents and tangents after their primal, words for the rest."""

from __future__ import annotations

import keyword
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from libraries import library
from programs import program_of

import untrace
from untrace._identifiers import RESERVED
from untrace.capture.function import trace
from untrace.ir.nodes import Function, Value, walk_functions
from untrace.lift.naming import parameters, words
from untrace.lift.naming.names import name_values

VECTOR = jnp.ones(4)
MATRIX = jnp.ones((4, 4))


def named(function: Any, *args: Any) -> list[Function]:
    """The functions of a named program, the entry first."""
    captured = trace(function, args, {})
    program = name_values(program_of(captured, captured.name, None))
    return list(reversed(walk_functions(program.entry)))


def hints(function: Function) -> dict[str, list[Any]]:
    """{primitive: [hints of its outputs, ...]} in program order."""
    found: dict[str, list[Any]] = {}
    for equation in function.equations:
        found.setdefault(equation.callee.name, []).extend(o.hint for o in equation.outputs if o is not None)
    return found


def results(function: Function) -> list[str | None]:
    return [r.hint if type(r) is Value else None for r in function.results]


def model(params: Any, x: Any) -> Any:
    w, b = params
    hidden = jnp.tanh(x @ w + b)
    centered = hidden - jnp.mean(hidden, axis=-1, keepdims=True)
    return jnp.sum(centered**2)


ARGS = ((jnp.ones((4, 5)), jnp.ones(5)), jnp.ones((3, 4)))


def test_names_of_the_author():
    entry, *_ = named(model, *ARGS)
    assert [p.hint for p in entry.params] == ["w", "b", "x"]
    found = hints(entry)
    assert found["tanh"] == ["hidden"] and found["sub"] == ["centered"]
    assert found["reduce_sum"][-1] == "model"


def test_several_equations_of_one_expression_get_its_name_once():
    def program(x):
        mean = jnp.mean(x)
        return mean + jnp.var(x)

    entry, *_ = named(program, VECTOR)
    outputs = [o.hint for e in entry.equations for o in e.outputs]
    assert outputs.count("mean") == 1
    assert entry.equations[1].outputs[0].hint == "mean"  # the division, not the sum


def test_cotangents_are_named_after_their_primals():
    entry, *_ = named(jax.value_and_grad(model), *ARGS)
    assert results(entry) == ["model", "d_w", "d_b"]
    every = {o.hint for e in entry.equations for o in e.outputs if o is not None}
    assert {"hidden", "centered", "d_hidden", "d_centered"} <= every


def test_an_unrolled_loop_of_the_users_names_every_turn():
    def program(x):
        for _ in range(3):
            x = jnp.sin(x)
        return x

    entry, *_ = named(program, VECTOR)
    assert hints(entry)["sin"] == ["x"] * 3


def rnn(params: Any, xs: Any) -> Any:
    def step(carry, x):
        hidden, total = carry
        hidden = jnp.tanh(x @ params["wx"] + hidden @ params["wh"])
        return (hidden, total + hidden.sum()), hidden

    (last, loss), states = jax.lax.scan(step, (jnp.zeros(4), 0.0), xs)
    return loss + last.sum() + states.sum()


RNN_ARGS = ({"wx": jnp.ones((3, 4)), "wh": MATRIX}, jnp.ones((6, 3)))


def test_loops_have_the_names_of_their_body_and_of_their_caller():
    entry, *rest = named(rnn, *RNN_ARGS)
    assert hints(entry)["scan"] == ["last", "loss", "states"]
    step = next(f for f in rest if f.name == "step")
    assert [p.hint for p in step.params][-3:] == ["hidden", "total", "x"]
    assert {"wx", "wh"} <= {p.hint for p in step.params}
    assert "hidden" in hints(step)["tanh"]


def test_the_gradient_of_a_loop():
    entry, *rest = named(jax.grad(rnn), *RNN_ARGS)
    assert results(entry) == ["d_wh", "d_wx"]
    backward = next(f for f in rest if f.name == "step_bwd")
    assert {"d_wx", "d_wh"} <= {p.hint for p in backward.params}
    assert {"d_wx", "d_wh"} <= set(results(backward))


def test_tangents_are_marked():
    def program(x, v):
        def inner(x):
            y = jnp.sin(x)
            return jnp.exp(y)

        return jax.jvp(inner, (x,), (v,))

    entry, *_ = named(program, VECTOR, VECTOR)
    assert hints(entry)["sin"] == ["y"]
    made = [o.hint for e in entry.equations for o in e.outputs]
    assert "y_dot" in made
    primal, tangent = results(entry)
    assert tangent is not None and tangent.endswith("_dot") and not primal.endswith("_dot")


def test_functions_of_control_flow():
    def program(x):
        grown = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]
        chosen = jax.lax.cond(grown.sum() > 0, lambda a: a * 2.0, lambda a: a - 1.0, grown)
        return chosen

    entry, *rest = named(program, VECTOR)
    assert {f.name for f in rest} >= {"loop_condition", "loop_body", "branch_0", "branch_1"}
    assert hints(entry)["cond"] == ["chosen"]


def test_leaves_of_pytrees():
    paths = [parameters.parse_path(t) for t in ("params['a']['kernel']", "params['b']['kernel']", "x", "state.mu[0]")]
    assert paths[0] == ("params", "a", "kernel") and paths[3] == ("state", "mu", 0)
    assert parameters.leaf_names(paths, None) == ["a_kernel", "b_kernel", "x", "mu_0"]
    optimiser = [parameters.parse_path(t) for t in ("params['w']", "state[0].mu['w']", "state[0].nu['w']")]
    assert parameters.leaf_names(optimiser, None) == ["w", "mu_w", "nu_w"]
    assert parameters.parse_path("'; import os") == ()


def test_plurals():
    for one, many in (("hidden", "hiddens"), ("x", "xs"), ("energy", "energies"), ("box", "boxes"), ("key", "keys")):
        assert words.plural(one) == many
        assert words.singular(many) == one
    assert words.singular("loss") == "loss" and words.plural("states") == "states"


@pytest.mark.parametrize("function,args", [(jax.grad(model), ARGS), (jax.grad(rnn), RNN_ARGS), (rnn, RNN_ARGS)])
def test_every_value_has_a_legal_name(function, args):
    for inner in named(function, *args):
        values = [*inner.params, *(o for e in inner.equations for o in e.outputs if o is not None)]
        for value in values:
            hint = value.hint
            assert hint and hint.isidentifier() and hint.isascii() and not keyword.iskeyword(hint)
            assert hint not in RESERVED and len(hint) <= 41


def test_hostile_names_stay_data():
    def program(x):
        return x['a"]; import os #'] + jnp.sin(x["class"]) + x["jnp"]

    entry, *_ = named(program, {'a"]; import os #': VECTOR, "class": VECTOR, "jnp": VECTOR})
    for value in entry.params:
        assert value.hint.isidentifier() and not keyword.iskeyword(value.hint) and value.hint not in RESERVED


def test_names_are_the_same_every_time():
    def run():
        return [
            [o.hint for e in f.equations for o in e.outputs if o is not None] for f in named(jax.grad(rnn), *RNN_ARGS)
        ]

    assert run() == run()


def test_parts_of_an_argument_have_the_authors_names():
    def model(params, batch):
        w, b = params["dense"]
        mask = batch.mask
        kernel = params["out"]["kernel"]
        return (jnp.tanh(batch.x @ w + b) @ kernel) * mask

    class Batch(NamedTuple):
        x: jax.Array
        mask: jax.Array

    params = {"dense": (jnp.ones((3, 4)), jnp.ones(4)), "out": {"kernel": jnp.ones((4, 2))}}
    text = untrace.decompile(model)(params, Batch(jnp.ones((5, 3)), jnp.ones((5, 1)))).source
    assert 'w, b = params["dense"]' in text
    assert "kernel" in text and '@ params["out"]["kernel"]' not in text
    assert "* mask" in text


def test_a_name_that_was_bound_again_is_no_part_of_the_argument():
    def model(params, x):
        w = params["a"]
        y = x @ w
        params = {"a": w * 2.0}
        v = params["a"]
        return y + v

    text = untrace.decompile(model)({"a": jnp.ones((3, 3))}, jnp.ones((3, 3))).source
    assert 'w = params["a"]' in text and 'v = params["a"]' not in text


def grow(rate, state):
    steps, size, done = state
    return steps + 1, size * rate, done | (size > 100.0)


def test_a_function_that_is_passed_the_state_names_its_parts():
    def fn(rate, size):
        state = (0, size, size > 100.0)
        keep_going = lambda s: (s[0] < 50) & ~s[2]  # noqa: E731
        return jax.lax.while_loop(keep_going, lambda s: grow(rate, s), state)[:2]

    text = untrace.decompile(fn)(1.5, 2.0).source
    assert "steps, size, done = s" in text
    assert "steps, _, done = s" in text


def test_arguments_of_a_function_that_takes_any_number_are_called_after_what_is_passed():
    @jax.jit
    def area(*args):
        return jnp.sin(args[0]) * jnp.cos(args[1])

    def total(width, height):
        return area(width, height).sum() + jnp.mean(width)

    text = untrace.decompile(total)(jnp.ones(3), jnp.ones(3)).source
    assert "def area(width, height):" in text


def test_what_jax_s_own_functions_call_a_value() -> None:
    """Where a program needs what is inside a library function, its own author's names say what that is."""

    def with_residuals(logits: Any) -> Any:
        log_probs, pullback = jax.vjp(jax.nn.log_softmax, logits)
        return log_probs, jax.tree.leaves(pullback)

    text = untrace.decompile(with_residuals)(jax.ShapeDtypeStruct((3, 4), "float32")).source
    assert "    shifted = " in text and "    exp_shifted = jnp.exp(" in text, text


def test_a_lifted_call_is_named_after_its_function() -> None:
    def half_log_det(cov: Any) -> Any:
        return 0.5 * jnp.linalg.cholesky(cov).sum(), jnp.linalg.cholesky(cov)[0]

    text = untrace.decompile(half_log_det)(jax.ShapeDtypeStruct((3, 3), "float32")).source
    assert "selected" not in text, text


# ------------------------------------------------------------------ what begins as zeros


def gated(w, states, x):
    gate = jax.nn.sigmoid(x @ w + states[0])
    c = gate * states[1] + (1.0 - gate) * jnp.tanh(x)
    h = jnp.tanh(c) * gate
    return h, (h, c)


def unrolled_over(w, xs):
    zeros = jnp.zeros(xs.shape[1:])

    def step(states, x):
        h, states = gated(w, states, x)
        return states, h

    _, hs = jax.lax.scan(step, (zeros, zeros), xs)
    return jnp.sum(hs**2)


def test_the_carry_of_a_loop_is_not_called_zeros_where_its_body_has_a_name_for_it():
    w, xs = jnp.eye(4), jnp.ones((5, 3, 4))
    source = untrace.decompile(unrolled_over)(w, xs).source
    assert "h, c = states" in source, source
    source = untrace.decompile(jax.grad(unrolled_over))(w, xs).source
    assert "d_w, d_h, d_c = carry" in source, source


def test_a_carry_keeps_the_numbered_name_that_its_author_gave_it():
    def step(pair, x):
        y_1, y_2 = pair
        h = jnp.tanh(y_1 + x * y_2)
        c = jnp.cos(y_2) * y_1
        return (h, c), c

    source = untrace.decompile(lambda xs: jax.lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), xs))(jnp.ones((5, 3))).source
    assert "y_1, y_2 = " in source, source


def test_a_name_that_one_caller_gives_is_not_the_next_ones():
    """JAX traces `jnp.where` of the same types once, and the two calls share a function."""

    def f(count, flag, n):
        count_inc = jnp.where(count < 10, count + 1, 10)
        state = (flag, jnp.where(flag, n + 3, 0))
        return 2 * count_inc, state, 3 * state[1]

    d = untrace.decompile(f)(jnp.int32(1), jnp.asarray(True), jnp.int32(2))
    assert "count_inc_2" not in d.source and "selected = jnp.where(flag, n + 3, 0)" in d.source, d.source


def test_a_tree_that_branches_give_without_taking_any_has_its_name():
    def f(pred, state):
        moved = {"position": state["position"] + 1.0, "energy": state["energy"] * 2.0}
        new_state = jax.lax.cond(pred, lambda: moved, lambda: state)
        return new_state["position"] * 3.0, new_state["energy"] - new_state["position"], new_state

    d = untrace.decompile(f)(True, {"position": jnp.ones(3), "energy": 1.0})
    assert "new_state = lax.cond(" in d.source and 'new_state["position"] * 3.0' in d.source, d.source


def test_a_name_of_a_leaf_that_is_too_long_lacks_its_middle():
    """As in haiku, whose modules have their whole path as a key."""
    paths = [
        ("params", f"transformer_layer{layer}/multi_head_attention/{part}", leaf)
        for layer in ("", "_1")
        for part in ("key", "query")
        for leaf in "wb"
    ]
    names = parameters.leaf_names(paths, None)
    assert names[:2] == ["transformer_layer_key_w", "transformer_layer_key_b"]
    assert names[-1] == "transformer_layer_1_query_b" and len(set(names)) == len(names)


def test_the_gradient_of_a_fori_loop_has_the_names_of_its_body():
    """JAX makes a scan of it, whose carry has no names of its own."""

    def f(u, k):
        def body(i, pair):
            position, speed = pair
            return position + speed * i, jnp.sin(position) * k

        return jnp.sum(jax.lax.fori_loop(0, 5, body, (u, u))[0] ** 2)

    source = untrace.decompile(jax.grad(f))(jnp.ones(4), 2.0).source
    assert "i, position, speed = carry" in source and "d_position, d_speed = carry" in source, source


def test_the_one_result_of_a_loop_is_called_as_its_author_unpacks_it():
    """JAX leaves the loop one output, where the author has a pair."""

    def step(accumulated, x):
        return x + 0.9 * accumulated, None

    def f(start, xs):
        returns, _ = jax.lax.scan(step, start, xs)
        return jnp.sin(returns) * returns

    def g(xs):
        _, squares = jax.lax.scan(lambda _, x: (None, x * jnp.cos(x)), None, xs)
        return jnp.sin(squares) * squares

    assert "returns, _ = lax.scan(" in untrace.decompile(f)(VECTOR, MATRIX).source
    source = untrace.decompile(g)(MATRIX).source
    assert "squares = lax.map(" in source or "_, squares = lax.scan(" in source, source


def test_what_a_library_calls_the_result_of_a_function_is_not_its_name():
    code = """
def applied(function):
    def apply(*args):
        out, state = function(*args), None
        if state:
            raise ValueError
        return out

    return apply
"""

    def network(w, x):
        hidden = jnp.tanh(x @ w)
        return hidden + jnp.cos(hidden) * x

    apply = library(code)["applied"](network)

    def f(w, v, x):
        target = apply(w, x)
        return jnp.sin(target) * jnp.max(apply(v, x + 1.0)) * target

    source = untrace.decompile(f)(MATRIX, MATRIX, MATRIX).source
    assert "target = network(w, x)" in source, source


def test_parts_of_an_array_that_is_taken_apart_have_their_names_though_some_are_unused():
    def dynamics(state, force):
        _, speed, angle, _ = state
        return jnp.stack([speed, force * jnp.cos(angle), jnp.sin(angle) * speed])

    # JAX 0.12 takes it apart with one equation.
    whole = "    _, speed, angle, _ = state\n"
    source = untrace.decompile(dynamics)(jnp.ones(4), jnp.float32(1.0)).source
    assert whole in source or "    speed = state[1]\n    angle = state[2]\n" in source
    source = untrace.decompile(lambda s, f: jax.jacfwd(dynamics)(s, f))(jnp.ones(4), jnp.float32(1.0)).source
    assert whole in source or "    speed = state[1]\n" in source


def test_parts_of_a_named_tuple_of_a_librarys_have_the_authors_names():
    def factors(c):
        values, vectors = jnp.linalg.eigh(c)
        basis, triangle = jnp.linalg.qr(c)
        sign, size = jnp.linalg.slogdet(c)
        return values, vectors, basis, triangle, sign, size

    source = untrace.decompile(factors)(jnp.eye(3)).source
    for line in ("values, vectors = jnp.linalg.eigh(c)", "basis, triangle = jnp.linalg.qr(c)"):
        assert line in source, source
    assert "sign, size = jnp.linalg.slogdet(c)" in source


class Gaussian(NamedTuple):
    mean: jax.Array
    spread: jax.Array


def posterior(x):
    mean = jnp.sin(x) + jnp.tanh(jnp.cos(x) * x)
    return Gaussian(mean, jnp.cos(x) * x - mean)


def test_so_have_those_of_a_named_tuple_of_the_authors():
    def model(x):
        mu, sigma = posterior(x)
        other, _ = posterior(mu * 2)
        return mu * sigma + other

    source = untrace.decompile(model)(jnp.ones(3)).source
    assert "mu, sigma = posterior(x)" in source and "other, _ = posterior(mu * 2.0)" in source, source


class Message:
    def __init__(self, params):
        self.params = params

    def __call__(self, h, graph):
        m = jnp.tanh(h @ self.params["w"] + self.params["b"])
        return h + m * graph["mask"][:, None] - jnp.sin(m) * graph["degree"][:, None]


def test_a_tree_that_calls_pass_of_several_is_called_after_none_of_them():
    def network(params, h, graph):
        h = Message(params["layer_0"])(h, graph)
        return Message(params["layer_1"])(jnp.cos(h), graph)

    layer = {"w": MATRIX, "b": VECTOR}
    graph = {"mask": jnp.ones(3), "degree": jnp.ones(3)}
    source = untrace.decompile(network)({"layer_0": layer, "layer_1": layer}, jnp.ones((3, 4)), graph).source
    assert "def message(layer, h, graph):" in source, source


class Cloud(NamedTuple):
    points: jax.Array
    log_weights: jax.Array

    def expectation(self, fn):
        return jnp.sum(jnp.exp(self.log_weights) * fn(self.points)) / jnp.sum(jnp.exp(self.log_weights))


def test_no_array_is_called_after_a_parameter_that_is_a_function():
    def moments(cloud, shifts):
        def step(cloud, shift):
            moved = jnp.sin(cloud.points + shift)
            cloud = cloud._replace(points=moved)
            return cloud, cloud.expectation(lambda x: jnp.exp(0.5 * x))

        return jax.lax.scan(step, cloud, shifts)

    source = untrace.decompile(moments)(Cloud(jnp.ones(3), jnp.ones(3)), jnp.ones(5)).source
    assert "expectation(log_weights, moved):" in source, source
