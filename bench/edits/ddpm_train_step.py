"""One step of a small denoising diffusion model: SGD with momentum, and a moving average of the weights."""

import jax
import jax.numpy as jnp

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
STEPS, PIXELS, WIDTH = 50, 12, 24


def time_features(times):
    frequencies = jnp.exp(-0.5 * jnp.arange(4.0))
    angles = times[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def predict_noise(params, noisy, times):
    embedded = time_features(times) @ params["time"]
    hidden = jax.nn.relu(noisy @ params["input"] + embedded)
    hidden = jnp.tanh(hidden @ params["middle"] + params["bias"])
    return hidden @ params["output"]


def denoising_loss(params, images, key):
    key_times, key_noise = jax.random.split(key)
    times = jax.random.randint(key_times, (images.shape[0],), 0, STEPS)
    signal = jnp.cos(0.5 * jnp.pi * times / STEPS)[:, None]
    noise = jax.random.normal(key_noise, images.shape)
    noisy = signal * images + jnp.sqrt(1.0 - signal**2) * noise
    errors = predict_noise(params, noisy, times) - noise
    return jnp.mean(errors**2)


def train_step(params, momentum, average, images, key):
    loss, grads = jax.value_and_grad(denoising_loss)(params, images, key)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    average = jax.tree.map(lambda a, p: 0.95 * a + 0.05 * p, average, params)
    return params, momentum, average, loss


def build():
    keys = jax.random.split(jax.random.key(0), 6)
    params = {
        "input": 0.3 * jax.random.normal(keys[0], (PIXELS, WIDTH)),
        "time": 0.3 * jax.random.normal(keys[1], (8, WIDTH)),
        "middle": 0.3 * jax.random.normal(keys[2], (WIDTH, WIDTH)),
        "bias": jnp.zeros(WIDTH),
        "output": 0.3 * jax.random.normal(keys[3], (WIDTH, PIXELS)),
    }
    momentum = jax.tree.map(jnp.zeros_like, params)
    images = jax.random.normal(keys[4], (10, PIXELS))
    return train_step, (params, momentum, params, images, keys[5])
