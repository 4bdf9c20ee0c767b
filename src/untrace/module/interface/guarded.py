"""What an entry depends on beside its arguments: what its guard is made of (`guard`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict


class Settings(TypedDict, total=False):
    """What `_checked` takes, of sizes by the number that stands for one."""

    least: dict[int, int]
    most: dict[int, int]
    multiples: dict[int, int]
    sums: dict[int, tuple[tuple[tuple[int, int], ...], int]]  # sizes, how often each; what is added to them
    weak: bool
    x64: bool
    prng: str
    classes: dict[str, str] | type


@dataclass(frozen=True, slots=True)
class Guarded:
    """`answers`: as `_placed` takes them. `refuses`: transformations that the text has no rules for."""

    settings: Settings
    answers: Mapping[str, object]
    refuses: tuple[str, ...] = ()
