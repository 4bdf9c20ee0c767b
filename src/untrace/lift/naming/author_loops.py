"""Loops of the author's that JAX unrolled: what their variables are in each turn, and which of his expressions has a row of
numbers, one for each turn: `SHIFTS[i]`, `3 - i`, `1 - B1 ** (i + 1)`.

What such a loop goes through are ranges and lists of numbers, which the text can say again, or elements of what is traced.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from untrace.ir.said import Given, Number, Numbers, SaidNumber
from untrace.lift.naming.expressions import Expressions, Found, Row
from untrace.lift.naming.number_reader import NOTHING, NumberReader
from untrace.lift.naming.scopes import Scope
from untrace.provenance import syntax
from untrace.provenance.frames import Frame

_MOST_TURNS = 64
_MOST_READ = 256  # turns of this loop and those inside


@dataclass(frozen=True, slots=True)
class Column:
    """Numbers that a loop goes through: its variable or variables for them, `over` what it goes by the author's words, with the
    numbers of the module in these, and what they are. `over`: None for what numbers the turns, `enumerate`.

    `is_open`: whether it is a range of which one end is not to be seen. `is_first`: whether it stands before all that is traced."""

    target: ast.expr
    over: SaidNumber | None
    values: Sequence[Numbers]
    is_open: bool = False
    is_first: bool = True

    @property
    def counts(self) -> range | None:
        """The numbers, where they are those of a range."""
        return self.values if isinstance(self.values, range) else None

    @property
    def step(self) -> int:
        """From one number to the next; 0 for what does not count."""
        return self.counts.step if self.counts is not None else 0


class AuthorLoop:
    """A loop of the author's, of so many turns. `columns`: the numbers that it goes through; `has_others`: whether it goes through
    something else as well; `length`: how many turns it has, None where that is not seen.

    around: the frames of the function that it is in. inside: those of what is done in it.
    """

    def __init__(self, node: ast.For, around: tuple[Frame, ...], inside: Iterable[Sequence[Frame]], count: int):
        self.node, self.around, self.inside, self.count = node, around, list(dict.fromkeys(map(tuple, inside))), count
        self.scope = Scope.of(around)
        self.has_others = False
        nodes = [n for part in node.body for n in ast.walk(part)]
        tests = [name for n in nodes if isinstance(n, ast.If | ast.IfExp | ast.While) for name in variables_of(n.test)]
        names = [n for n in nodes if isinstance(n, ast.Name)]
        bound = {n.id for n in names if type(n.ctx) is ast.Store} & {n.id for n in names if type(n.ctx) is ast.Load}
        found = list(self._columns(node.target, node.iter))
        self.columns = [
            c for c in found if variables_of(c.target).isdisjoint(bound if c.counts is not None else bound.union(tests))
        ]
        self.length = min([len(c.values) for c in found if c.over is not None and not c.is_open], default=None)

    # ------------------------------------------------------------ what it goes through

    def _columns(self, target: ast.expr, iterable: ast.expr) -> Iterator[Column]:
        parts = target.elts if isinstance(target, ast.Tuple) else []
        match iterable:
            case ast.Call(ast.Name(id="enumerate"), [of, *start], []) if len(parts) == 2:
                first = self._read(start[0])[0] if start else 0
                if type(first) is int:
                    yield Column(parts[0], None, range(first, first + self.count))
                yield from self._columns(parts[1], of)
            case ast.Call(ast.Name(id="zip"), args) if len(parts) == len(args):
                for part, of in zip(parts, args, strict=True):
                    yield from self._columns(part, of)
            case _:
                found = None
                if all(isinstance(n, ast.Name | ast.Tuple | ast.expr_context) for n in ast.walk(target)):
                    found = self._gone_through(iterable)
                if found is None:
                    self.has_others = True
                else:
                    yield replace(found, target=target, is_first=not self.has_others)

    @property
    def fits(self) -> bool:
        """Whether it has, or may have, so many turns."""
        return self.length is None or self.length == self.count or self.has_others and self.length > self.count

    def _gone_through(self, iterable: ast.expr) -> Column | None:
        match iterable:
            case ast.Call(ast.Name(id="reversed" | "list" | "tuple" as name), [of], []):
                inside = self._gone_through(of)
                if inside is None or inside.over is None or name != "reversed":
                    return inside
                over = ast.Call(ast.Name(name), [inside.over[0]], []), inside.over[1]
                return replace(inside, over=over, values=inside.values[::-1])
            case ast.Call(ast.Name(id="range"), [_, *_] as args, []):
                return self._range(iterable, args)
        names: dict[str, Given] = {}
        try:
            values, written = NumberReader(names).elements(iterable, self.scope)
        except NOTHING:
            return None
        return Column(iterable, (written, names), values)

    def _range(self, called: ast.expr, args: Sequence[ast.expr]) -> Column | None:
        """A range; where one end of it is not to be seen, by digits: that for so many turns."""
        if any(self.scope.is_of_a_turn(name) for arg in args for name in variables_of(arg)):
            return None
        names: dict[str, Given] = {}
        found = [self._read(arg, names) for arg in args]
        start, stop, *rest = [value for value, _ in found] if len(args) > 1 else [0, found[0][0]]
        step = rest[0] if rest else 1
        if not isinstance(step, int) or not step:
            return None
        if isinstance(start, int) and isinstance(stop, int):
            written = [said for _, said in found if said is not None]
            return Column(called, (ast.Call(ast.Name("range"), written, []), names), range(start, stop, step))
        if not isinstance(start, int):
            if not isinstance(stop, int) or abs(step) > 1:
                return None
            start = stop - self.count * step
        stop = start + self.count * step
        digits: list[ast.expr] = [ast.Constant(n) for n in (start, stop, step)]
        digits = digits[not start and step == 1 : 2 + (step != 1)]
        return Column(called, (ast.Call(ast.Name("range"), digits, []), {}), range(start, stop, step), True)

    def _read(self, node: ast.expr, names: dict[str, Given] | None = None) -> tuple[Number | None, ast.expr | None]:
        try:
            return NumberReader({} if names is None else names).value(node, self.scope)
        except NOTHING:
            return None, None

    # ------------------------------------------------------------ the expression for a row of numbers

    def said(self, row: Row) -> SaidNumber | None:
        """The author's expression that has these values in the turns; None where there is none, or it is not certain which one."""
        if self.count > _MOST_TURNS:
            return None
        found = self._expressions.said(row)
        return self._counted(row) if not found else found[0] if len(found) == 1 else None

    def counter(self) -> Column | None:
        """What counts the turns, where nothing else of the loop's are numbers."""
        return self.columns[0] if len(self.columns) == 1 and self.columns[0].counts is not None else None

    def _counted(self, row: Row) -> SaidNumber | None:
        """`i + 2`, of what counts the turns, where this is not seen in the source."""
        counter = self.counter()
        numbers = [n for n in row if isinstance(n, int | float)]
        if (
            counter is None
            or counter.counts is None
            or len(numbers) < len(row)
            or not isinstance(counter.target, ast.Name)
        ):
            return None
        more = {value - number for value, number in zip(numbers, counter.counts, strict=False)}
        if len(more) > 1 or not float(shift := next(iter(more))).is_integer():
            return None
        by = ast.Constant(abs(int(shift)))
        return (ast.BinOp(counter.target, ast.Add() if shift > 0 else ast.Sub(), by) if shift else counter.target), {}

    @functools.cached_property
    def _expressions(self) -> Expressions:
        """Those in the loop, and in the functions that are called there."""
        places: dict[tuple[Frame, ...], Sequence[ast.stmt]] = {self.around: self.node.body}
        for frames in self.inside:
            for depth in range(len(self.around) + 1, len(frames) + 1):
                definition = frames[depth - 1].definition
                if isinstance(definition, ast.FunctionDef):
                    places[frames[:depth]] = definition.body
        inner = list(self._inner_turns())[: _MOST_READ // self.count]
        bodies = [(body, frames) for frames, body in places.items()] if self.columns else []
        made = Expressions(bodies, list(self.turns()), len(self.around), inner)
        made.found += self._parts()
        return made

    def _parts(self) -> Iterator[Found]:
        """`d[0]` of a variable for tuples."""
        for column in self.columns:
            rows = [value for value in column.values if type(value) is tuple]
            if (
                isinstance(column.target, ast.Name)
                and len(rows) == len(column.values)
                and len({len(r) for r in rows}) == 1
            ):
                for place, values in enumerate(zip(*rows, strict=True)):
                    part = ast.Subscript(column.target, ast.Constant(place))
                    yield part, values, (part, {})

    def turns(self) -> Iterator[dict[str, Numbers]]:
        """What the variables are in each turn."""
        for turn in range(self.count):
            bound: dict[str, Numbers] = {}
            for column in self.columns:
                _bind(column.target, column.values[turn], bound)
            yield bound

    def _inner_turns(self) -> Iterator[Mapping[str, Numbers]]:
        """The same of the loops inside."""
        found: list[dict[str, Numbers]] = [{}]
        for node in [n for part in self.node.body for n in ast.walk(part) if isinstance(n, ast.For)]:
            length = AuthorLoop(node, self.around, (), 1).length
            if length is not None and len(found) * length <= _MOST_READ:
                turns = list(AuthorLoop(node, self.around, (), length).turns())
                found = [{**one, **other} for one in found for other in turns]
        yield from found


def author_loops(turns: Sequence[Sequence[Sequence[Frame]]]) -> Iterator[AuthorLoop]:
    """The loops that turns of equations with these frames may be those of, innermost first: one around others has what is in these
    several times in one turn."""
    common: dict[ast.For, tuple[Frame, ...]] | None = None
    for frames in [frames for turn in turns for frames in turn]:
        known = [(k, f) for k, f in enumerate(frames, 1) if f.line is not None]
        loops = {n: tuple(frames[:k]) for k, f in known for n in syntax.loops_around(f.code, f.line)}
        common = loops if common is None else {n: f for n, f in common.items() if n in loops}
        if not common:
            return
    if not common:
        return
    every = [frames for turn in turns for frames in turn]
    times = min(Counter(map(tuple, turns[0])).values(), default=1)
    inner: int | None = 1
    for node, around in reversed(common.items()):
        loop = AuthorLoop(node, around, every, len(turns))
        if loop.fits and (inner is None or inner == times or len(common) == 1):
            yield loop
        inner = None if inner is None or loop.length is None else inner * loop.length


def goes_through_numbers(frames: Sequence[Frame]) -> bool:
    """Whether a loop around what is done in the innermost of these frames has a range or a list of numbers."""
    frame = frames[-1]
    around = syntax.loops_around(frame.code, frame.line) if frame.line is not None else ()
    return any(c.over is not None for node in around for c in AuthorLoop(node, tuple(frames), (), 1).columns)


def variables_of(target: ast.expr) -> set[str]:
    """The names in an expression."""
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def _bind(target: ast.expr, value: Numbers, bound: dict[str, Numbers]) -> None:
    if isinstance(target, ast.Name):
        bound[target.id] = value
    elif isinstance(target, ast.Tuple) and type(value) is tuple and len(value) == len(target.elts):
        for part, of in zip(target.elts, value, strict=True):
            _bind(part, of, bound)
