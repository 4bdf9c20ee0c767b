"""`forward` (flax_nnx_block.py:26).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program
"""

import jax
import jax.numpy as jnp
from jax import lax


def layer_norm(params, x):
    """Args: params: {"bias": f32[8], "scale": f32[8]}; x: f32[2,6,8].  Returns: f32[2,6,8]."""
    mus = x.mean(axis=-1)
    difference = jnp.square(x).mean(axis=-1) - jnp.square(mus)
    total = jnp.maximum(0.0, difference)[:, :, None] + 1e-06
    y = (x - mus[:, :, None]) * (lax.rsqrt(total) * params["scale"])
    return y + params["bias"]


def linear_general(params, y):
    """Args: params: {"bias": f32[2,4], "kernel": f32[8,2,4]}; y: f32[2,6,8].  Returns: f32[2,6,2,4]."""
    return jnp.einsum("ijk,klm->ijlm", y, params["kernel"]) + params["bias"]


def multi_head_attention(params, inputs_q):
    """Args: params: {"key": {...}, "out": {...}, "query": {...}, "value": {...}};
    inputs_q: f32[2,6,8].
    Returns: f32[2,6,8].
    """
    out = jax.nn.dot_product_attention(
        linear_general(params["query"], inputs_q),
        linear_general(params["key"], inputs_q),
        linear_general(params["value"], inputs_q),
    )
    product = jnp.einsum("ijkl,klm->ijm", out, params["out"]["kernel"])
    return product + params["out"]["bias"]


def linear(params, inputs):
    """Args: params: {"bias": f32[_], "kernel": f32[_,_]}; inputs: f32[2,6,_].  Returns: f32[2,6,_]."""
    return inputs @ params["kernel"] + params["bias"]


def forward(params, x):
    """Args: params: a dict of 16 arrays; x: f32[2,6,8].  Returns: f32[2,6,8]."""
    x = x + multi_head_attention(params["attention"], layer_norm(params["norm1"], x))
    y = linear(params["up"], layer_norm(params["norm2"], x))
    hidden = jax.nn.gelu(y)
    return x + linear(params["down"], hidden)
