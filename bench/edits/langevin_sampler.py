"""Unadjusted Langevin dynamics of particles on a chain of double wells."""

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "sampler"
SOURCE = "self"
STEP_SIZE, TEMPERATURE = 0.01, 0.3


def energy(heights, stiffness):
    wells = 0.25 * (heights**2 - 1.0) ** 2
    bonds = heights[1:] - heights[:-1]
    return jnp.sum(wells) + 0.5 * stiffness * jnp.sum(bonds**2)


def sample(heights, stiffness, key):
    def step(heights, key):
        energies, forces = jax.vmap(jax.value_and_grad(energy), in_axes=(0, None))(heights, stiffness)
        noise = jax.random.normal(key, heights.shape)
        heights = heights - STEP_SIZE * forces + jnp.sqrt(2.0 * STEP_SIZE * TEMPERATURE) * noise
        return heights, jnp.mean(energies)

    return jax.lax.scan(step, heights, jax.random.split(key, 20))


def build():
    keys = jax.random.split(jax.random.key(5), 2)
    heights = jax.random.normal(keys[0], (6, 9))
    return sample, (heights, 0.8, keys[1])
