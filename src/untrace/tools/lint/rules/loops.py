"""Loops: those that Python unrolled, those that go to the host in each turn, those that could be a `scan`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from untrace.ir.evaluate import evaluate
from untrace.ir.liveness import needed_for, params_read
from untrace.ir.nodes import Atom, Cond, Equation, Function, Literal, Scan, Value, While, functions_in
from untrace.ir.types import Data, Parameter
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.tools.lint.findings import LintFinding
from untrace.tools.lint.program import Linted, Place, Scope, Seen, Values, count_in, count_of

_LEAST_TURNS = 4
_LEAST_SAVED = 12  # equations
_MOST_TURNS = 1_000_000  # that are counted
_CALLBACKS = {
    "pure_callback": "jax.pure_callback", "io_callback": "io_callback", "debug_callback": "jax.debug.callback",
    "debug_print": "jax.debug.print",
}  # fmt: skip
_WHILES = ("while_loop", "fori_loop")
# What says where an element of an array is: turns of a loop differ in that.
_PLACES = frozenset(("start_indices", "limit_indices", "name", "ctx_mesh", "jaxpr_thunk"))

Key: TypeAlias = tuple[object, ...]
Loop: TypeAlias = ast.For | ast.ListComp | ast.GeneratorExp

# ---------------------------------------------------------------- loops that Python unrolled


@dataclass(slots=True)
class _Unrolled:
    """A `for` loop, or a comprehension, of the author's with the equations of its turns. `runs`: for each time that it was gone through, and each
    pass of a derivative, the equations in order with what tells them from others."""

    frame: Frame
    loop: Loop
    depth: int
    runs: dict[Key, list[tuple[Key, Equation]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Turns:
    """Equal turns. `count`: how many follow one another; `equations`: in all of them; `carries`: whether one reads what the one
    before gave."""

    count: int
    equations: int
    saved: int
    carries: bool


def unrolled_loops(linted: Linted) -> Iterator[LintFinding]:
    loops: dict[Loop, _Unrolled] = {}
    for seen in linted.seen:
        frames = seen.site.frames
        if seen.inner is not seen.site or not frames:
            continue  # of what stands in a call of the library's that call is counted
        for depth, frame in enumerate(frames):
            if frame.library or not frame.line:
                continue
            for loop in _loops_at(frame):
                found = loops.setdefault(loop, _Unrolled(frame, loop, depth))
                run = frames[:depth], frame.code, seen.scope.function, seen.site.phase
                found.runs.setdefault(run, []).append((_key(seen, depth), seen.equation))
    reported: list[tuple[str, int, int]] = []  # file, first and last line
    for unrolled in loops.values():  # the outermost first
        line = syntax.line_of(unrolled.frame.code, unrolled.loop)
        end = line + (unrolled.loop.end_lineno or unrolled.loop.lineno) - unrolled.loop.lineno
        if any(file == unrolled.frame.file and first <= line and end <= last for file, first, last in reported):
            continue
        length = _length(unrolled.loop)
        if length is not None and length < _LEAST_TURNS:
            continue
        turns = [t for run in unrolled.runs.values() if (t := _equal_turns(run)) is not None]
        saved = sum(t.saved for t in turns)
        if not turns or saved < _LEAST_SAVED:
            continue
        reported.append((unrolled.frame.file, line, end))
        most = max(turns, key=lambda t: t.count)
        equations, carries = sum(t.equations for t in turns), any(t.carries for t in turns)
        often = len({run[:3] for run in unrolled.runs})
        count = most.count
        if length is not None and length < count:  # a loop around it was unrolled, too
            often, count = count // length, length
        times = f", gone through {often} times," if often > 1 else ""
        yield linted.finding(
            "unrolled-loop",
            Place(unrolled.frame.file, line, line),
            f"Python runs this loop while JAX traces: its {count} equal turns{times} are {equations:,} equations,"
            f" each of which XLA compiles",
            {"turns": count, "equations": equations},
            _as_scan(unrolled.loop, carries),
        )


def _key(seen: Seen, depth: int) -> Key:
    """What makes an equation of one turn the same as that of another one: where it stands, and what it does."""
    equation = seen.equation
    place = tuple([(f.code, f.lasti) for f in seen.site.frames[depth:]])
    types = tuple([(str(a.aval), type(a) is Literal) for a in equation.inputs])
    outs = tuple([None if o is None else str(o.aval) for o in equation.outputs])
    params = tuple(sorted((k, _param(v)) for k, v in equation.parameters.items() if k not in _PLACES))
    return place, equation.callee.name, types, outs, params


def _param(value: Parameter) -> str:
    functions = functions_in(value)
    return str([(f.name, count_in(f)) for f in functions]) if functions else str(value)[:200]


def _loops_at(frame: Frame) -> list[Loop]:
    """The loops that the expression of a frame is in, in its own function, the outermost first."""
    found: list[Loop] = list(syntax.loops_around(frame.code, frame.line))
    own = frame.definition if frame.name.startswith("<") else None
    if isinstance(own, (ast.ListComp, ast.GeneratorExp)):
        return [own]
    inner: list[Loop] = []
    node = frame.node
    while node is not None and not isinstance(node, ast.stmt):  # a comprehension is in its function from Python 3.12 on
        outer, part, _ = syntax.parent(frame.code, node)
        if isinstance(outer, ast.ListComp) and part == "elt":
            inner.append(outer)
        node = outer
    return found + inner[::-1]


def _head(loop: Loop) -> tuple[ast.expr, ast.expr]:
    """What a loop goes through, and what an element is called."""
    if isinstance(loop, ast.For):
        return loop.iter, loop.target
    return loop.generators[0].iter, loop.generators[0].target


def _equal_turns(run: Sequence[tuple[Key, Equation]]) -> _Turns | None:
    """The longest stretch of equal turns; the first ones and the last may be others, which begin or end something. What is the
    smaller part of a run is something that repeats inside a turn."""
    numbers: dict[Key, int] = {}
    keys = np.array([numbers.setdefault(key, len(numbers)) for key, _ in run])
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(int(key), []).append(place)
    periods = {
        period
        for at in places.values()
        if len(at) >= _LEAST_TURNS
        for period, _ in Counter(np.diff(at).tolist()).most_common(2)
    }
    best: tuple[int, int, int] | None = None  # equations, period, start
    for period in sorted(periods)[:64]:
        length, start = _longest(keys[:-period] == keys[period:])
        turns = length // period + 1
        if turns >= _LEAST_TURNS and 2 * turns * period >= len(keys) and (best is None or turns * period > best[0]):
            best = turns * period, period, start
    if best is None:
        return None
    whole, period, start = best
    equations = [equation for _, equation in run[start : start + whole]]
    sizes = [count_of(e) for e in equations]
    made = {o: n // period for n, e in enumerate(equations) for o in e.outputs if o is not None}
    carries = any(
        type(a) is Value and made.get(a, n // period) < n // period for n, e in enumerate(equations) for a in e.inputs
    )
    return _Turns(whole // period, sum(sizes), sum(sizes[period:]), carries)


def _longest(equal: np.ndarray) -> tuple[int, int]:
    """The length and the start of the longest stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal.astype(np.int8), [0]])))
    starts, stops = edges[::2], edges[1::2]
    if not starts.size:
        return 0, 0
    longest = int(np.argmax(stops - starts))
    return int(stops[longest] - starts[longest]), int(starts[longest])


