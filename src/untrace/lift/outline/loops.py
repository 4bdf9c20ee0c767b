"""Loops and their backward loops, as the outliner sees them: what one saves for the other, and what it adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Function, Local, Scan, Value, functions_called

_ADDITIONS = frozenset(("add_any", "add"))
_WITH_BODIES = frozenset(("scan", "while", "cond"))


def bodies_of_loops(functions: Sequence[Function]) -> dict[Function, tuple[Function, Equation]]:
    """{the body of a scan: (the function that the scan stands in, the scan)}, of bodies that one scan alone has."""
    shared = Counter(g for f in functions for e in f.equations if e.may_hold_functions for g in functions_called(e))
    return {
        e.callee.body: (f, e)
        for f in functions
        for e in f.equations
        if type(e.callee) is Scan and shared[e.callee.body] == 1
    }


def weight(equation: Equation) -> int:
    """How many equations a reader has to read for one: a loop or a choice is as long as its bodies, with the functions that were taken out
    of it."""
    if type(equation.callee) is Local:
        return max(1, sum(map(weight, equation.callee.body.equations)))
    bodies = functions_called(equation) if equation.callee.name in _WITH_BODIES else ()
    return 1 + sum(weight(e) for f in bodies for e in f.equations)


def rename_in_loops(equations: Sequence[Equation], names: Mapping[str | None, str | None]) -> None:
    """What loops hand on on the way to a result goes by the result's new name. `names`: by the old ones."""
    for body in [e.callee.body for e in equations if type(e.callee) is Scan]:
        for value in [*body.params, *[o for e in body.equations for o in e.outputs if o is not None]]:
            if not value.named and value.hint in names:
                value.hint = names[value.hint]


def slices(function: Function) -> Iterator[tuple[Value, Value, Function]]:
    """(parameter of a loop's body, value of an earlier loop's body, that body): a slice of what that one stacked."""
    stacked: dict[Value, tuple[Value, Function]] = {}
    for equation in function.equations:
        loop = equation.callee
        if type(loop) is not Scan:
            continue
        body, consts, carries = loop.body, loop.consts, loop.carries
        for param, atom in list(zip(body.params, equation.inputs, strict=True))[consts + carries :]:
            if atom in stacked:
                yield param, *stacked[atom]
        for output, result in list(zip(equation.outputs, body.results, strict=True))[carries:]:
            if output is not None and type(result) is Value:
                stacked[output] = result, body


def put_sums_last(function: Function, equation: Equation) -> tuple[set[Equation], dict[Value, Value]]:
    """Moves what only adds to the carry of a loop to the end of its body. Gives those equations, and the sum that
    each term goes into.

    The gradient of what a loop closes over is such a sum over its turns. JAX adds where a cotangent is computed, in the
    midst of a call's backward part; the call gives the term, and the loop adds it.
    """
    loop = callee_of(equation, Scan)
    consts, carries = loop.consts, loop.carries
    uses: Counter[object] = Counter(a for e in function.equations for a in e.inputs)
    uses.update(function.results)
    users = {a: e for e in function.equations for a in e.inputs if uses[a] == 1}
    moved: list[Equation] = []
    terms: dict[Value, Value] = {}
    for carry, result in list(zip(function.params[consts:], function.results, strict=False))[:carries]:
        chain: list[Equation] = []
        total: object = carry
        while total is not result and uses[total] == 1 and total in users:
            step = users[total]
            if step.callee.name not in _ADDITIONS or len(step.outputs) != 1:
                break
            chain.append(step)
            total = step.outputs[0]
        if chain and type(result) is Value and total is result and uses[total] == 1:
            moved.extend(chain)
            inside = {carry, *[e.outputs[0] for e in chain]}
            for term in [a for e in chain for a in e.inputs if type(a) is Value and a not in inside]:
                if uses[term] == 1:
                    terms[term] = result
                    term.hint = result.hint
    found = set(moved)
    if found:
        function.equations = [*[e for e in function.equations if e not in found], *moved]
    return found, terms
