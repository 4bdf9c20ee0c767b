"""What runs on the devices of a mesh, on one: all shards in one array, with axes of their own for those of the mesh.

A `shard_map` is a `jax.vmap` of its body over each axis of the mesh, by whose name the collectives in it are batched: a sum
over an axis of the mesh is one over an axis of the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax

from untrace import jax_compat


def on_one_device(eqn: Any) -> Callable[..., list[Any]]:
    """A function of the operands of a `shard_map` equation that gives its results.

    Where a result is said to be the same on all devices and isn't (`check_vma=False`), it is the first one's. It raises
    where the body does what has no batching rule.
    """
    params = eqn.params
    sizes = {a: n for a, n in params["mesh"].shape.items() if a in params["newly_manual_axes"]}
    body = jax_compat.without_mesh(params["jaxpr"], lambda eqn: _plain(eqn, sizes))
    into = [_axes(spec, v.aval.ndim) for spec, v in zip(params["in_specs"], eqn.invars, strict=True)]
    out_of = [_axes(spec, v.aval.ndim) for spec, v in zip(params["out_specs"], eqn.outvars, strict=True)]

    def mapped(everywhere: bool) -> Callable[..., list[Any]]:
        function: Callable[..., list[Any]] = jax.extend.core.jaxpr_as_fun(jax_compat.close_jaxpr(body, ()))
        for axis in reversed(sizes):
            in_axes = tuple(0 if axis in _flat(axes) else None for axes in into)
            out_axes = [0 if everywhere or axis in _flat(axes) else None for axes in out_of]
            function = jax.vmap(function, in_axes, out_axes, axis_name=axis, axis_size=sizes[axis])
        return function

    def run(*operands: Any) -> list[Any]:
        shards = [_split(x, axes, sizes) for x, axes in zip(operands, into, strict=True)]
        try:
            results = mapped(False)(*shards)
        except ValueError:  # a result that differs by device, of which the first one's is meant
            results = [_first(y, axes, sizes) for y, axes in zip(mapped(True)(*shards), out_of, strict=True)]
        return [_joined(y, axes, sizes) for y, axes in zip(results, out_of, strict=True)]

    return run


def _axes(spec: Any, ndim: int) -> list[tuple[str, ...]]:
    """The axes of the mesh that each axis of an array is split over."""
    parts = [() if p is None else (p,) if isinstance(p, str) else tuple(p) for p in jax_compat.partitions(spec)]
    return [*parts, *[()] * (ndim - len(parts))]


def _flat(axes: Sequence[tuple[str, ...]]) -> list[str]:
    return [axis for part in axes for axis in part]


def _split(x: Any, axes: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Any:
    """All shards of `x`, one axis in front for each axis of the mesh that it is split over, in the mesh's order."""
    shape: list[int] = []
    places: dict[str, int] = {}
    for part, length in zip(axes, x.shape, strict=True):
        for axis in part:
            places[axis] = len(shape)
            shape.append(sizes[axis])
        shape.append(length // math.prod(sizes[axis] for axis in part))
    return _in_front(x.reshape(shape), [places[axis] for axis in sizes if axis in places])


def _joined(y: Any, axes: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Any:
    """The array of which `y` has all shards, as `_split` gives them."""
    front = [axis for axis in sizes if axis in _flat(axes)]
    order: list[int] = []
    shape: list[int] = []
    for place, part in enumerate(axes, len(front)):
        order += [*map(front.index, part), place]
        shape.append(y.shape[place] * math.prod(sizes[axis] for axis in part))
    return (y if order == sorted(order) else y.transpose(order)).reshape(shape) if front else y


def _in_front(x: Any, places: Collection[int]) -> Any:
    order = [*places, *[i for i in range(x.ndim) if i not in places]]
    return x if order == sorted(order) else x.transpose(order)


def _first(y: Any, axes: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Any:
    """The shards of the first devices along the axes of the mesh that a result is not split over."""
    return y[tuple(slice(None) if axis in _flat(axes) else 0 for axis in sizes)]


# ---------------------------------------------------------------- collectives that `vmap` has no rule for


def _plain(eqn: Any, sizes: Mapping[str, int]) -> Any:
    """The open jaxpr of collectives along one axis each, and all of it, that give what a collective does; None where it is
    one of those, or nothing is known."""
    make = _COLLECTIVES.get(eqn.primitive.name)
    if make is None or eqn.params.get("axis_index_groups") is not None:
        return None
    function = make(sizes, **eqn.params)
    if function is None:
        return None
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    closed = jax.make_jaxpr(function, axis_env=list(sizes.items()))(*avals)
    return jax_compat.open_jaxpr(closed)[0]


def _permuted(
    sizes: Mapping[str, int], *, axis_name: Sequence[str], perm: Sequence[tuple[int, int]]
) -> Callable[..., Any] | None:
    """Where some devices get nothing, zeros: those of what they get when the others' pairs are completed."""
    if len(axis_name) != 1 or len(perm) == sizes[axis_name[0]]:
        return None
    (axis,), every = axis_name, range(sizes[axis_name[0]])
    perm = [(source % len(every), to % len(every)) for source, to in perm]  # -1 is the last one
    idle = [place for place in every if place not in dict(perm)]
    getting_nothing = [place for place in every if place not in [to for _, to in perm]]

    def permuted(x: Any) -> Any:
        given = lax.ppermute(x, axis, [*perm, *zip(idle, getting_nothing, strict=True)])
        here = lax.axis_index(axis)
        gets_nothing = here == getting_nothing[0]
        for place in getting_nothing[1:]:
            gets_nothing |= here == place
        return jnp.where(gets_nothing, jnp.zeros_like(given), given)

    return permuted


def _summed(sizes: Mapping[str, int], *, axes: tuple[str, ...]) -> Callable[..., Any]:
    return lambda x: lax.psum(x, axes)


def _gathered(
    sizes: Mapping[str, int], *, axis_name: tuple[str, ...], all_gather_dimension: int, tiled: bool, **others: Any
) -> Callable[..., Any] | None:
    """Along the last axis first: its devices are next to each other."""
    if "axis_index_groups" in others and len(axis_name) == 1:
        return None

    def gathered(x: Any) -> Any:
        each = x if tiled else jnp.expand_dims(x, all_gather_dimension)
        for axis in reversed(axis_name):
            each = lax.all_gather(each, axis, axis=all_gather_dimension, tiled=True)
        return each

    return gathered


def _scattered_sum(
    sizes: Mapping[str, int], *, axis_name: tuple[str, ...], scatter_dimension: int, tiled: bool, **others: Any
) -> Callable[..., Any] | None:
    if len(axis_name) == 1:
        return None

    def scattered(x: Any) -> Any:
        for axis in axis_name:
            x = lax.psum_scatter(x, axis, scatter_dimension=scatter_dimension, tiled=True)
        return x if tiled else x.squeeze(scatter_dimension)

    return scattered


_COLLECTIVES: dict[str, Callable[..., Callable[..., Any] | None]] = {
    "ppermute": _permuted, "psum_invariant": _summed, "all_gather": _gathered, "all_gather_invariant": _gathered,
    "reduce_scatter": _scattered_sum,
}  # fmt: skip
