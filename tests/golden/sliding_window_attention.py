"""Value and gradient of `loss` with respect to `params` (sliding_window_attention.py:31).

untrace 0.1.0 · jax 0.10.2 · proven: same bits
"""

import jax
import jax.numpy as jnp
from jax import lax


def _recomputed(function, *args, prevent_cse=True, policy=None):
    """Calls `function` as differentiation does what `jax.checkpoint` marked: its values are computed again here."""
    from jax.extend.core import primitives

    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return primitives.remat_p.bind(*args, jaxpr=jaxpr, prevent_cse=prevent_cse, differentiated=True, policy=policy)


def block_bwd(x, layer, param, d_x):
    """Args: x: bf16[8,16]; layer: bf16[16,16]; param: bf16[16,48]; d_x: bf16[8,16].
    Returns: (bf16[8,16], bf16[16,16], bf16[16,48]).
    """
    q, k, v = jnp.split(x @ param, 3, axis=-1)
    q = q.reshape(8, 2, 8)
    k = k.reshape(8, 2, 8)
    v = v.reshape(8, 2, 8)
    cast = jnp.sqrt(8.0).astype(jnp.bfloat16)
    scores = jnp.einsum("qhd,khd->hqk", q, k) / cast
    distance = jnp.arange(8)[:, None] - jnp.arange(8)
    mask = (distance >= 0) & (distance < 4)
    selected = jnp.where(mask, scores, -jnp.inf)
    x_max = lax.stop_gradient(selected.max(axis=-1, keepdims=True))
    unnormalized = jnp.exp(selected - x_max)
    total = unnormalized.sum(axis=-1, keepdims=True)
    weights = unnormalized / total
    reshaped = jnp.einsum("hqk,khd->qhd", weights, v).reshape(8, 16)
    d_product = jnp.einsum("ij,kj->ik", d_x, layer).reshape(8, 2, 8)
    d_transposed = d_product.transpose(1, 2, 0)
    d_weights = jnp.einsum("bij,kbi->bjk", d_transposed, v)
    d_v = jnp.einsum("bij,bki->jbk", weights, d_transposed)
    d_weights_2 = lax.reduce_sum(d_weights * total ** (-2) * unnormalized, (2,))
    d_weights_3 = (-d_weights_2[:, :, None]).astype(jnp.float32)
    d_weights_4 = jnp.broadcast_to(d_weights_3, (2, 8, 8)).astype(jnp.bfloat16)
    d_selected = (d_weights / total + d_weights_4) * unnormalized
    d_product_2 = jnp.where(mask, d_selected, 0.0) / cast
    d_k = jnp.einsum("ibj,bik->kbj", q, d_product_2).reshape(8, 16)
    d_q = jnp.einsum("ibj,bki->kbj", k, d_product_2).reshape(8, 16)
    d_product_3 = jnp.concatenate([d_q, d_k, d_v.reshape(8, 16)], axis=-1)
    d_x_2 = d_x + jnp.einsum("ij,kj->ik", d_product_3, param)
    return (
        d_x_2,
        jnp.einsum("ij,ik->jk", d_x, reshaped).T,
        jnp.einsum("ij,ik->jk", d_product_3, x).T,
    )


def loss_and_grad(params, tokens, targets):
    """Args: params: {"embedding": f32[32,16], "layers": {...}}; tokens, targets: i32[8].
    Returns: (f32[], like params).
    """
    # forward
    params_2 = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    x = params_2["embedding"][tokens]
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

    x, xs = lax.scan(block, x, (params_2["layers"]["out"], params_2["layers"]["qkv"]))
    params_t = params_2["embedding"].T
    logits = (x @ params_t).astype(jnp.float32)
    log_probs, log_softmax_vjp = jax.vjp(jax.nn.log_softmax, logits)
    taken, take_along_axis_vjp = jax.vjp(
        lambda x: jnp.take_along_axis(x, targets[:, None]), log_probs
    )

    # backward
    d_log_probs = take_along_axis_vjp(jnp.full((8, 1), -0.125, dtype=jnp.float32))[0]
    d_product = log_softmax_vjp(d_log_probs)[0].astype(jnp.bfloat16)

    def block_bwd_2(d_x, inputs):
        x, layer, param = inputs
        d_x_2, d_layer, d_param = _recomputed(block_bwd, x, layer, param, d_x)
        return d_x_2, (d_layer, d_param)

    d_x, (d_params, d_params_2) = lax.scan(
        block_bwd_2,
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
