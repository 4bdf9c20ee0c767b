"""What the parts of an expansion ask of the whole (`expand.Expander`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Expansion(Protocol):
    def closed(self, closed: Any) -> Any:
        """A closed jaxpr without library primitives; the same object when it has none."""

    def closed_but(self, closed: Any, kept: Sequence[Any]) -> Any:
        """The same, in which the objects in `kept` stay."""

    def rule(self, closed: Any, tangent: Sequence[bool]) -> Any:
        """A derivative rule without library primitives; `tangent` says which operands are tangents."""
