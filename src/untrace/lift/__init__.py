"""Passes that raise the level of a Program, `Program -> Program`, in one readable list.

Each leaves the program meaning the same (`ir.evaluate` is the oracle of their tests), and what a pass finds is proven
once more when the written text is traced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from untrace.capture.body_trees import forget_trees
from untrace.ir.nodes import Program
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
from untrace.lift.associative import find_associative_scans
from untrace.lift.checkpoints import find_checkpoints, share_checkpoints
from untrace.lift.closed_constants import close_over_constants
from untrace.lift.engine import Lifter
from untrace.lift.folded_back import fold_back
from untrace.lift.names import name_values, provenance_of
from untrace.lift.options import USUAL, LiftOptions
from untrace.lift.outline import outline
from untrace.lift.prune import prune
from untrace.lift.pullbacks import find_pullbacks
from untrace.lift.pullbacks_once import call_once
from untrace.lift.residuals import bundle_residuals
from untrace.lift.solvers import find_solvers
from untrace.lift.sums import add_cotangents
from untrace.lift.tree_maps import map_trees


def lift(
    program: Program,
    refused: Mapping[int, int] | frozenset[int] = frozenset(),
    inlined: frozenset[int] = frozenset(),
    options: LiftOptions = USUAL,
) -> Program:
    """The idiomatic form of `program`, in place. `refused`: ids of jaxpr equations to leave as they are; `inlined`: of
    those that must not even be in a function of their own."""
    program = find_checkpoints(program, refused)  # before anything looks into what they compute again
    program = prune(program)  # a dead equation that reads a value would keep it from being lifted
    program = name_values(program)  # while every equation still says where it came from
    program = close_over_constants(program)
    program = find_associative_scans(program, refused)  # before its combining function is outlined a dozen times
    program = find_solvers(program, refused)  # before calls of the author's stand in its function
    program = find_pullbacks(program, refused)  # so that what they save is one value
    if options.pullbacks_once:
        program = call_once(program)
    # Before lifting: a library call should not hide whose call it is in.
    if options.outline is not None:
        program = options.outline(program, inlined)
    else:
        program = outline(program, inlined, options.padding)
    program = share_checkpoints(program, refused)  # of the functions that are there now
    forget_trees(program, refused)
    any_size = program.numbers is not None
    program = Lifter(refused, program.facts.own, any_size, provenance=provenance_of(program)).lift(program)
    if options.adds_cotangents:
        program = add_cotangents(program, refused)  # after the library calls that they are part of
    program = fold_back(program)
    program = map_trees(program, refused)
    return bundle_residuals(program, refused)  # last: the other passes see arrays only
