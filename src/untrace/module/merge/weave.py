"""Several functions of one class laid over each other where they run different parts of its code.

    def attention(params, hidden_states, key_value_states=None):
        states = hidden_states if key_value_states is None else key_value_states
        ...
        if "relative_attention_bias" in params:
            ...

`Woven` is what they have in common, with a note of which of them (the *variants*) each part belongs to: statements have
a guard, expressions that differ are a `Choice`. `conditions` finds the tests that tell variants apart, `emission` writes
the function.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from untrace.module.access_paths import Leaf
from untrace.module.merge.alignment import defaults_of
from untrace.module.merge.choices import (
    PLACE,
    UNNAMED,
    Choice,
    Let,
    Named,
    Variants,
    bare,
    below,
    bound_in,
    cost_of,
    extent,
    free,
    is_constant,
    is_same,
    is_size,
    names_in,
    parts_below,
    parts_of,
    renamed,
    shapes_in,
    sizes_in_full,
    sizes_in_short,
    with_part,
)
from untrace.module.merge.woven import Woven
from untrace.python.anti_unify import AntiUnifier, Different, Node, Position
from untrace.python.statements import Assign, Def, For, Return, Statement, Unpack
from untrace.python.tree import Call, Expr, Lambda, Name, Subscript, Text
from untrace.python.walk import copied, nodes_of

# Statements that have less in common are not the same one.
_ALIKE = 0.5
# How deep in an expression one is looked for that it is made of.
_DEEPEST = 10
# How many such values stand inside each other, and how many places are tried for one.
_DEEPEST_LET = 2
_MOST_PAIRS = 6
_VALUED = (Assign, Unpack, Return)


def woven(base: Woven, definition: Def, defaults: Callable[[str], Mapping[str, Expr]]) -> Woven:
    """`base` and one more. defaults: those of the parameters of a function of the module. Raises Different."""
    return _Weaving(base, definition, defaults).done()


class _Weaving(AntiUnifier):
    def __init__(self, base: Woven, definition: Def, defaults: Callable[[str], Mapping[str, Expr]]):
        self.defaults = defaults
        self.own: Variants = frozenset([definition.name])
        other = Woven(definition, {n for _, s in base.body for n in bound_in(s)})
        self.base = base = base.unfolded({n for _, s in other.body for n in bound_in(s)})
        marks = {n: n + "\0" for n in sorted(other.names()) if n.strip("_")}  # no name of base's
        self.other = [renamed(s, marks) for _, s in other.body]
        self.theirs = [renamed(e, marks) for e, _ in other.results]
        self.params = [(marks.get(n, n), default) for n, default, _ in other.params]
        self.several = other.several
        self.map: dict[str, str] = {}  # the other's name -> base's
        self.depth = 0
        self.alone: dict[str, Expr] = {}  # values of statements of base's that are none of the other's
        self.for_all: set[str] = set()  # those of them that the other has as well

    def done(self) -> Woven:
        made = object.__new__(Woven)
        made.params = self._parameters()
        base = self.base
        self.local = {n for _, s in base.body for n in bound_in(s)}
        self.shapes = shapes_in([s for _, s in base.body]), shapes_in(self.other)
        made.variants, made.head = base.variants | self.own, base.head
        pairs = self._pairs([s for _, s in base.body], self.other)
        for i, k in pairs.items():
            self._bind(base.body[i][1], self.other[k])
        self.alone = {
            bound_in(s)[0]: s.value
            for i, (_, s) in enumerate(base.body)
            if i not in pairs and type(s) is Assign and len(bound_in(s)) == 1
        }
        made.body = []
        before = 0
        for i, (guard, statement) in enumerate(base.body):
            if i in pairs:
                made.body += [(self.own, s) for s in self.other[before : pairs[i]]]
                made.body.append((guard | self.own, self._statement(statement, self.other[pairs[i]])))
                before = pairs[i] + 1
            else:
                made.body.append((guard, statement))
        made.body += [(self.own, s) for s in self.other[before:]]
        made.several, made.results = self._results()
        made.body = [(made.variants if self.for_all & set(bound_in(s)) else g, s) for g, s in made.body]
        taken = {n for n in made.names_of(self.own) if not n.endswith("\0")} | {p[0] for p in made.params}
        names = dict(self.map)
        for name in [n for n in made.names() if n.endswith("\0") and n not in names]:
            plain = name.rstrip("\0")  # base's own value of that name is in no way of this one's
            names[name] = plain if plain not in taken else free(plain, taken | base.names())
            taken.add(names[name])
        made.body = [(g, renamed(s, names)) for g, s in made.body]
        made.results = [(renamed(e, names), v) for e, v in made.results]
        return made

    def _parameters(self) -> list[tuple[str, Expr | None, Variants]]:
        theirs = {name.rstrip("\0"): (name, default) for name, default in self.params}
        found = []
        for name, default, variants in self.base.params:
            if name in theirs:
                marked, other = theirs.pop(name)
                self.map[marked] = name
                variants = variants | self.own
                default = default or other
            found.append((name, default, variants))
        taken = self.base.names()
        for name, (marked, default) in theirs.items():
            if name in taken:  # the base calls another value so
                self.base = self.base.with_names({name: free(name, taken)})
                taken = self.base.names() | {name}
            self.map[marked] = name
            found.append((name, default, self.own))
        return found

    # ------------------------------------------------------------ statements

    def _pairs(self, base: Sequence[Statement], other: Sequence[Statement]) -> dict[int, int]:
        """The statements of both that are the same one, with the most in common altogether."""
        left, right = [parts_of(s) for s in base], [parts_of(s) for s in other]
        best = [[0.0] * (len(other) + 1) for _ in range(len(base) + 1)]
        alike: dict[tuple[int, int], float] = {}
        for i in reversed(range(len(base))):
            for k in reversed(range(len(other))):
                score = _likeness(base[i], other[k], left[i], right[k])
                found = max(best[i + 1][k], best[i][k + 1])
                if score >= _ALIKE:
                    alike[i, k] = score * min(left[i].total(), right[k].total())
                    found = max(found, best[i + 1][k + 1] + alike[i, k])
                best[i][k] = found
        pairs: dict[int, int] = {}
        i = k = 0
        while i < len(base) and k < len(other):
            if (i, k) in alike and best[i][k] == best[i + 1][k + 1] + alike[i, k]:
                pairs[i] = k
                i, k = i + 1, k + 1
            elif best[i][k] == best[i + 1][k]:
                i += 1
            else:
                k += 1
        return pairs

    def _bind(self, base: object, other: object) -> None:
        mine, theirs = bound_in(base), bound_in(other)
        if len(mine) != len(theirs):
            raise Different
        for name, marked in zip(mine, theirs, strict=True):
            if name == "_" != marked:
                name = free(marked.rstrip("\0"), self.base.names() | set(self.map.values()))
            if marked != "_" and self.map.setdefault(marked, name) != name:
                raise Different

    def _statement(self, base: Statement, other: Statement) -> Statement:
        if isinstance(base, (For, Def)) and isinstance(other, (For, Def)):
            if type(base) is not type(other) or len(base.body) != len(other.body):
                raise Different
            whole = copied(base)
            whole.body = [self._statement(a, b) for a, b in zip(base.body, other.body, strict=True)]
            if isinstance(whole, For) and isinstance(other, For):
                whole.iterable = self.merged(whole.iterable, other.iterable)
            return whole
        if not isinstance(base, _VALUED) or not isinstance(other, _VALUED):
            raise Different
        made = copied(base)
        made.value = self.merged(base.value, other.value)
        if isinstance(made, Return):
            return made
        if type(made.value) is Let and made.value.name == UNNAMED and len(made.targets) == 1:
            made.value = made.value.called(bound_in(made)[0])
        words = [self.map[b] if a == "_" != b else a for a, b in zip(bound_in(base), bound_in(other), strict=True)]
        if words != bound_in(base):
            made.targets = words
        return made

    def _results(self) -> tuple[bool, list[tuple[Expr, Variants]]]:
        """What both return: the shorter list where it fits best into the longer one."""
        mine, theirs = [e for e, _ in self.base.results], self.theirs
        long, short = (mine, theirs) if len(mine) >= len(theirs) else (theirs, mine)
        best: tuple[int, tuple[int, ...]] | None = None
        for places in itertools.islice(itertools.combinations(range(len(long)), len(short)), 50):
            before = dict(self.map)
            tried = [
                self.merged(long[p], s) if long is mine else self.merged(s, long[p])
                for p, s in zip(places, short, strict=True)
            ]
            self.map = before
            cost = sum(map(cost_of, tried)) + sum(cost_of(e) for i, e in enumerate(long) if i not in places)
            if best is None or cost < best[0]:
                best = cost, places
        assert best is not None
        found: list[tuple[Expr, Variants]] = []
        for place, value in enumerate(long):
            at = best[1].index(place) if place in best[1] else None
            if long is mine:
                result, variants = self.base.results[place]
                found.append(
                    (result, variants) if at is None else (self.merged(result, theirs[at]), variants | self.own)
                )
            elif at is None:
                found.append((value, self.own))
            else:
                result, variants = self.base.results[at]
                found.append((self.merged(result, value), variants | self.own))
        return self.base.several or self.several, found

    # ------------------------------------------------------------ expressions

    def merged(self, base: Expr, other: Expr) -> Expr:
        """`base` that is `other` as well; a Choice where they differ."""
        if type(base) is Named:
            value = self.merged(base.value, bare(other))
            if type(value) is Let and value.name == UNNAMED:
                return value.called(base.name)
            return Named(base.use, value, base.statement)
        if type(base) is Let:
            return self._let(base, other)
        if type(base) is Choice:
            return self._chosen(base, other)
        plain = bare(other)
        before = dict(self.map)
        found = self._size(base, plain) or self._late(base, plain) or self._same_kind(base, plain)
        apart = Choice([(self.base.variants, base), (self.own, other)])
        if found is not None and cost_of(found) < cost_of(apart):
            after, self.map = self.map, before
            inside = self._wrapped(base, other) if 4 * cost_of(found) > 3 * cost_of(apart) else None
            if inside is not None and cost_of(inside) < cost_of(found):
                return inside
            self.map = after
            return found
        self.map = before
        return self._wrapped(base, other) or apart

    def _size(self, base: Expr, other: Expr) -> Expr | None:
        """`length` where the other has `x.shape[1]`, and the other way round."""
        if type(base) is Name and is_size(other):
            known = self.shapes[0].get(base.id)
            if known is not None and known.flat() == renamed(other, self.map).flat():
                self.for_all.add(base.id)
                return base
        if is_size(base) and type(other) is Name and other.id in self.shapes[1]:
            known = self.shapes[1][other.id]
            return base if renamed(known, self.map).flat() == base.flat() else None
        return None

    def _late(self, base: Expr, other: Expr) -> Expr | None:
        """A value that has a statement of its own in base, and stands where it is used in the other."""
        if type(base) is not Name or type(other) is Name or base.id not in self.alone:
            return None
        before = dict(self.map)
        found = self.merged(self.alone[base.id], other)
        known = {n for n in names_in(renamed(found, self.map)) if n.endswith("\0")}
        if cost_of(found) > cost_of(self.alone[base.id]) + 2 or known:
            self.map = before
            return None
        self.alone[base.id] = found
        self.for_all.add(base.id)
        return base

    def _same_kind(self, base: Expr, other: Expr) -> Expr | None:
        """The two as one node with parts that may differ; None where they are of two kinds."""
        if type(base) is not type(other):
            return None
        if is_constant(base):
            return base if is_constant(other) and base.flat() == other.flat() else None
        if type(base) is Name and type(other) is Name:
            return base if self._is(other.id, base.id) else None
        if isinstance(base, Leaf) and isinstance(other, Leaf):
            return base if base.steps == other.steps and self._is(other.root.id, base.root.id) else None
        if type(base) is Call and type(other) is Call:
            return self._call(base, other)
        if type(base) is Subscript and type(other) is Subscript:
            if _is_key(base.index) and base.index.flat() != other.index.flat():
                return None  # another part of the parameters
        if type(base) is Lambda and type(other) is Lambda:
            if len(base.params) != len(other.params):
                return None
            self.map.update(zip(other.params, base.params, strict=True))
        try:
            found = copied(self.common((base, other)))
        except Different:
            return None
        assert isinstance(found, Expr)  # as both are
        return found

    def part(self, position: Position, nodes: Sequence[Node]) -> Node:
        base, other = nodes
        if not isinstance(base, Expr) or not isinstance(other, Expr):
            raise Different
        return self.merged(base, other)

    def word(self, position: Position, words: Sequence[object]) -> object:
        base, other = words
        return super().word(position, (base, self.map.get(other, other) if type(other) is str else other))

    def _is(self, other: str, base: str) -> bool:
        """Whether a name of the other's is that of base's; of values that only one of them computes it may be."""
        if other in self.map or not other.endswith("\0"):
            return self.map.get(other, other) == base
        if base in self.local and base not in self.map.values():
            self.map[other] = base
            return True
        return False

    def _call(self, base: Call, other: Call) -> Call | None:
        mine, theirs = list(base.args), list(other.args)
        if isinstance(base.func, str) or isinstance(other.func, str):
            if base.func != other.func and self.map.get(str(other.func)) != base.func:
                return None
            func: Expr | str = base.func
        else:
            func = self.merged(base.func, other.func)
        before = dict(self.map)
        args: list[Expr] | None = None
        if len(mine) == len(theirs):
            args = [self.merged(a, b) for a, b in zip(mine, theirs, strict=True)]
        if args is None or not all(map(is_same, args)):
            after, self.map = self.map, before
            args = self._spelt(mine, theirs) or args
            self.map = after
        if args is None:
            return None
        given, passed = dict(base.kwargs), dict(other.kwargs)
        order = [*given, *[n for n in passed if n not in given]]
        known: Mapping[str, Expr] = {}
        if set(given) != set(passed) and type(base.func) is str:
            known = self.defaults(base.func) or {
                n: Text(repr(v))
                for n, v in defaults_of(base.func).items()
                if v is None or type(v) in (bool, int, float, str)
            }
        kwargs = []
        for name in order:
            a, b = given.get(name, known.get(name)), passed.get(name, known.get(name))
            if a is None or b is None:
                return None
            kwargs.append((name, self.merged(a, b)))
        return Call(func, args, kwargs)

    def _spelt(self, mine: Sequence[Expr], theirs: Sequence[Expr]) -> list[Expr] | None:
        """Sizes that both read off the same shapes, in other words: `key_length` and `x.shape[1]`."""
        left, right = sizes_in_full(mine, self.shapes[0]), sizes_in_full(theirs, self.shapes[1])
        if not any(is_size(e) for e in left) or len(left) != len(right):
            return None
        if [e.flat() for e in left] != [renamed(e, self.map).flat() for e in right]:
            return None
        return sizes_in_short(left)

    def _chosen(self, base: Choice, other: Expr) -> Expr:
        """The choice with one more variant: as one of its ways, or as a way of its own."""
        best: tuple[int, int, Expr, dict[str, str]] | None = None
        before = dict(self.map)
        for at, (_, value) in enumerate(base.ways):
            found = self.merged(value, other)
            cost = cost_of(found) - cost_of(value)
            if best is None or cost < best[0]:
                best = cost, at, found, self.map
            self.map = dict(before)
        assert best is not None
        if best[0] <= extent(other) // 2:
            self.map = best[3]
            ways = [(v | self.own, best[2]) if i == best[1] else (v, e) for i, (v, e) in enumerate(base.ways)]
            return Choice(ways)
        return Choice([*base.ways, (self.own, other)])

    # ------------------------------------------------------------ values that some wrap

    def _wrapped(self, base: Expr, other: Expr) -> Expr | None:
        """A name for what both have inside: `roll(x)` in one of them where the other has `x` itself."""
        if self.depth == _DEEPEST_LET:
            return None
        mine, theirs = bare(base), bare(other)
        left = [(e, parts_of(e)) for e in (mine, *below(mine, _DEEPEST)) if extent(e) >= PLACE]
        right = [(e, parts_of(e)) for e in (theirs, *below(theirs, _DEEPEST)) if extent(e) >= PLACE]
        pairs = []
        for (here, parts), (there, own) in itertools.product(left, right):
            common = (parts & own).total()
            kinds = type(bare(here)) in (Choice, type(bare(there)))
            if kinds and 5 * common >= 3 * own.total() and not (here is mine and there is theirs):
                pairs.append((parts.total() + own.total() - 3 * common, len(pairs), here, there))
        for place in below(mine, _DEEPEST):
            if type(place) is Name and place.id in self.alone:
                found = self._late(place, theirs)
                if found is not None:
                    return Choice([(self.base.variants, base), (self.own, found)])
        best: tuple[int, Let, dict[str, str]] | None = None
        before = dict(self.map)
        self.depth += 1
        for _, _, here, there in sorted(pairs, key=lambda p: p[:2])[:_MOST_PAIRS]:
            found = self.merged(here, there)
            name = next((n.name for n in (here, there, found) if isinstance(n, (Named, Let))), UNNAMED)
            value = found.value if type(found) is Named else found
            around = with_part(mine, here, Name(name)), with_part(theirs, there, Name(name))
            made = Let(name, value, Choice([(self.base.variants, around[0]), (self.own, around[1])]))
            if type(value) is not Choice and (best is None or cost_of(made) < best[0]):
                best = cost_of(made), made, self.map
            self.map = dict(before)
        self.depth -= 1
        if best is None or best[0] >= cost_of(base) + cost_of(other) + PLACE:
            return None
        self.map = best[2]
        return best[1]

    def _let(self, base: Let, other: Expr) -> Expr:
        best: tuple[int, Let, dict[str, str]] | None = None
        before = dict(self.map)
        for at, (_, way) in enumerate(base.body.ways):
            if type(way) is Name and way.id == base.name:
                value, body = self.merged(base.value, other), way
            else:
                hole: list[Expr] = []
                body = self._with_hole(way, bare(other), base.name, hole)
                if body is None or len(hole) != 1:
                    self.map = dict(before)
                    continue
                value = self.merged(base.value, hole[0])
            ways = [(v | self.own, body) if i == at else (v, e) for i, (v, e) in enumerate(base.body.ways)]
            found = Let(base.name, value, Choice(ways))
            cost = cost_of(found)
            if best is None or cost < best[0]:
                best = cost, found, self.map
            self.map = dict(before)
        if best is None:
            return Choice([(self.base.variants, base), (self.own, other)])
        self.map = best[2]
        return best[1]

    def _with_hole(self, base: Expr, other: Expr, name: str, hole: list[Expr]) -> Expr | None:
        if type(base) is Name and base.id == name:
            hole.append(other)
            return base
        if not any(type(n) is Name and n.id == name for n in nodes_of(base)):
            found = self.merged(base, other)
            return found if is_same(found) else None
        plain = bare(other)
        if type(base) is Named:
            found = self._with_hole(base.value, plain, name, hole)
            return None if found is None else Named(base.use, found, base.statement)
        if type(base) is not type(plain) or len(list(parts_below(base))) != len(list(parts_below(plain))):
            return None
        if type(base) is Call and type(plain) is Call:
            if (base.func if type(base.func) is str else "") != (plain.func if type(plain.func) is str else ""):
                return None
        for mine, theirs in zip(parts_below(base), parts_below(plain), strict=True):
            if self._with_hole(mine, theirs, name, hole) is None:
                return None
        return base


def _likeness(base: Statement, other: Statement, left: Counter[str], right: Counter[str]) -> float:
    """Two thirds for what they are made of, one third for the name."""
    kinds = [Assign if type(s) is Unpack else type(s) for s in (base, other)]
    mine, theirs = bound_in(base), bound_in(other)
    if kinds[0] is not kinds[1] or len(mine) != len(theirs) or kinds[0] not in (Assign, For, Def):
        return 0.0
    bodies = [s.body for s in (base, other) if isinstance(s, (For, Def))]
    if bodies and len(bodies[0]) != len(bodies[1]):
        return 0.0
    common = 2 * (left & right).total() / max(1, left.total() + right.total())
    same = sum(a == b.rstrip("\0") for a, b in zip(mine, theirs, strict=True)) / max(1, len(mine))
    return (2 * common + same) / 3


def _is_key(index: object) -> bool:
    return type(index) is Text and index.text[:1] in ("'", '"')
