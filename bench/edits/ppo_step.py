"""One PPO update of an actor-critic: clipped surrogate, value loss and entropy bonus, under Adam."""

import jax
import jax.numpy as jnp
import optax

LIBRARY = "optax"
KIND = "train_step"
SOURCE = "self"
N_ACTIONS, WIDTH = 4, 16

optimizer = optax.adam(3e-3)


def actor_critic(params, observations):
    hidden = jnp.tanh(observations @ params["embed"])
    hidden = jnp.tanh(hidden @ params["torso"] + params["torso_bias"])
    return hidden @ params["policy"], hidden @ params["value"]


def ppo_loss(params, batch):
    logits, values = actor_critic(params, batch["observations"])
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, batch["actions"][:, None], axis=1)[:, 0]
    ratios = jnp.exp(chosen - batch["old_log_probs"])
    clipped = jnp.clip(ratios, 0.8, 1.2)
    surrogate = jnp.minimum(ratios * batch["advantages"], clipped * batch["advantages"])
    value_loss = 0.5 * jnp.mean((values - batch["returns"]) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return value_loss - jnp.mean(surrogate) - 0.01 * entropy


def update(params, opt_state, batch):
    loss, grads = jax.value_and_grad(ppo_loss)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def build():
    keys = jax.random.split(jax.random.key(13), 9)
    params = {
        "embed": 0.4 * jax.random.normal(keys[0], (5, WIDTH)),
        "torso": 0.4 * jax.random.normal(keys[1], (WIDTH, WIDTH)),
        "torso_bias": jnp.zeros(WIDTH),
        "policy": 0.4 * jax.random.normal(keys[2], (WIDTH, N_ACTIONS)),
        "value": 0.4 * jax.random.normal(keys[3], (WIDTH,)),
    }
    batch = {
        "observations": jax.random.normal(keys[4], (20, 5)),
        "actions": jax.random.randint(keys[5], (20,), 0, N_ACTIONS),
        "old_log_probs": -1.4 + 0.3 * jax.random.normal(keys[6], (20,)),
        "advantages": jax.random.normal(keys[7], (20,)),
        "returns": jax.random.normal(keys[8], (20,)),
    }
    return update, (params, optimizer.init(params), batch)
