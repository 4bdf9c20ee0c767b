"""`predict` (equinox_mlp.py:12).

untrace 0.1.0 · jax 0.10.2 · proven: same jaxpr
"""

import jax


def linear(params, x):
    """Args: params: (bias=f32[_], weight=f32[_,_]); x: f32[_].  Returns: f32[_]."""
    return params.weight @ x + params.bias


def predict(arrays, x):
    """Args: arrays: MLP(layers=(Linear(...), Linear(...), Linear(...))); x: f32[4,3].
    Returns: f32[4,2].
    """

    def mlp(x):
        x_2 = linear(arrays.layers[1], jax.nn.relu(linear(arrays.layers[0], x)))
        return linear(arrays.layers[2], jax.nn.relu(x_2))

    return jax.vmap(mlp)(x)
