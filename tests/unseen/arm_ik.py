"""Inverse kinematics of a serial arm: damped least squares on a Jacobian from forward-mode AD.

Joints are revolute with arbitrary axes; the end effector pose error is position plus orientation as
a rotation vector. A nullspace term pulls the redundant joints towards their rest posture.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

EPS = 1e-8


class Pose(NamedTuple):
    rotation: jax.Array  # [3, 3]
    position: jax.Array  # [3]


class Arm(NamedTuple):
    axes: jax.Array  # [links, 3] unit joint axes in the parent frame
    offsets: jax.Array  # [links, 3] link vectors in the rotated frame
    lower: jax.Array
    upper: jax.Array

    @property
    def rest(self) -> jax.Array:
        return 0.5 * (self.lower + self.upper)


@dataclasses.dataclass(frozen=True)
class IKConfig:
    num_iterations: int = 20
    damping: float = 0.05
    max_joint_step: float = 0.3
    orientation_weight: float = 0.3
    nullspace_gain: float = 0.05
    tolerance: float = 1e-3


class IKSolution(NamedTuple):
    joints: jax.Array
    position_error: jax.Array
    orientation_error: jax.Array
    manipulability: jax.Array
    history: jax.Array
    converged: jax.Array


def skew(v: jax.Array) -> jax.Array:
    zero = jnp.zeros_like(v[0])
    return jnp.array([[zero, -v[2], v[1]], [v[2], zero, -v[0]], [-v[1], v[0], zero]])


def axis_angle_to_matrix(axis: jax.Array, angle: jax.Array) -> jax.Array:
    """Rodrigues' formula for a unit axis."""
    k = skew(axis)
    return jnp.eye(3) + jnp.sin(angle) * k + (1.0 - jnp.cos(angle)) * (k @ k)


def rotation_log(rotation: jax.Array) -> jax.Array:
    """Rotation vector of a rotation matrix, valid for angles below pi."""
    vee = 0.5 * jnp.array(
        [
            rotation[2, 1] - rotation[1, 2],
            rotation[0, 2] - rotation[2, 0],
            rotation[1, 0] - rotation[0, 1],
        ]
    )
    sin_angle = jnp.sqrt(jnp.sum(vee**2) + EPS)
    angle = jnp.arctan2(sin_angle, 0.5 * (jnp.trace(rotation) - 1.0))
    return vee * (angle / sin_angle)


def forward_kinematics(arm: Arm, joints: jax.Array) -> tuple[Pose, jax.Array]:
    """End effector pose and the positions of every link tip, [links, 3]."""

    def chain(pose: Pose, link):
        axis, offset, angle = link
        rotation = pose.rotation @ axis_angle_to_matrix(axis, angle)
        position = pose.position + rotation @ offset
        return Pose(rotation, position), position

    base = Pose(jnp.eye(3), jnp.zeros(3))
    return jax.lax.scan(chain, base, (arm.axes, arm.offsets, joints))


def pose_error(arm: Arm, joints: jax.Array, target: Pose) -> jax.Array:
    pose, _ = forward_kinematics(arm, joints)
    return jnp.concatenate([target.position - pose.position, rotation_log(target.rotation @ pose.rotation.T)])


def solve_ik(arm: Arm, target: Pose, initial: jax.Array, config: IKConfig = IKConfig()) -> IKSolution:
    weights = jnp.array([1.0] * 3 + [config.orientation_weight] * 3)

    def residual(joints):
        return weights * pose_error(arm, joints, target)

    jacobian = jax.jacfwd(residual)

    def iterate(joints, _):
        error, jac = residual(joints), -jacobian(joints)
        gram = jac @ jac.T + config.damping**2 * jnp.eye(error.shape[0])
        pinv = jnp.linalg.solve(gram, jac).T
        nullspace = jnp.eye(joints.shape[0]) - pinv @ jac
        delta = pinv @ error + nullspace @ (config.nullspace_gain * (arm.rest - joints))
        scale = jnp.minimum(1.0, config.max_joint_step / (jnp.max(jnp.abs(delta)) + EPS))
        joints = jnp.clip(joints + scale * delta, arm.lower, arm.upper)
        return joints, jnp.linalg.norm(error)

    joints, history = jax.lax.scan(iterate, initial, None, length=config.num_iterations)
    final = pose_error(arm, joints, target)
    jac = jacobian(joints)
    position_error = jnp.linalg.norm(final[:3])
    return IKSolution(
        joints=joints,
        position_error=position_error,
        orientation_error=jnp.linalg.norm(final[3:]),
        manipulability=jnp.sqrt(jnp.maximum(jnp.linalg.det(jac @ jac.T), 0.0)),
        history=history,
        converged=position_error < config.tolerance,
    )


def make_arm(num_links: int = 7, reach: float = 1.4, limit: float = 2.6) -> Arm:
    """Alternating yaw/pitch joints, as in common 7-dof manipulators."""
    axes = jnp.array([[0.0, 0.0, 1.0] if i % 2 == 0 else [0.0, 1.0, 0.0] for i in range(num_links)])
    offsets = jnp.tile(jnp.array([0.0, 0.0, reach / num_links]), (num_links, 1))
    return Arm(axes, offsets, jnp.full(num_links, -limit), jnp.full(num_links, limit))


def build():
    arm = make_arm()
    k_goal, k_start = jax.random.split(jax.random.key(17))
    goals = jax.random.uniform(k_goal, (6, 7), minval=-1.2, maxval=1.2)
    targets, _ = jax.vmap(forward_kinematics, in_axes=(None, 0))(arm, goals)
    initial = 0.3 * jax.random.normal(k_start, (7,))
    return jax.vmap(solve_ik, in_axes=(None, 0, None)), (arm, targets, initial)
