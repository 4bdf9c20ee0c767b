"""The text of a loop for turns that say the same (`rolled_turns`), and what stands before and after it."""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Iterator, Sequence

from untrace._identifiers import identifier
from untrace.lift.naming.author_loops import AuthorLoop
from untrace.lift.naming.words import plural
from untrace.module.access_paths import last_word
from untrace.module.def_use import substituted, targets_of
from untrace.module.loops.align_turns import Carry, Own, Part, Place, Turns
from untrace.module.loops.appended import Appended
from untrace.module.loops.collected import Gathered, Gatherer, holes
from untrace.module.loops.elements import key_pattern
from untrace.module.loops.head import MOST_TARGETS, End, Head, Roller
from untrace.module.loops.temporaries import fold_back
from untrace.module.loops.turn_numbers import TurnNumbers
from untrace.python.names import base_of
from untrace.python.statements import Assign, Def, For, Statement, Unpack
from untrace.python.tree import Call, Dict, Expr, Leaf, List, Name, Star, Symbol, Tuple
from untrace.python.walk import copied, rebuilt


def write_loop(
    roller: Roller,
    turns: Turns,
    before: Sequence[Statement],
    after: Sequence[Statement],
    temporary: set[str],
    loops: Sequence[AuthorLoop] = (),
) -> tuple[list[Statement], list[Statement], list[Statement]] | None:
    """The statements before the loop, the loop with what it begins with, and those after it; None where there is no way to
    write it. loops: the author's that it may be, of one that takes no element of anything, or has numbers.
    """
    return _Writer(roller, turns, before, after, temporary).write(loops)


class Start(Assign):
    """What a loop begins with: it belongs to the loop."""

    __slots__ = ()


