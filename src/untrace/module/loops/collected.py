"""What the turns of a loop leave behind: lists of it, in the place of the values one by one.

    grads = {"blocks": [d_block_2, d_block]}     ->     d_blocks.append(d_block)  ...  {"blocks": d_blocks[::-1]}

What is not part of such a list goes into one tuple for each turn, which the loop of the backward pass takes:
`saved.append((h, z))`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from untrace._identifiers import identifier
from untrace.lift.naming.words import clean, plural
from untrace.module.def_use import reads, substituted, targets_of
from untrace.module.loops.align_turns import Carry, Hole, Own, Part, Place, Row, Turns
from untrace.module.loops.elements import key_pattern, terms_of_sum
from untrace.module.loops.memo import Known
from untrace.python.names import base_of
from untrace.python.statements import Assign, Compound, Def, Return, Statement, Unpack
from untrace.python.tree import Binary, Call, Dict, Expr, List, Name, Slice, Star, Subscript, Text, Tuple
from untrace.python.walk import nodes_of, rebuilt

_KEY_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Gathered:
    """A variable that a loop fills. `value`: what a turn adds to it, with holes; several `values` go in front of it.

    `keys`: for a dict, the keys of the turns in their order.
    """

    name: str
    values: list[Expr]
    keys: tuple[str, ...] | None = None
    first: Expr | None = None  # what a list has in it from the start
    is_begun: bool = False  # whether a loop around this one begins it


_COLLECTIONS = frozenset((List, Tuple, Dict))


class Gatherer:
    """Puts variables that a loop fills into the statements after it. `fresh(base)`: a new name of the function;
    `listed(value)`: the list of the author's that he appends such a value of a turn to, or ""."""

    def __init__(
        self,
        turns: Turns,
        rest: Sequence[Statement],
        fresh: Callable[[str], str],
        known: Known,
        listed: Callable[[Expr], str],
    ):
        self.listed = listed
        self.turns = turns
        self.known = known
        self.fresh = fresh
        self.found: list[Gathered] = []
        self.later = {n for s in rest for n in known.bound_by(s)}
        self.single = _read_once(rest, known)
        self.inside: set[str] = set()  # those of them that stand in the place where they were read by now
        made = [self._statement(s) for s in rest if not self._extends(s)]
        self.rest = [s for s in made if self.inside.isdisjoint(targets_of(s))]

    def _extends(self, statement: Statement) -> bool:
        """Whether a statement only adds what the turns give, one value each, to a list: each turn does that then."""
        match statement:
            case Assign(targets=[], value=Call(func=str(func), args=[List(elements=items)])) if func.endswith(
                ".extend"
            ):
                if len(items) != len(self.turns.turns) or not all(map(self._is_own, items)):
                    return False
                values = self._values([[item] for item in items])
                if values is not None:
                    self.found.append(Gathered(func.removesuffix(".extend"), values, is_begun=True))
                return values is not None
        return False

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, (Assign, Return, Unpack)):
            if not any(n in self.turns.turn_of or n in self.single for n in self.known.read_by(statement)):
                return statement
            if any(type(n) in _COLLECTIONS or type(n) is Binary and n.op == "+" for n in nodes_of(statement)):
                return rebuilt(statement, lambda n: self._expr(n, ""))
        return statement

    def _within(self, node: Expr, word: str) -> Expr:
        made = self._expr(node, word)
        assert isinstance(made, Expr)  # of an expression
        return made

    def _expr(self, node: object, word: str) -> object:
        if type(node) is List or type(node) is Tuple:
            made = self._list(node, word)
            if made is not None:
                return made
        if type(node) is Binary and node.op == "+":
            summed = self._sum(node)
            if summed is not None:
                return summed
        if type(node) is Dict:
            node = self._dict(node, word) or node
            if len(node.pairs) == 1 and node.pairs[0][0] is None:
                return node.pairs[0][1]
            pairs = [(k, v if k is None else self._within(v, _word_of_key(k) or word)) for k, v in node.pairs]
            changed = any(a is not b for (_, a), (_, b) in zip(pairs, node.pairs, strict=True))
            return Dict(pairs) if changed else node
        if type(node) is Call and node.kwargs:
            kwargs = [(k, self._within(v, k if k != "**" else word)) for k, v in node.kwargs]
            args = [self._within(a, word) for a in node.args]
            if any(a is not b for a, b in zip(args, node.args, strict=True)) or any(
                a[1] is not b[1] for a, b in zip(kwargs, node.kwargs, strict=True)
            ):
                return Call(node.func, args, kwargs)
            return node
        return rebuilt(node, lambda n: self._expr(n, word))

    def _is_own(self, node: object) -> bool:
        return any(n in self.turns.turn_of for n in self._reads(node))

    def _reads(self, node: object) -> list[str]:
        """The names that a node reads, with what has a statement of its own but is read once in its place."""
        found = reads(node)
        if self.single.keys().isdisjoint(found):
            return found
        return [n for name in found for n in (reads(self.single[name]) if name in self.single else [name])]

    def _is_of_turn(self, node: object) -> bool:
        """The same, not counting what the last turn hands on."""
        turns, last = self.turns, len(self.turns.turns) - 1
        own = [n for n in self._reads(node) if n in turns.turn_of]
        return any(turns.turn_of[n] < last or turns.produced[last][n] not in turns.carries for n in own)

    # ------------------------------------------------------------ lists

    def _list(self, node: List | Tuple, word: str) -> Expr | None:
        items = node.elements
        count = len(self.turns.turns)
        if len(items) < count:
            return None
        every = [i for i, item in enumerate(items) if self._is_own(item)]
        if len(every) < count:
            return None
        own = [i for i in every if self._is_of_turn(items[i])] or every
        spans = [(row[0], row[-1] + 1) for row in (own, every)]
        shifted = [(a + start, b + stop) for a, b in spans for start in (0, -1, 1) for stop in (0, 1, -1)]
        for start, stop in dict.fromkeys(shifted):
            size = (stop - start) // count
            if start < 0 or stop > len(items) or size < 1 or (stop - start) % count:
                continue
            part = items[start:stop]
            groups = [part[k * size : (k + 1) * size] for k in range(count)]
            for backwards in (False, True):
                values = self._values(groups[::-1] if backwards else groups)
                if values is None:
                    continue
                if size == 1:
                    return _with_list(node, self._filled(values[0], word), start, stop, backwards)
                name = self._name(values, word)
                spread = Star(Name(name))  # `d_layers = [d_weight, d_bias, *d_layers]`
                self.found.append(Gathered(name, [*values, spread] if backwards else [spread, *values]))
                return _with_list(node, name, start, stop, False)
        return None

    def _filled(self, value: Expr, word: str) -> str:
        """The list that such a value of each turn goes into."""
        for g in self.found:
            other = g.values[0]
            if g.keys is None and len(g.values) == 1 and isinstance(value, Hole) and isinstance(other, Hole):
                if (type(other), other.key) == (type(value), value.key):
                    return g.name
        name = self._name([value], word)
        self.found.append(Gathered(name, [value]))
        return name

    def _sum(self, node: Binary) -> Expr | None:
        """The sum of a list, for a chain that begins with zero as Python's does; statements before may hold its beginning."""
        begun: set[str] = set()

        def beginning(name: Name) -> Expr | None:
            begun.add(name.id)
            return self.single.get(name.id)

        count = len(self.turns.turns)
        terms = terms_of_sum(node, beginning)
        if terms is None or not all(map(self._is_own, terms[:count])):
            return None
        values = self._values([[term] for term in terms[:count]]) if len(terms) >= count else None
        if values is None:
            return None
        self.inside |= begun
        made: Expr = Call("sum", [Name(self._filled(values[0], ""))])
        for term in terms[count:]:
            made = Binary(made, "+", term)
        return made

    def _values(self, groups: Sequence[Sequence[Expr]]) -> list[Expr] | None:
        """What each place of the groups is in a turn; None where that is not the same, or not known in it."""
        found: list[Expr] = []
        carries = set(self.turns.carries)
        inside: set[str] = set()
        for column in zip(*groups, strict=True):
            value = self.turns.trying(column)
            if value is None:  # some may have a statement of their own, being long
                own = {n for v in column for n in reads(v) if n in self.single}
                inside |= own
                value = self.turns.trying([substituted(v, self.single) for v in column]) if own else None
            if value is None or set(self.turns.carries) != carries or self._is_late(value):
                return None
            found.append(value)
        self.inside |= inside
        return found

    def _is_late(self, value: Expr) -> bool:
        """Whether a value needs what is computed after the loop."""
        roots = {e.root.id for e in self.turns.elements}
        return any(n in self.later for n in reads(value)) or not self.later.isdisjoint(roots)

    def _name(self, values: Sequence[Expr], word: str, otherwise: str = "") -> str:
        own = [self.turns.name(h.key) for v in values for h in holes(v) if type(h) is Own]
        carried = [self.turns.name(h.key) for v in values for h in holes(v) if type(h) is Carry]
        names = own + carried
        lists = {self.listed(value) for value in values} if not word else {""}
        if len(lists) == 1 and (listed := lists.pop()):
            return self.fresh(identifier(listed, "parts"))
        word = word or otherwise
        cotangents = names and all(n.startswith("d_") for n in own or carried)
        if word:
            plain = word if word.endswith("s") else plural(word)
            return self.fresh(identifier(clean(f"d_{plain}" if cotangents else plain), "parts"))
        words = [e.word() for e in self.turns.elements if e.word() != "saved"]
        alike = [word for word in words if words.count(word) == len(values) > 1]  # of a list of so many for each turn
        alone = len(values) == 1 and type(values[0]) is Own
        base = base_of(names[0]) if alone else f"{'d_' if cotangents else ''}{(alike or words or ['layer'])[0]}"
        return self.fresh(identifier(clean(plural(base)), "parts"))

    # ------------------------------------------------------------ dicts

    def _dict(self, node: Dict, word: str) -> Dict | None:
        """The dict without the items of the turns, which the loop puts into a dict of its own."""
        families: dict[tuple[str, str], list[tuple[int, int]]] = {}
        count = len(self.turns.turns)
        for at, (key, value) in enumerate(node.pairs):
            if type(key) is Text and self._is_own(value):
                for found in _KEY_NUMBER.finditer(key.text):
                    ends = key.text[: found.start()], key.text[found.end() :]
                    families.setdefault(ends, []).append((int(found[0]), at))
        rows: list[list[int]] = []
        for members in families.values():
            if len(members) == count:
                numbered = [at for _, at in sorted(members)]
                rows += [numbered, numbered[::-1]]
        rows = [row for row in rows if key_pattern([_text(node.pairs[at][0]) for at in row]) is not None]
        places = {_text(key): at for at, (key, value) in enumerate(node.pairs) if self._is_own(value)}
        for element in self.turns.elements:  # a dict for a dict
            if element.iterable() is None and places.keys() >= {*element.texts}:
                rows.append([places[text] for text in element.texts])
        whole = ""
        gone: dict[int, str] = {}
        for row in rows:
            if any(at in gone for at in row):
                continue
            values = self._values([[node.pairs[at][1]] for at in row])
            if values is None:
                continue
            keys = tuple([_text(node.pairs[at][0]) for at in row])
            whole = whole or self._name(values, "layers" if word == "params" else word, "layers")
            self.found.append(Gathered(whole, values, keys))
            gone.update((at, whole) for at in row)
        if not gone:
            return None
        first = min(gone)
        pairs = [(None, Name(whole)) if i == first else pair for i, pair in enumerate(node.pairs)]
        return Dict([pair for i, pair in enumerate(pairs) if i == first or i not in gone])

    # ------------------------------------------------------------ what is left

    def needed(self, before: set[str], trails: bool) -> Needed:
        """What the statements after the loop read of its turns.

        before: variables that hold what a carry may begin with. trails: whether a carry of which the first, the last and
        others are read goes into a list of all its values; else its turns save those that they began with.
        """
        turns, count = self.turns, len(self.turns.turns)
        read = {n for s in self.rest for n in self.known.read_by(s)}
        by_place: dict[Place, dict[int, str]] = {}
        for name in sorted(read & turns.turn_of.keys()):
            k = turns.turn_of[name]
            by_place.setdefault(turns.produced[k][name], {})[k] = name
        found = Needed()
        initial = {p: e.id for p, e in turns.carries.items() if type(e) is Name and e.id in before & read}
        for place in sorted(by_place.keys() | initial):
            names = dict(by_place.get(place, {}))
            last = names.get(count - 1)
            if place not in turns.carries:
                if set(names) == {count - 1}:
                    found.last.add(place)
                else:
                    found.add(Own(place), names)
                continue
            names = {k + 1: name for k, name in names.items() if k + 1 < count}
            if place in initial and names:
                names[0] = initial[place]
            if names and last is not None:
                found.has_trail = True
                if trails:
                    found.trails[place] = {**names, count: last}
                    continue
            if last is not None:
                found.last.add(place)
            if names:
                found.add(Carry(place), names)
        found.saved.sort(key=lambda h: (type(h) is Own, h.key))
        return found


