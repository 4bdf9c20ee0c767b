"""What draws random numbers in PyTorch, with keys of JAX. torchax has some of these without their numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from untrace.torch.ops.dtypes import default_dtype

Draw = Callable[..., Any]  # (key, shape, dtype, *parameters) -> array


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options)."""
    import torch
    from torch.nn import functional as F

    aten = torch.ops.aten
    fills = {
        aten.normal_.default: normal, aten.uniform_.default: uniform, aten.exponential_.default: exponential,
        aten.cauchy_.default: cauchy, aten.log_normal_.default: log_normal, aten.geometric_.default: geometric,
        aten.random_.default: integers, aten.random_.to: integers, getattr(aten.random_, "from"): integers_from,
        aten.bernoulli_.float: bernoulli, aten.bernoulli_.Tensor: bernoulli,
    }  # fmt: skip
    own: list[tuple[Any, Callable[..., Any]]] = [
        (torch.normal, _normal), (torch.bernoulli, _bernoulli), (torch.Tensor.bernoulli, _bernoulli),
        (torch.poisson, _poisson), (aten._standard_gamma.default, _standard_gamma),
        (aten._sample_dirichlet.default, _dirichlet), (F.rrelu, rrelu), (aten.multinomial.default, multinomial),
    ]  # fmt: skip
    found = [(f, functools.partial(_filled, draw), {"tensors": True, "needs_env": True}) for f, draw in fills.items()]
    return [*found, *[(f, i, {"needs_env": True}) for f, i in own]]


def _filled(draw: Draw, self: Any, *given: Any, generator: Any = None, env: Any, **named: Any) -> Any:
    """Writes what is drawn to `self`."""
    values = [env.t2j_iso(g) if hasattr(g, "_elem") else g for g in given]
    key = env.get_and_rotate_prng_key()
    self.apply_jax_(lambda x: draw(key, x.shape, x.dtype, *values, **named))
    return self


def normal(key: Any, shape: Any, dtype: Any, mean: Any = 0.0, std: Any = 1.0) -> Any:
    drawn = jax.random.normal(key, shape, dtype)
    drawn = drawn if _is(std, 1) else drawn * std
    return drawn if _is(mean, 0) else drawn + mean


def _is(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and value == number


def uniform(key: Any, shape: Any, dtype: Any, low: float = 0.0, high: float = 1.0, **named: float) -> Any:
    return jax.random.uniform(key, shape, dtype, named.get("from", low), named.get("to", high))


def exponential(key: Any, shape: Any, dtype: Any, lambd: float = 1.0) -> Any:
    drawn = jax.random.exponential(key, shape, dtype)
    return drawn if lambd == 1 else drawn / lambd


def cauchy(key: Any, shape: Any, dtype: Any, median: float = 0.0, sigma: float = 1.0) -> Any:
    return jax.random.cauchy(key, shape, dtype) * sigma + median


def log_normal(key: Any, shape: Any, dtype: Any, mean: float = 1.0, std: float = 2.0) -> Any:
    return jnp.exp(normal(key, shape, dtype, mean, std))


def geometric(key: Any, shape: Any, dtype: Any, p: float) -> Any:
    return jax.random.geometric(key, p, shape).astype(dtype)


def bernoulli(key: Any, shape: Any, dtype: Any, p: Any = 0.5) -> Any:
    return jax.random.bernoulli(key, p, shape).astype(dtype)


def integers(key: Any, shape: Any, dtype: Any, to: Any = None) -> Any:
    """Source: torch.Tensor.random_; without an end up to what the dtype holds exactly."""
    if to is None:
        floating = jnp.issubdtype(dtype, jnp.floating)
        to = min(2 ** (jnp.finfo(dtype).nmant + 1) if floating else jnp.iinfo(dtype).max, jnp.iinfo(jnp.int32).max)
    return jax.random.randint(key, shape, 0, to).astype(dtype)


def integers_from(key: Any, shape: Any, dtype: Any, start: int, to: Any = None) -> Any:
    return jax.random.randint(key, shape, start, jnp.iinfo(jnp.int32).max if to is None else to).astype(dtype)


def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, env: Any, generator: Any = None, **options: Any) -> Any:
    shape = tuple(size) if size is not None else jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    given = [x.dtype for x in (mean, std) if hasattr(x, "dtype")]
    dtype = given[0] if given else default_dtype(options.get("dtype"))
    return normal(env.get_and_rotate_prng_key(), shape, dtype, mean, std)


def _bernoulli(input: Any, p: Any = None, *, env: Any, generator: Any = None) -> Any:
    return bernoulli(env.get_and_rotate_prng_key(), input.shape, input.dtype, input if p is None else p)


def _poisson(input: Any, generator: Any = None, *, env: Any) -> Any:
    return jax.random.poisson(env.get_and_rotate_prng_key(), input).astype(input.dtype)


def _standard_gamma(self: Any, generator: Any = None, *, env: Any) -> Any:
    return jax.random.gamma(env.get_and_rotate_prng_key(), self, dtype=self.dtype)


def _dirichlet(self: Any, generator: Any = None, *, env: Any) -> Any:
    return jax.random.dirichlet(env.get_and_rotate_prng_key(), self, dtype=self.dtype)


def multinomial(
    input: Any, num_samples: int, replacement: bool = False, *, generator: Any = None, env: Any
) -> Any:  # fmt: skip
    """Rows of weights. Without replacement the largest of the logarithms with Gumbel's noise, which is the same."""
    key, logits = env.get_and_rotate_prng_key(), jnp.log(input)
    if replacement or num_samples == 1:
        shape = (*input.shape[:-1], num_samples)
        return jax.random.categorical(key, logits[..., None, :], shape=shape)
    return lax.top_k(logits + jax.random.gumbel(key, input.shape, input.dtype), num_samples)[1]


def rrelu(
    input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False, *, env: Any
) -> Any:
    slope: Any = (lower + upper) / 2
    if training:
        slope = jax.random.uniform(env.get_and_rotate_prng_key(), input.shape, input.dtype, lower, upper)
    return jnp.where(input > 0, input, lax.stop_gradient(slope) * input if training else slope * input)
