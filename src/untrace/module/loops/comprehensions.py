"""Lists, dicts and sums of the same for each element of a list or dict, as comprehensions:

    jnp.stack([head(params[0], x), head(params[1], x)])        ->    jnp.stack([head(p, x) for p in params])
    0.0 + (params[0]["w"] ** 2).sum() + ...                    ->    sum((p["w"] ** 2).sum() for p in params)
    {"a": norm(xs["a"]), "b": norm(xs["b"])}                   ->    {k: norm(x) for k, x in xs.items()}

They are the author's where he has one there, else they have to save something. This is the last of the passes over
statements: no other one has to know of the variables that a comprehension binds.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType

from untrace._identifiers import identifier
from untrace.lift.naming.author_loops import AuthorLoop, variables_of
from untrace.module.def_use import reads
from untrace.module.loops.align_turns import Part, Row, Turns
from untrace.module.loops.elements import Element, Source, note_but_last, places_in_tuples, terms_of_sum
from untrace.module.loops.head import Targets, holder_of, items_of, source_word, targets_in, whole_dict
from untrace.module.loops.memo import count_tokens
from untrace.module.loops.turn_numbers import TurnNumbers
from untrace.module.writer import ModuleWriter
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance
from untrace.python.anti_unify import Different
from untrace.python.coalesce_names import functions_of
from untrace.python.statements import Assign, Compound, Def, Statement
from untrace.python.tree import (
    Binary,
    Call,
    Comprehension,
    Dict,
    Expr,
    Lambda,
    Leaf,
    List,
    Name,
    Subscript,
    Text,
    along,
)
from untrace.python.walk import copied, nodes_of, rebuilt, slots_of

_LEAST_SAVED = 12  # tokens, where the author has no comprehension
_FEWEST = 3  # elements, there
_LONGEST = 150  # letters of what an element is, where statements go into it
_Repeats = ast.For | syntax.Repeated


def comprehend(module: ModuleWriter, definitions: Sequence[Statement], provenance: Provenance) -> bool:
    """Makes comprehensions of lists and sums in the definitions of a module; whether there was any."""
    functions = [f for d in definitions if type(d) is Def for f in functions_of(d)]
    return any([_Function(module, f, provenance).comprehend() for f in functions])


class _Function:
    def __init__(self, module: ModuleWriter, definition: Def, provenance: Provenance):
        self.module = module
        self.definition = definition
        self.provenance = provenance
        names = [n for n in nodes_of(definition) if type(n) is Name]
        self.read = Counter(n.id for n in names)
        self.leaves = {n.id: n.symbol.leaf for n in names if n.symbol.leaf is not None and n.symbol.leaf.steps}
        every = [*self.leaves.values(), *[n for n in nodes_of(definition) if isinstance(n, Leaf)]]
        self.keys = {(leaf.root.id, leaf.steps[: n + 1]) for leaf in every for n in range(len(leaf.steps))}
        self.before: list[Statement] = []  # the statements before the one that is looked at
        self.whole: object = None  # all that it gives a name to, or returns
        self.found = False

    def comprehend(self) -> bool:
        self.definition.body = self._body(self.definition.body)
        return self.found

    def _body(self, body: Sequence[Statement]) -> list[Statement]:
        made: list[Statement] = []
        left = list(body)
        while left:
            statement = left.pop()
            if isinstance(statement, Compound):
                statement = self._inside(statement)
            elif type(statement) is not Def:  # which has its own turn
                self.before = left
                self.whole = getattr(statement, "value", None)
                frames = self._frames(statement)
                statement = rebuilt(statement, lambda n, frames=frames: self._changed(n, frames))
            made.append(statement)
        return made[::-1]

    def _inside(self, statement: Compound) -> Compound:
        """A loop or a choice with comprehensions in its blocks."""
        made = copied(statement)
        for slot in slots_of(statement):
            block = getattr(statement, slot, None)
            if isinstance(block, (list, tuple)) and block and all(isinstance(s, Statement) for s in block):
                setattr(made, slot, self._body(block))
        return made

    def _frames(self, statement: Statement) -> Sequence[Frame]:
        return self.provenance.site(statement.origin).frames if statement.origin is not None else ()

    def _changed(self, node: object, frames: Sequence[Frame]) -> object:
        if type(node) is Lambda:  # what is computed before it stays there
            outside, self.before = self.before, []
            made = rebuilt(node, lambda n: self._changed(n, frames))
            self.before = outside
            return made
        earlier = list(self.before)
        made = self._sum(node, frames) if type(node) is Binary and node.op == "+" else None
        if made is None and type(node) is List:
            made = self._comprehension(node.elements, self.before, frames, "[", "]")
        if made is None and type(node) is Dict:
            made = self._dict(node, frames)
        if made is None:
            return rebuilt(node, lambda n: self._changed(n, frames))
        self.found = True
        note_but_last(made)
        first = earlier[len(self.before)] if len(self.before) < len(earlier) else None
        if node is self.whole or not isinstance(first, Assign) or type(first.targets[0]) is not str:
            return made
        # Where it was computed: a derivative adds up in that order.
        self.before.append(Assign(first.targets, made, first.origin))
        return Name(first.targets[0])

    def _sum(self, node: Binary, frames: Sequence[Frame]) -> Expr | None:
        """`sum(...)` for a chain that begins with zero, which Python's begins with; the statement before may hold its beginning."""
        before = list(self.before)

        def beginning(name: Name) -> Expr | None:
            nonlocal frames
            begun = before[-1] if before else None
            if self.read[name.id] > 1 or not isinstance(begun, Assign) or begun.targets != [name.id]:
                return None
            frames = frames or self._frames(begun)
            before.pop()
            return begun.value

        terms = terms_of_sum(node, beginning)
        if terms is None:
            return None
        for count in range(len(terms), 1, -1):
            made: Expr | None = self._comprehension(terms[:count], before, frames, "sum(", ")")
            if made is not None:
                self.before[:] = before
                for term in terms[count:]:
                    made = Binary(made, "+", term)
                return made
        return None

    def _dict(self, node: Dict, frames: Sequence[Frame]) -> Comprehension | None:
        """A dict of the same for all that the author's comprehension or loop takes of another one."""
        keys = tuple([key.flat() for key, _ in node.pairs if key is not None])
        turns = self._turns([value for _, value in node.pairs]) if len(keys) == len(node.pairs) > 1 else None
        if turns is None or any(e.texts != keys for e in turns.elements):
            return None
        for clause in self._clauses([value for _, value in node.pairs], frames):
            items = items_of(*clause)
            whole = whole_dict(turns, items, keys)
            if whole is None or not items.key or keys != tuple(sorted(keys)):
                continue
            busy = set(reads(turns.template[0][1]))
            key = self._fresh(items.key, "name", busy)
            value = self._fresh(items.value, whole.word(), busy | {key})
            parts: list[Expr] = []
            for element in turns.elements:
                is_value = items.value and element.source == whole.source
                root = Text(value) if is_value else Subscript(holder_of(element), Text(key))
                parts.append(along(root, element.below))
            target = f"{key}, {value}" if items.value else key
            return Comprehension("{", _filled(turns.template[0][1], parts), target, items.of(whole), "}", key)
        return None

    def _turns(self, elements: Sequence[Expr], of_numbers: bool = False) -> Turns | None:
        """Elements of a list laid over each other; None where they have no expression in common. of_numbers: where they differ
        in numbers, else in what they take of lists and dicts."""
        try:
            turns = Turns([[Assign([f"_{k}"], e)] for k, e in enumerate(elements)], self.leaves.get, self.keys)
        except Different:
            return None
        is_part = type(turns.template[0][1]) in (Part, Row)  # the list itself, or the same part of all
        differing, others = (turns.rows, turns.elements) if of_numbers else (turns.elements, turns.rows)
        return None if turns.carries or others or not differing or is_part else turns

    def _comprehension(
        self, elements: Sequence[Expr], before: list[Statement], frames: Sequence[Frame], opening: str, closing: str
    ) -> Comprehension | None:
        """What elements have in common; None where they differ. before: the statements before, less those that are in it."""
        if len(elements) < 2:
            return None
        whole, gone = self._with_statements(elements, before)
        if gone:
            made = self._comprehension(whole, [], self._frames(before[-1]), opening, closing)
            if made is not None and len(made.body.flat()) <= _LONGEST:
                del before[-gone:]
                return made
        turns = self._turns(elements)
        if turns is None:
            return self._counted(elements, frames, opening, closing)
        if any(e.iterable() is None for e in turns.elements):
            return None
        template = turns.template[0][1]
        authors = list(self._authors(elements, frames))
        busy = {*reads(template)}
        sources: dict[Source, list[Element]] = {}
        for element in turns.elements:
            sources.setdefault(element.source, []).append(element)
        words = [word for word, _ in authors]
        parts: dict[Element, Expr] = {}
        targets: list[str] = []
        iterables: list[Expr] = []
        for members in sorted(sources.values(), key=lambda m: (*words, source_word(m[0])).index(source_word(m[0]))):
            iterable = members[0].iterable()
            assert iterable is not None  # as was asked above
            iterables.append(iterable)
            own = next((targets for word, targets in authors if word == source_word(members[0])), "")
            targets.append(self._targets(members, own, busy, parts))
        body = _filled(template, [parts[element] for element in turns.elements])
        several = len(iterables) > 1
        every = Call("zip", iterables) if several else iterables[0]
        target = ", ".join(targets) if several else targets[0].strip("()")
        made = Comprehension(opening, body, target, every, closing)
        saved = sum(count_tokens(e.flat()) + 1 for e in elements) - count_tokens(made.flat())
        is_authors = any(w == source_word(e) for w, _ in authors for e in turns.elements)
        if not is_authors and (len(elements) < _FEWEST or saved < _LEAST_SAVED):
            return None
        return made

    def _counted(
        self, elements: Sequence[Expr], frames: Sequence[Frame], opening: str, closing: str
    ) -> Comprehension | None:
        """What elements have in common that differ in numbers only, where the author goes through these: `for q in range(9)`."""
        turns = self._turns(elements, of_numbers=True)
        if turns is None:
            return None
        template = turns.template[0][1]
        for loop in self._author_loops(elements, frames):
            numbers = TurnNumbers(loop, [template], ())
            used = numbers.used
            columns = [c for c in loop.columns if not used.isdisjoint(variables_of(c.target))]
            if not numbers.is_complete or loop.has_others or not columns or any(c.over is None for c in columns):
                continue
            busy = {*reads(template)}
            names = {word: Text(self._fresh(word, word, busy)) for word in sorted(used)}
            targets = [_target(c.target, names) for c in columns]
            iterables = [self.module.said(*c.over) for c in columns if c.over is not None]
            several = len(columns) > 1
            body = self._numbered(template, numbers, names)
            every = Call("zip", iterables) if several else iterables[0]
            target = ", ".join(targets) if several else targets[0]
            target = target if several or target[0] != "(" else target[1:-1]  # not those of a tuple inside
            return Comprehension(opening, body, target, every, closing)
        return None

    def _numbered(self, template: Expr, numbers: TurnNumbers, names: Mapping[str, Text]) -> Expr:
        """What elements have in common, with the author's expressions for the numbers in which they differ."""

        def numbered(node: object) -> object:
            values = numbers.values(node)
            said = None if values is None else numbers.said[values]
            return rebuilt(node, numbered) if said is None else self.module.said(*said, names)

        body = numbered(template)
        assert isinstance(body, Expr)  # of an expression
        return body

    def _author_loops(self, elements: Sequence[Expr], frames: Sequence[Frame]) -> Iterator[AuthorLoop]:
        """The author's comprehensions that all elements come from, as loops."""
        calls = self._calls(elements, frames)
        line_is_known = any(calls)
        chains = [calls[0]] if line_is_known else [f for s in self.definition.body if (f := self._frames(s))][:1]
        found: dict[syntax.Repeated, tuple[Frame, ...]] = {}
        for chain in chains:
            for depth, frame in enumerate(chain, 1):
                if line_is_known or frame.code in self._codes:
                    line = frame.line if line_is_known else None
                    found.update((n, tuple(chain[:depth])) for n in syntax.comprehensions_around(frame.code, line))
        for node, around in found.items():
            clause, *others = node.generators
            everywhere = not line_is_known or all(any(node in _around(f) for f in own) for own in calls)
            if others or clause.ifs or not everywhere:
                continue
            inside = node.value if isinstance(node, ast.DictComp) else node.elt
            turn = ast.For(clause.target, clause.iter, [ast.Expr(inside)], [])
            loop = AuthorLoop(turn, around, calls, len(elements))
            if loop.fits:
                yield loop

    def _targets(
        self, members: Sequence[Element], words: str | list[str], busy: set[str], parts: dict[Element, Expr]
    ) -> str:
        """The variables for an element of a list, by the author's `words`, and in `parts` what these say of its `members`."""
        numbers = places_in_tuples(members, words)
        if numbers is not None:
            names = ["_"] * len(words)
            for number in sorted({*numbers}):
                names[number] = self._fresh(words[number], words[number], busy)
                busy.add(names[number])
            parts.update((e, along(Text(names[n]), e.below[1:])) for n, e in zip(numbers, members, strict=True))
            return f"({', '.join(names)})"
        name = self._fresh(words if isinstance(words, str) else "", members[0].word(), busy)
        busy.add(name)
        parts.update((e, along(Text(name), e.below)) for e in members)
        return name

    def _with_statements(self, elements: Sequence[Expr], before: Sequence[Statement]) -> tuple[list[Expr], int]:
        """Elements with what only they read in the place where they do, and how many of the last statements before are that."""
        values = {s.targets[0]: s.value for s in before if isinstance(s, Assign) and len(s.targets) == 1}
        gone: set[str] = set()

        def within(node: object) -> object:
            if type(node) is Name and self.read[node.id] == 1 and node.id in values:
                gone.add(node.id)
                return within(values[node.id])
            return rebuilt(node, within)

        found = [e for e in map(within, elements) if isinstance(e, Expr)]
        last = [s.targets[0] for s in before[len(before) - len(gone) :] if isinstance(s, Assign)]
        return (found, len(gone)) if set(last) == gone else ([], 0)

    def _fresh(self, author: str, word: str, busy: set[str]) -> str:
        """A name for an element: the author's, where nothing in the comprehension is called so, else one that nothing has."""
        outside = self.module.scope.taken_outside
        if author and identifier(author, "") == author and author not in busy and not outside(author):
            return author
        base = identifier(word, "part")
        number, name = 1, base
        while name in busy or name in self.read or outside(name):
            number += 1
            name = f"{base}_{number}"
        return name

    def _authors(self, elements: Sequence[Expr], frames: Sequence[Frame]) -> Iterator[Targets]:
        """What the author's comprehensions and loops go through, around what all elements come from, and his variables."""
        for target, iterable in self._clauses(elements, frames):
            yield from targets_in(target, iterable)

    def _clauses(self, elements: Sequence[Expr], frames: Sequence[Frame]) -> Iterator[tuple[ast.expr, ast.expr]]:
        """The targets and what is gone through, of the same."""
        calls = self._calls(elements, frames)
        common: dict[_Repeats, None] | None = None
        if not any(calls):  # it is not known where in the function this comes from
            common = dict.fromkeys(n for code in self._codes for n in syntax.comprehensions_around(code, None))
        for around in calls if any(calls) else ():
            own = dict.fromkeys(n for f in around for n in _around(f))
            common = own if common is None else {n: None for n in common if n in own}
        for node in common or ():
            if isinstance(node, ast.For):
                yield node.target, node.iter
            elif len(node.generators) == 1 and not node.generators[0].ifs:
                yield node.generators[0].target, node.generators[0].iter

    def _calls(self, elements: Sequence[Expr], frames: Sequence[Frame]) -> list[Sequence[Frame]]:
        """Where each of the elements comes from: a call in it, or all of them."""
        return [
            next((n.frames for n in nodes_of(e) if type(n) is Call and hasattr(n, "frames")), frames) for e in elements
        ]

    @functools.cached_property
    def _codes(self) -> Collection[CodeType]:
        """The author's functions of this one's name, as far as they are known."""
        frames = [f for s in self.definition.body for f in self._frames(s)]
        return {f.code: None for f in frames if f.name == self.definition.name}


def _filled(template: Expr, parts: Sequence[Expr]) -> Expr:
    """What the elements have in common, with an expression for each part that differs."""

    def filled(part: object) -> object:
        if type(part) is Part:
            return parts[part.key]
        made = rebuilt(part, filled)
        if type(made) is Call and isinstance(made.func, Text):
            made.func = made.func.text
        return made

    body = filled(template)
    assert isinstance(body, Expr)  # of an expression
    return body


def _target(target: ast.expr, names: Mapping[str, Text]) -> str:
    """The author's variables, those that nothing reads as `_`."""
    if isinstance(target, ast.Tuple):
        return f"({', '.join([_target(part, names) for part in target.elts])})"
    return names[target.id].text if isinstance(target, ast.Name) and target.id in names else "_"


def _around(frame: Frame) -> list[_Repeats]:
    """The loops and comprehensions of a frame's function that hold what it runs."""
    if frame.line is None:
        return []
    return [*syntax.loops_around(frame.code, frame.line), *syntax.comprehensions_around(frame.code, frame.line)]
