"""2D incompressible Navier-Stokes on a periodic box, vorticity form, pseudo-spectral with RK4.

    d_t w + u . grad w = nu lap w - mu w + curl f,    lap psi = -w,    u = (d_y psi, -d_x psi)

The state is the real FFT of the vorticity. Products are formed on the physical grid and truncated
with the 2/3 rule; forcing is the Kolmogorov profile at a single wavenumber.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class SolverConfig:
    resolution: int = 32
    domain_size: float = 2 * np.pi
    viscosity: float = 1e-3
    drag: float = 0.1
    forcing_wavenumber: int = 4
    forcing_amplitude: float = 1.0
    dt: float = 5e-3
    steps_per_save: int = 5
    num_saves: int = 4

    @property
    def dx(self) -> float:
        return self.domain_size / self.resolution


class SpectralGrid(NamedTuple):
    kx: jax.Array  # [n, n // 2 + 1]
    ky: jax.Array
    k_squared: jax.Array
    inv_laplacian: jax.Array
    dealias: jax.Array


class Diagnostics(NamedTuple):
    energy: jax.Array
    enstrophy: jax.Array
    cfl: jax.Array


def make_grid(cfg: SolverConfig) -> SpectralGrid:
    n = cfg.resolution
    scale = 2 * jnp.pi / cfg.domain_size
    kx, ky = jnp.meshgrid(scale * jnp.fft.fftfreq(n, 1.0 / n), scale * jnp.fft.rfftfreq(n, 1.0 / n), indexing="ij")
    k_squared = kx**2 + ky**2
    inv_laplacian = jnp.where(k_squared > 0, -1.0 / jnp.where(k_squared > 0, k_squared, 1.0), 0.0)
    k_max = scale * n / 3.0
    dealias = ((jnp.abs(kx) < k_max) & (jnp.abs(ky) < k_max)).astype(jnp.float32)
    return SpectralGrid(kx, ky, k_squared, inv_laplacian, dealias)


def velocity_from_vorticity(w_hat: jax.Array, grid: SpectralGrid) -> tuple[jax.Array, jax.Array]:
    """Solves the Poisson equation for the streamfunction and returns (u, v) in physical space."""
    psi_hat = -w_hat * grid.inv_laplacian
    return jnp.fft.irfft2(1j * grid.ky * psi_hat), jnp.fft.irfft2(-1j * grid.kx * psi_hat)


def kolmogorov_forcing(cfg: SolverConfig) -> jax.Array:
    y = jnp.arange(cfg.resolution) * cfg.dx
    k = 2 * jnp.pi * cfg.forcing_wavenumber / cfg.domain_size
    curl = -cfg.forcing_amplitude * k * jnp.cos(k * y)
    return jnp.fft.rfft2(jnp.broadcast_to(curl, (cfg.resolution, cfg.resolution)))


def make_rhs(cfg: SolverConfig, grid: SpectralGrid):
    forcing_hat = kolmogorov_forcing(cfg)
    linear = -cfg.viscosity * grid.k_squared - cfg.drag

    def rhs(w_hat: jax.Array) -> jax.Array:
        u, v = velocity_from_vorticity(w_hat, grid)
        w_x = jnp.fft.irfft2(1j * grid.kx * w_hat)
        w_y = jnp.fft.irfft2(1j * grid.ky * w_hat)
        advection_hat = grid.dealias * jnp.fft.rfft2(u * w_x + v * w_y)
        return -advection_hat + linear * w_hat + forcing_hat

    return rhs


def rk4_step(rhs, y: jax.Array, dt: float) -> jax.Array:
    k1 = rhs(y)
    k2 = rhs(y + 0.5 * dt * k1)
    k3 = rhs(y + 0.5 * dt * k2)
    k4 = rhs(y + dt * k3)
    return y + (dt / 6.0) * (k1 + 2 * k2 + 2 * k3 + k4)


def diagnose(w_hat: jax.Array, grid: SpectralGrid, cfg: SolverConfig) -> Diagnostics:
    u, v = velocity_from_vorticity(w_hat, grid)
    speed_squared = u**2 + v**2
    w = jnp.fft.irfft2(w_hat)
    return Diagnostics(
        energy=0.5 * jnp.mean(speed_squared),
        enstrophy=0.5 * jnp.mean(w**2),
        cfl=jnp.sqrt(jnp.max(speed_squared)) * cfg.dt / cfg.dx,
    )


@functools.partial(jax.jit, static_argnames=("cfg",))
def simulate(w0: jax.Array, cfg: SolverConfig) -> tuple[jax.Array, Diagnostics]:
    """Integrates from physical vorticity w0, returning saved snapshots and diagnostics."""
    grid = make_grid(cfg)
    rhs = make_rhs(cfg, grid)

    def save_interval(w_hat, _):
        w_hat = jax.lax.fori_loop(0, cfg.steps_per_save, lambda _, y: rk4_step(rhs, y, cfg.dt), w_hat)
        return w_hat, (jnp.fft.irfft2(w_hat), diagnose(w_hat, grid, cfg))

    _, (snapshots, stats) = jax.lax.scan(save_interval, jnp.fft.rfft2(w0) * grid.dealias, None, length=cfg.num_saves)
    return snapshots, stats


def random_vorticity(key: jax.Array, cfg: SolverConfig, peak_wavenumber: float = 4.0) -> jax.Array:
    """Filtered Gaussian noise with unit RMS and energy concentrated near peak_wavenumber."""
    grid = make_grid(cfg)
    noise_hat = jnp.fft.rfft2(jax.random.normal(key, (cfg.resolution, cfg.resolution)))
    k = jnp.sqrt(grid.k_squared)
    w = jnp.fft.irfft2(noise_hat * k * jnp.exp(-((k / peak_wavenumber) ** 2)))
    return w / jnp.sqrt(jnp.mean(w**2))


def build():
    cfg = SolverConfig()
    return functools.partial(simulate, cfg=cfg), (random_vorticity(jax.random.key(3), cfg),)