def _length(loop: Loop) -> int | None:
    """The number of turns, where it stands in the source: `range(2)`, `("q", "k", "v")`."""
    call, _ = _head(loop)
    if isinstance(call, ast.Tuple | ast.List) and not any(isinstance(part, ast.Starred) for part in call.elts):
        return len(call.elts)
    if isinstance(call, ast.Call) and syntax.dotted(call.func) == "range":
        numbers = [a.value for a in call.args if isinstance(a, ast.Constant) and type(a.value) is int]
        if len(numbers) == len(call.args) and 1 <= len(numbers) <= 3 and 0 not in numbers[2:]:
            return len(range(*numbers))
    return None


def _as_scan(loop: Loop, carries: bool) -> str:
    """What the loop would be, in the author's names."""
    iterable, name = _head(loop)
    target = ast.unparse(name)
    if isinstance(iterable, ast.Call) and syntax.dotted(iterable.func) == "range":
        elements = f"jnp.arange({', '.join(map(ast.unparse, iterable.args))})"
    else:
        elements = f"jax.tree.map(lambda *xs: jnp.stack(xs), *{ast.unparse(iterable)})"
    if not carries or not isinstance(loop, ast.For):
        return f"jax.vmap(turn)({elements}), with the body as `def turn({_argument(target)}): ...`: no turn needs another one"
    state = _carried(loop)
    carry = state[0] if len(state) == 1 else f"({', '.join(state)})"
    first = "carry" if len(state) != 1 else state[0]
    lines = [f"def turn({first}, {_argument(target)}):"]
    if len(state) > 1:
        lines.append(f"    {', '.join(state)} = carry")
    lines += [f"    ...  # the body, {target} an element", f"    return {carry if state else 'carry'}, None"]
    carry = carry if state else "carry"
    return "\n".join([*lines, f"{carry}, _ = jax.lax.scan(turn, {carry}, {elements})"])


