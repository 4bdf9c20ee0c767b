"""`predict` (equinox_mlp.py:12).

untrace 0.1.0 · jax 0.10.2 · proven: same jaxpr
"""

import jax


def predict(arrays, x):
    """Args: arrays: MLP(layers=(Linear(...), Linear(...), Linear(...))); x: f32[4,3].
    Returns: f32[4,2].
    """
    layer_0_weight, layer_0_bias = arrays.layers[0].weight, arrays.layers[0].bias
    layer_1_weight, layer_1_bias = arrays.layers[1].weight, arrays.layers[1].bias
    layer_2_weight, layer_2_bias = arrays.layers[2].weight, arrays.layers[2].bias

    def mlp(x):
        out = jax.nn.relu(layer_0_weight @ x + layer_0_bias)
        out_2 = jax.nn.relu(layer_1_weight @ out + layer_1_bias)
        return layer_2_weight @ out_2 + layer_2_bias

    return jax.vmap(mlp)(x)
