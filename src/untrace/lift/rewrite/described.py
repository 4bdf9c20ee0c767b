"""What simplifications did, in words for the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from untrace.lift.rewrite.inlined import RULES


def described(counts: Counter[str]) -> str:
    """The rewrites that were made, in words for the proof."""
    total = sum(counts.values())
    names = ", ".join(f"{name.replace('_', ' ')} ({count})" for name, count in sorted(counts.items()))
    return f"{total} simplification{'' if total == 1 else 's'}: {names}"


def unproven(counts: Collection[str]) -> tuple[str, ...]:
    """What nobody compares where these rewrites were made."""
    notes = []
    if "instantiated_zeros" in counts:
        notes.append(
            "a derivative rule with symbolic zeros is written with arrays of them, and compared for non-zero tangents"
        )
    if left_out(counts):
        what = " and ".join(f"jax.{transformation}" for transformation in left_out(counts))
        notes.append(f"rules for {what} that nothing in it uses are left out: {what} of it is not that of the original")
    return tuple(notes)


def left_out(counts: Collection[str]) -> tuple[str, ...]:
    """The transformations that the program is no longer to be put to: rules for them were left out."""
    return tuple(dict.fromkeys(transformation for name, transformation in RULES.items() if name in counts))
