"""From a captured program to a proven text: lift, write, prove, and take back what was wrong."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from untrace import jax_compat
from untrace._errors import ProofError, UnsupportedPrimitiveError
from untrace.capture import sizes, vmaps
from untrace.capture.body_trees import Bodies, forget_trees, has_trees
from untrace.capture.checkpoints import parts
from untrace.capture.constant_order import keep_constant_order
from untrace.capture.function import Captured, expand, program_of
from untrace.ir.nodes import Equation, Function, Program, walk_functions
from untrace.lift import library, lift
from untrace.lift.addends import Addend, with_addends
from untrace.lift.closed_constants import close_over_constants
from untrace.lift.engine import recognised
from untrace.lift.names import provenance_of
from untrace.lift.prune import prune
from untrace.lift.pullbacks import find_pullbacks
from untrace.lift.pullbacks_once import repeated, without_repeated
from untrace.lift.shared_lowering import call_shared_functions
from untrace.lift.simplify import (
    BOLD,
    NEUTRAL,
    Known,
    calls_host,
    described,
    in_backward_pass,
    is_simplified,
    simplified,
    unproven,
)
from untrace.print.jax import guard
from untrace.print.jax import rules as _rules  # noqa: F401  (registers the rules)
from untrace.print.jax.entry import FlatEntry, PytreeEntry
from untrace.print.jax.module import Written, write_module
from untrace.print.rules import JAX
from untrace.prove import retrace
from untrace.prove.compare import count_equations
from untrace.prove.harmless import harmless_rewrites
from untrace.prove.hlo import OptimisedAlike
from untrace.prove.load import restate
from untrace.prove.report import Proof
from untrace.prove.retrace import Target

# The options that are words, and those that each knows.
WORDS = {
    "style": ("idiomatic", "exact"), "comments": ("full", "some", "none"), "annotations": ("none", "jaxtyping"),
    "reroll": ("loop", "scan"), "sizes": ("infer", "fixed"),
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Result:
    written: Written
    proof: Proof
    notes: tuple[str, ...]
    module: Any


# How often what did not come back as it was is written again: as its exact form first, then as a `bind`.
_ROUNDS = 16
# Above this many equations only those simplifications are made whose proof needs no compilation.
_MOST_COMPILED = 3000
# Of so many equations XLA takes longer for two programs at once than what it is spared by the second being begun later.
_MANY = 500


# What a function is called that a transformation of JAX gave, by the first words of its summary.
_NAMES = {
    "Gradient": "grad_{}", "Value and gradient": "{}_and_grad", "Vectorized version": "batched_{}",
    "Jacobian": "jacobian_{}", "Hessian": "hessian_{}",
}  # fmt: skip


def write_and_prove(
    captured: Captured, entry: PytreeEntry | FlatEntry, name: str, options: Options, timings: dict[str, float]
) -> Result:
    """The text of `captured` at the strongest level that can be proven. Raises ProofError below `bits`.

    The most readable form is tried first; one that is not proven gives way to the next plainer one. But a text at other
    sizes than the user's is readable or none: the user's own sizes are plainer.
    """
    if options.style == "idiomatic" and captured.summary:
        name = _name_of_transformed(captured.summary, name)
    with _interpreter_settings():
        start = time.perf_counter()
        plain = _Plain(captured, name, entry, lifted=options.style == "idiomatic")
        timings["write"] = time.perf_counter() - start
        notes: tuple[str, ...] = ()
        if options.style == "idiomatic":
            result, why = _idiomatic(captured, plain, name, options, timings)
            if result is not None:
                return result
            if captured.example is not None:
                raise ProofError(why)
            notes = (f"written in style exact, for the idiomatic text was not proven: {why}",)
        with captured.caches():
            program = _Plain(captured, name, entry, notes).whole
            shares = call_shared_functions(program)
        for again in range(1 + shares):  # without those calls where they are not proven
            if again:
                program = _Plain(captured, name, entry, notes).whole
            keep_constant_order(program.entry)
            attempt = _Attempt(
                captured, program, name, options, timings, _Form(captured.expanded, Target(captured.expanded))
            )
            result = attempt.run(idiomatic=False)
            if result is not None:
                return result
        raise ProofError(
            f"the text written for {name} is not proven to be the same program: {attempt.why}\n"
            "This is a bug of untrace. With prove=False you get the text all the same."
        )


class _Plain:
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

    @functools.cached_property
    def whole(self) -> Program:
        """The Program of what was traced; the same object each time."""
        return self.of(self._captured.expanded, self._name)

    def at_example(self, jaxpr: Any) -> Program:
        """A Program of the example's, of which this is one at other sizes."""
        return _Plain(self._captured.example, self._name, self._signature).of(jaxpr, "", rules=False)

    def of(self, jaxpr: Any, name: str, rules: bool = True) -> Program:
        """A Program of what a rewrite made of it; see `program_of`."""
        program = program_of(self._captured, jaxpr, name, self._signature, rules, self._is_public)
        program.extra.update(own=self._own, summary=self._captured.summary)
        program.notes = (*program.notes, *self._notes)
        return program


