"""Proves written text: run it as a fresh module, trace it, and compare the jaxpr with the original's."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

import jax

from untrace.capture.function import Captured
from untrace.print.jax.module import Written
from untrace.prove.compare import compare_jaxprs
from untrace.prove.load import LoadedText, load_text
from untrace.prove.report import Proof


@dataclass(slots=True)
class Outcome:
    """What one attempt gave. `retreat`: ids of the jaxpr equations whose statements should be written as a `bind`."""

    module: LoadedText | None
    proof: Proof
    retreat: frozenset[int] = frozenset()


def prove_text(written: Written, captured: Captured, timings: dict[str, float]) -> Outcome:
    """The highest level that `written` reaches, with the statements to take back where it is not the highest of all."""
    start = time.perf_counter()
    try:
        module = load_text(written.source, written.name, written.arrays)
    except Exception as error:  # whatever a wrong text raises
        return Outcome(None, Proof("unproven", f"the text does not load: {error!r:.300}"))
    loaded = time.perf_counter()
    timings["load"] = timings.get("load", 0.0) + loaded - start
    function = whole_call(getattr(module, written.name), captured)
    try:
        again = jax.make_jaxpr(function)(*captured.args, **captured.kwargs)
    except Exception as error:
        proof = Proof("unproven", f"the text does not trace: {type(error).__name__}: {str(error)[:300]}")
        return Outcome(module, proof, _blamed(error, module, written))
    traced = time.perf_counter()
    timings["retrace"] = timings.get("retrace", 0.0) + traced - loaded
    difference = compare_jaxprs(captured.expanded, again)
    timings["compare"] = timings.get("compare", 0.0) + time.perf_counter() - traced
    if difference is None:
        if captured.expanded is captured.jaxpr:
            count = len(captured.jaxpr.eqns)
            return Outcome(module, Proof("jaxpr", f"{count} equation{'' if count == 1 else 's'}", captured.notes))
        return Outcome(module, _weaker(function, captured, "library primitives were expanded"))
    retreat = frozenset(id(eqn) for eqn in _differing(difference))
    return Outcome(module, _weaker(function, captured, difference.why), retreat)


def _differing(difference: Any) -> list[Any]:
    """The original's equations to take back: each that differs, with those around it (a nested one may be at fault)."""
    found = [e for e in getattr(difference, "all_differences", ())]
    return found + list(difference.path)


def _blamed(error: Exception, module: LoadedText, written: Written) -> frozenset[int]:
    """The equations behind the lines of the text that the exception passed through."""
    path = module.__file__
    ids = set()
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path and frame.lineno and frame.lineno <= len(written.origins):
            origin = written.origins[frame.lineno - 1]
            if origin is not None:
                ids.add(id(origin))
    return frozenset(ids)


def whole_call(function: Any, captured: Captured) -> Any:
    """`function` of the traced arguments only, the static ones put back in their places."""
    static = captured.static
    if not static:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        count = len(args) + sum(isinstance(k, int) for k in static)
        whole = [static[i] if i in static else next(rest) for i in range(count)]
        return function(*whole, **kwargs, **{k: v for k, v in static.items() if isinstance(k, str)})

    return call


def _weaker(function: Any, captured: Captured, why: str) -> Proof:
    """The level below `jaxpr` that holds: the same StableHLO, or the same bits on sampled inputs."""
    from untrace.prove import hlo, run

    original = jax.extend.core.jaxpr_as_fun(captured.jaxpr)
    args = jax.tree_util.tree_leaves((captured.args, captured.kwargs))
    tree = jax.tree_util.tree_structure((captured.args, captured.kwargs))

    def written(*leaves: Any) -> Any:
        positional, named = jax.tree_util.tree_unflatten(tree, leaves)
        return jax.tree_util.tree_leaves(function(*positional, **named))

    if hlo.same_stablehlo(original, written, args) is True:
        return Proof("hlo", why, captured.notes)
    return run.weaker_proof(original, written, args, why, captured.notes)
