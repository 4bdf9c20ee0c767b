"""JAX 0.12's `custom_root` as its three functions, so that it can be written as the public call.

There the equation is an object with Python functions (`CustomRoot`), and the `g` that `tangent_solve` is given is
another one (`_RootLinearMap`), which JAX differentiates only where it is used. So a `tangent_solve` may apply `g` to
what the derivative does not accept (a number of another dtype), and nothing is wrong until somebody runs that. Written
as `lax.custom_root(f, guess, solve, tangent_solve)`, with `g(v)` for the object inside, it stays the very same equation
and has the same derivatives, however often it is differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.jaxprs.expand.expansion import Expansion


@dataclass(frozen=True)
class Root:
    """The functions of one `custom_root`, expanded; each takes its constants first.

    `counts`: how many constants `f`, `solve` and `tangent_solve` have. `size`: leaves of the root. `tangent_solve` takes
    the root and what to solve for; it reads the root only where it applies `g`.
    """

    f: Any
    solve: Any
    tangent_solve: Any
    counts: tuple[int, ...]
    size: int

    def starts(self) -> tuple[int, int, int]:
        """Where the constants of the three functions begin among the operands; the guess follows those of `solve`."""
        f, solve, _ = self.counts
        return solve + self.size, 0, solve + self.size + f


def custom_root_of(eqn: Any, expander: Expansion) -> Root | None:
    """The parts of a `custom_root` that the public call gives back; None where it would not, and for other equations.

    That is so where `tangent_solve` applies `g` inside of other functions or has it batched (the Jacobian of `g`, an
    iterative solver), and where a function has one variable under two names, which a closure cannot tell apart.
    """
    found = jax_compat.root_functions(eqn)
    if found is None:
        return None
    (f, solve, tangent_solve), counts, size = found
    root = Root(f, solve, tangent_solve, tuple(counts), size)
    literal = jax_compat.LITERAL_TYPE
    for start, count in zip(root.starts(), counts, strict=True):
        closed = [v for v in eqn.invars[start : start + count] if type(v) is not literal]
        if len(IdentityMap((v, None) for v in closed)) < len(closed):
            return None
    maps = _applications(eqn, root)
    if maps is None:
        return None
    f, solve = expander.closed(f), expander.closed(solve)
    return Root(f, solve, expander.closed_but(tangent_solve, maps), root.counts, size)


def _applications(eqn: Any, root: Root) -> list[Any] | None:
    """The objects in `tangent_solve` that are its `g`, or None where something there is not quite that."""
    jaxpr, _ = jax_compat.open_jaxpr(root.tangent_solve)
    literal = jax_compat.LITERAL_TYPE
    f_start, _, start = root.starts()
    constants = eqn.invars[f_start : f_start + root.counts[0]]
    outside = dict(zip(jaxpr.invars, eqn.invars[start : start + root.counts[2]], strict=False))
    first = root.counts[2]
    point = list(jaxpr.invars[first : first + root.size])
    maps = []
    for inner in jaxpr.eqns:
        found = jax_compat.root_map_function(inner)
        if found is None:
            if any(_holds_map(j) for j in jax_compat.jaxprs_in(inner)) or _reads(inner.invars, point):
                return None
            continue
        function, _, count = found
        given = inner.invars[:count]
        if list(inner.invars[count : count + root.size]) != point or _reads(inner.invars[count + root.size :], point):
            return None
        if len(given) != len(constants) or not all(
            type(v) is not literal and _same_atom(outside.get(v), w) for v, w in zip(given, constants, strict=True)
        ):
            return None
        if function is not root.f and str(function) != str(root.f):
            return None
        maps.append(jax_compat.hi_primitive(inner))
    return None if _reads(jaxpr.outvars, point) else maps


def _reads(atoms: Sequence[Any], point: Sequence[Any]) -> bool:
    return any(a is p for a in atoms for p in point)


def _same_atom(left: Any, right: Any) -> bool:
    literal = jax_compat.LITERAL_TYPE
    if type(left) is literal and type(right) is literal:
        return str(left.aval) == str(right.aval) and repr(left.val) == repr(right.val)
    return left is right


def _holds_map(closed: Any) -> bool:
    """Whether a jaxpr has an application of a `g`, at any depth."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    return any(jax_compat.is_root_map(e) or any(_holds_map(j) for j in jax_compat.jaxprs_in(e)) for e in jaxpr.eqns)
