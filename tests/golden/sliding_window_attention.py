"""Value and gradient of `loss` with respect to `params` (sliding_window_attention.py:31).

untrace 0.1.0 · jax 0.10.2 · proven: same bits
"""

import jax
import jax.numpy as jnp
from jax import lax


def block(x, layer):
    """Args: x: bf16[8,16]; layer: {"out": bf16[16,16], "qkv": bf16[16,48]}.  Returns: bf16[8,16]."""
    q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
    product = jnp.einsum("qhd,khd->hqk", q.reshape(8, 2, 8), k.reshape(8, 2, 8))
    scores = product / jnp.sqrt(8.0)
    distance = jnp.arange(8)[:, None] - jnp.arange(8)
    mask = (distance >= 0) & (distance < 4)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    product_2 = jnp.einsum("hqk,khd->qhd", weights, v.reshape(8, 2, 8))
    return x + product_2.reshape(8, 16) @ layer["out"]


def forward(params, tokens):
    """Args: params: {"embedding": bf16[32,16], "layers": {...}}; tokens: i32[8].
    Returns: (bf16[8,32], (bf16[8,16], bf16[3,8,16], bf16[16,32])).
    """
    embedding = params["embedding"]
    x = embedding[tokens]

    def step(x, layer):
        return block(x, layer), x

    x_2, xs = lax.scan(step, x, params["layers"])
    params_t = embedding.T
    return x_2 @ params_t, (x_2, xs, params_t)


def loss_and_grad(params, tokens, targets):
    """Args: params: {"embedding": f32[32,16], "layers": {...}}; tokens, targets: i32[8].
    Returns: (f32[], like params).
    """
    # forward
    params_2 = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    forward_out, forward_saved = forward(params_2, tokens)
    logits = forward_out.astype(jnp.float32)
    log_probs, log_softmax_vjp = jax.vjp(jax.nn.log_softmax, logits)
    taken, take_along_axis_vjp = jax.vjp(
        lambda x: jnp.take_along_axis(x, targets[:, None]), log_probs
    )

    # backward
    d_log_probs = take_along_axis_vjp(jnp.full((8, 1), -0.125, dtype=jnp.float32))[0]
    d_product = log_softmax_vjp(d_log_probs)[0].astype(jnp.bfloat16)
    x, xs, params_t = forward_saved

    def block_bwd(d_x, inputs):
        x, layer = inputs
        _, block_vjp = jax.vjp(jax.checkpoint(block), x, layer)
        d_x_2, d_layer = block_vjp(d_x)
        return d_x_2, d_layer

    d_x, d_layers = lax.scan(
        block_bwd,
        jnp.einsum("ij,kj->ik", d_product, params_t),
        (xs, params_2["layers"]),
        reverse=True,
    )  # sliding_window_attention.py:27
    d_x_2 = jnp.zeros((32, 16), dtype=jnp.bfloat16).at[tokens].add(d_x)
    d_params = jnp.einsum("ij,ik->jk", d_product, x) + d_x_2
    grads = {"embedding": d_params, "layers": d_layers}
    grads_2 = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
    return -taken.mean(), grads_2