def _argument(target: str) -> str:
    return target if target.isidentifier() else "element"


def _carried(loop: ast.For) -> list[str]:
    """The variables that a turn reads before it sets them, and sets."""
    stored: set[str] = set()
    carried: dict[str, None] = {}
    own = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    assigned = {
        n.id for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    } - own
    for statement in loop.body:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            read.add(statement.target.id)
        carried.update((n, None) for n in sorted((read & assigned) - stored))
        stored |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return list(carried)


# ---------------------------------------------------------------- callbacks


def callbacks_in_loops(linted: Linted) -> Iterator[LintFinding]:
    for seen in linted.seen:
        name = _CALLBACKS.get(seen.equation.callee.name)
        frame = seen.frame
        loop, turns = _loop_of(seen.scope)
        if name is None or frame is None or loop is None or (turns is not None and turns < _LEAST_TURNS):
            continue
        often = f"{turns:,} times" if turns is not None else "in each turn"
        quiet = name.startswith("jax.debug")
        instead = "return what is to be shown from the loop, and show it afterwards" if quiet else (
            "compute it in JAX, or once for all turns before or after the loop")  # fmt: skip
        yield linted.finding(
            "callback-in-loop",
            frame,
            f"{name} in a loop stops the device and goes to Python {often}",
            {"turns": turns} if turns is not None else {},
            f"{instead}; or call it only now and then, inside of jax.lax.cond",
        )


def _loop_of(scope: Scope) -> tuple[Equation | None, int | None]:
    """The loops that an equation runs in each turn of, as one: the innermost, and all their turns (None where nobody knows
    them); no loop where a branch decides whether it runs."""
    loop, turns = None, 1
    unknown = False
    for equation in reversed(scope.around()):
        if type(equation.callee) is Cond:
            break
        if type(equation.callee) in (Scan, While):
            loop = loop or equation
            if type(equation.callee) is Scan:
                turns *= equation.params["length"]
            else:
                unknown = True
    return loop, None if unknown else turns


# ---------------------------------------------------------------- while loops with a known number of turns


