"""The forms that a text may be written from: the program as it was captured, and what simplifications make of it.

Each comes with the jaxpr that the text must come back as, at the sizes that it is written from and at the example's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._options import Options
from untrace.capture.calls import vmaps
from untrace.capture.calls.checkpoints import parts
from untrace.capture.calls.derivative_calls import CALLS
from untrace.capture.calls.known_calls import with_known_calls
from untrace.capture.calls.unfolding import gives_back, unfolded
from untrace.capture.function import Captured, comes_back, expand, program_of
from untrace.capture.sizes import sizes
from untrace.ir.nodes import Program
from untrace.jaxprs.equal.compare import count_equations
from untrace.lift.adjoint.pullbacks import find_pullbacks
from untrace.lift.adjoint.pullbacks_once import repeated
from untrace.lift.closed_constants import close_over_constants
from untrace.lift.prune import prune
from untrace.lift.recognise import library
from untrace.lift.recognise.large_groups import recognised
from untrace.lift.rewrite.described import described, left_out, unproven
from untrace.lift.rewrite.inlined import RULES, ruled_function
from untrace.lift.rewrite.simplify import (
    BOLD,
    NEUTRAL,
    Known,
    calls_host,
    in_backward_pass,
    is_simplified,
    simplified,
)
from untrace.module.interface.entry import FlatEntry, PytreeEntry
from untrace.prove import retrace
from untrace.prove.harmless import harmless_rewrites
from untrace.prove.retrace import Goal
from untrace.provenance.sites import Provenance
from untrace.targets.jax.rules.table import JAX

# Above this many equations only those simplifications are made whose proof needs no compilation.
_MOST_COMPILED = 6000
# Of so many equations XLA takes longer for two programs at once than what it is spared by the second being begun later.
_MANY = 500


class Plain:
    """The Programs of one capture, as they are before anything is lifted, without library primitives.

    lifted: whether they will be. The rules of public functions are left to those functions then.
    """

    def __init__(
        self,
        captured: Captured,
        name: str,
        signature: PytreeEntry | FlatEntry,
        notes: tuple[str, ...] = (),
        lifted: bool = False,
    ) -> None:
        self._captured, self._name, self._signature, self._notes = captured, name, signature, notes
        self._is_public = library.is_public_rule if lifted else lambda eqn: False
        self._own = JAX.user_names()
        expand(captured, self._own)
        if captured.example is not None:
            expand(captured.example, self._own)
            if captured.expanded is not captured.jaxpr:
                sizes.note_numbers(captured, captured.expanded, captured.example.expanded)
            if captured.called is not None and sizes.has_news(captured, captured.called.jaxpr):
                _note_calls(captured)

    @functools.cached_property
    def whole(self) -> Program:
        """The Program of what was traced; the same object each time."""
        return self.of(self._captured.expanded, self._name)

    def at_example(self, jaxpr: Any) -> Program:
        """A Program of the example's, of which this is one at other sizes."""
        example = self._captured.example
        assert example is not None
        return Plain(example, self._name, self._signature).of(jaxpr, "", rules=False)

    def of(self, jaxpr: Any, name: str, rules: bool = True) -> Program:
        """A Program of what a rewrite made of it; see `program_of`."""
        program = program_of(self._captured, jaxpr, name, self._signature, rules, self._is_public)
        program.facts = replace(program.facts, own=self._own, summary=self._captured.summary)
        program.notes = (*program.notes, *self._notes)
        return program


@dataclass(frozen=True, slots=True)
class Form:
    """A jaxpr that a program may be written from, and the one that the text must come back as.

    `folds`: whether calls of `jax.vmap` and `jax.grad` are in `jaxpr`, which are unfolded in the target.
    """

    jaxpr: Any
    target: Goal
    folds: bool = False

    def proven_as(self, jaxpr: Any, words: str, captured: Captured) -> Form:
        """The form whose text must come back as `jaxpr`, which one more simplification makes of it."""
        plain = unfolded(jaxpr) if self.folds else jaxpr
        known = self.target.simplifications
        all_words = known if words in known else ", ".join(filter(None, [known, words]))
        target = replace(self.target, jaxpr=plain, simplifications=all_words, neutral=False)
        if captured.example is not None:
            target = replace(target, example=replace(target, jaxpr=sizes.at_example(captured, plain)))
        return replace(self, target=target)


