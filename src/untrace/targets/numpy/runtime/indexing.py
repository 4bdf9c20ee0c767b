"""Padding, indices that are clamped or dropped, and orders."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper
from untrace.targets.numpy.runtime.arithmetic import _total_order


@helper("np", last="_padded")
def _padded(x, value, config):
    """Padded by (before, after, between), of which those before and after may take away."""
    between = [n + max(n - 1, 0) * c for n, (_, _, c) in zip(x.shape, config, strict=True)]
    out = np.full(between, value, x.dtype)
    out[tuple(slice(None, None, c + 1) for _, _, c in config)] = x
    out = out[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b, _) in zip(out.shape, config, strict=True))]
    return np.pad(out, [(max(a, 0), max(b, 0)) for a, b, _ in config], constant_values=value)


@helper("np", last="_starts")
def _starts(starts, shape, sizes):
    """Where slices of these sizes begin: inside, as far as that goes."""
    return [int(np.clip(s, 0, n - size)) for s, n, size in zip(starts, shape, sizes, strict=True)]


@helper("np", needs=("_starts",), last="_sliced")
def _sliced(x, starts, sizes):
    """A slice of these sizes, moved inside where it begins too late."""
    begins = _starts(starts, x.shape, sizes)
    return x[tuple(slice(b, b + n) for b, n in zip(begins, sizes, strict=True))]


@helper("np", needs=("_starts",), last="_updated")
def _updated(x, update, starts):
    """A copy with another slice, moved inside where it begins too late."""
    out = np.array(x)
    begins = _starts(starts, x.shape, update.shape)
    out[tuple(slice(b, b + n) for b, n in zip(begins, update.shape, strict=True))] = update
    return out


@helper("np", last="_places")
def _places(shape, indices, sizes, dims, inside, batched):
    """(the index of each element of windows into an array, whether each window lies inside it).

    dims: which axes the indices are of. inside: the axes that windows have. batched: (axis, axis of the indices) pairs.
    """
    starts = np.zeros((*indices.shape[:-1], len(shape)), np.int64)
    for number, axis in enumerate(dims):
        starts[..., axis] = indices[..., number]
    for axis, along in batched:
        rows = [1] * (indices.ndim - 1)
        rows[along] = -1
        starts[..., axis] = np.arange(shape[axis]).reshape(rows)
    limits = np.array(shape) - np.array(sizes)
    is_inside = ((starts >= 0) & (starts <= limits)).all(-1)
    starts = np.clip(starts, 0, limits)
    places = []
    for axis, size in enumerate(sizes):
        place = starts[..., axis].reshape(starts.shape[:-1] + (1,) * len(inside))
        if axis in inside:
            offsets = [1] * len(inside)
            offsets[inside.index(axis)] = size
            place = place + np.arange(size).reshape(offsets)
        places.append(place)
    return tuple(places), is_inside.reshape(is_inside.shape + (1,) * len(inside))


@helper("np", needs=("_places",), last="_gathered")
def _gathered(x, indices, offset_dims, collapsed, dims, sizes, batched=(), fill=None):
    """Windows of an array; one that lies outside is moved inside, or filled."""
    taken = [*collapsed, *[axis for axis, _ in batched]]
    inside = [axis for axis in range(x.ndim) if axis not in taken]
    places, is_inside = _places(x.shape, indices, sizes, dims, inside, batched)
    found = x[places]
    if fill is not None:
        found = np.where(is_inside, found, np.array(fill, x.dtype))
    count = indices.ndim - 1
    return np.moveaxis(found, range(count, count + len(inside)), offset_dims)


@helper("np", needs=("_places",), last="_scattered")
def _scattered(x, indices, updates, window_dims, inserted, dims, batched=(), combine=None, clip=False):
    """A copy of an array with updates of its windows; those outside are dropped, or moved inside."""
    taken = [*inserted, *[axis for axis, _ in batched]]
    inside = [axis for axis in range(x.ndim) if axis not in taken]
    sizes = [1] * x.ndim
    for axis, dim in zip(inside, window_dims, strict=True):
        sizes[axis] = updates.shape[dim]
    places, is_inside = _places(x.shape, indices, sizes, dims, inside, batched)
    count = indices.ndim - 1
    updates = np.moveaxis(updates, window_dims, range(count, count + len(inside)))
    kept = np.broadcast_to(is_inside | clip, updates.shape)
    index = tuple(np.broadcast_to(place, updates.shape)[kept] for place in places)
    index = index or (np.zeros(kept.sum(), np.int64),)  # of an array without axes
    out = np.array(x, ndmin=1)
    if combine is None:
        out[index] = updates[kept]
    else:
        combine.at(out, index, updates[kept])
    return out.reshape(x.shape)


@helper("np", last="_put")
def _put(x, index, y, combine=None):
    """A copy of an array in which `x[index]` is `y`, or what a function gives of both; an index outside changes nothing."""
    out = np.array(x)
    try:
        out[index] = y if combine is None else combine(out[index], y)
    except IndexError:
        pass
    return out


@helper("np", last="_sorted_together")
def _sorted_together(*arrays, axis, keys):
    """Arrays in the order of the first few."""
    by = [x if x.dtype.isbuiltin == 1 else x.astype(np.float32) for x in arrays[:keys]]
    order = np.lexsort(by[::-1], axis=axis)
    return tuple(np.take_along_axis(array, order, axis) for array in arrays)


@helper("np", needs=("_total_order",), last="_top")
def _top(x, k, axis):
    """(the largest elements along an axis, the first of equal ones first; their places). Of floats 0 is larger than -0."""
    backwards = np.flip(x if x.dtype.kind in "iub" else _total_order(x), axis)
    order = x.shape[axis] - 1 - np.flip(np.argsort(backwards, axis, kind="stable"), axis)
    order = np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)
