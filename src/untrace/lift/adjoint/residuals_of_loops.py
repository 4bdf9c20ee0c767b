"""Residuals that go through loops: what a forward loop stacks for its backward loop is one tuple there, too.

    (..., (a, b, saved))  = step(...)                     (..., residuals) = step(...)
    _, (as_, bs, saveds) = scan(step, ...)         ->     _, residuals = scan(step, ...)
    scan(step_bwd, ..., (d_ys, as_, bs, saveds))          scan(step_bwd, ..., (d_ys, residuals))

JAX flattens tuples, so that a loop with tuples is the same equation as one with their parts: as long as the parts come
in the same order. So what a function inside the loop saves is put into the order in which the loop gives it
(`arrange`), together with arguments of the function that JAX saved among those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from jax.extend.core import JaxprEqn

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Function, Local, Pack, Scan, TupleType, Value, functions_called
from untrace.ir.scans import is_plain_scan

Path = tuple[int, ...]

# So many values that a forward loop saves for one backward loop are one tuple; what is a tuple already counts twice.
_MANY = 4


class Handover:
    """`values`, the results of the loop `forward` that the later loop `backward` takes, as they stand and in the same
    order; nothing else uses them."""

    __slots__ = ("forward", "backward", "values")

    def __init__(self, forward: Equation, backward: Equation, values: Sequence[Value]):
        self.forward = forward
        self.backward = backward
        self.values = values


def handovers(functions: Sequence[Function], refused: Container[JaxprEqn]) -> dict[Function, list[Handover]]:
    """Those in each function, by its id. The loops in them get bodies of their own, in place: the
    functions that they had stay as they were."""
    shared = Counter(g for f in functions for e in f.equations if e.may_hold_functions for g in functions_called(e))
    found: dict[Function, list[Handover]] = {}
    for function in functions:
        loops = [i for i in _loops(function, refused) if shared[callee_of(function.equations[i], Scan).body] == 1]
        if len(loops) < 2:
            continue
        uses = Counter(a for e in function.equations for a in e.inputs)
        uses.update(r for r in function.results)
        runs = [
            (i, j, run)
            for at, i in enumerate(loops)
            for j in loops[at + 1 :]
            for run in _runs(function.equations[i], function.equations[j], uses)
        ]
        if runs:
            function.equations = list(function.equations)
            for place in {place for i, j, _ in runs for place in (i, j)}:
                function.equations[place] = _with_own_body(function.equations[place])
            found[function] = [Handover(function.equations[i], function.equations[j], *r) for i, j, *r in runs][::-1]
    return found


def _runs(forward: Equation, backward: Equation, uses: Counter[Any]) -> Iterator[list[Value]]:
    """What goes from one loop to the other together."""
    loop = callee_of(backward, Scan)
    consts, carries = loop.consts, loop.carries
    places: dict[Any, int] = {a: i for i, a in enumerate(backward.inputs) if i >= consts + carries}
    outputs: Sequence[Any] = forward.outputs
    start = callee_of(forward, Scan).carries
    while start < len(outputs):
        first = outputs[start]
        stop = start
        if first is not None and first in places:
            taken = places[first]
            while (
                stop < len(outputs) and uses[outputs[stop]] == 1 and places.get(outputs[stop]) == taken + stop - start
            ):
                stop += 1
            if stop > start + 1:
                yield list(outputs[start:stop])
        start = max(stop, start + 1)


class Stack:
    """`values`, results of the loop `forward` as they stand and in the same order, which a function saves."""

    __slots__ = ("forward", "values")

    def __init__(self, forward: Equation, values: Sequence[Value]):
        self.forward = forward
        self.values = values


def stacks(
    functions: Sequence[Function], refused: Container[JaxprEqn], loops: dict[Function, list[Handover]]
) -> tuple[dict[Function, list[Stack]], set[Equation]]:
    """(those in each function, by its id; the ids of the loops that may take such tuples). The loops get bodies of their
    own, in place. `loops`: what goes from one loop to another in one function."""
    own = {e for found in loops.values() for h in found for e in (h.forward, h.backward)}

    def with_own_body(function: Function, place: int) -> Equation:
        if function.equations[place] not in own:
            function.equations = list(function.equations)
            function.equations[place] = _with_own_body(function.equations[place])
            own.add(function.equations[place])
        return function.equations[place]

    found: dict[Function, list[Stack]] = {}
    for function in functions:
        if function.facts.saved < _MANY:
            continue
        uses = Counter(a for e in function.equations for a in e.inputs)
        uses.update(function.results)
        saved = {r for r in function.results[-function.facts.saved :] if uses[r] == 1}
        for place in _loops(function, refused):
            outputs: Sequence[Any] = function.equations[place].outputs
            runs: list[list[Any]] = [list(group) for ours, group in groupby(outputs, saved.__contains__) if ours]
            runs = [run for run in runs if len(run) >= _MANY]
            if runs:
                forward = with_own_body(function, place)
                found.setdefault(function, []).extend(Stack(forward, run) for run in runs)
    takers: set[Equation] = set()
    if found:
        for function in functions:
            saved = {o for e in function.equations if type(e.callee) is Local for o in e.outputs if o is not None}
            if function.facts.backward:
                saved.update(function.params)
            for place in _loops(function, refused):
                if sum(a in saved for a in function.equations[place].inputs) >= _MANY:
                    takers.add(with_own_body(function, place))
    return found, takers


def _loops(function: Function, refused: Container[JaxprEqn]) -> list[int]:
    """Places of the loops in a function that may stack and take tuples."""
    return [
        place
        for place, e in enumerate(function.equations)
        if type(e.callee) is Scan
        and e.origin not in refused
        and e.callee.body.facts.trees is None  # the author's own
        and is_plain_scan(e)
    ]


def _with_own_body(equation: Equation) -> Equation:
    loop = callee_of(equation, Scan)
    body = loop.body
    own = Function(body.name, list(body.params), list(body.equations), list(body.results), body.jaxpr)
    own.facts = body.facts
    inputs, outputs = list(equation.inputs), list(equation.outputs)
    return Equation(loop.with_body(own), inputs, outputs, equation.params, equation.origin)


# ------------------------------------------------------------------ order


def arrange(functions: Sequence[Function], found: dict[Function, list[Handover]]) -> None:
    """What functions save is put into the order in which loops give it; `functions`: callees first."""
    orders: dict[Function, list[Any]] = {}  # a function -> its results: as a loop gives them, or as arranged here
    for handover in (h for hs in found.values() for h in hs):
        body = callee_of(handover.forward, Scan).body
        body.results = orders[body] = list(body.results)  # one list: what is arranged below is the body's own
    sites: dict[Function, list[tuple[Function, Equation]]] = {}
    for function in reversed(functions):
        if function.facts.saved > 1 and function in sites:
            _arrange(function, [s for s in sites[function] if s[0] in orders], sites[function], orders)
        for equation in function.equations:
            if type(equation.callee) is Local:
                sites.setdefault(equation.callee.body, []).append((function, equation))


def _arrange(
    function: Function,
    ordered: Sequence[tuple[Function, Equation]],
    sites: Sequence[tuple[Function, Equation]],
    orders: dict[Function, list[Any]],
) -> None:
    """`ordered`: those of the calls whose callers' results are in an order."""
    count = len(function.results) - function.facts.saved
    orders_wanted = {_order(orders[caller], equation, count) for caller, equation in ordered}
    if len(orders_wanted) != 1 or None in orders_wanted:
        return
    (order,) = orders_wanted
    assert order is not None
    results = list(function.results)
    function.results = [*results[:count], *[(results if kind == "out" else function.params)[i] for kind, i in order]]
    function.facts = replace(function.facts, saved=len(order))
    orders[function] = function.results
    for caller, equation in sites:
        outputs = list(equation.outputs)
        new: list[Value | None] = []
        for kind, i in order:
            value = outputs[i] if kind == "out" else Value(equation.inputs[i].aval, function.params[i].hint)
            if kind == "in" and caller in orders:
                place = _span(orders[caller], outputs[count:])[0] + len(new)
                orders[caller][place] = value
            new.append(value)
        equation.outputs = [*outputs[:count], *new]


