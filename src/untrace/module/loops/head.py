"""The head of a loop: what it goes through, and the variables for the elements.

Elements of lists are gone through as they are, what an earlier loop saved with them; dicts by their keys. The author's
words stand where they are known: `for w, b in params`.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from untrace._identifiers import identifier
from untrace.ir.facts import Step
from untrace.lift.naming.author_loops import AuthorLoop, variables_of
from untrace.lift.naming.words import clean, singular
from untrace.module.access_paths import last_word
from untrace.module.constants import ConstantWriter
from untrace.module.loops.align_turns import Place, Turns
from untrace.module.loops.collected import Gathered
from untrace.module.loops.elements import Element, Source, key_pattern, places_in_tuples
from untrace.module.loops.memo import Known
from untrace.module.loops.turn_numbers import TurnNumbers, Values, places_of
from untrace.python.names import base_of
from untrace.python.statements import Assign, Statement
from untrace.python.tree import Attribute, Call, Expr, Leaf, Name, Subscript, Symbol, Text, Tuple, along, quoted

_MOST_KEYS = 4  # written one by one
MOST_TARGETS = 4  # of a tuple in the head of a loop
LONGEST_TARGETS = 40  # letters of their names


class End(NamedTuple):
    """Of a list of all values of a carry: the place of the last one in it, the carry, and whether it begins with what that is
    before the loop."""

    last: int
    carry: Place
    begins: bool


class Roller(Protocol):
    """What makes loops of the statements of one function, as it is seen from where a loop is written.

    `leaves`, `authors`: by variable the part of an argument that it holds, and what the author calls it. `taken`: all names;
    `targets`: those that only loops bind. `saved`: by list the variables that a loop put there, and whether they are carries;
    `carried`: by the same list what the loop hands from turn to turn. `words`: what the author calls the elements of a list.
    `ends`: of the lists of all values of a carry; `end_names`: its variable in the end.
    """

    leaves: dict[str, Leaf]
    authors: dict[str, str]
    taken: set[str]
    targets: set[str]
    saved: dict[str, list[tuple[str, bool]]]
    carried: dict[str, str]
    words: dict[tuple[str, tuple[Step, ...]], str | list[str]]
    ends: dict[str, End]
    end_names: dict[str, Name]
    parameters: set[str]
    known: Known
    trails: bool
    has_trail: bool

    @property
    def module(self) -> ConstantWriter: ...
    def fresh(self, base: str) -> str: ...
    def author_loops(self, turns: Turns) -> list[AuthorLoop]: ...


class Head:
    """`for target in iterable:`; `below`: statements that take an element apart; `parts`: by number of the element the
    expression for it; `key_names`: the same for the keys of dicts; `whole`: a variable for all that a turn saves.

    busy: variables that may not be bound here. numbers: those of the author's loop that this one is, if it is known.
    any_order: whether the turns can be in any order.
    """

    def __init__(
        self,
        roller: Roller,
        turns: Turns,
        gathered: Sequence[Gathered],
        busy: set[str],
        numbers: TurnNumbers | None,
        any_order: bool,
    ):
        self.roller, self.turns, self.busy, self.numbers, self.any_order = roller, turns, busy, numbers, any_order
        self.count = len(turns.turns)
        self.bound: set[str] = set()
        self.targets: list[str] = []
        self.iterables: list[Expr] = []
        self.below: list[Statement] = []
        self.parts: list[Expr] = []
        self.key_names: dict[tuple[str, ...], Expr] = {}
        self.words: list[str] = []
        self.whole = ""
        self.counter = ""  # what numbers all else
        self.variables: dict[str, str] = {}  # by the author's name
        self.values: dict[Source, str] = {}  # of dicts of which it goes through the values as well
        groups: dict[Source, list[int]] = {}
        for i, element in enumerate(turns.elements):
            if numbers is not None and numbers.is_indexed:
                continue
            if element.iterable() is None:
                self.key_names.setdefault(element.texts, Name(""))
            else:
                groups.setdefault(element.source, []).append(i)
        for g in gathered:
            if g.keys is not None:
                self.key_names.setdefault(g.keys, Name(""))
        if not self._number_keys():
            return
        named: dict[int, Expr] | None = None
        if numbers is not None and numbers.is_indexed:
            self._add_numbers(numbers)
            self.parts = [self._indexed(element) for element in turns.elements]
        else:
            named = self._name_elements(groups)
            if numbers is not None:
                self._add_numbers(numbers)
        for row, pattern in self.numbered_keys.items():
            self.key_names[row] = _key(pattern[0], self._said(tuple(pattern[2])), pattern[1])
        if named is not None:
            named |= self._name_of_keys(named)
            self.parts = [named[i] for i in range(len(turns.elements))]

    def line(self) -> tuple[str, Expr]:
        """(the targets, what the loop goes through)."""
        several = len(self.iterables) > 1
        targets = ", ".join(self.targets)
        every = Call("zip", self.iterables) if several else self.iterables[0]
        if self.counter:
            start = [Text(str(self.start))] if self.start else []
            return f"{self.counter}, {f'({targets})' if several else targets}", Call("enumerate", [every, *start])
        return targets[1:-1] if targets[0] == "(" and not several else targets, every

    def _add_numbers(self, numbers: TurnNumbers) -> None:
        """Has it go through those numbers of the author's loop of which the body reads variables too."""
        module, loop, used = self.roller.module, numbers.loop, numbers.used
        columns = [c for c in loop.columns if not used.isdisjoint(variables_of(c.target))]
        if not columns and not self.iterables:
            columns = [c for c in loop.columns if c.over is not None][:1]
        lists = [c for c in columns if c.step != 1]
        first_ones = 0
        for column in columns:
            target = self._target(column.target, used)
            counts = column.counts if column.step == 1 else None
            if counts is not None and (self.iterables or lists):
                self.counter, self.start = target, counts.start
                continue
            place = first_ones if column.is_first else len(self.iterables)
            first_ones += 1
            self.targets.insert(place, target)
            self.iterables.insert(
                place, module.said(*column.over) if column.over is not None else _digits(column.counts)
            )

    def _target(self, target: ast.expr, used: set[str]) -> str:
        if isinstance(target, ast.Tuple):
            return f"({', '.join([self._target(part, used) for part in target.elts])})"
        name = target.id if isinstance(target, ast.Name) else ""
        if name not in used:
            return "_"
        self.variables[name] = self.fresh(name if name.strip("_") else "i")
        return self.variables[name]

    def number(self, node: object) -> Expr | None:
        """What is another number in each turn, or a tuple of such; None for anything else."""
        values = self.numbers.values(node) if self.numbers is not None else None
        return None if values is None else self._said(values)

    def _said(self, values: Values) -> Expr:
        found = self.numbers.said[values] if self.numbers is not None else None
        assert found is not None  # else there is no loop
        return self.roller.module.said(*found, {name: Name(word) for name, word in self.variables.items()})

    def _indexed(self, element: Element) -> Expr:
        return along(Subscript(holder_of(element), self._said(places_of(element))), element.below)

    # ------------------------------------------------------------ elements

    def _name_elements(self, groups: dict[Source, list[int]]) -> dict[int, Expr]:
        turns = self.turns
        found: dict[int, Expr] = {}
        loop = next(iter(self.roller.author_loops(turns)), None)
        authors = author_targets(loop.node) if loop is not None else []
        order = {own: place for place, (own, _) in enumerate(authors)}
        places = {s: order.get(source_word(turns.elements[groups[s][0]]), len(order)) for s in groups}
        # As the author has them; what was saved stands last.
        lists = sorted(groups, key=lambda s: (s[0] in self.roller.saved, places[s]))
        several = [source_word(turns.elements[groups[s][0]]) for s in lists if s[0] not in self.roller.saved]
        left = _left(authors, several)
        for source in lists:
            members = [turns.elements[i] for i in groups[source]]
            iterable = members[0].iterable()
            assert iterable is not None  # of other elements there is no group
            self.iterables.append(iterable)
            if source[0] in self.roller.saved:
                named = self._saved_targets(source[0], members, left if len(lists) == len(several) + 1 else "")
            else:
                word = members[0].word()
                if (targets := _targets_of(members[0], authors, several)) is not None:
                    self.roller.words[source[:2]] = targets
                named = self._element_targets(members, self.roller.words.get(source[:2], word))
            found.update(zip(groups[source], named, strict=True))
        return found

    def _name_of_keys(self, found: Mapping[int, Expr]) -> dict[int, Expr]:
        """The parts that have no name yet: those of dicts, by their keys."""
        turns, more = self.turns, dict[int, Expr]()
        for source in {e.source: None for i, e in enumerate(turns.elements) if i not in found}:
            numbers = [i for i, e in enumerate(turns.elements) if i not in found and e.source == source]
            element = turns.elements[numbers[0]]
            root: Expr = Subscript(holder_of(element), self.key_names[element.texts])
            if source in self.values:
                root = Name(self.values[source])
            elif len(numbers) > 1:
                pattern = key_pattern(element.texts)
                word = re.split(r"\W", pattern[0].strip("_/~."))[-1] if pattern is not None else ""
                name = self.fresh(singular(word.strip("_") or "layer"))
                self.words.append(name)
                self.below.append(Assign([name], root))
                root = Name(name)
            more.update((i, _part(root, turns.elements[i].below)) for i in numbers)
        self.whole = self.whole or self.fresh(f"{self.words[0]}_saved" if self.words else "turn_saved")
        return more

    def _element_targets(self, members: Sequence[Element], words: str | list[str]) -> list[Expr]:
        if isinstance(words, list):
            numbers = places_in_tuples(members, words)
            if numbers is not None:
                taken = self.roller.taken - self.roller.targets
                free = [f"{w}_in" if w in taken else w for w in words]
                names = [self.fresh(w) if i in numbers else "_" for i, w in enumerate(free)]
                self.targets.append(f"({', '.join(names)})")
                variables = [Name(name, Symbol(author=w)) for name, w in zip(names, words, strict=True)]
                return [_part(variables[n], e.below[1:]) for n, e in zip(numbers, members, strict=True)]
            words = members[0].word()
        author = words
        if words in self.roller.taken - self.roller.targets:  # by something else that the author calls so
            own = {self.roller.authors.get(name) for found in self.turns.produced for name in found}
            words = f"{words}_in" if words in own else members[0].word()
        name = self.fresh(words)
        self.words.append(name)
        self.targets.append(name)
        return [_part(Name(name, Symbol(author=author)), e.below) for e in members]

    def _saved_targets(self, root: str, members: Sequence[Element], word: str) -> list[Expr]:
        """The variables for what one turn of an earlier loop saved: by `word`, where the author has one for it, or by their names
        there, where these are free."""
        roller = self.roller
        names = roller.saved[root]
        numbers = [int(e.below[0][1]) if len(names) > 1 else 0 for e in members]
        chosen = ["_"] * len(names)
        for number in numbers:
            if chosen[number] == "_":
                base, carried = names[number]
                if carried:
                    base = base_of(roller.authors.get(base, base))
                ends = [members[0].keys[0][1], members[0].keys[-1][1]]
                if root in roller.ends and not (roller.ends[root].begins and "0" in ends):
                    base, carried = f"{base}_out", False
                if word and len(names) == 1:
                    base, carried = identifier(word, base), False
                free = base not in self.busy | self.bound and not (word and roller.module.scope.taken_outside(base))
                chosen[number] = base if free else roller.fresh(f"{base}_in" if carried else base)
                self.bound.add(chosen[number])
        skip = 1 if len(names) > 1 else 0
        parts = [along(Name(chosen[n]), e.below[skip:]) for n, e in zip(numbers, members, strict=True)]
        if len(names) == 1:
            self.targets.append(chosen[0])
        elif len(names) <= MOST_TARGETS and sum(map(len, chosen)) <= LONGEST_TARGETS:
            self.targets.append(f"({', '.join(chosen)})")
        else:
            self.whole = self.fresh(f"{self.words[0]}_saved" if self.words else "turn_saved")
            self.targets.append(self.whole)
            self.below.append(Assign(chosen, Name(self.whole)))
        return parts

    # ------------------------------------------------------------ keys

    def _number_keys(self) -> bool:
        """Names the keys of dicts that the turns go through: each by itself, or all by their number; not yet those that have the
        author's number."""
        patterns = {row: key_pattern(row) for row in self.key_names}
        said = self.numbers.said if self.numbers is not None else {}
        self.numbered_keys = {
            row: p for row, p in patterns.items() if p is not None and said.get(tuple(p[2])) is not None
        }
        keys = [row for row in self.key_names if row not in self.numbered_keys]
        if not keys:
            return True
        loop = next(iter(self.roller.author_loops(self.turns)), None)
        authors = _literal_words(loop.node.iter) if loop is not None else None
        differing = [("", row, "") for row in keys] if keys == [authors] else _what_differs(keys)
        words = {words for _, words, _ in differing}
        if len(words) > 1:
            return False
        gone_through = words.pop()
        numbers = [int(word) for word in gone_through if word.isdecimal()]
        if len(numbers) == len(gone_through) and _in_a_row(numbers):
            low, high = min(numbers), max(numbers) + 1
            span: Expr = Call("range", [Text(str(n)) for n in ([low, high] if low else [high])])
            self.iterables.append(span if numbers == sorted(numbers) else Call("reversed", [span]))
            target = name = self.fresh("i")
        else:
            items = items_of(loop.node.target, loop.node.iter) if loop is not None else Items("", "", "")
            name = self.fresh(items.key or ("name" if gone_through[0][0] in "'\"" else "i"))
            found = self._whole_dict(items, gone_through)
            if found is None and len(gone_through) > _MOST_KEYS and gone_through != authors:
                return False
            value, every = found or ("", Tuple([Text(k) for k in gone_through]))
            self.iterables.append(every)
            target = f"({name}, {value})" if value else name
        self.targets.append(target)
        for row, (before, _, after) in zip(keys, differing, strict=True):
            self.key_names[row] = _key(before, Name(name), after) if row != gone_through else Name(name)
        return True

    def _whole_dict(self, items: Items, keys: Keys) -> tuple[str, Expr] | None:
        """(a variable for its values, "" for none, what is gone through) of the dict that the author's loop goes through; None
        where these keys are not all of them, or where their order counts, which is another one before a dict is traced."""
        whole = whole_dict(self.turns, items, keys) if self.any_order else None
        if whole is None:
            return None
        if items.value:
            self.values[whole.source] = self.fresh(items.value)
        return self.values.get(whole.source, ""), items.of(whole)

    def fresh(self, word: str) -> str:
        """A name that only loops bind, as an author uses one in several of them."""
        roller = self.roller
        base = identifier(clean(word), "layer")
        if roller.module.scope.taken_outside(base):
            base += "_params"
        number, name = 1, base
        while name in self.bound or name in roller.taken and name not in roller.targets:
            number += 1
            name = f"{base}_{number}"
        roller.taken.add(name)
        roller.targets.add(name)
        self.bound.add(name)
        return name


