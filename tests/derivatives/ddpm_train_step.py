"""One training step of a denoising diffusion model (DDPM): a small convolutional denoiser, noise prediction, AdamW, EMA.

The loss is a closure of the step: it is differentiated in the parameters alone, and reads the noised images and the
noise from around it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

LIBRARY = "optax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad loss_fn",)
TIMESTEPS, CHANNELS, EMBEDDING = 50, 8, 16

optimizer = optax.adamw(2e-4, weight_decay=1e-4)


class TrainState(NamedTuple):
    step: jax.Array
    params: dict[str, Any]
    ema_params: dict[str, Any]
    opt_state: optax.OptState


def cosine_alpha_bars(steps):
    times = jnp.linspace(0.0, 1.0, steps + 1)
    curve = jnp.cos((times + 0.008) / 1.008 * jnp.pi / 2) ** 2
    return jnp.clip(curve[1:] / curve[0], 1e-4, 0.9999)


def timestep_embedding(timesteps):
    half = EMBEDDING // 2
    frequencies = jnp.exp(-jnp.log(10_000.0) * jnp.arange(half) / half)
    angles = timesteps[:, None].astype(jnp.float32) * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def conv(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def group_norm(x, groups=2):
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
    variance = grouped.var(axis=(1, 2, 4), keepdims=True)
    return ((grouped - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)


def residual_block(params, x, embedding):
    hidden = conv(jax.nn.silu(group_norm(x)), params["conv1"])
    hidden = hidden + (jax.nn.silu(embedding) @ params["time"])[:, None, None, :]
    return x + conv(jax.nn.silu(group_norm(hidden)), params["conv2"])


def denoiser(params, noised, timesteps):
    embedding = timestep_embedding(timesteps) @ params["embed"]
    skip = residual_block(params["down"], conv(noised, params["stem"]), embedding)
    hidden = conv(skip, params["pool"], stride=2)
    hidden = residual_block(params["middle"], hidden, embedding)
    hidden = jax.image.resize(hidden, skip.shape, method="nearest")
    hidden = residual_block(params["up"], hidden + skip, embedding)
    return conv(jax.nn.silu(hidden), params["head"])


def train_step(state, images, key):
    time_key, noise_key = jax.random.split(key)
    timesteps = jax.random.randint(time_key, (images.shape[0],), 0, TIMESTEPS)
    noise = jax.random.normal(noise_key, images.shape)
    alpha_bar = cosine_alpha_bars(TIMESTEPS)[timesteps][:, None, None, None]
    noised = jnp.sqrt(alpha_bar) * images + jnp.sqrt(1.0 - alpha_bar) * noise

    def loss_fn(params):
        predicted = denoiser(params, noised, timesteps)
        return jnp.mean((predicted - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    decay = jnp.minimum(0.999, (1.0 + state.step) / (10.0 + state.step))
    ema_params = optax.incremental_update(params, state.ema_params, 1.0 - decay)
    metrics = {"loss": loss, "grad_norm": optax.global_norm(grads)}
    return TrainState(state.step + 1, params, ema_params, opt_state), metrics


def init_params(key):
    keys = iter(jax.random.split(key, 16))

    def kernel(inputs, outputs, size=3):
        return jax.random.normal(next(keys), (size, size, inputs, outputs)) / jnp.sqrt(size * size * inputs)

    def block():
        return {
            "conv1": kernel(CHANNELS, CHANNELS),
            "conv2": 0.1 * kernel(CHANNELS, CHANNELS),
            "time": 0.1 * jax.random.normal(next(keys), (EMBEDDING, CHANNELS)),
        }

    return {
        "embed": 0.2 * jax.random.normal(next(keys), (EMBEDDING, EMBEDDING)),
        "stem": kernel(1, CHANNELS),
        "pool": kernel(CHANNELS, CHANNELS),
        "head": kernel(CHANNELS, 1),
        **{name: block() for name in ("down", "middle", "up")},
    }


def build():
    params = init_params(jax.random.key(0))
    state = TrainState(jnp.array(3), params, params, optimizer.init(params))
    images = jnp.tanh(jax.random.normal(jax.random.key(1), (4, 8, 8, 1)))
    return train_step, (state, images, jax.random.key(2))
