"""The rules of the C target, by family; importing them registers them."""

from __future__ import annotations

from untrace.targets.c.rules import (  # noqa: F401
    complexes,
    elementwise,
    indexing,
    linalg,
    products,
    random,
    reductions,
    shapes,
    sorting,
)
