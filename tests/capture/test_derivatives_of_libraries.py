"""Derivatives that libraries and solvers call, and whole programs of authors."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from derivative_texts import PARAMS, X, Y, step, written
from jax import lax
from jax.scipy.optimize import minimize
from libraries import library

import untrace

pytestmark = pytest.mark.usefixtures("unguarded")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_a_library_packs_things_into_stays_out():
    nnx = pytest.importorskip("flax.nnx")
    graph, state = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))

    def fn(state, x, y):
        def loss_fn(model):
            return jnp.mean((jnp.tanh(model(x)) - y) ** 2)

        return nnx.value_and_grad(loss_fn)(nnx.merge(graph, state))

    d = untrace.decompile(fn)(state, X, Y)
    assert d.proof.at_least("bits") and "jax.value_and_grad(loss_fn, has_aux=True)" in d.source, d.source
    assert "NodeStates" not in d.source and "GraphDef" not in d.source, d.source


def energy(x, scale):
    return scale * jnp.sum((x - 1) ** 4) + jnp.sum(jnp.cosh(x))


@jax.jit
def jitted_energy(x):
    return energy(x, 2.0)


def test_what_a_solver_of_jax_differentiates_is_of_the_author():
    def fit(x):
        return minimize(energy, x, args=(2.0,), method="BFGS").x

    text = written(fit, X[0], level="bits", sizes="fixed")
    assert "value, grads = jax.value_and_grad(energy)(x)" in text and text.count("def energy(x)") == 1, text
    assert text.count("jax.value_and_grad(energy)(x_k + ") == 3, text
    text = written(lambda x: minimize(jitted_energy, x, method="BFGS").x, X[0], level="bits", sizes="fixed")
    assert text.count("jax.value_and_grad(jitted_energy)(") == 4, text


def test_what_jax_differentiates_of_its_own_is_no_call():
    d = untrace.decompile(lambda x: minimize(jnp.sum, x, method="BFGS", options={"maxiter": 2}).x)(X[0])
    assert "grad(" not in d.source and not any("derivatives" in note for note in d.notes), d.notes


def test_a_function_that_inner_loops_differentiate_too_is_defined_once():
    def fn(x, y):
        def error(p):
            return jnp.sum((p - y) ** 4)

        def outer(_, p):
            inner = lax.fori_loop(0, 3, lambda _, q: q - 0.1 * jax.grad(error)(q), p)
            return p - 0.1 * jax.grad(error)(inner)

        return lax.fori_loop(0, 3, outer, x - jax.grad(error)(x))

    text = written(fn, X[0], X[1])
    assert text.count("def error(p):") == 1 and text.count("jax.grad(error)(") == 3, text


def test_a_filtered_gradient_has_the_authors_words():
    eqx = pytest.importorskip("equinox")
    arrays, static = eqx.partition(eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0)), eqx.is_array)

    def fn(arrays, x, y):
        @eqx.filter_grad
        def loss(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        return loss(eqx.combine(arrays, static))

    d = untrace.decompile(fn)(arrays, X, Y)
    assert d.proof.at_least("bits") and "def loss(model):" in d.source and "jax.grad(loss)(" in d.source, d.source


PROGRAMS = sorted(p.stem for p in (Path(__file__).parents[1] / "derivatives").glob("*.py"))
# Which of the calls in `DERIVATIVES` are written out, and why.
WRITTEN_OUT = {
    # Its linear solve transposes what it closes over: the pullback is called in functions that JAX makes of it.
    "gauss_newton_smoother": 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_authors(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "derivatives" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if module_needs := {"optax", "haiku", "equinox"} & set(Path(spec.origin).read_text().split()):
        for library in module_needs:
            pytest.importorskip(library)
    spec.loader.exec_module(module)
    fn, args = module.build()[:2]
    d = untrace.decompile(fn)(*args)
    assert d.proof.at_least("bits")
    calls = re.findall(r"jax\.(?:value_and_grad|grad|vjp|jvp|linearize|hessian|jacfwd|jacrev)\(", d.source)
    wanted = len(set(module.DERIVATIVES)) - WRITTEN_OUT.get(name, 0)
    assert len(calls) >= wanted, (calls, module.DERIVATIVES)
    assert "transpose()" not in d.source and "# backward" not in d.source or name in WRITTEN_OUT


def test_a_train_step_is_proven_for_further_arguments():
    found = untrace.decompile(step, also=[(PARAMS, X[:1], Y[:1])])(PARAMS, X, Y)
    assert "jax.value_and_grad(loss)(params, x, y)" in found.source and found.proof.at_least("hlo"), found.proof


def test_what_is_written_out_is_said():
    note = untrace.decompile(step, prove=False)(PARAMS, X, Y).notes
    assert any("with a proof only" in n for n in note), note
    found = untrace.from_jaxpr(jax.make_jaxpr(step)(PARAMS, X, Y))
    assert any("a jaxpr has no calls" in n for n in found.notes), found.notes
    assert not untrace.decompile(step)(PARAMS, X, Y).notes
    text = untrace.decompile(step, derivatives="written")(PARAMS, X, Y).source
    assert "backward, written out: an edit above does not change it" in text, text


SAMPLER = """
import typing


class State(typing.NamedTuple):
    position: typing.Any
    energy: typing.Any
    force: typing.Any


def init(position, energy):
    return State(position, *jax.value_and_grad(energy)(position))


def step(states, energy):
    def one(state):
        return init(state.position - 0.1 * state.force, energy)

    return jax.vmap(one)(states)


def start(positions, energy):
    return jax.vmap(lambda position: init(position, energy))(positions)
"""


def test_what_a_library_maps_stays_mapped_where_it_asks_for_a_derivative(monkeypatch):
    names = library(SAMPLER)
    module = ModuleType("sampler_of_a_library")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names["State"].__module__ = module.__name__

    def bowl(x):
        return jnp.sum((x - 1.0) ** 4) + jnp.sum(jnp.cosh(x))

    def fn(positions):
        return names["step"](names["start"](positions, bowl), bowl).position

    d = untrace.decompile(fn)(X)
    assert d.proof.at_least("bits")
    assert "# backward" not in d.source and d.source.count("jax.value_and_grad(bowl)") >= 1, d.source
    assert d.source.count("jax.vmap(") == 2, d.source


def test_a_function_that_is_evaluated_and_differentiated_is_written_once() -> None:
    """Where it is evaluated it could be simplified, and would be another function then."""

    def dense(p, x):
        return lax.dot_general(x, p["w"], (((1,), (0,)), ((), ()))) + jnp.reshape(p["b"], (1, -1))

    def mlp(params, x):
        return dense(params["out"], jnp.tanh(dense(params["inner"], x)))

    def loss(params, x, target):
        return jnp.mean((mlp(params, x) - target) ** 2)

    def step(params, slow, x):
        grads = jax.grad(loss)(params, x, mlp(slow, x) * 0.9)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {k: {"w": jnp.ones((3, 3)), "b": jnp.zeros(3)} for k in ("inner", "out")}
    source = untrace.decompile(step)(params, params, jnp.ones((4, 3))).source
    assert source.count("def mlp") == 1 and source.count("def dense") == 1, source
    assert "jax.grad(loss)" in source, source
