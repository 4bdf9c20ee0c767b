"""Reductions by index and by segment, and the short-time Fourier transform, which cuts a signal into frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace.torch.bridge import lacks


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch

    aten = torch.ops.aten
    own: list[tuple[Any, Callable[..., Any]]] = [
        (torch.stft, stft), (torch.Tensor.stft, stft), (torch.istft, istft), (torch.Tensor.istft, istft),
        (aten.index_reduce.default, index_reduce), (aten.segment_reduce.default, segment_reduce),
        (torch.segment_reduce, segment_reduce),
    ]  # fmt: skip
    return [(f, i, {}) for f, i in own]


_NEUTRAL = {"prod": 1.0, "mean": 0.0, "amax": -np.inf, "amin": np.inf}


def index_reduce(
    self: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:  # fmt: skip
    """Source: torch.Tensor.index_reduce_'s documentation."""
    x, values = jnp.moveaxis(self, dim, 0), jnp.moveaxis(source, dim, 0)
    if not include_self:
        x = x.at[index].set(_NEUTRAL[reduce])
    if reduce == "mean":
        count = jnp.zeros(x.shape[0], x.dtype).at[index].add(1)
        count = count + 1 if include_self else jnp.maximum(count, 1)
        x = x.at[index].add(values) / count.reshape(-1, *[1] * (x.ndim - 1))
    elif reduce == "prod":
        x = _multiplied(x, index, values)
    else:
        x = x.at[index].max(values) if reduce == "amax" else x.at[index].min(values)
    return jnp.moveaxis(x, 0, dim)


def _multiplied(x: Any, index: Any, values: Any) -> Any:
    """One after the other: JAX has no derivative of a product at equal indices."""

    def step(x: Any, item: Any) -> Any:
        i, value = item
        return x.at[i].set(x[i] * value), None

    return lax.scan(step, x, (index, values))[0]


def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    """Segments that follow each other along the first axis. Source: torch.segment_reduce."""
    if offsets is not None and lengths is None:
        lengths = jnp.diff(offsets)
    if lengths is None or lengths.ndim != 1 or axis != 0:
        raise lacks("torch.segment_reduce", "but for lengths or offsets along the first axis")
    count = lengths.shape[0]
    numbers = jnp.repeat(jnp.arange(count), lengths, total_repeat_length=data.shape[0])
    if reduce in ("sum", "mean"):
        total = jax.ops.segment_sum(data, numbers, count)
        total = total if initial is None else total + initial
        if reduce == "sum":
            return total
        size = lengths.reshape(-1, *[1] * (data.ndim - 1))
        return jnp.where(size > 0, total / jnp.maximum(size, 1), jnp.nan if initial is None else initial)
    if reduce == "prod":
        found = _multiplied(jnp.ones((count, *data.shape[1:]), data.dtype), numbers, data)
        return found if initial is None else found * initial
    found = (jax.ops.segment_max if reduce == "max" else jax.ops.segment_min)(data, numbers, count)
    return found if initial is None else (jnp.maximum if reduce == "max" else jnp.minimum)(found, initial)


def _window(window: Any, win_length: Any, n_fft: int, dtype: Any) -> Any:
    """The window with zeros on both sides, where it is shorter than a frame."""
    size = n_fft if win_length is None else win_length
    window = jnp.ones(size, dtype) if window is None else window
    before = (n_fft - size) // 2
    return jnp.pad(window, (before, n_fft - size - before)) if size < n_fft else window


def stft(
    input: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    pad_mode: str = "reflect", normalized: bool = False, onesided: Any = None, return_complex: Any = None,
    align_to_window: Any = None,
) -> Any:  # fmt: skip
    """[..., frequency, frame]. Source: torch.stft's documentation."""
    hop = n_fft // 4 if hop_length is None else hop_length
    if center:
        modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
        pads = [(0, 0)] * (input.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        input = jnp.pad(input, pads, mode=modes[pad_mode])
    starts = jnp.arange(0, input.shape[-1] - n_fft + 1, hop)
    frames = input[..., starts[:, None] + jnp.arange(n_fft)] * _window(window, win_length, n_fft, input.dtype)
    whole = jnp.iscomplexobj(frames) if onesided is None else not onesided
    spectrum = (jnp.fft.fft if whole else jnp.fft.rfft)(frames)
    if normalized:
        spectrum = spectrum / math.sqrt(n_fft)
    spectrum = spectrum.swapaxes(-2, -1)
    return spectrum if return_complex else jnp.stack([spectrum.real, spectrum.imag], axis=-1)


def istft(
    input: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    normalized: bool = False, onesided: Any = None, length: Any = None, return_complex: bool = False,
) -> Any:  # fmt: skip
    """The frames added where they overlap, by the squares of their windows. Source: torch.istft's documentation."""
    if return_complex or onesided is False:
        raise lacks("torch.istft", "of complex signals")
    hop = n_fft // 4 if hop_length is None else hop_length
    frames = jnp.fft.irfft(input.swapaxes(-2, -1), n_fft)
    if normalized:
        frames = frames * math.sqrt(n_fft)
    window = _window(window, win_length, n_fft, frames.dtype)
    count = frames.shape[-2]
    places = jnp.arange(count)[:, None] * hop + jnp.arange(n_fft)
    size = n_fft + hop * (count - 1)
    signal = jnp.zeros((*frames.shape[:-2], size), frames.dtype).at[..., places].add(frames * window)
    weight = jnp.zeros(size, frames.dtype).at[places].add(jnp.broadcast_to(window**2, places.shape))
    start = n_fft // 2 if center else 0
    stop = start + length if length is not None else size - start
    found = signal[..., start:stop] / weight[start:stop]
    more = 0 if length is None else length - found.shape[-1]
    return jnp.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, more)]) if more > 0 else found
