"""From a captured program to a proven text: lift, write, prove, and take back what was wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._errors import ProofError, UnsupportedPrimitiveError
from untrace._options import Options
from untrace._version import __version__
from untrace.capture.body_trees import Bodies
from untrace.capture.constant_order import keep_constant_order
from untrace.capture.function import Captured
from untrace.capture.sizes import sizes
from untrace.driver.forms import Form, Plain, forms_of, is_run, repeated_pullbacks
from untrace.ir.bodies import forget_trees, has_trees
from untrace.ir.nodes import Equation, Function, Program, walk_functions
from untrace.ir.passes import ALL, NONE, Course, is_strict
from untrace.ir.structured import CustomRule
from untrace.jaxprs.equal.comparer import SUMS
from untrace.lift import lift
from untrace.lift.adjoint.addends import Addend, with_addends
from untrace.lift.adjoint.pullbacks_once import without_repeated
from untrace.lift.naming.names import provenance_of
from untrace.lift.options import LiftOptions
from untrace.lift.rewrite.simplify import calls_host
from untrace.lift.shared_lowering import call_shared_functions
from untrace.module.comments import Layout
from untrace.module.emit import Manner, Written, write_module
from untrace.module.interface.entry import FlatEntry, PytreeEntry
from untrace.prove import retrace
from untrace.prove.hlo import OptimisedAlike
from untrace.prove.load import restate
from untrace.prove.report import Proof
from untrace.prove.retrace import Goal, Outcome
from untrace.prove.source_map import SourceMap, source_map
from untrace.targets.jax import guard
from untrace.targets.jax.target import TARGET as JAX


@dataclass(frozen=True, slots=True)
class Retreats:
    """What an attempt has taken back: by id of the jaxpr equation, what is no part of a lift (`refused`), nor of a function of
    its own (`inlined`), what is written as a `bind` (`forced`); and whether statements that repeat become loops."""

    refused: frozenset[JaxprEqn] = frozenset()
    inlined: frozenset[JaxprEqn] = frozenset()
    forced: frozenset[JaxprEqn] = frozenset()
    rolls: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """A text and its proof. `goal`: what it comes back as, and `captured`: of what that was made; `attempt`: what wrote it, to
    be replayed pass by pass; None of a text in style exact."""

    written: Written
    proof: Proof
    notes: tuple[str, ...]
    module: Any
    captured: Captured
    goal: Goal
    attempt: Attempt | None = None

    @property
    def lost_calls(self) -> bool:
        """Whether derivatives that the function asks for, and that came back as calls, are written out all the same."""
        called = self.captured.called
        return called is not None and self.attempt is not None and not self.attempt.form.folds

    def source_map(self, module: Any) -> SourceMap:
        """The map of the text, as it is loaded in `module`, at the user's own sizes."""
        captured = self.captured.example or self.captured
        goal = self.goal.example or self.goal
        text = retrace.whole_call(getattr(module, self.written.name), captured.static)
        form = retrace.form_of(goal, captured)
        return source_map(text, module.__file__, captured.args, captured.kwargs, goal.jaxpr, form, captured.provenance)


@dataclass(frozen=True, slots=True)
class Unproven:
    """Why the text of a form is not proven. `differs_at_example`: whether it is another program at the user's own sizes."""

    why: str
    differs_at_example: bool


class NotAtExample(ProofError):
    """A text for other sizes that does not trace: nor will a plainer one, for a number in it follows the wrong size."""


# How often what did not come back as it was is written again: as its exact form first, then as a `bind`.
_ROUNDS = 16
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
        name = name_of_transformed(captured.summary, name)
    with interpreter_settings():
        start = time.perf_counter()
        plain = Plain(captured, name, entry, lifted=options.style == "idiomatic")
        timings["write"] = time.perf_counter() - start
        notes: tuple[str, ...] = ()
        if options.style == "idiomatic":
            result, why = _idiomatic(captured, plain, name, options, timings)
            if result is not None:
                return result
            if captured.example is not None:
                raise ProofError(why)
            notes = (f"written in style exact, for the idiomatic text was not proven: {why}",)
        with captured.as_traced():
            program = Plain(captured, name, entry, notes).whole
            shares = call_shared_functions(program)
        why = ""
        for again in range(1 + shares):  # without those calls where they are not proven
            if again:
                program = Plain(captured, name, entry, notes).whole
            keep_constant_order(program.entry)
            attempt = Attempt(
                captured, program, name, options, timings, Form(captured.expanded, Goal(captured.expanded))
            )
            result = attempt.run(idiomatic=False)
            if result is not None:
                return result
            why = attempt.why
        raise ProofError(
            f"the text written for {name} is not proven to be the same program: {why}\n"
            "This is a bug of untrace. With prove=False you get the text all the same."
        )


