"""`jax.vmap`, where the capture found the call again."""

from __future__ import annotations

from typing import Any

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Function
from untrace.ir.structured import Map
from untrace.module.rules import WRITTEN
from untrace.targets.jax import vmap as mapped
from untrace.targets.jax.rules.table import rule


@rule("vmap")
def vmap(w: Any, *operands: Any, jaxpr: Function) -> Any:
    mapped.vmap(w, operands, callee_of(w.equation, Map))
    return WRITTEN