def forms_of(
    captured: Captured, plain: Plain, options: Options, folds: bool = False, compiles: bool = True
) -> Iterator[Form]:
    """The forms that the text may be written from, the simplest first.

    compiles: whether XLA begins with the original, which a proof waits for.
    folds: whether calls of `jax.vmap` and `jax.grad` are found again first; nothing comes where there is none.
    """
    whole = with_calls_found(captured, folds)
    if folds and whole is captured.expanded:
        return
    if options.style == "idiomatic" and options.simplify and options.prove:
        # What calls the host is not run for a proof: the user's functions would be called with inputs of ours.
        small = is_run(captured)
        most = captured.hooks.simplifications
        settings = captured.constant_names, captured.hooks.apart
        forms: tuple[tuple[Any, frozenset[str]], ...] = ((NEUTRAL, BOLD),)
        kept = parts(whole, captured.checkpoints) | differentiated_elsewhere(whole, captured.provenance)
        instead: dict[JaxprEqn, Any] = {}
        known = Known(captured.provenance)
        stays = options.without | {name for name, transformation in RULES.items() if transformation in options.allow}
        if not stays >= RULES.keys():
            kept |= calls_of_needed_rules(whole)
        if small and (most is not None or is_simplified(whole, JAX.user_names(), *settings, known, stays)):
            forms = ((most, frozenset()), (most, BOLD), (NEUTRAL, BOLD))
            if captured.example is not None:  # a product of numbers may be rounded otherwise at other sizes
                forms = (forms[0], (most, frozenset({"arithmetic_of_literals"})), *forms[1:])
            if compiles:
                retrace.begin_original(captured.example or captured, _may_be_padded(whole))
            found, instead, captured.repeats = recognised(close_over_constants(prune(plain.of(whole, "", rules=False))))
            kept |= found
        elif small:
            forms = ()
        bold = False
        seen: dict[str, int] = {}
        for only, bolder in forms:
            without = bolder | stays
            if bolder == BOLD and only is most and not bold:
                continue
            if only is NEUTRAL and seen:
                only, without = _harmless(captured, whole, list(seen), kept, settings), stays
            form, counts = simplified(whole, only, JAX.user_names(), kept, *settings, without, instead, known)
            bold = not BOLD.isdisjoint(counts)
            seen = seen or counts
            if form is not whole:
                neutral = set(counts) <= NEUTRAL
                target = unfolded(form) if folds else form
                goal = Goal(target, described(counts), neutral, unproven(counts), left_out=left_out(counts), is_run=small)
                if captured.example is not None:
                    bodies = functools.partial(_bodies_at_example, captured, plain, folds) if instead else dict
                    goal = replace(goal, example=_at_example(captured, goal, form, only, without, kept, folds, bodies))
                yield Form(form, goal, folds)
                if neutral:
                    break
    yield Form(whole, Goal(captured.expanded, example=_untouched(captured.example)), folds)


def _note_calls(captured: Captured) -> None:
    """Adds the numbers of the program with its calls of derivatives, beside the example's."""
    if captured.example is not None and captured.called is not None and captured.example.called is not None:
        sizes.note_numbers(captured, captured.called.jaxpr, captured.example.called.jaxpr)


def _calls(captured: Captured) -> tuple[int, Sequence[int]]:
    """How many calls of `jax.vmap`, and which of derivatives."""
    return (0, ()) if captured.called is None else (len(captured.called.vmaps), captured.called.kept)


def _untouched(captured: Captured | None) -> Goal | None:
    return None if captured is None else Goal(captured.expanded)


def with_calls_found(captured: Captured, folds: bool) -> Any:
    """What was captured, with calls of `jax.vmap` and `jax.grad` found again if `folds`; the same object each time."""
    if not folds:
        return captured.expanded
    if captured.folded is None:
        base, calls = captured.expanded, captured.vmaps
        if captured.called is not None:
            base, calls = captured.called.jaxpr, captured.called.vmaps
        captured.folded = vmaps.folded(base, captured.expanded, calls, captured.expander, gives_back)
        if captured.called is not None:
            more = with_known_calls(captured.folded, captured.provenance)
            if more is not captured.folded and comes_back(captured, more):
                captured.folded = more
    return captured.folded


def _bodies_at_example(captured: Captured, plain: Plain, folds: bool) -> dict[JaxprEqn, Any]:
    """Other bodies that do the same (`recognised`), of calls in the program at the example's own sizes."""
    example = captured.example
    assert example is not None
    program = plain.at_example(with_calls_found(example, folds))
    return recognised(close_over_constants(prune(program)))[1]


