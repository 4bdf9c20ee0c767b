"""A function of several variants as text: the tests that tell them apart, and where they stand.

    if "relative_attention_bias" in params:
        position_bias = ...
    elif key_value_states is None:
        ...

A test is one of: an argument that only some calls pass (`key_value_states is None`), a part of the parameters that only
some modules have (`"shortcut" in params`), an attribute of the author's object that the call passes (`is_decoder`), or the
condition of the author's own `if` around the statements.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from untrace._identifiers import identifier
from untrace.ir.facts import Setting
from untrace.lift.naming import words
from untrace.module.access_paths import Leaf
from untrace.module.merge.choices import Variants, free
from untrace.module.merge.woven import Woven
from untrace.python.anti_unify import Different
from untrace.python.tree import COMPARE, NOT, Binary, Expr, Name, Text, quoted, wrap

# More tests than this in a function are harder to follow than two functions.
_MOST_TESTS = 5


class HasKey(Expr):
    """`"shortcut" in params`."""

    __slots__ = ("key", "root")
    strength = COMPARE

    def __init__(self, key: str, root: Expr):
        self.key, self.root = key, root

    def flat(self) -> str:
        return f"{self.key} in {self.root.flat()}"


class Not(Expr):
    """`not value`."""

    __slots__ = ("value",)
    strength = NOT

    def __init__(self, value: Expr):
        self.value = value

    def flat(self) -> str:
        return f"not {wrap(self.value, NOT)}"


@dataclass(frozen=True, slots=True)
class Instance:
    """What is known of one variant. `has`, `lacks`: parts of its parameters, as (parameter, keys): all its modules
    have them, or none. `attributes`: of the author's object."""

    has: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    lacks: Callable[[str, tuple[str, ...]], bool] = lambda root, keys: False
    attributes: Mapping[str, Setting] = field(default_factory=dict)


def attributes_with(known: Mapping[str, Mapping[str, object]], values: Mapping[str, Expr]) -> list[str]:
    """The attributes of the author's object that have these values in the functions. known: by function, all of them."""
    every = [known.get(n, {}) for n in values]
    texts = [v.flat() for v in values.values()]
    return [k for k in every[0] if all(k in of and repr(of[k]) == text for of, text in zip(every, texts, strict=True))]


@dataclass(slots=True)
class Added:
    """A parameter that the function gets. `values`: what each variant passes."""

    name: str
    values: dict[str, Expr]


