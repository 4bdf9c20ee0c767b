"""The programs of `c_speed.py`: each in JAX as one writes it there, and in CasADi as one writes it there.

A pair computes the same function of the same arrays in float64; `casadi` makes CasADi's function, and is None where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

GRAVITY = 9.81
STEP = 0.05
HORIZON = 20


@dataclass(frozen=True, slots=True)
class Pair:
    """A program: `fn(*args)` in JAX, `casadi()` the same in CasADi. `goal`: the largest ratio of the times, ours to theirs."""

    name: str
    fn: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    casadi: Callable[[], Any]
    goal: float = 1.0


# -------------------------------------------------------------------- a pendulum of n links


def dynamics(x: jax.Array) -> jax.Array:
    """The time derivative of angles and speeds, f64[2 n], of links of one metre with a kilogram at the end of each."""
    n = x.shape[0] // 2
    q, w = x[:n], x[n:]
    k = jnp.arange(n)
    mass = n - jnp.maximum(k[:, None], k[None])
    apart = q[:, None] - q[None]
    force = -GRAVITY * (n - k) * jnp.sin(q) - (mass * jnp.sin(apart)) @ w**2
    return jnp.concatenate([w, jnp.linalg.solve(mass * jnp.cos(apart), force)])


def energy(q: jax.Array, w: jax.Array) -> jax.Array:
    """The kinetic energy without the potential one, of angles and speeds f64[n]."""
    vx, vy = jnp.cumsum(w * jnp.cos(q)), jnp.cumsum(w * jnp.sin(q))
    return 0.5 * jnp.sum(vx**2 + vy**2) + GRAVITY * jnp.sum(jnp.cumsum(jnp.cos(q)))


def lagrange(x: jax.Array) -> jax.Array:
    """The same as `dynamics`, by derivatives of the energies."""
    n = x.shape[0] // 2
    q, w = x[:n], x[n:]
    momentum = jax.grad(energy, 1)
    mass = jax.jacfwd(momentum, 1)(q, w)
    change = jax.jvp(lambda q: momentum(q, w), (q,), (w,))[1]
    return jnp.concatenate([w, jnp.linalg.solve(mass, jax.grad(energy)(q, w) - change)])


def pendulum(n: int, jacobian: bool, by_energies: bool = False) -> Any:
    """The same in CasADi, by the mass matrix, or by its own derivatives of the two energies."""
    import casadi as ca

    q, w = ca.SX.sym("q", n), ca.SX.sym("w", n)
    if by_energies:
        y, kinetic, potential = 0, 0, 0
        vx, vy = 0, 0
        for i in range(n):
            y -= ca.cos(q[i])
            vx += w[i] * ca.cos(q[i])
            vy += w[i] * ca.sin(q[i])
            kinetic += 0.5 * (vx**2 + vy**2)
            potential += GRAVITY * y
        energy = kinetic - potential
        momentum = ca.gradient(energy, w)
        mass, force = ca.jacobian(momentum, w), ca.gradient(energy, q) - ca.jtimes(momentum, q, w)
    else:
        mass, force = ca.SX(n, n), ca.SX(n, 1)
        for i in range(n):
            force[i] = -(n - i) * GRAVITY * ca.sin(q[i])
            for j in range(n):
                mass[i, j] = (n - max(i, j)) * ca.cos(q[i] - q[j])
                force[i] -= (n - max(i, j)) * ca.sin(q[i] - q[j]) * w[j] ** 2
    x, out = ca.vertcat(q, w), ca.vertcat(w, ca.solve(mass, force))
    return ca.Function("f", [x], [ca.densify(ca.jacobian(out, x)).T if jacobian else out])


# -------------------------------------------------------------------- a step of an extended Kalman filter


def move(x: jax.Array, u: jax.Array) -> jax.Array:
    """Where a car f64[5] (place, heading, speed, steering) is a step later under acceleration and steering rate f64[2]."""
    px, py, heading, speed, angle = x
    return jnp.array(
        [
            px + STEP * speed * jnp.cos(heading),
            py + STEP * speed * jnp.sin(heading),
            heading + STEP * speed * jnp.tan(angle) / 2.5,
            speed + STEP * u[0],
            angle + STEP * u[1],
        ]
    )


def look(x: jax.Array) -> jax.Array:
    """What a radar at the origin and the car's own meter say: distance, direction, speed."""
    return jnp.array([jnp.sqrt(x[0] ** 2 + x[1] ** 2), jnp.arctan2(x[1], x[0]) - x[2], x[3]])


