"""What the parts of a comparison ask of the whole (`comparer.Comparer`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol


class RuleComparer(Protocol):
    """For derivative rules (`rules`). `rule_depth`: how many rules deep the comparison is by now."""

    rule_depth: int
    traced_rules: Any

    def same(self, original: Any, written: Any) -> bool: ...
    def note(self, text: str) -> None: ...
    def forget(self) -> None: ...


class ClosureComparer(Protocol):
    """For operands whose order means nothing (`closures`)."""

    expander: Any
    values: Any

    def closure_pairs(self, ja: Any, jb: Any, free: tuple[int, int]) -> list[tuple[int, int]] | None: ...
    def is_one_to_one(self, pairs: Collection[tuple[int, int]]) -> bool: ...