def _at_example(
    captured: Captured,
    goal: Goal,
    form: Any,
    only: frozenset[str] | None,
    without: frozenset[str],
    kept: set[JaxprEqn],
    folds: bool,
    bodies: Callable[[], dict[JaxprEqn, Any]],
) -> Goal:
    """The target at the example's own sizes, with the numbers of `form` replaced; where a rewrite computed numbers that nobody
    knows yet, simplified as `form` was, where that does the same there. bodies: gives other bodies of calls in the example."""
    beside = captured.beside
    assert beside is not None
    if not sizes.has_news(captured, *({form, goal.jaxpr} if folds else {form})):
        return replace(goal, jaxpr=sizes.at_example(captured, goal.jaxpr))
    example, place = beside.example, beside.equations
    _note_calls(captured)
    if len(example.vmaps) == len(captured.vmaps) and _calls(example) == _calls(captured):
        whole = with_calls_found(example, folds)
        if folds:  # mapped functions have equations of their own
            sizes.note_numbers(captured, with_calls_found(captured, folds), whole)
        there = {place[i] for i in kept if i in place} | parts(whole, example.checkpoints)
        there |= differentiated_elsewhere(whole, example.provenance)
        settings = example.constant_names, example.hooks.apart
        known = Known(example.provenance)
        same, _ = simplified(whole, only, JAX.user_names(), there, *settings, without, bodies(), known)
        if sizes.note_numbers(captured, form, same):
            return replace(goal, jaxpr=unfolded(same) if folds else same)
    return replace(goal, jaxpr=sizes.at_example(captured, goal.jaxpr))


def differentiated_elsewhere(closed: Any, provenance: Provenance) -> set[JaxprEqn]:
    """Equations outside the calls of derivatives, of functions that are called inside one too, and whose derivative is nowhere
    written out. Inside no rewrite is made, for it need not keep the derivative's bits: written alike, the two are one."""
    codes: set[CodeType] = set()
    written_out: set[CodeType] = set()
    outside: list[tuple[JaxprEqn, CodeType]] = []
    for eqn, is_inside in _all_equations(closed):
        site = provenance.site(eqn)
        if site.frames and is_inside:
            codes.add(site.frames[-1].code)
        elif site.frames and site.differentiated:
            written_out.add(site.frames[-1].code)
        elif site.frames:
            outside.append((eqn, site.frames[-1].code))
    return {eqn for eqn, code in outside if code in codes - written_out}


def calls_of_needed_rules(closed: Any) -> set[JaxprEqn]:
    """Calls of functions with rules, outside the calls of derivatives, of which one inside needs the rule: one text serves both."""
    ruled = [(eqn, is_inside, ruled_function(eqn)) for eqn, is_inside in _all_equations(closed)]
    needed = {function for _, is_inside, function in ruled if is_inside and function is not None}
    return {eqn for eqn, is_inside, function in ruled if not is_inside and function in needed}


def _all_equations(closed: Any) -> Iterator[tuple[JaxprEqn, bool]]:
    """The equations at all depths, each body's once, and whether each is inside the call of a derivative."""
    seen: set[Any] = set()
    todo = [(closed, False)]
    while todo:
        jaxpr, is_inside = todo.pop()
        if (jaxpr, is_inside) in seen:
            continue
        seen.add((jaxpr, is_inside))
        for eqn in jax_compat.open_jaxpr(jaxpr)[0].eqns:
            yield eqn, is_inside
            inside = is_inside or eqn.primitive in CALLS.values()
            todo += [(inner, inside) for inner in jax_compat.jaxprs_in(eqn)]


def repeated_pullbacks(captured: Captured, plain: Plain, form: Any) -> dict[JaxprEqn, Any]:
    """`repeated` of a form of a program, where its original has such calls."""
    if not captured.repeats:
        return {}
    program = close_over_constants(prune(plain.of(form, "", rules=False)))
    return repeated(find_pullbacks(program))


def _may_be_padded(jaxpr: Any) -> bool:
    """Whether a program is a backward pass of many layers, in which sums may turn out to be missing (`lift.adjoint.addends`)."""
    eqns = jax_compat.open_jaxpr(jaxpr)[0].eqns
    return len(eqns) > _MANY and any(map(in_backward_pass, eqns))


def is_run(captured: Captured) -> bool:
    """Whether a program is compiled and run for a proof, if need be."""
    if captured.is_run is None:
        jaxpr = captured.expanded
        captured.is_run = count_equations(jaxpr) <= _MOST_COMPILED and not calls_host(jaxpr)
    return captured.is_run


def _harmless(
    captured: Captured, whole: Any, names: list[str], kept: set[JaxprEqn], settings: tuple[Any, Any]
) -> frozenset[str]:
    """Of the simplifications `names`, which are not proven together, those after which XLA makes the same program."""

    def simplify(some: frozenset[str]) -> Any:
        return unfolded(simplified(whole, some | NEUTRAL, JAX.user_names(), kept, *settings)[0])

    args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
    return harmless_rewrites(captured.jaxpr, names, simplify, args) | NEUTRAL
