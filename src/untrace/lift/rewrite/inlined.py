"""Which calls and branches the equations of their body may stand in the place of."""

from __future__ import annotations

from typing import Any

from untrace import jax_compat

Literal = jax_compat.LITERAL_TYPE


def is_plain_call(eqn: Any, results: set[Any]) -> bool:
    """Whether an equation calls a jaxpr as no public function does, and its equations may stand in its place."""
    if eqn.primitive.name not in ("closed_call", "eval_jaxpr") or eqn.effects:
        return False
    jaxpr, consts = jax_compat.open_jaxpr(eqn.params["call_jaxpr"])
    return not consts and keeps_results(eqn, jaxpr, results)


def keeps_results(eqn: Any, jaxpr: Any, results: set[Any]) -> bool:
    """Whether the results of the body around a call stay variables of its own without the call."""
    pairs = zip(eqn.outvars, jaxpr.outvars, strict=True)
    return results.isdisjoint([out for out, inner in pairs if type(inner) is Literal or inner in jaxpr.invars])


def default_branch(eqn: Any) -> Any:
    """The branch of every platform that a program is compiled for, where only kernels of Mosaic have another; else None.

    `jnp.diagonal` has one for them: no program is lowered for the platform "mosaic", only what a Pallas kernel calls.
    """
    platforms = eqn.params.get("branches_platforms") if eqn.primitive.name == "cond" else None
    if not platforms or sorted(map(str, platforms)) != ["('mosaic',)", "None"] or eqn.effects:
        return None
    branch = eqn.params["branches"][list(platforms).index(None)]
    jaxpr, consts = jax_compat.open_jaxpr(branch)
    if consts or any(type(v) is Literal or v in jaxpr.invars for v in jaxpr.outvars):
        return None
    return branch
