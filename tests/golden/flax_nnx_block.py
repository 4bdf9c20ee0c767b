"""`forward` (flax_nnx_block.py:26).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax
import jax.numpy as jnp
from jax import lax


def layer_norm(params, x):
    mus = x.mean(axis=-1)
    difference = jnp.square(x).mean(axis=-1) - jnp.square(mus)
    total = jnp.maximum(0.0, difference)[:, :, None] + 1e-06
    y = (x - mus[:, :, None]) * (lax.rsqrt(total) * params["scale"])
    return y + params["bias"]


def linear_general(params, y):
    out = jnp.einsum("ijk,klm->ijlm", y, params["kernel"])
    return out + params["bias"]


def dot_product_attention(query, key, value):
    product = jnp.einsum("bihjk,blhk->bhijl", query[:, :, :, None], key)
    scaled = product * 0.5
    transposed = jnp.maximum(-jnp.inf, scaled.max(axis=-1)).transpose(3, 0, 1, 2)
    difference = scaled.transpose(3, 0, 1, 2, 4) - lax.stop_gradient(
        transposed[..., None]
    )
    exponential = jnp.exp(difference)
    ratio = exponential / exponential.sum(axis=-1, keepdims=True)
    transposed_2 = jnp.einsum("ibhjk,bkhl->bjhil", ratio, value)
    return transposed_2.reshape(2, 6, 2, 4)


def multi_head_attention(params, inputs_q):
    x = dot_product_attention(
        linear_general(params["query"], inputs_q),
        linear_general(params["key"], inputs_q),
        linear_general(params["value"], inputs_q),
    )
    out = jnp.einsum("ijkl,klm->ijm", x, params["out"]["kernel"])
    return out + params["out"]["bias"]


def forward(params, x):
    out = multi_head_attention(params["attention"], layer_norm(params["norm1"], x))
    x_2 = x + out
    y = layer_norm(params["norm2"], x_2) @ params["up"]["kernel"]
    hidden = jax.nn.gelu(y + params["up"]["bias"])
    y_2 = hidden @ params["down"]["kernel"] + params["down"]["bias"]
    return x_2 + y_2
