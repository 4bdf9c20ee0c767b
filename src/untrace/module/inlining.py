"""Which values stand inside the expression that uses them, and have no statement of their own."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from jax.extend.core import JaxprEqn

from untrace.ir.calls import passed_operands, repeated_slots
from untrace.ir.nodes import Atom, Equation, Library, Local, Scan, TreeMap, Value, functions_called
from untrace.ir.scans import is_plain_scan, used_values
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance, is_in_loop
from untrace.python.tree import Expr

# A longer expression gets a name of its own: nested deeper, a line would need reading twice.
FOLDED_WIDTH = 44
RETURNED_WIDTH = 76  # what a function returns, and nothing else
_COUNT = re.compile(r"_\d+\b")
_SIZE = re.compile(r"(?<![\w.])-?\d{1,5}(?![\w.])")


def length_of(expr: Expr) -> int:
    """The letters of an expression, without the numbers of names and two for each size: functions that differ in these alone
    are laid out alike."""
    return len(_SIZE.sub("16", _COUNT.sub("", expr.flat())))


def unread(equations: Sequence[Equation], results: Sequence[Atom], forced: Container[JaxprEqn]) -> set[Equation]:
    """Ids of equations that nothing needs but loops that are handed their results, and whose functions do not read them.

    `forced`: jaxpr equations that are bound with all their operands. (A loop with the author's trees is handed
    whole trees.)
    """
    if not any(type(e.callee) is Scan for e in equations):
        return set()
    live = set(results)
    found: set[Equation] = set()
    for equation in reversed(equations):
        if not equation.effects and live.isdisjoint(equation.outputs):
            found.add(equation)
            continue
        given = equation.inputs
        loop = equation.callee
        own = type(loop) is Scan and loop.body.facts.trees is None and equation.origin not in forced
        if type(loop) is Scan and own and is_plain_scan(equation):
            read = used_values(loop.body)
            pairs = enumerate(zip(given, loop.body.params, strict=True))
            given = [a for i, (a, p) in pairs if i >= loop.consts or p in read]
        live.update(given)
    return found


def foldable(equations: Sequence[Equation], results: Sequence[Atom]) -> set[Value]:
    """Values that may stand in the expression that uses them: used once, and
    needed by a plain call (not inside a loop, whose body would compute them again and again)."""
    uses: dict[Atom, int] = {}
    plain: set[Atom] = set()
    for equation in equations:
        if type(equation.callee) is TreeMap:  # what all leaves share would be computed for each of them
            count = len(equation.callee.turns) * equation.callee.trees
            plain.update(equation.inputs[:count])
            for atom in equation.inputs:
                uses[atom] = uses.get(atom, 0) + 1
            continue
        closed = equation.callee.closed if type(equation.callee) is Library else 0
        simple = type(equation.callee) is Library and not closed or equation.callee.name in ("jit", "pjit")
        if not simple and not closed:
            simple = not equation.may_hold_functions or not functions_called(equation)
        for atom in equation.inputs:
            uses[atom] = uses.get(atom, 0) + 1
            if simple:
                plain.add(atom)
        if closed:
            plain.update(equation.inputs[closed:])
        elif not simple:
            plain.update(passed_operands(equation))
        elif type(equation.callee) is Library:  # `x * x` has one input, and would compute it twice
            for index in repeated_slots(equation.callee):
                uses[equation.inputs[index]] += 1
    for atom in results:
        uses[atom] = uses.get(atom, 0) + 1
        plain.add(atom)
    found = set()
    for equation in equations:
        if len(equation.outputs) == 1 and not equation.effects:
            output = equation.outputs[0]
            if output is not None and uses.get(output) == 1 and output in plain:
                found.add(output)
    return found


def folded_in_order(equations: Sequence[Equation], results: Sequence[Atom], foldable: Container[Atom]) -> set[Atom]:
    """Those of the foldable values that are computed where they stand: Python computes operands from left to right, and
    nothing else comes between them and what uses them."""
    made = {output: i for i, e in enumerate(equations) for output in e.outputs if output is not None}
    starts: list[int] = []  # of the expression that an equation becomes
    found: set[Atom] = set()
    for at, inputs in enumerate([*(e.inputs for e in equations), results]):  # what is returned comes last
        start = at
        for atom in reversed(inputs):
            place = made.get(atom) if type(atom) is Value else None
            if place is not None and place == start - 1 and atom in foldable:
                found.add(atom)
                start = starts[place]
        starts.append(start)
    return found


def is_of_turn(
    output: Value, equations: Sequence[Equation], makers: Iterable[Equation], provenance: Provenance
) -> bool:
    """Whether a value that the first of these equations makes has a statement in each turn of a loop of its author's: he has a
    name for it, or one turn hands it to the next, so that what reads it stands before it in the source or is the same once
    more. makers: what made the operands."""
    equation = equations[0]
    frames = _frames(equation, provenance)
    if not is_in_loop(frames):
        return False
    if output.named:
        return True
    if provenance.site(equation.origin).phase == "backward":  # from the last line to the first
        return False
    if any(_is_again(maker, equation, provenance) for maker in makers):
        return True
    reader = next((e for e in equations[1:] if output in e.inputs), None)
    others = () if reader is None else _frames(reader, provenance)
    for own, other in zip(frames, others, strict=False):
        if own is not other:
            return own.code is other.code and other.line is not None and other.end_line < own.line
    return reader is not None and _is_again(equation, reader, provenance)


def _is_again(first: Equation, second: Equation, provenance: Provenance) -> bool:
    """Whether two equations come of one instruction, which ran twice."""
    one, other = provenance.site(first.origin), provenance.site(second.origin)
    is_same = bool(one.frames) and (one.frames, one.below) == (other.frames, other.below)
    return is_same and first.callee.name == second.callee.name


def _frames(equation: Equation, provenance: Provenance) -> Sequence[Frame]:
    callee = equation.callee
    return callee.frames if type(callee) is Local else provenance.site(equation.origin).frames