def _name_of_transformed(summary: str, name: str) -> str:
    """`grad_loss` for what `jax.grad(loss)` gave, unless it has another name by now."""
    words, _, rest = summary.partition(" of `")
    inner = rest.partition("`")[0]
    if name != inner and inner != "<lambda>":
        return name
    return _NAMES[words].format("lambda" if name == "<lambda>" else name)


@dataclass(frozen=True, slots=True)
class _Form:
    """A jaxpr that a program may be written from, and the one that the text must come back as.

    `folds`: whether calls of `jax.vmap` were found again in `jaxpr`, which are unfolded in the target.
    """

    jaxpr: Any
    target: Target
    folds: bool = False

    def proven_as(self, jaxpr: Any, words: str, captured: Captured) -> _Form:
        """The form whose text must come back as `jaxpr`, which one more simplification makes of it."""
        unfolded = vmaps.unfolded(jaxpr) if self.folds else jaxpr
        known = self.target.simplifications
        all_words = known if words in known else ", ".join(filter(None, [known, words]))
        target = replace(self.target, jaxpr=unfolded, simplifications=all_words, neutral=False)
        if captured.example is not None:
            target = replace(target, example=replace(target, jaxpr=sizes.at_example(captured, unfolded)))
        return replace(self, target=target)


def _idiomatic(
    captured: Captured, plain: _Plain, name: str, options: Options, timings: dict[str, float]
) -> tuple[Result | None, str]:
    """The most readable form that is proven; or None, and why there is none."""
    why = ""
    folds = (True, False) if captured.vmaps else (False,)
    for with_trees in (True, False):
        if not with_trees:  # what was bold about the text comes off in turn
            if not has_trees(plain.whole):
                break
            captured.bodies = Bodies()
            forget_trees(plain.whole)
        for fold in folds:
            try:
                for form in _forms(captured, plain, options, fold):
                    result, why = _at_its_best(captured, plain, form, name, options, timings)
                    if result is not None:
                        return result, ""
            except UnsupportedPrimitiveError as error:
                why = str(error)  # the style `exact` may have a form for it; where not, it says the same
            except Exception as error:  # a fault in a lift costs readability, never the result
                if os.environ.get("UNTRACE_STRICT"):
                    raise
                why = f"{type(error).__name__}: {error}"
    return None, why


def _at_its_best(
    captured: Captured, plain: _Plain, form: _Form, name: str, options: Options, timings: dict[str, float]
) -> tuple[Result | None, str]:
    """The text of a form, with equal pullbacks called once and the missing sums added where that is proven; or why not."""
    same = _repeated(captured, plain, form.jaxpr) if form.target.simplifications else {}
    why = ""
    for once in (same, {}) if same else ({},):
        attempt = _Attempt.at(captured, plain, form, name, options, timings, once)
        attempt.pads = options.simplify and options.prove and _is_run(captured)
        result = attempt.run(idiomatic=True)
        if attempt.addends:
            result = attempt.padded(plain, once).run(idiomatic=True)
            if result is None or not result.proof.at_least("hlo"):
                bare = attempt.run(idiomatic=True)
                result = bare if bare is not None and bare.proof.at_least("hlo") else result or bare
        if result is not None:
            return result, ""
        why = attempt.why
    return None, why


