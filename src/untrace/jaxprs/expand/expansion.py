"""What the parts of an expansion ask of the whole (`expand.Expander`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from untrace import jax_compat


class Expansion(Protocol):
    def closed(self, closed: Any) -> Any:
        """A closed jaxpr without library primitives; the same object when it has none."""

    def closed_but(self, closed: Any, kept: Sequence[Any]) -> Any:
        """The same, in which the objects in `kept` stay."""

    def rule(self, closed: Any, tangent: Sequence[bool]) -> Any:
        """A derivative rule without library primitives; `tangent` says which operands are tangents."""


def spliced(eqn: Any, inner: Any, substitute: dict[Any, Any]) -> list[Any]:
    """The equations of `inner` in the place of `eqn`; `substitute` learns what `eqn`'s results are now."""
    operands = jax_compat.substituted(eqn.invars, substitute)
    env = dict(zip(inner.invars, operands, strict=True))
    eqns = [jax_compat.equation_inside(e, eqn, env) for e in inner.eqns]
    for var, atom in zip(eqn.outvars, jax_compat.substituted(inner.outvars, env), strict=True):
        substitute[var] = atom
    return eqns