def whiles_that_count(linted: Linted) -> Iterator[LintFinding]:
    for seen in linted.seen:
        callee, frame = seen.equation.callee, seen.frame
        if type(callee) is not While or frame is None or (seen.site.library or ("", ""))[1] not in _WHILES:
            continue
        turns = _turns_of(callee, seen)
        if turns is None:
            continue
        yield linted.finding(
            "while-as-scan",
            frame,
            f"this while_loop always makes {turns:,} turns, and has no derivative in reverse mode; a loop whose number of"
            " turns is known has one",
            {"turns": turns},
            f"jax.lax.fori_loop(0, {turns}, lambda i, state: ..., state) with Python's numbers as bounds,"
            f" or jax.lax.scan(turn, state, length={turns})",
        )


def _turns_of(loop: While, seen: Seen) -> int | None:
    """How many turns a loop makes, where nothing decides but numbers of the program."""
    carry = seen.equation.inputs[loop.consts :]
    ours, consts = (
        loop.condition.params[: loop.condition_consts],
        loop.body.params[: loop.consts - loop.condition_consts],
    )
    places = {p: i for i, p in enumerate(loop.body.params[len(consts) :])}
    needed = {loop.condition.params.index(p) - len(ours) for p in params_read(loop.condition, loop.condition.results)}
    counted = {i for i in needed if i >= 0}
    while True:  # what the counters are computed from
        read = params_read(loop.body, [loop.body.results[i] for i in sorted(counted)])
        more = {places[p] for p in read if p in places} - counted
        if not more:
            break
        counted |= more
    values = Values()
    known = {i: values.of(carry[i], seen.scope) for i in counted}
    inputs = seen.equation.inputs
    given = {p: values.of(a, seen.scope) for p, a in zip((*ours, *consts), inputs, strict=False)}
    body_reads = params_read(loop.body, [loop.body.results[i] for i in sorted(counted)])
    condition_reads = params_read(loop.condition, loop.condition.results)
    if not counted or any(x is None for x in known.values()) or loop.condition.result_avals[0].shape:
        return None
    if any(given.get(p, 0) is None for p in (*body_reads, *condition_reads)):
        return None
    if any(e.effects for f in (loop.condition, loop.body) for e in needed_for(f, _results(loop, f, counted))):
        return None
    return _counted_turns(loop, sorted(counted), known, given)


def _results(loop: While, function: Function, counted: set[int]) -> list[Value]:
    results = function.results if function is loop.condition else [function.results[i] for i in sorted(counted)]
    return [r for r in results if type(r) is Value]


def _counted_turns(
    loop: While, counted: Sequence[int], known: Mapping[int, np.ndarray | None], given: Mapping[Value, np.ndarray | None]
) -> int | None:  # fmt: skip
    """The loop with its counters alone, run."""
    first = loop.consts - loop.condition_consts
    names = {True: loop.condition.params[loop.condition_consts :], False: loop.body.params[first:]}
    condition = _part(loop.condition, loop.condition.results)
    body = _part(loop.body, [loop.body.results[i] for i in counted])

    def args(part: Function, state: Sequence[Data], is_condition: bool) -> list[Data]:
        at = {names[is_condition][i]: x for i, x in zip(counted, state, strict=True)}
        return [at[p] if p in at else given[p] for p in part.params]

    start = [jnp.asarray(known[i]) for i in counted]

    def goes_on(state: tuple[Data, ...]) -> Data:
        turns, *rest = state
        return (turns < _MOST_TURNS) & evaluate(condition, *args(condition, rest, True))[0]

    def turn(state: tuple[Data, ...]) -> tuple[Data, ...]:
        turns, *rest = state
        new = evaluate(body, *args(body, rest, False))
        return turns + 1, *[jnp.asarray(n, x.dtype) for n, x in zip(new, start, strict=True)]

    try:
        turns = int(jax.lax.while_loop(goes_on, turn, (jnp.int32(0), *start))[0])
    except Exception:  # what cannot be run by itself decides by more than numbers
        return None
    return turns if turns < _MOST_TURNS else None


def _part(function: Function, results: Sequence[Atom]) -> Function:
    """The function of what some results need."""
    params = [p for p in function.params if p in params_read(function, results)]
    return Function(function.name, params, needed_for(function, results), list(results), function.jaxpr)
