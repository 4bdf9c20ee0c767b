"""Proves written text: run it as a fresh module, trace it, and compare the jaxpr with the original's."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.capture.function import Captured
from untrace.jaxprs.equal.compare import compare
from untrace.lift.rewrite.simplify import IMPLICIT, simplified
from untrace.module.emit import Written
from untrace.prove.hlo import OptimisedAlike, begin_alone, stablehlo_difference
from untrace.prove.load import LoadedText, load_text
from untrace.prove.report import Proof


@dataclass(slots=True)
class Outcome:
    """What one attempt gave.

    `proof`: set where the text re-traces to the original's jaxpr; else None, and `why` says what differs.
    `traced`: whether the text could be traced at all. `reordered`: whether its loops carry values in another order.
    `differs_at_example`: whether it comes back at the sizes that it was written for, and as another program at the user's.
    `suspects`: chains of ids of jaxpr equations, the likeliest at fault first: a statement that does not come back as its
    equation should be written as a `bind`, and if that does not help, the one around it.
    """

    module: LoadedText | None
    proof: Proof | None
    why: str = ""
    suspects: tuple[tuple[JaxprEqn, ...], ...] = ()
    traced: bool = True
    reordered: bool = False
    differs_at_example: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """The jaxpr that a text must come back as: the captured one, or what `simplifications` (in words) made of it.

    `neutral`: whether both lower to the same StableHLO. `notes`: what the simplifications leave unproven. `example`: that of
    the user's own arguments, of a program that was captured at other sizes. `left_out`: the transformations that the text
    refuses, for the rules of functions for them are not in it. `is_run`: whether the programs may be run for a proof.
    """

    jaxpr: Any
    simplifications: str = ""
    neutral: bool = True
    notes: tuple[str, ...] = ()
    example: Goal | None = None
    left_out: tuple[str, ...] = ()
    is_run: bool = True


def prove_text(
    written: Written,
    captured: Captured,
    timings: dict[str, float],
    goal: Goal,
    alike: Callable[[], bool] | None = None,
    module: LoadedText | None = None,
) -> Outcome:
    """Loads and re-traces `written`, and compares; see Outcome. Of a text that was written at other sizes than those of the
    user's arguments the proof is the one at the user's.

    goal: where it is not what was captured, the two are compared as well. alike: whether both compile to the same program,
    where that is known or on its way. module: the text, where it was loaded before.
    """
    start = time.perf_counter()
    try:
        if module is None:
            module = load_text(written.source, written.name, written.arrays, written.callables, final=False)
    except Exception as error:  # whatever a wrong text raises
        return Outcome(None, None, f"the text does not load: {type(error).__name__}: {str(error)[:300]}")
    loaded = time.perf_counter()
    timings["load"] = timings.get("load", 0.0) + loaded - start
    function = whole_call(getattr(module, written.name), captured.static)
    try:
        again = jax.make_jaxpr(_with_one_traceback(function))(*captured.args, **captured.kwargs)
    except Exception as error:
        why = f"the text does not trace: {type(error).__name__}: {str(error)[:300]}"
        return Outcome(module, None, why, (_blamed(error, module, written),), traced=False)
    traced = time.perf_counter()
    timings["retrace"] = timings.get("retrace", 0.0) + traced - loaded
    target, neutral = goal.jaxpr, goal.neutral
    same_form = form_of(goal, captured)(again)
    comparison = compare(target, same_form, captured.expander, carries=True, sums=True)
    timings["compare"] = timings.get("compare", 0.0) + time.perf_counter() - traced
    difference = comparison.difference
    if difference is not None:
        paths = difference.all_paths or (difference.path,)
        suspects = tuple(tuple(reversed(path)) for path in paths)
        return Outcome(module, None, difference.why, suspects)
    if captured.example is not None and goal.example is not None:
        outcome = prove_text(written, captured.example, timings, goal.example, alike, module)
        # What differs there is no equation's fault: the text holds at other sizes.
        differs = outcome.traced and outcome.proof is None
        return replace(outcome, module=module, suspects=(), differs_at_example=differs)
    words = [*(["sums of cotangents"] if comparison.added else []), *filter(None, [goal.simplifications])]
    if comparison.closed_anew:
        words.insert(0, "constants that loops close over more than once")
    if comparison.reordered:
        words.insert(0, "the order of what loops carry")
    if comparison.reordered or comparison.closed_anew:
        start = time.perf_counter()
        notes = (*captured.notes, *comparison.notes, *goal.notes)
        why = f"same jaxpr but for {' and '.join(words)}"
        proof = weaker_of(again, captured, why, notes, lowered_alike=not comparison.reordered)
        timings["run"] = timings.get("run", 0.0) + time.perf_counter() - start
        return Outcome(module, proof if proof.at_least("bits") else None, proof.detail, reordered=comparison.reordered)
    if neutral and target is not captured.expanded:
        # Where JAX puts everything in again that was taken out, the text is the very program.
        whole = compare(captured.expanded, again, captured.expander)
        if whole.difference is None:
            target, comparison = captured.expanded, whole
    notes = (*captured.notes, *comparison.notes, *(goal.notes if target is not captured.expanded else ()))
    if comparison.added and target is captured.expanded is captured.jaxpr:
        return Outcome(module, Proof("hlo", f"same jaxpr but for {words[0]}", notes))
    if target is not captured.expanded:
        start = time.perf_counter()
        # The target takes what its loops close over in the original's order, as the text need not. But it is no program by
        # itself where JAX has to put something in again.
        program = target if same_form is again else again
        why = f"same jaxpr but for {' and '.join(words)}"
        if goal.left_out and not goal.is_run:
            proof = _lowered_alike(target, captured, why, notes)
        else:
            proof = weaker_of(program, captured, why, notes, neutral, alike if same_form is again else None)
        timings["run"] = timings.get("run", 0.0) + time.perf_counter() - start
        return Outcome(module, proof if proof.at_least("bits") else None, proof.detail)
    if captured.expanded is captured.jaxpr:
        count = len(captured.jaxpr.eqns)
        detail = f"{count} equation{'' if count == 1 else 's'}"
        return Outcome(module, Proof("jaxpr", detail, notes))
    # The text comes back as what the original was expanded to; the original itself has primitives of its library.
    why = "same jaxpr but for primitives and rules of libraries, which were expanded"
    return Outcome(module, weaker(module, written, captured, why))


def _lowered_alike(program: Any, captured: Captured, why: str, notes: tuple[str, ...]) -> Proof:
    """Whether a program without rules of functions lowers as the original does, in which JAX lowers what they compute: that
    is put in the place of their calls first, for it is lowered in another order there."""
    args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
    first, second = (simplified(c, frozenset(), without=frozenset())[0] for c in (captured.expanded, program))
    difference = stablehlo_difference(first, second, args)
    if difference is None and captured.expanded is not captured.jaxpr:
        difference = stablehlo_difference(captured.jaxpr, captured.expanded, args)
    return Proof("hlo", why, notes) if difference is None else Proof("unproven", f"{why}; {difference}", notes)


def form_of(goal: Goal, captured: Captured) -> Callable[[Any], Any]:
    """What makes of a text's trace what is compared: JAX puts things in by itself that were taken out of the goal."""
    return (lambda again: again) if goal.jaxpr is captured.expanded else lambda again: simplified(again, IMPLICIT)[0]


