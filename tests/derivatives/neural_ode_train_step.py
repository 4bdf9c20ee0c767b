"""Neural ODE fitted to trajectories: RK4 in a scan over the intervals between observations, with rematerialisation.

Each interval is several RK4 steps under `jax.checkpoint` with a policy, in an inner scan; the loss over a batch of
trajectories is differentiated through both scans.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad trajectory_loss",)
STATE, HIDDEN, OBSERVATIONS, SUBSTEPS = 2, 12, 6, 4


class VectorField(NamedTuple):
    w_in: jax.Array
    w_time: jax.Array
    b_in: jax.Array
    w_out: jax.Array


class SGDState(NamedTuple):
    velocity: VectorField
    count: jax.Array


def vector_field(params, time, state):
    hidden = jnp.tanh(state @ params.w_in + time * params.w_time + params.b_in)
    return hidden @ params.w_out


def rk4_step(params, time, state, step):
    k1 = vector_field(params, time, state)
    k2 = vector_field(params, time + 0.5 * step, state + 0.5 * step * k1)
    k3 = vector_field(params, time + 0.5 * step, state + 0.5 * step * k2)
    k4 = vector_field(params, time + step, state + step * k3)
    return state + step / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


@partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
def integrate_interval(params, state, start, stop):
    step = (stop - start) / SUBSTEPS

    def substep(carry, _):
        time, state = carry
        return (time + step, rk4_step(params, time, state, step)), None

    (_, state), _ = jax.lax.scan(substep, (start, state), length=SUBSTEPS)
    return state


def odeint(params, initial, times):
    def advance(state, interval):
        state = integrate_interval(params, state, *interval)
        return state, state

    _, states = jax.lax.scan(advance, initial, (times[:-1], times[1:]))
    return jnp.concatenate([initial[None], states])


def trajectory_loss(params, times, observed):
    predicted = jax.vmap(odeint, in_axes=(None, 0, None))(params, observed[:, 0], times)
    errors = jnp.mean((predicted - observed) ** 2, axis=(1, 2))
    regulariser = sum(jnp.sum(leaf**2) for leaf in params)
    return jnp.mean(errors) + 1e-4 * regulariser, errors


def nesterov(grads, state, learning_rate):
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state.velocity, grads)
    updates = jax.tree.map(lambda v, g: -learning_rate * (0.9 * v + g), velocity, grads)
    return updates, SGDState(velocity, state.count + 1)


def train_step(params, opt_state, times, observed):
    (loss, errors), grads = jax.value_and_grad(trajectory_loss, has_aux=True)(params, times, observed)
    learning_rate = 0.05 * 0.5 ** (opt_state.count / 100)
    updates, opt_state = nesterov(grads, opt_state, learning_rate)
    params = jax.tree.map(jnp.add, params, updates)
    return params, opt_state, {"loss": loss, "worst": jnp.argmax(errors)}


def spirals(key, times, count):
    initial = jax.random.normal(key, (count, STATE))
    decay = jnp.exp(-0.2 * times)
    cosine, sine = decay * jnp.cos(2.0 * times), decay * jnp.sin(2.0 * times)
    rotation = jnp.stack([jnp.stack([cosine, -sine], -1), jnp.stack([sine, cosine], -1)], -2)
    return jnp.einsum("tij,bj->bti", rotation, initial)


def build():
    keys = jax.random.split(jax.random.key(17), 4)
    params = VectorField(
        0.5 * jax.random.normal(keys[0], (STATE, HIDDEN)),
        0.1 * jax.random.normal(keys[1], (HIDDEN,)),
        jnp.zeros(HIDDEN),
        0.3 * jax.random.normal(keys[2], (HIDDEN, STATE)),
    )
    times = jnp.linspace(0.0, 1.5, OBSERVATIONS)
    opt_state = SGDState(jax.tree.map(jnp.zeros_like, params), jnp.array(0))
    return train_step, (params, opt_state, times, spirals(keys[3], times, 3))
