"""What is taken apart before the turns of a loop take its parts one by one.

    a, b, c = jax.random.split(key, 3)        keys = jax.random.split(key, 3)
    x = step(x, a)                       ->   for k in keys:
    x = step(x, b)                                x = step(x, k)
    x = step(x, c)

Tracing takes an array apart that a loop goes through, so that the program stays the same. And where only one part of
several is read at last, as of a key that is split in each turn, that turn is like the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeGuard

from untrace.module.access_paths import Bare
from untrace.module.def_use import targets_of
from untrace.module.loops.elements import Element
from untrace.module.loops.memo import Key, Known
from untrace.python.names import base_of
from untrace.python.statements import Assign, Statement, Unpack
from untrace.python.tree import Expr, Leaf, Name, Subscript, Text, Tuple
from untrace.python.walk import copied


def _is_taken_apart(statement: Statement) -> TypeGuard[Assign | Unpack]:
    """`a, b = value`, where the value is one."""
    if not isinstance(statement, (Assign, Unpack)):
        return False
    return len(statement.targets) > 1 and type(statement.value) not in (Bare, Tuple)


class TakenApart:
    """The statements of a function in which what is taken apart has a name. `leaves`: by variable, the part that it holds;
    `names`: those of what has such parts."""

    def __init__(self, body: Sequence[Statement], known: Known, fresh: Callable[[str], str]):
        self.leaves: dict[str, Leaf] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        # By what takes a new variable apart, what stands there otherwise.
        self._parts: dict[Statement, Assign | Unpack] = {}
        self._others: dict[Statement, Statement] = {}  # the same by what binds no part but one
        local = {name for s in body for name in targets_of(s)}
        several = [s for s in body if _is_taken_apart(s)]
        widths = {known.key(s, local): len(s.targets) for s in several}
        count = Counter(known.key(s, local) for s in several)
        self.statements: list[Statement] = []
        for statement in body:
            if type(statement) is Assign and type(statement.value) is Subscript:
                self.statements.append(self._as_others(statement, known, local, widths))
            elif _is_taken_apart(statement) and count[known.key(statement, local)] == 1:
                self.statements += self._named(statement, fresh)
            else:
                self.statements.append(statement)

    def _as_others(self, statement: Assign, known: Known, local: set[str], widths: dict[Key, int]) -> Statement:
        """`_, k = split(key)` for `k = split(key)[1]`, beside statements that bind all parts."""
        value = statement.value
        assert type(value) is Subscript
        whole = Assign(statement.targets, value.value)
        width = widths.get(known.key(whole, local), 0)
        place = int(value.index.text) if type(value.index) is Text and value.index.text.isdecimal() else width
        if place >= width or len(statement.targets) != 1:
            return statement
        targets = [statement.targets[0] if n == place else "_" for n in range(width)]
        made = Assign(targets, value.value, statement.origin)
        self._others[made] = statement
        return made

    def _named(self, statement: Assign | Unpack, fresh: Callable[[str], str]) -> list[Statement]:
        targets = [t for t in statement.targets if type(t) is str]
        if len(targets) < len(statement.targets) or len({base_of(t) for t in targets}) > 1:
            return [statement]  # a part that has a name of its own is no element
        found: list[Statement] = [statement]
        if type(statement.value) is Name:
            name = statement.value.id
        else:
            base = base_of(targets[0])
            name = fresh(base if base.endswith("s") else f"{base}s")
            parts = Assign(statement.targets, Name(name), statement.origin)
            found = [Assign([name], statement.value, statement.origin), parts]
            self._parts[parts] = statement
        self.names[name] = tuple(targets)
        for place, target in enumerate(targets):
            self.leaves[target] = Leaf(Name(name), (("item", str(place), len(targets)),))
        return found

    def restored(self, statements: Sequence[Statement]) -> list[Statement]:
        """Statements among which those are as they were of which no loop has become another."""
        parts = {s.value.flat(): s for s in statements if s in self._parts and isinstance(s, Assign)}
        whole: dict[Statement, Expr] = {}  # what is taken apart, as it reads now
        found: list[Statement] = []
        for statement in statements:
            targets = targets_of(statement)
            if isinstance(statement, Assign) and len(targets) == 1 and targets[0] in parts:
                whole[parts[targets[0]]] = statement.value
            elif statement in whole:
                made = copied(self._parts[statement])
                made.value = whole[statement]
                found.append(made)
            else:
                found.append(self._others.get(statement, statement))
        return found

    def goes_through(self, element: Element, others: Sequence[Statement], known: Known) -> bool:
        """Whether a loop that takes these elements takes all parts, in order, and nobody else takes any."""
        names = self.names.get(element.root.id)
        if names is None:
            return True
        every = [str(place) for place in range(len(names))]
        read = {n for s in others for n in known.read_by(s)}
        return not element.above and list(element.texts) == every and read.isdisjoint(names)
