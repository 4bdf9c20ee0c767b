"""Passes that raise the level of a Program: `passes.py` is the list of them."""

from untrace.lift.passes import PASSES, Lifting, lift
from untrace.lift.recognise import idioms as _idioms  # noqa: F401  (registers the idioms)
from untrace.lift.rewrite import (  # noqa: F401  (they register themselves)
    arithmetic,
    bounds,
    choices,
    indices,
    loops,
    numbers,
    products,
    selectors,
    shapes,
    solves,
    types,
)

__all__ = ["PASSES", "Lifting", "lift"]
