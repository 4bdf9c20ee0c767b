"""What one expression of the author's computes twice is computed once.

The author writes `rlax.vtrace(...)` or `scan(...)`, and a library, or JAX where it differentiates, computes the same thing
several times inside: `jnp.minimum(1.0, rhos)` three times, zeros for each part of a carry. XLA finds that again. What the
author himself wrote twice stays, and so does what belongs to two calls of a function or two turns of a loop: those are to
be recognised, and read alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.provenance.sites import Provenance

Literal = jax_compat.LITERAL_TYPE
# So many equations apart two equal ones are looked at: the equations of one expression follow each other.
_MOST_APART = 300
# Zeros and the like get a name where so many are the same: two are read faster where they stand.
_MANY = 3
# What JAX does to each index of `x[i, j]`, and what is recognised with it.
_OF_INDICES = frozenset("lt add select_n broadcast_in_dim reshape convert_element_type concatenate".split())


def computed_once(
    eqns: Sequence[Any], kept: set[JaxprEqn], results: set[Any], provenance: Provenance
) -> tuple[list[Any], dict[Any, Any]]:
    """(the equations without those that compute what an earlier one does, {their result: the earlier one's}).

    kept: ids of equations that stay. results: variables of the jaxpr's own that must.
    """
    apart: frozenset[Any] = frozenset()  # results inside a call that is recognised, which nothing else may read
    while True:
        found, names = _once(eqns, kept, results, provenance, apart)
        read = _read_besides(eqns, kept, names, found) - apart
        if not read:
            return found, names
        apart |= read


def constants_once(eqns: Sequence[Any], arrays: Collection[Any] = ()) -> list[Any]:
    """The equations, with loops that read once what they are passed twice as a constant, and branches that read an array of
    `arrays` once: `lax.scan` and `lax.cond` close over it once.

    What is passed again is still passed, and not read.
    """
    found = []
    for eqn in eqns:
        if eqn.primitive.name == "scan":
            count, _ = jax_compat.scan_counts(eqn)
            inner = _read_once(eqn.params["jaxpr"], eqn.invars[:count])
            if inner is not eqn.params["jaxpr"]:
                eqn = eqn.replace(params={**eqn.params, "jaxpr": inner})
        elif eqn.primitive.name == "cond" and any(times > 1 for times in _times(eqn, arrays).values()):
            branches = tuple([_read_once(branch, eqn.invars[1:], arrays) for branch in eqn.params["branches"]])
            eqn = eqn.replace(params={**eqn.params, "branches": branches})
        found.append(eqn)
    return found


def _times(eqn: Any, arrays: Collection[Any]) -> Counter[Any]:
    """How often each of `arrays` is passed to an equation."""
    return Counter(v for v in eqn.invars if type(v) is not Literal and v in arrays)


def _read_once(closed: Any, operands: Sequence[Any], arrays: Collection[Any] | None = None) -> Any:
    """A jaxpr that reads once what its first parameters are passed twice (of `arrays`, where these are given); itself where
    there is nothing of that."""
    names = _passed_again(closed, operands, arrays)
    if not names:
        return closed
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    inside = [
        e.replace(invars=jax_compat.substituted(e.invars, names)) if names.keys() & _read(e) else e for e in jaxpr.eqns
    ]
    return jax_compat.rebuilt_jaxpr(closed, constants_once(inside), jaxpr.outvars)


def _passed_again(closed: Any, operands: Sequence[Any], arrays: Collection[Any] | None) -> dict[Any, Any]:
    """{parameter that is read: an earlier one, for which the same is passed}."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    results = {v for v in jaxpr.outvars if type(v) is not Literal}
    names: dict[Any, Any] = {}
    first: dict[Any, Any] = {}
    for param, operand in zip(jaxpr.invars, operands, strict=False):
        if type(operand) is Literal or param in results or arrays is not None and operand not in arrays:
            continue
        other = first.setdefault(operand, param)
        if other is not param and other.aval.weak_type == param.aval.weak_type:
            names[param] = other
    read = set().union(*map(_read, jaxpr.eqns)) if names else set()
    return {param: other for param, other in names.items() if param in read}


def _read(eqn: Any) -> set[Any]:
    return {v for v in eqn.invars if type(v) is not Literal}


def _read_besides(eqns: Sequence[Any], kept: set[JaxprEqn], names: dict[Any, Any], found: Sequence[Any]) -> set[Any]:
    """Results of equations that stay which only such ones read before, and others read now; and those that another call
    which stays reads now: it would be in two pieces."""
    whole = {v for e in eqns if e in kept for v in e.outvars}
    inside = {v for e in eqns if e in kept for v in e.outvars}.intersection(names.values())
    if not inside:
        return set()
    open_ = inside.intersection([v for e in eqns if e not in kept for v in e.invars if type(v) is not Literal])
    before = {(v, o) for e in eqns for v in e.invars if type(v) is not Literal and v in inside for o in e.outvars}
    after = {(v, o) for e in found for v in e.invars if type(v) is not Literal and v in inside for o in e.outvars}
    return {v for v, o in after - before if v not in open_ or o in whole}


def _once(
    eqns: Sequence[Any], kept: set[JaxprEqn], results: set[Any], provenance: Provenance, apart: frozenset[Any]
) -> tuple[list[Any], dict[Any, Any]]:
    names: dict[Any, Any] = {}
    first: dict[Hashable, int] = {}  # what is computed -> the place in `found`
    found: list[Any] = []
    sums = _beginnings_of_sums(eqns)
    constants = Counter(
        [_key(e) for e in eqns if all(type(v) is Literal for v in e.invars) if sums.isdisjoint(e.outvars)]
    )
    staying: set[int] = set()  # places of equations that stay
    transposed: dict[Hashable, Any] = {}
    alike: dict[Any, Any] = {}  # what is written each time: the first that is the same
    for eqn in eqns:
        stays = eqn in kept
        if names and any(type(v) is not Literal and v in names for v in eqn.invars):
            eqn = eqn.replace(invars=jax_compat.substituted(eqn.invars, names))
        key = _key(eqn, alike) if apart.isdisjoint(eqn.outvars) else None
        of_leaf = key in constants and any(f.maps_leaves for f in provenance.site(eqn).frames)  # each has its own
        if key is not None and (of_leaf or _is_short(eqn)):
            alike[eqn.outvars[0]] = transposed.setdefault(key, eqn.outvars[0])
        elif (
            key is not None
            and results.isdisjoint(eqn.outvars)
            and sums.isdisjoint(eqn.outvars)
            and (eqn.primitive.name == "iota" or not 0 < constants[key] < _MANY)
        ):
            place = first.get(key)
            if (
                place is not None
                and (not stays or place in staying and not _are_of_one_call(found[place], eqn, provenance))
                and _in_one_expression(found[place:], eqn, provenance)
            ):
                names.update(zip(eqn.outvars, found[place].outvars, strict=True))
                continue
            first[key] = len(found)
            if stays:
                staying.add(len(found))
        found.append(eqn)
    return found, names


def _are_of_one_call(first: Any, second: Any, provenance: Provenance) -> bool:
    """Whether one call of a function of JAX's computes both: `jnp.vdot(x, x)` flattens twice."""
    sites = provenance.site(first), provenance.site(second)
    called = sites[0].library
    return called is not None and called == sites[1].library and sites[0].frames == sites[1].frames


def _beginnings_of_sums(eqns: Sequence[Any]) -> set[Any]:
    """What loops begin with that add up a gradient: zeros like the parameters, each of its own."""
    found: set[Any] = set()
    for eqn in eqns:
        if eqn.primitive.name != "scan":
            continue
        consts, count = jax_compat.scan_counts(eqn)
        jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
        added = {o: e.invars for e in jaxpr.eqns if e.primitive.name in ("add", "add_any") for o in e.outvars}
        carried = zip(jaxpr.invars[consts:], jaxpr.outvars[:count], eqn.invars[consts:], strict=False)
        found.update(
            operand
            for param, result, operand in carried
            if type(result) is not Literal and type(operand) is not Literal and param in added.get(result, ())
        )
    return found


def _is_short(eqn: Any) -> bool:
    """Whether the text of an equation is as short as a name: `x.T`; or there is none, since only an operator with a number
    converts to a weak type: `0.5 * mask`."""
    if eqn.primitive.name == "convert_element_type":
        return bool(eqn.params["weak_type"])
    return eqn.primitive.name == "transpose" and len(eqn.params["permutation"]) == 2


def _key(eqn: Any, alike: Mapping[Any, Any] = MappingProxyType({})) -> Hashable | None:
    """Equal for equations that compute the same of the same; None for those that are looked at by nobody.

    alike: values that are the same as others.
    """
    if eqn.effects or eqn.primitive.name in ("jit", "pjit") and not jax_compat.is_library_jaxpr(eqn.params["jaxpr"]):
        return None
    if eqn.primitive.name not in ("jit", "pjit") and jax_compat.jaxprs_in(eqn):
        return None
    if eqn.primitive.name in _OF_INDICES and all(_is_discrete(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return None
    return equation_key(eqn, [v if type(v) is Literal else alike.get(v, v) for v in eqn.invars])


def equation_key(eqn: Any, operands: Sequence[Any]) -> Hashable | None:
    """Equal for equations that compute the same of `operands`; None where that is not known."""
    inputs = tuple([literal_key(v) if type(v) is Literal else v for v in operands])
    key = eqn.primitive, inputs, tuple(sorted(eqn.params.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _is_discrete(aval: Any) -> bool:
    return getattr(getattr(aval, "dtype", None), "kind", "") in ("b", "i", "u")


def literal_key(literal: Any) -> Hashable:
    aval = literal.aval
    return np.asarray(literal.val).tobytes(), aval.shape, aval.dtype, aval.weak_type


def _in_one_expression(between: Sequence[Any], eqn: Any, provenance: Provenance) -> bool:
    """Whether the author ran one expression from the first of the equations up to `eqn`."""
    if len(between) > _MOST_APART:
        return False
    chain = author_chain(between[0], provenance)
    if not chain or author_chain(eqn, provenance) != chain:
        return False
    # Two modules compute their own, but numbers are of no module: the first states of all cells.
    of_numbers = all(type(v) is Literal for v in eqn.invars)
    if not of_numbers and provenance.site(between[0]).scopes != provenance.site(eqn).scopes:
        return False
    if not all(author_chain(e, provenance)[: len(chain)] == chain for e in between):
        return False
    # Where JAX transposes a loop, what it makes for that comes before: what comes after is for another turn's or call's.
    source = jax_compat.equation_source(between[0])[0]
    loops = [e for e in between if e.primitive.name == "scan"]
    return not any(jax_compat.equation_source(e)[0] is source for e in loops)


def author_chain(eqn: Any, provenance: Provenance) -> tuple[Any, ...]:
    """Where in the author's functions an equation comes from, outermost first."""
    return tuple([(id(f.code), f.lasti) for f in provenance.site(eqn).frames if not f.library])
