import jax.numpy as jnp
from jax import lax


def swing(angle, speed, dt):
    """Where a damped pendulum is after a hundred steps, and how far it swung."""

    def step(state, _):
        angle, speed = state
        speed = speed - dt * (9.81 * jnp.sin(angle) + 0.1 * speed)
        angle = angle + dt * speed
        return (angle, speed), jnp.abs(angle)

    (angle, speed), sizes = lax.scan(step, (angle, speed), length=100)
    return {"angle": angle, "speed": speed, "largest": jnp.max(sizes)}