@dataclass(slots=True)
class Needed:
    """`places`: by variable (turn, which of the holes). `saved`: the holes of what each turn saves. `last`: what is read of
    the last turn. `trails`: by carry, variables by the number of the turn that they are given to.
    """

    places: dict[str, tuple[int, Own | Carry]] = field(default_factory=dict)
    saved: list[Own | Carry] = field(default_factory=list)
    last: set[Place] = field(default_factory=set)
    trails: dict[Place, dict[int, str]] = field(default_factory=dict)
    has_trail: bool = False

    def add(self, hole: Own | Carry, names: dict[int, str]) -> None:
        self.saved.append(hole)
        self.places.update((name, (k, hole)) for k, name in names.items())


def _read_once(statements: Sequence[Statement], known: Known) -> dict[str, Expr]:
    """The values of variables that one of the statements reads, once."""
    read = Counter(n for s in statements for n in known.read_by(s))
    looped = {n for s in statements if isinstance(s, (Compound, Def)) for n in known.read_by(s)}
    return {
        s.targets[0]: s.value
        for s in statements
        if type(s) is Assign and len(s.targets) == 1 and type(s.targets[0]) is str
        if read[s.targets[0]] == 1 and s.targets[0] not in looped
    }


def holes(node: object) -> list[Own | Carry | Part | Row]:
    return [n for n in nodes_of(node) if isinstance(n, (Own, Carry, Part, Row))]


def _text(key: Expr | None) -> str:
    return "" if key is None else key.flat()


def _word_of_key(key: Expr) -> str:
    text = key.flat().strip("'\"")
    return text if text.isidentifier() else ""


def _with_list(node: List | Tuple, name: str, start: int, stop: int, backwards: bool) -> Expr:
    """A list or tuple with the variable in the place of some of its elements."""
    if start == 0 and stop == len(node.elements):
        if type(node) is List:
            return Subscript(Name(name), Slice(None, None, Text("-1"))) if backwards else Name(name)
        return Call("tuple", [Call("reversed", [Name(name)]) if backwards else Name(name)])
    spread = Star(Call("reversed", [Name(name)]) if backwards else Name(name))
    return type(node)([*node.elements[:start], spread, *node.elements[stop:]])
