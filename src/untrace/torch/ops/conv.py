"""Convolution, pooling and interpolation of `torch.nn.functional`, channels first as PyTorch has them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace.torch.bridge import lacks
from untrace.torch.ops import parts as ops_parts


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch
    from torch.nn import functional as F

    own = [
        (F.conv1d, lambda *a, **k: conv(1, *a, **k)), (F.conv2d, lambda *a, **k: conv(2, *a, **k)),
        (F.conv3d, lambda *a, **k: conv(3, *a, **k)), (torch.conv1d, lambda *a, **k: conv(1, *a, **k)),
        (torch.conv2d, lambda *a, **k: conv(2, *a, **k)),
        (F.conv_transpose1d, lambda *a, **k: conv_transpose(1, *a, **k)),
        (F.conv_transpose2d, lambda *a, **k: conv_transpose(2, *a, **k)),
        (F.conv_transpose3d, lambda *a, **k: conv_transpose(3, *a, **k)),
        (F.max_pool1d, lambda *a, **k: max_pool(1, *a, **k)), (F.max_pool2d, lambda *a, **k: max_pool(2, *a, **k)),
        (F.max_pool3d, lambda *a, **k: max_pool(3, *a, **k)), (F.avg_pool3d, lambda *a, **k: avg_pool(3, *a, **k)),
        (F.avg_pool2d, lambda *a, **k: avg_pool(2, *a, **k)), (F.avg_pool1d, lambda *a, **k: avg_pool(1, *a, **k)),
        (F.interpolate, interpolate),
    ]  # fmt: skip
    for rank in (1, 2, 3):
        own.append((getattr(F, f"max_unpool{rank}d"), functools.partial(max_unpool, rank)))
        own.append((getattr(F, f"max_pool{rank}d_with_indices"), functools.partial(max_pool_with_indices, rank)))
        for kind, reduce in (("avg", jnp.mean), ("max", jnp.max)):
            function = getattr(F, f"adaptive_{kind}_pool{rank}d")
            own.append((function, functools.partial(adaptive_pool, rank, reduce)))
    return [(f, i, {}) for f, i in own]


def _several(value: Any, count: int) -> tuple[int, ...]:
    if isinstance(value, (tuple, list)):
        return tuple(value) * (count if len(value) == 1 else 1)
    return (value,) * count


_LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def _batched(input: Any, rank: int) -> tuple[Any, bool]:
    return (input[None], True) if input.ndim == rank + 1 else (input, False)


def conv(
    rank: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    x, single = _batched(input, rank)
    if isinstance(padding, str):
        pads: Any = padding.upper()
    else:
        pads = [(p, p) for p in _several(padding, rank)]
    out = lax.conv_general_dilated(
        x, weight, _several(stride, rank), pads, rhs_dilation=_several(dilation, rank),
        dimension_numbers=_LAYOUTS[rank], feature_group_count=groups,
    )  # fmt: skip
    if bias is not None:
        out = out + bias[(slice(None), *[None] * rank)]
    return out[0] if single else out


def conv_transpose(
    rank: int, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """The gradient of a convolution with respect to its input, as PyTorch defines it."""
    x, single = _batched(input, rank)
    strides, dilations = _several(stride, rank), _several(dilation, rank)
    pads = []
    for k, p, d, extra in zip(
        weight.shape[2:], _several(padding, rank), dilations, _several(output_padding, rank), strict=True
    ):
        reach = d * (k - 1)
        pads.append((reach - p, reach - p + extra))
    axes = tuple(range(2, 2 + rank))
    flipped = jnp.flip(weight, axes)
    if groups == 1:
        kernel = flipped.swapaxes(0, 1)
    else:  # the outputs of one group after those of another
        parts = flipped.reshape(groups, -1, *flipped.shape[1:]).swapaxes(1, 2)
        kernel = parts.reshape(-1, *parts.shape[2:])
    out = lax.conv_general_dilated(
        x, kernel, (1,) * rank, pads, lhs_dilation=strides, rhs_dilation=dilations, dimension_numbers=_LAYOUTS[rank],
        feature_group_count=groups,
    )  # fmt: skip
    if bias is not None:
        out = out + bias[(slice(None), *[None] * rank)]
    return out[0] if single else out


def _windows(
    rank: int, input: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, dilation: Any = 1
) -> tuple[Any, Any, Any]:
    sizes = _several(kernel_size, rank)
    strides = sizes if stride is None or stride == [] else _several(stride, rank)
    lead = input.ndim - rank
    pads = []
    reaches = [d * (k - 1) + 1 for k, d in zip(sizes, _several(dilation, rank), strict=True)]
    for n, k, s, p in zip(input.shape[lead:], reaches, strides, _several(padding, rank), strict=True):
        more = 0
        if ceil_mode and (n + 2 * p - k) % s:
            more = s - (n + 2 * p - k) % s
            if (
                n + 2 * p - k
            ) // s * s + s >= n + p:  # PyTorch: a window must start inside the input or its left padding
                more = 0
        pads.append((p, p + more))
    none = (1,) * lead
    return (*none, *sizes), (*none, *strides), [(0, 0)] * lead + pads


def max_pool(
    rank: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    if return_indices:
        return max_pool_with_indices(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    sizes, strides, pads = _windows(rank, input, kernel_size, stride, padding, ceil_mode, dilation)
    least = -np.inf if jnp.issubdtype(input.dtype, jnp.floating) else jnp.iinfo(input.dtype).min
    # A NumPy scalar: JAX differentiates a maximum over windows only where it sees the start value.
    apart = (1,) * (input.ndim - rank) + _several(dilation, rank)
    pool = ops_parts.POOLINGS["max", rank]
    return pool(input, np.array(least, input.dtype), lax.max, sizes, strides, pads, apart, None)


def max_pool_with_indices(
    rank: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """The largest value of each window, and its place among all of a channel."""
    sizes, strides, pads = _windows(rank, input, kernel_size, stride, padding, ceil_mode, dilation)
    lead = input.ndim - rank
    x = jnp.pad(input, pads, constant_values=-jnp.inf) if any(map(any, pads)) else input
    places: list[Any] = []
    number: Any = None
    for axis, apart in zip(range(lead, input.ndim), _several(dilation, rank), strict=True):
        count = (x.shape[axis] - apart * (sizes[axis] - 1) - 1) // strides[axis] + 1
        starts, inside = jnp.arange(count) * strides[axis], jnp.arange(sizes[axis])
        taken = starts[:, None] + (inside if apart == 1 else apart * inside)  # [window, place in it]
        # Axes of the windows first, those inside a window behind them.
        before, behind = axis - lead, input.ndim - 1 - axis
        taken = taken[(*[None] * before, slice(None), *[None] * (behind + before), slice(None), *[None] * behind)]
        places.append(taken)
        own = taken - pads[axis][0] if pads[axis][0] else taken
        number = own if number is None else number * input.shape[axis] + own
    windows = x[(..., *places)]
    windows = windows.reshape(*windows.shape[:-rank], -1)
    numbers = number.reshape(*number.shape[:rank], -1)
    best = jnp.argmax(windows, axis=-1, keepdims=True)
    values = jnp.take_along_axis(windows, best, axis=-1)
    return values[..., 0], jnp.take_along_axis(jnp.broadcast_to(numbers, windows.shape), best, axis=-1)[..., 0]


def max_unpool(
    rank: int, input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Any:
    """Each value back at the place that its pooling took it from; zeros elsewhere."""
    sizes = _several(kernel_size, rank)
    strides = sizes if stride is None or stride == [] else _several(stride, rank)
    lead = input.ndim - rank
    shape = [
        (n - 1) * s - 2 * p + k
        for n, s, p, k in zip(input.shape[lead:], strides, _several(padding, rank), sizes, strict=True)
    ]
    if output_size is not None:
        shape = list(output_size)[-rank:]
    values, places = (x.reshape(*x.shape[:lead], -1) for x in (input, indices))
    out = jnp.zeros((*input.shape[:lead], math.prod(shape)), input.dtype)
    return jnp.put_along_axis(out, places, values, axis=-1, inplace=False).reshape(*input.shape[:lead], *shape)


def avg_pool(
    rank: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Any:  # fmt: skip
    sizes, strides, pads = _windows(rank, input, kernel_size, stride, padding, ceil_mode)
    zero = np.zeros((), input.dtype)
    even = all(a == b for a, b in pads)
    count = math.prod(sizes) if even and (count_include_pad or not any(p for pair in pads for p in pair)) else None
    if divisor_override is not None:
        count = divisor_override
    total = ops_parts.POOLINGS["avg", rank](input, zero, lax.add, sizes, strides, pads, None, count)
    if count is not None:
        return total
    ones = jnp.ones_like(input)
    if count_include_pad:  # the padding counts, and what ceil_mode puts behind it does not
        inner = [(0, 0)] * (input.ndim - rank) + [(p, p) for p in _several(padding, rank)]
        ones = jnp.pad(ones, inner, constant_values=1)
        pads = [(a - p, b - p) for (a, b), (p, _) in zip(pads, inner, strict=True)]
    return total / lax.reduce_window(ones, zero, lax.add, sizes, strides, pads)


def adaptive_pool(
    rank: int, reduce: Callable[..., Any], input: Any, output_size: Any, return_indices: bool = False
) -> Any:
    """Windows that cover each axis, of sizes that differ by one where it has to be."""
    if return_indices:
        raise lacks(f"torch.nn.functional.adaptive_max_pool{rank}d", "with return_indices=True")
    space = input.shape[-rank:]
    sizes = [n if s is None else s for n, s in zip(space, _several(output_size, rank), strict=True)]
    if sizes == [1] * rank:
        return reduce(input, axis=-1 if rank == 1 else tuple(range(-rank, 0)), keepdims=True)
    if all(n % s == 0 for n, s in zip(space, sizes, strict=True)):
        windows = [k for n, s in zip(space, sizes, strict=True) for k in (s, n // s)]
        parts = input.reshape(*input.shape[:-rank], *windows)
        return reduce(parts, axis=tuple(range(1 - 2 * rank, 0, 2)))
    for axis, n, s in zip(range(-rank, 0), space, sizes, strict=True):
        ends = [(i * n // s, -(-(i + 1) * n // s)) for i in range(s)]
        chosen = [lax.slice_in_dim(input, a, b, axis=axis) for a, b in ends]
        input = jnp.concatenate([reduce(part, axis=axis, keepdims=True) for part in chosen], axis=axis)
    return input


def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None, antialias: bool = False,
) -> Any:  # fmt: skip
    rank = input.ndim - 2
    if size is None:
        factors = _several(scale_factor, rank)
        sizes = tuple(int(n * f) for n, f in zip(input.shape[2:], factors, strict=True))
    else:
        sizes = _several(size, rank)
    if mode == "nearest":
        out = input
        for axis, (n, s) in enumerate(zip(input.shape[2:], sizes, strict=True), 2):
            if s % n == 0:
                out = jnp.repeat(out, s // n, axis=axis) if s != n else out
            else:
                out = jnp.take(out, jnp.arange(s) * n // s, axis=axis)
        return out
    kinds = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
    if mode not in kinds or antialias:
        how = f"with mode={mode!r}" + (" and antialias=True" if antialias else "")
        raise lacks("torch.nn.functional.interpolate", how)
    grows = all(s >= n for n, s in zip(input.shape[2:], sizes, strict=True))
    if kinds[mode] == "linear" and not align_corners and grows:
        return jax.image.resize(input, (*input.shape[:2], *sizes), "linear")
    out = input
    given = _several(scale_factor, rank) if scale_factor is not None and not recompute_scale_factor else (None,) * rank
    for axis, (new, factor) in enumerate(zip(sizes, given, strict=True), 2):
        out = _resampled(out, axis, new, kinds[mode], bool(align_corners), factor)
    return out


def _resampled(x: Any, axis: int, new: int, kind: str, align_corners: bool, factor: Any) -> Any:
    """One axis at other places, between its elements; what lies outside is the edge's.

    Source: the formulas of the documentation of torch.nn.functional.interpolate; a = -0.75 in the cubic kernel.
    """
    old = x.shape[axis]
    places = np.arange(new, dtype=np.float64)
    if align_corners:
        places = places * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        places = (places + 0.5) * (old / new if factor is None else 1 / factor) - 0.5
        places = np.maximum(places, 0.0) if kind == "linear" else places
    first = np.floor(places).astype(int)
    t = places - first
    if kind == "linear":
        taps = {0: 1 - t, 1: t}
    else:
        a = -0.75
        taps = {k: _cubic(np.abs(t - k), a) for k in (-1, 0, 1, 2)}
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    return sum(
        jnp.take(x, np.clip(first + k, 0, old - 1), axis=axis) * w.astype(np.float32).reshape(shape).astype(x.dtype)
        for k, w in taps.items()
    )


def _cubic(d: Any, a: float) -> Any:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
