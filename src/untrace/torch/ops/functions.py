"""Operations of `torch.nn.functional` as one would write them in JAX, in the places of torchax's own.

torchax has all of them as well; these give the text that a person would write (`x @ weight.T`, `jnp.mean`), and what
torchax only has as chains of primitive operations. Each is compared with PyTorch in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from untrace.torch.bridge import lacks
from untrace.torch.ops import parts
from untrace.torch.ops.dtypes import default_dtype, dtype_of


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options) of every operation that is written here."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    own: list[tuple[Any, Callable[..., Any]]] = [
        (F.linear, linear), (F.embedding, embedding), (F.layer_norm, layer_norm), (F.rms_norm, rms_norm),
        (F.group_norm, group_norm), (F.softmax, softmax), (F.log_softmax, log_softmax), (torch.softmax, softmax),
        (torch.log_softmax, log_softmax), (Tensor.softmax, softmax), (Tensor.log_softmax, log_softmax),
        (F.relu, relu), (torch.relu, relu), (Tensor.relu, relu), (F.gelu, gelu), (F.silu, silu), (F.sigmoid, sigmoid),
        (torch.sigmoid, sigmoid), (Tensor.sigmoid, sigmoid), (F.tanh, tanh), (torch.tanh, tanh), (Tensor.tanh, tanh),
        (F.softplus, softplus), (F.elu, elu), (F.leaky_relu, leaky_relu),
        (F.hardtanh, hardtanh), (F.logsigmoid, log_sigmoid),
        (F.one_hot, one_hot), (F.hardswish, hardswish), (F.hardsigmoid, hardsigmoid), (F.relu6, relu6), (F.mish, mish),
        (F.instance_norm, instance_norm),
        (F.cross_entropy, cross_entropy), (F.mse_loss, mse_loss), (torch.rsqrt, rsqrt), (Tensor.rsqrt, rsqrt),
        (Tensor.mean, mean), (torch.mean, mean), (Tensor.transpose, transpose), (torch.transpose, transpose),
        (Tensor.matmul, matmul), (torch.matmul, matmul), (Tensor.__matmul__, matmul), (torch.bmm, matmul), (Tensor.bmm, matmul),
        (Tensor.chunk, chunk), (torch.chunk, chunk), (Tensor.split, split), (torch.split, split),
        (torch.where, where), (torch.cat, concatenate), (torch.concat, concatenate), (torch.stack, stack),
        (Tensor.unbind, unbind), (torch.unbind, unbind), (Tensor.__len__, len), (torch.outer, outer),
        (torch.polar, polar), (torch.topk, topk), (Tensor.topk, topk), (torch.addmm, addmm),
        (Tensor.repeat_interleave, repeat_interleave), (torch.repeat_interleave, repeat_interleave),
        (Tensor.masked_fill, masked_fill), (torch.masked_fill, masked_fill), (Tensor.pow, power), (torch.pow, power),
        (Tensor.__pow__, power), (torch.triu, triu), (torch.tril, tril), (Tensor.triu, triu), (Tensor.tril, tril),
        (torch.arange, arange), (torch.full, full), (torch.ones, ones), (torch.zeros, zeros),
        (F.grouped_mm, grouped_mm), (torch.ops.aten._grouped_mm.default, grouped_mm),
        (Tensor.__rpow__, lambda x, y: y**x), (Tensor.__rsub__, lambda x, y: y - x), (Tensor.__rdiv__, lambda x, y: y / x),
        (Tensor.__rtruediv__, lambda x, y: y / x), (Tensor.__rfloordiv__, lambda x, y: y // x), (Tensor.__rmod__, lambda x, y: y % x),
        (torch.histc, histc), (Tensor.histc, histc), (torch.var, var), (Tensor.var, var), (torch.std, std), (Tensor.std, std),
    ]  # fmt: skip
    return [(f, i, {}) for f, i in own]


# ---------------------------------------------------------------- layers


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    product = input @ weight.T
    return product if bias is None else product + bias


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = mat1 @ mat2
    if alpha != 1:
        product = alpha * product
    return product + (input if beta == 1 else beta * input)


def embedding(input: Any, weight: Any, padding_idx: Any = None, *args: Any, **kwargs: Any) -> Any:
    # PyTorch refuses indices outside the table; JAX clips them.
    rows = weight[input]
    if padding_idx is None:
        return rows
    padding = jnp.expand_dims(input == padding_idx % weight.shape[0], -1)  # PyTorch learns nothing for these
    return jnp.where(padding, lax.stop_gradient(rows), rows)


def _axes(count: int) -> Any:
    return -1 if count == 1 else tuple(range(-count, 0))


def layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    return parts.layer_norm(input, _axes(len(normalized_shape)), weight, bias, eps)


def rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
    x = parts.wide(input)
    if eps is None:
        eps = float(jnp.finfo(input.dtype).eps)
    mean_square = jnp.mean(jnp.square(x), axis=_axes(len(normalized_shape)), keepdims=True)
    normed = x * lax.rsqrt(mean_square + eps)
    if x is not input:
        normed = normed.astype(input.dtype)
    return normed if weight is None else normed * weight


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return parts.group_norm(input, num_groups, weight, bias, eps)


def instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if running_mean is not None:
        raise lacks("torch.nn.functional.instance_norm", "with running statistics")
    return parts.instance_norm(input, weight, bias, eps)


# ---------------------------------------------------------------- activations


def softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return jax.nn.softmax(_cast(input, dtype), axis=-1 if dim is None else dim)


def log_softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return jax.nn.log_softmax(_cast(input, dtype), axis=-1 if dim is None else dim)


def _cast(x: Any, dtype: Any) -> Any:
    return x if dtype is None else x.astype(dtype_of(dtype))


def relu(input: Any, inplace: bool = False) -> Any:
    return jax.nn.relu(input)


def gelu(input: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(input, approximate=approximate == "tanh")


def silu(input: Any, inplace: bool = False) -> Any:
    return jax.nn.silu(input)


def sigmoid(input: Any) -> Any:
    return jax.nn.sigmoid(_float(input))


def tanh(input: Any) -> Any:
    return jnp.tanh(_float(input))


def rsqrt(input: Any) -> Any:
    return lax.rsqrt(_float(input))


def _float(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    return jax.nn.softplus(input) if beta == 1 else jax.nn.softplus(beta * input) / beta


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return jax.nn.elu(input, alpha)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return jnp.where(input > 0, input, negative_slope * input)  # jax.nn's has another gradient at zero


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    if min_val == 0 and max_val == 6:
        return jax.nn.relu6(input)
    return jnp.clip(input, min_val, max_val)


def log_sigmoid(input: Any) -> Any:
    return jax.nn.log_sigmoid(input)


def hardswish(input: Any, inplace: bool = False) -> Any:
    return jax.nn.hard_swish(input)


def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    return jax.nn.hard_sigmoid(input)


def relu6(input: Any, inplace: bool = False) -> Any:
    return jax.nn.relu6(input)


def mish(input: Any, inplace: bool = False) -> Any:
    return jax.nn.mish(input)


# ---------------------------------------------------------------- losses


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    if num_classes == -1:
        raise ValueError("one_hot needs num_classes under JAX: the largest class is data")
    return jax.nn.one_hot(tensor, num_classes, dtype=tensor.dtype)


def cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    axis = 1 if input.ndim > 1 else 0
    log_probs = jax.nn.log_softmax(input, axis=axis)
    per_class = log_probs if weight is None else log_probs * _along(weight, axis, input.ndim)
    if jnp.issubdtype(target.dtype, jnp.floating):  # probabilities of the classes
        smooth = (1 - label_smoothing) * target + label_smoothing / input.shape[axis] if label_smoothing else target
        losses = -jnp.sum(smooth * per_class, axis=axis)
        return _reduced(losses, reduction, losses.size)
    valid = target != ignore_index
    classes = jnp.where(valid, target, 0)
    chosen = jnp.take_along_axis(per_class, jnp.expand_dims(classes, axis), axis=axis)
    losses = jnp.where(valid, -jnp.squeeze(chosen, axis), 0.0)
    share = valid if weight is None else jnp.where(valid, weight[classes], 0.0)
    if label_smoothing:
        spread = jnp.where(valid, -jnp.mean(per_class, axis=axis), 0.0)
        losses = (1 - label_smoothing) * losses + label_smoothing * spread
    return _reduced(losses, reduction, jnp.sum(share))


def _along(weight: Any, axis: int, rank: int) -> Any:
    return weight[(slice(None), *[None] * (rank - axis - 1))]


def _reduced(losses: Any, reduction: str, count: Any) -> Any:
    if reduction == "none":
        return losses
    return jnp.sum(losses) / count if reduction == "mean" else jnp.sum(losses)


def mse_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Any = None
) -> Any:
    losses = jnp.square(input - target)
    return losses if reduction == "none" else jnp.mean(losses) if reduction == "mean" else jnp.sum(losses)


# ---------------------------------------------------------------- tensor methods


def mean(
    input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: Any = None, dtype: Any = None
) -> Any:
    dim = axis if dim is None else dim
    return jnp.mean(_cast(input, dtype), axis=_dims(dim), keepdims=keepdim or bool(keepdims))


def _dims(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, (list, tuple)) else dim


def _spread(input: Any, dim: Any, unbiased: Any, correction: Any, keepdim: bool, function: Callable[..., Any]) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    ddof = (1 if unbiased in (None, True) else 0) if correction is None else correction
    return function(input, axis=_dims(dim), ddof=ddof, keepdims=keepdim)


def var(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    return _spread(input, dim, unbiased, correction, keepdim, jnp.var)


def std(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    return parts.root(_spread(input, dim, unbiased, correction, keepdim, jnp.var))


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    return jnp.swapaxes(input, dim0, dim1)


def matmul(input: Any, other: Any) -> Any:
    return input @ other


def chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    size = -(-input.shape[dim] // chunks)
    return split(input, size, dim)


def split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> Any:
    length, sizes = tensor.shape[dim], split_size_or_sections
    if isinstance(sizes, (list, tuple)):
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        return tuple(jnp.split(tensor, ends, axis=dim))
    if length % sizes == 0:
        return tuple(jnp.split(tensor, length // sizes, axis=dim))
    return tuple(jnp.split(tensor, list(range(sizes, length, sizes)), axis=dim))


def unbind(input: Any, dim: int = 0) -> Any:
    at = (slice(None),) * (dim % input.ndim)
    return tuple(input[(*at, i)] for i in range(input.shape[dim]))


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    if input is None:
        return jnp.where(condition)
    return jnp.where(condition, input, other)


def concatenate(tensors: Sequence[Any], dim: int = 0) -> Any:
    return jnp.concatenate([t for t in tensors if t.shape != (0,)] or list(tensors), axis=dim)


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    return jnp.stack(list(tensors), axis=dim)


def outer(input: Any, vec2: Any) -> Any:
    return jnp.outer(input, vec2)


def polar(abs: Any, angle: Any) -> Any:
    return lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle))


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if dim % input.ndim == input.ndim - 1 and largest:
        return tuple(lax.top_k(input, k))
    moved = jnp.moveaxis(input, dim, -1)
    values, indices = lax.top_k(moved if largest else -moved, k)
    return jnp.moveaxis(values if largest else -values, -1, dim), jnp.moveaxis(indices, -1, dim)


def histc(input: Any, bins: int = 100, min: Any = 0, max: Any = 0, *, out: Any = None) -> Any:
    """How many elements fall into each of `bins` equal parts; the last one holds its end as well."""
    if min == max:
        raise lacks("torch.histc", "without min and max: the range would be data")
    x = jnp.ravel(input)
    index = jnp.floor((x - min) * (bins / (max - min))).astype(jnp.int32)
    inside = (x >= min) & (x <= max)
    return jnp.zeros(bins, x.dtype).at[jnp.clip(index, 0, bins - 1)].add(inside.astype(x.dtype))


def repeat_interleave(input: Any, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Any:
    return jnp.repeat(input, repeats, axis=dim, total_repeat_length=output_size)


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, value, input)


def power(input: Any, exponent: Any) -> Any:
    if isinstance(exponent, float) and exponent.is_integer() and abs(exponent) < 8:
        exponent = int(exponent)
    return input**exponent


def triu(input: Any, diagonal: int = 0) -> Any:
    return jnp.triu(input, diagonal)


def tril(input: Any, diagonal: int = 0) -> Any:
    return jnp.tril(input, diagonal)


def grouped_mm(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows in groups, each with a matrix of its own; `offs` has where the groups end."""
    if offs is None or mat_a.ndim != 2 or mat_b.ndim != 3 or bias is not None:
        raise lacks("torch.nn.functional.grouped_mm", "but for rows in groups, without a bias")
    sizes = jnp.diff(offs, prepend=0)
    return lax.ragged_dot(mat_a, mat_b, sizes)