def ekf(x: jax.Array, p: jax.Array, u: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The estimate f64[5] and its covariance f64[5,5] after a step with the measurement z: f64[3]."""
    f = jax.jacfwd(move)(x, u)
    x = move(x, u)
    p = f @ p @ f.T + 0.01 * jnp.eye(5)
    h = jax.jacfwd(look)(x)
    gain = jnp.linalg.solve(h @ p @ h.T + 0.1 * jnp.eye(3), h @ p).T
    return x + gain @ (z - look(x)), (jnp.eye(5) - gain @ h) @ p


def casadi_move(x: Any, u: Any) -> Any:
    import casadi as ca

    return ca.vertcat(
        x[0] + STEP * x[3] * ca.cos(x[2]),
        x[1] + STEP * x[3] * ca.sin(x[2]),
        x[2] + STEP * x[3] * ca.tan(x[4]) / 2.5,
        x[3] + STEP * u[0],
        x[4] + STEP * u[1],
    )


def casadi_ekf() -> Any:
    import casadi as ca

    x, p, u, z = ca.SX.sym("x", 5), ca.SX.sym("p", 5, 5), ca.SX.sym("u", 2), ca.SX.sym("z", 3)
    new = casadi_move(x, u)
    f = ca.jacobian(new, x)
    at = ca.SX.sym("at", 5)
    seen = ca.vertcat(ca.sqrt(at[0] ** 2 + at[1] ** 2), ca.atan2(at[1], at[0]) - at[2], at[3])
    look_at = ca.Function("look", [at], [seen, ca.densify(ca.jacobian(seen, at))])
    seen, h = look_at(new)
    p_new = f @ p.T @ f.T + 0.01 * ca.SX.eye(5)  # matrices come row by row
    gain = ca.solve(h @ p_new @ h.T + 0.1 * ca.SX.eye(3), h @ p_new).T
    cov = (ca.SX.eye(5) - gain @ h) @ p_new
    return ca.Function("f", [x, p, u, z], [new + gain @ (z - seen), ca.densify(cov).T])


# -------------------------------------------------------------------- the gradient of a controller's cost


def cost(us: jax.Array, x: jax.Array) -> jax.Array:
    """What 20 steps under the controls us: f64[20,2] cost, from the car's state on."""

    def step(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = move(x, u)
        return x, (x[0] - 3.0) ** 2 + (x[1] - 1.0) ** 2 + 0.1 * x[2] ** 2 + 0.01 * jnp.sum(u**2)

    return jnp.sum(jax.lax.scan(step, x, us)[1])


def casadi_cost() -> Any:
    import casadi as ca

    us, start = ca.SX.sym("us", 2, HORIZON), ca.SX.sym("x", 5)
    x, total = start, 0
    for k in range(HORIZON):
        u = us[:, k]
        x = casadi_move(x, u)
        total += (x[0] - 3) ** 2 + (x[1] - 1) ** 2 + 0.1 * x[2] ** 2 + 0.01 * ca.sumsqr(u)
    return ca.Function("f", [us, start], [ca.gradient(total, us)])


# -------------------------------------------------------------------- all of them


def pairs() -> Iterator[Pair]:
    """The programs that CasADi has as well."""
    rng = np.random.default_rng(0)
    for n in (2, 4, 6):
        x = (np.linspace(0.3, 1.2, 2 * n),)
        yield Pair(f"pendulum {n}", dynamics, x, lambda n=n: pendulum(n, False))
        yield Pair(f"pendulum {n}, energies", lagrange, x, lambda n=n: pendulum(n, False, True))
        yield Pair(f"Jacobian {n}", jax.jacfwd(dynamics), x, lambda n=n: pendulum(n, True), 2.0)
        yield Pair(f"Jacobian {n}, energies", jax.jacfwd(lagrange), x, lambda n=n: pendulum(n, True, True), 2.0)
    car = np.array([2.0, 1.0, 0.3, 4.0, 0.1])
    root = rng.normal(size=(5, 5))
    args = car, root @ root.T + np.eye(5), np.array([0.5, 0.02]), np.array([2.3, 0.2, 4.1])
    yield Pair("EKF step", ekf, args, casadi_ekf)
    yield Pair("MPC cost gradient", jax.grad(cost), (0.1 * rng.normal(size=(HORIZON, 2)), car), casadi_cost)


def mlp(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """Two layers of tanh."""
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return x
