"""`apply` (module.py:2091).

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


def dense_general(params, inputs):
    """Args: params: {"bias": f32[2,4], "kernel": f32[8,2,4]}; inputs: f32[2,6,8].
    Returns: f32[2,6,2,4].
    """
    return jnp.einsum("ijk,klm->ijlm", inputs, params["kernel"]) + params["bias"]


def multi_head_dot_product_attention(params, inputs_q):
    """Args: params: {"key": {...}, "out": {...}, "query": {...}, "value": {...}};
    inputs_q: f32[2,6,8].
    Returns: f32[2,6,8].
    """
    query = dense_general(params["query"], inputs_q) / 2.0
    attn_weights = jnp.einsum(
        "...qhd,...khd->...hqk", query, dense_general(params["key"], inputs_q)
    )
    x = jnp.einsum(
        "...hqk,...khd->...qhd",
        jax.nn.softmax(attn_weights),
        dense_general(params["value"], inputs_q),
    )
    out = jnp.einsum("ijkl,klm->ijm", x, params["out"]["kernel"])
    return out + params["out"]["bias"]


def dense(params, inputs):
    """Args: params: {"bias": f32[_], "kernel": f32[_,_]}; inputs: f32[2,6,_].  Returns: f32[2,6,_]."""
    return inputs @ params["kernel"] + params["bias"]


def mlp(params, x):
    """Args: params: {"Dense_0": {...}, "Dense_1": {...}}; x: f32[2,6,8].  Returns: f32[2,6,8]."""
    hidden = jax.nn.gelu(dense(params["Dense_0"], x))
    return dense(params["Dense_1"], hidden)


def apply(
    variables,
    *args,
    rngs=None,
    method=None,
    mutable=False,
    capture_intermediates=False,
    **kwargs,
):
    """Args: variables: {"params": {...}}; args[0]: f32[2,6,8].  Returns: f32[2,6,8]."""
    if len(args) != 1:
        raise TypeError("this was traced with 1 arguments in *args")
    if kwargs:
        raise TypeError("this was traced with these names in **kwargs: none")
    for argument, given, traced in (
        ("rngs", rngs, None),
        ("method", method, None),
        ("mutable", mutable, False),
        ("capture_intermediates", capture_intermediates, False),
    ):
        if type(given) is not type(traced) or given != traced:
            raise ValueError(f"{argument!r} was {traced!r} when this was traced, and cannot be anything else")
    x = args[0]
    y = layer_norm(variables["params"]["LayerNorm_0"], x)
    attended = multi_head_dot_product_attention(
        variables["params"]["MultiHeadDotProductAttention_0"], y
    )
    x_2 = x + attended
    y_2 = layer_norm(variables["params"]["LayerNorm_1"], x_2)
    return x_2 + mlp(variables["params"]["MLP_0"], y_2)
