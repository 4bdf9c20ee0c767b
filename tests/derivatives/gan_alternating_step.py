"""GAN with the non-saturating loss: a discriminator step, then a generator step against the new discriminator.

Two losses, two derivatives and two optimisers; each loss is differentiated in its own network's parameters.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

LIBRARY = "optax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad discriminator_loss", "value_and_grad generator_loss")
LATENT, HIDDEN, DATA = 4, 16, 6

discriminator_optimizer = optax.adam(2e-4, b1=0.5)
generator_optimizer = optax.adam(1e-4, b1=0.5)


class GANState(NamedTuple):
    discriminator: list[dict[str, Any]]
    generator: list[dict[str, Any]]
    discriminator_opt: optax.OptState
    generator_opt: optax.OptState


def mlp(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.leaky_relu(x @ layer["w"] + layer["b"], 0.2)
    return x @ layers[-1]["w"] + layers[-1]["b"]


def generate(generator, latents):
    return jnp.tanh(mlp(generator, latents))


def discriminate(discriminator, samples):
    # One more feature: the spread of the batch, against mode collapse.
    spread = jnp.mean(jnp.std(samples, axis=0))
    features = jnp.concatenate([samples, jnp.full((samples.shape[0], 1), spread)], axis=-1)
    return mlp(discriminator, features)[:, 0]


def bce(logits, target):
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, jnp.full_like(logits, target)))


def discriminator_loss(discriminator, generator, real, latents):
    fake = jax.lax.stop_gradient(generate(generator, latents))
    real_logits = discriminate(discriminator, real)
    fake_logits = discriminate(discriminator, fake)
    # One-sided label smoothing.
    loss = bce(real_logits, 0.9) + bce(fake_logits, 0.0)
    accuracy = 0.5 * (jnp.mean(real_logits > 0) + jnp.mean(fake_logits < 0))
    return loss, accuracy


def generator_loss(generator, discriminator, latents):
    return bce(discriminate(discriminator, generate(generator, latents)), 1.0)


def update_discriminator(state, real, latents):
    grad_fn = jax.value_and_grad(discriminator_loss, has_aux=True)
    (loss, accuracy), grads = grad_fn(state.discriminator, state.generator, real, latents)
    updates, opt_state = discriminator_optimizer.update(grads, state.discriminator_opt)
    discriminator = optax.apply_updates(state.discriminator, updates)
    return state._replace(discriminator=discriminator, discriminator_opt=opt_state), loss, accuracy


def update_generator(state, latents):
    loss, grads = jax.value_and_grad(generator_loss)(state.generator, state.discriminator, latents)
    updates, opt_state = generator_optimizer.update(grads, state.generator_opt)
    generator = optax.apply_updates(state.generator, updates)
    return state._replace(generator=generator, generator_opt=opt_state), loss


def train_step(state, real, key):
    discriminator_key, generator_key = jax.random.split(key)
    latents = jax.random.normal(discriminator_key, (real.shape[0], LATENT))
    state, d_loss, accuracy = update_discriminator(state, real, latents)
    latents = jax.random.normal(generator_key, (real.shape[0], LATENT))
    state, g_loss = update_generator(state, latents)
    return state, {"discriminator": d_loss, "generator": g_loss, "accuracy": accuracy}


def init_mlp(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) * jnp.sqrt(2.0 / m), "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def build():
    discriminator = init_mlp(jax.random.key(0), (DATA + 1, HIDDEN, HIDDEN, 1))
    generator = init_mlp(jax.random.key(1), (LATENT, HIDDEN, DATA))
    state = GANState(
        discriminator,
        generator,
        discriminator_optimizer.init(discriminator),
        generator_optimizer.init(generator),
    )
    real = jnp.tanh(jax.random.normal(jax.random.key(2), (8, DATA)))
    return train_step, (state, real, jax.random.key(3))
