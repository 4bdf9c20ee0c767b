"""`jax.vmap`, where the capture found the call again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Function
from untrace.module.rules import WRITTEN
from untrace.targets.jax import vmap as mapped
from untrace.targets.jax.rules.table import rule


@rule("vmap")
def vmap(
    w: Any, *operands: Any, jaxpr: Function, in_axes: Sequence[int | None], out_axes: Sequence[int], signature: Any
) -> Any:
    mapped.vmap(w, operands, jaxpr, in_axes)
    return WRITTEN
