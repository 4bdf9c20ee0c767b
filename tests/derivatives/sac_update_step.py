"""Soft actor-critic: twin critics with target networks, a squashed Gaussian policy and a learned temperature.

Two derivatives, each in two arguments at once: the critic loss in both critics, the policy loss in the policy and the
temperature. `stop_gradient` keeps the two terms of the policy loss apart.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad critic_loss", "value_and_grad policy_loss")
OBSERVATION, ACTION, HIDDEN = 5, 2, 16
DISCOUNT, POLYAK, RATE, TARGET_ENTROPY = 0.99, 0.005, 3e-3, -float(ACTION)


class Batch(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    done: jax.Array


class Critics(NamedTuple):
    first: dict
    second: dict


class Agent(NamedTuple):
    policy: dict
    critics: Critics
    target_critics: Critics
    log_alpha: jax.Array


def mlp(params, x):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    hidden = jax.nn.relu(hidden @ params["w2"] + params["b2"])
    return hidden @ params["w3"] + params["b3"]


def q_value(critic, obs, action):
    return mlp(critic, jnp.concatenate([obs, action], axis=-1))[..., 0]


def min_q_value(critics, obs, action):
    return jnp.minimum(q_value(critics.first, obs, action), q_value(critics.second, obs, action))


def sample_action(policy, obs, key):
    mean, log_std = jnp.split(mlp(policy, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    log_prob -= 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(log_prob, axis=-1)


def critic_loss(first, second, agent, batch, key):
    next_action, next_log_prob = sample_action(agent.policy, batch.next_obs, key)
    next_value = min_q_value(agent.target_critics, batch.next_obs, next_action)
    next_value = next_value - jnp.exp(agent.log_alpha) * next_log_prob
    target = jax.lax.stop_gradient(batch.reward + DISCOUNT * (1.0 - batch.done) * next_value)
    errors = [q_value(critic, batch.obs, batch.action) - target for critic in (first, second)]
    return sum(jnp.mean(error**2) for error in errors)


def policy_loss(policy, log_alpha, critics, obs, key):
    action, log_prob = sample_action(policy, obs, key)
    alpha = jax.lax.stop_gradient(jnp.exp(log_alpha))
    policy_term = jnp.mean(alpha * log_prob - min_q_value(critics, obs, action))
    entropy_gap = jax.lax.stop_gradient(-jnp.mean(log_prob) - TARGET_ENTROPY)
    return policy_term + jnp.exp(log_alpha) * entropy_gap, {"entropy": -jnp.mean(log_prob), "alpha": alpha}


def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads)


def update(agent, batch, key):
    critic_key, policy_key = jax.random.split(key)
    critic_value_and_grad = jax.value_and_grad(critic_loss, argnums=(0, 1))
    critic_value, critic_grads = critic_value_and_grad(*agent.critics, agent, batch, critic_key)
    critics = sgd(agent.critics, Critics(*critic_grads))

    policy_value_and_grad = jax.value_and_grad(policy_loss, argnums=(0, 1), has_aux=True)
    (policy_value, info), (policy_grads, alpha_grad) = policy_value_and_grad(
        agent.policy, agent.log_alpha, critics, batch.obs, policy_key
    )
    target_critics = jax.tree.map(lambda t, c: (1.0 - POLYAK) * t + POLYAK * c, agent.target_critics, critics)
    agent = Agent(sgd(agent.policy, policy_grads), critics, target_critics, sgd(agent.log_alpha, alpha_grad))
    return agent, {"critic_loss": critic_value, "policy_loss": policy_value, **info}


def init_mlp(key, inputs, outputs):
    sizes = (inputs, HIDDEN, HIDDEN, outputs)
    params = {}
    for index, layer_key in enumerate(jax.random.split(key, 3)):
        params[f"w{index + 1}"] = jax.random.normal(layer_key, sizes[index : index + 2]) / jnp.sqrt(sizes[index])
        params[f"b{index + 1}"] = jnp.zeros(sizes[index + 1])
    return params


def build():
    keys = jax.random.split(jax.random.key(0), 9)
    critics = Critics(init_mlp(keys[0], OBSERVATION + ACTION, 1), init_mlp(keys[1], OBSERVATION + ACTION, 1))
    agent = Agent(init_mlp(keys[2], OBSERVATION, 2 * ACTION), critics, critics, jnp.array(-1.0))
    batch = Batch(
        jax.random.normal(keys[3], (6, OBSERVATION)),
        jax.random.uniform(keys[4], (6, ACTION), minval=-1.0),
        jax.random.normal(keys[5], (6,)),
        jax.random.normal(keys[6], (6, OBSERVATION)),
        jax.random.bernoulli(keys[7], 0.2, (6,)).astype(jnp.float32),
    )
    return update, (agent, batch, keys[8])
