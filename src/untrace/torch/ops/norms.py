"""Norms and distances of PyTorch, with its gradient at zero, which is zero: that of `jnp.sqrt` there is infinite.

Two equal points (the diagonal of a distance matrix, a row of padding) would otherwise make every gradient NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from untrace.torch.bridge import lacks
from untrace.torch.ops import parts
from untrace.torch.ops.dtypes import dtype_of


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    own: list[tuple[Any, Callable[..., Any]]] = [
        (torch.linalg.vector_norm, vector_norm), (torch.ops.aten.linalg_vector_norm.default, vector_norm),
        (torch.norm, norm), (Tensor.norm, norm), (F.normalize, normalize), (torch.cdist, cdist),
        (F.cosine_similarity, cosine_similarity), (torch.cosine_similarity, cosine_similarity),
    ]  # fmt: skip
    return [(f, i, {}) for f, i in own]


def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Source: torch.linalg.vector_norm's documentation."""
    if dtype is not None:
        x = x.astype(dtype_of(dtype))
    axis = tuple(dim) if isinstance(dim, (tuple, list)) else dim
    if ord == 2:
        squares = jnp.square(jnp.abs(x) if jnp.iscomplexobj(x) else x)
        return parts.root(jnp.sum(squares, axis=axis, keepdims=keepdim))
    size = jnp.abs(x)
    if ord == 1:
        return jnp.sum(size, axis=axis, keepdims=keepdim)
    if ord in (float("inf"), -float("inf")):
        return (jnp.max if ord > 0 else jnp.min)(size, axis=axis, keepdims=keepdim)
    if ord == 0:
        return jnp.sum((x != 0).astype(size.dtype), axis=axis, keepdims=keepdim)
    return jnp.sum(size**ord, axis=axis, keepdims=keepdim) ** (1 / ord)


def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Any:  # fmt: skip
    if p == "nuc":
        raise lacks("torch.norm", "with p='nuc'")
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    return input / jnp.maximum(vector_norm(input, p, dim, True), eps)


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    return vector_norm(x1[..., :, None, :] - x2[..., None, :, :], p, -1)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    left = jnp.maximum(vector_norm(x1, 2, dim, True), eps)
    right = jnp.maximum(vector_norm(x2, 2, dim, True), eps)
    return jnp.sum(x1 / left * (x2 / right), axis=dim)
