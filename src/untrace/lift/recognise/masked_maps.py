"""Maps that change some leaves of a tree only: the weights that decay, and not the biases.

JAX leaves no equation where a leaf stays what it is, so that a map over some leaves of a tree is found, and one after it
that takes these and the others. Both together say which tree the first one goes through.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from untrace.ir.callees import callee_of
from untrace.ir.calls import trees_given
from untrace.ir.facts import Selected
from untrace.ir.nodes import Atom, Equation, Function, TreeMap, TreeSum, Value

_Column = tuple[Atom | None, ...]


def complete_maps(equations: Sequence[Equation], params: Sequence[Value]) -> list[Equation]:
    """The equations of a function with these parameters, with maps over some leaves as maps over all of their trees."""
    found = list(equations)
    maps = [e for e in found if type(e.callee) is TreeMap]
    sums = [tuple(e.inputs) for e in found if type(e.callee) is TreeSum]
    if len(maps) < 2 and not (maps and (sums or any(True for e in found for _ in trees_given(e)))):
        return found
    given = set(params)
    for at, equation in enumerate(found):
        if type(equation.callee) is TreeMap:
            later = {o for e in found[at:] for o in e.outputs}
            whole = {column for column in _whole(found[:at], maps) if later.isdisjoint(column)}
            for column in [*[c for other in maps for c in _columns(other)], *sums]:
                new = _completed(equation, column, whole, given)
                if new is not None:
                    found[at] = new
                    break
    return found


def _columns(equation: Equation) -> list[_Column]:
    """The leaves of each tree that a map goes through."""
    return list(map(tuple, callee_of(equation, TreeMap).columns(equation.inputs)))


def _whole(equations: Sequence[Equation], maps: Sequence[Equation]) -> Iterator[_Column]:
    """All leaves of trees that these equations give, and of those that maps go through."""
    for equation in maps:
        yield from _columns(equation)
    for equation in equations:
        if type(equation.callee) is TreeMap:
            yield tuple(equation.callee.given(equation))
        for _, leaves in trees_given(equation):
            yield tuple(leaves)


def _completed(
    equation: Equation, column: _Column, whole: set[_Column], given: Container[Atom | None]
) -> Equation | None:
    """The map as one over all of the tree of which `column` are the leaves after it; None where it is none. given: what the
    function takes, of which the leaves of trees are not known yet."""
    callee = callee_of(equation, TreeMap)
    number: dict[Atom | None, int] = {output: i for i, output in enumerate(equation.outputs)}
    if len(column) <= len(number) or not number.keys() <= set(column):
        return None
    own = _columns(equation)
    if any(type(a) is not Value for a in equation.inputs):
        return None
    turns = [number.get(a) for a in column]
    for tree in range(callee.trees):
        base = tuple([a if turn is None else own[tree][turn] for a, turn in zip(column, turns, strict=True)])
        if base not in whole and not all(a in given for a in base) or len(set(base)) < len(base):
            continue
        trees = [base if i == tree else _like(c, turns, whole) for i, c in enumerate(own)]
        known = [c for c in trees if c is not None]
        if len(known) < len(trees):
            return None
        selected = _selected(known, turns, tree)
        shared = equation.inputs[callee.trees * len(callee.turns) :]
        functions = []
        for place, turn in enumerate(turns):
            if turn is not None:
                functions.append(callee.turns[turn])
                continue
            params = [a for a in (*[c[place] for c in known], *shared) if type(a) is Value]
            functions.append(Function("leaf", params, [], [params[tree]]))
        new = callee.with_turns(functions, selected)
        inputs = [*[a for c in known for a in c if a is not None], *shared]
        outputs = [None if turn is None else equation.outputs[turn] for turn in turns]
        return Equation(new, inputs, outputs, {}, equation.origin)
    return None


def _like(column: _Column, turns: Sequence[int | None], whole: set[_Column]) -> _Column | None:
    """The only tree with these leaves where the map changes some; None where there is none."""
    wanted = [(place, column[turn]) for place, turn in enumerate(turns) if turn is not None]
    found = [
        c
        for c in whole
        if len(c) == len(turns) and all(c[place] is a for place, a in wanted) and all(type(a) is Value for a in c)
    ]
    return found[0] if len(found) == 1 else None


def _selected(trees: Sequence[_Column], turns: Sequence[int | None], kept: int) -> Selected:
    """What tells the leaves that change from the others: that those of a tree, the last one first, have more axes, if that
    tells all of them or, where none does, some."""
    found = Selected(kept, None, kept)
    for tree in reversed(range(len(trees))):
        ranks = [len(a.aval.shape) if type(a) is Value else -1 for a in trees[tree]]
        changed = [rank for rank, turn in zip(ranks, turns, strict=True) if turn is not None]
        others = [rank for rank, turn in zip(ranks, turns, strict=True) if turn is None]
        if min(ranks) >= 0 and min(changed) > max(others):
            return Selected(tree, max(others), kept)
        if min(ranks) >= 0 and min(changed) > min(others):
            found = Selected(tree, max(r for r in others if r < min(changed)), kept)
    return found
