"""Functions of the author's that are mapped over trees, take trees that the program has made, or give trees back."""

from __future__ import annotations

import ast
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import untrace
from untrace.lift.outline.parameter_kinds import no_arrays, no_trees

pytestmark = pytest.mark.usefixtures("unguarded")


class AdamState(NamedTuple):
    count: jax.Array
    mu: dict
    nu: dict


PARAMS = {"w1": jnp.ones((3, 4)), "b1": jnp.zeros(4), "w2": jnp.ones((4, 2)), "b2": jnp.zeros(2)}
X, Y = jnp.linspace(-1.0, 1.0, 15).reshape(5, 3), jnp.ones((5, 2))


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


def sgd(p, g):
    return p - 0.1 * g


def normalised(g):
    norm = jnp.sqrt(jnp.sum(g**2) + 1e-8)
    return g * jnp.minimum(1.0, 1.0 / norm)


def mapped_functions(params, x, y, rate):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    grads = jax.tree.map(normalised, grads)
    params = jax.tree.map(sgd, params, grads)

    def decay(p):
        return p * (1.0 - rate)

    return jax.tree.map(decay, params), value


def adam(grads, state, params):
    count = state.count + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, state.nu, grads)

    def apply(p, m, v):
        m_hat = m / (1 - 0.9**count)
        return p - 0.01 * m_hat / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(apply, params, mu, nu), AdamState(count, mu, nu)