def _forms(captured: Captured, plain: _Plain, options: Options, folds: bool = False) -> Iterator[_Form]:
    """The forms that the text may be written from, the simplest first.

    folds: whether calls of `jax.vmap` are found again first; nothing comes where there is none.
    """
    whole = _whole(captured, folds)
    if folds and whole is captured.expanded:
        return
    if options.style == "idiomatic" and options.simplify and options.prove:
        # What calls the host is not run for a proof: the user's functions would be called with inputs of ours.
        small = _is_run(captured)
        most = captured.extra.get("simplifications")  # all of them, but where a capture wants the author's steps kept
        apart = captured.extra.get("apart")
        settings = captured.constant_names, apart
        forms: tuple[tuple[Any, frozenset[str]], ...] = ((NEUTRAL, BOLD),)
        kept = parts(whole, captured.checkpoints)
        instead: dict[int, Any] = {}
        known = Known(captured.extra.get("provenance"))
        if small and (most is not None or is_simplified(whole, JAX.user_names(), *settings, known)):
            forms = ((most, frozenset()), (most, BOLD), (NEUTRAL, BOLD))
            if captured.example is not None:  # a product of numbers may be rounded otherwise at other sizes
                forms = (forms[0], (most, frozenset({"arithmetic_of_literals"})), *forms[1:])
            retrace.begin_original(captured.example or captured, _may_be_padded(whole))
            found, instead, captured.extra["repeats"] = recognised(
                close_over_constants(prune(plain.of(whole, "", rules=False))), JAX.user_names()
            )
            kept |= found
            if instead and captured.example is not None:
                captured.extra["bodies"] = _bodies_at_example(captured, plain, folds)
        elif small:
            forms = ()
        bold = False
        seen: dict[str, int] = {}
        for only, without in forms:
            if without == BOLD and only is most and not bold:
                continue
            if only is NEUTRAL and seen:
                only, without = _harmless(captured, whole, list(seen), kept, settings), frozenset()
            form, counts = simplified(whole, only, JAX.user_names(), kept, *settings, without, instead, known)
            bold = not BOLD.isdisjoint(counts)
            seen = seen or counts
            if form is not whole:
                neutral = set(counts) <= NEUTRAL
                target = vmaps.unfolded(form) if folds else form
                goal = Target(target, described(counts), neutral, unproven(counts))
                if captured.example is not None:
                    goal = replace(goal, example=_at_example(captured, goal, form, only, without, kept, folds))
                yield _Form(form, goal, folds)
                if neutral:
                    break
    yield _Form(whole, Target(captured.expanded, example=_untouched(captured.example)), folds)


def _untouched(captured: Captured | None) -> Target | None:
    return None if captured is None else Target(captured.expanded)


def _whole(captured: Captured, folds: bool) -> Any:
    """What was captured, with calls of `jax.vmap` found again if `folds`; the same object each time."""
    if not folds:
        return captured.expanded
    if "folded" not in captured.extra:
        captured.extra["folded"] = vmaps.folded(captured.expanded, captured.vmaps, captured.expander)
    return captured.extra["folded"]


def _bodies_at_example(captured: Captured, plain: _Plain, folds: bool) -> dict[int, Any]:
    """Other bodies that do the same (`recognised`), of calls in the program at the example's own sizes."""
    example = captured.example
    assert example is not None
    program = plain.at_example(_whole(example, folds))
    return recognised(close_over_constants(prune(program)), JAX.user_names())[1]


def _at_example(
    captured: Captured,
    goal: Target,
    form: Any,
    only: frozenset[str] | None,
    without: frozenset[str],
    kept: set[int],
    folds: bool,
) -> Target:
    """The target at the example's own sizes: simplified as `form` was where that does the same there, else with the numbers
    of `form` replaced."""
    example = captured.example
    assert example is not None
    if len(example.vmaps) == len(captured.vmaps):
        whole = _whole(example, folds)
        place = captured.extra["pairs"]
        there = {id(place[i]) for i in kept if i in place} | parts(whole, example.checkpoints)
        bodies = captured.extra.get("bodies", {})
        settings = example.constant_names, example.extra.get("apart")
        known = Known(example.extra.get("provenance"))
        same, _ = simplified(whole, only, JAX.user_names(), there, *settings, without, bodies, known)
        if sizes.note_numbers(captured, form, same):
            return replace(goal, jaxpr=vmaps.unfolded(same) if folds else same)
    return replace(goal, jaxpr=sizes.at_example(captured, goal.jaxpr))


