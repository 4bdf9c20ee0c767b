"""Vectorized version of `simulate` (vmapped_simulator.py:15).

untrace 0.1.0 · jax 0.10.2 · proven: same jaxpr
"""

import jax.numpy as jnp
from jax import lax


def batched_simulate(state, torques):
    """Args: state: (f32[5], f32[5]); torques: f32[5,20].
    Returns: {"energy": f32[5], "path": f32[5,20]}.
    """

    def step(state, torque):
        angle, velocity = state
        acceleration = torque - 0.1 * velocity - jnp.sin(angle)
        velocity = velocity + 0.05 * acceleration
        angle = angle + 0.05 * velocity
        return (angle, velocity), angle

    (angle, velocity), path = lax.scan(step, (state[0], state[1]), torques.T)
    energy = 0.5 * velocity**2 - jnp.cos(angle)
    return {"energy": energy, "path": path.T}
