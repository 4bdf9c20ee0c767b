"""D2Q9 lattice Boltzmann (BGK) flow past a cylinder in a channel, with bounce-back walls."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Discrete velocities: rest, east, north, west, south, then the four diagonals.
VELOCITIES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]], dtype=np.int32)
WEIGHTS = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, dtype=np.float32)
OPPOSITE = np.array([0, 3, 4, 1, 2, 7, 8, 5, 6])
RIGHT_GOING = np.where(VELOCITIES[:, 0] == 1)[0]
LEFT_GOING = np.where(VELOCITIES[:, 0] == -1)[0]
VERTICAL = np.where(VELOCITIES[:, 0] == 0)[0]


@dataclasses.dataclass(frozen=True)
class FlowConfig:
    nx: int = 32
    ny: int = 16
    inlet_velocity: float = 0.05
    reynolds: float = 40.0
    radius: float = 2.5

    @property
    def viscosity(self) -> float:
        return self.inlet_velocity * 2.0 * self.radius / self.reynolds

    @property
    def relaxation_rate(self) -> float:
        return 1.0 / (3.0 * self.viscosity + 0.5)


class Macroscopic(NamedTuple):
    density: jax.Array
    velocity: jax.Array


def macroscopic(f: jax.Array) -> Macroscopic:
    density = jnp.sum(f, axis=-1)
    momentum = jnp.einsum("xyq,qd->xyd", f, VELOCITIES.astype(np.float32))
    return Macroscopic(density, momentum / density[..., None])


def equilibrium(density: jax.Array, velocity: jax.Array) -> jax.Array:
    """Second-order expansion of the Maxwell-Boltzmann distribution."""
    projected = jnp.einsum("...d,qd->...q", velocity, VELOCITIES.astype(np.float32))
    speed_squared = jnp.sum(velocity**2, axis=-1, keepdims=True)
    return density[..., None] * WEIGHTS * (1.0 + 3.0 * projected + 4.5 * projected**2 - 1.5 * speed_squared)


def collide(f, relaxation_rate):
    density, velocity = macroscopic(f)
    return f + relaxation_rate * (equilibrium(density, velocity) - f)


def stream(f):
    moved = [jnp.roll(f[..., q], shift=(int(cx), int(cy)), axis=(0, 1)) for q, (cx, cy) in enumerate(VELOCITIES)]
    return jnp.stack(moved, axis=-1)


def bounce_back(f_post, f_pre, solid):
    """Reverse the populations at solid nodes instead of colliding them."""
    return jnp.where(solid[..., None], f_pre[..., OPPOSITE], f_post)


def apply_outlet(f):
    """Zero-gradient outflow for populations entering through the right boundary."""
    return f.at[-1, :, LEFT_GOING].set(f[-2, :, LEFT_GOING])


def apply_inlet(f, profile):
    """Zou-He inlet: prescribed velocity, density recovered from the known populations."""
    inlet = f[0]
    known = jnp.sum(inlet[:, VERTICAL], axis=-1) + 2.0 * jnp.sum(inlet[:, LEFT_GOING], axis=-1)
    density = known / (1.0 - profile[:, 0])
    f_eq = equilibrium(density, profile)
    incoming = f_eq[:, RIGHT_GOING] + inlet[:, OPPOSITE[RIGHT_GOING]] - f_eq[:, OPPOSITE[RIGHT_GOING]]
    return f.at[0, :, RIGHT_GOING].set(incoming.T)


def obstacle_mask(config: FlowConfig):
    x, y = jnp.meshgrid(jnp.arange(config.nx), jnp.arange(config.ny), indexing="ij")
    cylinder = jnp.hypot(x - config.nx / 4, y - config.ny / 2) < config.radius
    walls = (y == 0) | (y == config.ny - 1)
    return cylinder | walls, cylinder


def inlet_profile(config: FlowConfig):
    height = config.ny - 2
    y = jnp.arange(config.ny) - 0.5
    parabola = 4.0 * config.inlet_velocity * y * (height - y) / height**2
    ux = jnp.clip(parabola, 0.0)
    return jnp.stack([ux, jnp.zeros_like(ux)], axis=-1)


def drag(f, cylinder):
    """Momentum exchanged with the cylinder in one step."""
    reversed_momentum = 2.0 * jnp.einsum("xyq,qd->xyd", f, VELOCITIES.astype(np.float32))
    return jnp.sum(jnp.where(cylinder[..., None], reversed_momentum, 0.0), axis=(0, 1))


def vorticity(velocity):
    dv_dx = (jnp.roll(velocity[..., 1], -1, axis=0) - jnp.roll(velocity[..., 1], 1, axis=0)) / 2
    du_dy = (jnp.roll(velocity[..., 0], -1, axis=1) - jnp.roll(velocity[..., 0], 1, axis=1)) / 2
    return dv_dx - du_dy


def simulate(f, solid, cylinder, *, config: FlowConfig, num_steps: int):
    profile = inlet_profile(config)

    def step(i, carry):
        f, drag_history = carry
        f = apply_inlet(apply_outlet(f), profile)
        f_post = bounce_back(collide(f, config.relaxation_rate), f, solid)
        drag_history = drag_history.at[i].set(drag(f, cylinder))
        return stream(f_post), drag_history

    f, drag_history = jax.lax.fori_loop(0, num_steps, step, (f, jnp.zeros((num_steps, 2))))
    density, velocity = macroscopic(f)
    velocity = jnp.where(solid[..., None], 0.0, velocity)
    return f, {"density": density, "vorticity": vorticity(velocity), "drag": drag_history}


def build():
    config = FlowConfig()
    solid, cylinder = obstacle_mask(config)
    velocity = jnp.broadcast_to(inlet_profile(config), (config.nx, config.ny, 2))
    velocity = jnp.where(solid[..., None], 0.0, velocity)
    f = equilibrium(jnp.ones((config.nx, config.ny)), velocity)
    return functools.partial(simulate, config=config, num_steps=20), (f, solid, cylinder)
