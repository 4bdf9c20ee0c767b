"""Repetition among statements: what the author's loop did in each turn stands there once, as a loop again.

    h = jnp.tanh(x @ params["layers"][0]["w"])          for layer in params["layers"]:
    x = x + h @ params["layers"][0]["v"]                    h = jnp.tanh(x @ layer["w"])
    h_2 = jnp.tanh(x @ params["layers"][1]["w"])   ->       x = x + h @ layer["v"]
    x = x + h_2 @ params["layers"][1]["v"]

So it is with the layers of a gradient, whose forward loop saves what the backward one takes. Found in the statements as
they will be printed, by their structure alone: each turn hands a value to the next, or fills a list of the author's, and
otherwise takes elements of lists. Tracing unrolls the loop again, so that the program stays the same; where the text is not proven,
the statements are written one by one (`driver.attempts`).
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeGuard

from untrace.lift.naming.author_loops import AuthorLoop, author_loops
from untrace.module.access_paths import Bare, Step
from untrace.module.def_use import substituted, targets_of
from untrace.module.loops.align_turns import Turns
from untrace.module.loops.elements import note_but_last
from untrace.module.loops.emit import write_loop
from untrace.module.loops.head import End
from untrace.module.loops.memo import Known
from untrace.module.loops.nested import roll_body
from untrace.module.loops.taken_apart import TakenApart
from untrace.module.loops.temporaries import fold_back, unfold
from untrace.module.writer import ModuleWriter
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance
from untrace.python.anti_unify import Different
from untrace.python.coalesce_names import functions_of
from untrace.python.statements import Assign, Compound, Def, For, Return, Statement, Unpack
from untrace.python.tree import Call, Expr, Leaf, Name, Text
from untrace.python.walk import nodes_of, rebuilt

_MOST_STATEMENTS = 400  # in one turn
_NEXT = 4  # places further on where the same statement is looked for
_MOST_TRIED = 60  # candidates in one function, for each loop
_MOST_ALIGNED = 8
_LEAST_SAVED = 12  # tokens
_NUMBERED_COST = 8
_FEWEST_KEYS = 3  # of a dict, to go through by their numbers what the author has one after the other
_NAMED_CARRY = 10
_IN_ORDER = 10


def roll_statements(module: ModuleWriter, definitions: Sequence[Statement], provenance: Provenance) -> bool:
    """Makes loops of what repeats in the definitions of a module; whether there was any."""
    found = False
    for definition in definitions:
        if type(definition) is not Def:
            continue
        rolled = [_Roller(module, n, provenance).roll() for n in list(functions_of(definition))]
        if any(rolled[1:]):  # what a function inside read may be bound around it
            definition.body = _without_unread_parts(definition)
        found = found or any(rolled)
    return found


def _without_unread_parts(definition: Def) -> list[Statement]:
    """The statements of a function without variables for parts of arguments that nothing reads."""
    nodes = list(nodes_of(definition))
    read = {n.id for n in nodes if type(n) is Name}
    texts = [n.text for n in nodes if type(n) is Text]
    texts += [t for n in nodes if isinstance(n, (Assign, Unpack)) for t in n.targets if type(t) is str and "[" in t]
    read.update(word for text in texts for word in re.findall(r"\w+", text))
    found: list[Statement] = []
    for statement in definition.body:
        parts = statement.value if type(statement) is Assign else None
        values: Sequence[Expr | None] = parts.elements if type(parts) is Bare else [parts]
        if not all(type(v) is Leaf for v in values) or type(statement) is not Assign:
            found.append(statement)
            continue
        kept = [(t, v) for t, v in zip(statement.targets, values, strict=True) if t in read and v is not None]
        if len(kept) == len(values):
            found.append(statement)
        elif kept:
            value = kept[0][1] if len(kept) == 1 else Bare([v for _, v in kept])
            found.append(Assign([t for t, _ in kept], value, statement.origin))
    return found


class _Notes(NamedTuple):
    """What is known after a loop was tried, and what was known before."""

    taken: set[str]
    targets: set[str]
    saved: dict[str, list[tuple[str, bool]]]
    carried: dict[str, str]
    ends: dict[str, End]
    end_names: dict[str, Name]


class _Roller:
    def __init__(self, module: ModuleWriter, definition: Def, provenance: Provenance):
        self.module = module
        self.provenance = provenance
        self.definition = definition
        self.leaves: dict[str, Leaf] = {}
        self.keys: set[tuple[str, tuple[Step, ...]]] = set()  # parts of arguments that are known to be there
        self.taken: set[str] = set()
        self.numbers: dict[str, int] = {}  # by the first part of a name: the last number given, while `taken` is this:
        self.numbered: set[str] | None = None
        self.targets: set[str] = set()  # of loops that were written: nothing reads them afterwards
        self.authors: dict[str, str] = {}
        self.saved: dict[str, list[tuple[str, bool]]] = {}  # by list: the variables put there, whether they are carries
        self.carried: dict[str, str] = {}  # by the same list: what the loop that filled it hands from turn to turn
        self.words: dict[
            tuple[str, tuple[Step, ...]], str | list[str]
        ] = {}  # what the author calls the elements of a list
        self.ends: dict[str, End] = {}
        self.end_names: dict[str, Name] = {}
        self.read: Counter[str] = Counter()  # how often each variable is read before anything is a loop
        self.temporary: set[str] = set()  # what was taken out of other statements
        self.strict = self.trails = self.has_trail = False
        self.is_authors = False  # whether the author's source has such a loop, which counts
        self.has_lists = False  # whether a loop would fill a list that later statements take elements of
        self.parameters = {p.name for p in definition.params}
        self.known = Known()
        self.apart = TakenApart((), self.known, self.fresh)
        self.unfolded: tuple[list[Statement], set[str]] | None = None  # the body, as every form begins
        self.whole: int | None = None  # tokens of the statements that a loop is looked for in

    def roll(self) -> bool:
        """Makes loops of what repeats; whether there was any."""
        body = list(self.definition.body)
        if sum(isinstance(s, (Assign, Return, Unpack)) for s in body) < 2:
            return False
        self._read_names(body)
        self.apart = TakenApart(body, self.known, self.fresh)
        spread = self.apart.statements
        if not self.leaves:
            last = [Assign(["returned"], s.value) for s in spread[-1:] if isinstance(s, Return)]
            keys = self._keys([*spread, *last])
            if len(set(keys)) == len(keys):
                return False
        for leaf in self.apart.leaves.values():
            self._note_keys(leaf)
        self.leaves |= self.apart.leaves
        notes = set(self.taken)
        found: list[tuple[int, list[Statement]]] = []
        for self.strict, self.trails in ((False, False), (False, True), (True, False)):
            if self.trails and not self.has_trail or self.strict and (found or not self.has_lists):
                continue
            self.taken, self.targets, self.saved, self.carried = set(notes), set(), {}, {}
            self.ends, self.end_names = {}, {}
            statements = self._rolled(spread)
            if statements is None:
                break
            statements = self.apart.restored(statements)
            # An element of a list by its number is harder to read than a variable.
            count = self.known.tokens(statements) + _NUMBERED_COST * self._numbered(statements)
            if count + (0 if self.is_authors else _LEAST_SAVED) <= self.known.tokens(body):
                found.append((count, statements))
        if found:
            self.definition.body = min(found, key=lambda pair: pair[0])[1]
            note_but_last(self.definition)
        return bool(found)

    def _rolled(self, body: Sequence[Statement]) -> list[Statement] | None:
        statements = body
        while True:
            notes = set(self.taken)
            unfolded, temporary = self._unfolded(statements, statements is body)
            self.temporary = temporary
            made = self._once(unfolded, temporary)
            if made is None:
                self.taken = notes
                break
            statements = fold_back(made, temporary, self.known)
        if statements is body:
            return None
        statements = [self._nested(s, statements[at + 1 :], body) for at, s in enumerate(statements)]
        self.read = Counter(n for s in body for n in self.known.read_by(s))
        statements = self._without_unread(statements)
        if not self.ends:
            return statements
        return [rebuilt(s, self._with_ends) if not isinstance(s, Compound) else s for s in statements]

    def _nested(self, statement: Statement, rest: Sequence[Statement], body: Sequence[Statement]) -> Statement:
        """A loop that was made, with those in its turns."""
        if type(statement) is not For or statement in body or getattr(statement, "is_backward", False):
            return statement

        def roll(turn: Def) -> bool:
            inner = _Roller(self.module, turn, self.provenance)
            inner.taken = self.taken
            return inner.roll()

        later = {n for s in rest for n in self.known.read_by(s)}
        return roll_body(statement, later, roll, self.fresh, self.authors)

    def _unfolded(self, statements: Sequence[Statement], is_first: bool) -> tuple[list[Statement], set[str]]:
        """The same statements as `unfold` them, which all forms begin with, are unfolded once. is_first: these."""
        if not is_first:
            return unfold(statements, self.fresh, self.known)
        if self.unfolded is None:
            self.unfolded = unfold(statements, self.fresh, self.known)
        self.taken.update(self.unfolded[1])
        return self.unfolded

    def _numbered(self, statements: Sequence[Statement]) -> int:
        """How often what a loop left behind is read by its number."""
        if not self.saved:
            return 0
        text = "\n".join([self.known.text(s) for s in statements])
        return len(re.findall(rf"\b(?:{'|'.join(self.saved)})\[\d", text))

    def _with_ends(self, node: object) -> object:
        """`x` for `xs[4]`, where that is what the loop gave at last."""
        if isinstance(node, Leaf) and node.root.id in self.ends:
            last = self.ends[node.root.id].last
            return self.end_names[node.root.id] if node.steps == (("item", str(last), last + 1),) else node
        return rebuilt(node, self._with_ends)

    def _notes(self) -> _Notes:
        return _Notes(
            set(self.taken),
            set(self.targets),
            dict(self.saved),
            dict(self.carried),
            dict(self.ends),
            dict(self.end_names),
        )

    def _note(self, notes: _Notes) -> None:
        self.taken, self.targets, self.saved, self.carried, self.ends, self.end_names = notes

    def _read_names(self, body: Sequence[Statement]) -> None:
        for node in nodes_of(self.definition):
            if type(node) is Name:
                self.taken.add(node.id)
                leaf, author = node.symbol.leaf, node.symbol.author
                if leaf is not None and leaf.steps:
                    self.leaves[node.id] = leaf
                    self._note_keys(leaf)
                if author is not None:
                    self.authors[node.id] = author
            elif isinstance(node, Leaf):
                self._note_keys(node)
            elif isinstance(node, Expr):
                continue
            elif isinstance(node, (Assign, Unpack)):
                self.taken.update(targets_of(node))
            elif type(node) is Def:
                self.taken.update([node.name, *[p.name for p in node.params]])
            elif isinstance(node, For):
                self.taken.update(re.findall(r"\w+", node.target))

    def _note_keys(self, leaf: Leaf) -> None:
        self.keys.update((leaf.root.id, leaf.steps[: n + 1]) for n in range(len(leaf.steps)))

    def fresh(self, base: str) -> str:
        """A new name of the function."""
        if self.numbered is not self.taken:
            self.numbers, self.numbered = {}, self.taken
        number = self.numbers.get(base, 1)
        name = base if number == 1 else f"{base}_{number}"
        while name in self.taken or self.module.scope.taken_outside(name):
            number += 1
            name = f"{base}_{number}"
        self.numbers[base] = number
        self.taken.add(name)
        return name

    # ------------------------------------------------------------ one loop

    def _keys(self, statements: Sequence[Statement]) -> list[Hashable]:
        """Equal for statements that may be the same one in two turns."""
        local = {name for s in statements for name in targets_of(s)}
        bound = Counter(name for s in statements for name in targets_of(s) if name != "_")

        def repeats(statement: Statement) -> TypeGuard[Assign | Unpack]:
            if (
                not isinstance(statement, (Assign, Unpack))
                or not statement.targets
                or type(statement.value) in (Leaf, Bare)
            ):
                return False
            return all(bound[n] == 1 for n in targets_of(statement) if n != "_")

        return [
            (type(s), len(s.targets), *self.known.key(s, local)) if repeats(s) else i for i, s in enumerate(statements)
        ]

    def _once(self, statements: list[Statement], temporary: set[str]) -> list[Statement] | None:
        """The statements with one loop in them, the one that takes in most; None where there is none."""
        keys = self._keys(statements)
        self.whole = None
        tried: set[tuple[int, int, int, tuple[int, ...]]] = set()
        for _, size, start, length in sorted(_candidates(keys))[:_MOST_TRIED]:
            best: tuple[int, list[Statement], _Notes] | None = None
            for first, count, missing in _alignments(keys, start, size, length):
                # The same function may be called once more before the loop or after it, of what is no part of the list.
                parts = ((first, count), (first, count - 1), (first + size, count - 1))
                for begin, turns in itertools.chain(parts, self._stretches(statements, first, size, count)):
                    lacking = missing if begin + size * turns == first + size * count else ()
                    if turns < 2 or (begin, size, turns, lacking) in tried:
                        continue
                    tried.add((begin, size, turns, lacking))
                    made = self._loop(statements, begin, size, turns, lacking, temporary)
                    if made is not None and (best is None or made[0] > best[0]):
                        best = made
                    if made is not None or missing:
                        break
            if best is not None:
                self._note(best[2])
                return best[1]
        return None

    def _stretches(
        self, statements: Sequence[Statement], first: int, size: int, count: int
    ) -> Iterator[tuple[int, int]]:
        """(first statement, turns): those in a row that the author has in the same loops, where he has several one after the
        other."""

        def loops(turn: int) -> frozenset[ast.For]:
            start = first + turn * size
            every = [f for s in statements[start : start + size] for frames in self._frames(s) for f in frames]
            return frozenset(n for f in every if f.line is not None for n in syntax.loops_around(f.code, f.line))

        found = [(loop, len(list(turns))) for loop, turns in itertools.groupby(range(count), loops)]
        for loop, turns in found if len(found) > 1 else ():
            if loop:
                yield first, turns
            first += size * turns

    def _loop(
        self,
        statements: list[Statement],
        start: int,
        size: int,
        count: int,
        missing: Sequence[int],
        temporary: set[str],
    ) -> tuple[int, list[Statement], _Notes] | None:
        """(tokens saved, the statements with a loop for `count` turns of `size` statements from `start` on, the last without
        those at the places `missing` of a turn).
        """
        stop = start + size * count - len(missing)
        part = statements[start:stop]
        try:
            turns = Turns([part[k * size : (k + 1) * size] for k in range(count)], self.leaves.get, self.keys, missing)
        except Different:
            return None
        if turns.carries and not turns.is_recurrence() or missing and self._is_elsewhere(turns):
            return None
        others = [*statements[:start], *statements[stop:]]
        if not all(self.apart.goes_through(e, others, self.known) for e in turns.elements):
            return None
        loops = self.author_loops(turns)
        if not loops and (turns.needs_numbers or 2 * len(missing) > size):
            return None
        if not turns.carries and (not loops or self._is_inside_a_turn(turns, loops[0])):
            return None
        if not loops and count < _FEWEST_KEYS and any(e.iterable() is None for e in turns.elements):
            return None
        before = self._notes()
        written = write_loop(self, turns, statements[:start], statements[stop:], temporary, loops)
        notes = self._notes()
        self._note(before)
        if written is None:
            return None
        self.is_authors |= bool(loops)
        made = [s for part in written for s in part]
        # What the loop saves may go to another one, which then takes it by no number.
        numbered = "" if self.strict else "|".join(notes.saved)
        self.has_lists |= bool(numbered)
        if self.whole is None:
            self.whole = self.known.tokens(fold_back(statements, temporary, self.known))
        saved = self.whole - self.known.tokens(made, numbered)
        if saved <= 0:
            return None
        # The author's turn ends with what he gives a name to.
        carried = [[turns.at(k, place) for k in range(count)] for place in turns.carries]
        named = all(any(n in self.authors for n in row) for row in carried)
        in_order = self._is_in_order(turns.turns[0])
        return saved + (_NAMED_CARRY if named else 0) + (_IN_ORDER if in_order else 0), made, notes

    def author_loops(self, turns: Turns) -> list[AuthorLoop]:
        """The author's of which these may be the turns. What was taken out of another statement has that one's place in the
        source."""
        own = [[s for s in turn if self.temporary.isdisjoint(targets_of(s))] for turn in turns.turns]
        return (
            list(author_loops([[f for s in turn for f in self._frames(s)] for turn in own]))
            if self._is_one(turns)
            else []
        )

    def _is_inside_a_turn(self, turns: Turns, loop: AuthorLoop) -> bool:
        """Whether all that is done in the turns is in a comprehension, or a map over leaves, in the author's loop: they are no
        turns of that."""
        comprehensions: set[ast.AST] = set(ast.walk(loop.node))
        maps: set[Frame] | None = None
        for frames in [frames for turn in turns.turns for s in turn for frames in self._frames(s)]:
            known = [f for f in frames if f.line is not None]
            comprehensions &= {n for f in known for n in syntax.comprehensions_around(f.code, f.line)}
            inside = {f for f in frames[len(loop.around) - 1 :] if f.maps_leaves}
            maps = inside if maps is None else maps & inside
        return bool(comprehensions or maps)

    def _is_one(self, turns: Turns) -> bool:
        """Whether most of what the turns do is at the same places in the source: two lines inside a loop are no turns of it."""
        same = []
        for j in turns.by_place[0]:
            row = [turn[j] for turn in turns.by_place if j in turn]
            places = [{tuple([(f.code, f.line) for f in frames]) for frames in self._frames(s)} for s in row]
            if all(places):
                same.append(not frozenset.intersection(*map(frozenset, places)).isdisjoint(places[0]))
        return 2 * sum(same) >= len(same)

    def _is_elsewhere(self, turns: Turns) -> bool:
        """Whether the author has what the first and the last turn have in common at two places: `x @ w` of the last layer is not
        in his loop, and what he returns, which has no origin, is in none."""
        first, *_, last = turns.by_place
        pairs = [[{(f[-1].code, f[-1].line) for f in self._frames(s) if f} for s in (first[j], last[j])] for j in last]
        return any(a and a.isdisjoint(b) for a, b in pairs)

    def _is_in_order(self, turn: Sequence[Statement]) -> bool:
        """Whether a turn begins where the author's does, and not in the middle of one."""
        every = [frames for s in turn for frames in self._frames(s) if frames]
        for frame in reversed(every[0] if every else ()):  # the innermost function that all of it is in
            lines = [next((f.line for f in reversed(frames) if f.code is frame.code), None) for frames in every]
            if None not in lines:
                return lines == sorted(line for line in lines if line is not None)
        return True

    def _frames(self, statement: Statement) -> Iterator[Sequence[Frame]]:
        """Where a statement comes from: a call of a function of the module from where its author made one."""
        if statement.origin is not None:
            yield self.provenance.site(statement.origin).frames
        else:
            yield from [n.frames for n in nodes_of(statement) if type(n) is Call and hasattr(n, "frames")]

    # ------------------------------------------------------------ what nothing needs any more

    def _without_unread(self, statements: Sequence[Statement]) -> list[Statement]:
        """Statements without the variables for parts of arguments that only the turns needed."""
        read_by = self.known.read_by
        read = Counter(n for s in statements for n in read_by(s))
        found: list[Statement] = []
        looped = {n for s in statements if isinstance(s, (Compound, Def)) for n in read_by(s)}
        inside: dict[str, Expr] = {}
        for statement in statements:
            targets = targets_of(statement)
            if inside and not inside.keys().isdisjoint(read_by(statement)):
                statement = substituted(statement, inside)
            value = getattr(statement, "value", None)
            if len(targets) == 1 and targets[0] in self.leaves and type(value) is Leaf:
                if read[targets[0]] == 1 < self.read[targets[0]] and targets[0] not in looped:
                    inside[targets[0]] = value
                    continue
            unread = [n for n in targets if not read[n] and n in self.leaves]
            if not unread or not isinstance(statement, (Assign, Unpack)):
                found.append(statement)
            elif type(statement) is Assign and type(statement.value) is Bare:
                pairs = zip(statement.targets, statement.value.elements, strict=True)
                kept = [(t, e) for t, e in pairs if t not in unread]
                if len(kept) == 1:
                    found.append(Assign([kept[0][0]], kept[0][1], statement.origin))
                elif kept:
                    found.append(Assign([t for t, _ in kept], Bare([e for _, e in kept]), statement.origin))
            elif len(unread) < len(targets):
                made = rebuilt(statement, lambda n: n)
                if type(statement) is Unpack:
                    made = Unpack([("_" if t in unread else t) for t in statement.targets], statement.value, None)
                found.append(made)
        return found


