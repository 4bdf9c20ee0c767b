"""Loops are Python's own, choices `torch.where`: `torch.func.vmap` and a compiler know no `if` that looks at a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Function, Scan, While, callees
from untrace.targets.eager import control
from untrace.targets.torch.rules.table import rule

rule("scan")(control.scan)
rule("while")(control.while_)


@rule("cond")
def cond(w: Any, index: Any, *operands: Any, branches: Sequence[Function], branches_platforms: Any = None) -> Any:
    """All branches are computed, and one is chosen; where a branch has a loop, only that branch is run."""
    if any(map(_has_loop, branches)):
        return control.cond(w, index, *operands, branches=branches, branches_platforms=branches_platforms)
    return control.choice(w, w.tensor(0, index), branches)


def _has_loop(function: Function) -> bool:
    """Whether a function may take long, or for ever."""
    return any(isinstance(e.callee, Scan | While) for e in function.equations) or any(map(_has_loop, callees(function)))
