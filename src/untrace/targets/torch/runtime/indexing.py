"""Padding, indices that are clamped or dropped, and orders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from untrace.python.helpers import helper
from untrace.targets.torch.runtime.arithmetic import _total_order

if TYPE_CHECKING:
    import torch


@helper("torch", last="_along", target="torch")
def _along(places, axis, rank):
    """Places along one axis, to be broadcast with tensors of some rank."""
    return places.reshape([-1 if i == axis else 1 for i in range(rank)])


@helper("torch", needs=("_along",), last="_padded", target="torch")
def _padded(x, value, config):
    """Padded by (before, after, between), of which those before and after may take away."""
    for axis, (before, after, between) in enumerate(config):
        if not before and not after and not between:
            continue
        size = x.shape[axis]
        whole = size + max(size - 1, 0) * between
        if not size:
            shape = [whole + before + after if i == axis else n for i, n in enumerate(x.shape)]
            x = value.expand(shape)
            continue
        places = torch.arange(before + whole + after) - before
        kept = (places >= 0) & (places < whole) & (places % (between + 1) == 0)
        rows = x.index_select(axis, places.clamp(0, whole - 1) // (between + 1))
        x = torch.where(_along(kept, axis, x.ndim), rows, value)
    return x


@helper("torch", last="_sliced", target="torch")
def _sliced(x, starts, sizes):
    """A slice of these sizes, moved inside where it begins too late."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size != x.shape[axis]:
            begin = torch.as_tensor(start).clamp(0, x.shape[axis] - size)
            x = x.index_select(axis, begin + torch.arange(size))
    return x


@helper("torch", needs=("_along",), last="_updated", target="torch")
def _updated(x, update, starts):
    """A copy with another slice, moved inside where it begins too late."""
    kept, rows = torch.ones((), dtype=torch.bool), update
    for axis, start in enumerate(starts):
        size = update.shape[axis]
        if not size:
            return x
        if size != x.shape[axis]:
            begin = torch.as_tensor(start).clamp(0, x.shape[axis] - size)
            places = torch.arange(x.shape[axis]) - begin
            kept = kept & _along((places >= 0) & (places < size), axis, x.ndim)
            rows = rows.index_select(axis, places.clamp(0, size - 1))
    return torch.where(kept, rows, x)


@helper("torch", needs=("_along",), last="_places", target="torch")
def _places(shape, indices, sizes, dims, inside, batched):
    """(the index of each element of windows into a tensor, whether each window lies inside it).

    dims: which axes the indices are of. inside: the axes that windows have. batched: (axis, axis of the indices) pairs.
    """
    count, rank = indices.ndim - 1, indices.ndim - 1 + len(inside)
    starts = {axis: indices[..., number].to(torch.int64) for number, axis in enumerate(dims)}
    for axis, along in batched:
        starts[axis] = _along(torch.arange(shape[axis]), along, count)
    places, is_inside = [], torch.ones((), dtype=torch.bool)
    for axis, size in enumerate(sizes):
        start, limit = starts.get(axis, torch.zeros((), dtype=torch.int64)), shape[axis] - size
        is_inside = is_inside & (start >= 0) & (start <= limit)
        place = start.clamp(0, limit)
        place = place.reshape(place.shape + (1,) * len(inside)) if place.ndim else place
        if axis in inside:
            place = place + _along(torch.arange(size), count + inside.index(axis), rank)
        places.append(place)
    return places, is_inside.reshape(is_inside.shape + (1,) * len(inside)) if is_inside.ndim else is_inside


@helper("torch", needs=("_places",), last="_gathered", target="torch")
def _gathered(x, indices, offset_dims, collapsed, dims, sizes, batched=(), fill=None):
    """Windows of a tensor; one that lies outside is moved inside, or filled."""
    taken = [*collapsed, *[axis for axis, _ in batched]]
    inside = [axis for axis in range(x.ndim) if axis not in taken]
    places, is_inside = _places(x.shape, indices, sizes, dims, inside, batched)
    shape = (*indices.shape[:-1], *[sizes[axis] for axis in inside])
    found = x[tuple([place.expand(shape) for place in places])] if x.ndim else x.expand(shape)
    if fill is not None:
        found = torch.where(is_inside, found, fill)
    count = indices.ndim - 1
    return found.movedim(tuple(range(count, count + len(inside))), tuple(offset_dims))


@helper("torch", "math", needs=("_places",), last="_scattered", target="torch")
def _scattered(x, indices, updates, window_dims, inserted, dims, batched=(), reduce=None, clip=False):
    """A copy of a tensor with updates of its windows; those outside are dropped, or moved inside."""
    if not updates.numel() or not x.numel():
        return x
    taken = [*inserted, *[axis for axis, _ in batched]]
    inside = [axis for axis in range(x.ndim) if axis not in taken]
    sizes = [1] * x.ndim
    for axis, dim in zip(inside, window_dims, strict=True):
        sizes[axis] = updates.shape[dim]
    places, is_inside = _places(x.shape, indices, sizes, dims, inside, batched)
    count = indices.ndim - 1
    updates = updates.movedim(tuple(window_dims), tuple(range(count, count + len(inside))))
    flat = sum([place * math.prod(x.shape[axis + 1 :]) for axis, place in enumerate(places)])
    flat = flat if clip else torch.where(is_inside, flat, x.numel())  # one place more, for what is dropped
    flat = torch.as_tensor(flat).expand(updates.shape).reshape(-1)
    whole = torch.cat([x.reshape(-1), x.new_zeros(1)])
    if reduce is None or reduce == "sum":
        whole = whole.index_put((flat,), updates.reshape(-1), accumulate=reduce == "sum")
    else:
        whole = whole.scatter_reduce(0, flat, updates.reshape(-1), reduce)
    return whole[:-1].reshape(x.shape)


@helper("torch", last="_put", target="torch")
def _put(x, index, y, combine=None):
    """A copy of a tensor in which `x[index]` is `y`, or what a function gives of both; an index outside changes nothing."""
    try:
        places = torch.arange(x.numel()).reshape(x.shape)[index]
    except IndexError:
        return x
    y = torch.as_tensor(y, dtype=x.dtype)
    y = (y if combine is None else combine(x[index], y)).expand(places.shape)
    return x.reshape(-1).index_put((places.reshape(-1),), y.reshape(-1)).reshape(x.shape)


@helper("torch", needs=("_along",), last="_sorted_together", target="torch")
def _sorted_together(*arrays, dim, keys):
    """Tensors in the order of the first few."""
    order = _along(torch.arange(arrays[0].shape[dim]), dim, arrays[0].ndim).expand(arrays[0].shape)
    for key in arrays[:keys][::-1]:
        order = order.gather(dim, key.gather(dim, order).argsort(dim=dim, stable=True))
    return tuple([array.gather(dim, order) for array in arrays])


@helper("torch", needs=("_total_order",), last="_top", target="torch")
def _top(x, k, axis):
    """(the largest elements along an axis, the first of equal ones first; their places). Of floats 0 is larger than -0."""
    by = _total_order(x) if x.is_floating_point() else x
    if x.dtype == torch.bfloat16:  # of which casts make NaN of either sign
        by = torch.where(torch.isnan(x), torch.iinfo(by.dtype).max, by)
    order = by.argsort(dim=axis, descending=True, stable=True).narrow(axis, 0, k)
    return x.gather(axis, order), order.to(torch.int32)