def _span(results: Sequence[Any], saved: Sequence[Value | None]) -> tuple[int, int]:
    """The first and the last place of `saved` among `results`."""
    places = [i for i, r in enumerate(results) if r in saved]
    return places[0], places[-1]


def _order(results: Sequence[Any], equation: Equation, count: int) -> tuple[tuple[str, int], ...] | None:
    """What a call saves as its caller's `results` have it, without anything else between: ("out", place among the
    outputs) or ("in", place among the inputs). None where they do not have it so."""
    saved = equation.outputs[count:]
    if any(s is None or sum(r is s for r in results) != 1 for s in saved):
        return None
    first, last = _span(results, saved)
    order: list[tuple[str, int]] = []
    for value in results[first : last + 1]:
        if value in saved:
            order.append(("out", count + saved.index(value)))
        elif value in equation.inputs:
            order.append(("in", equation.inputs.index(value)))
        else:
            return None
    return tuple(order)


# ------------------------------------------------------------------ tuples


def hand_over(
    handover: Handover, parts: dict[Value, tuple[Value, Path]], take: Callable[[Value, Value, Path], None]
) -> None:
    """One handover with tuples: `parts` says of which tuple the forward body's values are parts, `take(value, whole, path)` is
    told of which tuple a parameter of the backward body is a part now."""
    forward, backward = handover.forward, handover.backward
    body, other = callee_of(forward, Scan).body, callee_of(backward, Scan).body
    # Another handover may have made these lists shorter.
    first, taken = forward.outputs.index(handover.values[0]), backward.inputs.index(handover.values[0])
    at = len(handover.values)
    for value, size in reversed(_bundled(body, first, at, parts)):
        at -= size
        if type(value.aval) is not TupleType:
            continue
        start, there = first + at, taken + at
        stacked = _tuple(value, forward.outputs[start : start + size])
        given = _tuple(value, other.params[there : there + size])
        for leaf, path in zip(other.params[there : there + size], _paths(value.aval), strict=True):
            take(leaf, given, path)
        body.results = _replaced(body.results, start, size, value)
        other.params = _replaced(other.params, there, size, given)
        forward.outputs = _replaced(forward.outputs, start, size, stacked)
        backward.inputs = _replaced(backward.inputs, there, size, stacked)


