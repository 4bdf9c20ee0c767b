"""Calls of `jax.vmap` come back as calls of `jax.vmap`; see src/untrace/capture/calls/vmaps.py."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import roundtrip
from jax import lax

import untrace
from untrace._trees import part_of_tree
from untrace.capture.calls import vmaps

pytestmark = pytest.mark.usefixtures("unguarded")

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(fn, *args, count=1, **options):
    """The text, in which `jax.vmap` stands `count` times, after a run of the saved module beside the original."""
    d = untrace.decompile(fn, **options)(*args)
    assert d.source.count("jax.vmap(") == count, d.source
    assert d.proof.at_least("bits")
    again, _ = roundtrip.saved(d, Path.cwd())
    want, got = jax.jit(fn)(*args), jax.jit(again)(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)
    return d.source


def test_a_function_that_closes_over_nothing_stands_in_the_module():
    def distance(point, centre):
        """How far a point is from the centre."""
        moved = point - centre
        return jnp.sqrt(jnp.sum(moved * moved))

    def fn(points, centre):
        return jax.vmap(distance, in_axes=(0, None))(points, centre).max()

    text = written(fn, X, X[0])
    assert "\ndef distance(point, centre):" in text
    assert "jax.vmap(distance, in_axes=(0, None))(points, centre)" in text


def test_what_is_the_same_for_all_elements_is_closed_over():
    def fn(w, xs):
        scale = jnp.tanh(w).sum()

        def scaled(x):
            y = jnp.dot(x, w)
            return jnp.where(y > 0, y * scale, y)

        return jax.vmap(scaled)(xs)

    text = written(fn, X[0], X)
    assert "    def scaled(x):" in text
    assert "jax.vmap(scaled)(xs)" in text


class State(NamedTuple):
    position: jax.Array
    speed: jax.Array


def test_pytrees_go_in_and_come_out_whole():
    def step(params, state, dt):
        speed = state["speed"] - dt * jnp.sin(params["k"] * state["position"])
        return {"position": state["position"] + dt * speed, "speed": speed}, jnp.sum(speed**2)

    def simulate(params, state):
        new_state, energies = jax.vmap(step, (None, 0, None))(params, state, 0.1 * params["k"])
        return new_state, energies.max()

    state = {"position": X, "speed": X * 0}
    text = written(simulate, {"k": np.float32(2.0)}, state)
    assert "def step(params, state, dt):" in text
    assert "(params, state, " in text
    assert "return new_state, energies.max()" in text


def test_a_namedtuple_is_rebuilt():
    def step(state):
        return State(state.position + state.speed, state.speed * 0.9)

    text = written(lambda s: jax.vmap(step)(s), State(X, X))
    assert "return jax.vmap(step)(" in text


def test_axes_other_than_the_first():
    def fn(a, b):
        return jax.vmap(lambda x, y: (x * jnp.sum(y), y[0] - x), in_axes=1, out_axes=(1, 0))(a, b)

    text = written(fn, X, X + 1)
    assert "in_axes=1, out_axes=(1, 0)" in text


def test_axes_inside_a_tree():
    def fn(tree):
        return jax.vmap(lambda t: jnp.sin(t["a"]) * t["b"].sum(), ({"a": 0, "b": None},))(tree)

    text = written(fn, {"a": X, "b": X[0]})
    assert 'in_axes=({"a": 0, "b": None},)' in text


def test_nested_calls():
    def kernel(x, y):
        return jnp.exp(-jnp.sum((x - y) ** 2))

    def gram(xs, ys):
        return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y) + 1.0)(ys))(xs)

    written(gram, X, X, count=2)


def test_a_mapped_function_mapped_again():
    def shade(pixel, light):
        near = jnp.sum(pixel * light)
        return jnp.where(near > 0, near, near * near)

    text = written(
        lambda image, light: jax.vmap(jax.vmap(shade, (0, None)), (0, None))(image, light), X[None], X[0], count=2
    )
    assert "def shade(pixel, light):" in text


def test_a_gradient_of_every_example():
    def loss(w, x):
        return jnp.tanh(jnp.dot(w, x)) ** 2

    written(lambda w, xs: jax.vmap(jax.grad(loss), (None, 0))(w, xs), X[0], X)


def test_loops_and_branches_of_one_example():
    def collatz(n):
        def body(state):
            n, steps = state
            return lax.cond(n % 2 == 0, lambda m: m // 2, lambda m: 3 * m + 1, n), steps + 1

        return lax.while_loop(lambda s: s[0] > 1, body, (n, 0))[1]

    text = written(lambda ns: jax.vmap(collatz)(ns), jnp.array([3, 7, 9]))
    assert "lax.while_loop(" in text and "lax.cond(" in text


def test_a_mapped_function_whose_branches_batching_took():
    """`jax.vmap(f)` as a whole is written as JAX batches it, but where that computes all branches and chooses."""

    def halved(x):
        return lax.cond(x.sum() > 1.0, lambda x: x / x.sum(), lambda x: x - 1.0, x)

    text = written(jax.vmap(halved), X)
    assert "lax.cond(" in text and "jax.vmap(halved)(" in text


def test_inside_a_scan_and_a_jitted_function():
    @jax.jit
    def inner(xs):
        return jax.vmap(lambda x: x / jnp.sum(x * x + 1.0))(xs)

    def fn(xs):
        return lax.scan(lambda c, _: (inner(c), None), xs, length=3)[0]

    written(fn, X)


def test_what_ran_before_makes_no_difference():
    @jax.jit
    def inner(xs):
        return jax.vmap(lambda x: x / jnp.sum(x * x + 1.0))(xs)

    def fn(xs):
        return inner(xs) + 1.0

    fn(X)
    first = written(fn, X)
    jax.make_jaxpr(fn)(X)
    assert written(fn, X) == first


def test_the_same_function_twice_is_written_once():
    def norm(x):
        scale = jnp.sqrt(jnp.sum(x * x) + 1e-6)
        return x / scale

    text = written(lambda a, b: (jax.vmap(norm)(a), jax.vmap(norm)(b)), X, X + 1, count=2)
    assert text.count("def norm(") == 1


def test_keyword_arguments_and_partial_functions():
    def scaled(x, *, by):
        return jnp.sin(x) * by

    written(lambda a, b: jax.vmap(scaled)(a, by=b), X, X)
    written(lambda a: jax.vmap(functools.partial(scaled, by=2.0))(a), X)


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0
    steps: int = 3


def test_an_argument_that_is_no_array():
    def one(w, x, config):
        slope = jax.grad(lambda q: jnp.sum(jnp.tanh(w @ q) ** 2))
        x, _ = lax.scan(lambda c, _: (c - config.scale * slope(c), None), x, None, length=config.steps)
        return jnp.sum(x**2)

    def step(w, xs):
        def loss(w):
            return jnp.mean(jax.vmap(one, in_axes=(None, 0, None))(w, xs, Config()))

        return jax.value_and_grad(loss)(w)

    text = written(step, X, X)
    assert "jax.vmap(one" in text and "jax.value_and_grad(loss)" in text and "jax.grad(" in text


def test_numbers_that_decide_what_is_traced():
    def one(w, x, count, flag):
        for _ in range(count):
            x = jnp.sin(w.T @ w @ x) if flag else x
        return x.sum()

    text = written(lambda w, xs: jax.vmap(one, (None, 0, None, None))(w, xs, 2, True), X, X)
    assert "jax.vmap(one" in text


def test_a_number_in_the_place_of_an_array():
    def field(w, t, x):
        projected = jnp.stack([t, x]) @ lax.stop_gradient(w["f"])
        h = jnp.concatenate([jnp.cos(projected), jnp.sin(projected)])
        return (jnp.sin(jnp.tanh(h @ w["w"] + w["b"])) @ w["v"])[0]

    def start_loss(w, xs):
        return jnp.mean(jax.vmap(field, (None, None, 0))(w, 0.0, xs) ** 2)

    def residual(w, t, x):
        u, u_t = jax.jvp(lambda s: field(w, s, x), (t,), (jnp.ones_like(t),))
        return u_t + u * jax.grad(field, argnums=2)(w, t, x)

    def residual_loss(w, xs):
        return jnp.mean(jax.vmap(residual, (None, 0, 0))(w, xs, xs) ** 2)

    def step(w, xs):
        return [jax.value_and_grad(loss)(w, xs) for loss in (start_loss, residual_loss)]

    w = {"f": X[:2], "w": np.ones((6, 4), np.float32), "b": X[:, 0], "v": X[:, :1]}
    text = written(step, w, X[:, 1], count=2)
    assert text.count("jax.value_and_grad(") == 2 and "jax.grad(" in text and "(w, 0.0, x)" in text


def test_elements_that_no_one_reads():
    written(lambda a: jax.vmap(lambda x, i: jnp.sum(jnp.cos(x)) + 1.0)(a, jnp.arange(4)), X)


def test_named_axes_stay_as_jax_batched_them():
    d = untrace.decompile(lambda xs: jax.vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(xs))(X)
    assert "jax.vmap(" not in d.source
    assert d.proof.at_least("bits")


def test_a_function_with_effects_stays_as_jax_batched_it():
    def one(x):
        jax.debug.print("{}", x)
        return x * 2

    d = untrace.decompile(lambda xs: jax.vmap(one)(xs))(X)
    assert "jax.vmap(" not in d.source


def test_a_function_that_can_be_called_once_only_is_left_alone():
    calls = []

    def one(x):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("once")
        return jnp.sin(x)

    d = untrace.decompile(lambda xs: jax.vmap(one)(xs))(X)
    assert "jnp.sin(xs)" in d.source


def test_style_exact_traces_every_function_once():
    calls = []

    def one(x):
        calls.append(1)
        return jnp.sin(x)

    untrace.decompile(lambda xs: jax.vmap(one)(xs), style="exact")(X)
    assert len(calls) == 1


def test_nothing_is_folded_that_does_not_come_back():
    """A call whose jaxpr for one element is wrong is found out, and the other calls stay."""

    def fn(xs):
        return jax.vmap(lambda x: jnp.sin(x).sum())(xs), jax.vmap(lambda x: jnp.cos(x).sum())(xs)

    from untrace.capture.calls.unfolding import gives_back
    from untrace.jaxprs.expand.expand import Expander

    with vmaps.noted_vmaps() as calls:
        closed = jax.make_jaxpr(fn)(X)
    assert len(calls) == 2
    calls[0].body, _ = jax.make_jaxpr(lambda x: (jnp.tan(x).sum(),), return_shape=True)(X[0])
    folded = vmaps.folded(closed, closed, calls, Expander(), gives_back)
    assert [e.primitive.name for e in folded.jaxpr.eqns].count("vmap") == 1


@pytest.mark.parametrize("simplify", [True, False])
def test_the_proof_is_of_the_batched_program(simplify):
    def fn(xs):
        return jax.vmap(lambda x: jnp.tanh(x * 1.0).sum())(xs)

    d = untrace.decompile(fn, simplify=simplify)(X)
    assert d.proof.level == ("hlo" if simplify else "jaxpr"), d.proof


def test_maps_over_trees_inside_a_mapped_function():
    def step(params, velocity, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.tanh(p["w"] * x + p["b"]) * p["c"]))(params)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.01 * g, velocity, grads)
        return jax.tree.map(lambda p, v: p + v, params, velocity), velocity

    params = {"w": X, "b": X + 1, "c": X - 1}
    text = written(lambda p, v, x: jax.vmap(step, (0, 0, None))(p, v, x), params, params, X[0])
    assert text.count("jax.tree.map(") == 2


def test_results_that_are_constants():
    def fn(xs):
        zero, nothing = jnp.zeros((), "int32"), jnp.zeros((2, 0))
        return jax.vmap(lambda x: (nothing, zero, jnp.sum(x) + zero))(xs)

    d = untrace.decompile(fn)(X)
    assert d.proof.at_least("bits")


def coupled(x, y):
    return jnp.sin(x) * y.sum() + jnp.cos(x[::-1])


def test_jacobians_are_the_authors_calls():
    def filtered(x, y, scale):
        def scaled(z):
            return coupled(z, y) * scale

        forward = jax.jacfwd(coupled)(x, y) @ jax.jacrev(coupled, argnums=1)(x, y)
        return forward + jax.jacfwd(scaled)(x) + jax.hessian(lambda z: coupled(z, y).sum())(x)

    found = untrace.decompile(filtered)(jnp.arange(3.0), jnp.ones(3), jnp.float32(2.0))
    assert found.proof.level == "jaxpr"
    assert "jax.jacfwd(coupled)(x, y) @ jax.jacrev(coupled, argnums=1)(x, y)" in found.source, found.source
    assert "jax.jacfwd(scaled)(x)" in found.source and "jax.hessian(" in found.source
    assert found.source.count("jnp.cos(") == 1, found.source


def test_a_jacobian_in_the_body_of_a_loop_is_one_call():
    def run(x, ys):
        def step(x, y):
            return x + jax.jacfwd(coupled)(x, y) @ y, x

        return jax.lax.scan(step, x, ys)

    found = untrace.decompile(run)(jnp.arange(3.0), jnp.ones((4, 3)))
    assert found.proof.level == "jaxpr" and "jax.jacfwd(coupled)(x, y) @ y" in found.source, found.source


def test_jacobians_of_several_arguments_and_of_trees():
    def both(x, y):
        return jax.jacfwd(coupled, argnums=(0, 1))(x, y)

    def of_tree(x):
        return jax.jacrev(lambda t: coupled(t["a"], t["b"]))({"a": x, "b": x})

    found = untrace.decompile(both)(jnp.arange(3.0), jnp.ones(3))
    assert found.proof.level == "jaxpr" and "jax.jacfwd(coupled, argnums=(0, 1))(x, y)" in found.source, found.source
    found = untrace.decompile(of_tree)(jnp.ones(3))
    assert found.proof.level == "jaxpr" and "jax.jacrev(" in found.source, found.source


def test_a_differentiated_jacobian_is_written_out():
    def f(x, y):
        return jax.grad(lambda z: jax.jacfwd(coupled)(z, y).sum())(x)

    assert untrace.decompile(f)(jnp.ones(3), jnp.ones(3)).proof.at_least("bits")


def test_products_in_mapped_functions_are_of_transposed_matrices():
    """XLA makes the same of batches of products where nothing is swapped; `x @ w.T` for `(w @ x.T).T` would be another."""

    def attend(w, x):
        query = jax.vmap(lambda row: w @ row)(x)
        return jax.nn.softmax(jnp.einsum("sd,td->st", query, x) / 3.0) @ x

    def model(w, xs):
        return jax.vmap(lambda x: attend(w, x))(xs)

    d = untrace.decompile(model)(jnp.ones((4, 4)), jnp.ones((3, 5, 4)))
    assert d.proof.level == "hlo"
    assert "einsum" not in d.source and "@ x.T / 3.0" in d.source, d.source


class Kept(NamedTuple):
    position: jax.Array
    value: jax.Array
    grad: jax.Array


WIDTHS = jnp.array([0.5, 1.0, 2.0])


def potential(position, beta):
    return beta * jnp.sum(jnp.sin(position) ** 2 / WIDTHS + jnp.log1p(jnp.exp(position)))


def evaluate(position, beta):
    value, grad = jax.value_and_grad(potential)(position, beta)
    return Kept(position, value, grad)


def test_what_a_mapped_function_gives_back_as_it_came():
    def fn(positions, betas):
        first = jax.vmap(evaluate)(positions, betas)
        return first.position, first.value + 1.0, first.grad

    text = written(fn, X, X[:, 0])
    assert "jax.value_and_grad(potential)(position, beta)" in text
    assert "jax.vmap(evaluate)(positions, betas)" in text


def test_a_loop_closes_over_what_a_mapped_function_knows():
    betas = jnp.linspace(0.1, 1.0, 4)

    def fn(positions):
        def step(state, _):
            moved = jax.vmap(evaluate)(state.position - 0.1 * state.grad, betas)
            return moved, moved.value

        return lax.scan(step, jax.vmap(evaluate)(positions, betas), length=3)

    text = written(fn, X, count=2)
    assert text.count("jax.value_and_grad(potential)") == 1  # one function of the module, and not one in the loop
    assert "_fwd" not in text and "_bwd" not in text

    def chains(positions):
        return jax.vmap(fn)(positions)

    text = written(chains, jnp.stack([X, 2 * X]), count=3)
    assert text.count("jax.value_and_grad(potential)") == 1
    assert "_fwd" not in text and "_bwd" not in text


MASK = np.array([[0.0, -1e4, 0.0], [0.0, 0.0, -1e4], [0.0, 0.0, 0.0]], np.float32)


def path_score(w, row):
    masked = w + MASK
    last, _ = lax.scan(lambda a, x: (jnp.tanh(a @ masked) + x, None), row[0] + MASK[0], row[1:])
    return last.sum()


def test_a_mapped_function_of_a_differentiated_one_knows_arrays():
    """What both close over is an input of the function that is differentiated, and a constant of that which is mapped."""

    def train(w, rows):
        loss, grads = jax.value_and_grad(lambda w: jax.vmap(functools.partial(path_score, w))(rows).mean())(w)
        return w - 0.1 * grads, loss

    text = written(train, jnp.eye(3), jnp.stack([X, 2 * X]))
    assert "jax.value_and_grad(" in text and "def path_score(" in text
    assert "lax.dot_general" not in text and "swapaxes" not in text


def test_part_of_a_tree():
    tree = {"a": 1, "b": [2, 3], "c": Kept(4, 5, 6)}
    assert part_of_tree(tree, [True] * 6) is tree
    assert part_of_tree(tree, [False, True, True, False, True, True]) == ([2, 3], (5, 6))
    assert part_of_tree(tree, [False, False, False, False, True, False]) == 5
    assert part_of_tree((None, 1, 2), [True, False]) == (None, 1)


def test_arrays_that_branches_of_a_mapped_function_make_each_for_itself():
    def gray(image):
        return jnp.broadcast_to((image @ jnp.array([0.3, 0.6, 0.1]))[..., None], image.shape)

    def jittered(order, image):
        def saturated_first(x):
            return (gray(x) + 0.5 * (x - gray(x))) * (1.0 + image[0, 0])

        def brightened_first(x):
            x = x * (1.0 + image[0, 0])
            return gray(x) + 0.5 * (x - gray(x))

        return jnp.clip(lax.switch(order, [saturated_first, brightened_first], image), 0.0, 1.0)

    text = written(
        lambda orders, images: jax.vmap(jittered)(orders, images), np.arange(4) % 2, X.reshape(4, 1, -1)[..., :3]
    )
    assert "jax.vmap(jittered)" in text and "saturated_first" in text and text.count("jnp.array(") == 1, text


def test_what_an_author_passes_to_a_branch_twice_stays():
    def program(x):
        return lax.cond(x[0] > 0.0, lambda a, b: a * b, lambda a, b: a - b, x, x) + jnp.ones(3)[0] * jnp.ones(3)[1]

    text = untrace.decompile(program, guard=False)(jnp.arange(3.0)).source
    assert "lambda a, b: a * b, lambda a, b: a - b, x, x)" in text, text


class Arm(NamedTuple):
    axis: jax.Array
    offset: jax.Array
    mass: jax.Array
    inertia: jax.Array


def moved(link, angle):
    return jnp.outer(link.axis, jnp.cos(angle) * link.offset) + jnp.sin(angle) * jnp.eye(3)


def torques(arm, angles, accelerations):
    frames = jax.vmap(moved)(arm, angles)

    def outward(carry, each):
        frame, acceleration = each
        carry = frame @ carry + acceleration
        return carry, jnp.sum(carry**2)

    return jax.lax.scan(outward, jnp.zeros(3), (frames, accelerations))[1]


def mass_matrix(arm, angles):
    return jax.vmap(lambda a: torques(arm, angles, a), out_axes=1)(jnp.eye(angles.shape[0]))


def swung(arm, angles):
    def step(angles, _):
        held = torques(arm, angles, 2.0 * angles) @ jnp.sum(arm.inertia, axis=0) * jnp.max(arm.mass)
        return angles + 0.1 * jnp.linalg.norm(mass_matrix(arm, angles)) + held, held

    return jax.lax.scan(step, angles, None, length=3)


@pytest.mark.parametrize("function", [mass_matrix, swung])
def test_a_tree_that_is_handed_on_to_a_mapped_call_inside_of_one(function):
    """What the inner function does not read is nothing to the outer one, and still a part of what it passes on."""
    arm = Arm(jnp.ones((4, 3)), jnp.full((4, 3), 0.5), jnp.ones(4), jnp.ones((4, 4)))
    found = untrace.decompile(function, guard=False)(arm, jnp.linspace(0.1, 0.4, 4))
    assert found.source.count("jax.vmap(moved)(arm, angles)") == 1, found.source
    assert found.source.count("def moved") == 1
