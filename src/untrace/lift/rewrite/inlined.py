"""Which calls and branches the equations of their body may stand in the place of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from untrace import jax_compat

Literal = jax_compat.LITERAL_TYPE
# What leaves a rule out, named as rewrites are, by the primitive that calls a function with one; and that call's body.
_RULES = {
    "custom_jvp_call": ("unneeded_derivative_rule", "call_jaxpr"),
    "custom_vjp_call": ("unneeded_derivative_rule", "call_jaxpr"),
    "custom_vmap_call": ("unneeded_batching_rule", "call"),
}
# The name of the function whose call refuses a transformation.
_REFUSED = "_refused"
# For what a text is not to be used, by what leaves the rules for it out.
RULES = {"unneeded_derivative_rule": "grad", "unneeded_batching_rule": "vmap"}


def in_its_place(
    eqn: Any, results: set[Any], without: Collection[str], every: bool | None
) -> tuple[str, Any, Sequence[Any]] | None:
    """Of a body that may stand in the place of the equation that has it: what puts it there, the body, and its operands.

    results: those of the body around. without: what is not put there. every: whether all such are asked for, or rules that
    nothing needs alone; None: what refuses a transformation alone.
    """
    if every is None:
        refused = _refusal(eqn)
        return None if refused is None else ("refusal", refused, eqn.invars)
    rule = _unneeded_rule(eqn, without, results)
    if rule is not None:
        return *rule, eqn.invars
    if not every:
        return None
    branch = _default_branch(eqn)
    if branch is not None:
        return "default_platform", branch, eqn.invars[1:]
    return ("inlined_call", eqn.params["call_jaxpr"], eqn.invars) if _is_plain_call(eqn, results) else None


def _unneeded_rule(eqn: Any, without: Collection[str], results: set[Any]) -> tuple[str, Any] | None:
    """What leaves out the rule of an author's function that an equation calls, and the function's body; None where it stays.

    without: what is not to be left out. A derivative that the program itself asks for is a call with a body of its own, or
    was written out by its rule, so that none here is needed.
    """
    found = _RULES.get(eqn.primitive.name)
    if found is None or found[0] in without or eqn.effects:
        return None
    closed = eqn.params[found[1]]
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if consts or jax_compat.is_library_jaxpr(closed) or not keeps_results(eqn, jaxpr, results):
        return None
    return found[0], closed


def ruled_function(eqn: Any) -> Any:
    """What tells the function with a rule that an equation calls from others; None where it calls none."""
    found = _RULES.get(eqn.primitive.name)
    return None if found is None else jax_compat.function_place(eqn.params[found[1]])


def _refusal(eqn: Any) -> Any:
    """The empty body of a call that does nothing but refuse a transformation, as a text's helper `_refuses` has it; else None."""
    found = _RULES.get(eqn.primitive.name)
    closed = None if found is None else eqn.params[found[1]]
    if closed is None or jax_compat.open_jaxpr(closed)[0].eqns or jax_compat.function_name(closed) != _REFUSED:
        return None
    return closed


def _is_plain_call(eqn: Any, results: set[Any]) -> bool:
    """Whether an equation calls a jaxpr as no public function does, and its equations may stand in its place."""
    if eqn.primitive.name not in ("closed_call", "eval_jaxpr") or eqn.effects:
        return False
    jaxpr, consts = jax_compat.open_jaxpr(eqn.params["call_jaxpr"])
    return not consts and keeps_results(eqn, jaxpr, results)


def keeps_results(eqn: Any, jaxpr: Any, results: set[Any]) -> bool:
    """Whether the results of the body around a call stay variables of its own without the call."""
    pairs = zip(eqn.outvars, jaxpr.outvars, strict=True)
    return results.isdisjoint([out for out, inner in pairs if type(inner) is Literal or inner in jaxpr.invars])


def _default_branch(eqn: Any) -> Any:
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
