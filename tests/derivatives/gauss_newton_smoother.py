"""Range-bearing tracking: an extended Kalman filter, then a Gauss-Newton smoother on the whole trajectory.

The filter takes Jacobians by jacrev in its scan. The smoother linearises the stacked residuals once and transposes
them once; the pullback is called for the gradient, and again in each product of the normal equations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

LIBRARY = "jax"
KIND = "solver"
SOURCE = "self"
DERIVATIVES = ("jacrev motion", "jacrev measure", "linearize residuals_of", "vjp residuals_of")
STEPS, TIME_STEP = 8, 0.2


class Belief(NamedTuple):
    mean: jax.Array
    covariance: jax.Array


class Noise(NamedTuple):
    process: jax.Array
    sensor: jax.Array


class Residuals(NamedTuple):
    prior: jax.Array
    motion: jax.Array
    measurement: jax.Array


def motion(state, control):
    """A unicycle: position and heading, driven by a speed and a turn rate."""
    x, y, heading = state
    speed, turn_rate = control
    middle = heading + 0.5 * TIME_STEP * turn_rate
    x = x + TIME_STEP * speed * jnp.cos(middle)
    y = y + TIME_STEP * speed * jnp.sin(middle)
    return jnp.array([x, y, heading + TIME_STEP * turn_rate])


def measure(state, landmark):
    offset = landmark - state[:2]
    return jnp.array([jnp.sqrt(jnp.sum(offset**2)), jnp.arctan2(offset[1], offset[0]) - state[2]])


def predict(belief, control, noise):
    jacobian = jax.jacrev(motion)(belief.mean, control)
    covariance = jacobian @ belief.covariance @ jacobian.T + jnp.diag(noise.process**2)
    return Belief(motion(belief.mean, control), covariance)


def correct(belief, observation, landmark, noise):
    jacobian = jax.jacrev(measure)(belief.mean, landmark)
    innovation_covariance = jacobian @ belief.covariance @ jacobian.T + jnp.diag(noise.sensor**2)
    gain = jnp.linalg.solve(innovation_covariance, jacobian @ belief.covariance).T
    mean = belief.mean + gain @ (observation - measure(belief.mean, landmark))
    return Belief(mean, belief.covariance - gain @ jacobian @ belief.covariance)


def extended_kalman_filter(belief, controls, observations, landmark, noise):
    def step(belief, inputs):
        control, observation = inputs
        belief = correct(predict(belief, control, noise), observation, landmark, noise)
        return belief, belief.mean

    _, means = jax.lax.scan(step, belief, (controls, observations))
    return means


def residuals(states, prior, controls, observations, landmark, noise):
    previous = jnp.concatenate([prior[None], states[:-1]])
    predicted = jax.vmap(motion)(previous, controls)
    measured = jax.vmap(measure, in_axes=(0, None))(states, landmark)
    return Residuals(
        0.1 * (states[0] - prior),
        (states - predicted) / noise.process,
        (measured - observations) / noise.sensor,
    )


def gauss_newton_step(states, *problem):
    def residuals_of(states):
        return residuals(states, *problem)

    values, pushforward = jax.linearize(residuals_of, states)
    _, pullback = jax.vjp(residuals_of, states)
    (gradient,) = pullback(values)

    def normal_product(direction):
        (product,) = pullback(pushforward(direction))
        return product + 1e-3 * direction

    step, _ = cg(normal_product, -gradient, maxiter=10)
    cost = 0.5 * sum(jnp.sum(value**2) for value in values)
    return states + step, cost


def smooth(belief, controls, observations, landmark, noise):
    filtered = extended_kalman_filter(belief, controls, observations, landmark, noise)
    smoothed, cost = gauss_newton_step(filtered, belief.mean, controls, observations, landmark, noise)
    return {"filtered": filtered, "smoothed": smoothed, "cost": cost}


def build():
    keys = jax.random.split(jax.random.key(31), 2)
    controls = jnp.array([1.0, 0.4]) + 0.1 * jax.random.normal(keys[0], (STEPS, 2))
    start = jnp.array([0.0, 0.0, 0.1])
    landmark = jnp.array([3.0, 2.0])
    _, states = jax.lax.scan(lambda s, u: (motion(s, u),) * 2, start, controls)
    observations = jax.vmap(measure, in_axes=(0, None))(states, landmark)
    observations = observations + 0.05 * jax.random.normal(keys[1], observations.shape)
    noise = Noise(jnp.array([0.05, 0.05, 0.02]), jnp.array([0.1, 0.05]))
    return smooth, (Belief(start, 0.1 * jnp.eye(3)), controls, observations, landmark, noise)