# ------------------------------------------------------------------ keys

# Keys that are paths, whose parts are looked at one by one: `"norm1.weight"`.
_PATH = re.compile(r'"[\w\-./~]+"')

Keys = tuple[str, ...]  # one for each turn, as source


def _what_differs(rows: Sequence[Keys]) -> list[tuple[str, Keys, str]]:
    """For each row (what is before what differs, that in each turn, what is after it): numbers, or a part that several have."""
    found = [_parts(row) for row in rows]
    counts = Counter(words for _, words, _ in found)
    # A key alone is read more easily as it is.
    return [
        parts if counts[parts[1]] > 1 or parts[1][0].isdecimal() else ("", row, "")
        for row, parts in zip(rows, found, strict=True)
    ]


def _parts(row: Keys) -> tuple[str, Keys, str]:
    numbered = key_pattern(row)
    if numbered is not None and _in_a_row(numbered[2]):
        return numbered[0], tuple([str(n) for n in numbered[2]]), numbered[1]
    if not all(_PATH.fullmatch(text) for text in row):
        return "", row, ""
    plain = [text[1:-1] for text in row]
    before = os.path.commonprefix(plain)
    before = before[: max(before.rfind("."), before.rfind("/")) + 1]
    rest = [text[len(before) :][::-1] for text in plain]
    after = os.path.commonprefix(rest)
    after = after[: max(after.rfind("."), after.rfind("/")) + 1][::-1]
    return before, tuple([f'"{text[::-1][: len(text) - len(after)]}"' for text in rest]), after