class Conditions:
    """Finds tests. Raises Different where there is none. `added`: the flags that calls have to pass."""

    def __init__(
        self, woven: Woven, known: Mapping[str, Instance], asked: Callable[[Sequence[object]], tuple[str, bool]]
    ):
        """asked: the word for the author's `if` around some statements ("" where there is none), whether it holds there."""
        self.woven, self.known, self.asked = woven, known, asked
        self.added: list[Added] = []
        self.taken = woven.names()
        self.filled: dict[str, dict[str, Expr]] = {}  # what variants pass for parameters that others have
        self.is_weak = False  # whether a test says nothing of what it decides
        self.used: set[str] = set()
        attributes = sorted({a for instance in known.values() for a in instance.attributes})
        self.words = {a: free(identifier(words.clean(a), "option"), self.taken) for a in attributes}
        self._simple = list(self._candidates())

    def _candidates(self) -> Iterator[tuple[float, str, Expr, Variants]]:
        """(what it costs a reader, the flag that it needs, test, the variants for which it is true)."""
        every = self.woven.variants
        for name, default, having in self.woven.params:
            if having != every and default is None:
                yield 1.0, "", Binary(Name(name), "is", Text("None")), every - having
                yield 1.1, "", Binary(Name(name), "is not", Text("None")), having
        ways = sorted({way for instance in self.known.values() for way in instance.has})
        for root, keys in ways:
            having = frozenset(v for v in every if (root, keys) in self.known[v].has)
            if all(v in having or self.known[v].lacks(root, keys) for v in every) and having != every:
                parent: Expr = Leaf(Name(root), tuple(("item", k, 0) for k in keys[:-1])) if keys[:-1] else Name(root)
                cost = 0.9 + len(keys) / 4 + (0.1 if root == "buffers" else 0.0)
                yield cost, "", HasKey(keys[-1], parent), having
        for name in self.words:
            values = {v: self.known[v].attributes.get(name) for v in every}
            word = Name(self.words[name])
            kinds = {type(x) for x in values.values()}
            if kinds == {bool}:
                yield 2.0, name, word, frozenset(v for v in every if values[v])
            elif kinds <= {int, float}:
                yield (
                    2.3,
                    name,
                    Binary(word, ">", Text("0")),
                    frozenset(v for v, x in values.items() if isinstance(x, int | float) and x > 0),
                )
            elif kinds == {str}:
                for value in sorted({x for x in values.values() if isinstance(x, str)}):
                    test = Binary(word, "==", Text(quoted(value)))
                    yield 2.5, name, test, frozenset(v for v in every if values[v] == value)

    def test(self, those: Variants, among: Variants, about: Sequence[object] = ()) -> Expr:
        """What is true of `those` and of no others `among` all that come there. about: statements that stand there."""
        literals: list[tuple[float, str, Expr, Variants]] = []
        for cost, flag, test, true in self._known_tests():
            cost -= 0.9 if self.words.get(flag) in {a.name for a in self.added} else 0.0
            literals.append((cost, flag, test, true & among))
            literals.append((cost + 0.3, flag, _negated(test), among - true))
        found: list[tuple[float, tuple[str, ...], Expr]] = [
            (cost, (flag,), test) for cost, flag, test, true in literals if true == those
        ]
        if not found:
            for (c1, f1, t1, s1), (c2, f2, t2, s2) in itertools.combinations(literals, 2):
                if s1 & s2 == those:
                    found.append((c1 + c2, (f1, f2), Binary(t1, "and", t2)))
                elif s1 | s2 == those:
                    found.append((c1 + c2 + 0.1, (f1, f2), Binary(t1, "or", t2)))
        if not found:
            return self._asked(those, about)
        _, flags, test = min(found, key=lambda f: f[0])
        for name in filter(None, flags):
            self._attribute(name)
        self._use(test)
        return test

    def _use(self, test: Expr) -> None:
        self.used.add(test.flat())
        if len(self.used) > _MOST_TESTS:
            raise Different

    def _asked(self, those: Variants, about: Sequence[object]) -> Expr:
        """A flag for the author's `if`."""
        word, true = self.asked(about)
        if not word:
            return self._equal(those)
        added = self._flag(word, {v: Text(str((v in those) is true)) for v in sorted(self.woven.variants)})
        flag = Name(added.name)
        self._use(flag)
        return flag if true else Not(flag)

    def _equal(self, those: Variants) -> Expr:
        """`res == 4`: a number of the author's object, where nothing says more."""
        for name in self.words:
            values = {v: self.known[v].attributes.get(name) for v in self.woven.variants}
            kinds = {type(x) for x in values.values()}
            if kinds == {int} and len({values[v] for v in those}) == 1:
                (value,) = {values[v] for v in those}
                if all((x == value) is (v in those) for v, x in values.items()):
                    self._attribute(name)
                    self.is_weak = True
                    test = Binary(Name(self.words[name]), "==", Text(repr(value)))
                    self._use(test)
                    return test
        raise Different

    def _attribute(self, name: str) -> None:
        """Makes an attribute a parameter, if it is none yet."""
        values: dict[str, Expr] = {}
        for v in sorted(self.woven.variants):
            value = self.known[v].attributes[name]
            values[v] = Text(quoted(value) if type(value) is str else repr(value))
        added = next((a for a in self.added if a.name == self.words[name]), None)
        if added is None:
            self.taken.add(self.words[name])
            self.added.append(Added(self.words[name], values))
        elif any(values[v].flat() != x.flat() for v, x in added.values.items()):
            raise Different
        else:
            added.values.update(values)

    @contextlib.contextmanager
    def tried(self) -> Iterator[None]:
        """Inside, nothing is asked for good."""
        before = list(self.added), set(self.used), set(self.taken), self.is_weak
        try:
            yield
        finally:
            self.added, self.used, self.taken, self.is_weak = before

    def _known_tests(self) -> Iterator[tuple[float, str, Expr, Variants]]:
        yield from self._simple
        for added in self.added:
            if all(v.flat() in ("True", "False") for v in added.values.values()):
                true = frozenset(v for v, x in added.values.items() if x.flat() == "True")
                yield 1.0, "", Name(added.name), true

    def _flag(self, name: str, values: dict[str, Expr]) -> Added:
        name = free(identifier(name, "option"), self.taken)
        self.taken.add(name)
        self.added.append(Added(name, values))
        return self.added[-1]

    def parameter(self, role: str, values: dict[str, Expr]) -> Name:
        """A number that differs, as a parameter: the one that has these values already, or a new one."""
        texts = {v: x.flat() for v, x in values.items()}
        for added in self.added:
            same = all(added.values[v].flat() == t for v, t in texts.items() if v in added.values)
            if same and (added.name == role or added.name.rpartition("_")[0] == role):
                added.values.update({v: x for v, x in values.items() if v not in added.values})
                return Name(added.name)
        return Name(self._flag(role, dict(values)).name)


def _negated(test: Expr) -> Expr:
    if type(test) is Binary and test.op in ("is", "is not"):
        return Binary(test.left, "is not" if test.op == "is" else "is", test.right)
    if type(test) is HasKey:
        return Binary(Text(test.key), "not in", test.root)
    return Not(test)
