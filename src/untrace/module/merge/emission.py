"""The statements of functions of one class that became one (`weave`), under the tests of `conditions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from untrace._identifiers import identifier
from untrace.module.access_paths import Leaf
from untrace.module.merge.choices import Choice, Guarded, Let, Named, Variants, bound_in, free, is_constant, names_in
from untrace.module.merge.conditions import Conditions, Not, attributes_with
from untrace.module.merge.woven import Woven
from untrace.python.anti_unify import Different
from untrace.python.statements import Assign, Def, For, If, Return, Statement, Unpack
from untrace.python.tree import WIDTH, Call, Expr, Name, Subscript, Ternary, Text, Tuple, Unary
from untrace.python.walk import copied, nodes_of, rebuilt

# Words for a number that say nothing of it.
_VAGUE = frozenset({"", "size", "out"})


class Emission:
    """The statements of a woven function. `role`: what a constant is for, by the call that it is passed to."""

    def __init__(
        self, woven: Woven, conditions: Conditions, role: Callable[[Call, int | str], str],
        word_for: Callable[[set[str]], str],
    ):  # fmt: skip
        """word_for: what the author calls the one or the other of some values."""
        self.woven = woven.with_names({})  # a copy, which is changed here
        self.conditions, self.role, self.word_for = conditions, role, word_for
        self.current: Statement | None = None  # the statement that is written
        self.optional = {n: having for n, default, having in woven.params if default is None}

    def statements(self) -> list[Statement]:
        every = self.woven.variants
        self._join()
        self._once()
        flat: list[Guarded] = []
        for guard, statement in self.woven.body:
            flat += self._spread(guard, statement)
        result, before = self._result()
        flat += before
        body = self._chained(flat, every)
        return [*self.woven.head, *body, Return(result)]

    def _join(self) -> None:
        """`values = position_bias` for the variants that do not compute `values`, where theirs is used in its place."""
        body = list(self.woven.body)
        for at in reversed(range(len(body))):
            guard, statement = body[at]
            if guard == self.woven.variants or type(statement) is not Assign or len(bound_in(statement)) != 1:
                continue
            (name,) = bound_in(statement)
            uses = [c for c in self._choices() if any(type(e) is Name and e.id == name for _, e in c.ways)]
            others: dict[str, Expr] = {}
            fitting = bool(uses)
            for variants, way in [w for c in uses for w in c.ways]:
                if self._is_given(way):
                    for v in sorted(variants):
                        fitting = fitting and v not in guard and others.setdefault(v, way).flat() == way.flat()
            if not fitting or not others:
                continue
            ways: dict[str, tuple[Variants, Expr]] = {}
            for v, way in others.items():
                ways[way.flat()] = (ways.get(way.flat(), (frozenset(), way))[0] | {v}, way)
            more = [(variants, Assign([name], way)) for variants, way in ways.values()]
            self.woven.body[at + 1 : at + 1] = more
            for choice in uses:
                joined = [(v, e) for v, e in choice.ways if type(e) is Name and e.id == name or self._is_given(e)]
                rest = [(v, e) for v, e in choice.ways if all(e is not f for _, f in joined)]
                use = next(e for _, e in joined if type(e) is Name and e.id == name)
                choice.ways = [*rest, (frozenset().union(*[v for v, _ in joined]), use)]

    def _once(self) -> None:
        """A choice between two short values that is made several times gets a name."""
        found: dict[str, list[Choice]] = {}
        for choice in self._choices():
            choice.ways = _ways(choice, self.woven.variants)
            if len(choice.ways) == 2 and all(type(e) is Name and self._is_given(e) for _, e in choice.ways):
                key = repr(sorted((sorted(v), e.flat()) for v, e in choice.ways))
                found.setdefault(key, []).append(choice)
        for choices in found.values():
            names = {e.id for _, e in choices[0].ways if type(e) is Name}
            covered = frozenset().union(*[v for v, _ in choices[0].ways])
            if len(choices) < 2 or covered != self.woven.variants:
                continue
            word = self.word_for(names) or _common_word(choices[0].ways)
            name = free(identifier(word, "part"), self.conditions.taken)
            self.conditions.taken.add(name)
            body = self.woven.body
            first = next((i for i, (_, s) in enumerate(body) if any(n in choices for n in nodes_of(s))), len(body))
            made = Assign([name], Choice(choices[0].ways))
            self._change(lambda node, gone=choices, name=name: Name(name) if node in gone else None)
            self.woven.body.insert(first, (self.woven.variants, made))

    def _choices(self) -> list[Choice]:
        every = [s for _, s in self.woven.body] + [e for e, _ in self.woven.results]
        return [n for n in nodes_of(every) if type(n) is Choice]

    def _is_given(self, value: Expr) -> bool:
        """Whether a value is an argument or a constant."""
        given = {n for n, _, _ in self.woven.params}
        return is_constant(value) or type(value) is Name and value.id in given

    def _change(self, replaced: Callable[[object], Expr | None]) -> None:
        def change(node: object) -> object:
            found = replaced(node)
            return rebuilt(node, change) if found is None else found

        self.woven.body[:] = [(g, rebuilt(s, change)) for g, s in self.woven.body]
        self.woven.results[:] = [(replaced(e) or rebuilt(e, change), v) for e, v in self.woven.results]

    # ------------------------------------------------------------ values that differ

    def _spread(self, guard: Variants, statement: Statement) -> list[Guarded]:
        """A statement, behind those that it needs."""
        self.current = statement
        if type(statement) is For or type(statement) is Def:
            inner: list[Guarded] = []
            before: list[Guarded] = []
            made = copied(statement)
            if type(made) is For:
                made.iterable = self._value(made.iterable, guard, before, "")
            for s in statement.body:
                inner += self._spread(guard, s)
            made.body = self._chained(inner, guard)
            return [*before, (guard, made)]
        assert isinstance(statement, (Assign, Unpack, Return))  # what else has a value
        found: list[Guarded] = []
        value = statement.value
        if type(value) is Choice:
            value = Choice(_ways(value, guard))
        if type(value) is Choice and len(value.ways) == 1:
            value = value.ways[0][1]
        if type(value) is Choice:
            for variants, way in value.ways:
                here: list[Guarded] = []
                made = copied(statement)
                made.value = self._value(way, variants & guard, here, "")
                found += [*here, (variants & guard, made)]
            whole = self._constant(value, guard, "") or self._short(
                value, guard, len(found) == len(value.ways), statement
            )
            if whole is None:
                return found
            found = []
            value = whole
        made = copied(statement)
        made.value = self._value(value, guard, found, "")
        if type(value) is Let and bound_in(statement) == [value.name]:
            return found
        return [*found, (guard, made)]

    def _value(self, node: Expr, guard: Variants, before: list[Guarded], role: str) -> Expr:
        """An expression without choices. What has to be computed before goes into `before`."""
        if type(node) is Named:
            if node.statement is not None:
                made = copied(node.statement)
                made.targets, made.value = [node.name], node.value
            else:
                made = Assign([node.name], node.value)
            before += self._spread(guard, made)
            return node.use
        if type(node) is Let:
            before += self._spread(guard, Assign([node.name], node.value))
            for variants, way in node.body.ways:
                if type(way) is not Name and variants & guard:
                    before += self._spread(variants & guard, Assign([node.name], way))
            return Name(node.name)
        if type(node) is Choice:
            node = Choice(_ways(node, guard))
            constant = self._constant(node, guard, role)
            if constant is not None:
                return constant
            ways = [(v & guard, e) for v, e in node.ways if v & guard]
            if len(ways) == 1:
                return self._value(ways[0][1], ways[0][0], before, role)
            name = next((e.name for _, e in ways if type(e) is Named), "")
            spread: list[Guarded] = []
            for variants, way in ways:
                bare = way.value if type(way) is Named else way
                origin = way.statement.origin if type(way) is Named and way.statement is not None else None
                spread += self._spread(variants, Assign([name or "\0"], bare, origin))
            short = self._short(node, guard, not name and len(spread) == len(ways), None)
            if short is not None:
                return short
            if not name:
                name = free(identifier(role or _common_word(ways), "part"), self.conditions.taken)
                self.conditions.taken.add(name)
                for _, s in spread:
                    if isinstance(s, (Assign, Unpack)) and (bound_in(s) == ["\0"] or s.targets == ["\0"]):
                        s.targets = [name]
            before += spread
            return next((e.use for _, e in ways if type(e) is Named and e.name == name), Name(name))
        if type(node) is Call:
            args = [self._value(a, guard, before, self.role(node, i)) for i, a in enumerate(node.args)]
            func = self._value(node.func, guard, before, "") if isinstance(node.func, Expr) else node.func
            kwargs = [(n, self._value(v, guard, before, n)) for n, v in node.kwargs]
            return Call(func, args, kwargs)
        if isinstance(node, Leaf):
            return node

        def value(part: object) -> object:
            assert isinstance(part, Expr)  # an expression is made of such
            return self._value(part, guard, before, role if type(part) in (Choice, Unary) else "")

        return rebuilt(node, value)

    def _constant(self, node: Choice, guard: Variants, role: str) -> Expr | None:
        """A number that differs as a parameter; an argument that is None for those that do not have it as itself."""
        ways = [(v & guard, e) for v, e in node.ways if v & guard]
        names = {e.id for _, e in ways if type(e) is Name}
        if len(names) == 1 and names <= self.optional.keys():
            (name,) = names
            if all(e.flat() == "None" and not v & self.optional[name] for v, e in ways if type(e) is not Name):
                return Name(name)
        if len(names) == 1 and self._filled(next(iter(names)), ways):
            return Name(next(iter(names)))
        if not all(is_constant(e) and e.flat() != "None" for _, e in ways):
            return None
        values = {v: e for those, e in ways for v in sorted(those)}
        fitting = sorted(attributes_with({v: of.attributes for v, of in self.conditions.known.items()}, values))
        if not fitting and (role in _VAGUE or len(role) < 3) and len(ways) == 2 and self._is_decided(ways, guard):
            return None
        return self.conditions.parameter(self.conditions.words[fitting[0]] if fitting else role or "size", values)

    def _is_decided(self, ways: Sequence[tuple[Variants, Expr]], guard: Variants) -> bool:
        """Whether a test tells two ways apart, so that a number needs no name of its own."""
        with self.conditions.tried():
            try:
                self.conditions.test(ways[0][0], guard, [self.current])
            except Different:
                return False
            return not self.conditions.is_weak

    def _filled(self, name: str, ways: Sequence[tuple[Variants, Expr]]) -> bool:
        """Whether the variants that have a constant in the place of a parameter can pass it."""
        default, having = next(((d, v) for n, d, v in self.woven.params if n == name), (None, frozenset()))
        others = [(v, e) for v, e in ways if type(e) is not Name]
        if default is None or any(not is_constant(e) or v & having for v, e in others):
            return False
        known = self.conditions.filled.setdefault(name, {})
        return all(known.setdefault(v, e).flat() == e.flat() for those, e in others for v in those)

    def _short(self, node: Choice, guard: Variants, plain: bool, statement: object) -> Expr | None:
        """The choice on one line, where it is short."""
        ways = [(v & guard, e) for v, e in node.ways if v & guard]
        if not plain or len(ways) != 2:
            return None
        if any(type(n) in (Choice, Named, Let) for _, e in ways for n in nodes_of(e)):
            return None
        test = self.conditions.test(ways[0][0], guard, [self.current])
        then, otherwise = ways[0][1], ways[1][1]
        if type(test) is Not:
            test, then, otherwise = test.value, otherwise, then
        made = Ternary(then, test, otherwise)
        head = len(bound_in(statement)[0]) + 3 if statement is not None else 24
        return made if len(made.flat()) + head <= WIDTH - 8 else None

    def _result(self) -> tuple[Expr, list[Guarded]]:
        every = self.woven.variants
        always = {n for n, _, having in self.woven.params if having == every}
        given: dict[str, Variants] = {}
        for guard, s in self.woven.body:
            for name in bound_in(s):
                given[name] = given.get(name, frozenset()) | guard
        before: list[Guarded] = []
        found: list[Expr] = []
        for value, variants in self.woven.results:
            if variants != every and not self._is_ready(value, given, always):
                value = Choice([(variants, value), (every - variants, Text("None"))])
            found.append(self._value(value, every, before, ""))
        return (Tuple(found) if self.woven.several else found[0]), before

    def _is_ready(self, value: Expr, given: Mapping[str, Variants], always: set[str]) -> bool:
        """Whether a result that only some callers look at can be computed in all variants."""
        every = self.woven.variants
        inside = {n.name for n in nodes_of(value) if isinstance(n, (Named, Let))}
        if any(type(n) is Choice for n in nodes_of(value)):
            return False
        for name in set(names_in(value)) - always - inside:
            if given.get(name, every if name not in self.conditions.taken else frozenset()) != every:
                return False
        keys = {(n.value.id, n.index.flat()) for n in nodes_of(value) if type(n) is Subscript and type(n.value) is Name}
        keys |= {(n.root.id, n.steps[0][1]) for n in nodes_of(value) if isinstance(n, Leaf) and n.steps}
        return all(
            key[:1] not in ("'", '"') or (root, (key,)) in self.conditions.known[v].has
            for root, key in keys
            for v in every
        )

    # ------------------------------------------------------------ ifs

    def _chained(self, body: Sequence[Guarded], among: Variants) -> list[Statement]:
        """Statements under their tests; those of different variants do not depend on each other."""
        found: list[Statement] = []
        at = 0
        while at < len(body):
            if body[at][0] == among:
                found.append(body[at][1])
                at += 1
                continue
            groups: dict[Variants, list[Guarded]] = {}
            while at < len(body) and body[at][0] != among:
                guard = body[at][0]
                inside = next((g for g in groups if guard <= g), None)
                if inside is None:
                    meeting = [g for g in groups if g & guard]
                    if not all(g <= guard for g in meeting):
                        break
                    groups[guard] = [s for g in meeting for s in groups.pop(g)]
                    inside = guard
                groups[inside].append(body[at])
                at += 1
            blocks = {g: self._chained([(v, s) for v, s in inner], g) for g, inner in groups.items()}
            found += self._branches(blocks, among)
        return found

    def _branches(self, blocks: dict[Variants, list[Statement]], among: Variants) -> list[Statement]:
        left = dict(blocks)
        remaining = among
        tests: list[tuple[Expr, list[Statement]]] = []
        whole = frozenset().union(*blocks) == among
        while left and not (whole and len(left) == 1 and tests):
            costs = []
            for guard in left:
                with self.conditions.tried():
                    try:
                        costs.append((_words(self.conditions.test(guard, remaining, left[guard])), len(costs), guard))
                    except Different:
                        pass
            if not costs:
                raise Different
            guard = min(costs)[2]
            tests.append((self.conditions.test(guard, remaining, left[guard]), left.pop(guard)))
            remaining = remaining - guard
        otherwise: list[Statement] = next(iter(left.values())) if left else []
        for test, body in reversed(tests):
            if type(test) is Not and otherwise:
                test, body, otherwise = test.value, otherwise, body
            otherwise = [If(test, body, otherwise)]
        return otherwise


def _ways(node: Choice, guard: Variants) -> list[tuple[Variants, Expr]]:
    """The ways of a choice for some variants, without choices in it that have no name; equal ones together."""
    found: dict[str, tuple[Variants, Expr]] = {}
    for variants, way in node.ways:
        for inner, value in _ways(way, variants & guard) if type(way) is Choice else [(variants & guard, way)]:
            if inner:
                before = found.get(value.flat(), (frozenset(), value))
                found[value.flat()] = (before[0] | inner, before[1])
    return list(found.values())


def _words(test: Expr) -> int:
    return len(test.flat().split())


def _common_word(ways: Sequence[tuple[Variants, Expr]]) -> str:
    """`states` for `hidden_states` and `key_value_states`."""
    names = [next((n.id for n in nodes_of(e) if type(n) is Name), "part").split("_") for _, e in ways]
    count = 0
    while all(len(n) > count for n in names) and len({n[-1 - count] for n in names}) == 1:
        count += 1
    return "_".join(names[0][len(names[0]) - count :]) if count else "_".join(names[0])
