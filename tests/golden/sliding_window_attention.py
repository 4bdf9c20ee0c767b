"""Value and gradient of `loss` with respect to `params` (sliding_window_attention.py:31).

untrace 0.1.0 · jax 0.10.2 · proven: same bits
"""

import jax
import jax.numpy as jnp
from jax import lax


def forward(params, tokens):
    """Args: params: {"embedding": bf16[32,16], "layers": {...}}; tokens: i32[8].
    Returns: (bf16[8,32], (bf16[8,16], bf16[3,8,16], bf16[16,32])).
    """
    embedding = params["embedding"]
    x = embedding[tokens]
    distance = jnp.arange(8)[:, None] - jnp.arange(8)
    mask = (distance >= 0) & (distance < 4)
    mask_wide = jnp.broadcast_to(mask, (2, 8, 8))

    def block(x, inputs):
        layer, param = inputs
        q, k, v = jnp.split(x @ param, 3, axis=-1)
        product = jnp.einsum("qhd,khd->hqk", q.reshape(8, 2, 8), k.reshape(8, 2, 8))
        scores = product / jnp.sqrt(8.0)
        weights = jax.nn.softmax(jnp.where(mask_wide, scores, -jnp.inf), axis=-1)
        product_2 = jnp.einsum("hqk,khd->qhd", weights, v.reshape(8, 2, 8))
        return x + product_2.reshape(8, 16) @ layer, x

    x_2, xs = lax.scan(block, x, (params["layers"]["out"], params["layers"]["qkv"]))
    params_t = embedding.T
    return x_2 @ params_t, (x_2, xs, params_t)


def block_2(x, out, qkv):
    """Args: x: bf16[8,16]; out: bf16[16,16]; qkv: bf16[16,48].  Returns: bf16[8,16]."""
    q, k, v = jnp.split(x @ qkv, 3, axis=-1)
    product = jnp.einsum("qhd,khd->hqk", q.reshape(8, 2, 8), k.reshape(8, 2, 8))
    scores = product / jnp.sqrt(8.0)
    distance = jnp.arange(8)[:, None] - jnp.arange(8)
    mask = (distance >= 0) & (distance < 4)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    product_2 = jnp.einsum("hqk,khd->qhd", weights, v.reshape(8, 2, 8))
    return x + product_2.reshape(8, 16) @ out


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
        x, layer, param = inputs
        _, block_2_vjp = jax.vjp(jax.checkpoint(block_2), x, layer, param)
        d_x_2, d_layer, d_param = block_2_vjp(d_x)
        return d_x_2, (d_layer, d_param)

    d_x, (d_params, d_params_2) = lax.scan(
        block_bwd,
        jnp.einsum("ij,kj->ik", d_product, params_t),
        (xs, params_2["layers"]["out"], params_2["layers"]["qkv"]),
        reverse=True,
    )  # sliding_window_attention.py:27
    d_x_2 = jnp.zeros((32, 16), dtype=jnp.bfloat16).at[tokens].add(d_x)
    d_params_3 = jnp.einsum("ij,ik->jk", d_product, x) + d_x_2
    return (
        -taken.mean(),
        {
            "embedding": d_params_3.astype(jnp.float32),
            "layers": {
                "out": d_params.astype(jnp.float32),
                "qkv": d_params_2.astype(jnp.float32),
            },
        },
    )