def _repeated(captured: Captured, plain: _Plain, form: Any) -> dict[int, Any]:
    """`repeated` of a form of a program, where its original has such calls."""
    if not captured.extra.get("repeats"):
        return {}
    program = close_over_constants(prune(plain.of(form, "", rules=False)))
    return repeated(find_pullbacks(program, own=JAX.user_names()))


def _may_be_padded(jaxpr: Any) -> bool:
    """Whether a program is a backward pass of many layers, in which sums may turn out to be missing (`lift.addends`)."""
    eqns = jax_compat.open_jaxpr(jaxpr)[0].eqns
    return len(eqns) > _MANY and any(map(in_backward_pass, eqns))


def _is_run(captured: Captured) -> bool:
    """Whether a program is compiled and run for a proof, if need be."""
    known: bool | None = captured.extra.get("is_run")
    if known is None:
        jaxpr = captured.expanded
        known = captured.extra["is_run"] = count_equations(jaxpr) <= _MOST_COMPILED and not calls_host(jaxpr)
    return known


def _harmless(
    captured: Captured, whole: Any, names: list[str], kept: set[int], settings: tuple[Any, Any]
) -> frozenset[str]:
    """Of the simplifications `names`, which are not proven together, those after which XLA makes the same program."""

    def simplify(some: frozenset[str]) -> Any:
        return vmaps.unfolded(simplified(whole, some | NEUTRAL, JAX.user_names(), kept, *settings)[0])

    args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
    return harmless_rewrites(captured.jaxpr, names, simplify, args) | NEUTRAL


def prove_again(
    written: Written, captured: Captured, entry: PytreeEntry | FlatEntry, options: Options, timings: dict[str, float]
) -> Proof:
    """What holds of a text beside another trace than the one that it was written from (other sizes of the inputs)."""
    with _interpreter_settings():
        plain = _Plain(captured, captured.name, entry)
        for form in _forms(captured, plain, options):
            outcome = retrace.prove_text(written, captured, timings, form.target)
            if outcome.proof is not None or outcome.module is None:
                break
        if outcome.proof is not None or outcome.module is None or not outcome.traced:
            return outcome.proof or Proof("unproven", outcome.why)
        return retrace.weaker(outcome.module, written, captured, outcome.why)


def _begin_compiling(
    captured: Captured, target: Target, options: Options, timings: dict[str, float]
) -> OptimisedAlike | None:
    """Has XLA compile, while the text is written, what tells whether a target is the original's program."""
    if captured.example is not None:
        return None if target.example is None else _begin_compiling(captured.example, target.example, options, timings)
    if not options.prove or target.jaxpr is captured.expanded or not _is_run(captured):
        return None
    start = time.perf_counter()
    alike = retrace.begin_compiling(target.jaxpr, captured, target.neutral)
    timings["run"] = timings.get("run", 0.0) + time.perf_counter() - start
    return alike


