"""Calls of `jax.vjp` that one expression of the author's makes several times, of the same: one call, whose pullback is called
several times.

    smaller, minimum_vjp = jax.vjp(lambda x: jnp.minimum(1.0, x), ratio)      ...      minimum_vjp(d_y)[0] + minimum_vjp(d_z)[0]

As with all that is computed once (`computed_once`), the program that the text comes back as is another one then, so that
both are made: the jaxpr without the other calls' equations (`without_repeated`), and the Program (`call_once`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Function, Library, Primitive, Program, Value, walk_functions
from untrace.jaxprs.equal.comparer import Comparer
from untrace.lift.outline.pieces import renamed
from untrace.lift.rewrite.common_subexpressions import author_chain
from untrace.provenance.sites import Provenance


def repeated(program: Program) -> dict[JaxprEqn, JaxprEqn]:
    """{id of an equation of a forward part: the equation of an earlier one that computes the same}, of jaxprs."""
    found: dict[JaxprEqn, JaxprEqn] = {}
    for function in walk_functions(program.entry):
        for later, first in _pairs(function):
            found.update(_same_equations(later, first) or {})
    return found


def call_once(program: Program) -> Program:
    """Calls the first pullback where a program calls others like it, in place."""
    for function in walk_functions(program.entry):
        names: dict[Value, Value] = {}
        gone: set[Equation] = set()
        for later, first in _pairs(function):
            if _same_equations(later, first) is None:
                continue
            gone.add(later)
            for ours, kept in zip(later.outputs, first.outputs, strict=True):
                if ours is None or kept is None:
                    continue
                names[ours] = kept
                for mark in ("named", "named_inside"):
                    if getattr(ours, mark) and not (kept.named or kept.named_inside):
                        kept.hint = ours.hint
                        setattr(kept, mark, True)
        if gone:
            function.equations = [renamed(e, names) for e in function.equations if e not in gone]
            function.results = [names.get(r, r) if type(r) is Value else r for r in function.results]
    return program


def without_repeated(closed: Any, same: Mapping[JaxprEqn, JaxprEqn]) -> Any:
    """A jaxpr in which the earlier equations stand for those in `same` (`repeated`)."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    names: dict[Any, Any] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn in same:
            names.update(zip(eqn.outvars, jax_compat.substituted(same[eqn].outvars, names), strict=True))
            continue
        new = jax_compat.with_inner_jaxprs(eqn, lambda inner: without_repeated(inner, same))
        if any(type(v) is not jax_compat.LITERAL_TYPE and v in names for v in new.invars):
            new = new.replace(invars=jax_compat.substituted(new.invars, names))
        eqns.append(new)
    if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return closed
    return jax_compat.rebuilt_jaxpr(closed, eqns, jax_compat.substituted(jaxpr.outvars, names))


def _pairs(function: Function) -> list[tuple[Equation, Equation]]:
    """(a call of `jax.vjp`, an earlier one like it that the same expression of the author's made)."""
    provenance = Provenance()
    found = []
    first: dict[Any, Equation] = {}
    for equation in function.equations:
        callee = equation.callee
        if type(callee) is not Library or not callee.name.startswith("vjp."):
            continue
        chain = author_chain(equation.origin, provenance)
        inputs = tuple([a if type(a) is Value else repr(getattr(a, "value", a)) for a in equation.inputs])
        settings = repr(callee.args), repr(callee.kwargs), callee.auxiliary, callee.own_tuple
        key = callee.name, settings, inputs, chain
        known = first.setdefault(key, equation)
        if known is not equation and chain:
            found.append((equation, known))
    return found


def _same_equations(later: Equation, first: Equation) -> dict[JaxprEqn, JaxprEqn] | None:
    """{id of each equation of the one call: that of the other}; None where they are not the same one by one."""
    pairs = [
        [e for e in callee_of(call, Library).body.equations if isinstance(e.callee, Primitive)]
        for call in (later, first)
    ]
    if len(pairs[0]) != len(pairs[1]) or any(a is None and b is not None for a, b in zip(first.outputs, later.outputs)):  # noqa: B905
        return None
    comparer = Comparer()
    known: dict[Any, Any] = {}
    for a, b in zip(*pairs, strict=True):
        one, other = a.origin, b.origin
        if not comparer.same_head(one, other) or comparer.differing_param(one, other) is not None:
            return None
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if type(x) is Value and known.get(x, x) is not y:
                return None
        if any(type(p) is jax_compat.DROP_TYPE and type(o) is not jax_compat.DROP_TYPE
               for o, p in zip(one.outvars, other.outvars, strict=True)):  # fmt: skip
            return None
        known.update(zip(a.outputs, b.outputs, strict=True))
    return {a.origin: b.origin for a, b in zip(*pairs, strict=True)}
