"""Results of a local function that go together in one dict: the new buffers of a module.

    out, new_bn1 = batch_norm2d(params["bn1"], buffers["bn1"], x)
    return out, {"bn1": new_bn1}

A Function says so by its fact `packed_results`.
"""

from __future__ import annotations

from collections.abc import Sequence

from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.facts import Way
from untrace.ir.nodes import Equation, Function, Local
from untrace.module.interface.writing import Writer
from untrace.python.statements import Assign
from untrace.python.tree import Dict, Expr, Leaf, Name, Text, Tuple
from untrace.python.types import Type, array_type, tuple_type, ways_type


class Part(Leaf):
    """A leaf, or a sub-tree, of a dict that a call returned. `whole`: the ways to all leaves of that dict."""

    __slots__ = ("whole",)

    def __init__(self, root: Name, steps: Way, whole: Sequence[Way]):
        super().__init__(root, steps)
        self.whole = whole


def returned(w: Writer, body: Function) -> Expr:
    """What a function returns: its results, those that go together as one dict."""
    packed = body.facts.packed_results
    if packed is None:
        return w.results(body.results)
    count, ways = packed.count, packed.ways
    parts = [w.atom(r) for r in body.results[:count]]
    tree = _gathered([(way, w.atom(r)) for way, r in zip(ways, body.results[count:], strict=True)])
    return Tuple([*parts, tree]) if parts else tree


def result_type(body: Function) -> Type:
    """The type of what `returned` gives."""
    types = [array_type(r.aval) for r in body.results]
    packed = body.facts.packed_results
    if packed is None:
        return tuple_type(types)
    count, ways = packed.count, packed.ways
    return tuple_type([*types[:count], ways_type(ways, [r.aval for r in body.results[count:]])])


def assign(w: Writer, equation: Equation, call: Expr) -> None:
    """Binds what a call gives back."""
    body = callee_of(equation, Local).body
    packed = body.facts.packed_results
    if packed is None:
        w._statement(equation, call)
        return
    count, ways = packed.count, packed.ways
    targets = ["_" if o is None else w._target(o, "x") for o in equation.outputs[:count]]
    rest = equation.outputs[count:]
    word = next((o.hint for o in rest if o is not None and o.hint), "buffers")
    root = Name(w.scope.fresh(identifier(word, "buffers")))
    for way, output in zip(ways, rest, strict=True):
        if output is not None:
            w.names[output] = Part(root, way, ways)
    w.statements.append(Assign([*targets, root.id], call, equation.origin))


def _gathered(leaves: Sequence[tuple[Way, Expr]]) -> Expr:
    """The dict with these leaves at the end of their ways."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    groups: dict[str, list[tuple[Way, Expr]]] = {}
    for way, leaf in leaves:
        groups.setdefault(way[0][1], []).append((way[1:], leaf))
    return whole_or([(Text(key), _gathered(inner)) for key, inner in groups.items()])


def whole_or(pairs: Sequence[tuple[Expr, Expr]]) -> Expr:
    """A dict; where its items are those of a dict that a call returned, in the same places, that one."""
    first = pairs[0][1] if pairs else None
    if type(first) is Part and first.steps:
        above = first.steps[:-1]
        keys = {way[len(above)][1] for way in first.whole if way[: len(above)] == above and len(way) > len(above)}
        fits = all(
            type(value) is Part
            and value.root is first.root
            and value.steps[:-1] == above
            and len(value.steps) == len(above) + 1
            and value.steps[-1][1] == key.flat()
            for key, value in pairs
        )
        if fits and keys == {key.flat() for key, _ in pairs}:
            return first.root if not above else Part(first.root, above, first.whole)
    return Dict(list(pairs))
