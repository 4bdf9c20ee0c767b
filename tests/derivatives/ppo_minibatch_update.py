"""PPO: advantages by a reversed scan, then epochs of shuffled minibatches of the clipped loss, each one Adam step.

The derivative is taken in the body of the inner of two scans, and its auxiliary output is a dict of metrics.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

LIBRARY = "optax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad ppo_loss",)
STEPS, ENVS, OBSERVATION, ACTIONS, HIDDEN = 8, 4, 5, 3, 16
EPOCHS, MINIBATCHES = 2, 4
GAMMA, LAMBDA, CLIP, VALUE_COEF, ENTROPY_COEF = 0.99, 0.95, 0.2, 0.5, 0.01

optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class TrainState(NamedTuple):
    params: dict
    opt_state: optax.OptState
    key: jax.Array


def actor_critic(params, obs):
    hidden = jnp.tanh(obs @ params["torso"]["w"] + params["torso"]["b"])
    logits = hidden @ params["policy"]["w"] + params["policy"]["b"]
    value = hidden @ params["value"]["w"] + params["value"]["b"]
    return jax.nn.log_softmax(logits), value[..., 0]


def generalized_advantages(rollout, last_value):
    def backward(carry, transition):
        advantage, next_value = carry
        alive = 1.0 - transition.done
        delta = transition.reward + GAMMA * next_value * alive - transition.value
        advantage = delta + GAMMA * LAMBDA * alive * advantage
        return (advantage, transition.value), advantage

    _, advantages = jax.lax.scan(backward, (jnp.zeros_like(last_value), last_value), rollout, reverse=True)
    return advantages, advantages + rollout.value


def ppo_loss(params, batch, advantages, returns):
    log_probs, value = actor_critic(params, batch.obs)
    log_prob = jnp.take_along_axis(log_probs, batch.action[:, None], axis=1)[:, 0]
    ratio = jnp.exp(log_prob - batch.log_prob)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP)
    policy_loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    value_clipped = batch.value + jnp.clip(value - batch.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.mean(jnp.maximum((value - returns) ** 2, (value_clipped - returns) ** 2))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": jnp.mean(batch.log_prob - log_prob),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > CLIP),
    }
    return policy_loss + VALUE_COEF * value_loss - ENTROPY_COEF * entropy, metrics


def update_minibatch(carry, minibatch):
    params, opt_state = carry
    (loss, metrics), grads = jax.value_and_grad(ppo_loss, has_aux=True)(params, *minibatch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {"loss": loss, **metrics}


def ppo_update(state, rollout, last_obs):
    _, last_value = actor_critic(state.params, last_obs)
    data = (rollout, *generalized_advantages(rollout, last_value))
    flat = jax.tree.map(lambda x: x.reshape(STEPS * ENVS, *x.shape[2:]), data)

    def update_epoch(state, _):
        key, shuffle_key = jax.random.split(state.key)
        order = jax.random.permutation(shuffle_key, STEPS * ENVS)
        minibatches = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), flat)
        (params, opt_state), metrics = jax.lax.scan(update_minibatch, (state.params, state.opt_state), minibatches)
        return TrainState(params, opt_state, key), metrics

    state, metrics = jax.lax.scan(update_epoch, state, length=EPOCHS)
    return state, jax.tree.map(jnp.mean, metrics)


def init_params(key):
    sizes = {"torso": (OBSERVATION, HIDDEN), "policy": (HIDDEN, ACTIONS), "value": (HIDDEN, 1)}
    keys = jax.random.split(key, len(sizes))
    return {
        name: {"w": jax.nn.initializers.orthogonal()(k, size), "b": jnp.zeros(size[1])}
        for k, (name, size) in zip(keys, sizes.items(), strict=True)
    }


def build():
    keys = jax.random.split(jax.random.key(0), 7)
    params = init_params(keys[0])
    obs = jax.random.normal(keys[1], (STEPS, ENVS, OBSERVATION))
    action = jax.random.randint(keys[2], (STEPS, ENVS), 0, ACTIONS)
    log_probs, value = actor_critic(params, obs)
    log_prob = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    reward = jax.random.normal(keys[3], (STEPS, ENVS))
    done = jax.random.bernoulli(keys[4], 0.1, (STEPS, ENVS)).astype(jnp.float32)
    rollout = Transition(obs, action, log_prob, value, reward, done)
    state = TrainState(params, optimizer.init(params), keys[5])
    return ppo_update, (state, rollout, jax.random.normal(keys[6], (ENVS, OBSERVATION)))