def name_of_transformed(summary: str, name: str) -> str:
    """`grad_loss` for what `jax.grad(loss)` gave, unless it has another name by now."""
    words, _, rest = summary.partition(" of `")
    inner = rest.partition("`")[0]
    if name != inner and inner != "<lambda>":
        return name
    return _NAMES[words].format("lambda" if name == "<lambda>" else name)


def _idiomatic(
    captured: Captured, plain: Plain, name: str, options: Options, timings: dict[str, float]
) -> tuple[Result | None, str]:
    """The most readable form that is proven; or None, and why there is none."""
    why = ""
    folds = (True, False) if captured.vmaps or captured.called else (False,)
    for with_trees in (True, False):
        if not with_trees:  # what was bold about the text comes off in turn
            if not has_trees(plain.whole):
                break
            captured.bodies = Bodies()
            forget_trees(plain.whole)
        for fold in folds:
            try:
                for form in forms_of(captured, plain, options, fold):
                    result = _at_its_best(captured, plain, form, name, options, timings)
                    if isinstance(result, Result):
                        return result, ""
                    before, why = why, result.why
                    if result.differs_at_example and why == before:  # nor will it in a plainer form
                        return None, why
            except NotAtExample as error:
                return None, str(error)
            except UnsupportedPrimitiveError as error:
                why = str(error)  # the style `exact` may have a form for it; where not, it says the same
            except Exception as error:  # a fault in a lift costs readability, never the result
                if is_strict():
                    raise
                why = f"{type(error).__name__}: {error}"
    return None, why


def _at_its_best(
    captured: Captured, plain: Plain, form: Form, name: str, options: Options, timings: dict[str, float]
) -> Result | Unproven:
    """The text of a form, with equal pullbacks called once and the missing sums added where that is proven; or why not."""
    same = repeated_pullbacks(captured, plain, form.jaxpr) if form.target.simplifications else {}
    found = Unproven("", False)
    for once in (same, {}) if same else ({},):
        attempt = Attempt.at(captured, plain, form, name, options, timings, once)
        attempt.pads = options.simplify and options.prove and is_run(captured)
        result = attempt.run(idiomatic=True)
        if attempt.addends:
            result = attempt.padded(plain, once).run(idiomatic=True)
            if result is None or not result.proof.at_least("hlo"):
                bare = attempt.run(idiomatic=True)
                result = bare if bare is not None and bare.proof.at_least("hlo") else result or bare
        if result is not None:
            return result
        found = Unproven(attempt.why, attempt.differs_at_example)
        if captured.example is not None and not attempt.traces:
            raise NotAtExample(attempt.why)
    return found


def prove_again(
    written: Written, captured: Captured, entry: PytreeEntry | FlatEntry, options: Options, timings: dict[str, float]
) -> Proof:
    """What holds of a text beside another trace than the one that it was written from (other sizes of the inputs)."""
    with interpreter_settings():
        plain = Plain(captured, captured.name, entry)
        folds = (True, False) if captured.vmaps or captured.called else (False,)
        for form in (form for fold in folds for form in forms_of(captured, plain, options, fold)):
            outcome = retrace.prove_text(written, captured, timings, form.target)
            if outcome.proof is not None or outcome.module is None:
                break
        if outcome.proof is not None or outcome.module is None or not outcome.traced:
            return outcome.proof or Proof("unproven", outcome.why)
        return retrace.weaker(outcome.module, written, captured, outcome.why)


