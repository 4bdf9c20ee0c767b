"""Variational autoencoder with Equinox modules, AdamW (decay on matrices only) and a cosine schedule."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

IMAGE_SHAPE = (8, 8)
PEAK_LR = 1e-3
TOTAL_STEPS = 200


class Encoder(eqx.Module):
    layers: list[eqx.nn.Linear]
    norm: eqx.nn.LayerNorm
    to_mean: eqx.nn.Linear
    to_log_var: eqx.nn.Linear
    activation: Callable = eqx.field(static=True)

    def __init__(self, in_dim: int, width: int, latent_dim: int, *, key, activation: Callable = jax.nn.gelu):
        k1, k2, k_mean, k_var = jax.random.split(key, 4)
        self.layers = [eqx.nn.Linear(in_dim, width, key=k1), eqx.nn.Linear(width, width, key=k2)]
        self.norm = eqx.nn.LayerNorm(width)
        self.to_mean = eqx.nn.Linear(width, latent_dim, key=k_mean)
        self.to_log_var = eqx.nn.Linear(width, latent_dim, key=k_var)
        self.activation = activation

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = x.ravel()
        for layer in self.layers:
            h = self.activation(layer(h))
        h = self.norm(h)
        return self.to_mean(h), jnp.clip(self.to_log_var(h), -10.0, 10.0)


class Decoder(eqx.Module):
    mlp: eqx.nn.MLP
    image_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, latent_dim: int, width: int, image_shape: tuple[int, ...], *, key):
        out_dim = 1
        for size in image_shape:
            out_dim *= size
        self.mlp = eqx.nn.MLP(latent_dim, out_dim, width, depth=2, activation=jax.nn.gelu, key=key)
        self.image_shape = image_shape

    def __call__(self, z: jax.Array) -> jax.Array:
        """Bernoulli logits."""
        return self.mlp(z).reshape(self.image_shape)


class VAE(eqx.Module):
    encoder: Encoder
    decoder: Decoder
    latent_dim: int = eqx.field(static=True)

    def __init__(self, image_shape=IMAGE_SHAPE, width: int = 32, latent_dim: int = 4, *, key):
        k_enc, k_dec = jax.random.split(key)
        self.encoder = Encoder(image_shape[0] * image_shape[1], width, latent_dim, key=k_enc)
        self.decoder = Decoder(latent_dim, width, image_shape, key=k_dec)
        self.latent_dim = latent_dim

    def __call__(self, x: jax.Array, key: jax.Array):
        mean, log_var = self.encoder(x)
        z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
        return self.decoder(z), mean, log_var

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(self.decoder(jax.random.normal(key, (self.latent_dim,))))


def gaussian_kl(mean: jax.Array, log_var: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(jnp.exp(log_var) + mean**2 - 1.0 - log_var, axis=-1)


def negative_elbo(model: VAE, images: jax.Array, key: jax.Array, beta: jax.Array):
    keys = jax.random.split(key, images.shape[0])
    logits, mean, log_var = jax.vmap(model)(images, keys)
    nll = jnp.sum(optax.sigmoid_binary_cross_entropy(logits, images), axis=(-2, -1))
    kl = gaussian_kl(mean, log_var)
    return jnp.mean(nll + beta * kl), {"nll": jnp.mean(nll), "kl": jnp.mean(kl)}


def weight_decay_mask(params):
    """Decay weight matrices, leave biases and norm parameters alone."""
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def make_optimizer(total_steps: int = TOTAL_STEPS, weight_decay: float = 1e-2) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, PEAK_LR, warmup_steps=total_steps // 10, decay_steps=total_steps, end_value=0.01 * PEAK_LR
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, weight_decay=weight_decay, mask=weight_decay_mask),
    )


def make_step(model: VAE, optimizer, opt_state, images, key, step, kl_warmup: int = 50):
    beta = jnp.minimum(1.0, step / kl_warmup)
    (loss, aux), grads = eqx.filter_value_and_grad(negative_elbo, has_aux=True)(model, images, key, beta)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, {"loss": loss, "beta": beta, **aux}


def build():
    k_model, k_data, k_train = jax.random.split(jax.random.key(21), 3)
    model = VAE(key=k_model)
    optimizer = make_optimizer()
    params, static = eqx.partition(model, eqx.is_array)
    opt_state = optimizer.init(params)
    images = jax.random.bernoulli(k_data, 0.3, (16, *IMAGE_SHAPE)).astype(jnp.float32)

    def train(params, opt_state, images, key):
        """Three steps on one batch, followed by a draw from the prior."""

        def body(carry, step):
            params, opt_state = carry
            step_key = jax.random.fold_in(key, step)
            model, opt_state, metrics = make_step(
                eqx.combine(params, static), optimizer, opt_state, images, step_key, step
            )
            return (eqx.filter(model, eqx.is_array), opt_state), metrics

        (params, opt_state), metrics = jax.lax.scan(body, (params, opt_state), jnp.arange(3))
        samples = jax.vmap(eqx.combine(params, static).sample)(jax.random.split(key, 2))
        return params, opt_state, metrics, samples

    return train, (params, opt_state, images, k_train)
