"""Further functions of `torch` that torchax lacks, or runs outside of JAX."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace.torch.ops.dtypes import default_dtype, dtype_of


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    aten = torch.ops.aten
    own: list[tuple[Any, Callable[..., Any]]] = [
        (torch.det, jnp.linalg.det), (torch.linalg.det, jnp.linalg.det), (Tensor.det, jnp.linalg.det),
        (torch.angle, jnp.angle), (Tensor.angle, jnp.angle), (torch.quantile, quantile), (Tensor.quantile, quantile),
        (torch.hann_window, hann_window), (torch.take_along_dim, take_along_dim),
        (Tensor.take_along_dim, take_along_dim), (Tensor.new_tensor, new_tensor), (aten.mT, matrix_transpose),
        (Tensor.contiguous, contiguous), (aten.view.dtype, view_as_dtype), (torch.logdet, logdet), (Tensor.logdet, logdet),
        (torch.vander, vander), (torch.cov, cov), (Tensor.cov, cov), (F.gaussian_nll_loss, gaussian_nll_loss),
        (torch.linalg.lstsq, lstsq), (torch.combinations, combinations),
    ]  # fmt: skip
    return [(f, i, {}) for f, i in own]


def logdet(input: Any) -> Any:
    sign, log = jnp.linalg.slogdet(input)
    return jnp.where(sign < 0, jnp.nan, log)


class LeastSquares(NamedTuple):
    """What `torch.linalg.lstsq` returns."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(input: Any, b: Any, rcond: Any = None, *, driver: Any = None) -> LeastSquares:
    """By the pseudoinverse, of which PyTorch's gradient is. The residuals are those of full rank, which is data."""
    rows, columns = input.shape[-2:]
    single = b.ndim == input.ndim - 1 and b.shape == input.shape[:-1]
    right = b[..., None] if single else b
    solution = jnp.linalg.pinv(input, rtol=rcond) @ right
    residuals = jnp.zeros(0, input.dtype)
    if rows > columns and driver != "gelsy":
        residuals = jnp.sum(jnp.square(jnp.abs(right - input @ solution)), axis=-2)
    rank = jnp.linalg.matrix_rank(input, rtol=rcond)
    values = jnp.linalg.svdvals(input) if driver in ("gelsd", "gelss") else jnp.zeros(0, input.dtype)
    return LeastSquares(solution[..., 0] if single else solution, residuals, rank, values)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(chosen(range(input.shape[0]), r)), np.int32).reshape(-1, r)
    return input[places]


def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:  # noqa: N803
    return jnp.vander(x, N, increasing)


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    return jnp.cov(input, ddof=correction, fweights=fweights, aweights=aweights)


def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:  # fmt: skip
    """Source: torch.nn.functional.gaussian_nll_loss, without its look at the values of `var`."""
    if not hasattr(var, "shape"):
        var = jnp.full(input.shape, var, input.dtype)
    elif var.ndim == input.ndim - 1 and var.shape == input.shape[:-1]:
        var = var[..., None]
    var = jnp.maximum(var, eps)
    loss = 0.5 * (jnp.log(var) + jnp.square(input - target) / var)
    loss = loss + 0.5 * jnp.log(2 * jnp.pi) if full else loss
    return {"mean": jnp.mean, "sum": jnp.sum}.get(reduction, lambda x: x)(loss)


def contiguous(self: Any, **options: Any) -> Any:
    """A tensor object of its own: it may be a copy, or a view of all (`views`)."""
    return self


def matrix_transpose(input: Any) -> Any:
    return jnp.swapaxes(input, -2, -1)


def quantile(input: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    return jnp.quantile(input, jnp.asarray(q, input.dtype), axis=dim, keepdims=keepdim, method=interpolation)


def take_along_dim(input: Any, indices: Any, dim: Any = None) -> Any:
    return jnp.take_along_axis(input, indices, axis=dim)


def new_tensor(self: Any, data: Any, *, dtype: Any = None, **options: Any) -> Any:
    return jnp.asarray(data, self.dtype if dtype is None else jax.dtypes.canonicalize_dtype(dtype_of(dtype)))


def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None, **options: Any) -> Any:
    angles = 2 * jnp.pi / (window_length if periodic else window_length - 1) * jnp.arange(window_length)
    return (0.5 - 0.5 * jnp.cos(angles)).astype(default_dtype(dtype))


def view_as_dtype(self: Any, dtype: Any) -> Any:
    return lax.bitcast_convert_type(self, jax.dtypes.canonicalize_dtype(dtype_of(dtype)))
