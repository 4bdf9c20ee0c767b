"""What statements that repeat have in common: one text for all turns of a loop, with holes for what differs.

A hole is what a turn computed itself (`Own`), what the turn before it handed over (`Carry`), or an element of a list
that the turns go through (`Part`). Everything else is the same in every turn.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import operator
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, TypeVar

from untrace.ir.nodes import Value
from untrace.ir.said import Numbers
from untrace.module.access_paths import Step
from untrace.module.def_use import reads, targets_of
from untrace.module.loops.elements import Element, key_pattern
from untrace.module.loops.memo import NUMBER
from untrace.python.anti_unify import AntiUnifier, Different, Node, Position
from untrace.python.statements import Assign, Statement, Unpack
from untrace.python.tree import Attribute, Binary, Call, Expr, Lambda, Leaf, Name, Slice, Text, Tuple, along, quoted
from untrace.python.walk import nodes_of, rebuilt

Place = tuple[int, int]  # the number of a statement in its turn, and of the target there


K = TypeVar("K", bound=Hashable)


class Hole(Expr, Generic[K]):
    """What stands in the text of a loop until its variables have names."""

    __slots__ = ("key",)

    def __init__(self, key: K):
        self.key = key

    def flat(self) -> str:
        return "x"


class Own(Hole[Place]):
    """What a statement of the same turn gave; `key` is its Place."""

    __slots__ = ()


class Carry(Hole[Place]):
    """What a statement of the turn before gave; `key` is its Place."""

    __slots__ = ()


class Part(Hole[int]):
    """What is an element of a list; `key` is the number of the Element."""

    __slots__ = ()


class Row(Hole[tuple[Numbers, ...]]):
    """What is another number in each turn; `key` are these."""

    __slots__ = ()


class Turns(AntiUnifier):
    """Statements of several turns laid over each other. Raises Different where they are no turns of one loop.

    The last turn may have fewer: what it would only hand on, nothing needs. lacking: the places of those in a turn.

    `leaf(name)`: the part of an argument that a variable holds. `known`: parts that are there. `template`: the statements, their targets numbers of
    `names`. `carries`: by Place what each is at first.
    """

    def __init__(
        self,
        turns: Sequence[Sequence[Statement]],
        leaf: Callable[[str], Leaf | None],
        known: Collection[tuple[str, tuple[Step, ...]]] = (),
        lacking: Collection[int] = (),
    ):
        self.turns = turns
        self.leaf = leaf
        self.known = known
        size = len(turns[0])
        self.by_place = [dict(enumerate(turn)) for turn in turns[:-1]]
        self.by_place.append(dict(zip([j for j in range(size) if j not in lacking], turns[-1], strict=True)))
        self.produced: list[dict[str, Place]] = [
            {name: (j, t) for j, s in turn.items() for t, name in enumerate(targets_of(s)) if name != "_"}
            for turn in self.by_place
        ]
        self.turn_of = {name: k for k, found in enumerate(self.produced) for name in found}
        self.carries: dict[Place, Expr] = {}
        self.of_one_shape: set[Place] = set()  # the carries that are so at the beginning of each turn
        self.elements: list[Element] = []
        self.rows: dict[tuple[Numbers, ...], None] = {}  # numbers, one for each turn
        self._numbers: dict[Hashable, int] = {}
        self.params: frozenset[str] = frozenset()  # of the functions inside which we are
        self.invariant: set[str] = set()
        self.template: list[tuple[Assign | Unpack, Expr]] = []
        for j in range(size):
            self.template.append(self._statement(j, [turn[j] for turn in self.by_place if j in turn]))

    def _statement(self, j: int, rows: Sequence[Statement]) -> tuple[Assign | Unpack, Expr]:
        every = [s for s in rows if isinstance(s, (Assign, Unpack))]
        kinds = {(type(s), tuple([_width(t) for t in s.targets])) for s in every}
        if len(kinds) > 1 or len(every) < len(rows):
            raise Different
        return every[0], self._unified([s.value for s in every])

    def reads_shape(self, name: str, place: Place) -> bool:
        """Whether the turns need of a variable that a carry begins as only its shape, which the carry has in each of them."""
        if place not in self.of_one_shape:
            return False
        found = [(j, n) for j, (_, value) in enumerate(self.template) for n in nodes_of(value)]
        every = sum(type(n) is Name and n.id == name for _, n in found)
        read = [(j, n.value) for j, n in found if type(n) is Attribute and n.name == "shape"]
        shapes = [j for j, n in read if type(n) is Name and n.id == name]
        return len(shapes) == every and max(shapes, default=0) <= place[0]

    @property
    def needs_numbers(self) -> bool:
        """Whether a loop of these can only go through numbers: those in the turns, or what counts them."""
        return bool(self.rows) or not self.elements

    def is_whole(self, element: Element) -> bool:
        """Whether the turns take all elements of a list or dict, of those that are known."""
        size = len(element.above)
        ways = [steps for root, steps in self.known if root == element.root.id and len(steps) > size]
        return {steps[size] for steps in ways if steps[:size] == element.above} <= set(element.keys)

    def is_recurrence(self) -> bool:
        """Whether each turn makes what it hands over of what was handed to it: else the turns begin at another statement."""
        reached = {place: self._reaches(place, set()) for place in self.carries}
        return bool(reached) and all(reached.values())

    def _reaches(self, place: Place, seen: set[int]) -> bool:
        seen.add(place[0])
        holes = [n for n in nodes_of(self.template[place[0]][1]) if isinstance(n, Hole)]
        inside = [n.key for n in holes if type(n) is Own and n.key[0] not in seen]
        return any(type(n) is Carry for n in holes) or any(self._reaches(key, seen) for key in inside)

    def name(self, place: Place) -> str:
        """What the author, or the first turn that has it, calls a value."""
        for found in self.produced:
            for name, other in found.items():
                if other == place:
                    return name
        return "_"

    def at(self, turn: int, place: Place) -> str | None:
        """The variable that held a value in one of the turns."""
        return next((n for n, other in self.produced[turn].items() if other == place), None)

    # ------------------------------------------------------------ laying one over the other

    def _unified(self, values: Sequence[Expr]) -> Expr:
        found = self.unify(values)
        assert isinstance(found, Expr)  # of expressions
        return found

    def unify(self, nodes: Sequence[Node]) -> Node:
        """One expression for those of all turns."""
        first = nodes[0]
        if type(first) is Text and len(nodes) > 1 and all(type(n) is Binary for n in nodes[1:]):
            second = nodes[1]
            assert type(second) is Binary
            nodes = [first := self._begun(first, second), *nodes[1:]]
        if type(first) is Attribute and first.name == "shape" and (own := self._shape_of_own(nodes)) is not None:
            return Attribute(own, "shape")
        if all(type(n) is Name or isinstance(n, Leaf) for n in nodes) or any(type(n) is not type(first) for n in nodes):
            return self._slot(nodes)  # what a loop begins with may be an expression
        if type(first) is Text:
            texts = [n.text for n in nodes if type(n) is Text]
            if any(text != first.text for text in texts):
                return self._row(texts)
        outer = self.params
        if type(first) is Lambda:
            self.params = outer | frozenset(first.params)
        made = self.common(nodes)
        self.params = outer
        return made

    def _begun(self, first: Text, second: Binary) -> Expr:
        """What the first turn says where it has a number: `0.9 * 0.0`, which Python computes, for the `0.9 * total` of the second."""
        handed = {n for n in reads(second) if n in self.produced[0]}
        if len(handed) != 1:
            return first
        known = self.carries.get(self.produced[0][next(iter(handed))], Text("0.0"))

        def filled(node: object) -> object:
            return known if type(node) is Name and node.id in handed else rebuilt(node, filled)

        made = rebuilt(second, filled)
        with contextlib.suppress(ValueError, ArithmeticError, KeyError):
            if _number(made) == float(first.text):
                return made
        return first

    def _shape_of_own(self, shapes: Sequence[Node]) -> Own | None:
        """What the first turn gave whose shape is read in all of them, where it has that shape in each: sizes are said by the
        first variable that has them."""
        names = {n.value.id if type(n) is Attribute and type(n.value) is Name else "" for n in shapes}
        place = self.produced[0].get(next(iter(names))) if len(names) == 1 else None
        if place is None:
            return None
        values = [self._values.get(self.at(k, place) or "") for k in range(len(self.turns))]
        found = [v.aval.shape for v in values if v is not None]
        return Own(place) if len(found) == len(values) and len(set(found)) == 1 else None

    @functools.cached_property
    def _values(self) -> dict[str, Value]:
        """The values that the variables of the turns hold, where they are read."""
        names = [n for turn in self.turns for s in turn for n in nodes_of(s) if type(n) is Name]
        return {n.id: n.symbol.value for n in names if n.symbol.value is not None}

    def part(self, position: Position, nodes: Sequence[Node]) -> Node:
        return self.unify(_with_zeros(nodes) if type(position[0]) is Slice else nodes)

    def word(self, position: Position, words: Sequence[object]) -> object:
        if type(position[0]) is Call and position[1] == "func" and all(type(w) is str for w in words):
            if len(set(words)) > 1:
                return self._slot([Name(str(w)) for w in words])
            if words[0] in self.turn_of:
                raise Different
        return super().word(position, words)

    def _row(self, texts: Sequence[str]) -> Expr:
        """Numbers that differ from turn to turn."""
        if not all(NUMBER.fullmatch(text) for text in texts):
            raise Different
        row = tuple([ast.literal_eval(text) for text in texts])
        self.rows[row] = None
        return Row(row)

    def _slot(self, several: Sequence[Node]) -> Expr:
        nodes = [n for n in several if isinstance(n, Expr)]
        if len(nodes) < len(several):
            raise Different
        if self.params and any(not self.params.isdisjoint(reads(n)) for n in nodes):
            if len({n.flat() for n in nodes}) > 1:
                raise Different
            return nodes[0]
        # A part of what a turn gave is that part in every turn.
        if any(isinstance(n, Leaf) and (not n.steps or n.root.id in self.turn_of) for n in nodes[1:]):
            steps = {n.steps for n in nodes[1:] if isinstance(n, Leaf)}
            if len(steps) > 1 or any(not isinstance(n, Leaf) for n in nodes[1:]):
                raise Different
            leaves = [n for n in nodes if isinstance(n, Leaf)]
            if len(leaves) == len(nodes) and leaves[0].steps == leaves[1].steps:
                return along(self._slot([n.root for n in leaves]), leaves[1].steps)
            raise Different
        names = [n.id if type(n) is Name else "" for n in nodes]
        if self.turn_of.get(names[0]) == 0:
            place = self.produced[0][names[0]]
            if all(self.produced[k].get(name) == place for k, name in enumerate(names)):
                return Own(place)
            raise Different
        if len(names) > 1 and names[1] in self.produced[0]:
            place = self.produced[0][names[1]]
            if any(self.produced[k].get(name) != place for k, name in enumerate(names[1:])):
                raise Different
            if any(name in self.turn_of for name in reads(nodes[0])):
                raise Different
            if self.carries.setdefault(place, nodes[0]).flat() != nodes[0].flat():
                raise Different
            values = [n.symbol.value if type(n) is Name else None for n in nodes]
            if len({v.aval.shape if v is not None else None for v in values} - {None}) == 1 and None not in values:
                self.of_one_shape.add(place)
            return Carry(place)
        if any(name in self.turn_of for n in nodes for name in reads(n)):
            raise Different
        if len({n.flat() for n in nodes}) == 1:
            self.invariant.update(reads(nodes[0]))
            return nodes[0]
        return self._element(nodes)

    def _element(self, nodes: Sequence[Expr]) -> Expr:
        leaves = [n if isinstance(n, Leaf) else self.leaf(n.id) if type(n) is Name else None for n in nodes]
        ways = [(leaf.root, leaf.steps) for leaf in leaves if leaf is not None]
        if len(ways) < len(leaves):
            raise Different
        element = Element.of(ways)
        if element is None:
            raise Different
        if len(nodes) < len(self.turns):
            element.keys.append(self._next_key(element))
        key = (element.source, element.below)
        if key not in self._numbers:
            self._numbers[key] = len(self.elements)
            self.elements.append(element)
        return Part(self._numbers[key])

    def _next_key(self, element: Element) -> Step:
        """The key that follows those of all turns but the last, which does not say its own."""
        for other in self.elements:
            if other.keys[:-1] == element.keys:
                return other.keys[-1]
        kind, _, length = element.keys[-1]
        if not length:
            pattern = key_pattern([text for _, text, _ in element.keys])
            if pattern is None:
                raise Different
            start, stop, numbers = pattern
            step = kind, quoted(f"{start}{2 * numbers[-1] - numbers[-2]}{stop}"), 0
            if (element.root.id, (*element.above, step)) not in self.known:
                raise Different
            return step
        before, last = [int(text) for _, text, _ in element.keys[-2:]]
        if not 0 <= 2 * last - before < length:
            raise Different
        return kind, str(2 * last - before), length

    def trying(self, nodes: Sequence[Expr]) -> Expr | None:
        """`unify`, or None where the turns differ; then nothing is noted either."""
        before = (
            dict(self.carries),
            len(self.elements),
            dict(self._numbers),
            set(self.invariant),
            dict(self.rows),
        )
        try:
            return self._unified(nodes)
        except Different:
            self.params = frozenset()
            self.carries, _, self._numbers, self.invariant, self.rows = before
            del self.elements[before[1] :]
            return None


def _with_zeros(nodes: Sequence[Node]) -> Sequence[Node]:
    """`n + 0` beside `n + 1`, for a bound of a slice that is `n`."""
    sums = [type(n) is Binary and n.op == "+" and type(n.right) is Text for n in nodes]
    if not any(sums) or all(sums):
        return nodes
    bounds = [n for n in nodes if isinstance(n, Expr)]
    bases = [n.left if type(n) is Binary and is_sum else n for n, is_sum in zip(bounds, sums, strict=True)]
    if len({base.flat() for base in bases}) > 1:
        return nodes
    return [n if is_sum else Binary(n, "+", Text("0")) for n, is_sum in zip(bounds, sums, strict=True)]


_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def _number(node: Expr) -> float:
    """What Python computes of numbers. Raises ValueError, KeyError or ArithmeticError for anything else."""
    if type(node) is Binary:
        return _ARITHMETIC[node.op](_number(node.left), _number(node.right))
    return float(node.flat())


def _width(target: object) -> int:
    return len(target.elements) if type(target) is Tuple else 1
