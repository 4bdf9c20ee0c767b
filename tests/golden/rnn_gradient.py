"""Gradient of `loss` with respect to `params` (rnn_gradient.py:7).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax.numpy as jnp
from jax import lax


def grad_loss(params, xs, h0):
    """Args: params: {"b": f32[4], "wh": f32[4,4], "wx": f32[3,4]}; xs: f32[7,3];
    h0: f32[4].
    Returns: the gradient, like params.
    """
    b, wh, wx = params["b"], params["wh"], params["wx"]

    # forward
    def step(h, x):
        h_2 = jnp.tanh(x @ wx + h @ wh + b)
        return h_2, (h_2, h, h_2, 1.0 - h_2)

    _, (hs, hs_2, hs_3, differences) = lax.scan(step, h0, xs)

    # backward
    def step_bwd(carry, inputs):
        d_wx, d_wh, d_b, d_h = carry
        power, x, h, h_2, difference = inputs
        d_h_2 = (d_h + power) * difference
        d_total = d_h_2 + d_h_2 * h_2
        return (
            (
                d_wx + jnp.outer(d_total, x).T,
                d_wh + jnp.outer(d_total, h).T,
                d_b + d_total,
                jnp.einsum("i,ji->j", d_total, wh),
            ),
            None,
        )

    (d_wx, d_wh, d_b, _), _ = lax.scan(
        step_bwd,
        (jnp.zeros_like(wx), jnp.zeros_like(wh), jnp.zeros_like(b), jnp.zeros((4,))),
        (2.0 * hs, xs, hs_2, hs_3, differences),
        reverse=True,
    )
    return {"b": d_b, "wh": d_wh, "wx": d_wx}
