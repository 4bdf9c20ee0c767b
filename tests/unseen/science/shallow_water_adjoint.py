"""Adjoint sensitivity of a shallow water model: gradient of an observation misfit w.r.t. the initial state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LIBRARY = "jax"
KIND = "grad"
SOURCE = "self"

GRAVITY = 9.81
CORIOLIS = 1.0e-4
DX = 5.0e3
DT = 20.0
VISCOSITY = 1.0e3
N_STEPS = 24


class State(NamedTuple):
    u: jax.Array
    v: jax.Array
    eta: jax.Array


def ddx(f):
    return (jnp.roll(f, -1, axis=1) - jnp.roll(f, 1, axis=1)) / (2.0 * DX)


def ddy(f):
    inner = (f[2:] - f[:-2]) / (2.0 * DX)
    return jnp.pad(inner, ((1, 1), (0, 0)))


def laplacian(f):
    fy = jnp.pad(f, ((1, 1), (0, 0)), mode="edge")
    return (fy[2:] + fy[:-2] + jnp.roll(f, 1, 1) + jnp.roll(f, -1, 1) - 4.0 * f) / DX**2


def tendency(state, depth):
    u, v, eta = state
    h = depth + eta
    du = -u * ddx(u) - v * ddy(u) + CORIOLIS * v - GRAVITY * ddx(eta) + VISCOSITY * laplacian(u)
    dv = -u * ddx(v) - v * ddy(v) - CORIOLIS * u - GRAVITY * ddy(eta) + VISCOSITY * laplacian(v)
    deta = -(ddx(h * u) + ddy(h * v))
    return State(du, dv, deta)


def apply_walls(state):
    return state._replace(v=state.v.at[0].set(0.0).at[-1].set(0.0))


def axpy(alpha, x, y):
    return jax.tree.map(lambda a, b: alpha * a + b, x, y)


@jax.checkpoint
def rk3_step(state, depth):
    s1 = apply_walls(axpy(DT / 3.0, tendency(state, depth), state))
    s2 = apply_walls(axpy(DT / 2.0, tendency(s1, depth), state))
    return apply_walls(axpy(DT, tendency(s2, depth), state))


def integrate(state, depth):
    def body(s, _):
        s = rk3_step(s, depth)
        return s, s.eta

    return lax.scan(body, state, None, length=N_STEPS)


def misfit(initial, depth, obs, obs_rows, obs_cols):
    final, history = integrate(initial, depth)
    predicted = history[:, obs_rows, obs_cols]
    residual = jnp.where(jnp.isnan(obs), 0.0, predicted - jnp.nan_to_num(obs))
    energy = 0.5 * jnp.mean(depth * (final.u**2 + final.v**2) + GRAVITY * final.eta**2)
    return 0.5 * jnp.sum(residual**2), {"energy": energy, "rms": jnp.sqrt(jnp.mean(residual**2))}


def sensitivity(initial, depth, obs, obs_rows, obs_cols):
    (cost, info), grads = jax.value_and_grad(misfit, has_aux=True)(initial, depth, obs, obs_rows, obs_cols)
    return cost, info, grads


def build():
    ny, nx = 16, 24
    y, x = jnp.meshgrid(jnp.arange(ny) * DX, jnp.arange(nx) * DX, indexing="ij")
    bump = jnp.exp(-((x - 4e4) ** 2 + (y - 4e4) ** 2) / (2 * (1.2e4) ** 2))
    initial = State(jnp.zeros((ny, nx)), jnp.zeros((ny, nx)), 0.5 * bump)
    depth = 100.0 - 20.0 * jnp.cos(2 * jnp.pi * x / (nx * DX))
    rows, cols = jnp.array([3, 8, 12, 5]), jnp.array([6, 10, 18, 21])
    obs = 0.1 * jax.random.normal(jax.random.PRNGKey(0), (N_STEPS, 4))
    obs = obs.at[::3, 1].set(jnp.nan)
    return sensitivity, (initial, depth, obs, rows, cols)