def adam_step(params, state, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    params, state = adam(grads, state, params)
    return params, state, value


def inner_update(params, x, y):
    grads = jax.grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def adapted_loss(params, x, y):
    params = inner_update(params, x, y)
    params = inner_update(params, x, y)
    return loss(params, x, y)


def scale(x, gain):
    return x * jax.nn.sigmoid(gain) + gain**2


def layered(params, x):
    for layer in params["layers"]:
        x = jnp.tanh(scale(x @ layer["w"], layer["g"]) + layer["b"])
    return x @ params["out"]


def fit_and_roll(params, x):
    def step(params, _):
        value, grads = jax.value_and_grad(lambda p: jnp.mean(layered(p, x) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params, values = jax.lax.scan(step, params, None, length=3)

    def roll(x, _):
        x = jnp.cos(layered(params, x))
        return x, x.sum()

    return params, values, jax.lax.scan(roll, x, None, length=4)


class Gaussian(NamedTuple):
    mean: jax.Array
    cov: jax.Array


def predict(transition, belief):
    return Gaussian(transition @ belief.mean, transition @ belief.cov @ transition.T + jnp.eye(2))


def correct(belief, y):
    gain = jnp.linalg.solve(belief.cov + jnp.eye(2), belief.cov).T
    innovation = y - belief.mean
    return Gaussian(mean=belief.mean + gain @ innovation, cov=belief.cov - gain @ belief.cov), innovation


def filtered(transition, belief, ys):
    def step(belief, y):
        belief = predict(transition, belief)
        belief, innovation = correct(belief, y)
        return belief, innovation**2

    return jax.lax.scan(step, belief, ys)


class Frame:
    """Where the layers of a framework read and leave their state."""

    def __init__(self, state):
        self.state = state
        self.new = {}


def moving_average(frame, key, value):
    old = frame.state[key]
    count, hidden = old["count"] + 1, old["hidden"] * 0.9 + value * 0.1
    frame.new[key] = {"count": count, "hidden": hidden}
    return hidden / (1 - 0.9**count)


def batch_norm(frame, name, x, scale, offset):
    mean = jnp.mean(x, axis=0, keepdims=True)
    var = jnp.mean(x**2, axis=0, keepdims=True) - mean**2
    moving_average(frame, f"{name}/mean", mean)
    moving_average(frame, f"{name}/var", var)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + offset


def normed(params, state, x):
    frame = Frame(state)
    for i, layer in enumerate(params):
        x = jnp.tanh(batch_norm(frame, f"bn{i}", x @ layer["w"], layer["scale"], layer["offset"]))
    return x, frame.new


def test_a_mapped_function_of_the_authors_stays_one():
    source = untrace.decompile(mapped_functions)(PARAMS, X, Y, 0.1).source
    assert "def sgd(p, g):\n    return p - 0.1 * g\n" in source
    assert "    grads = jax.tree.map(normalised, grads)\n    params = jax.tree.map(sgd, params, grads)\n" in source
    assert "    def decay(p):\n        return p * (1.0 - rate)\n" in source
    assert "return jax.tree.map(decay, params), value" in source


def test_mapped_functions_of_one_name_are_told_apart():
    def halves(params):
        def change(p):
            return 0.5 * jnp.sin(p) + 1.0

        return jax.tree.map(change, params)

    def doubles(params):
        def change(p):
            return jnp.cos(p) * 2.0 - 1.0

        return jax.tree.map(change, params)

    source = untrace.decompile(lambda params: (halves(params), doubles(params)))(PARAMS).source
    assert source.count("def change") == 2


def test_a_function_that_gives_trees_stays_one():
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    state = AdamState(jnp.zeros((), jnp.int32), zeros, zeros)
    source = untrace.decompile(adam_step)(PARAMS, state, X, Y).source
    assert "def adam(grads, state, params):" in source
    assert "    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mu, grads)\n" in source
    assert "    def apply(p, m, v):\n" in source
    assert "    params, state = adam(grads, state, params)\n    return params, state, value\n" in source


def test_what_one_call_gives_another_takes_as_a_tree():
    source = untrace.decompile(adapted_loss)(PARAMS, X, Y).source
    assert "    grads = jax.grad(loss)(params, x, y)\n" in source
    assert source.count("inner_update(params, x, y)") == 3


def test_a_tree_that_a_loop_gives_is_passed_as_one():
    # The function is called under a derivative in one loop and closes over what that gives in another: neither is what JAX
    # takes out of a loop.
    layer = {"w": jnp.eye(3), "g": jnp.ones(3), "b": jnp.zeros(3)}
    decompiled = untrace.decompile(fit_and_roll)({"layers": [layer] * 3, "out": jnp.eye(3)}, X)
    assert decompiled.source.count("def layered(params, x):") == 1
    assert decompiled.source.count("def scale(x, gain):") == 1
    assert "for layer in params" in decompiled.source
    assert "layered(params, x)" in decompiled.source
    assert "layered_2" not in decompiled.source


def test_a_named_tuple_that_one_function_makes_another_takes():
    source = untrace.decompile(filtered)(jnp.eye(2) * 0.9, Gaussian(jnp.zeros(2), jnp.eye(2)), jnp.ones((6, 2))).source
    assert "        belief = predict(transition, belief)\n        belief, innovation = correct(belief, y)\n" in source


def test_functions_that_change_parts_of_one_dict_are_one():
    params, state = [], {}
    for i, (m, n) in enumerate([(3, 4), (4, 5), (5, 2)]):
        params.append({"w": jnp.ones((m, n)), "scale": jnp.ones(n), "offset": jnp.zeros(n)})
        for word in ("mean", "var"):
            state[f"bn{i}/{word}"] = {"count": jnp.zeros((), jnp.int32), "hidden": jnp.zeros((1, n))}
    source = untrace.decompile(normed)(params, state, X).source
    assert source.count("def batch_norm(") == 1 and "def batch_norm_2(" not in source
    assert "for i, layer in enumerate(params):" in source and '[f"bn{i}/mean"], ' in source


def kernel(params, x1, x2):
    d = (x1[:, None] - x2[None]) / params["scale"]
    amplitude = params["variance"] * jnp.exp(-0.5 * jnp.sum(d**2, axis=-1))
    return x2[:, 0] * amplitude + jnp.cos(amplitude)


def posterior(params, x, y, x_new):
    gram = kernel(params, x, x) + 0.1 * jnp.eye(x.shape[0])
    cross = kernel(params, x_new, x)
    return cross @ jnp.linalg.solve(gram, y), jnp.diag(kernel(params, x_new, x_new))


def test_one_thing_may_be_passed_twice():
    params = {"scale": jnp.ones(3), "variance": jnp.float32(2.0)}
    source = untrace.decompile(posterior)(params, X, jnp.ones(5), X[:2] + 1.0).source
    assert source.count("def kernel") == 1
    assert "kernel(params, x, x)" in source and "kernel(params, x_new, x)" in source
    assert "kernel(params, x_new, x_new)" in source


def test_a_function_of_a_library_is_called_in_a_mapped_one():
    optax = pytest.importorskip("optax")
    optimiser = optax.scale_by_trust_ratio()

    def lamb_step(params, state, grads):
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    grads = jax.tree.map(lambda p: 0.1 + p, PARAMS)
    source = untrace.decompile(lamb_step)(PARAMS, optimiser.init(PARAMS), grads).source
    assert "def safe_norm(x):" in source
    assert "param_norm = safe_norm(param)" in source
    assert source.count("safe_norm(") == 3


def decayed(params, velocity, x, y):
    grads = jax.grad(loss)(params, x, y)
    grads = jax.tree.map(lambda g, p: g + 0.01 * p if p.ndim > 1 else g, grads, params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity


MORE = {**PARAMS, "w3": jnp.ones((2, 2)), "b3": jnp.zeros(2)}


def test_a_map_may_leave_some_leaves_as_they_are():
    written = untrace.decompile(decayed)(MORE, MORE, X, Y)
    assert "jax.tree.map(lambda g, p: g + 0.01 * p if p.ndim > 1 else g, grads, params)" in written.source
    assert written.proof.level == "jaxpr"


def test_leaves_that_no_number_of_axes_tells_are_told_by_their_place():
    def partly(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        decays = {k: k in ("w1", "b1", "w3") for k in params}
        grads = jax.tree.map(lambda g, p, d: g + 0.01 * p if d else g, grads, params, decays)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    written = untrace.decompile(partly)(MORE, X, Y)
    assert 'if path[-1].key in ("b1", "w1", "w3") else' in written.source
    assert "tree_map_with_path(" in written.source and written.proof.level == "jaxpr"


def adamw(params, moments, x, y):
    def leaf(p, m, v):
        update = m / (jnp.sqrt(v) + 1e-6)
        if p.ndim > 1:
            update = update + 0.01 * p
        return p - 0.1 * update

    grads = jax.grad(loss)(params, x, y)
    moments = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g**2, moments, grads)
    return jax.tree.map(leaf, params, grads, moments), moments


def test_the_function_of_a_leaf_may_do_more_for_some():
    written = untrace.decompile(adamw)(MORE, MORE, X, Y)
    assert "lambda x, x_2: x_2 + 0.01 * x if x_2.ndim > 1 else x_2" in written.source, written.source
    assert "lambda x, x_2: x_2 - 0.1 * x" in written.source and written.source.count("jax.tree.map(") == 4
    assert written.proof.level == "jaxpr"


def with_mask(params, x, y):
    grads = jax.grad(lambda p: loss({**p["body"], **p["head"]}, x, y))(params)
    decays = {"body": {"b1": True, "b2": False, "w1": True, "w2": True}, "head": {"b3": False, "w3": False}}
    grads = jax.tree.map(lambda g, p, d: g + 0.01 * p if d else g, grads, params, decays)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def test_leaves_are_told_by_what_is_on_their_way_as_well():
    params = {"body": {k: MORE[k] for k in ("b1", "b2", "w1", "w2")}, "head": {k: MORE[k] for k in ("b3", "w3")}}
    written = untrace.decompile(with_mask)(params, X, Y)
    assert "tree_map_with_path(" in written.source and written.proof.level == "jaxpr"


def test_the_path_of_a_leaf_hides_nothing_that_its_function_reads():
    def shortened(params, x, y):
        path = jnp.cumsum(x)[-1]
        decays = {k: k in ("w1", "b1", "w3") for k in params}
        grads = jax.grad(loss)(params, x, y)
        grads = jax.tree.map(lambda g, p, d: g + path * p if d else g, grads, params, decays)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), path

    written = untrace.decompile(shortened)(MORE, X, Y)
    assert 'path * x if path_2[-1].key in ("b1", "w1", "w3") else x_2' in written.source, written.source
    assert written.proof.level == "jaxpr"


def test_what_is_the_same_for_all_leaves_is_computed_before_the_map():
    optax = pytest.importorskip("optax")

    def step(params, average, step, x, y):
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y))
        decay = jnp.minimum(0.99, (1.0 + step) / (10.0 + step))
        return params, optax.incremental_update(params, average, 1.0 - decay)

    source = untrace.decompile(step, guard=False)(MORE, MORE, jnp.int32(3), X, Y).source
    assert "lambda new, old: cast * new + cast_2 * old" in source


class Moments(NamedTuple):
    count: jax.Array
    mean: jax.Array
    square: jax.Array


def best(scores):
    top = scores.argmax()
    return top, scores[top] - scores.min()


def predicted(scores, mask):
    shifted = jnp.tanh(scores - scores.mean(-1, keepdims=True))
    tops, margins = jax.vmap(best)(shifted)
    return jnp.where(mask, tops, 0), margins


def used(scores, mask):
    tops, margins = predicted(scores, mask)
    later, _ = predicted(scores + 1.0, mask)
    return margins * tops + later


def test_parts_of_what_a_call_gives_are_returned_in_the_authors_order():
    text = untrace.decompile(used, guard=False)(jnp.arange(12.0).reshape(4, 3), jnp.ones(4, bool)).source
    assert "tops, margins = predicted(" in text


def moments(rows):
    return Moments(jnp.sum(rows > 0.0, axis=0), jnp.mean(rows, axis=0), rows.T @ rows)


def spread(stats):
    return jnp.diag(stats.square) / stats.count - stats.mean**2


def test_what_a_mapped_call_gives_is_a_tree():
    def fn(batches):
        stats = jax.vmap(moments)(batches)
        return spread(jax.tree.map(lambda s: s.sum(axis=0), stats))

    source = untrace.decompile(fn)(jnp.linspace(-1.0, 1.0, 24).reshape(2, 4, 3)).source
    assert "jax.tree.map(lambda s: s.sum(axis=0), stats)" in source
    assert "def spread(stats):" in source


def q_values(params, obs):
    for i in range(3):
        layer = params[f"dense_{i}"]
        obs = (jax.nn.relu(obs) if i else obs) @ layer["w"] + layer["b"]
    return obs


class Agent(NamedTuple):
    params: dict
    obs: jax.Array


def test_a_part_by_a_computed_key_is_part_of_that_parameter():
    # The leaves of both parameters are leaves of one tree outside.
    def act(agent, batch):
        return q_values(agent.params, agent.obs).argmax(), q_values(agent.params, batch)

    layers = {f"dense_{i}": {"w": jnp.eye(3) * (i + 1), "b": jnp.ones(3)} for i in range(3)}
    source = untrace.decompile(act)(Agent(layers, X[0]), X).source
    assert source.count("def q_values") == 1
    assert "q_values(agent.params, agent.obs)" in source and "q_values(agent.params, batch)" in source


class Flock(NamedTuple):
    position: jax.Array
    velocity: jax.Array


class Rules(NamedTuple):
    cohesion: float
    alignment: float


def neighbours(position, radius):
    offsets = position[None] - position[:, None]
    return offsets, jnp.linalg.norm(offsets + 1e-6, axis=-1) < radius


def steer(flock, rules, radius):
    position, velocity = flock.position, flock.velocity
    offsets, near = neighbours(position, radius)
    towards = jnp.where(near[..., None], offsets, 0.0).sum(axis=1)
    average = jnp.where(near[..., None], velocity[None], 0.0).sum(axis=1)
    return rules.cohesion * towards + rules.alignment * (average - velocity)


def test_no_tree_is_called_like_a_number_of_the_authors():
    def advance(flock, rules):
        velocity = flock.velocity + steer(flock, rules, 1.2)
        position = jnp.mod(flock.position + velocity, 4.0)
        return position, velocity + steer(Flock(position, velocity), rules, 1.2)

    flock = Flock(jnp.arange(8.0).reshape(4, 2), jnp.ones((4, 2)))
    source = untrace.decompile(advance)(flock, Rules(0.1, 0.2)).source
    assert "def steer(flock, rules):" in source
    assert "steer(flock, rules)" in source
    assert "rules.cohesion," not in source  # the tree that both calls have is passed as one by both


def test_what_a_parameter_cannot_be():
    code = "def f(x, flag: bool, mode='a', *, train, p, n, i, t):\n    if train and n > 3:\n        return x[i, 0] + p\n    return t[n]"
    (definition,) = ast.parse(code).body
    assert no_arrays(definition) == {"flag", "mode", "train"}
    assert no_trees(definition) == {"flag", "mode", "train", "n", "i", "p"}


def embedded(t):
    angles = t[:, None] * jnp.exp(-jnp.arange(4.0))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def test_an_argument_that_was_broadcast_makes_no_other_function():
    def fn(times, t):
        return embedded(times) @ jnp.ones(8), embedded(jnp.full((5,), t)) @ jnp.ones(8)

    source = untrace.decompile(fn)(X[0], jnp.float32(0.5)).source
    assert source.count("def embedded") == 1
    assert "angles = t[:, None] * " in source


class Best(NamedTuple):
    loss: jax.Array
    params: dict


def test_a_map_over_a_tree_that_is_put_together_of_one_that_is_there():
    def better(best, params, x, y):
        value = loss(params, x, y)
        improved = value < best.loss
        return jax.tree.map(lambda new, old: jnp.where(improved, new, old), Best(value, params), best)

    d = untrace.decompile(better)(Best(jnp.float32(3.0), PARAMS), PARAMS, X, Y)
    assert "params=params)" in d.source, d.source
    assert d.source.count("jnp.where(") == 1 and "jax.tree.map(" in d.source, d.source


class Rates(NamedTuple):
    infection: jax.Array
    onset: jax.Array
    removal: jax.Array


class Compartments(NamedTuple):
    healthy: jax.Array
    exposed: jax.Array
    ill: jax.Array
    immune: jax.Array


def rates_of(raw):
    positive = jax.nn.softplus
    return Rates(infection=positive(raw.infection), removal=jnp.tanh(raw.removal), onset=jax.nn.sigmoid(raw.onset))


def changes(rates, c):
    infections = rates.infection * c.ill * c.healthy
    onset = rates.onset * c.exposed
    removed = rates.removal * c.ill
    return Compartments(healthy=-infections, exposed=infections - onset, ill=onset - removed, immune=removed)


def epidemic(raw, start):
    rates = rates_of(raw)

    def day(c, _):
        k = changes(rates, c)
        c = jax.tree.map(lambda a, b: a + 0.1 * b, c, k)
        return c, c.ill + changes(rates, c).immune

    return jax.lax.scan(day, start, None, length=5)


def test_functions_give_named_tuples_whose_fields_they_name():
    # All fields are of one type, so that only their names tell which is which, and one function is small and called once.
    source = untrace.decompile(epidemic)(Rates(*[jnp.float32(0.5)] * 3), Compartments(*[jnp.ones(3)] * 4)).source
    assert "rates = rates_of(raw)" in source, source
    assert "c = jax.tree.map(lambda a, b: a + 0.1 * b, c, k)" in source, source
    assert "def changes(rates, c):" in source and "k = changes(rates, c)" in source, source


def heun(field, t, c):
    k1 = field(t, c)
    predictor = jax.tree.map(lambda a, k: a + 0.1 * k, c, k1)
    k2 = field(t + 0.1, predictor)
    return jax.tree.map(lambda a, x, y: jnp.maximum(a + 0.05 * (x + y), 0.0), c, k1, k2)


def seasonal(rates, start):
    def field(t, c):
        return changes(rates._replace(infection=rates.infection * (1.0 + jnp.cos(t))), c)

    return heun(field, 0.1, heun(field, 0.0, start))


def test_a_leaf_that_nothing_reads_is_mapped_with_the_others():
    # Of the predictor the field reads no `immune`.
    source = untrace.decompile(seasonal)(Rates(*[jnp.float32(0.5)] * 3), Compartments(*[jnp.ones(3)] * 4)).source
    assert source.count("predictor = jax.tree.map(lambda a, k: a + 0.1 * k, c, ") == 1, source
    assert source.count("def heun(") == 1 and source.count("def changes(") == 1, source


def test_what_no_leaf_needs_is_left_out():
    def step(params):
        def scaled(p):
            norm = jnp.sqrt(jnp.sum(p**2))
            jnp.exp(norm)
            return p * 0.5

        return jax.tree.map(scaled, params)

    source = untrace.decompile(step)(PARAMS).source
    assert "jnp.exp" not in source and "jnp.sqrt" not in source, source


class Link(NamedTuple):
    axis: jax.Array
    mass: jax.Array
    offset: jax.Array


def test_a_function_inside_maps_over_a_tree_that_it_closes_over():
    def tip(links, angles):
        def body(i, p):
            link = jax.tree.map(lambda leaf: leaf[i], links)
            return link.offset + jnp.cos(angles[i]) * p + jnp.cross(link.axis, p)

        return jax.lax.fori_loop(0, 4, body, jnp.ones(3))

    links = Link(jnp.ones((4, 3)), jnp.ones(4), jnp.ones((4, 3)))
    source = untrace.decompile(tip)(links, jnp.arange(4.0)).source
    assert "link = jax.tree.map(lambda leaf: leaf[i], links)" in source and "links.mass" not in source, source
