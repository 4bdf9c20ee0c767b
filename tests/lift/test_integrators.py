"""`jax.experimental.ode.odeint`: one call again, of the author's function."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.ode import odeint

import untrace

DIFFUSION = 0.3
TIMES = np.linspace(0, 1, 5, dtype=np.float32)
PARAMS = {"w": np.full((4, 2), 0.1, np.float32), "b": np.ones(4, np.float32), "out": np.full((2, 4), 0.2, np.float32)}


def written(fn, *args):
    """The text of `fn`, proven to be the same jaxpr, without notes, run in a module of its own."""
    d = untrace.decompile(fn, comments="none")(*args)
    assert d.proof.level == "jaxpr" and not d.notes, f"{d.proof}\n{d.notes}\n{d.source}"
    module = {}
    exec(compile(d.source, "written", "exec"), module)
    found, expected = (jax.tree.leaves(jax.jit(f)(*args)) for f in (module[d.name], fn))
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left, right)
    return d.source


def network(y, t, params):
    hidden = jnp.tanh(params["w"] @ y + params["b"] * t)
    return params["out"] @ hidden


def loss(params, y, times, target):
    return jnp.mean((odeint(network, y, times, params, rtol=1e-5, atol=1e-7) - target) ** 2)


def test_a_train_step():
    def step(params, y, times, target):
        value, grads = jax.value_and_grad(loss)(params, y, times, target)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    text = written(step, PARAMS, np.ones(2, np.float32), TIMES, np.zeros((5, 2), np.float32))
    assert "def network(y, t, params):" in text and "jax.value_and_grad(loss)" in text
    assert "ode.odeint(network, y, times, params, rtol=1e-05, atol=1e-07)" in text


def test_a_function_that_closes_over_values():
    def simulate(y, times, rate):
        def field(y, t):
            return -rate * y + jnp.sin(t)

        return odeint(field, y, times, hmax=0.1)

    text = written(jax.jit(simulate), np.ones(2, np.float32), TIMES, np.float32(2.0))
    assert "return ode.odeint(" in text and "y, times, hmax=0.1)" in text and "-rate * y + jnp.sin(t)" in text


def test_a_state_of_two_axes():
    def heat(u, t):
        return DIFFUSION * (jnp.roll(u, 1, axis=0) + jnp.roll(u, -1, axis=0) - 2 * u)

    text = written(lambda u, times: odeint(heat, u, times, mxstep=500)[-1], np.eye(4, 3, dtype=np.float32), TIMES)
    assert "return ode.odeint(heat, u, times, mxstep=500)[-1]" in text and "DIFFUSION * (" in text


def test_several_states_at_once():
    def decay(y, t, rate):
        return -rate * y

    text = written(
        lambda ys, ts, r: jax.vmap(lambda y: odeint(decay, y, ts, r))(ys),
        np.ones((3, 2), np.float32),
        TIMES,
        np.float32(2.0),
    )
    assert "jax.vmap(lambda y: ode.odeint(decay, y, ts, r))(ys)" in text


def test_another_target_has_the_integrator_itself():
    d = untrace.decompile(lambda y, times: odeint(lambda y, t: -y, y, times))(np.ones(2, np.float32), TIMES)
    assert "return ode.odeint(function, y, times)" in d.source
    numpy = d.to("numpy")
    assert numpy.proof.at_least("close") and "while" in numpy.source and "ode.odeint(" not in numpy.source