@dataclass
class _Attempt:
    """One form of a program: written, proven, and written again where a statement was wrong. `why`: what failed last."""

    captured: Captured
    program: Program
    name: str
    options: Options
    timings: dict[str, float]
    form: _Form
    why: str = ""
    pads: bool = False  # whether `run` stops, for another attempt, where sums are missing: those are in `addends` then
    addends: list[Addend] = field(default_factory=list)
    # Whether the target compiles to the original's program, which the attempt waits for where it needs to know.
    compiled_alike: OptimisedAlike | None = None

    @classmethod
    def at(
        cls,
        captured: Captured,
        plain: _Plain,
        form: _Form,
        name: str,
        options: Options,
        timings: dict[str, float],
        once: dict[int, Any],
    ) -> _Attempt:
        """An attempt at a form, in which equal pullbacks are called once: those of the equations in `once`."""
        whole = form.jaxpr
        if once:
            form = form.proven_as(without_repeated(whole, once), "pullbacks called once", captured)
        alike = _begin_compiling(captured, form.target, options, timings)  # first of all: XLA takes its time
        program = plain.whole if whole is captured.expanded else plain.of(whole, name)
        if once:
            program.extra["pullbacks_once"] = True
        return cls(captured, program, name, options, timings, form, compiled_alike=alike)

    def padded(self, plain: _Plain, once: dict[int, Any]) -> _Attempt:
        """An attempt at the program with the sums that are missing in it (`lift.addends`)."""
        addends, padding = self.addends, []
        self.pads, self.addends = False, []
        jaxpr = with_addends(self.form.jaxpr, addends, padding)
        form = replace(self.form.proven_as(jaxpr, f"zeros added ({len(addends)})", self.captured), jaxpr=jaxpr)
        attempt = _Attempt.at(self.captured, plain, form, self.name, self.options, self.timings, once)
        attempt.program.extra["padding"] = padding
        for equation, depth in padding:
            provenance_of(attempt.program).shorten(equation, depth)
        return attempt

    def run(self, idiomatic: bool) -> Result | None:
        """The text and its proof; None where none of at least `bits` is found, or sums are missing first."""
        try:
            return self._run(idiomatic)
        finally:
            self.program.extra.pop("flat_carries", None)  # it holds the attempt, and that the program

    def _run(self, idiomatic: bool) -> Result | None:
        captured, program, timings, target = self.captured, self.program, self.timings, self.form.target
        plain = [(f, f.equations) for f in walk_functions(program.entry)] if idiomatic else []
        forced: frozenset[int] = frozenset()
        refused: frozenset[int] = frozenset()  # no lift takes these in
        inlined: frozenset[int] = frozenset()  # nor does a function around them stay
        lifted = not idiomatic
        program.extra["flat_carries"] = self._keeps_carries
        program.extra["sums"] = self.options.simplify and self.options.prove
        rolls = idiomatic
        for _ in range(2 * _ROUNDS):
            if not lifted:
                start = time.perf_counter()
                self._lift(plain, refused, inlined)
                lifted = True
                self._spent("lift", start)
                self.addends = program.extra.pop("addends", []) if self.pads else []
                if self.addends:
                    for function, equations in plain:
                        function.equations = equations
                    return None
            start = time.perf_counter()
            head = head_of_module(captured, self.name, idiomatic)
            rerolled = idiomatic and self.options.reroll == "scan"
            written = self._written(head, forced, idiomatic, rerolled and not self.options.prove, rolls)
            self._spent("write", start)
            if not self.options.prove:
                return Result(written, Proof("unproven", "prove=False"), program.notes, None)
            outcome = retrace.prove_text(written, captured, timings, target, self.compiled_alike)
            self.why = outcome.why
            if outcome.proof is not None:
                break
            if written.rolled and (outcome.suspects or outcome.module is None):  # what was bold about the text first
                rolls = False
                continue
            rolls = idiomatic
            if written.shared:
                less = getattr(program.extra.pop("share"), "less", None)
                if less is not None:
                    program.extra["share"] = less
                continue
            # Of each chain of suspects the innermost that was not tried yet.
            tried = forced & inlined if idiomatic else forced
            if outcome.reordered:
                program.extra["flat_carries"] = lambda: True
                continue
            suspects = {next((i for i in chain if i not in tried), None) for chain in outcome.suspects} - {None}
            if not suspects:
                break
            # First the lift of a suspect is taken back, then the function around it; if its exact form is wrong as well, it
            # becomes a `bind`.
            if idiomatic and not suspects <= inlined:
                inlined |= suspects & refused
                refused |= suspects
                lifted = False
            else:
                forced |= suspects
        proof = outcome.proof
        sized = captured.example is not None
        if proof is None and outcome.module is not None and target.jaxpr is captured.expanded and not sized:
            proof = retrace.weaker(outcome.module, written, captured, outcome.why)
        if proof is None or not proof.at_least("bits"):
            return None
        module = outcome.module
        if rerolled:
            written, proof, module = self._scanned(written, proof, module, head, forced, rolls)
        at = sizes.in_words(captured, written.sizes)
        if at:
            proof = replace(proof, notes=(*proof.notes, f"it holds{at}; other sizes were not tried"))
        written.with_docstring(head_of_module(captured, self.name, idiomatic, proof.sentence, at), head)
        restate(module, written.source)
        return Result(written, proof, program.notes, module)

    def _lift(
        self, plain: list[tuple[Function, list[Equation]]], refused: frozenset[int], inlined: frozenset[int]
    ) -> None:
        """Lifts the program, whose functions had the equations `plain` at first: those are added that it comes to need."""
        program = self.program
        while True:
            for function, equations in plain:
                function.equations = equations
            lift(program, refused, inlined)
            lifted = walk_functions(program.entry)
            with self.captured.caches():
                if not program.extra["importer"].capture_rest(lifted):
                    return
            for function, equations in plain:
                function.equations = equations
            plain[:] = [(f, f.equations) for f in walk_functions(program.entry)]

    def _keeps_carries(self) -> bool:
        """Whether loops have to keep the order of their carry: a text in which they do not is proven by running it, and not
        as the same program."""
        return self.compiled_alike is None or self.compiled_alike()

    def _written(self, head: str, forced: frozenset[int], idiomatic: bool, scans: bool, rolls: bool) -> Written:
        o = self.options
        guarded = guard.settings_of(self.captured.jaxpr) if o.guard else None
        if guarded is not None:
            groups = self.captured.extra.get("groups", ())
            guarded["least"] = {g.size: 1 for g in groups if g.least == 1}  # arrays of one row are broadcast
            guarded["multiples"] = {g.size: g.multiple for g in groups if g.multiple > 1}
        return write_module(
            self.program, head, forced, o.standalone, idiomatic, o.comments, o.annotations, scans, rolls, guarded
        )

    def _scanned(
        self, looped: Written, proof: Proof, module: Any, head: str, forced: frozenset[int], rolls: bool
    ) -> tuple[Written, Proof, Any]:
        """The text with scans for its loops, where it computes the same; else the proven one, and a note that says why."""
        written = self._written(head, forced, True, True, rolls)
        if not written.scans:
            looped.notes = tuple(dict.fromkeys((*looped.notes, *written.notes)))
            return looped, proof, module
        captured = self.captured.example or self.captured
        if calls_host(captured.expanded):
            found = Proof("unproven", "the program calls the host, so that it is not run for a proof")
        else:
            found, scanned = retrace.prove_scans(written, captured)
            if found.at_least("close"):
                return written, found, scanned
        note = f'reroll="scan" was taken back, and its loops are Python\'s: {found.detail}'
        looped.notes = (*looped.notes, note)
        return looped, proof, module

    def _spent(self, step: str, start: float) -> None:
        self.timings[step] = self.timings.get(step, 0.0) + time.perf_counter() - start


def head_of_module(captured: Captured, name: str, idiomatic: bool, proven: str = "", where_proven: str = "") -> str:
    """The docstring of a written module: what it is, and what was proven of it, at which sizes."""
    from untrace import __version__

    where = captured.where()
    where = f" ({where})" if where and "title" not in captured.extra else ""
    notes = ["", *captured.notes] if captured.notes else []
    if not idiomatic:
        return "\n".join(
            [f"`{name}`{where}, written back by untrace {__version__} from JAX {jax.__version__}.", *notes]
        )
    what = captured.extra.get("title") or captured.summary or f"`{name}`"
    proven = (proven or "unproven") + where_proven
    state = " · ".join([f"untrace {__version__}", f"jax {jax.__version__}", proven])
    return "\n".join([f"{what}{where}.", "", state, *notes])


class _interpreter_settings:
    """Lets nested programs nest: writing and comparing recurse once for each level of nesting.

    And lets XLA's thread have Python's lock soon, which it needs for a moment a few times on its way.
    """

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(self._limit, 20_000))
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, 1e-4))

    def __exit__(self, *exc: object) -> None:
        sys.setrecursionlimit(self._limit)
        sys.setswitchinterval(self._interval)
