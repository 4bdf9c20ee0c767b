"""Types that nobody wrote: promotions to a wider type, results that give way to other types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from untrace.ir.liveness import params_read
from untrace.ir.nodes import Atom, Equation, Literal, Value
from untrace.ir.types import Aval
from untrace.provenance.frames import Frame
from untrace.tools.authors import runs_library
from untrace.tools.lint.findings import LintFinding
from untrace.tools.lint.program import Linted, Scope, Seen, bytes_of, resolved, typed

# What converts because the author says so, or has an accuracy of its own inside.
_WRITTEN = frozenset(
    "astype asarray array convert_element_type full full_like zeros_like ones_like float32 float64".split()
)


def promotions(linted: Linted) -> Iterator[LintFinding]:
    readers: dict[tuple[Scope, Value], list[Seen]] = {}
    for seen in linted.seen:
        for atom in seen.equation.inputs:
            if type(atom) is Value:
                readers.setdefault((seen.scope, atom), []).append(seen)
    known: set[Frame] = set()
    for seen in linted.seen:
        frame, equation = seen.frame, seen.equation
        if frame is None or seen.site.phase == "backward" or not _widens(equation):
            continue
        narrow, wide = equation.inputs[0].aval, equation.outputs[0]
        if wide is None or not narrow.shape or (seen.site.library or ("", ""))[1] in _WRITTEN:
            continue
        cause = next(
            (
                c
                for r in readers.get((seen.scope, wide), ())
                if (c := _cause(linted, r, wide, seen.site.frames)) is not None
            ),
            None,
        )
        if cause is None or frame in known:
            continue
        known.add(frame)
        is_number = type(cause) is Literal or not cause.aval.shape
        what = (
            f"a scalar of {cause.aval.dtype}, which is no plain number of Python," if is_number else typed(cause.aval)
        )
        yield linted.finding(
            "promotion",
            frame,
            f"{typed(narrow)} becomes {typed(wide.aval)}, for the other operand is {what} and nobody wrote a conversion",
            {"bytes": bytes_of(wide.aval) - bytes_of(narrow)},
            "a plain number of Python, float(...), which gives way to the array's type" if is_number else
            f"the type that is meant: .astype({_words(narrow)}) of the other operand, or .astype({_words(wide.aval)}) of this one",
        )  # fmt: skip


def _words(aval: Aval) -> str:
    return f"jnp.{aval.dtype}"


def _widens(equation: Equation) -> bool:
    if equation.callee.name != "convert_element_type" or equation.outputs[0] is None:
        return False
    old, new = equation.inputs[0].aval.dtype, equation.outputs[0].aval.dtype
    kinds = (jnp.floating, jnp.complexfloating)
    same = any(jnp.issubdtype(old, k) and jnp.issubdtype(new, k) for k in kinds)
    return same and new.itemsize > old.itemsize and not equation.inputs[0].aval.weak_type


def _cause(linted: Linted, reader: Seen, wide: Value, frames: Sequence[Frame]) -> Atom | None:
    """The operand of the author's that a value was converted for; None where the library has computed that on the way."""
    if reader.site.frames != frames:
        return None
    for atom in reader.equation.inputs:
        if atom is wide or atom.aval.dtype != wide.aval.dtype or atom.aval.weak_type:
            continue
        other, scope = resolved(atom, reader.scope)
        if type(other) is Literal:
            if (reader.site.library or ("", ""))[0] == "operator":
                return other
            continue
        maker = scope.makers.get(other) if type(other) is Value else None
        if any(runs_library(e) for e in scope.around()):
            continue
        if maker is None or linted.provenance.site(maker.origin).frames != frames:
            return other
    return None


def weak_results(linted: Linted) -> Iterator[LintFinding]:
    params, program = linted.program.params, linted.program
    strong = {(p.aval.shape, p.aval.dtype) for p in params}
    inputs = {path[path.find("[") :] for path in linted.paths if "[" in path}  # of a state, by where in it they are
    paths = jax.tree_util.tree_leaves_with_path(linted.captured.out_example)
    makers = {o: s for s in linted.seen if s.scope.outer is None for o in s.equation.outputs if o is not None}
    known: set[tuple[str, int]] = set()
    for result, (path, _) in zip(program.results, paths, strict=True):
        aval = result.aval
        if not aval.shape and not jax.tree_util.keystr(path).endswith(tuple(inputs)):
            continue  # a count
        if type(result) is not Value or not aval.weak_type or (aval.shape, aval.dtype) not in strong:
            continue
        if any(p.aval.weak_type for p in params_read(program, [result])):
            continue  # it comes from a number that was passed as such
        seen = makers.get(result)
        frame = seen.frame if seen is not None else None
        if frame is None or (frame.file, int(frame.line)) in known:
            continue
        known.add((frame.file, int(frame.line)))
        yield linted.finding(
            "weak-type",
            frame,
            f"this result is a weak {typed(aval)}, made of plain numbers alone: it gives way to any other type, and where it is"
            " passed on as an argument of that type (a state), the function is compiled once more",
            {"programs": 1},
            f"the type that is meant: jnp.{aval.dtype}(...), or .astype(jnp.{aval.dtype})",
        )