def _part(root: Expr, below: tuple[Step, ...]) -> Expr:
    return Leaf(root, below) if below and type(root) is Name else along(root, below)


def _key(before: str, middle: Expr, after: str) -> Expr:
    return Text(f'f"{before}{{{middle.flat()}}}{after}"') if before or after else Call("str", [middle])


def _in_a_row(numbers: Sequence[int]) -> bool:
    low, high = min(numbers), max(numbers)
    return list(numbers) in ([*range(low, high + 1)], [*range(high, low - 1, -1)])


# ------------------------------------------------------------------ the author's loop


def _digits(span: range | None) -> Expr:
    assert span is not None  # that is what `enumerate` counts
    return Call("range", [Text(str(n)) for n in ((span.start, span.stop) if span.start else (span.stop,))])


class Items(NamedTuple):
    """A dict of the author's, by its last word, and his variables for a key and a value of it; "" for none."""

    over: str
    key: str
    value: str

    def of(self, element: Element) -> Expr:
        """What is gone through: the dict that an element is of, or its items."""
        return Call(Attribute(holder_of(element), "items"), []) if self.value else holder_of(element)


def whole_dict(turns: Turns, items: Items, keys: Keys) -> Element | None:
    """An element of the dict of the author's, where the turns take all of its keys."""
    own = [e for e in turns.elements if e.texts == keys and source_word(e) == items.over]
    return own[0] if own and turns.is_whole(own[0]) else None


