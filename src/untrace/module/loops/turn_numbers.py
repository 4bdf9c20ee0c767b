"""What is another number in each turn of a loop, by the author's expressions: `SHIFTS[i]`, `i + 1`, `d` of `for d in DILATIONS`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from untrace.ir.said import Numbers, SaidNumber
from untrace.lift.naming.author_loops import AuthorLoop, variables_of
from untrace.module.loops.align_turns import Row
from untrace.module.loops.elements import Element, key_pattern
from untrace.module.loops.memo import NUMBER
from untrace.python.tree import List, Text, Tuple
from untrace.python.walk import rebuilt

Values = tuple[Numbers, ...]  # one for each turn


class TurnNumbers:
    """The expressions of one loop for the numbers in some templates, for the places of elements that it goes through by their
    numbers, and for the numbers in keys, where it has some. `used`: the variables of the author's that they have."""

    def __init__(
        self,
        loop: AuthorLoop,
        templates: Iterable[object],
        elements: Sequence[Element],
        keys: Iterable[Sequence[str]] = (),
    ):
        self.loop = loop
        self.said: dict[Values, SaidNumber | None] = {}
        for row in keys:
            if (pattern := key_pattern(row)) is not None:
                self._find(tuple(pattern[2]), False)
        counter = loop.counter()
        self.is_indexed = bool(elements) and counter is not None and counter.step != 1
        for template in templates:
            self._look(template)
        if self.is_indexed:
            for element in elements:
                self._find(places_of(element))

    @property
    def is_complete(self) -> bool:
        """Whether all numbers have an expression."""
        return None not in self.said.values()

    @property
    def used(self) -> set[str]:
        names = {name for c in self.loop.columns for name in variables_of(c.target)}
        inside = [n for found in self.said.values() if found is not None for n in ast.walk(found[0])]
        return {n.id for n in inside if isinstance(n, ast.Name)} & names

    def values(self, node: object) -> Values | None:
        """What stands for a node in each turn, where it has an expression."""
        if isinstance(node, Row):
            return node.key
        whole = _whole(node, self.loop.count)
        return whole if whole is not None and self.said.get(whole) is not None else None

    def _look(self, node: object) -> object:
        whole = _whole(node, self.loop.count)
        if whole is not None and self._find(whole, False):
            return node
        if isinstance(node, Row):
            self._find(node.key)
            return node
        return rebuilt(node, self._look)

    def _find(self, values: Values, is_needed: bool = True) -> bool:
        if values not in self.said:
            found = self.loop.said(values)
            if found is None:
                found = next((f for other in _from_the_front(values) if (f := self.loop.said(other)) is not None), None)
            if found is not None or is_needed:
                self.said[values] = found
        return self.said.get(values) is not None


def places_of(element: Element) -> Values:
    """The numbers of the elements of a list that the turns take."""
    return tuple([int(text) if text.isdecimal() else -1 for text in element.texts])


def _whole(node: object, count: int) -> Values | None:
    """The tuples that one of numbers is in the turns; None where it is none, or the same in all."""
    if not isinstance(node, Tuple | List):
        return None
    rows: list[Values] = []
    for part in node.elements:
        if type(part) is Row:
            rows.append(part.key)
        elif type(part) is Text and NUMBER.fullmatch(part.text):
            rows.append((ast.literal_eval(part.text),) * count)
        else:
            return None
    return tuple(zip(*rows, strict=False)) if any(type(part) is Row for part in node.elements) else None


def _from_the_front(values: Values) -> Iterable[Values]:
    """The same where one end of them is counted from the end of a list."""
    numbers = [n for n in values if isinstance(n, int)]
    if len(values) < 2 or len(numbers) < len(values):
        return
    if numbers[-1] == -1 and numbers[-2] >= 0:
        yield (*numbers[:-1], 2 * numbers[-2] - numbers[-3] if len(numbers) > 2 else numbers[-2] + 1)
    if numbers[0] == -1 and numbers[1] >= 0:
        yield (2 * numbers[1] - numbers[2] if len(numbers) > 2 else numbers[1] + 1, *numbers[1:])
