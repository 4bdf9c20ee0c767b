import jax.numpy as jnp


def rollout(x, weights):
    for i in range(12):
        x = jnp.tanh(x @ weights) + 0.1 * i
    return x[jnp.arange(3)]
