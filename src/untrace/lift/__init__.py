"""Passes that raise the level of a Program: `passes.py` is the list of them."""

from untrace.lift import idioms as _idioms  # noqa: F401  (registers the idioms)
from untrace.lift import rewrites as _rewrites  # noqa: F401  (registers the simplifications)
from untrace.lift import rewrites_of_bounds as _rewrites_of_bounds  # noqa: F401
from untrace.lift import rewrites_of_choices as _rewrites_of_choices  # noqa: F401
from untrace.lift import rewrites_of_indices as _rewrites_of_indices  # noqa: F401
from untrace.lift import rewrites_of_loops as _rewrites_of_loops  # noqa: F401
from untrace.lift import rewrites_of_numbers as _rewrites_of_numbers  # noqa: F401
from untrace.lift import rewrites_of_products as _rewrites_of_products  # noqa: F401
from untrace.lift import rewrites_of_selectors as _rewrites_of_selectors  # noqa: F401
from untrace.lift import rewrites_of_shapes as _rewrites_of_shapes  # noqa: F401
from untrace.lift import rewrites_of_solves as _rewrites_of_solves  # noqa: F401
from untrace.lift import rewrites_of_types as _rewrites_of_types  # noqa: F401
from untrace.lift.passes import PASSES, Lifting, lift

__all__ = ["PASSES", "Lifting", "lift"]
