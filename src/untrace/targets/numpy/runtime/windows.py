"""Sliding windows and convolutions."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper
from untrace.targets.numpy.runtime.indexing import _padded


@helper("np", needs=("_padded",), last="_windows")
def _windows(x, sizes, strides, padding, value, spread=None, dilation=None):
    """The windows of an array with `value` around it, along axes after its own."""
    gaps = [s - 1 for s in spread or [1] * x.ndim]
    padded = _padded(x, value, [(*p, gap) for p, gap in zip(padding, gaps, strict=True)])
    dilation = dilation or [1] * x.ndim
    spans = [(n - 1) * d + 1 for n, d in zip(sizes, dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans)
    return windows[tuple(slice(None, None, step) for step in (*strides, *dilation))]


@helper("np", last="_chosen")
def _chosen(x, sizes, strides, padding, count, is_better, worst):
    """Which element of each window is chosen, by its number; the index of that element of all windows, for each number.

    One after the other takes the place of one that is not better, the first that of the worst, whose number is -1.
    """
    padded = np.pad(x, padding, constant_values=worst)
    places = [tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(corner, count, strides, strict=True))
              for corner in np.ndindex(*sizes)]  # fmt: skip
    found, best = np.full(count, -1), np.full(count, worst, x.dtype)
    for number, place in enumerate(places):
        new = ~is_better(best, padded[place])
        found, best = np.where(new, number, found), np.where(new, padded[place], best)
    return found, places


@helper("np", needs=("_chosen",), last="_added_to_chosen")
def _added_to_chosen(values, x, sizes, strides, padding, is_better, worst):
    """Zeros like an array, with each value added to the element that is chosen in its window."""
    found, places = _chosen(x, sizes, strides, padding, values.shape, is_better, worst)
    total = np.pad(np.zeros(x.shape, values.dtype), padding)
    for number, place in enumerate(places):
        total[place] += np.where(np.maximum(found, 0) == number, values, 0).astype(values.dtype)
    return total[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, padding, strict=True))]


@helper("np", needs=("_chosen",), last="_taken_of_chosen")
def _taken_of_chosen(values, x, sizes, strides, padding, count, is_better, worst):
    """Of each window the value at the element that is chosen in it."""
    found, places = _chosen(x, sizes, strides, padding, count, is_better, worst)
    padded, total = np.pad(values, padding), np.zeros(count, values.dtype)
    for number, place in enumerate(places):
        total = np.where(found == number, padded[place], total)
    return total


@helper("np", last="_reduced")
def _reduced(function, arrays, starts, axes):
    """Arrays reduced together by a function of two numbers (or of two of each), one element after the other."""
    rows = [np.moveaxis(x, axes, range(len(axes))) for x in arrays]
    found = [np.full(x.shape[len(axes) :], start, x.dtype) for x, start in zip(rows, starts, strict=True)]
    for place in np.ndindex(rows[0].shape[: len(axes)]):
        new = function(*found, *[x[place] for x in rows])
        found = new if len(rows) > 1 else [new]
    return tuple(found)


@helper("np", last="_convolved")
def _convolved(x, w, strides, padding, spread, dilation, specs, groups, batches=1):
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
    images = np.split(windows, batches) if batches > 1 else np.split(windows, groups, 1)
    for image, kernel in zip(images, np.split(w, groups * batches), strict=True):
        part = np.tensordot(image, kernel, ([1, *range(x.ndim, 2 * x.ndim - 2)], [1, *axes]))
        parts.append(np.moveaxis(part, -1, 1))
    return np.transpose(np.concatenate(parts, 1), np.argsort(specs[2]))
