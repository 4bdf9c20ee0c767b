"""Layers whose inside a reader sees: as one would write them in JAX, for the names here stand in the written module.

`part` makes a function of the written module of one call: a layer of a recurrent network, once for all of them.
"""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Callable
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

FILE = __file__


class Part:
    """Stands for a part of one of PyTorch's layers in the tree of module calls.

    repeated: whether it stands where it is used if that is one place only.
    """

    def __init__(self, function: Callable[..., Any], repeated: bool = False):
        self.function = function
        self.repeated = repeated
        self.about = (function.__doc__ or "").strip()


# What runs a part while a module is captured (`capture.within_part`); None: nobody asks which calls there are.
RUNNER: contextvars.ContextVar[Callable[[Part, Any, Any], Any] | None] = contextvars.ContextVar("RUNNER", default=None)


def part(function: Callable[..., Any], repeated: bool = False) -> Callable[..., Any]:
    """Decorator: each call is one in the tree of calls, so that calls with equal bodies share a written function."""
    made = Part(function, repeated)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = RUNNER.get()
        return function(*args, **kwargs) if run is None else run(made, args, kwargs)

    return call


INLINED: list[CodeType] = []
"""Functions whose statements stand in the module that calls them."""


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function is not one in the written module."""
    INLINED.append(function.__code__)
    return function


# ---------------------------------------------------------------- normalisation


def wide(x: Any) -> Any:
    """Half precision is summed in float32, as PyTorch does."""
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


@inlined
def scaled(x: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def scaled_channels(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Normed by the statistics of each channel, with one factor for each as in PyTorch's own kernel."""
    scale = lax.rsqrt(variance + eps)
    if weight is not None:
        scale = weight * scale
    out = (x - per_channel(mean, x.ndim - 2)) * per_channel(scale, x.ndim - 2)
    return out if bias is None else out + per_channel(bias, x.ndim - 2)


def layer_norm(input: Any, axis: Any, weight: Any, bias: Any, eps: float) -> Any:
    x = wide(input)
    mean = jnp.mean(x, axis=axis, keepdims=True)
    variance = jnp.var(x, axis=axis, keepdims=True)
    normed = (x - mean) * lax.rsqrt(variance + eps)
    return scaled(normed, weight, bias) if x is input else scaled(normed, weight, bias).astype(input.dtype)


def group_norm(input: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    batch, channels, *space = input.shape
    groups = wide(input).reshape(batch, num_groups, channels // num_groups, *space)
    axis = tuple(range(2, groups.ndim))
    mean = jnp.mean(groups, axis=axis, keepdims=True)
    variance = jnp.var(groups, axis=axis, keepdims=True)
    normed = ((groups - mean) * lax.rsqrt(variance + eps)).reshape(input.shape)
    return scaled(normed, per_channel(weight, len(space)), per_channel(bias, len(space))).astype(input.dtype)


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    axis = tuple(range(2, x.ndim))
    mean = jnp.mean(x, axis=axis, keepdims=True)
    variance = jnp.var(x, axis=axis, keepdims=True)
    normed = (x - mean) * lax.rsqrt(variance + eps)
    return scaled(normed, per_channel(weight, x.ndim - 2), per_channel(bias, x.ndim - 2))


def per_channel(x: Any, space: int) -> Any:
    """No sizes: the same text for every width."""
    return None if x is None else x[(slice(None), *[None] * space)]


def batch_norm(
    x: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    mean, variance = running_mean, running_var
    if training:
        axes = (0, *range(2, x.ndim))
        mean, variance = jnp.mean(x, axis=axes), jnp.var(x, axis=axes)
        if running_mean is not None:
            running_mean = (1 - momentum) * running_mean + momentum * mean
            running_var = (1 - momentum) * running_var + momentum * jnp.var(x, axis=axes, ddof=1)
    out = scaled_channels(x, mean, variance, weight, bias, eps)
    return out.astype(x.dtype), running_mean, running_var


# ---------------------------------------------------------------- roots


def _root(squares: Any) -> Any:
    """square root, whose gradient at zero is zero"""
    zero = squares == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)))


_root.__name__ = "root"
root = part(_root, repeated=True)


# ---------------------------------------------------------------- pooling


