"""Equal constants as one: a simplification of whole jaxprs, `equal_constants`.

JAX tells constants apart by identity and lowers each, so that a library that makes `jnp.zeros(3)` in thirty places
leaves thirty arrays, and JAX 0.12 makes a new one of an array of NumPy's wherever that is read. One of them stands
for all; XLA would come to the same. Arrays that the function knows by different names stay apart, for whoever edits
one of them does not mean the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace._identity import IdentityMap

Literal = jax_compat.LITERAL_TYPE
_CALLS = frozenset({"jit", "pjit", "cond"})  # what they take they may take twice


def representatives(closed: Any, named: IdentityMap[Any, str], transparent: Collection[str]) -> IdentityMap[Any, Any]:
    """{a constant: the first constant of the same type and bits}, for all that are not the first.

    named: names by which the function knows some: those are one only with others of the name.
    transparent: primitives whose jaxprs are looked into.
    """
    same: IdentityMap[Any, Any] = IdentityMap()
    alike: dict[Any, list[tuple[Any, Any]]] = {}
    seen: set[Any] = set()
    met: IdentityMap[Any, None] = IdentityMap()
    todo = [closed]
    while todo:
        jaxpr, consts = jax_compat.open_jaxpr(todo.pop())
        if jaxpr in seen:
            continue
        seen.add(jaxpr)
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            if value not in met:
                met[value] = None
                key = (named.get(value), var.aval.shape, str(getattr(var.aval, "dtype", "")))
                alike.setdefault(key, []).append((value, var.aval))
        for eqn in reversed(jaxpr.eqns):
            if eqn.primitive.name in transparent:
                todo.extend(reversed(_jaxprs_of(eqn)))
    for several in alike.values():
        first: dict[Any, Any] = {}
        for value, aval in several if len(several) > 1 else ():  # large arrays are rarely two of one shape
            bits = _bits(value, aval)
            if bits is not None and first.setdefault(bits, value) is not value:
                same[value] = first[bits]
    return same


def merged(jaxpr: Any, consts: Sequence[Any], same: IdentityMap[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """({variable of a constant: the variable that stands for it}, the values of all) for one jaxpr.

    Loops take what they close over once: where one would come to take an array twice, the two stay apart.
    """
    values = [same.get(value, value) for value in consts]
    first: IdentityMap[Any, Any] = IdentityMap()
    found: dict[Any, Any] = {}
    for var, value in zip(jaxpr.constvars, values, strict=False):
        other = first.setdefault(value, var)
        if other is not var:
            found[var] = other
    for eqn in jaxpr.eqns if found else ():
        if eqn.primitive.name in _CALLS or not eqn.params or not _has_parts(eqn):
            continue
        taken = {v for v in eqn.invars if type(v) is not Literal and v not in found}
        for var in dict.fromkeys(v for v in eqn.invars if type(v) is not Literal and v in found):
            if found[var] in taken:
                del found[var]
            else:
                taken.add(found[var])
    # What stays apart keeps its own array, by which it is told from the other.
    values = [
        old if new is not old and first[new] is not var and var not in found else new
        for var, old, new in zip(jaxpr.constvars, consts, values, strict=False)
    ]
    return found, values


def _bits(value: Any, aval: Any) -> tuple[Any, ...] | None:
    """What two constants have in common when one can stand for the other: type and bits. None of what only itself can
    stand for: keys, mutable arrays, tracers, arrays on several devices."""
    if (
        jax_compat.is_ref(value)
        or jax_compat.is_tracer(value)
        or not isinstance(getattr(aval, "dtype", None), np.dtype)
    ):
        return None
    if aval.dtype == jax_compat.FLOAT0 or jax_compat.is_jax_array(value) and len(value.sharding.device_set) > 1:
        return None
    bits = np.asarray(value).astype(aval.dtype, copy=False).tobytes()
    return (aval.dtype.name, aval.shape, aval.weak_type, str(getattr(aval, "sharding", None)), bits)


def _jaxprs_of(eqn: Any) -> list[Any]:
    return [
        item
        for value in eqn.params.values()
        for item in (value if type(value) in (tuple, list) else (value,))
        if jax_compat.is_jaxpr(item)
    ]


def _has_parts(eqn: Any) -> bool:
    return bool(_jaxprs_of(eqn)) or any(callable(v) and not isinstance(v, type) for v in eqn.params.values())