def _blamed(error: Exception, module: LoadedText, written: Written) -> tuple[JaxprEqn, ...]:
    """The equations behind the lines of the text that the exception passed through, the innermost first."""
    path = module.__file__
    found: list[JaxprEqn] = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path and frame.lineno and frame.lineno <= len(written.origins):
            origin = written.origins[frame.lineno - 1]
            if origin is not None:
                found.extend(written.folded.get(origin, ()))
                found.append(origin)
    return tuple(dict.fromkeys(reversed(found)))


def _with_one_traceback(function: Any) -> Any:
    """The function, to be traced where nobody asks which line an equation came from."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with jax_compat.one_traceback():
            return function(*args, **kwargs)

    return call


def whole_call(function: Any, static: Mapping[int | str, Any]) -> Any:
    """`function` of the traced arguments only, the static ones put back in their places."""
    if not static:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        count = len(args) + sum(isinstance(k, int) for k in static)
        whole = [static[i] if i in static else next(rest) for i in range(count)]
        return function(*whole, **kwargs, **{k: v for k, v in static.items() if isinstance(k, str)})

    return call


def weaker(module: LoadedText, written: Written, captured: Captured, why: str) -> Proof:
    """The level below `jaxpr` that holds: the same StableHLO, or the same bits on sampled inputs."""
    return weaker_of(of_leaves(module, written, captured), captured, why, captured.notes)


def of_leaves(module: LoadedText, written: Written, captured: Captured) -> Any:
    """The written function, of flat leaves to flat leaves."""
    function = whole_call(getattr(module, written.name), captured.static)
    _, tree = jax.tree_util.tree_flatten((captured.args, captured.kwargs))

    def text(*leaves: Any) -> Any:
        positional, named = jax.tree_util.tree_unflatten(tree, leaves)
        return jax.tree_util.tree_leaves(function(*positional, **named))

    return text


def prove_scans(written: Written, captured: Captured) -> tuple[Proof, LoadedText | None]:
    """The proof of a text in which loops became scans, by running, and its module; see `weaker`.

    XLA may round otherwise in a loop than in straight code. Then the scans must give the same bits where they are
    unrolled, and the level is `close`: how far apart they are in a loop is stated.
    """
    from untrace.prove import run

    module = None
    try:
        module = load_text(written.source, written.name, written.arrays, written.callables, final=False)
        text = of_leaves(module, written, captured)
        args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
        jax.eval_shape(text, *args)
        original = jax.extend.core.jaxpr_as_fun(captured.jaxpr)
        runs = run.compare_runs(original, text, args)
    except Exception as error:  # whatever a wrong text raises, and what the user's function does
        first_line = (str(error).splitlines() or [""])[0]
        return Proof("unproven", f"{type(error).__name__}: {first_line[:200]}"), None
    count = written.scans
    why = f"{count} loop{'' if count == 1 else 's'} became {'a scan' if count == 1 else 'scans'}"
    proof = run.proof_of_runs(runs, why, captured.notes)
    rounded = all(d.not_finite is None and not d.type_difference for d in runs.differences)
    if proof.at_least("bits") or not rounded:
        return proof, module

    def unrolled(*leaves: Any) -> Any:
        with jax.disable_jit():  # a scan is a Python loop then
            return text(*leaves)

    straight = run.weaker_proof(original, unrolled, args, "", captured.notes)
    if not straight.at_least("bits"):
        return Proof("unproven", f"{why}, but {straight.detail} also where the scans are unrolled"), None
    detail = (
        f"same bits {straight.detail} where the scans are unrolled, within {run.ulps(runs.max_ulp)} where not; {why}"
    )
    return Proof("close", detail, captured.notes), module


def begin_compiling(target: Any, captured: Captured, lowered_alike: bool) -> OptimisedAlike:
    """Whether a jaxpr compiles to the program that the captured one compiles to, as one can ask later; see `weaker_of`."""
    args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
    return OptimisedAlike(captured.jaxpr, target, args, lowered_alike, captured.compilation)


def begin_original(captured: Captured, several: bool) -> None:
    """Has XLA compile the captured program, where that is what a simplified one is compared with, beside all that follows.

    several: whether there may be more than one simplified one.
    """
    if not captured.begun:
        captured.begun = True
        args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
        captured.compilation = begin_alone(captured.jaxpr, args, several)


def weaker_of(
    program: Any,
    captured: Captured,
    why: str,
    notes: tuple[str, ...],
    lowered_alike: bool = True,
    alike: Callable[[], bool] | None = None,
) -> Proof:
    """The level below `jaxpr` at which a function of flat leaves, or a closed jaxpr, is the captured program.

    lowered_alike: whether it may lower to the same StableHLO; if not, that is not tried. alike: what `begin_compiling`
    gave of it, where that was called.
    """
    from untrace.prove import run

    args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
    if (alike or begin_compiling(program, captured, lowered_alike))():
        return Proof("hlo", why, notes)
    original = jax.extend.core.jaxpr_as_fun(captured.jaxpr)
    function = jax.extend.core.jaxpr_as_fun(program) if jax_compat.is_jaxpr(program) else program
    return run.weaker_proof(original, function, args, why, notes)
