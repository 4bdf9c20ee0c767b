"""Contractions, convolutions and Fourier transforms. Source: jax/_src/lax/{lax,convolution,fft}.py."""

from __future__ import annotations

from typing import Any

from untrace.module.rules import DECLINE
from untrace.targets.jax.rules.table import rule


@rule("dot_general")
def dot_general(
    w: Any,
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
) -> Any:
    if out_sharding is not None:
        return DECLINE
    kwargs = _types(w, precision, preferred_element_type)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    numbers = ((tuple(lhs_contract), tuple(rhs_contract)), (tuple(lhs_batch), tuple(rhs_batch)))
    return w.lax("dot_general", lhs, rhs, numbers, **kwargs)


@rule("conv_general_dilated")
def conv_general_dilated(
    w: Any,
    lhs: Any,
    rhs: Any,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any = None,
) -> Any:
    if out_sharding is not None:
        return DECLINE
    kwargs: dict[str, Any] = {}
    for name, value in (("lhs_dilation", lhs_dilation), ("rhs_dilation", rhs_dilation)):
        if any(n != 1 for n in value):
            kwargs[name] = value
    kwargs["dimension_numbers"] = dimension_numbers
    for name, count in (("feature_group_count", feature_group_count), ("batch_group_count", batch_group_count)):
        if count != 1:
            kwargs[name] = count
    kwargs.update(_types(w, precision, preferred_element_type))
    return w.lax("conv_general_dilated", lhs, rhs, window_strides, padding, **kwargs)


@rule("fft")
def fft(w: Any, x: Any, *, fft_type: Any, fft_lengths: Any) -> Any:
    # `lax.fft` is jitted: it makes a call around the equation, also where that is dead and no proof would see it.
    return w.lax("fft", x, fft_type, fft_lengths) if w.module.idiomatic else DECLINE


@rule("ragged_dot_general")
def ragged_dot_general(
    w: Any,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *,
    ragged_dot_dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    group_offset: Any,
    out_sharding: Any = None,
) -> Any:
    if out_sharding is not None or group_offset is not None:
        return DECLINE
    kwargs = _types(w, precision, preferred_element_type)
    return w.lax("ragged_dot_general", lhs, rhs, group_sizes, ragged_dot_dimension_numbers, **kwargs)


def _types(w: Any, precision: Any, preferred_element_type: Any) -> dict[str, Any]:
    """The keyword arguments that say how a product is computed, as far as they do."""
    found: dict[str, Any] = {}
    if precision is not None:
        found["precision"] = precision
    if preferred_element_type is not None:
        found["preferred_element_type"] = w.module.values.dtype(preferred_element_type)
    return found
