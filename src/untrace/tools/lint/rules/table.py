"""The list of the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from untrace.tools.lint.findings import LintFinding
from untrace.tools.lint.program import Linted
from untrace.tools.lint.rules.arguments import large_constants, static_branches, unused_inputs
from untrace.tools.lint.rules.checkpoints import idle_checkpoints
from untrace.tools.lint.rules.frozen import frozen_values
from untrace.tools.lint.rules.indexing import gathers_of_slices, indices_out_of_bounds
from untrace.tools.lint.rules.loops import callbacks_in_loops, unrolled_loops, whiles_that_count
from untrace.tools.lint.rules.types import promotions, weak_results


@dataclass(frozen=True, slots=True)
class Rule:
    """One of JAX's sharp bits. `name`: as a comment that silences it has it. `finds`: what it is, in a sentence."""

    name: str
    find: Callable[[Linted], Iterator[LintFinding]]
    finds: str


RULES = (
    Rule("unrolled-loop", unrolled_loops, "a `for` loop or comprehension of 4 equal turns or more that Python runs while JAX traces"),
    Rule("large-constant", large_constants, "an array of 1 MiB or more that the function closes over"),
    Rule("promotion", promotions, "an array that becomes wider (`bf16` to `f32`) for another operand, where nobody wrote a conversion"),
    Rule("weak-type", weak_results, "a result made of plain numbers alone, which gives way to other types, beside an argument of its type"),
    Rule("unused-input", unused_inputs, "an argument, or a part of a tree, that no result depends on"),
    Rule("static-branch", static_branches, "an `if` that a static number has decided"),
    Rule("callback-in-loop", callbacks_in_loops, "a callback in each turn of a loop"),
    Rule("gather-slice", gathers_of_slices, "indices in a row, evenly spaced, where a slice would do"),
    Rule("while-as-scan", whiles_that_count, "a `while_loop` whose number of turns the program knows, where a loop with a derivative would do"),
    Rule("idle-checkpoint", idle_checkpoints, "a function that `jax.checkpoint` computes again, and saves nothing by it"),
    Rule("frozen-value", frozen_values, "a value that is another one each time the function is traced: the time, NumPy's random numbers, a counter"),
    Rule("out-of-bounds", indices_out_of_bounds, "an index outside of its array, of the program or with the given arguments"),
)  # fmt: skip
NAMES = tuple([rule.name for rule in RULES])
