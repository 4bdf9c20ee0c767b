"""`predict` (equinox_mlp.py:12).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax
import jax.numpy as jnp


def linear(params, x):
    """Args: params: (bias=f32[_], weight=f32[_,_]); x: f32[4,_].  Returns: f32[4,_]."""
    return jnp.einsum("ij,kj->ik", params.weight, x).T + params.bias


def predict(arrays, x):
    """Args: arrays: MLP(layers=(Linear(...), Linear(...), Linear(...))); x: f32[4,3].
    Returns: f32[4,2].
    """
    x_2 = linear(arrays.layers[1], jax.nn.relu(linear(arrays.layers[0], x)))
    return linear(arrays.layers[2], jax.nn.relu(x_2))
