"""Operations with state: running statistics, random numbers, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from untrace.torch import randomness
from untrace.torch.ops import parts


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch
    from torch.nn import functional as F

    return [
        (F.batch_norm, batch_norm, {"tensors": True, "needs_env": True}),
        (F.dropout, dropout, {"needs_env": True}),
        (F.dropout2d, dropout2d, {"needs_env": True}),
        (torch.dropout, _plain_dropout, {"needs_env": True}),
        (torch.lstm, lstm, {"needs_env": True}),
        (torch.gru, gru, {"needs_env": True}),
        (torch.rnn_tanh, lambda *a, **k: rnn(jnp.tanh, *a, **k), {"needs_env": True}),
        (torch.rnn_relu, lambda *a, **k: rnn(jax.nn.relu, *a, **k), {"needs_env": True}),
    ]


# ---------------------------------------------------------------- batch norm


def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, *, env: Any,
) -> Any:  # fmt: skip
    """New running statistics take the place of the old ones in the tensors that hold them."""
    x, old_mean, old_var, scale, shift = [
        None if t is None else env.t2j_iso(t) for t in (input, running_mean, running_var, weight, bias)
    ]
    out, mean, var = parts.batch_norm(x, old_mean, old_var, scale, shift, training, momentum, eps)
    if training and running_mean is not None:
        running_mean.apply_jax_(lambda _: mean)
        running_var.apply_jax_(lambda _: var)
    return env.j2t_iso(out)


# ---------------------------------------------------------------- dropout


def dropped(x: Any, p: float, env: Any, shape: Any = None) -> Any:
    """`x` with a share of `p` zeroed, the rest scaled up."""
    if p == 1:
        return jnp.zeros_like(x)
    keep = jax.random.bernoulli(env.get_and_rotate_prng_key(), 1 - p, x.shape if shape is None else shape)
    randomness.note_mask(keep)
    return jnp.where(keep, x / (1 - p), 0)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, env: Any) -> Any:
    return dropped(input, p, env) if training and p > 0 else input


def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, env: Any) -> Any:
    if not training or p == 0:
        return input
    return dropped(input, p, env, (*input.shape[:2], *[1] * (input.ndim - 2)))


def _plain_dropout(input: Any, p: float, train: bool, *, env: Any) -> Any:
    return dropped(input, p, env) if train and p > 0 else input


# ---------------------------------------------------------------- recurrent layers


def _layers(
    run: Callable[..., Any], input: Any, states: tuple[Any, ...], weights: Any, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool, env: Any,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """`run(xs, *states, w_ih, w_hh, b_ih, b_hh, reverse) -> (hs, *states)` for each layer and each way."""
    x = input.swapaxes(0, 1) if batch_first and input.ndim == 3 else input
    per = 4 if has_biases else 2
    ways = 2 if bidirectional else 1
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            given = [*weights[at * per : at * per + per], *[None] * (4 - per)]
            hs, *final = run(x, *[s[at] for s in states], *given, way == 1)
            outputs.append(hs)
            for found, value in zip(last, final, strict=True):
                found.append(value)
        x = outputs[0] if ways == 1 else jnp.concatenate(outputs, axis=-1)
        if dropout and train and layer < num_layers - 1:
            x = dropped(x, dropout, env)
    if batch_first and input.ndim == 3:
        x = x.swapaxes(0, 1)
    return x, tuple(jnp.stack(values) for values in last)


def lstm(
    input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool, *, env: Any,
) -> Any:  # fmt: skip
    run, states = parts.lstm_layer, tuple(hx)
    out, (h, c) = _layers(
        run, input, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, env
    )
    return out, h, c


def gru(
    input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool, *, env: Any,
) -> Any:  # fmt: skip
    run = parts.gru_layer
    out, (h,) = _layers(
        run, input, (hx,), params, has_biases, num_layers, dropout, train, bidirectional, batch_first, env
    )
    return out, h


def rnn(
    activation: Callable[[Any], Any], input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, *, env: Any,
) -> Any:  # fmt: skip
    def run(*given: Any) -> Any:
        return parts.rnn_layer(*given, activation)

    out, (h,) = _layers(
        run, input, (hx,), params, has_biases, num_layers, dropout, train, bidirectional, batch_first, env
    )
    return out, h
