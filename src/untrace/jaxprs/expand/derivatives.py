"""Keeps the derivatives of library primitives whose implementation, differentiated, would give
another one.

`lineax.linear_solve` returns a solution that depends on the operator only through a factorisation
which is not differentiated: its JVP rule is the implicit derivative of the solution. Written as its
implementation alone, the derivative would silently be wrong. A solve with a square operator of full
rank is what `jax.lax.custom_linear_solve` is for (see `linear_solve.py`). For everything else,
where a primitive's own JVP rule is not what `jax.jvp` of the implementation gives, the
implementation stands in a `jax.custom_jvp` with the library's rule. In the rule, an application to
tangents has the library's transpose rule as well: it stands in a
`jax.custom_derivatives.linear_call` (a solver's loop could not be transposed by JAX).

Both are inlined by lowering (`custom_jvp_call_p`, `linear_call_p` in
jax/_src/custom_derivatives.py), so the StableHLO stays that of the original. What JAX's
`linear_call` cannot do is lost: it refuses second derivatives through a *transposed* application
(reverse mode twice over one solve).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace.jaxprs.equal.values import same_array
from untrace.jaxprs.expand.expansion import Expansion, spliced
from untrace.jaxprs.expand.linear_solve import linear_solve_of
from untrace.provenance.whose import kind_of_called


@dataclass
class _Entry:
    """A custom_jvp function that stands for one primitive with its parameters and types; `like` has
    those.
    """

    like: Any
    linear: tuple[bool, ...]
    varied: tuple[bool, ...] = ()  # the operands that the library's rule differentiates
    result: tuple[Callable[..., list[Any]], str] | None = None
    traced: Any = None  # ClosedJaxpr of the library's JVP rule
    rule: Any = None  # the same, expanded, once it was asked for


@dataclass
class LibraryRules:
    """The custom_jvp functions made for one Expander: one for each primitive, parameters and types.

    One function for equal applications, so that a rule which applies its own primitive (the tangent
    of a solve is a solve) is seen to be the same function again, not another one for ever.
    """

    expander: Expansion
    plain: Expansion  # expands without custom rules: for comparing, and inside a transpose
    _entries: list[_Entry] = field(default_factory=list)
    _derived: dict[Any, bool] = field(default_factory=dict)

    def function_for(
        self, eqn: Any, implementation: Any, linear: Sequence[bool] = ()
    ) -> tuple[Callable[..., list[Any]], str] | None:
        """(function of the operands with the library's derivative, how it has it), None where JAX's
        own is the same.

        implementation: ClosedJaxpr of what the primitive computes, not expanded. linear: which
        operands are tangents; then the function can also be transposed by the library's rule, where
        it has one.
        """
        solve = linear_solve_of(eqn, implementation, self.plain)
        if solve is not None:
            return solve, "in a `jax.lax.custom_linear_solve`"
        rule = jax_compat.jvp_rule(eqn.primitive)
        if rule is None or not any(jax_compat.has_tangent(v.aval) for v in eqn.invars):
            return None
        mask = tuple(linear) if any(linear) else ()
        for entry in self._entries:
            if entry.linear == mask and _same_application(entry.like, eqn, bool(mask)):
                return entry.result
        entry = _Entry(eqn, mask)
        self._entries.append(entry)
        entry.traced = self._differentiated(entry, rule)
        if entry.traced is None or self._jax_derivative_is_the_same(entry, implementation):
            return None
        primal: Callable[..., list[Any]] | None = None
        if mask:
            primal = self._transposable(eqn, implementation, mask)
        if primal is None:
            closed = implementation

            def primal(*args: Any) -> list[Any]:
                return jax_compat.evaluate_closed(closed, args)

        entry.result = self._custom(entry, primal), "with its own derivative rule"
        return entry.result

    def is_derived(self, eqn: Any) -> bool:
        """Whether an equation calls a `custom_jvp` function of a library with the rule that JAX derives by itself.

        So has what a library wraps its functions in to check their operands, or to refuse reverse mode of something else.
        """
        if eqn.primitive.name != "custom_jvp_call" or eqn.params["num_consts"] or eqn.effects:
            return False
        if kind_of_called(jax_compat.function_of_rule(eqn.params["jvp_jaxpr_fun"])) != "library":
            return False
        key = jax_compat.rule_key(eqn, eqn.params["jvp_jaxpr_fun"])
        if key not in self._derived:
            self._derived[key] = False  # for rules that call each other
            self._derived[key] = self._has_derived_rule(eqn, key)
        return self._derived[key]

    def _has_derived_rule(self, eqn: Any, key: Any) -> bool:
        function = eqn.params["call_jaxpr"]
        if _has_loops(function):
            return False
        moved = [jax_compat.has_tangent(v.aval) for v in eqn.invars]
        try:
            rule, zeros, taken = jax_compat.custom_jvp_rule(eqn)
        except Exception:  # a library's way to refuse a transformation
            return False
        kept = [jax_compat.has_tangent(v.aval) for v in eqn.outvars]
        if any(m and not t for m, t in zip(moved, taken, strict=True)) or kept != [not z for z in zeros]:
            return False

        def ours(*args: Any) -> list[Any]:
            tangents = [t for t, m in zip(args[len(moved) :], moved, strict=True) if m]
            return _derivative(function, moved, args[: len(moved)], tangents, kept)

        mine = self._traced_derivative(ours, [v.aval for v in jax_compat.open_jaxpr(rule)[0].invars], eqn)
        return mine is not None and self._are_same(self._inlined(mine, key), self._inlined(rule, key))

    def _inlined(self, closed: Any, key: Any) -> Any:
        """A jaxpr with the function whose rule has that key, and others with rules that JAX derives, in the place of their calls:
        a rule that calls its own function is compared as if it were derived."""
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        eqns: list[Any] = []
        substitute: dict[Any, Any] = {}
        for eqn in jaxpr.eqns:
            is_rule = eqn.primitive.name == "custom_jvp_call"
            if is_rule and (jax_compat.rule_key(eqn, eqn.params["jvp_jaxpr_fun"]) == key or self.is_derived(eqn)):
                inner = jax_compat.open_jaxpr(self._inlined(eqn.params["call_jaxpr"], key))[0]
                eqns += spliced(eqn, inner, substitute)
            else:
                new = jax_compat.with_inner_jaxprs(eqn, lambda c: self._inlined(c, key))
                eqns.append(new.replace(invars=jax_compat.substituted(new.invars, substitute)))
        return jax_compat.rebuilt_jaxpr(closed, eqns, jax_compat.substituted(jaxpr.outvars, substitute))

    # ------------------------------------------------------------ the two derivatives

    def _differentiated(self, entry: _Entry, rule: Any) -> Any:
        """ClosedJaxpr of the library's rule in the operands that it takes tangents of:
        `entry.varied`.

        Of the others (the state of a solver, say) it demands that they have none, and its callers
        see to that. None for a rule that takes no tangent at all: a refusal.
        """
        eqn = entry.like
        floats = tuple(jax_compat.has_tangent(v.aval) for v in eqn.invars)
        traced = self._accepted(eqn, rule, floats)
        if traced is None and sum(floats) > 1:
            each = [tuple(i == j for j in range(len(floats))) for i, f in enumerate(floats) if f]
            alone = {mask: self._accepted(eqn, rule, mask) for mask in each}
            taken = [mask for mask in each if alone[mask] is not None]
            floats = tuple(any(column) for column in zip(*taken, strict=True)) if taken else floats
            traced = alone[taken[0]] if len(taken) == 1 else self._accepted(eqn, rule, floats) if taken else None
        entry.varied = floats
        return traced

    def _accepted(self, eqn: Any, rule: Any, varied: Sequence[bool]) -> Any:
        try:
            return self._traced_rule(eqn, rule, varied)
        except Exception:  # a library's way to refuse a transformation
            return None

    def _jax_derivative_is_the_same(self, entry: _Entry, implementation: Any) -> bool:
        """Whether `jax.jvp` of the implementation and the library's rule trace to the same jaxpr.

        Of an implementation with loops the rule is kept without asking: its derivative is iterated
        as well. So is that of one which does not read all operands: `custom_jvp` keeps them alive,
        as the library's primitive did, where JAX would remove what computes them.
        """
        if _has_loops(implementation) or _ignores_operands(implementation):
            return False
        eqn, has, theirs = entry.like, entry.varied, entry.traced
        keep = [jax_compat.has_tangent(v.aval) for v in eqn.outvars]

        def ours(*args: Any) -> list[Any]:
            return _derivative(implementation, has, args[: len(has)], args[len(has) :], keep)

        mine = self._traced_derivative(ours, self._rule_avals(eqn, has), eqn)
        return mine is not None and self._are_same(mine, theirs)

    def _traced_derivative(self, ours: Callable[..., list[Any]], avals: Sequence[Any], eqn: Any) -> Any:
        """ClosedJaxpr of a function with JAX's derivative; None where JAX cannot differentiate it: the library's rule is needed."""
        try:
            return jax_compat.trace_on_avals(ours, avals, eqn.ctx)
        except Exception:
            return None

    def _are_same(self, one: Any, other: Any) -> bool:
        """Whether two jaxprs, without dead equations and library primitives, have the same text, in which names are canonical,
        and the same constants in it."""
        first, second = (_without_copies(jax_compat.without_dead_code(self.plain.closed(c))) for c in (one, other))
        if str(first) != str(second):
            return False
        pairs = zip(_constants(first), _constants(second), strict=True)
        return all(same_array(a, b) for a, b in pairs)

    def _rule_avals(self, eqn: Any, varied: Sequence[bool]) -> list[Any]:
        avals = [v.aval for v in eqn.invars]
        return [*avals, *[a.to_tangent_aval() for a, v in zip(avals, varied, strict=True) if v]]

    def _traced_rule(self, eqn: Any, rule: Any, varied: Sequence[bool]) -> Any:
        """ClosedJaxpr of the library's rule: operands and tangents of the varied ones to results
        and their tangents.
        """

        def run(*args: Any) -> list[Any]:
            given = iter(args[len(varied) :])
            tangents = [next(given) if v else None for v in varied]
            outs, out_tangents = jax_compat.call_jvp_rule(rule, eqn, args[: len(varied)], tangents)
            return [*outs, *[t for t in out_tangents if t is not None]]

        return jax_compat.trace_on_avals(run, self._rule_avals(eqn, varied), eqn.ctx)

    # ------------------------------------------------------------ the functions

    def _custom(self, entry: _Entry, primal: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        eqn = entry.like
        has = entry.varied
        function = jax.custom_jvp(primal)

        def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            if entry.rule is None:
                moving = [False] * len(has) + [True] * sum(has)
                entry.rule = self.expander.rule(entry.traced, moving)
            given = [t for t, h in zip(tangents, has, strict=True) if h]
            results = jax_compat.evaluate_closed(entry.rule, [*primals, *given])
            outs, rest = results[: len(eqn.outvars)], iter(results[len(eqn.outvars) :])
            out_tangents = [
                next(rest) if jax_compat.has_tangent(v.aval) else np.zeros(v.aval.shape, jax_compat.FLOAT0)
                for v in eqn.outvars
            ]
            return outs, out_tangents

        name = jax_compat.primitive_label(eqn).replace("-", "_")
        primal.__name__ = primal.__qualname__ = name
        jvp.__name__ = jvp.__qualname__ = f"{name}_jvp"
        function.defjvp(jvp)
        return function

    def _transposable(self, eqn: Any, implementation: Any, mask: Sequence[bool]) -> Callable[..., list[Any]] | None:
        """The implementation as a `linear_call` in the operands of `mask`; None where the library
        cannot transpose.
        """
        rule = jax_compat.transpose_rule(eqn.primitive)
        if rule is None or not all(jax_compat.has_tangent(v.aval) for v, m in zip(eqn.invars, mask, strict=True) if m):
            return None
        wanted = [jax_compat.has_tangent(v.aval) for v in eqn.outvars]
        # Results without tangents (a status, a step count) are no linear functions; a tangent has
        # no use for them.
        if any(not w and not jax_compat.is_dropped(v) for v, w in zip(eqn.outvars, wanted, strict=True)):
            return None

        def merged(residuals: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
            rest, moving = iter(residuals), iter(linear)
            return [next(moving) if m else next(rest) for m in mask]

        def transposed(*args: Any) -> list[Any]:
            split = len(mask) - sum(mask)
            given = iter(args[split:])
            cotangents = [next(given) if w else None for w in wanted]
            return jax_compat.call_transpose_rule(rule, eqn, merged(args[:split], [None] * sum(mask)), cotangents)

        fixed = [v.aval for v, m in zip(eqn.invars, mask, strict=True) if not m]
        moved = [jax_compat.core_cotangent(v.aval) for v, w in zip(eqn.outvars, wanted, strict=True) if w]
        try:
            back = self.plain.closed(jax_compat.trace_on_avals(transposed, [*fixed, *moved], eqn.ctx))
        except Exception:  # the library refuses: then JAX's own transpose has to do
            return None
        forward = self.plain.closed(implementation)

        def apply(residuals: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
            outs = jax_compat.evaluate_closed(forward, merged(residuals, linear))
            return [o for o, w in zip(outs, wanted, strict=True) if w]

        def apply_transposed(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            return jax_compat.evaluate_closed(back, [*residuals, *cotangents])

        def primal(*args: Any) -> list[Any]:
            residuals = [a for a, m in zip(args, mask, strict=True) if not m]
            linear = [a for a, m in zip(args, mask, strict=True) if m]
            outs = iter(jax.custom_derivatives.linear_call(apply, apply_transposed, residuals, linear))
            return [
                next(outs) if w else jnp.zeros(v.aval.shape, v.aval.dtype)
                for v, w in zip(eqn.outvars, wanted, strict=True)
            ]

        return primal


def _derivative(
    closed: Any, varied: Sequence[bool], primals: Sequence[Any], tangents: Sequence[Any], kept: Sequence[bool]
) -> list[Any]:
    """The results of a closed jaxpr, and the tangents of the `kept` ones, by JAX's own rules. tangents: of the `varied` operands."""
    places = [i for i, v in enumerate(varied) if v]

    def of_varied(*values: Any) -> list[Any]:
        full = list(primals)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        return jax_compat.evaluate_closed(closed, full)

    outs, out_tangents = jax.jvp(of_varied, tuple(primals[i] for i in places), tuple(tangents))
    return [*outs, *[t for t, k in zip(out_tangents, kept, strict=True) if k]]


def _without_copies(closed: Any) -> Any:
    """A jaxpr without its own `copy` equations, which some rules make of their operands."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    substitute: dict[Any, Any] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        invars = jax_compat.substituted(eqn.invars, substitute)
        if eqn.primitive.name in ("copy", "copy_p"):
            substitute[eqn.outvars[0]] = invars[0]
        else:
            eqns.append(eqn.replace(invars=invars))
    return jax_compat.rebuilt_jaxpr(closed, eqns, jax_compat.substituted(jaxpr.outvars, substitute))


def _constants(closed: Any) -> list[Any]:
    """The values that a jaxpr and those in it have: constants, and literals, which a text may cut short."""
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    atoms = [*jaxpr.outvars, *[a for e in jaxpr.eqns for a in e.invars]]
    inner = [value for e in jaxpr.eqns for one in jax_compat.jaxprs_in(e) for value in _constants(one)]
    return [*consts, *[a.val for a in atoms if type(a) is jax_compat.LITERAL_TYPE], *inner]


def _ignores_operands(closed: Any) -> bool:
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    atoms = [*jaxpr.outvars, *[v for e in jaxpr.eqns for v in e.invars]]
    read = {v for v in atoms if type(v) is not jax_compat.LITERAL_TYPE}
    return not read.issuperset(jaxpr.invars)


_ITERATED = {"while", "scan", "custom_linear_solve", "pure_callback", "custom_vmap_call"}


def _has_loops(closed: Any) -> bool:
    """Whether a jaxpr has loops, solves, callbacks or own batching rules, at any depth."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _ITERATED:
            return True
        for value in eqn.params.values():
            parts = value if isinstance(value, (tuple, list)) else (value,)
            if any(jax_compat.is_jaxpr(p) and _has_loops(p) for p in parts):
                return True
    return False


def _same_application(a: Any, b: Any, results: bool) -> bool:
    """Whether two equations apply the same primitive with the same parameters to the same types.

    results: whether they must use the same results as well.
    """
    if a.primitive is not b.primitive or a.params.keys() != b.params.keys():
        return False
    if [str(v.aval) for v in a.invars] != [str(v.aval) for v in b.invars]:
        return False
    dropped = [[jax_compat.is_dropped(v) for v in eqn.outvars] for eqn in (a, b)]
    if results and dropped[0] != dropped[1]:
        return False
    return all(_same_param(k, a.params[k], b.params[k]) for k in a.params)


def _same_param(key: str, a: Any, b: Any) -> bool:
    # equinox's `flatten` is where a filtered primitive leaves the structure of its results, not a
    # parameter.
    if a is b or (key == "flatten" and type(a) is type(b)):
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_same_param("", x, y) for x, y in zip(a, b, strict=True))
    try:
        return bool(a == b)
    except Exception:  # an array, or a class whose `==` is not a question
        return False
