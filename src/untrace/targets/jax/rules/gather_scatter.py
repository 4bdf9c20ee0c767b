"""Gather and scatter. Source: jax/_src/lax/slicing.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.lax

from untrace.module.rules import DECLINE
from untrace.targets.jax.rules.table import rule


@rule("gather")
def gather(
    w: Any,
    x: Any,
    indices: Any,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    unique_indices: bool,
    indices_are_sorted: bool,
    mode: Any,
    fill_value: Any,
) -> Any:
    kwargs: dict[str, Any] = _flags(indices_are_sorted, unique_indices)
    if fill_value is not None:
        kwargs["fill_value"] = fill_value
    return w.lax("gather", x, indices, dimension_numbers, slice_sizes, **kwargs, mode=mode)


def _flags(indices_are_sorted: bool, unique_indices: bool) -> dict[str, Any]:
    flags = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices}
    return {k: v for k, v in flags.items() if v}


def _scatter(name: str) -> Callable[..., Any]:
    def scatter(
        w: Any,
        x: Any,
        indices: Any,
        updates: Any,
        *,
        update_jaxpr: Any,
        update_consts: Any,
        dimension_numbers: Any,
        indices_are_sorted: bool,
        unique_indices: bool,
        mode: Any,
    ) -> Any:
        if update_consts or (name == "scatter" and update_jaxpr is not None):
            return DECLINE
        flags = _flags(indices_are_sorted, unique_indices)
        return w.lax(name, x, indices, updates, dimension_numbers, **flags, mode=mode)

    return scatter


for _name in "scatter scatter_add scatter_sub scatter_mul scatter_min scatter_max".split():
    if hasattr(jax.lax, _name):
        rule(_name.replace("_", "-"))(_scatter(_name))