def _pooling(kind: str, rank: int) -> Callable[..., Any]:
    """`max_pool2d` and the like: long calls, which get a function of their own where there are several."""

    def pooled(
        x: Any, start: Any, combine: Any, sizes: Any, strides: Any, padding: Any, dilation: Any, count: Any
    ) -> Any:
        if count is None:  # no name for it: the caller's stands where the call does
            return lax.reduce_window(x, start, combine, sizes, strides, padding, window_dilation=dilation)
        return lax.reduce_window(x, start, combine, sizes, strides, padding) / count

    pooled.__name__ = f"{kind}_pool{rank}d"
    pooled.__doc__ = f"F.{pooled.__name__}"
    return part(pooled, repeated=True)


POOLINGS = {(kind, rank): _pooling(kind, rank) for kind in ("max", "avg") for rank in (1, 2, 3)}


# ---------------------------------------------------------------- attention


@inlined
def multi_head_attention(
    query: Any, key: Any, value: Any, num_heads: int, weight: Any, bias: Any, mask: Any, padding: Any,
    dropout: Callable[[Any], Any], out_weight: Any, out_bias: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Lengths come before the batch, as in PyTorch's layer. Masks of bool are True where nothing is to be seen."""
    if isinstance(weight, tuple):
        w_q, w_k, w_v = weight
    else:
        w_q, w_k, w_v = jnp.split(weight, 3)
    b_q = b_k = b_v = None
    if bias is not None:
        b_q, b_k, b_v = jnp.split(bias, 3)
    q = split_heads(_with_bias(query @ w_q.T, b_q), num_heads)
    k = split_heads(_with_bias(key @ w_k.T, b_k), num_heads)
    v = split_heads(_with_bias(value @ w_v.T, b_v), num_heads)
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, -jnp.inf, scores) if mask.dtype == bool else scores + mask
    if padding is not None:
        padding = padding[:, None, None, :]
        scores = jnp.where(padding, -jnp.inf, scores) if padding.dtype == bool else scores + padding
    weights = dropout(jax.nn.softmax(scores, axis=-1))
    joined = (weights @ v).transpose(2, 0, 1, 3).reshape(*query.shape[:2], -1)
    out = _with_bias(joined @ out_weight.T, out_bias)
    return out, weights


def split_heads(x: Any, num_heads: int) -> Any:
    """attention: [length, batch, dim] -> [batch, heads, length, dim of a head]"""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2, 0, 3)


# ---------------------------------------------------------------- recurrent layers


@part
def lstm_layer(
    xs: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any, reverse: bool
) -> Any:
    """LSTM, one layer"""

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        gates = _gates(x @ weight_ih.T, h @ weight_hh.T, bias_ih, bias_hh)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, c), hs = lax.scan(step, (h, c), xs, reverse=reverse)
    return hs, h, c


@part
def gru_layer(xs: Any, h: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any, reverse: bool) -> Any:
    """GRU, one layer"""

    def step(h: Any, x: Any) -> Any:
        r_x, z_x, n_x = jnp.split(_with_bias(x @ weight_ih.T, bias_ih), 3, axis=-1)
        r_h, z_h, n_h = jnp.split(_with_bias(h @ weight_hh.T, bias_hh), 3, axis=-1)
        z = jax.nn.sigmoid(z_x + z_h)
        n = jnp.tanh(n_x + jax.nn.sigmoid(r_x + r_h) * n_h)
        h = (1 - z) * n + z * h
        return h, h

    h, hs = lax.scan(step, h, xs, reverse=reverse)
    return hs, h


@part
def rnn_layer(
    xs: Any, h: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any, reverse: bool, activation: Any
) -> Any:
    """RNN, one layer"""

    def step(h: Any, x: Any) -> Any:
        h = activation(_gates(x @ weight_ih.T, h @ weight_hh.T, bias_ih, bias_hh))
        return h, h

    h, hs = lax.scan(step, h, xs, reverse=reverse)
    return hs, h


@inlined
def _gates(from_input: Any, from_state: Any, bias_ih: Any, bias_hh: Any) -> Any:
    return from_input + from_state if bias_ih is None else from_input + from_state + bias_ih + bias_hh


@inlined
def _with_bias(product: Any, bias: Any) -> Any:
    return product if bias is None else product + bias
