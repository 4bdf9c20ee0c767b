"""Attention of `torch.nn.functional`: of heads that are there, and PyTorch's own layer with its projections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from untrace.torch.bridge import lacks
from untrace.torch.ops import parts, state


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    from torch.nn import functional as F

    return [
        (F.scaled_dot_product_attention, scaled_dot_product_attention, {"needs_env": True}),
        (F.multi_head_attention_forward, multi_head_attention_forward, {"needs_env": True}),
    ]


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False, *, env: Any,
) -> Any:  # fmt: skip
    """Source: the reference code in the documentation of torch.nn.functional.scaled_dot_product_attention."""
    if enable_gqa:
        key = jnp.repeat(key, query.shape[-3] // key.shape[-3], axis=-3)
        value = jnp.repeat(value, query.shape[-3] // value.shape[-3], axis=-3)
    scores = query @ key.swapaxes(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        length, width = scores.shape[-2:]
        mask = jnp.arange(length)[:, None] >= jnp.arange(width)
        scores = jnp.where(mask, scores, -jnp.inf)
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    weights = jax.nn.softmax(scores, axis=-1)
    return _dropped(weights, dropout_p, env) @ value


def _dropped(weights: Any, p: float, env: Any) -> Any:
    return state.dropped(weights, p, env) if p > 0 else weights


def multi_head_attention_forward(
    query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any, in_proj_bias: Any,
    bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any, out_proj_bias: Any,
    training: bool = True, key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Any = None, k_proj_weight: Any = None,
    v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None, average_attn_weights: bool = True,
    is_causal: bool = False, *, env: Any,
) -> Any:  # fmt: skip
    """Masks that are bool are True where nothing is to be seen; all others are added to the scores.

    Source: torch.nn.functional.multi_head_attention_forward; lengths come first, then the batch.
    """
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None or static_v is not None:
        raise lacks("torch.nn.functional.multi_head_attention_forward", "with bias_k, add_zero_attn or static keys")
    single = query.ndim == 2
    if single:
        query, key, value = query[:, None], key[:, None], value[:, None]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    if is_causal and attn_mask is None:
        raise lacks("torch.nn.functional.multi_head_attention_forward", "with is_causal but without attn_mask")
    if attn_mask is not None and attn_mask.ndim == 3:  # one for each head of each element of the batch
        attn_mask = attn_mask.reshape(query.shape[1], num_heads, *attn_mask.shape[1:])
    weight = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight
    out, weights = parts.multi_head_attention(
        query, key, value, num_heads, weight, in_proj_bias, attn_mask, key_padding_mask,
        lambda x: _dropped(x, dropout_p if training else 0.0, env), out_proj_weight, out_proj_bias,
    )  # fmt: skip
    if need_weights and average_attn_weights:
        weights = jnp.mean(weights, axis=1)
    if single:
        out, weights = out[:, 0], weights[0]
    return out, weights if need_weights else None
