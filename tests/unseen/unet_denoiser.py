"""DDPM training step: small flax.linen U-Net, cosine noise schedule, dropout and EMA parameters."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

NUM_TIMESTEPS = 100
EMA_DECAY = 0.999


class EMATrainState(train_state.TrainState):
    ema_params: Any
    dropout_key: jax.Array

    def apply_gradients(self, *, grads, **kwargs):
        new_state = super().apply_gradients(grads=grads, **kwargs)
        # Warm the decay up so that early averages are not dominated by the initialisation.
        decay = jnp.minimum(EMA_DECAY, (1.0 + new_state.step) / (10.0 + new_state.step))
        ema_params = jax.tree.map(lambda ema, p: decay * ema + (1.0 - decay) * p, self.ema_params, new_state.params)
        return new_state.replace(ema_params=ema_params)


def sinusoidal_embedding(timesteps: jax.Array, dim: int, max_period: float = 10_000.0) -> jax.Array:
    half = dim // 2
    frequencies = jnp.exp(-jnp.log(max_period) * jnp.arange(half) / half)
    angles = timesteps[:, None].astype(jnp.float32) * frequencies[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class ResBlock(nn.Module):
    features: int
    groups: int = 4
    dropout_rate: float = 0.1

    @nn.compact
    def __call__(self, x, temb, *, train: bool):
        residual = x
        h = nn.swish(nn.GroupNorm(num_groups=self.groups)(x))
        h = nn.Conv(self.features, (3, 3))(h)
        scale, shift = jnp.split(nn.Dense(2 * self.features)(nn.swish(temb)), 2, axis=-1)
        h = nn.GroupNorm(num_groups=self.groups)(h)
        h = h * (1.0 + scale[:, None, None, :]) + shift[:, None, None, :]
        h = nn.Dropout(self.dropout_rate, deterministic=not train)(nn.swish(h))
        h = nn.Conv(self.features, (3, 3), kernel_init=nn.initializers.zeros)(h)
        if residual.shape[-1] != self.features:
            residual = nn.Conv(self.features, (1, 1), name="shortcut")(residual)
        return h + residual


class UNet(nn.Module):
    widths: Sequence[int] = (8, 16)
    time_dim: int = 16
    out_channels: int = 1

    @nn.compact
    def __call__(self, x, timesteps, train: bool = True):
        temb = sinusoidal_embedding(timesteps, self.time_dim)
        temb = nn.Dense(self.time_dim)(nn.swish(nn.Dense(2 * self.time_dim)(temb)))

        h = nn.Conv(self.widths[0], (3, 3), name="stem")(x)
        skips = []
        for level, width in enumerate(self.widths):
            h = ResBlock(width, name=f"down_{level}")(h, temb, train=train)
            skips.append(h)
            h = nn.avg_pool(h, (2, 2), strides=(2, 2))
        h = ResBlock(self.widths[-1], name="middle")(h, temb, train=train)
        for level, width in reversed(list(enumerate(self.widths))):
            batch, height, depth, channels = h.shape
            h = jax.image.resize(h, (batch, 2 * height, 2 * depth, channels), method="nearest")
            h = jnp.concatenate([h, skips.pop()], axis=-1)
            h = ResBlock(width, name=f"up_{level}")(h, temb, train=train)
        h = nn.swish(nn.GroupNorm(num_groups=4)(h))
        return nn.Conv(self.out_channels, (3, 3), name="head")(h)


def cosine_alpha_bar(timesteps, num_timesteps: int = NUM_TIMESTEPS, offset: float = 0.008):
    """Cumulative signal level of Nichol & Dhariwal (2021), eq. 17."""

    def f(t):
        return jnp.cos((t / num_timesteps + offset) / (1.0 + offset) * jnp.pi / 2) ** 2

    return jnp.clip(f(timesteps + 1.0) / f(0.0), 1e-5, 1.0)


def diffuse(images, noise, timesteps):
    alpha_bar = cosine_alpha_bar(timesteps)[:, None, None, None]
    return jnp.sqrt(alpha_bar) * images + jnp.sqrt(1.0 - alpha_bar) * noise


def min_snr_weight(timesteps, gamma: float = 5.0):
    alpha_bar = cosine_alpha_bar(timesteps)
    snr = alpha_bar / (1.0 - alpha_bar)
    return jnp.minimum(snr, gamma) / snr


def train_step(state: EMATrainState, batch: dict, key: jax.Array):
    time_key, noise_key = jax.random.split(key)
    dropout_key = jax.random.fold_in(state.dropout_key, state.step)
    images = 2.0 * batch["image"] - 1.0
    timesteps = jax.random.randint(time_key, (images.shape[0],), 0, NUM_TIMESTEPS)
    noise = jax.random.normal(noise_key, images.shape)
    noisy = diffuse(images, noise, timesteps)

    def loss_fn(params):
        predicted = state.apply_fn({"params": params}, noisy, timesteps, train=True, rngs={"dropout": dropout_key})
        per_example = jnp.mean(jnp.square(predicted - noise), axis=(1, 2, 3))
        return jnp.mean(min_snr_weight(timesteps) * per_example), per_example

    (loss, per_example), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads)
    return state, {"loss": loss, "mse": jnp.mean(per_example), "grad_norm": optax.global_norm(grads)}


def create_train_state(key, model, image_shape, learning_rate=2e-4, warmup_steps=10):
    init_key, dropout_key = jax.random.split(key)
    params = model.init(init_key, jnp.zeros((1, *image_shape)), jnp.zeros((1,), jnp.int32), train=False)["params"]
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, warmup_steps, decay_steps=1000)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4))
    return EMATrainState.create(apply_fn=model.apply, params=params, tx=tx, ema_params=params, dropout_key=dropout_key)


def build():
    state_key, data_key, step_key = jax.random.split(jax.random.key(7), 3)
    image_shape = (8, 8, 1)
    state = create_train_state(state_key, UNet(), image_shape)
    batch = {"image": jax.random.uniform(data_key, (4, *image_shape))}
    return train_step, (state, batch, step_key)
