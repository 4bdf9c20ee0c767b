"""iLQR for a planar quadrotor: RK4 dynamics, Riccati backward pass, parallel line search."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

STATE_DIM, CONTROL_DIM = 6, 2  # (x, z, pitch and their rates), (left and right thrust)
STEP_SIZES = 0.5 ** jnp.arange(6)


class QuadrotorParams(NamedTuple):
    mass: float = 0.486
    inertia: float = 0.00383
    arm_length: float = 0.25
    gravity: float = 9.81


class CostWeights(NamedTuple):
    state: jax.Array
    control: jax.Array
    terminal: jax.Array
    obstacle: float = 5.0


class Solution(NamedTuple):
    states: jax.Array
    controls: jax.Array
    cost: jax.Array
    regularization: jax.Array


def quadrotor_ode(state, control, params: QuadrotorParams):
    _, _, pitch, vx, vz, pitch_rate = state
    thrust = control[0] + control[1]
    ax, az = -thrust * jnp.sin(pitch) / params.mass, thrust * jnp.cos(pitch) / params.mass - params.gravity
    pitch_acc = params.arm_length * (control[1] - control[0]) / params.inertia
    return jnp.stack([vx, vz, pitch_rate, ax, az, pitch_acc])


def project_psd(matrix, floor: float = 1e-6):
    """Nearest positive definite matrix; the obstacle term is not convex."""
    eigenvalues, eigenvectors = jnp.linalg.eigh(matrix)
    return (eigenvectors * jnp.maximum(eigenvalues, floor)) @ eigenvectors.T


def rk4(ode: Callable, dt: float) -> Callable:
    def step(state, control):
        k1 = ode(state, control)
        k2 = ode(state + 0.5 * dt * k1, control)
        k3 = ode(state + 0.5 * dt * k2, control)
        k4 = ode(state + dt * k3, control)
        return state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)

    return step


class ILQR:
    """Iterative LQR with Levenberg-Marquardt regularisation of the control Hessian."""

    def __init__(self, dynamics, stage_cost, terminal_cost, num_iterations=5):
        self.dynamics, self.num_iterations = dynamics, num_iterations
        self.stage_cost, self.terminal_cost = stage_cost, terminal_cost

    def rollout(self, initial_state, controls):
        final, states = jax.lax.scan(lambda x, u: (self.dynamics(x, u), x), initial_state, controls)
        return jnp.concatenate([states, final[None]])

    def total_cost(self, states, controls):
        return jnp.sum(jax.vmap(self.stage_cost)(states[:-1], controls)) + self.terminal_cost(states[-1])

    def backward_pass(self, states, controls, regularization):
        def riccati(carry, inputs):
            vx, vxx = carry
            fx, fu = jax.jacfwd(self.dynamics, argnums=(0, 1))(*inputs)
            lx, lu = jax.grad(self.stage_cost, argnums=(0, 1))(*inputs)
            (lxx, _), (lux, luu) = jax.hessian(self.stage_cost, argnums=(0, 1))(*inputs)
            qx, qu = lx + fx.T @ vx, lu + fu.T @ vx
            qxx = project_psd(lxx) + fx.T @ vxx @ fx
            qux, quu = lux + fu.T @ vxx @ fx, luu + fu.T @ vxx @ fu
            factor = jax.scipy.linalg.cho_factor(quu + regularization * jnp.eye(quu.shape[0]))
            k, K = (-jax.scipy.linalg.cho_solve(factor, rhs) for rhs in (qu, qux))
            vx = qx + K.T @ quu @ k + K.T @ qu + qux.T @ k
            vxx = qxx + K.T @ quu @ K + K.T @ qux + qux.T @ K
            return (vx, 0.5 * (vxx + vxx.T)), ((k, K), qu @ k + 0.5 * k @ quu @ k)

        boundary = tuple(d(self.terminal_cost)(states[-1]) for d in (jax.grad, jax.hessian))
        _, (gains, expected) = jax.lax.scan(riccati, boundary, (states[:-1], controls), reverse=True)
        return gains, jnp.sum(expected)

    def forward_pass(self, states, controls, gains, step_size):
        def step(state, inputs):
            reference, control, (feedforward, feedback) = inputs
            control = control + step_size * feedforward + feedback @ (state - reference)
            return self.dynamics(state, control), (state, control)

        final, (states, controls) = jax.lax.scan(step, states[0], (states[:-1], controls, gains))
        states = jnp.concatenate([states, final[None]])
        return states, controls, self.total_cost(states, controls)

    def iterate(self, solution: Solution, _):
        states, controls, cost, regularization = solution
        gains, expected = self.backward_pass(states, controls, regularization)
        candidates = jax.vmap(self.forward_pass, in_axes=(None, None, None, 0))(states, controls, gains, STEP_SIZES)
        costs = jnp.where(jnp.isfinite(candidates[2]), candidates[2], jnp.inf)
        best = jnp.argmin(costs)
        improved = costs[best] < cost
        accepted = jax.tree.map(lambda new, old: jnp.where(improved, new[best], old), candidates, solution[:3])
        regularization = jnp.clip(regularization * jnp.where(improved, 0.5, 10.0), 1e-6, 1e6)
        return Solution(*accepted, regularization), {"cost": accepted[2], "expected": expected, "best": best}

    def solve(self, initial_state, controls):
        states = self.rollout(initial_state, controls)
        start = Solution(states, controls, self.total_cost(states, controls), jnp.float32(1e-2))
        return jax.lax.scan(self.iterate, start, None, length=self.num_iterations)


def build():
    params = QuadrotorParams()
    hover = jnp.full(CONTROL_DIM, 0.5 * params.mass * params.gravity)
    dynamics = rk4(lambda state, control: quadrotor_ode(state, control, params), dt=0.05)

    def plan(initial_state, goal, obstacle, weights: CostWeights, controls):
        def stage_cost(state, control):
            error, effort = state - goal, control - hover
            penalty = weights.obstacle * jnp.exp(-jnp.sum((state[:2] - obstacle) ** 2) / 0.1)
            return 0.5 * (error @ (weights.state * error) + effort @ (weights.control * effort)) + penalty

        def terminal_cost(state):
            return 0.5 * (state - goal) @ (weights.terminal * (state - goal))

        return ILQR(dynamics, stage_cost, terminal_cost).solve(initial_state, controls)

    terminal = jnp.array([50.0, 50.0, 10.0, 5.0, 5.0, 1.0])
    weights = CostWeights(jnp.repeat(jnp.array([0.1, 0.01]), 3), jnp.full(CONTROL_DIM, 0.1), terminal)
    goal = jnp.zeros(STATE_DIM).at[:2].set(1.0)
    return plan, (jnp.zeros(STATE_DIM), goal, jnp.array([0.5, 0.4]), weights, jnp.tile(hover, (20, 1)))
