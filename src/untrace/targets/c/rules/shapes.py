"""Primitives that move elements about: what they give is read where the elements are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from untrace.targets.c.arrays import Array, bounds, int_of, minus, number, plus, remainder, reshaped, stored, times
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import INDEX, Expr, Op, Read
from untrace.targets.c.rules.table import rule

_FEW = 4  # arrays without axes that are chosen between rather than put into a buffer


def moved(x: Array, shape: Sequence[int], back: object, region: Read | None = None) -> Array:
    """An array whose elements are those of another one, at the indices that `back` gives."""
    assert callable(back)
    return Array(tuple(shape), x.dtype, lambda index: x.at(tuple(back(index))), x.cost, region)


@rule("broadcast_in_dim")
def _broadcast(
    b: Builder, x: Array, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], sharding: object = None
) -> Array:
    if math.prod(shape) > x.size:
        x = b.often(x)
    old = x.shape
    region = x.region if [n for n in shape if n != 1] == [n for n in old if n != 1] and len(shape) == len(old) else None
    return moved(
        x,
        shape,
        lambda index: [int_of(0) if n == 1 else index[d] for n, d in zip(old, broadcast_dimensions, strict=True)],
        region,
    )


@rule("reshape")
def _reshape(
    b: Builder, x: Array, *, new_sizes: tuple[int, ...], dimensions: tuple[int, ...] | None = None,
    sharding: object = None,
) -> Array:  # fmt: skip
    if dimensions is not None:
        x = _transposed(x, dimensions)
    if 0 in x.shape:
        return Array(tuple(new_sizes), x.dtype, lambda index: x.at(tuple([int_of(0)] * len(x.shape))), x.cost)
    return moved(x, new_sizes, reshaped(x.shape, new_sizes), x.region if tuple(new_sizes) == x.shape else None)


@rule("squeeze")
def _squeeze(b: Builder, x: Array, *, dimensions: tuple[int, ...]) -> Array:
    shape = [n for d, n in enumerate(x.shape) if d not in dimensions]
    region = x.region
    if region is not None:
        first = len(dimensions)
        leading = sorted(dimensions) == list(range(first))
        region = Read(region.buffer, (*region.index, *[int_of(0)] * first)) if leading else None
    return moved(x, shape, reshaped(x.shape, shape), region)


@rule("expand_dims")
def _expand_dims(b: Builder, x: Array, *, dimensions: tuple[int, ...]) -> Array:
    rest = iter(x.shape)
    shape = [1 if d in dimensions else next(rest) for d in range(len(x.shape) + len(dimensions))]
    return moved(x, shape, reshaped(x.shape, shape))


@rule("transpose")
def _transpose(b: Builder, x: Array, *, permutation: tuple[int, ...]) -> Array:
    return _transposed(x, permutation)


def _transposed(x: Array, permutation: tuple[int, ...]) -> Array:
    back = np.argsort(permutation)
    shape = [x.shape[d] for d in permutation]
    return moved(
        x, shape, lambda index: [index[d] for d in back], x.region if list(back) == list(range(len(back))) else None
    )


@rule("rev")
def _rev(b: Builder, x: Array, *, dimensions: tuple[int, ...]) -> Array:
    return moved(
        x, x.shape, lambda index: [minus(x.shape[d] - 1, i) if d in dimensions else i for d, i in enumerate(index)]
    )


@rule("slice")
def _slice(
    b: Builder,
    x: Array,
    *,
    start_indices: tuple[int, ...],
    limit_indices: tuple[int, ...],
    strides: tuple[int, ...] | None,
) -> Array:
    steps = strides or (1,) * len(x.shape)
    shape = [max(0, -(-(e - s) // k)) for s, e, k in zip(start_indices, limit_indices, steps, strict=True)]
    return moved(
        x, shape, lambda index: [plus(times(i, k), s) for i, s, k in zip(index, start_indices, steps, strict=True)]
    )


@rule("concatenate")
def _concatenate(b: Builder, *xs: Array, dimension: int) -> Array:
    shape = list(xs[0].shape)
    shape[dimension] = sum(x.shape[dimension] for x in xs)
    out = b.new(shape, xs[0].dtype)
    first = 0
    for x in xs:
        _into(b, Read(out, ()), x, [first if d == dimension else 0 for d in range(len(shape))])
        first += x.shape[dimension]
    return stored(out)


def _into(b: Builder, place: Read, x: Array, starts: Sequence[int | Expr], steps: Sequence[int] | None = None) -> None:
    """Writes an array into a larger one, from the indices `starts` on."""
    if 0 in x.shape:
        return
    strides = steps or [1] * len(x.shape)
    b.loops(
        x.shape,
        lambda index: b.write(
            place.buffer,
            tuple([*place.index, *[plus(times(i, k), s) for i, s, k in zip(index, starts, strides, strict=True)]]),
            x.at(index),
        ),
    )


@rule("stack")
def _stack(b: Builder, *xs: Array, axis: int) -> Array:
    shape = [*xs[0].shape[:axis], len(xs), *xs[0].shape[axis:]]
    out = b.new(shape, xs[0].dtype)
    for place, x in enumerate(xs):
        part = moved(x, [*x.shape[:axis], 1, *x.shape[axis:]], lambda index: [*index[:axis], *index[axis + 1 :]])
        _into(b, Read(out, ()), part, [place if d == axis else 0 for d in range(len(shape))])
    return stored(out)


@rule("unstack")
def _unstack(b: Builder, x: Array, *, axis: int) -> list[Array]:
    x = b.often(x)
    shape = [n for d, n in enumerate(x.shape) if d != axis]
    return [moved(x, shape, lambda index, k=k: [*index[:axis], int_of(k), *index[axis:]]) for k in range(x.shape[axis])]


@rule("tile")
def _tile(b: Builder, x: Array, *, reps: Sequence[int]) -> Array:
    x = b.often(x)
    old = (1,) * (len(reps) - len(x.shape)) + x.shape
    shape = [n * r for n, r in zip(old, reps, strict=True)]
    first = len(old) - len(x.shape)
    return moved(
        x, shape, lambda index: [remainder(i, n, n * r) for i, n, r in zip(index, old, reps, strict=True)][first:]
    )


@rule("empty", "empty2")
def _empty(b: Builder, *, dtype: Any, shape: Sequence[int] = (), **where: object) -> Array:
    """Elements that nobody reads, in whatever memory."""
    return number(0, np.dtype(dtype), tuple(shape))


@rule("pad")
def _pad(b: Builder, x: Array, padding: Array, *, padding_config: Sequence[tuple[int, int, int]]) -> Array:
    shape = [
        low + high + n + max(n - 1, 0) * inside for n, (low, high, inside) in zip(x.shape, padding_config, strict=True)
    ]
    out = b.new(shape, x.dtype)
    zero = b.often(padding)
    b.fill(Read(out, ()), Array(tuple(shape), x.dtype, lambda index: zero.at(())))
    # A negative padding takes elements away.
    keeps: list[tuple[int, int]] = []
    for n, size, (low, _, inside) in zip(x.shape, shape, padding_config, strict=True):
        step = inside + 1
        first = (max(0, -low) + inside) // step
        last = min(n, (size - 1 - low) // step + 1) if size > low else 0
        keeps.append((first, max(first, last)))
    part = moved(
        x, [e - s for s, e in keeps], lambda index: [plus(i, s) for i, (s, _) in zip(index, keeps, strict=True)]
    )
    starts = [low + s * (inside + 1) for (s, _), (low, _, inside) in zip(keeps, padding_config, strict=True)]
    _into(b, Read(out, ()), part, starts, [inside + 1 for _, _, inside in padding_config])
    return stored(out)


@rule("split")
def _split(b: Builder, x: Array, *, sizes: tuple[int, ...], axis: int) -> list[Array]:
    x = b.often(x)
    found: list[Array] = []
    first = 0
    for size in sizes:
        shape = [size if d == axis else n for d, n in enumerate(x.shape)]
        found.append(
            moved(x, shape, lambda index, s=first: [plus(i, s) if d == axis else i for d, i in enumerate(index)])
        )
        first += size
    return found


def clamped(start: Expr, last: int) -> Expr:
    """An index as JAX takes it: one outside becomes the nearest inside."""
    if last <= 0:
        return int_of(0)
    known = bounds(start)
    if known is not None and 0 <= known[0] and known[1] <= last:
        return start if start.dtype == INDEX else Op("cast", (start,), INDEX)
    return Op("clamp_index", (start, int_of(last)), INDEX)


def starts_of(b: Builder, starts: Sequence[Array], shape: Sequence[int], sizes: Sequence[int]) -> list[Expr]:
    """Where a slice of some sizes begins."""
    found: list[Expr] = []
    for start, n, size in zip(starts, shape, sizes, strict=True):
        place = clamped(start.at(()), n - size)
        made = Array((), INDEX, lambda index, place=place: place, 1)
        simple = not isinstance(place, Op) or start.cost == 0 and place.name in ("i+", "i-")
        found.append(place if simple else b.keep(made, "start").at(()))
    return found


@rule("dynamic_slice")
def _dynamic_slice(b: Builder, x: Array, *starts: Array, slice_sizes: tuple[int, ...]) -> Array:
    x = b.often(x) if x.size > 1 else x
    at = starts_of(b, starts, x.shape, slice_sizes)
    return moved(
        x, slice_sizes, lambda index: [plus(s, i) for s, i in zip(at, index, strict=True)], _part(x, at, slice_sizes)
    )


def _part(x: Array, at: Sequence[Expr], sizes: Sequence[int]) -> Read | None:
    """The part of a buffer that a slice of rows is: one row, all of the rest."""
    return x.region if x.region is not None and tuple(sizes) == x.shape else None


@rule("dynamic_update_slice")
def _dynamic_update_slice(b: Builder, x: Array, update: Array, *starts: Array) -> Array:
    at = starts_of(b, starts, x.shape, update.shape)
    update = b.often(update)
    out = b.new(x.shape, x.dtype)
    b.fill(Read(out, ()), x)
    _into(b, Read(out, ()), update, at)
    return stored(out)