class _Writer:
    def __init__(
        self, roller: Roller, turns: Turns, before: Sequence[Statement], after: Sequence[Statement], temporary: set[str]
    ):
        self.roller, self.turns = roller, turns
        self.before, self.after, self.temporary = list(before), after, temporary
        self.count = len(turns.turns)
        self.fresh = roller.fresh
        self.known = roller.known
        self.names: dict[tuple[str, Place], str] = {}  # of holes
        self.renamed: dict[str, Expr] = {}

    def write(self, loops: Sequence[AuthorLoop]) -> tuple[list[Statement], list[Statement], list[Statement]] | None:
        turns = self.turns
        lists = Appended(loops[0].node if loops else None, lambda h: self.roller.authors.get(turns.name(h.key), ""))
        gatherer = Gatherer(turns, fold_back(self.after, self.temporary, self.known), self.fresh, self.known, lists.of)
        self.rest = gatherer.rest
        roller = self.roller
        bound = {n for s in self.before for n in targets_of(s)} | roller.parameters
        needed = gatherer.needed(bound, roller.trails)
        roller.has_trail |= needed.has_trail
        gathered, saved = gatherer.found, needed.saved
        new: dict[str, Expr] = {}
        if saved:
            name = self.fresh("saved")
            gathered.append(Gathered(name, [saved[0] if len(saved) == 1 else Tuple(saved)]))
            roller.saved[name] = [(turns.name(h.key), type(h) is Carry) for h in saved]
            self._use_saved(new, name, needed.places, saved)
        for place, names in needed.trails.items():
            word = lists.of_words(Own(place)) or plural(base_of(self._author(turns.name(place))))
            name = self.fresh(identifier(word, "parts"))
            begins = 0 in names
            gathered.append(Gathered(name, [Own(place)], first=turns.carries[place] if begins else None))
            roller.saved[name] = [(turns.name(place), True)]
            last = self.count if begins else self.count - 1
            roller.ends[name] = End(last, place, begins)
            steps = {n: ("item", str(last - self.count + k), last + 1) for k, n in names.items()}
            new.update((n, Leaf(Name(name), (step,))) for n, step in steps.items())
        self.rest = self.known.substituted(self.rest, new)
        if len(turns.carries) == 1:
            word = base_of(self._author(turns.name(next(iter(turns.carries)))))
            roller.carried.update((g.name, word) for g in gathered if g.name in roller.saved)
        self._find_late(gathered)
        self._name_own()
        self._name_carries(needed.last)
        busy = {n for s in self.rest for n in self.known.read_by(s)} | turns.invariant | set(self.names.values())
        templates = [value for _, value in turns.template] + [v for g in gathered for v in g.values]
        keys = [g.keys for g in gathered if g.keys is not None] + [
            e.texts for e in turns.elements if e.iterable() is None
        ]
        found = (TurnNumbers(loop, templates, turns.elements, keys) for loop in loops)
        numbers = next((one for one in found if one.is_complete), None)
        if numbers is None and turns.needs_numbers:
            return None
        busy |= {name.id for name in roller.end_names.values()}
        any_order = not turns.carries and not needed.last and all(g.keys is not None for g in gathered)
        self.head = Head(roller, turns, gathered, busy, numbers, any_order)
        if not self.head.iterables:
            return None
        body = self._body(gathered)
        made = For(*self.head.line(), [*self.head.below, *fold_back(body, self.temporary, self.known)])
        made.is_backward = any(getattr(s, "is_backward", False) for s, _ in turns.template)
        empty = [Start([g.name], substituted(_empty(g), self.renamed)) for g in _each_once(gathered) if not g.is_begun]
        starts: list[Statement] = [*empty, *self.starts] if needed.trails else [*self.starts, *empty]
        if made.is_backward:
            for statement in starts:
                statement.is_backward = True
        return self.before, [*starts, made], self.rest

    # ------------------------------------------------------------ after the loop

    def _use_saved(
        self, new: dict[str, Expr], name: str, places: dict[str, tuple[int, Own | Carry]], saved: Sequence[Own | Carry]
    ) -> None:
        number = {h.key: i for i, h in enumerate(saved)}
        for variable, (turn, hole) in places.items():
            steps = [("item", str(turn), self.count)]
            if len(saved) > 1:
                steps.append(("item", str(number[hole.key]), len(saved)))
            new[variable] = Leaf(Name(name), tuple(steps))

    # ------------------------------------------------------------ the carries

    def _name_own(self) -> None:
        """Chooses a variable for each value of a turn: that of the first, without the turn's number where it has one."""
        turns = self.turns
        for place in {p: None for found in turns.produced for p in found.values()}:
            name = turns.name(place)
            row = [turns.at(k, place) for k in range(self.count)]
            pattern = key_pattern([repr(n) for n in row])
            if pattern is not None and sorted(pattern[2])[0] in (0, 1):
                plain = (pattern[0].rstrip("_") + pattern[1]).strip("_")
                if plain.isidentifier() and plain not in self.roller.taken and not keyword.iskeyword(plain):
                    name = plain
                    self.roller.taken.add(plain)
            self.names["own", place] = name

    def _name_carries(self, last: set[Place]) -> None:
        """Chooses a variable for each carry: that which it begins as, where nothing else needs that one."""
        turns = self.turns
        self.starts: list[Statement] = []
        read_later = {n for s in self.rest for n in self.known.read_by(s)}
        bound = {n: s for s in self.before for n in targets_of(s)}
        new: dict[str, Expr] = {}
        for place, initial in turns.carries.items():
            own = turns.name(place)
            begun = initial.id if type(initial) is Name and initial.id not in self.roller.leaves else ""
            free = begun and begun not in read_later
            free = free and (begun not in turns.invariant or turns.reads_shape(begun, place))
            free = free and [e.flat() for e in turns.carries.values()].count(begun) == 1
            if free and begun in bound:
                self.names["carry", place] = self._begun(begun, place)
            elif free and begun in self.roller.parameters and self._authored(place) in (begun, ""):
                self.names["carry", place] = begun
            else:
                word = self._word_of_cotangent(own) or self._authored(place)
                of_part = isinstance(initial, Leaf) and not word and not own.startswith("d_")
                if of_part:  # it is what that part becomes
                    self.roller.authors[own] = last_word(initial)
                    name = self.fresh(last_word(initial))
                elif word and word not in self.roller.taken or place in self.late:
                    name = self.fresh(word or base_of(self._author(own)))
                else:
                    name = self.names["own", place]
                self.names["carry", place] = name
                self.starts.append(Start([name], initial))
            final = turns.at(self.count - 1, place)
            if final is not None:
                new[final] = self._named(self.names["carry", place], own)
            for name, end in self.roller.ends.items():
                if end.carry == place and name not in self.roller.end_names:
                    self.roller.end_names[name] = self._named(self.names["carry", place], own)
        for place in last - turns.carries.keys():
            final = turns.at(self.count - 1, place)
            assert final is not None  # the last turn has it
            new[final] = self._named(self.names["own", place], turns.name(place))
        self.rest = self.known.substituted(self.rest, new)

    def _begun(self, name: str, place: Place) -> str:
        """The variable of a carry that `name` holds before the loop, under a better name where there is one."""
        own = self.turns.name(place)
        word = self._word_of_cotangent(own) or base_of(self._author(own))
        if len(base_of(name)) <= len(word) or name in self.roller.authors:
            return name
        if self._is_over(word, name):
            better = word
        elif word not in self.roller.taken:
            better = self.fresh(word)
        elif place not in self.late:
            better = self.names["own", place]
        else:
            return name
        self.before = self.known.renamed(self.before, name, better)
        self.renamed[name] = Name(better)
        return better

    def _is_over(self, word: str, name: str) -> bool:
        """Whether a variable `word` is not read any more once `name` is bound."""
        bound = [targets_of(s) for s in self.before]
        if sum(word in targets for targets in bound) != 1 or any(
            type(s) is Def and word in self.known.read_by(s) for s in self.before
        ):
            return False
        at = next(i for i, targets in enumerate(bound) if name in targets)
        later = {n for s in (*self.before[at + 1 :], *self.rest) for n in self.known.read_by(s)}
        later |= self.turns.invariant.union(*[self.known.bound_by(s) for s in self.rest])
        return word not in later and word not in bound[at]

    def _word_of_cotangent(self, own: str) -> str:
        """`d_x` for what a loop hands on that goes back through one which hands on `x`."""
        back = [e.root.id for e in self.turns.elements if e.root.id in self.roller.carried]
        if not own.startswith("d_") or len(self.turns.carries) > 1 or not back:
            return ""
        return f"d_{self.roller.carried[back[0]]}"

    def _authored(self, place: Place) -> str:
        """What the author calls a value in one of the turns, "" where he has no name for it."""
        names = [self.turns.at(k, place) for k in range(self.count)]
        return next((self.roller.authors[n] for n in names if n in self.roller.authors), "")

    def _author(self, name: str) -> str:
        return self.roller.authors.get(name, name)

    def _named(self, name: str, value: str) -> Name:
        """The variable `name` for what its author calls as he does the variable `value`."""
        return Name(name, Symbol(author=self.roller.authors.get(value)))

    def _find_late(self, gathered: Sequence[Gathered]) -> None:
        """Finds after how many statements each list gets its values, and the carries whose old value is read after the new
        one is there.
        """
        turns = self.turns
        size = len(turns.template)
        self.late: set[Place] = set()
        self.wanted: list[tuple[int, Gathered]] = []
        for j, (_, value) in enumerate(turns.template):
            self.late.update(h.key for h in holes(value) if type(h) is Carry and h.key[0] < j)
        for g in gathered:
            inside = [h for v in g.values for h in holes(v)]
            ready = max([h.key[0] + 1 for h in inside if type(h) is Own], default=0)
            carried = [h.key[0] for h in inside if type(h) is Carry]
            place = size if not carried else max(ready, min(carried))
            if any(ready > b for b in carried):
                self.late.update(h.key for h in inside if type(h) is Carry)
                place = size
            self.wanted.append((place, g))

    # ------------------------------------------------------------ the body

    def _body(self, gathered: Sequence[Gathered]) -> list[Statement]:
        turns = self.turns
        size = len(turns.template)
        at: dict[int, list[Statement]] = {}  # after how many of the statements
        self.direct = self._direct_targets()
        for place, g in self.wanted:
            value = g.values[0]
            if type(value) is not Own or value.key not in self.direct:
                at.setdefault(place, []).extend(self._filling(g))
        body: list[Statement] = []
        for j, (statement, value) in enumerate(turns.template):
            body += at.get(j, [])
            body.append(self._statement(statement, j, self._expr(value)))
        body += at.get(size, [])
        for place in turns.carries:
            if place in self.late:
                name = self.names["carry", place]
                body.append(Assign([name], Name(self.names["own", place])))
        return body

    def _statement(self, statement: Assign | Unpack, j: int, value: Expr) -> Statement:
        names = (self._target((j, place)) for place in itertools.count())

        targets = [
            Tuple([Name(next(names)) for _ in target.elements]) if type(target) is Tuple else next(names)
            for target in statement.targets
        ]
        made = copied(statement)
        made.targets, made.value = targets, value
        if isinstance(made, Assign):
            made.comment = ""  # which is one turn's
        return made

    def _target(self, place: Place) -> str:
        if place in self.direct:
            return self.direct[place]
        if place in self.turns.carries and place not in self.late:
            return self.names["carry", place]
        return self.names.get(("own", place), "_")  # what no turn needs has no name

    def _direct_targets(self) -> dict[Place, str]:
        """`d_layers[name]` for values that go into a dict and nowhere else."""
        used = [h.key for _, value in self.turns.template for h in holes(value) if type(h) is Own]
        used += [h.key for _, g in self.wanted for v in g.values for h in holes(v)]
        return {
            value.key: f"{g.name}[{self.head.key_names[g.keys].flat()}]"
            for _, g in self.wanted
            if g.keys is not None
            and type(value := g.values[0]) is Own
            and used.count(value.key) == 1
            and value.key not in self.turns.carries
        }

    def _filling(self, g: Gathered) -> Iterator[Statement]:
        values = [self._expr(v) for v in g.values]
        if g.keys is not None:
            key = self.head.key_names[g.keys]
            yield Assign([f"{g.name}[{key.flat()}]"], values[0])
        elif type(values[0]) is Star:
            yield Assign([], Call(f"{g.name}.extend", [List(values[1:])]))
        elif len(values) > 1:
            yield Assign([g.name], List(values))
        else:
            value = values[0]
            if type(value) is Tuple and len(value.elements) > MOST_TARGETS and self.head.whole:
                yield Assign([self.head.whole], value)
                value = Name(self.head.whole)
            yield Assign([], Call(f"{g.name}.append", [value]))

    def _expr(self, node: Expr) -> Expr:
        made = self._filled(node)
        assert isinstance(made, Expr)  # of an expression
        return made

    def _filled(self, node: object) -> object:
        if type(node) is Own:
            return self._named(self._target(node.key), self.turns.name(node.key))
        if type(node) is Carry:
            return self._named(self.names["carry", node.key], self.turns.name(node.key))
        if type(node) is Part:
            return self.head.parts[node.key]
        number = self.head.number(node)
        if number is not None:
            return number
        made = rebuilt(node, self._filled)
        if type(made) is Call and isinstance(made.func, Name):
            made.func = made.func.id
        return made


def _empty(g: Gathered) -> Expr:
    if g.keys is not None:
        return Dict([])
    return List([g.first] if g.first is not None else [])


def _each_once(gathered: Sequence[Gathered]) -> list[Gathered]:
    return list({g.name: g for g in gathered}.values())