def stack(found: Stack, parts: dict[Value, tuple[Value, Path]], give: Callable[[Value, Value, Path], None]) -> None:
    """The loop stacks a tuple: `parts` as in `hand_over`, `give(value, whole, path)` is told what the loop's results are
    parts of now."""
    forward = found.forward
    body = callee_of(forward, Scan).body
    first = forward.outputs.index(found.values[0])
    at = len(found.values)
    for value, size in reversed(_bundled(body, first, at, parts)):
        at -= size
        if type(value.aval) is not TupleType:
            continue
        start = first + at
        leaves: Sequence[Any] = forward.outputs[start : start + size]
        stacked = _tuple(value, leaves)
        for leaf, path in zip(leaves, _paths(value.aval), strict=True):
            give(leaf, stacked, path)
        body.results = _replaced(body.results, start, size, value)
        forward.outputs = _replaced(forward.outputs, start, size, stacked)


def take_stacked(
    backward: Equation,
    parts: dict[Any, tuple[Value, Path]],
    whole_of: Callable[[Value, Path], Value],
    take: Callable[[Value, Value, Path], None],
) -> None:
    """A loop takes tuples where it takes all their parts in order. `parts`: those around the loop; `take` as in
    `hand_over`."""
    loop = callee_of(backward, Scan)
    other = loop.body
    place = loop.consts + loop.carries
    while place < len(backward.inputs):
        root, way = parts.get(backward.inputs[place]) or (None, ())
        for length in range(len(way) if root is not None else 0):
            assert root is not None
            kind: Any = root.aval
            for index in way[:length]:
                kind = kind.parts[index]
            paths = _paths(kind)
            here = [parts.get(a) for a in backward.inputs[place : place + len(paths)]]
            if len(paths) > 1 and here == [(root, (*way[:length], *path)) for path in paths]:
                whole = whole_of(root, way[:length])
                leaves = other.params[place : place + len(paths)]
                given = _tuple(whole, leaves)
                for leaf, path in zip(leaves, paths, strict=True):
                    take(leaf, given, path)
                other.params = _replaced(other.params, place, len(paths), given)
                backward.inputs = _replaced(backward.inputs, place, len(paths), whole)
                break
        place += 1


def _bundled(body: Function, first: int, count: int, parts: dict[Value, tuple[Value, Path]]) -> list[tuple[Any, int]]:
    """What stands at these results of a loop's body, as `_items` has it; many are one tuple, made at its end."""
    items = _items(body.results[first : first + count], parts)
    if len(items) > 1 and sum(1 + (type(v.aval) is TupleType) for v, _ in items) >= _MANY:
        whole = Value(TupleType([v.aval for v, _ in items], [v.hint for v, _ in items]), "residuals")
        body.equations = [*body.equations, Equation(Pack(), [v for v, _ in items], [whole], {})]
        return [(whole, count)]
    return items


def _replaced(values: Sequence[Any], first: int, size: int, value: Value) -> list[Any]:
    return [*values[:first], value, *values[first + size :]]


def _items(values: Sequence[Any], parts: dict[Value, tuple[Value, Path]]) -> list[tuple[Any, int]]:
    """(value, or the tuple whose parts stand here; how many values that is), for each that becomes one."""
    items: list[tuple[Any, int]] = []
    place = 0
    while place < len(values):
        value = values[place]
        whole, _ = parts.get(value, (value, ())) if type(value) is Value else (value, ())
        size = 1
        if whole is not value:
            paths = _paths(whole.aval)
            here = [parts.get(v) for v in values[place : place + len(paths)]]
            if here == [(whole, path) for path in paths]:
                value, size = whole, len(paths)
        items.append((value, size))
        place += size
    return items


def _paths(aval: Any) -> list[Path]:
    """The ways to the values in a tuple, in their order."""
    found: list[Path] = []
    for i, part in enumerate(aval.parts):
        found.extend((i, *p) for p in _paths(part)) if type(part) is TupleType else found.append((i,))
    return found


def _tuple(like: Value, leaves: Sequence[Any]) -> Value:
    """A value for a tuple that is built like `like` of these values."""
    rest = iter(leaves)

    def build(aval: Any) -> Any:
        if type(aval) is not TupleType:
            return next(rest).aval
        return TupleType([build(p) for p in aval.parts], aval.hints)

    return Value(build(like.aval), like.hint)
