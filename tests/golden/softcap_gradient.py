"""Gradient of `loss` with respect to `params` (softcap_gradient.py:12).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax
import jax.numpy as jnp


def grad_loss(params, x):
    """Args: params: (w: f32[4,5], b: f32[5]); x: f32[3,4].  Returns: the gradient, like params."""
    w, b = params

    # forward
    total = x @ w + b
    hidden = jax.nn.relu(total)
    centered = hidden - jnp.mean(hidden, axis=-1, keepdims=True)
    scaled = centered / 30.0
    tanh_scaled = jnp.tanh(scaled)

    # backward
    d_tanh_scaled = 30.0 * (1.0 - tanh_scaled)
    d_centered = (d_tanh_scaled + d_tanh_scaled * tanh_scaled) / 30.0
    d_centered_2 = d_centered + (-d_centered).mean(axis=-1, keepdims=True)
    d_total = jnp.where(total > 0.0, d_centered_2, 0.0)  # softcap_gradient.py:14
    return x.T @ d_total, d_total.sum(axis=0)
