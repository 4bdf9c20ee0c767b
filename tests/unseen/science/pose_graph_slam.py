"""2D pose-graph SLAM: robust Levenberg-Marquardt over SE(2) with sparse-scatter normal equations."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

LIBRARY = "jax"
KIND = "solver"
SOURCE = "self"

MAX_ITERS, STEP_TOL = 15, 1e-4
HUBER_DELTA = 1.0
PRIOR_WEIGHT = 1e3  # anchors pose 0


@jax.tree_util.register_dataclass
@dataclass
class Edges:
    i: Array
    j: Array
    measurement: Array
    sqrt_info: Array


class LMState(NamedTuple):
    poses: Array
    cost: Array
    damping: Array
    step_norm: Array
    iteration: Array


def wrap_angle(a: Array) -> Array:
    return jnp.arctan2(jnp.sin(a), jnp.cos(a))


def rot(theta: Array) -> Array:
    return jnp.array([[jnp.cos(theta), -jnp.sin(theta)], [jnp.sin(theta), jnp.cos(theta)]])


def se2_compose(a: Array, b: Array) -> Array:
    return jnp.concatenate([a[:2] + rot(a[2]) @ b[:2], wrap_angle(a[2:] + b[2:])])


def se2_between(a: Array, b: Array) -> Array:
    return jnp.concatenate([rot(a[2]).T @ (b[:2] - a[:2]), wrap_angle(b[2:] - a[2:])])


def se2_exp(xi: Array) -> Array:
    w = xi[2]
    a, b = jnp.sinc(w / jnp.pi), 0.5 * w * jnp.sinc(0.5 * w / jnp.pi) ** 2
    return jnp.concatenate([jnp.array([[a, -b], [b, a]]) @ xi[:2], xi[2:]])


def edge_residual(delta_i, delta_j, pose_i, pose_j, z, sqrt_info):
    a = se2_compose(pose_i, se2_exp(delta_i))
    b = se2_compose(pose_j, se2_exp(delta_j))
    return sqrt_info @ se2_between(z, se2_between(a, b))


def linearize(poses: Array, edges: Edges):
    def one(pi, pj, z, info):
        zero = jnp.zeros(3)
        r = edge_residual(zero, zero, pi, pj, z, info)
        ji, jj = jax.jacfwd(edge_residual, argnums=(0, 1))(zero, zero, pi, pj, z, info)
        return r, ji, jj

    return jax.vmap(one)(poses[edges.i], poses[edges.j], edges.measurement, edges.sqrt_info)


def robust_cost(poses: Array, edges: Edges) -> Array:
    zeros = jnp.zeros((edges.i.shape[0], 3))
    r = jax.vmap(edge_residual)(zeros, zeros, poses[edges.i], poses[edges.j], edges.measurement, edges.sqrt_info)
    n = jnp.sqrt(jnp.sum(r**2, axis=-1) + 1e-12)
    return jnp.sum(jnp.where(n < HUBER_DELTA, 0.5 * n**2, HUBER_DELTA * (n - 0.5 * HUBER_DELTA)))


def normal_equations(poses: Array, edges: Edges):
    r, ji, jj = linearize(poses, edges)
    w = HUBER_DELTA / jnp.maximum(jnp.linalg.norm(r, axis=-1), HUBER_DELTA)
    n = poses.shape[0]
    block = lambda a, b: jnp.einsum("e,eka,ekb->eab", w, a, b)  # noqa: E731
    h = jnp.zeros((n, n, 3, 3))
    h = h.at[edges.i, edges.i].add(block(ji, ji)).at[edges.j, edges.j].add(block(jj, jj))
    cross = block(ji, jj)
    h = h.at[edges.i, edges.j].add(cross).at[edges.j, edges.i].add(cross.mT)
    h = h.at[0, 0].add(PRIOR_WEIGHT * jnp.eye(3))
    g = jax.ops.segment_sum(jnp.einsum("e,eka,ek->ea", w, ji, r), edges.i, num_segments=n)
    g += jax.ops.segment_sum(jnp.einsum("e,eka,ek->ea", w, jj, r), edges.j, num_segments=n)
    return h.transpose(0, 2, 1, 3).reshape(3 * n, 3 * n), g.ravel()


def lm_step(state: LMState, edges: Edges) -> LMState:
    h, g = normal_equations(state.poses, edges)
    damped = h + state.damping * jnp.diag(jnp.diag(h))
    delta = jax.scipy.linalg.solve(damped, -g, assume_a="pos").reshape(-1, 3)
    candidate = jax.vmap(lambda p, d: se2_compose(p, se2_exp(d)))(state.poses, delta)
    cost = robust_cost(candidate, edges)

    moved = LMState(candidate, cost, 0.3 * state.damping, jnp.linalg.norm(delta), state.iteration + 1)
    stayed = state._replace(damping=4.0 * state.damping, iteration=state.iteration + 1)
    return jax.lax.cond(cost < state.cost, lambda: moved, lambda: stayed)


def optimize(poses: Array, edges: Edges):
    init = LMState(poses, robust_cost(poses, edges), jnp.float32(1e-3), jnp.float32(jnp.inf), jnp.int32(0))

    def running(s):
        return (s.iteration < MAX_ITERS) & (s.step_norm > STEP_TOL)

    final = jax.lax.while_loop(running, lambda s: lm_step(s, edges), init)
    covariance = jnp.linalg.inv(normal_equations(final.poses, edges)[0])
    return final, jnp.sqrt(jnp.diagonal(covariance)).reshape(-1, 3)


def build():
    n = 10
    t = jnp.linspace(0, 2 * jnp.pi, n, endpoint=False)
    truth = jnp.stack([3 * jnp.cos(t), 3 * jnp.sin(t), wrap_angle(t + jnp.pi / 2)], axis=1)
    i = jnp.concatenate([jnp.arange(n - 1), jnp.array([n - 1, 0, 2])])
    j = jnp.concatenate([jnp.arange(1, n), jnp.array([0, 5, 7])])
    k1, k2 = jax.random.split(jax.random.key(4))
    z = jax.vmap(se2_between)(truth[i], truth[j]) + 0.02 * jax.random.normal(k1, (i.shape[0], 3))
    info = jnp.tile(jnp.diag(jnp.array([10.0, 10.0, 20.0])), (i.shape[0], 1, 1))
    return optimize, (truth + 0.2 * jax.random.normal(k2, truth.shape), Edges(i, j, z, info))