def items_of(target: ast.expr, over: ast.expr) -> Items:
    """The dict that a clause of the author's may go through."""
    match over:
        case ast.Call(ast.Name(id="sorted" | "list"), [inside, *_]):
            over = inside
    match target, over:
        case ast.Tuple([ast.Name(id=key), ast.Name(id=value)]), ast.Call(ast.Attribute(of, "items"), []):
            return Items(_last_word(of), key, value)
        case ast.Name(id=key), ast.Call(ast.Attribute(of, "keys"), []):
            return Items(_last_word(of), key, "")
        case ast.Name(id=key), ast.Name() | ast.Attribute() | ast.Subscript() | ast.Tuple() | ast.List():
            return Items(_last_word(over), key, "")
    return Items("", "", "")


def _literal_words(over: ast.expr) -> Keys | None:
    """The strings that a loop of the author's goes through, as source, where they stand in its head."""
    match over:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            words = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            return tuple(map(quoted, words)) if len(words) == len(parts) else None
    return None


def holder_of(element: Element) -> Expr:
    """What an element is one of."""
    return Leaf(element.root, element.above) if element.above else element.root


def source_word(element: Element) -> str:
    """What the list is called that an element is of."""
    return last_word(Leaf(element.root, element.above))


Targets = tuple[str, str | list[str]]  # a list of the author's, and the variables of his for an element


