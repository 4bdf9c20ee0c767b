"""A damped pendulum, simulated for many starts at once: a step, a loop over time, a vmap over the batch."""

import jax
import jax.numpy as jnp


def step(state, torque):
    angle, velocity = state
    acceleration = torque - 0.1 * velocity - jnp.sin(angle)
    velocity = velocity + 0.05 * acceleration
    angle = angle + 0.05 * velocity
    return (angle, velocity), angle


def simulate(state, torques):
    (angle, velocity), path = jax.lax.scan(step, state, torques)
    energy = 0.5 * velocity**2 - jnp.cos(angle)
    return {"path": path, "energy": energy}


def build():
    state = (jnp.linspace(0.0, 1.0, 5), jnp.zeros(5))
    torques = jnp.ones((5, 20))
    return jax.vmap(simulate), (state, torques)
