"""Sliding windows and convolutions."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

from untrace.python.helpers import helper
from untrace.targets.torch.runtime.indexing import _padded

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F


@helper("torch", needs=("_padded",), last="_windows", target="torch")
def _windows(x, sizes, strides, padding, value, spread=None, dilation=None):
    """The windows of a tensor with `value` around it, along axes after its own."""
    gaps = [s - 1 for s in spread or [1] * x.ndim]
    config = [(*p, gap) for p, gap in zip(padding, gaps, strict=True)]
    windows = _padded(x, torch.as_tensor(value, dtype=x.dtype), config)
    for axis, (size, step) in enumerate(zip(sizes, strides, strict=True)):
        gap = dilation[axis] if dilation else 1
        windows = windows.unfold(axis, (size - 1) * gap + 1, step)[..., ::gap]
    return windows


@helper("torch", "itertools", "math", needs=("_windows",), last="_chosen", target="torch")
def _chosen(x, sizes, strides, padding, is_better, worst):
    """(which element of each window is chosen, by its number in the padded tensor; the shape of that; whether one is).

    One after the other takes the place of one that is not better, the first that of the worst.
    """
    windows = _windows(x, sizes, strides, padding, worst)
    shape = [n + a + b for n, (a, b) in zip(x.shape, padding, strict=True)]
    numbers = _windows(torch.arange(math.prod(shape)).reshape(shape), sizes, strides, [(0, 0)] * x.ndim, 0)
    found, best = torch.full(windows.shape[: x.ndim], -1), torch.full(windows.shape[: x.ndim], worst, dtype=x.dtype)
    for place in itertools.product(*[range(n) for n in sizes]):
        new = ~is_better(best, windows[(..., *place)])
        found = torch.where(new, numbers[(..., *place)], found)
        best = torch.where(new, windows[(..., *place)], best)
    first = numbers[(..., *[0] * x.ndim)]
    return torch.where(found < 0, first, found), shape, found >= 0


@helper("torch", "math", needs=("_chosen",), last="_added_to_chosen", target="torch")
def _added_to_chosen(values, x, sizes, strides, padding, is_better, worst):
    """Zeros like a tensor, with each value added to the element that is chosen in its window."""
    places, shape, _ = _chosen(x, sizes, strides, padding, is_better, worst)
    total = values.new_zeros(math.prod(shape)).index_put((places.reshape(-1),), values.reshape(-1), accumulate=True)
    return total.reshape(shape)[tuple([slice(a, a + n) for n, (a, _) in zip(x.shape, padding, strict=True)])]


@helper("torch", needs=("_chosen", "_padded"), last="_taken_of_chosen", target="torch")
def _taken_of_chosen(values, x, sizes, strides, padding, is_better, worst):
    """Of each window the value at the element that is chosen in it."""
    places, _, any_chosen = _chosen(x, sizes, strides, padding, is_better, worst)
    padded = _padded(values, torch.zeros((), dtype=values.dtype), [(*p, 0) for p in padding])
    return torch.where(any_chosen, padded.reshape(-1)[places], 0)


@helper("functools", last="_folded", target="torch")
def _folded(function, x, axes):
    """A tensor reduced along axes by a function of two tensors."""
    x = x.movedim(axes, tuple(range(len(axes)))).flatten(0, len(axes) - 1)
    return functools.reduce(function, x.unbind(0))


@helper("itertools", last="_reduced", target="torch")
def _reduced(function, arrays, starts, axes):
    """Tensors reduced together by a function of two numbers (or of two of each), one element after the other."""
    rows = [x.movedim(axes, tuple(range(len(axes)))) for x in arrays]
    found = [start.expand(x.shape[len(axes) :]) for x, start in zip(rows, starts, strict=True)]
    for place in itertools.product(*[range(n) for n in rows[0].shape[: len(axes)]]):
        new = function(*found, *[x[place] for x in rows])
        found = new if len(rows) > 1 else [new]
    return tuple(found)


@helper("torch", "F", needs=("_padded",), last="_convolved", target="torch")
def _convolved(x, w, strides, padding, spread, dilation, groups, batches=1):
    """A convolution of (batch, features, space) with (outputs, features, space)."""
    gaps = [(0, 0, 0)] * 2 + [(*p, s - 1) for p, s in zip(padding, spread, strict=True)]
    x = _padded(x, torch.zeros((), dtype=x.dtype), gaps)
    if not strides:
        x, w, strides, dilation = x[..., None], w[..., None], (1,), (1,)
        return _convolved(x, w, strides, ((0, 0),), (1,), dilation, groups, batches)[..., 0]
    convolve = getattr(F, f"conv{len(strides)}d")
    images, kernels = x.chunk(batches), w.chunk(batches)
    parts = [convolve(i, k, None, strides, 0, dilation, groups) for i, k in zip(images, kernels, strict=True)]
    return torch.cat(parts, 1)
