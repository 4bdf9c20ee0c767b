"""Values that were taken while JAX traced, and stay what they were: the time, random numbers of NumPy, counters."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
from jax.experimental import checkify

from untrace import jax_compat
from untrace.capture.function import classes_in
from untrace.ir.nodes import Atom, Equation, Function, Value
from untrace.ir.types import Data
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.tools.lint.findings import LintFinding
from untrace.tools.lint.program import Linted, Place, Scope, bodies_run, place_of_frame

# Whose functions give something else each time, by the module that has them; of the clock not in the digits of a float32.
_RANDOM = ("random", "np.random", "numpy.random", "uuid", "secrets", "os")
_CLOCKS = frozenset(
    f"{module}{name}"
    for module in ("time.", "")
    for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
) | {"datetime.now", "datetime.datetime.now", "datetime.utcnow", "datetime.datetime.utcnow", "date.today",
     "datetime.date.today"}  # fmt: skip


def frozen_values(linted: Linted) -> Iterator[LintFinding]:
    if linted.again is None:
        linted.notes.append(
            "values that are frozen in the trace were not looked for: the function cannot be traced twice"
        )
        return
    if checkify.Error in classes_in(linted.captured.out_example) or any(
        s.equation.callee.name == "check" for s in linted.seen
    ):
        linted.notes.append("values that are frozen in the trace were not looked for: checkify numbers its checks anew")
        return
    known: set[tuple[str, int]] = set()
    traced = {s.frame.node for s in linted.seen if s.frame is not None and s.frame.node is not None}
    twins = _twins(Scope(linted.program), linted.again, set())
    for equation, scope, before, after in [*twins, *_by_clock(linted, traced)]:
        frame = _author_frame(linted, equation, scope)
        if frame is None:
            continue
        calls = _calls_behind(frame, traced)
        impure = [c for c in calls if _is_clock(frame, c) or _is_random(frame, c)]
        place, word = place_of_frame(frame), "a value"
        if impure:
            line = syntax.line_of(frame.code, impure[-1])
            place, word = Place(frame.file, line, line), f"what {syntax.dotted(impure[-1].func)}() gave"
        if (place.file, place.line) in known:
            continue
        known.add((place.file, place.line))
        what = ""
        if after is not None:
            what = f" ({_shown(before)} in the first trace, {_shown(after)} in a second one)"
        elif before is None:
            what = " (the program was another one when it was traced again)"
        yield linted.finding(
            "frozen-value",
            place,
            f"{word} is fixed while JAX traces, and every call of the compiled function has the same{what}",
            {},
            "an argument of the function with the value; for random numbers a key, jax.random.key(seed), and jax.random",
        )


# An equation, where it is, and a number in it: in the first trace, in the second one.
_Frozen: TypeAlias = tuple[Equation, Scope, Data | None, Data | None]


def _by_clock(linted: Linted, traced: Container[ast.AST]) -> Iterator[_Frozen]:
    """Equations with numbers that the author has from a clock."""
    for seen in linted.seen:
        numbers = [a for a in seen.equation.inputs if type(a) is not Value]
        if not numbers or seen.frame is None or seen.inner is not seen.site:
            continue
        frame = seen.frame
        if any(_is_clock(frame, call) for call in _calls_behind(frame, traced)):
            yield seen.equation, seen.scope, numbers[0].value, None


def _twins(scope: Scope, again: Function, known: set[Function]) -> Iterator[_Frozen]:
    """Equations that have another number in them in the second trace, with both; Nones where the program is another one from
    there on."""
    for one, other in zip_longest(scope.function.equations, again.equations):
        if one is None or other is None or one.callee.name != other.callee.name:
            found = one or (scope.function.equations[-1] if scope.function.equations else None)
            if found is not None:
                yield found, scope, None, None
            return
        for a, b in zip(one.inputs, other.inputs, strict=False):
            if type(a) is not Value and type(b) is not Value and not _is_same(a, b):
                yield one, scope, a.value, b.value
                break
        for (body, given), (twin, _) in zip(bodies_run(one), bodies_run(other), strict=False):
            if body not in known:
                known.add(body)
                yield from _twins(Scope(body, scope, one, given), twin, known)


def _is_same(one: Atom, other: Atom) -> bool:
    assert type(one) is not Value and type(other) is not Value
    a, b = one.value, other.value
    if a is b:
        return True
    if jax_compat.is_key(a) or jax_compat.is_key(b):
        a, b = jax_compat.key_data(a), jax_compat.key_data(b)
    try:
        first, second = np.asarray(a), np.asarray(b)
        return first.dtype == object or first.shape == second.shape and first.tobytes() == second.tobytes()
    except Exception:  # no arrays: what they are is not known
        return True


def _author_frame(linted: Linted, equation: Equation, scope: Scope) -> Frame | None:
    """The innermost frame of the author's behind an equation, or behind a call that it is in."""
    for one in [equation, *reversed(scope.around())]:
        frame = linted.provenance.site(one.origin).frame
        if frame is not None and frame.line:
            return None if frame.library else frame
    return None


def _calls_behind(frame: Frame, traced: Container[ast.AST]) -> list[ast.Call]:
    """The calls in the expression of a frame, and in those that its variables were set to further up, but for what JAX has
    `traced`."""
    nodes = [frame.node] if isinstance(frame.node, (ast.expr, ast.AugAssign)) else []
    sets = [n for n in ast.walk(frame.definition) if isinstance(n, ast.Assign)] if frame.definition is not None else []
    calls: list[ast.Call] = []
    names: set[str] = set()
    for node in nodes:
        parts: list[ast.AST] = [node]
        for part in parts:
            if part in traced and part is not frame.node:
                continue
            parts += ast.iter_child_nodes(part)
            if isinstance(part, ast.Call):
                calls.append(part)
            elif isinstance(part, ast.Name) and part.id not in names:
                names.add(part.id)
                nodes += [
                    s.value for s in sets
                    if s.lineno < node.lineno and any(isinstance(t, ast.Name) and t.id == part.id for t in s.targets)
                ]  # fmt: skip
    return calls


def _is_clock(frame: Frame, call: ast.Call) -> bool:
    return syntax.dotted(call.func) in _CLOCKS and _is_global(frame, call)


def _is_random(frame: Frame, call: ast.Call) -> bool:
    return syntax.dotted(call.func).startswith(tuple(f"{m}." for m in _RANDOM)) and _is_global(frame, call)


def _is_global(frame: Frame, call: ast.Call) -> bool:
    """Whether what a call names is no variable of the function, but a module or a function of one."""
    root, code = syntax.dotted(call.func).partition(".")[0], frame.code
    return root not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


def _shown(value: Data) -> str:
    if jax_compat.is_key(value):
        return "a key"
    array = np.asarray(value)
    return f"{array.reshape(-1)[0]:.6g}" + ("" if not array.ndim else ", ...") if array.size else "an empty array"
