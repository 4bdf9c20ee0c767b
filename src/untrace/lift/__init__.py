"""Passes that raise the level of a Program: `passes.py` is the list of them."""

from untrace.lift.passes import PASSES, Lifting, lift
from untrace.lift.recognise import idioms as _idioms  # noqa: F401  (registers the idioms)
from untrace.lift.rewrite import arithmetic as _rewrites  # noqa: F401  (registers the simplifications)
from untrace.lift.rewrite import bounds as _rewrites_of_bounds  # noqa: F401
from untrace.lift.rewrite import choices as _rewrites_of_choices  # noqa: F401
from untrace.lift.rewrite import indices as _rewrites_of_indices  # noqa: F401
from untrace.lift.rewrite import loops as _rewrites_of_loops  # noqa: F401
from untrace.lift.rewrite import numbers as _rewrites_of_numbers  # noqa: F401
from untrace.lift.rewrite import products as _rewrites_of_products  # noqa: F401
from untrace.lift.rewrite import selectors as _rewrites_of_selectors  # noqa: F401
from untrace.lift.rewrite import shapes as _rewrites_of_shapes  # noqa: F401
from untrace.lift.rewrite import solves as _rewrites_of_solves  # noqa: F401
from untrace.lift.rewrite import types as _rewrites_of_types  # noqa: F401

__all__ = ["PASSES", "Lifting", "lift"]