# ---------------------------------------------------------------- tensors out of nothing


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, **options: Any) -> Any:
    bounds = (0, start) if end is None else (start, end)
    if dtype is None:
        whole = all(isinstance(b, int) for b in (*bounds, step))
        kind: Any = jax.dtypes.canonicalize_dtype(jnp.int64) if whole else jnp.float32
    else:
        kind = jax.dtypes.canonicalize_dtype(dtype_of(dtype))
    if step == 1:
        return jnp.arange(bounds[1], dtype=kind) if bounds[0] == 0 else jnp.arange(*bounds, dtype=kind)
    return jnp.arange(*bounds, step, dtype=kind)


def _shape(size: Any) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else tuple(size)


def full(size: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> Any:
    if dtype is None:
        kinds = {bool: jnp.bool_, int: jax.dtypes.canonicalize_dtype(jnp.int64)}
        return jnp.full(tuple(size), fill_value, kinds.get(type(fill_value), jnp.float32))
    return jnp.full(tuple(size), fill_value, default_dtype(dtype))


def ones(*size: Any, dtype: Any = None, **options: Any) -> Any:
    return jnp.ones(_shape(size), default_dtype(dtype))


def zeros(*size: Any, dtype: Any = None, **options: Any) -> Any:
    return jnp.zeros(_shape(size), default_dtype(dtype))
