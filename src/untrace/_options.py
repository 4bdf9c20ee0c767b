"""How a program is written: the options of the public verbs."""

from __future__ import annotations

from dataclasses import dataclass

# The options that are words, and those that each knows.
WORDS = {
    "style": ("idiomatic", "exact"), "comments": ("full", "some", "none"), "annotations": ("none", "jaxtyping"),
    "reroll": ("loop", "scan"), "sizes": ("infer", "fixed"),
    "derivatives": ("auto", "called", "written"),
}  # fmt: skip


# The transformations that a text may be asked to allow.
ALLOWED = ("grad", "vmap")


@dataclass(frozen=True, slots=True)
class Options:
    """How a program is written; see `untrace.decompile`."""

    style: str = "idiomatic"
    standalone: bool = False
    prove: bool = True
    simplify: bool = True
    comments: str = "some"
    annotations: str = "none"
    reroll: str = "loop"
    sizes: str = "infer"
    guard: bool = True
    derivatives: str = "auto"
    allow: tuple[str, ...] = ALLOWED
    without: frozenset[str] = frozenset()  # passes and rewrites that are left out, by name (`bench/ablation.py`)
