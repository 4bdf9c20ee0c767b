"""A multilayer perceptron of equinox, batched."""

import equinox as eqx
import jax
import jax.numpy as jnp


def build():
    mlp = eqx.nn.MLP(3, 2, 8, 2, key=jax.random.key(0))
    arrays, static = eqx.partition(mlp, eqx.is_array)

    def predict(arrays, x):
        model = eqx.combine(arrays, static)
        return jax.vmap(model)(x)

    return predict, (arrays, jnp.ones((4, 3)))
