"""Gathering and scattering: rows by their numbers, bags of embeddings, sums over the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from untrace.torch.bridge import element, lacks


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(operation of PyTorch, implementation, options). Those of `aten` serve the forms that write in place as well."""
    import torch
    from torch.nn import functional as F

    aten = torch.ops.aten
    own: list[tuple[Any, Callable[..., Any]]] = [
        (F.embedding_bag, embedding_bag), (aten.gather, gather), (aten.scatter_add, scatter_add),
        (aten.scatter, scatter), (aten.scatter.src, scatter), (aten.scatter.value, scatter),
        (aten.scatter.reduce, scatter), (aten.scatter.value_reduce, scatter),
        (aten.scatter_reduce, scatter_reduce), (aten.scatter_reduce.two, scatter_reduce),
    ]  # fmt: skip
    return [*[(f, i, {}) for f, i in own], (aten.copy_, copy, {"tensors": True})]


def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """Writes to the tensor itself, in its own dtype."""
    array = jnp.asarray(element(src))
    self._elem = jnp.broadcast_to(array.astype(self._elem.dtype), self._elem.shape)
    return self


def embedding_bag(
    input: Any, weight: Any, offsets: Any = None, max_norm: Any = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: Any = None,
) -> Any:  # fmt: skip
    """Bags are the rows of `input`, or start at `offsets` in it. An empty bag is zero."""
    if max_norm is not None:
        raise lacks("torch.nn.functional.embedding_bag", "with max_norm, which writes to the table")
    rows = weight[input]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    valid = None if padding_idx is None else (input != padding_idx % weight.shape[0])[..., None]
    if valid is not None:
        rows = jnp.where(valid, rows, -jnp.inf if mode == "max" else 0)
    if offsets is None:
        if mode == "max":
            return _finite(jnp.max(rows, axis=1))
        total = jnp.sum(rows, axis=1)
        if mode == "sum":
            return total
        return jnp.mean(rows, axis=1) if valid is None else total / jnp.maximum(jnp.sum(valid, axis=1), 1)
    count = offsets.shape[0] - include_last_offset
    starts = jnp.zeros(input.shape, jnp.int32).at[offsets[:count]].add(1)
    bags = jnp.cumsum(starts) - 1
    if mode == "max":
        return _finite(jnp.full((count, weight.shape[1]), -jnp.inf, rows.dtype).at[bags].max(rows))
    total = jnp.zeros((count, weight.shape[1]), rows.dtype).at[bags].add(rows)
    if mode == "sum":
        return total
    ones = jnp.ones((*input.shape, 1), rows.dtype) if valid is None else valid.astype(rows.dtype)
    return total / jnp.maximum(jnp.zeros((count, 1), rows.dtype).at[bags].add(ones), 1)


def _finite(largest: Any) -> Any:
    return jnp.where(largest == -jnp.inf, 0, largest)


def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if not input.ndim:
        return jnp.broadcast_to(input, index.shape)
    dim %= input.ndim
    sizes = [n if d == dim else m for d, (n, m) in enumerate(zip(input.shape, index.shape, strict=True))]
    if tuple(sizes) != input.shape:
        input = input[tuple(slice(n) for n in sizes)]
    return jnp.take_along_axis(input, index, axis=dim)


def _places(dim: int, index: Any) -> tuple[Any, ...]:
    """The index of the element that each element of `index` speaks of."""
    places = []
    for d, size in enumerate(index.shape):
        ahead = [None] * (index.ndim - 1 - d)
        places.append(index if d == dim % index.ndim else jnp.arange(size)[(slice(None), *ahead)])
    return tuple(places)


def _source(src: Any, index: Any, input: Any) -> Any:
    if not hasattr(src, "shape") or src.shape == ():
        return src
    return src if src.shape == index.shape else src[tuple(slice(n) for n in index.shape)]


def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:
    return input.at[_places(dim, index)].add(_source(src, index, input))


def scatter(input: Any, dim: int, index: Any, src: Any = None, value: Any = None, *, reduce: Any = None) -> Any:
    at, given = input.at[_places(dim, index)], _source(value if src is None else src, index, input)
    if reduce is None:
        return at.set(given)
    return at.add(given) if reduce == "add" else at.multiply(given)


def scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    places, given = _places(dim, index), _source(src, index, input)
    if reduce == "mean":
        ones = jnp.ones(given.shape, input.dtype)
        count = (jnp.ones_like if include_self else jnp.zeros_like)(input).at[places].add(ones)
        start = input if include_self else input.at[places].set(0)
        total = start.at[places].add(given)
        if jnp.issubdtype(input.dtype, jnp.integer):
            return total // jnp.maximum(count, 1)
        return total / jnp.maximum(count, 1)
    if not include_self:
        input = input.at[places].set(_neutral(reduce, input.dtype))
    if reduce == "prod":
        return _multiplied(input, dim, index, given)
    method = {"sum": "add", "amax": "max", "amin": "min"}[reduce]
    return getattr(input.at[places], method)(given)


def _multiplied(x: Any, dim: int, index: Any, values: Any) -> Any:
    """One place along `dim` after the other: JAX has no derivative of a product at equal indices."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.at[_places(dim, index)].multiply(values)

    def step(x: Any, item: Any) -> Any:
        index, value = item
        places = _places(dim, jnp.expand_dims(index, dim))
        return x.at[places].multiply(jnp.expand_dims(value, dim), unique_indices=True), None

    values = jnp.broadcast_to(values, index.shape)
    return lax.scan(step, x, (jnp.moveaxis(index, dim, 0), jnp.moveaxis(values, dim, 0)))[0]


def _neutral(reduce: str, dtype: Any) -> Any:
    if reduce in ("sum", "prod"):
        return 0 if reduce == "sum" else 1
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if reduce == "amax" else jnp.inf
    return jnp.iinfo(dtype).min if reduce == "amax" else jnp.iinfo(dtype).max
