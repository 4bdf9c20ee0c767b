"""Which equation of one jaxpr is which of another that is the same program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace import jax_compat
from untrace.jaxprs.equal.comparer import Comparer, Pairing, Side, ordered_effects
from untrace.jaxprs.expand.expand import Expander

Path = tuple[int, ...]


def paired_equations(original: Any, written: Any, expander: Expander | None = None) -> Iterator[tuple[Path, Any, Any]]:
    """(place, equation of `original`, the one in its place in `written`) for all equations, of inner jaxprs too.

    A place is the number of an equation, that of a jaxpr inside it, the number of an equation there, and so on. A jaxpr
    that several equations share comes once for each. Left out are equations that nothing needs, and those of derivative rules.
    """
    comparer = Comparer(expander or Expander(), carries=True, sums=True)
    stack: list[tuple[Path, Any, Any]] = [((), original, written)]
    while stack:
        place, a, b = stack.pop()
        for number, ea, eb in _level(comparer, Side.of(a), Side.of(b)):
            yield (*place, number), ea, eb
            inner = zip(jax_compat.jaxprs_in(ea), jax_compat.jaxprs_in(eb), strict=False)
            stack += [((*place, number, i), x, y) for i, (x, y) in enumerate(inner)]


class _Outside(Comparer):
    """Compares equations that hold jaxprs by the types of these alone, and others as ever."""

    def differing_param(self, ea: Any, eb: Any) -> str | None:
        inner = jax_compat.jaxprs_in(ea), jax_compat.jaxprs_in(eb)
        alike = len(inner[0]) == len(inner[1])
        if not alike or any(self.interface(Side.of(a), Side.of(b)) for a, b in zip(*inner, strict=True)):
            return "jaxpr"
        return None if inner[0] else super().differing_param(ea, eb)


def _level(comparer: Comparer, a: Side, b: Side) -> list[tuple[int, Any, Any]]:
    """The pairs of two jaxprs, without those inside their equations."""
    alike = len(a.invars) == len(b.invars)
    if alike and comparer.in_lockstep(a, b):
        return [(i, ea, eb) for i, (ea, eb) in enumerate(zip(a.eqns, b.eqns, strict=True))]
    # The two may take what they close over in another order: which inputs are the same is found from the results.
    free = (frozenset(a.invars), frozenset(b.invars))
    most: Pairing | None = None
    # The proof may be of less than what is compared here, inside of some equations.
    for one in (comparer, _Outside(comparer.expander, carries=True, sums=True)):
        for either in ((frozenset[Any](), frozenset[Any]()), free) if alike else (free,):
            found = _followed(one, a, b, either)
            if found.complete:
                return _in_order(a, found)
            if most is None or len(found.paired) > len(most.paired):
                most = found
    return _in_order(a, most) if most is not None else []


def _followed(comparer: Comparer, a: Side, b: Side, free: tuple[frozenset[Any], frozenset[Any]]) -> Pairing:
    pairing = Pairing(comparer, a, b, *free)
    if not free[0]:
        pairing.fix(zip(a.invars, b.invars, strict=True))
    first, second = ordered_effects(a.eqns), ordered_effects(b.eqns)
    for key in first.keys() & second.keys():
        for ea, eb in zip(first[key], second[key], strict=False):
            pairing.pair_equations(ea, eb)
    pairing.todo += zip(a.outvars, b.outvars, strict=False)
    pairing.complete = pairing.run()
    while not pairing.run():  # what does not fit is left out
        pass
    return pairing


def _in_order(a: Side, pairing: Pairing) -> list[tuple[int, Any, Any]]:
    return [(number, ea, pairing.paired[ea]) for number, ea in enumerate(a.eqns) if ea in pairing.paired]
