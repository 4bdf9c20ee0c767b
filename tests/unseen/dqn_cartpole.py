"""Double DQN on a hand-written CartPole: circular replay buffer, epsilon-greedy actor, Polyak target network."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

CART_MASS, POLE_MASS, POLE_HALF_LENGTH = 1.0, 0.1, 0.5
GRAVITY, FORCE_MAGNITUDE, TIMESTEP = 9.8, 10.0, 0.02
X_LIMIT, THETA_LIMIT = 2.4, 12.0 * jnp.pi / 180.0
OBS_DIM, NUM_ACTIONS = 4, 2


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    done: jax.Array


class ReplayBuffer(NamedTuple):
    """Fixed-capacity circular buffer; `storage` leaves have a leading axis of size `capacity`."""

    storage: Transition
    cursor: jax.Array
    size: jax.Array

    @classmethod
    def empty(cls, capacity: int) -> "ReplayBuffer":
        obs, scalars = jnp.zeros((capacity, OBS_DIM)), jnp.zeros(capacity)
        storage = Transition(obs, scalars.astype(jnp.int32), scalars, obs, scalars.astype(bool))
        return cls(storage, jnp.int32(0), jnp.int32(0))

    def add(self, transition: Transition) -> "ReplayBuffer":
        capacity = self.storage.reward.shape[0]
        storage = jax.tree.map(lambda buf, x: buf.at[self.cursor].set(x), self.storage, transition)
        return ReplayBuffer(storage, (self.cursor + 1) % capacity, jnp.minimum(self.size + 1, capacity))

    def sample(self, key: jax.Array, batch_size: int) -> Transition:
        indices = jax.random.randint(key, (batch_size,), 0, self.size)
        return jax.tree.map(lambda buf: buf[indices], self.storage)


class AgentState(NamedTuple):
    params: dict
    target_params: dict
    opt_state: optax.OptState
    buffer: ReplayBuffer
    obs: jax.Array
    step: jax.Array
    key: jax.Array


def step_env(obs, action):
    """Euler integration of the classic CartPole equations (Barto, Sutton & Anderson 1983)."""
    x, x_dot, theta, theta_dot = obs
    force = jnp.where(action == 1, FORCE_MAGNITUDE, -FORCE_MAGNITUDE)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    total_mass = CART_MASS + POLE_MASS
    temp = (force + POLE_MASS * POLE_HALF_LENGTH * theta_dot**2 * sin) / total_mass
    effective_length = POLE_HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos**2 / total_mass)
    theta_acc = (GRAVITY * sin - cos * temp) / effective_length
    x_acc = temp - POLE_MASS * POLE_HALF_LENGTH * theta_acc * cos / total_mass
    next_obs = obs + TIMESTEP * jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
    return next_obs, 1.0, (jnp.abs(next_obs[0]) > X_LIMIT) | (jnp.abs(next_obs[2]) > THETA_LIMIT)


def init_q_network(key, hidden=(32, 32)):
    sizes, params = (OBS_DIM, *hidden, NUM_ACTIONS), {}
    for i, (n_in, n_out) in enumerate(zip(sizes[:-1], sizes[1:])):
        key, subkey = jax.random.split(key)
        kernel = jax.nn.initializers.he_normal()(subkey, (n_in, n_out))
        params[f"dense_{i}"] = {"kernel": kernel, "bias": jnp.zeros(n_out)}
    return params


def q_values(params, obs):
    for i in range(len(params)):
        layer = params[f"dense_{i}"]
        obs = (jax.nn.relu(obs) if i else obs) @ layer["kernel"] + layer["bias"]
    return obs


def select(values, actions):
    return jnp.take_along_axis(values, actions[:, None], axis=-1)[:, 0]


def double_q_loss(params, target_params, batch: Transition, discount: float):
    chosen = select(q_values(params, batch.obs), batch.action)
    greedy = jnp.argmax(q_values(params, batch.next_obs), axis=-1)
    bootstrap = select(q_values(target_params, batch.next_obs), greedy)
    targets = batch.reward + discount * (1.0 - batch.done) * jax.lax.stop_gradient(bootstrap)
    return jnp.mean(optax.huber_loss(chosen, targets, delta=1.0))


def train(state, *, optimizer, epsilon_schedule, num_steps, batch_size=16, discount=0.99, tau=0.01, warmup=8):
    def act(key, params, obs, epsilon):
        explore_key, action_key = jax.random.split(key)
        random_action = jax.random.randint(action_key, (), 0, NUM_ACTIONS)
        greedy_action = jnp.argmax(q_values(params, obs))
        return jnp.where(jax.random.bernoulli(explore_key, epsilon), random_action, greedy_action)

    def learn(params, target_params, opt_state, batch):
        loss, grads = jax.value_and_grad(double_q_loss)(params, target_params, batch, discount)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, target_params, step_size=tau), opt_state, loss

    def skip(*operands):
        return *operands[:3], jnp.zeros(())

    def env_step(state: AgentState, _):
        key, act_key, reset_key, sample_key = jax.random.split(state.key, 4)
        action = act(act_key, state.params, state.obs, epsilon_schedule(state.step))
        next_obs, reward, done = step_env(state.obs, action)
        buffer = state.buffer.add(Transition(state.obs, action, reward, next_obs, done))
        batch = buffer.sample(sample_key, batch_size)
        params, target_params, opt_state, loss = jax.lax.cond(buffer.size >= warmup, learn, skip, *state[:3], batch)
        initial_obs = jax.random.uniform(reset_key, (OBS_DIM,), minval=-0.05, maxval=0.05)
        obs = jnp.where(done, initial_obs, next_obs)
        state = AgentState(params, target_params, opt_state, buffer, obs, state.step + 1, key)
        return state, (loss, done)

    return jax.lax.scan(env_step, state, None, length=num_steps)


def build():
    params_key, key = jax.random.split(jax.random.key(0))
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3))
    params, buffer = init_q_network(params_key), ReplayBuffer.empty(capacity=32)
    state = AgentState(params, params, optimizer.init(params), buffer, jnp.zeros(OBS_DIM), jnp.int32(0), key)
    epsilon = optax.linear_schedule(1.0, 0.05, transition_steps=50)
    return functools.partial(train, optimizer=optimizer, epsilon_schedule=epsilon, num_steps=40), (state,)
