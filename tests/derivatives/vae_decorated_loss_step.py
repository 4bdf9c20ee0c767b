"""VAE whose loss is decorated with `value_and_grad`, a name that the module binds when it is imported.

After the decorator, `negative_elbo` already is the function with the derivative: what the scan over minibatches calls
has no `jax.` in it.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import random, value_and_grad
from jax.nn import softplus

LIBRARY = "jax"
KIND = "train_step"
SOURCE = "self"
DERIVATIVES = ("value_and_grad negative_elbo",)
PIXELS, HIDDEN, LATENT = 16, 12, 3


def dense(params, x):
    return x @ params["w"] + params["b"]


def encode(params, x):
    hidden = softplus(dense(params["hidden"], x))
    return dense(params["mean"], hidden), dense(params["log_var"], hidden)


def decode(params, z):
    return dense(params["out"], softplus(dense(params["hidden"], z)))


def gaussian_kl(mean, log_var):
    return -0.5 * jnp.sum(1.0 + log_var - mean**2 - jnp.exp(log_var), axis=-1)


def bernoulli_log_prob(logits, x):
    return -jnp.sum(softplus(jnp.where(x, -logits, logits)), axis=-1)


@partial(value_and_grad, has_aux=True)
def negative_elbo(params, images, key, beta):
    mean, log_var = encode(params["encoder"], images.astype(jnp.float32))
    z = mean + jnp.exp(0.5 * log_var) * random.normal(key, mean.shape)
    log_likelihood = bernoulli_log_prob(decode(params["decoder"], z), images)
    kl = gaussian_kl(mean, log_var)
    terms = {"log_likelihood": jnp.mean(log_likelihood), "kl": jnp.mean(kl)}
    return jnp.mean(beta * kl - log_likelihood), terms


def rmsprop(params, grads, scales, learning_rate=1e-2, decay=0.9):
    scales = jax.tree.map(lambda s, g: decay * s + (1.0 - decay) * g**2, scales, grads)
    params = jax.tree.map(lambda p, g, s: p - learning_rate * g / jnp.sqrt(s + 1e-8), params, grads, scales)
    return params, scales


def train_epoch(params, scales, batches, key, beta):
    def step(carry, inputs):
        params, scales = carry
        images, key = inputs
        (loss, terms), grads = negative_elbo(params, images, key, beta)
        return rmsprop(params, grads, scales), {"loss": loss, **terms}

    keys = random.split(key, batches.shape[0])
    (params, scales), history = jax.lax.scan(step, (params, scales), (batches, keys))
    return params, scales, history


def init_dense(key, inputs, outputs):
    return {"w": random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs), "b": jnp.zeros(outputs)}


def init_params(key):
    keys = random.split(key, 5)
    encoder = {
        "hidden": init_dense(keys[0], PIXELS, HIDDEN),
        "mean": init_dense(keys[1], HIDDEN, LATENT),
        "log_var": init_dense(keys[2], HIDDEN, LATENT),
    }
    decoder = {"hidden": init_dense(keys[3], LATENT, HIDDEN), "out": init_dense(keys[4], HIDDEN, PIXELS)}
    return {"encoder": encoder, "decoder": decoder}


def build():
    params = init_params(random.key(0))
    scales = jax.tree.map(jnp.ones_like, params)
    batches = random.bernoulli(random.key(1), 0.3, (3, 8, PIXELS))
    return train_epoch, (params, scales, batches, random.key(2), 0.5)
