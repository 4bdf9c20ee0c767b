"""The order of what a `scan` carries means nothing: a loop that carries a tree has the leaves in the tree's own order.

Which carried value of the one loop is which of the other is guessed by what the bodies do with them, and then compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace import jax_compat
from untrace.jaxprs.equal.closures import may_be_permuted

_ROUNDS = 2


def reordered(ea: Any, eb: Any) -> Iterator[Any]:
    """`ea` with its carry in the order in which `eb` may have it, where that is another one."""
    if ea.primitive.name != "scan" or eb.primitive.name != "scan" or len(ea.outvars) != len(eb.outvars):
        return
    (consts, count), (_, count_b) = jax_compat.scan_counts(ea), jax_compat.scan_counts(eb)
    if count != count_b or count < 2:
        return
    waiting: dict[Any, list[int]] = {}
    for place, key in enumerate(_keys(ea)):
        waiting.setdefault(key, []).append(place)
    order = []
    for key in _keys(eb):
        places = waiting.get(key)
        if not places:
            return
        order.append(places.pop(0))
    if order == sorted(order):
        return
    closed = ea.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    invars = _permuted(jaxpr.invars, consts, order)
    body = jax_compat.rebuilt_jaxpr(closed, jaxpr.eqns, _permuted(jaxpr.outvars, 0, order), invars=invars)
    yield ea.replace(
        invars=_permuted(ea.invars, consts, order),
        outvars=_permuted(ea.outvars, 0, order),
        params={**ea.params, "jaxpr": body},
    )


def _permuted(values: Any, start: int, order: list[int]) -> list[Any]:
    return [*values[:start], *[values[start + i] for i in order], *values[start + len(order) :]]


def _keys(eqn: Any) -> list[int]:
    """For each carried value of a loop a number that tells what its body makes of it and with it."""
    consts, count = jax_compat.scan_counts(eqn)
    jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
    known: dict[Any, int] = {v: hash(str(v.aval)) for v in jaxpr.constvars}
    for place, var in enumerate(jaxpr.invars):
        known[var] = hash((max(place - consts - count, -1), str(var.aval)))
    carried = jaxpr.invars[consts : consts + count]

    def key(atom: Any) -> int:
        return known[atom] if type(atom) is not jax_compat.LITERAL_TYPE else hash(str(atom.val))

    for _ in range(_ROUNDS):
        for inner in jaxpr.eqns:
            operands = list(map(key, inner.invars))
            if may_be_permuted(inner):  # what it closes over comes in any order
                operands.sort()
            made = hash((inner.primitive.name, *operands))
            places = _keys(inner) if inner.primitive.name == "scan" else []  # its carry, too
            for i, out in enumerate(inner.outvars):
                known[out] = hash((made, places[i] if i < len(places) else i - len(places)))
        results = [key(v) for v in jaxpr.outvars[:count]]
        known.update((v, hash((known[v], r))) for v, r in zip(carried, results, strict=True))
    return [known[v] for v in carried]