def author_targets(loop: ast.For) -> list[Targets]:
    """What a loop of the author's goes through, but for numbers that it counts."""
    return list(targets_in(loop.target, loop.iter))


def targets_in(target: ast.expr, iterable: ast.expr) -> Iterator[Targets]:
    """What a clause goes through, but for numbers that it counts, and the variables for it."""
    match iterable:
        case ast.Call(ast.Name(id="range")):
            return
        case ast.Call(ast.Name(id="enumerate"), [of, *_]) if isinstance(target, ast.Tuple) and len(target.elts) == 2:
            yield from targets_in(target.elts[1], of)
        case ast.Call(ast.Name(id="zip"), args) if isinstance(target, ast.Tuple) and len(target.elts) == len(args):
            for part, of in zip(target.elts, args, strict=True):
                yield from targets_in(part, of)
        case ast.Call(ast.Name(), [of]) | ast.Subscript(value=of, slice=ast.Slice()):
            yield from targets_in(target, of)
        case _ if isinstance(target, ast.Name):
            yield _last_word(iterable), target.id
        case _ if isinstance(target, ast.Tuple):
            names = [e.id for e in target.elts if isinstance(e, ast.Name)]
            if len(names) == len(target.elts):
                yield _last_word(iterable), names


def _targets_of(element: Element, authors: Sequence[Targets], several: Sequence[str]) -> str | list[str] | None:
    """The author's variables for an element: of the list of that name, or of the only one that none of `several` is."""
    word = source_word(element)
    named = [targets for own, targets in authors if own == word]
    if named:
        return named[0]
    left = [targets for own, targets in authors if own not in several]
    known = [own for own, _ in authors]
    return left[0] if len(left) == 1 and sum(w not in known for w in several) == 1 else None


def _left(authors: Sequence[Targets], several: Sequence[str]) -> str:
    """The author's variable for the elements of the only list of his loop that is none of these; "" where there is no such one."""
    names = [targets for own, targets in authors if own not in several and targets != "_"]
    return names[0] if len(names) == 1 == len(authors) - len(several) and isinstance(names[0], str) else ""


def _last_word(node: ast.AST) -> str:
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(word))):
            return word
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word
    return ""
