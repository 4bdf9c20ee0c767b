"""Calls of mapped and differentiated functions, taken out of a jaxpr again."""

import jax
import jax.numpy as jnp

import untrace
from untrace import jax_compat
from untrace.capture import function
from untrace.capture.calls.unfolding import unfolded
from untrace.driver.forms import with_calls_found
from untrace.provenance.sites import Provenance


def layer(w, x):
    return jnp.tanh(x @ w)


def loss(w, xs):
    return jnp.mean(jax.vmap(layer, (None, 0))(w, xs) ** 2)


def step(w, xs):
    value, grads = jax.value_and_grad(loss)(w, xs)
    return value, w - 0.1 * grads


def test_what_is_mapped_in_what_is_differentiated_keeps_its_places():
    captured = function.trace(step, (jnp.ones((3, 2)), jnp.ones((4, 3))), {}, note_calls=True, derivatives="called")
    function.expand(captured)
    with_calls = with_calls_found(captured, folds=True)
    assert [e.primitive.name for e in jax_compat.open_jaxpr(with_calls)[0].eqns][0] == "value_and_grad"
    places = Provenance()
    eqns = jax_compat.open_jaxpr(unfolded(with_calls))[0].eqns
    found = [(e.primitive.name, places.site(e).frame.function) for e in eqns]
    assert {("tanh", "layer"), ("integer_pow", "loss")} <= set(found) and found[-1] == ("sub", "step")


def test_a_derivative_rule_that_computes_with_numbers_is_no_reason_to_write_the_derivative_out():
    def tail(x):
        return jnp.sum(jax.scipy.special.betainc(2.0, 1.5, x))

    d = untrace.decompile(lambda x: jax.grad(tail)(x))(jnp.array([0.2, 0.7]))
    assert "return jax.grad(tail)(x)" in d.source and d.proof.level == "jaxpr" and not d.notes