# ------------------------------------------------------------------ where something repeats


def _candidates(keys: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """(-statements taken in, statements of a turn, first, statements that repeat one of the turn before and that)."""
    places: dict[Hashable, list[int]] = {}
    for at, key in enumerate(keys):
        places.setdefault(key, []).append(at)
    seen: set[tuple[int, int]] = set()
    for first, key in enumerate(keys):
        row = places[key]
        here = row.index(first) if len(row) < 50 else -1
        following = row[here + 1 : here + 1 + _NEXT] if here >= 0 else [n for n in row if n > first][:_NEXT]
        for second in following:
            size = second - first
            if size > _MOST_STATEMENTS or (first - 1, size) in seen:
                seen.add((first, size))
                continue
            stop = second
            while stop < len(keys) and keys[stop] == keys[stop - size]:
                stop += 1
            seen.update((at, size) for at in range(first, stop - size))
            if stop - second >= size:
                yield -((stop - first) // size * size), size, first, stop - first


def _alignments(
    keys: Sequence[object], start: int, size: int, length: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(first statement, turns, places of a turn that the last one lacks): where the turns may begin."""
    for first in list(range(start, start + length % size + 1))[:_MOST_ALIGNED]:
        starts = [first]
        if first >= size and all(type(k) is tuple for k in keys[first - size : first]):
            starts.append(first - size)  # the first turn may begin with an expression where others have a variable
        elif first == start:
            starts.append(first - _begun_otherwise(keys, first, size))
        for begin in dict.fromkeys(starts):
            count, more = divmod(start + length - begin, size)
            yield begin, count, ()
            if count < 2:
                continue
            rest = tuple(range(more, size))
            for lacking in dict.fromkeys((rest, _lacking(keys, begin + size * count, size))):
                if 0 < len(lacking) < size:
                    yield begin, count + 1, lacking


def _begun_otherwise(keys: Sequence[object], start: int, size: int) -> int:
    """How many statements before `start` may be of the same turns, if one of them says something else in the first turn: what a
    variable holds later may be a number there (`0.0 + x`)."""
    differing = back = 0
    while back < min(size, start) and type(keys[start - back - 1]) is tuple:
        differing += keys[start - back - 1] != keys[start - back - 1 + size]
        if differing > 1:
            break
        back += 1
    return back


def _lacking(keys: Sequence[object], start: int, size: int) -> tuple[int, ...]:
    """The places of the turn of so many statements before `start` that a turn from there on lacks."""
    found = []
    for place in range(size):
        if start < len(keys) and keys[start] == keys[start - size + len(found)]:
            start += 1
        else:
            found.append(place)
    return tuple(found)
