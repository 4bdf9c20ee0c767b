"""Comparison of derivative rules, which a jaxpr holds as closures.

Both rules are traced with no tangent (cotangent) a symbolic zero, and the jaxprs compared. A rule
often calls its own function, whose rule is then compared again: pairs under comparison count as the
same (coinduction), as two infinite trees are equal when no finite depth tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from untrace import jax_compat
from untrace.jaxprs.equal.protocols import RuleComparer
from untrace.jaxprs.expand.expand import Expander

# The parameters that hold rules, by primitive.
RULE_PARAMS: dict[str, tuple[str, ...]] = {
    "custom_jvp_call": ("jvp_jaxpr_fun",),
    "custom_vjp_call": ("fwd_jaxpr_thunk", "bwd", "out_trees"),
    "linear_call": ("transpose_thunk",),
    "remat_opt": ("fun_jaxpr_thunk",),
}
# Rules inside rules, where it cannot be told that they are one and the same rule again.
MAX_DEPTH = 2


@dataclass(frozen=True)
class Traced:
    """The rules of one equation as named jaxprs, with what else decides about their meaning."""

    jaxprs: tuple[tuple[str, Any], ...] = ()
    layout: tuple[Any, ...] = ()
    error: str = ""


@dataclass
class TracedRules:
    """Rules that were traced, each once, and the pairs that were compared."""

    # A rule can bind library primitives that the program itself no longer has.
    expander: Expander = field(default_factory=Expander)
    _traced: dict[Any, Traced] = field(default_factory=dict)
    known: dict[Any, str | None] = field(default_factory=dict)
    # Pairs whose difference is being explained: a rule that calls its own function is not explained
    # by the difference of that call.
    explaining: set[Any] = field(default_factory=set)

    def of(self, eqn: Any) -> Traced:
        key = self.key(eqn)
        if key not in self._traced:
            self._traced[key] = _trace(eqn, self.expander)
        return self._traced[key]

    def key(self, eqn: Any) -> Any:
        """What the rules of an equation depend on; the equation itself when that cannot be told."""
        key = jax_compat.custom_rule_key(eqn)
        return eqn if key is None else (key, self.expander.perturbed_of(eqn))


def _trace(eqn: Any, expander: Expander) -> Traced:
    try:
        if eqn.primitive.name == "custom_jvp_call":
            jaxpr, zeros, perturbed = expander.jvp_of(eqn)
            return Traced((("jvp", jaxpr),), (tuple(zeros), tuple(perturbed)))
        if eqn.primitive.name == "linear_call":
            transpose, consts = eqn.params["transpose_thunk"]()
            return Traced((("transpose", transpose),), (len(consts),))
        if eqn.primitive.name == "remat_opt":  # what runs where the forward rule is not needed: the function itself
            return Traced((("function", jax_compat.close_jaxpr(*eqn.params["fun_jaxpr_thunk"]())),))
        forward, forwards, backward, *zeros_and_perturbed = expander.vjp_of(eqn)
        layout = (tuple(forwards), *map(tuple, zeros_and_perturbed))
        return Traced((("fwd", forward), ("bwd", backward)), layout)
    except Exception as error:  # a rule is user code: anything may be raised
        return Traced(error=f"{type(error).__name__}: {error}")


def differing_rule(comparer: RuleComparer, ea: Any, eb: Any) -> str | None:
    """The parameter that holds the first rule in which two equations differ, None for none."""
    names = RULE_PARAMS[ea.primitive.name]
    if all(ea.params[n] is eb.params[n] for n in names):
        return None
    rules = comparer.traced_rules
    pair = (rules.key(ea), rules.key(eb))
    if pair[0] == pair[1] or pair in rules.explaining:  # one rule, of the same types: it need not be traced
        return None
    if pair in rules.known:
        return rules.known[pair]
    if comparer.rule_depth >= MAX_DEPTH:
        comparer.note(
            f"derivative rules are compared {MAX_DEPTH} deep (first and second derivatives); "
            "some go deeper, and are taken to be the same there"
        )
        return None
    rules.known[pair] = None
    found = _differing(comparer, ea, eb)
    if found is not None:
        rules.known[pair] = found
        comparer.forget()
    return found


def _differing(comparer: RuleComparer, ea: Any, eb: Any) -> str | None:
    first, second = comparer.traced_rules.of(ea), comparer.traced_rules.of(eb)
    names = RULE_PARAMS[ea.primitive.name]
    if first.error and second.error:
        comparer.note(
            f"the derivative rule of {ea.primitive.name} cannot be traced on its own "
            f"({first.error[:100]}); it is taken to be the same"
        )
        return None
    if first.error or second.error or first.layout != second.layout:
        return names[0]
    if ea.params.get("symbolic_zeros"):
        comparer.note("a derivative rule with symbolic zeros is compared for non-zero tangents")
    comparer.rule_depth += 1
    try:
        for name, (_, a), (_, b) in zip(names, first.jaxprs, second.jaxprs, strict=False):
            if not comparer.same(a, b):
                return name
    finally:
        comparer.rule_depth -= 1
    return None
