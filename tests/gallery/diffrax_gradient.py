"""The gradient of the end of an ODE's solution, by diffrax with fixed steps."""

import diffrax
import jax
import jax.numpy as jnp


def end_energy(params, state):
    def field(t, y, args):
        damping, stiffness = args
        position, velocity = y
        return velocity, -damping * velocity - stiffness * position

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Euler(),
        t0=0.0,
        t1=1.0,
        dt0=0.1,
        y0=state,
        args=params,
        saveat=diffrax.SaveAt(t1=True),
        adjoint=diffrax.ForwardMode(),
        throw=False,
        max_steps=16,
    )
    position, velocity = solution.ys
    return 0.5 * jnp.sum(position**2 + velocity**2)


def build():
    params, state = (jnp.array(0.1), jnp.array(2.0)), (jnp.array(1.0), jnp.array(0.0))
    return jax.jacfwd(end_energy), (params, state)
