"""Entropic optimal transport: log-domain Sinkhorn, implicitly differentiated dual potentials."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

RIDGE = 1e-6


class SinkhornConfig(NamedTuple):
    epsilon: float = 0.1
    tolerance: float = 1e-5
    max_iterations: int = 500


class SinkhornState(NamedTuple):
    f: jax.Array
    g: jax.Array
    error: jax.Array
    iteration: jax.Array


class PointCloud(NamedTuple):
    points: jax.Array
    log_weights: jax.Array


def squared_euclidean(x, y):
    return jnp.sum(x**2, axis=-1)[:, None] + jnp.sum(y**2, axis=-1)[None, :] - 2.0 * x @ y.T


def softmin(matrix, epsilon, axis):
    return -epsilon * logsumexp(-matrix / epsilon, axis=axis)


def log_plan(f, g, cost, epsilon):
    return (f[:, None] + g[None, :] - cost) / epsilon


def run_sinkhorn(cost, log_a, log_b, config: SinkhornConfig) -> SinkhornState:
    """Alternates the exact block updates of the dual until the row marginal is matched."""
    epsilon = config.epsilon
    a = jnp.exp(log_a)

    def keep_going(state):
        return (state.error > config.tolerance) & (state.iteration < config.max_iterations)

    def update(state):
        f = epsilon * log_a + softmin(cost - state.g[None, :], epsilon, axis=1)
        g = epsilon * log_b + softmin(cost - f[:, None], epsilon, axis=0)
        row_marginal = jnp.exp(logsumexp(log_plan(f, g, cost, epsilon), axis=1))
        error = jnp.sum(jnp.abs(row_marginal - a))
        return SinkhornState(f, g, error, state.iteration + 1)

    n, m = cost.shape
    initial = SinkhornState(
        f=jnp.zeros(n), g=jnp.zeros(m), error=jnp.asarray(jnp.inf, cost.dtype), iteration=jnp.int32(0)
    )
    return jax.lax.while_loop(keep_going, update, initial)


def marginal_residual(potentials, cost, log_a, log_b, epsilon):
    """Optimality conditions F(f, g; cost, a, b) = 0 of the dual problem."""
    f, g = potentials
    plan = jnp.exp(log_plan(f, g, cost, epsilon))
    return plan.sum(axis=1) - jnp.exp(log_a), plan.sum(axis=0) - jnp.exp(log_b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dual_potentials(cost, log_a, log_b, config: SinkhornConfig):
    state = run_sinkhorn(cost, log_a, log_b, config)
    return state.f, state.g


def dual_potentials_fwd(cost, log_a, log_b, config):
    potentials = dual_potentials(cost, log_a, log_b, config)
    return potentials, (potentials, cost, log_a, log_b)


def dual_potentials_bwd(config, residuals, cotangents):
    potentials, cost, log_a, log_b = residuals
    f_bar, g_bar = cotangents
    epsilon = config.epsilon
    n = f_bar.shape[0]

    # Jacobian of the residual in (f, g); symmetric, singular along (1, -1), hence the ridge.
    plan = jnp.exp(log_plan(*potentials, cost, epsilon))
    hessian = jnp.block([[jnp.diag(plan.sum(1)), plan], [plan.T, jnp.diag(plan.sum(0))]]) / epsilon
    hessian = hessian + RIDGE * jnp.eye(hessian.shape[0])
    adjoint = jnp.linalg.solve(hessian, -jnp.concatenate([f_bar, g_bar]))

    _, residual_vjp = jax.vjp(lambda c, la, lb: marginal_residual(potentials, c, la, lb, epsilon), cost, log_a, log_b)
    return residual_vjp((adjoint[:n], adjoint[n:]))


dual_potentials.defvjp(dual_potentials_fwd, dual_potentials_bwd)


def transport_cost(source: PointCloud, target: PointCloud, config: SinkhornConfig = SinkhornConfig()):
    """Primal transport cost <P, C>, differentiable through the plan via the implicit function theorem."""
    cost = squared_euclidean(source.points, target.points)
    f, g = dual_potentials(cost, source.log_weights, target.log_weights, config)
    plan = jnp.exp(log_plan(f, g, cost, config.epsilon))
    return jnp.sum(plan * cost), plan


def flow_points(source: PointCloud, target: PointCloud, config: SinkhornConfig, step_size=0.2, num_steps=3):
    """Gradient flow of the source points towards the target under the transport cost."""
    n = source.points.shape[0]

    def objective(points):
        return transport_cost(source._replace(points=points), target, config)

    def step(points, _):
        (value, plan), gradient = jax.value_and_grad(objective, has_aux=True)(points)
        entropy = -jnp.sum(plan * jnp.log(plan + 1e-30))
        return points - step_size * n * gradient, (value, entropy)

    points, (costs, entropies) = jax.lax.scan(step, source.points, None, length=num_steps)
    return source._replace(points=points), {"cost": costs, "entropy": entropies}


def build():
    source_key, target_key, weight_key = jax.random.split(jax.random.key(12), 3)
    n, m, dim = 12, 9, 2
    source = PointCloud(jax.random.normal(source_key, (n, dim)), jnp.full((n,), -jnp.log(n)))
    target = PointCloud(
        0.5 * jax.random.normal(target_key, (m, dim)) + jnp.array([1.0, 0.0]),
        jax.nn.log_softmax(0.3 * jax.random.normal(weight_key, (m,))),
    )
    config = SinkhornConfig(epsilon=0.25, max_iterations=200)
    return lambda source, target: flow_points(source, target, config), (source, target)
