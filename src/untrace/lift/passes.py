"""The passes that raise the level of a Program, in the order in which they are run.

Each leaves the program meaning the same (`ir.evaluate` is the oracle of their tests), and what a pass finds is proven
once more when the written text is traced as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.core import JaxprEqn

from untrace.ir.bodies import forget_trees
from untrace.ir.check import check
from untrace.ir.nodes import Program
from untrace.ir.passes import Pass, run_passes
from untrace.lift.adjoint.checkpoints import find_checkpoints, share_checkpoints
from untrace.lift.adjoint.pullbacks import find_pullbacks
from untrace.lift.adjoint.pullbacks_once import call_once
from untrace.lift.adjoint.residuals import bundle_residuals
from untrace.lift.adjoint.sums import add_cotangents
from untrace.lift.closed_constants import close_over_constants
from untrace.lift.naming.names import name_values, provenance_of
from untrace.lift.options import USUAL, LiftOptions
from untrace.lift.outline.inline import fold_back
from untrace.lift.outline.outline import outline
from untrace.lift.prune import prune
from untrace.lift.recognise.associative import find_associative_scans
from untrace.lift.recognise.engine import Lifter
from untrace.lift.recognise.flat_trees import ravel_trees
from untrace.lift.recognise.solvers import find_solvers
from untrace.lift.recognise.tree_maps import map_trees


@dataclass(slots=True)
class Lifting:
    """A Program on its way through the passes. `refused`: ids of jaxpr equations to leave as they are; `inlined`: of those
    that must not even be in a function of their own. `options`: what was decided beside that."""

    program: Program
    refused: frozenset[JaxprEqn] = frozenset()
    inlined: frozenset[JaxprEqn] = frozenset()
    options: LiftOptions = USUAL


def _outline(s: Lifting) -> None:
    if s.options.outline is not None:  # a capture that knows the calls by itself brings its own pass
        s.options.outline(s.program, s.inlined)
    else:
        outline(s.program, s.inlined, s.options.padding)


def _recognise(s: Lifting) -> None:
    program = s.program
    any_size = program.numbers is not None
    Lifter(s.refused, program.facts.own, any_size, provenance=provenance_of(program)).lift(program)


PASSES: tuple[Pass[Lifting], ...] = (
    Pass(
        "checkpoints", "before anything looks into what they compute again",
        lambda s: find_checkpoints(s.program, s.refused),
    ),
    Pass(
        "prune", "a dead equation that reads a value would keep it from being lifted",
        lambda s: prune(s.program, leaves=True),
    ),
    Pass("name-values", "while every equation still says where it came from", lambda s: name_values(s.program)),
    Pass(
        "close-over-constants", "what is passed on to functions and never changes is the array itself there",
        lambda s: close_over_constants(s.program),
    ),
    Pass(
        "associative-scans", "before the combining function is outlined a dozen times",
        lambda s: find_associative_scans(s.program, s.refused),
    ),
    Pass(
        "solvers", "before calls of the author's stand in the solver's function",
        lambda s: find_solvers(s.program, s.refused),
    ),
    Pass(
        "pullbacks", "so that what the two parts of a derivative hand on is one value",
        lambda s: find_pullbacks(s.program, s.refused),
    ),
    Pass(
        "equal-pullbacks", "one call of several that do the same", lambda s: call_once(s.program),
        applies=lambda s: s.options.pullbacks_once,
    ),
    Pass("outline", "before library calls, which would hide whose call an equation is in", _outline),
    Pass(
        "checkpoints-in-the-forward-pass", "of the functions that are there now",
        lambda s: share_checkpoints(s.program, s.refused),
    ),
    Pass(
        "forget-trees", "of what was wrong with them", lambda s: forget_trees(s.program, s.refused),
        applies=lambda s: bool(s.refused),
    ),
    Pass("library-calls", "equations become the calls of the public functions that give them", _recognise),
    Pass(
        "sums-of-cotangents", "after the library calls that they are part of",
        lambda s: add_cotangents(s.program, s.refused), applies=lambda s: s.options.adds_cotangents,
    ),
    Pass("inline-small-functions", "once it is seen how little they say", lambda s: fold_back(s.program)),
    Pass(
        "flat-trees", "before maps over leaves are looked for in the reshapes of a vector",
        lambda s: ravel_trees(s.program, s.refused),
    ),
    Pass("tree-maps", "the same for every leaf of a tree", lambda s: map_trees(s.program, s.refused)),
    Pass("prune-leaves", "those that no map has taken", lambda s: prune(s.program)),
    Pass(
        "residuals", "last: the other passes see arrays only", lambda s: bundle_residuals(s.program, s.refused),
    ),
)  # fmt: skip


def lift(
    program: Program,
    refused: frozenset[JaxprEqn] = frozenset(),
    inlined: frozenset[JaxprEqn] = frozenset(),
    options: LiftOptions = USUAL,
) -> bool:
    """Gives `program` its idiomatic form, in place; whether all passes were run. `refused`, `inlined`: see Lifting.

    Raises BrokenPass under UNTRACE_STRICT where a pass leaves something that is not well formed.
    """
    lifting = Lifting(program, refused, inlined, options)
    return run_passes(PASSES, lifting, lambda s: check(s.program.entry), options.course)
