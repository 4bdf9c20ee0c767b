"""Helpers that a written NumPy module carries: what JAX does where NumPy's own function does something else."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper


@helper("np", last="_divided")
def _divided(x, y):
    """Integers divided towards zero; by zero -1."""
    whole = np.floor_divide(x, np.where(y == 0, 1, y).astype(x.dtype))
    whole = whole + ((whole * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)
    return np.where(y == 0, np.array(-1).astype(x.dtype), whole)[()]


@helper("np", last="_remainder")
def _remainder(x, y):
    """What is left of integers divided towards zero; all of it where that is by zero."""
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(x.dtype)))[()]


@helper("np", last="_sign")
def _sign(x):
    """The sign of floats, of zeros as well."""
    return np.where(x == 0, x, np.sign(x))[()]


@helper("np", last="_rounded")
def _rounded(x):
    """Rounded to whole numbers, halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole).astype(x.dtype)[()]


@helper("np", last="_as_integers")
def _as_integers(x, dtype):
    """Floats as integers: those outside become the nearest, NaN becomes 0."""
    info = np.iinfo(dtype)
    wide = np.trunc(np.asarray(x, np.float64))
    inside = (wide > float(info.min)) & (wide < float(info.max))
    found = np.where(inside, wide, 0.0).astype(dtype)
    found = np.where(wide >= float(info.max), np.array(info.max, dtype), found)
    return np.where(wide <= float(info.min), np.array(info.min, dtype), found)[()]


@helper("np", last="_shifted_left")
def _shifted_left(x, y):
    """Bits shifted; all of them out where there are not so many."""
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    return np.where(inside, x << np.where(inside, y, 0).astype(x.dtype), 0).astype(x.dtype)[()]


@helper("np", last="_shifted_right")
def _shifted_right(x, y):
    """Bits shifted to the right, with zeros before them."""
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return np.where(inside, x.view(bits) >> np.where(inside, y, 0).astype(bits), 0).astype(bits).view(x.dtype)[()]


@helper("np", last="_shifted_right_with_sign")
def _shifted_right_with_sign(x, y):
    """Bits shifted to the right, with the first of them before them."""
    most = 8 * x.dtype.itemsize - 1
    bits = np.dtype(f"i{x.dtype.itemsize}")
    return (x.view(bits) >> np.where((y >= 0) & (y <= most), y, most).astype(bits)).view(x.dtype)


@helper("np", last="_leading_zeros")
def _leading_zeros(x):
    """How many zeros integers begin with."""
    bits = 8 * x.dtype.itemsize
    found = np.full(np.shape(x), bits, x.dtype)
    for place in range(bits):
        found = np.where((x.view(f"u{x.dtype.itemsize}") >> place) & 1, bits - 1 - place, found).astype(x.dtype)
    return found[()]


@helper("np", last="_windows")
def _windows(x, sizes, strides, padding, value):
    """The windows of an array, along axes after its own."""
    padded = np.pad(x, padding, constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, sizes)
    return windows[tuple(slice(None, None, stride) for stride in strides)]


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
    out = np.array(x)
    if combine is None:
        out[index] = updates[kept]
    else:
        combine.at(out, index, updates[kept])
    return out


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


@helper("np", last="_complex")
def _complex(x, y, dtype):
    """Complex numbers of two parts, infinities and zeros of either sign among them."""
    out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), dtype)
    out.real, out.imag = x, y
    return out[()]


@helper("np", last="_cholesky")
def _cholesky(x):
    """The lower factor of each matrix; NaN where there is none."""
    if x.ndim > 2:
        return np.stack([_cholesky(matrix) for matrix in x]) if len(x) else np.array(x)
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return np.full_like(x, np.nan)


@helper("np", last="_solved")
def _solved(a, b, lower=False, transpose=False, unit_diagonal=False, from_right=False):
    """`a x = b`, or `x a = b` from the right, for a triangular matrix: one row after the other."""
    if from_right:
        return _solved(a, b.swapaxes(-1, -2), lower, not transpose, unit_diagonal).swapaxes(-1, -2)
    a = np.tril(a) if lower else np.triu(a)
    if transpose:
        a, lower = a.swapaxes(-1, -2), not lower
    x = np.zeros_like(b)
    for i in range(a.shape[-1]) if lower else reversed(range(a.shape[-1])):
        rest = b[..., i, :] - (a[..., i, None, :] @ x)[..., 0, :]
        x[..., i, :] = rest if unit_diagonal else rest / a[..., i, i, None]
    return x


@helper("np", last="_sorted_together")
def _sorted_together(*arrays, axis, keys):
    """Arrays in the order of the first few."""
    order = np.lexsort(arrays[:keys][::-1], axis=axis)
    return tuple(np.take_along_axis(array, order, axis) for array in arrays)


@helper("np", last="_top")
def _top(x, k, axis):
    """(the largest elements along an axis, the first of equal ones first; their places)."""
    backwards = np.flip(x, axis)
    order = x.shape[axis] - 1 - np.flip(np.argsort(backwards, axis, kind="stable"), axis)
    order = np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


@helper("np", last="_threefry")
def _threefry(a, b, x, y):
    """Two words of random bits for a key of two words and a count of two."""
    a, b, x, y = [np.asarray(word, np.uint32) for word in (a, b, x, y)]
    keys = (a, b, a ^ b ^ np.uint32(0x1BD11BDA))
    x, y = x + a, y + b
    for turn in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = x + y
            y = ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits))) ^ x
        x, y = x + keys[(turn + 1) % 3], y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


@helper("np", last="_seeded")
def _seeded(seed):
    """The key of a seed."""
    bits = np.asarray(seed).astype(np.int64) if np.asarray(seed).dtype.itemsize < 8 else np.asarray(seed)
    high = (bits >> 32) & 0xFFFFFFFF if np.asarray(seed).dtype.itemsize == 8 else np.zeros_like(bits)
    return np.stack([high, bits & 0xFFFFFFFF], -1).astype(np.uint32)


@helper("np", needs=("_threefry",), last="_words")
def _words(key, shape):
    """Two arrays of words for each key, each element by its place."""
    places = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    first, second = [key[..., i].reshape(key.shape[:-1] + (1,) * len(shape)) for i in (0, 1)]
    return _threefry(first, second, (places >> 32).astype(np.uint32), (places & 0xFFFFFFFF).astype(np.uint32))


@helper("np", needs=("_words",), last="_random_bits")
def _random_bits(key, shape):
    """Random words of 32 bits."""
    high, low = _words(key, shape)
    return high ^ low


@helper("np", needs=("_words",), last="_split")
def _split(key, shape):
    """New keys."""
    return np.stack(_words(key, shape), -1)


@helper("np", needs=("_threefry", "_seeded"), last="_folded_in")
def _folded_in(key, number):
    """The key with a number in it."""
    words = _seeded(number)
    return np.stack(_threefry(key[..., 0], key[..., 1], words[..., 0], words[..., 1]), -1)
