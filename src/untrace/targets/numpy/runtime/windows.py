"""Sliding windows and convolutions."""

from __future__ import annotations

import numpy as np

from untrace.print.jax.runtime import helper


@helper("np", last="_windows")
def _windows(x, sizes, strides, padding, value):
    """The windows of an array, along axes after its own."""
    padded = np.pad(x, padding, constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, sizes)
    return windows[tuple(slice(None, None, stride) for stride in strides)]


@helper("np", last="_convolved")
def _convolved(x, w, strides, padding, spread, dilation, specs, groups):
    """A convolution. specs: which axes are batch or output, features, and space, of both arrays and of the result."""
    x, w = np.transpose(x, specs[0]), np.transpose(w, specs[1])
    space = x.shape[2:]
    wide = np.zeros((*x.shape[:2], *[(n - 1) * s + 1 for n, s in zip(space, spread, strict=True)]), x.dtype)
    wide[(..., *[slice(None, None, s) for s in spread])] = x
    cut = [slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(wide.shape[2:], padding, strict=True)]
    wide = np.pad(wide[(..., *cut)], [(0, 0), (0, 0), *[(max(a, 0), max(b, 0)) for a, b in padding]])
    sizes = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], dilation, strict=True)]
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(wide, sizes, axes)
    windows = windows[(slice(None), slice(None), *[slice(None, None, s) for s in strides])]
    windows = windows[(..., *[slice(None, None, d) for d in dilation])]
    parts = []
    for inputs, kernel in zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True):
        part = np.tensordot(inputs, kernel, ([1, *range(x.ndim, 2 * x.ndim - 2)], [1, *axes]))
        parts.append(np.moveaxis(part, -1, 1))
    return np.transpose(np.concatenate(parts, 1), np.argsort(specs[2]))