def _begin_compiling(
    captured: Captured, target: Goal, options: Options, timings: dict[str, float]
) -> OptimisedAlike | None:
    """Has XLA compile, while the text is written, what tells whether a target is the original's program."""
    if captured.example is not None:
        return None if target.example is None else _begin_compiling(captured.example, target.example, options, timings)
    if not options.prove or target.jaxpr is captured.expanded or not is_run(captured):
        return None
    start = time.perf_counter()
    alike = retrace.begin_compiling(target.jaxpr, captured, target.neutral)
    timings["run"] = timings.get("run", 0.0) + time.perf_counter() - start
    return alike


@dataclass
class Attempt:
    """One form of a program: written, proven, and written again where a statement was wrong. `why`: what failed last."""

    captured: Captured
    program: Program
    name: str
    options: Options
    timings: dict[str, float]
    form: Form
    why: str = ""
    pads: bool = False  # whether `run` stops, for another attempt, where sums are missing: those are in `addends` then
    addends: list[Addend] = field(default_factory=list)
    padding: Sequence[Any] = ()  # the equations of the zeros that were added for that
    once: bool = False  # whether equal pullbacks are called once
    share: Sequence[Any] = ()  # how a capture makes one of functions that differ, the boldest first
    in_order: bool = False  # whether everything is computed in the author's order
    left_out: frozenset[str] = frozenset()  # passes after which a text was not proven
    keeps_carries: bool | None = None  # whether loops have to keep the order of their carry; None: not asked yet
    traces: bool = True  # whether the text that was written last does at all
    differs_at_example: bool = False  # whether that is another program at the user's own sizes
    # Whether the target compiles to the original's program, which the attempt waits for where it needs to know.
    compiled_alike: OptimisedAlike | None = None
    retreats: Retreats = Retreats()  # of the text that was written last
    # Gives the program as it was before anything was lifted, with what simplifies it or as it was captured.
    fresh: Callable[[bool], Program] | None = None

    @classmethod
    def at(
        cls,
        captured: Captured,
        plain: Plain,
        form: Form,
        name: str,
        options: Options,
        timings: dict[str, float],
        once: dict[JaxprEqn, Any],
        compiles: bool = True,
    ) -> Attempt:
        """An attempt at a form, in which equal pullbacks are called once: those of the equations in `once`.

        compiles: whether XLA begins with what the proof compares.
        """
        whole = form.jaxpr
        if once:
            form = form.proven_as(without_repeated(whole, once), "pullbacks called once", captured)
        alike = _begin_compiling(captured, form.target, options, timings) if compiles else None  # XLA takes its time

        def fresh(simplified: bool = True) -> Program:
            return plain.of(whole if simplified else captured.expanded, name)

        program = plain.whole if whole is captured.expanded else fresh()
        share = captured.hooks.share
        return cls(
            captured,
            program,
            name,
            options,
            timings,
            form,
            once=bool(once),
            share=share,
            compiled_alike=alike,
            fresh=fresh,
        )

    def padded(self, plain: Plain, once: dict[JaxprEqn, Any]) -> Attempt:
        """An attempt at the program with the sums that are missing in it (`lift.adjoint.addends`)."""
        addends, padding = self.addends, []
        self.pads, self.addends = False, []
        jaxpr = with_addends(self.form.jaxpr, addends, padding)
        form = replace(self.form.proven_as(jaxpr, f"zeros added ({len(addends)})", self.captured), jaxpr=jaxpr)
        attempt = Attempt.at(self.captured, plain, form, self.name, self.options, self.timings, once)
        attempt.padding = [equation for equation, _ in padding]
        for equation, depth in padding:
            provenance_of(attempt.program).shorten(equation, depth)
        return attempt

    def run(self, idiomatic: bool) -> Result | None:
        """The text and its proof; None where none of at least `bits` is found, or sums are missing first."""
        captured, program, timings, target = self.captured, self.program, self.timings, self.form.target
        plain = [(f, f.equations) for f in walk_functions(program.entry)] if idiomatic else []
        forced: frozenset[JaxprEqn] = frozenset()
        refused: frozenset[JaxprEqn] = frozenset()  # no lift takes these in
        inlined: frozenset[JaxprEqn] = frozenset()  # nor does a function around them stay
        lifted = not idiomatic
        self.keeps_carries = None
        rolls = idiomatic
        ordered = self.in_order  # whether the author's order was tried
        before: tuple[Written, Outcome] | None = None  # what is proven, but for the order of what loops carry
        tried_last: Outcome | None = None
        source = ""  # of the text that was tried last
        for _ in range(2 * _ROUNDS):
            if not lifted:
                start = time.perf_counter()
                self._lift(plain, refused, inlined)
                lifted = True
                self._spent("lift", start)
                self.addends = list(program.facts.addends) if self.pads else []
                if self.addends:
                    for function, equations in plain:
                        function.equations = equations
                    return None
            start = time.perf_counter()
            head = head_of_module(captured, self.name, idiomatic)
            rerolled = idiomatic and self.options.reroll == "scan"
            written = self._written(head, forced, idiomatic, rerolled and not self.options.prove, rolls)
            self._spent("write", start)
            self.retreats = Retreats(refused, inlined, forced, rolls)
            if not self.options.prove:
                return Result(written, Proof("unproven", "prove=False"), self._notes(), None, captured, target, self)
            unchanged = written.source == source
            if not unchanged or tried_last is None:
                tried_last = retrace.prove_text(written, captured, timings, target, self.compiled_alike)
            outcome, source = tried_last, written.source
            self.why, self.traces, self.differs_at_example = outcome.why, outcome.traced, outcome.differs_at_example
            if before is not None and (outcome.proof is None or outcome.reordered):  # that was not it
                written, outcome = before
                break
            if outcome.proof is not None:
                if not idiomatic or not outcome.reordered or ordered:
                    break
                before = written, outcome
                self.in_order = ordered = True
                continue
            if outcome.suspects or outcome.module is None:  # what was bold about the text first
                if written.comprehends:
                    self.left_out = frozenset(("comprehensions",))
                    continue
                if written.rolled:
                    rolls = False
                    continue
            rolls = idiomatic
            if written.shared:
                self.share = self.share[1:]
                continue
            # Of each chain of suspects the innermost that was not tried yet.
            tried = forced & inlined if idiomatic else forced
            if outcome.reordered:
                self.keeps_carries = True
                continue
            # JAX adds cotangents up in the order in which a text uses what they belong to.
            if (
                idiomatic
                and not ordered
                and outcome.suspects
                and any(c and c[0].primitive.name in SUMS for c in outcome.suspects)
            ):
                self.in_order = ordered = True
                continue
            untried = [next((i for i in chain if i not in tried), None) for chain in outcome.suspects]
            suspects = {i for i in untried if i is not None}
            # What is not in the text, so that nothing can be taken back, is what JAX makes of a derivative that it calls.
            reorders = captured.called is not None and self.form.folds and not self.in_order
            if reorders and (unchanged or not suspects):
                self.in_order = True
                continue
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
        without = " and ".join(f"jax.{transformation}" for transformation in target.left_out)
        if at:
            proof = replace(proof, notes=(*proof.notes, f"it holds{at}; other sizes were not tried"))
        where = f", without rules for {without}{at}" if without else at
        written.with_docstring(head_of_module(captured, self.name, idiomatic, proof.sentence, where), head)
        assert module is not None  # which was proven
        restate(module, written.source)
        return Result(written, proof, self._notes(), module, captured, target, self if idiomatic else None)

    def replayed(self, course: Course, simplified: bool = True) -> Written:
        """The text that the passes of a course give, without docstring and guard, after what was taken back; not proven.

        Of a course that ends before the passes over statements, the text has none of those. simplified: whether the jaxpr
        was rewritten first.
        """
        assert self.fresh is not None
        again = replace(self, program=self.fresh(simplified), options=replace(self.options, guard=False))
        taken = self.retreats
        plain = [(f, f.equations) for f in walk_functions(again.program.entry)]
        lifted = again._lift(plain, taken.refused, taken.inlined, course)
        return again._written("", taken.forced, True, False, taken.rolls, course if lifted else NONE)

    def lifted_program(self) -> Program:
        """The program after its passes, nothing taken back: for another target, which has its own way of writing it."""
        self._lift([(f, f.equations) for f in walk_functions(self.program.entry)], frozenset(), frozenset())
        return self.program

    def _notes(self) -> tuple[str, ...]:
        """What a person should know of the text: those of the program, and which derivatives are not calls in it."""
        captured, options, notes = self.captured, self.options, self.program.notes
        if not any(type(e.callee) is CustomRule for f in walk_functions(self.program.entry) for e in f.equations):
            notes = tuple([note for note in notes if note not in self.program.rule_notes])
        kept = len(captured.called.kept) if captured.called is not None and self.form.folds else 0
        if options.derivatives == "written" or options.style == "exact":
            return notes
        if not options.prove or captured.function is None:
            if captured.summary or not jax_compat.is_differentiated(captured.jaxpr):
                return notes
            why = "a jaxpr has no calls" if captured.function is None else "calls are found with a proof only"
            return (*notes, f"derivatives are written out: {why}")
        if captured.taken == kept:
            return notes
        note = f"{captured.taken - kept} of {captured.taken} derivatives that it asks for are written out: as calls they did "
        return (
            *notes,
            note + "not give the program back, or a library's own primitives are differentiated",
        )

    def _lift(
        self,
        plain: list[tuple[Function, list[Equation]]],
        refused: frozenset[JaxprEqn],
        inlined: frozenset[JaxprEqn],
        course: Course = ALL,
    ) -> bool:
        """Lifts the program, whose functions had the equations `plain` at first: those are added that it comes to need.
        Whether all passes were run."""
        program = self.program
        while True:
            for function, equations in plain:
                function.equations = equations
            options = replace(self._lift_options(), course=replace(course, without=self.options.without))
            whole = lift(program, refused, inlined, options)
            lifted = walk_functions(program.entry)
            with self.captured.as_traced():
                if not program.capture_rest(lifted):
                    return whole
            for function, equations in plain:
                function.equations = equations
            plain[:] = [(f, f.equations) for f in walk_functions(program.entry)]

    def _lift_options(self) -> LiftOptions:
        return LiftOptions(
            outline=self.captured.hooks.outline,
            pullbacks_once=self.once,
            adds_cotangents=self.options.simplify and self.options.prove,
            padding=self.padding,
        )

    def _written(
        self, head: str, forced: frozenset[JaxprEqn], idiomatic: bool, scans: bool, rolls: bool, course: Course = ALL
    ) -> Written:
        """The text. Where a loop has no tree in its carry, for that would be in another order, it is asked whether it has to
        be so, which waits for XLA: the target is the original's program then, and so has the text to be."""
        written = self._write(head, forced, idiomatic, scans, rolls, course)
        if not written.kept_carries or self.keeps_carries is not None:
            return written
        self.keeps_carries = self.compiled_alike is None or self.compiled_alike()
        return written if self.keeps_carries else self._write(head, forced, idiomatic, scans, rolls, course)

    def _write(
        self, head: str, forced: frozenset[JaxprEqn], idiomatic: bool, scans: bool, rolls: bool, course: Course
    ) -> Written:
        o, hooks = self.options, self.captured.hooks
        guarded = guard.guarded_by(self.captured, self.form.target.left_out) if o.guard else None
        manner = Manner(
            keeps_carries=self.keeps_carries is not False,
            share=self.share[0] if self.share else None,
            layout=hooks.layout or Layout,
            size_names=hooks.outline is None,
            course=replace(course, without=self.options.without | self.left_out),
            in_order=self.in_order,
        )
        return write_module(
            JAX.writer,
            self.program,
            head,
            forced,
            o.standalone,
            idiomatic,
            o.comments,
            o.annotations,
            scans,
            rolls,
            guarded,
            manner,
        )

    def _scanned(
        self, looped: Written, proof: Proof, module: Any, head: str, forced: frozenset[JaxprEqn], rolls: bool
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
    where = captured.where()
    where = f" ({where})" if where and not captured.hooks.title else ""
    notes = ["", *captured.notes] if captured.notes else []
    if not idiomatic:
        return "\n".join(
            [f"`{name}`{where}, written back by untrace {__version__} from JAX {jax.__version__}.", *notes]
        )
    what = captured.hooks.title or captured.summary or f"`{name}`"
    proven = (proven or "unproven") + where_proven
    state = " · ".join([f"untrace {__version__}", f"jax {jax.__version__}", proven])
    return "\n".join([f"{what}{where}.", "", state, *notes])


class interpreter_settings:
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
