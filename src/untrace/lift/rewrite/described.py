"""What simplifications did, in words for the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


def described(counts: Counter[str]) -> str:
    """The rewrites that were made, in words for the proof."""
    total = sum(counts.values())
    names = ", ".join(f"{name.replace('_', ' ')} ({count})" for name, count in sorted(counts.items()))
    return f"{total} simplification{'' if total == 1 else 's'}: {names}"


def unproven(counts: Collection[str]) -> tuple[str, ...]:
    """What nobody compares where these rewrites were made."""
    if "instantiated_zeros" in counts:
        return (
            "a derivative rule with symbolic zeros is written with arrays of them, and compared for non-zero tangents",
        )
    return ()
