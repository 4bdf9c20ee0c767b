"""Convolution, pooling and interpolation of `torch.nn.functional`, channels first as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


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
        (F.max_pool1d, lambda *a, **k: max_pool(1, *a, **k)), (F.max_pool2d, lambda *a, **k: max_pool(2, *a, **k)),
        (F.avg_pool2d, lambda *a, **k: avg_pool(2, *a, **k)), (F.avg_pool1d, lambda *a, **k: avg_pool(1, *a, **k)),
        (F.adaptive_avg_pool2d, adaptive_avg_pool2d), (F.interpolate, interpolate),
    ]  # fmt: skip
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
    if groups != 1:
        raise NotImplementedError("a transposed convolution in groups has no JAX form here yet")
    x, single = _batched(input, rank)
    strides, dilations = _several(stride, rank), _several(dilation, rank)
    pads = []
    for k, p, d, extra in zip(
        weight.shape[2:], _several(padding, rank), dilations, _several(output_padding, rank), strict=True
    ):
        reach = d * (k - 1)
        pads.append((reach - p, reach - p + extra))
    axes = tuple(range(2, 2 + rank))
    flipped = jnp.flip(weight, axes).swapaxes(0, 1)
    out = lax.conv_general_dilated(
        x, flipped, (1,) * rank, pads, lhs_dilation=strides, rhs_dilation=dilations, dimension_numbers=_LAYOUTS[rank]
    )
    if bias is not None:
        out = out + bias[(slice(None), *[None] * rank)]
    return out[0] if single else out


def _windows(
    rank: int, input: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[Any, Any, Any]:
    sizes = _several(kernel_size, rank)
    strides = sizes if stride is None or stride == [] else _several(stride, rank)
    lead = input.ndim - rank
    pads = []
    for n, k, s, p in zip(input.shape[lead:], sizes, strides, _several(padding, rank), strict=True):
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
    if return_indices or _several(dilation, rank) != (1,) * rank:
        raise NotImplementedError("max pooling with indices or dilation has no JAX form here yet")
    sizes, strides, pads = _windows(rank, input, kernel_size, stride, padding, ceil_mode)
    least = -np.inf if jnp.issubdtype(input.dtype, jnp.floating) else jnp.iinfo(input.dtype).min
    # A NumPy scalar: JAX differentiates a maximum over windows only where it sees the start value.
    return lax.reduce_window(input, np.array(least, input.dtype), lax.max, sizes, strides, pads)


def avg_pool(
    rank: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Any:  # fmt: skip
    if ceil_mode:
        raise NotImplementedError("average pooling with ceil_mode has no JAX form here yet")
    sizes, strides, pads = _windows(rank, input, kernel_size, stride, padding, False)
    zero = np.zeros((), input.dtype)
    total = lax.reduce_window(input, zero, lax.add, sizes, strides, pads)
    if divisor_override is not None:
        return total / divisor_override
    if count_include_pad or not any(p for pair in pads for p in pair):
        count = 1
        for size in sizes:
            count *= size
        return total / count
    return total / lax.reduce_window(jnp.ones_like(input), zero, lax.add, sizes, strides, pads)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    sizes = [n if s is None else s for n, s in zip(input.shape[-2:], _several(output_size, 2), strict=True)]
    if sizes == [1, 1]:
        return jnp.mean(input, axis=(-2, -1), keepdims=True)
    rows, columns = [
        [(i * n // s, -(-(i + 1) * n // s)) for i in range(s)] for n, s in zip(input.shape[-2:], sizes, strict=True)
    ]
    means = [[jnp.mean(input[..., a:b, c:d], axis=(-2, -1)) for c, d in columns] for a, b in rows]
    return jnp.stack([jnp.stack(row, axis=-1) for row in means], axis=-2)


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
    if (
        mode in ("bilinear", "linear")
        and not align_corners
        and all(s >= n for n, s in zip(input.shape[2:], sizes, strict=True))
    ):
        return jax.image.resize(input, (*input.shape[:2], *sizes), "linear")
    raise NotImplementedError(f"interpolate(mode={mode!r}, align_corners={align_corners}) has no JAX form here yet")
