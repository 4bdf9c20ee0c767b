"""One iteration of iLQR on a torque-limited pendulum: expand, backward pass, rollouts of several step sizes.

Dynamics and costs are expanded along the trajectory under `vmap`: Jacobians by jacfwd, gradients and Hessians of the
stage cost in state and control, and of the terminal cost in the state.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "solver"
SOURCE = "self"
DERIVATIVES = (
    "jacfwd dynamics",
    "grad stage_cost",
    "hessian stage_cost",
    "grad terminal_cost",
    "hessian terminal_cost",
)
HORIZON, TIME_STEP, REGULARIZATION = 15, 0.05, 1e-3


class Trajectory(NamedTuple):
    states: jax.Array
    controls: jax.Array


class Expansion(NamedTuple):
    f_x: jax.Array
    f_u: jax.Array
    l_x: jax.Array
    l_u: jax.Array
    l_xx: jax.Array
    l_ux: jax.Array
    l_uu: jax.Array


def dynamics(state, control):
    angle, velocity = state
    torque = 2.0 * jnp.tanh(control[0])
    acceleration = 9.81 * jnp.sin(angle) - 0.1 * velocity + torque
    velocity = velocity + TIME_STEP * acceleration
    return jnp.array([angle + TIME_STEP * velocity, velocity])


def stage_cost(state, control, weights):
    angle, velocity = state
    deviation = weights["angle"] * (1.0 - jnp.cos(angle)) + weights["velocity"] * velocity**2
    return deviation + weights["control"] * jnp.sum(control**2) + 0.01 * velocity * control[0]


def terminal_cost(state, weights):
    angle, velocity = state
    return 20.0 * weights["angle"] * (1.0 - jnp.cos(angle)) + weights["velocity"] * velocity**2


def expand(state, control, weights):
    f_x, f_u = jax.jacfwd(dynamics, argnums=(0, 1))(state, control)
    l_x, l_u = jax.grad(stage_cost, argnums=(0, 1))(state, control, weights)
    (l_xx, _), (l_ux, l_uu) = jax.hessian(stage_cost, argnums=(0, 1))(state, control, weights)
    return Expansion(f_x, f_u, l_x, l_u, l_xx, l_ux, l_uu)


def backward_pass(expansions, v_x, v_xx):
    def riccati(carry, e):
        v_x, v_xx = carry
        q_x = e.l_x + e.f_x.T @ v_x
        q_u = e.l_u + e.f_u.T @ v_x
        q_xx = e.l_xx + e.f_x.T @ v_xx @ e.f_x
        q_ux = e.l_ux + e.f_u.T @ v_xx @ e.f_x
        q_uu = e.l_uu + e.f_u.T @ v_xx @ e.f_u + REGULARIZATION * jnp.eye(q_u.shape[0])
        feedforward = -jnp.linalg.solve(q_uu, q_u)
        feedback = -jnp.linalg.solve(q_uu, q_ux)
        v_x = q_x + feedback.T @ q_uu @ feedforward + feedback.T @ q_u + q_ux.T @ feedforward
        v_xx = q_xx + feedback.T @ q_uu @ feedback + feedback.T @ q_ux + q_ux.T @ feedback
        return (v_x, 0.5 * (v_xx + v_xx.T)), (feedforward, feedback)

    _, gains = jax.lax.scan(riccati, (v_x, v_xx), expansions, reverse=True)
    return gains


def rollout(nominal, gains, step_size, weights):
    def advance(state, inputs):
        nominal_state, nominal_control, (feedforward, feedback) = inputs
        control = nominal_control + step_size * feedforward + feedback @ (state - nominal_state)
        return dynamics(state, control), (state, control, stage_cost(state, control, weights))

    inputs = (nominal.states[:-1], nominal.controls, gains)
    final, (states, controls, costs) = jax.lax.scan(advance, nominal.states[0], inputs)
    trajectory = Trajectory(jnp.concatenate([states, final[None]]), controls)
    return trajectory, jnp.sum(costs) + terminal_cost(final, weights)


def ilqr_step(trajectory, weights):
    expansions = jax.vmap(expand, in_axes=(0, 0, None))(trajectory.states[:-1], trajectory.controls, weights)
    final_state = trajectory.states[-1]
    v_x = jax.grad(terminal_cost)(final_state, weights)
    v_xx = jax.hessian(terminal_cost)(final_state, weights)
    gains = backward_pass(expansions, v_x, v_xx)
    step_sizes = 0.5 ** jnp.arange(5)
    candidates, costs = jax.vmap(rollout, in_axes=(None, None, 0, None))(trajectory, gains, step_sizes, weights)
    best = jnp.argmin(costs)
    return jax.tree.map(lambda leaf: leaf[best], candidates), costs[best]


def build():
    controls = 0.1 * jax.random.normal(jax.random.key(0), (HORIZON, 1))
    start = jnp.array([2.5, 0.0])
    _, states = jax.lax.scan(lambda x, u: (dynamics(x, u),) * 2, start, controls)
    weights = {"angle": 1.0, "velocity": 0.1, "control": 0.05}
    return ilqr_step, (Trajectory(jnp.concatenate([start[None], states]), controls), weights)
