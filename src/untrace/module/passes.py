"""The passes over the statements of a module, in the order in which they are run, before it is laid out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from untrace.ir.passes import ALL, Course, Pass, run_passes
from untrace.module.call_helpers import share_calls
from untrace.module.check import check_names
from untrace.module.loops.comprehensions import comprehend
from untrace.module.loops.of_statements import roll_statements
from untrace.module.merge.alpha_equivalent import merge_equal
from untrace.module.merge.nest_pullbacks import nest_backward_parts
from untrace.module.merge.parametric import share_definitions
from untrace.module.merge.prefixes import share_prefixes
from untrace.module.merge.renumber import number_again
from untrace.module.merge.repeated_arguments import repeat_arguments
from untrace.module.merge.spread_tuples import spread_tuples
from untrace.module.merge.variadic import spread_arguments
from untrace.module.writer import ModuleWriter
from untrace.provenance.sites import Provenance
from untrace.python.coalesce_names import count_again, match_residuals, names_bound, rebind_names
from untrace.python.inline_neighbours import fold_neighbours
from untrace.python.scope_index import Own
from untrace.python.statements import Def, Statement

Share = Callable[[ModuleWriter, list[Statement]], bool]


@dataclass(slots=True)
class Statements:
    """The statements of a module on their way through the passes.

    `definitions`: the entry and what belongs to it; the other functions are `module.definitions`. `share`: what makes one of
    functions that differ, where a capture knows better than the passes which those are. `rolls`: whether statements that
    repeat become loops.
    """

    module: ModuleWriter
    definitions: list[Statement]
    provenance: Provenance
    share: Share | None = None
    rolls: bool = True
    shared: bool = False  # whether `share` made one of several functions
    comprehends: bool = False  # whether there is a comprehension
    rolled: bool = False  # whether statements that repeat became a loop, or a backward part went into its forward part
    bound: Mapping[Def, set[str]] = field(default_factory=dict)  # the variables of each as they were named first
    words: Mapping[Statement, Counter[str]] = field(default_factory=dict)  # how often each word stands in a function
    nodes: Mapping[Def, Own] = field(default_factory=dict)  # the own nodes of each function

    @property
    def everything(self) -> list[Statement]:
        return [*self.module.definitions, *self.definitions]


def _share(s: Statements) -> None:
    assert s.share is not None
    s.shared = s.share(s.module, s.definitions)


def _nest(s: Statements) -> None:
    s.rolled = s.rolls and nest_backward_parts(s.module, s.definitions)
    s.bound = names_bound(s.everything)


def _roll(s: Statements) -> None:
    s.rolled = roll_statements(s.module, s.everything, s.provenance) or s.rolled


def _comprehend(s: Statements) -> None:
    s.comprehends = comprehend(s.module, s.everything, s.provenance)


def _fold(s: Statements) -> None:
    effects = bool(getattr(s.module.program, "effects", None))
    s.words = fold_neighbours(s.everything, s.provenance, s.module.folded, effects, s.module.in_order)


def _rebind(s: Statements) -> None:
    s.nodes = rebind_names(s.everything, s.provenance, s.words)


PASSES: tuple[Pass[Statements], ...] = (
    Pass("merge-versions", "a capture that knows which functions are one says so", _share, lambda s: s.share is not None),
    Pass(
        "merge-parametric", "functions that differ in names and numbers are one",
        lambda s: share_definitions(s.module, s.definitions), lambda s: s.share is None,
    ),
    Pass("variadic", "functions whose arguments only go into one list take any number", lambda s: spread_arguments(s.module)),
    Pass("merge-equal", "what the passes before have made the same", lambda s: merge_equal(s.module, s.definitions)),
    Pass(
        "repeated-arguments", "a function for one thing passed twice is the one that takes two",
        lambda s: repeat_arguments(s.module, s.definitions),
    ),
    Pass("nest-pullbacks", "a backward part goes into its forward part", _nest),
    Pass("loops-of-statements", "statements that repeat become a loop", _roll, lambda s: s.rolls),
    Pass("call-helpers", "long calls that repeat get a helper", lambda s: share_calls(s.module, s.definitions)),
    Pass(
        "key-prefixes", "functions that are called with parts of one flat dict take the dict",
        lambda s: share_prefixes(s.module, s.definitions), lambda s: s.share is None,
    ),
    Pass(
        "number-functions-again", "functions whose name another one had that is gone",
        lambda s: number_again(s.module, s.definitions),
    ),
    Pass("spread-tuples", "a tuple whose parts are passed one by one is spread", lambda s: spread_tuples(s.module, s.everything)),
    Pass("inline-neighbours", "a statement that makes one line with the next goes into it", _fold),
    Pass("rebind-names", "a value has the name of the one before, where the author binds it again", _rebind),
    Pass(
        "count-names-again", "names without gaps", lambda s: count_again(s.everything, s.bound, s.nodes, s.words),
        lambda s: bool(s.nodes),
    ),
    Pass(
        "names-of-residuals", "what a loop saves has the same name in its backward loop",
        lambda s: match_residuals(s.module.residuals, s.nodes), lambda s: bool(s.nodes),
    ),
    Pass("comprehensions", "what is the same for each element of a list is said once", _comprehend, lambda s: s.rolls),
)  # fmt: skip


def improve(statements: Statements, course: Course = ALL) -> bool:
    """Runs the passes on the statements of a module, in place; whether all were run.

    Raises BrokenPass under UNTRACE_STRICT where a pass leaves a name that nothing binds.
    """
    return run_passes(PASSES, statements, lambda s: check_names(s.module, s.everything), course)
