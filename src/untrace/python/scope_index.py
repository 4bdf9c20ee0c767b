"""What stands in one function, without the functions inside it, and what its statements do with its variables."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from untrace.python.statements import Assign, Compound, Def, For, If, Lines, Return, Statement, Store, Unpack
from untrace.python.tree import Attribute, Binary, Call, Expr, Lambda, Leaf, Name, Text, Tuple, Unary
from untrace.python.walk import parts_of, slots_backwards


@dataclass(slots=True)
class Line:
    """A statement, by the variables that it binds, in their order, and those that it reads before it does.

    `blocks`: the lines of what stands below it.
    """

    kind: type[Statement]
    binds: list[str]
    reads: set[str]
    blocks: Sequence[list[Line]] = ()


@dataclass(slots=True)
class Own:
    """What stands in a function, without the functions inside it."""

    names: list[Name] = field(default_factory=list)
    """Its variables where they are read, each node once, the last first."""

    statements: list[Assign | Unpack] = field(default_factory=list)
    """What binds them, the last first, but for loops."""

    loops: list[For] = field(default_factory=list)

    counts: Counter[str] = field(default_factory=Counter)
    """How often each variable stands in `names`, in `statements` and in the heads of `loops`."""

    lines: list[Line] = field(default_factory=list)
    """Its statements as they were when this was made."""

    source: set[str] = field(default_factory=set)
    """Words that stand in no Name, and are variables or may be: what is called by its name, a part of an f-string."""

    inside: list[Def | Lambda] = field(default_factory=list)
    """The functions in it."""

    is_known: bool = True
    """Whether it is known of every statement which one comes next."""

    def closed_over(self) -> set[str]:
        """What functions inside this one read of it, or of what is around it: they look that up when they run."""
        return {name for function in self.inside for name in _free(function)}

    def rename(self, new: Mapping[str, str]) -> None:
        """Gives variables their new names."""
        if not new:
            return
        for name in self.names:
            name.id = new.get(name.id, name.id)
        for statement in self.statements:
            targets = [new.get(t, t) if type(t) is str else t for t in statement.targets]
            if targets != list(statement.targets):
                statement.targets = targets
        for loop in self.loops:
            loop.target = _VARIABLE.sub(lambda m: new.get(m[0], m[0]), loop.target)
        old, self.counts = self.counts, Counter()
        for name, count in old.items():
            self.counts[new.get(name, name)] += count


def own_nodes(body: Sequence[Statement]) -> Own:
    """See Own."""
    index = _Index()
    index.own.lines = index.lines(body)
    index.own.names = list(index.names)[::-1]
    index.own.statements.reverse()
    index.own.counts = Counter(index.words)
    return index.own


class _Index:
    def __init__(self) -> None:
        self.own = Own()
        self.names: dict[Name, None] = {}
        self.words: list[str] = []

    def lines(self, statements: Sequence[Statement]) -> list[Line]:
        return [self._line(s) for s in statements]

    def _line(self, statement: Statement) -> Line:
        kind = type(statement)
        if isinstance(statement, (Assign, Unpack)):
            binds, reads = self._targets(statement)
            reads |= self.reads(statement.value)
            if isinstance(statement, Store):
                reads |= self.reads(statement.place)
            self.own.statements.append(statement)
            return Line(Assign, binds, reads)
        if isinstance(statement, Return):
            return Line(Return, [], self.reads(statement.value))
        if isinstance(statement, Def):
            self.own.inside.append(statement)
            self.own.source.add(statement.name)
            return Line(Def, [statement.name], set())
        if isinstance(statement, For):
            binds = list(words_in(statement.target))
            self.own.loops.append(statement)
            self.words += binds
            return Line(For, binds, self.reads(statement.iterable), [self.lines(statement.body)])
        if isinstance(statement, If):
            reads = self.reads(statement.test)
            return Line(If, [], reads, [self.lines(statement.body), self.lines(statement.otherwise)])
        if isinstance(statement, Lines):
            plain = all(not line.strip() or line.startswith("#") for line in statement.text.split("\n"))
            self.own.is_known = self.own.is_known and plain
            return Line(kind, [], set())
        if isinstance(statement, Compound):
            self.own.is_known = False
        reads, blocks = set[str](), list[list[Line]]()
        for part in parts_of(statement):
            if isinstance(part, (list, tuple)) and part and isinstance(part[0], Statement):
                blocks.append(self.lines(part))
            else:
                reads |= self.reads(part)
        return Line(kind, [], reads, blocks)

    def _targets(self, statement: Assign | Unpack) -> tuple[list[str], set[str]]:
        """(the variables that an assignment binds, those that its targets read: `x[i] = y`)."""
        binds: list[str] = []
        reads: set[str] = set()
        for target in statement.targets:
            if isinstance(target, str):
                self.words.append(target)
                if target.lstrip("*").isidentifier():
                    binds.append(target.lstrip("*"))
                else:
                    self.own.source.update(words_in(target))
                    reads.update(words_in(target))
            else:
                self.reads(target)
                binds += [n.id.lstrip("*") for n in _names_in(target)]
        return binds, reads

    def reads(self, part: object) -> set[str]:
        """The words that may be variables in a part of a statement, without the functions in it."""
        found: list[str] = []
        source: set[str] = set()
        stack: list[Any] = [part]
        while stack:
            value = stack.pop()
            kind = type(value)
            if kind is Name:
                found.append(value.id)
                self.names[value] = None
            elif kind is Text:
                source.update(words_in(value.text))
            elif kind is Call:
                stack += [v for _, v in reversed(value.kwargs)]
                stack += reversed(value.args)
                stack.append(value.func)
            elif kind is Binary:
                stack.append(value.right)
                stack.append(value.left)
            elif kind is Attribute or kind is Unary:
                stack.append(value.value)
            elif kind is list or kind is tuple:
                stack += reversed(value)
            elif kind is str:
                source.update(words_in(value))
            elif kind is Lambda:
                self.own.inside.append(value)
            elif isinstance(value, Leaf):
                stack.append(value.root)
                for way, text, _ in value.steps:
                    if way == "item":
                        source.update(words_in(text))
            else:
                stack += [getattr(value, slot, None) for slot in slots_backwards(value) or ()]
        self.words += found
        self.own.source |= source
        return source.union(found)


def _names_in(target: Tuple) -> Iterator[Name]:
    for element in target.elements:
        if isinstance(element, Name):
            yield element
        elif isinstance(element, Tuple):
            yield from _names_in(element)


def _free(function: Def | Lambda) -> set[str]:
    """What a function reads that it does not bind."""
    if isinstance(function, Lambda):
        index = _Index()
        read = index.reads(function.body) | index.own.closed_over()
        return read.difference([p.lstrip("*") for p in function.params])
    own = own_nodes(function.body)
    around: list[Expr | None] = [*function.decorators, function.returns]
    for parameter in function.params:
        around += [parameter.default, parameter.annotation]
    index = _Index()
    outside = index.reads(around) | index.own.closed_over()
    bound = {p.name for p in function.params}.union(*[line.binds for line in every(own.lines)])
    return own.closed_over().union(*[line.reads for line in every(own.lines)]) - bound | outside


def every(lines: Sequence[Line]) -> Iterator[Line]:
    """Lines and those below them, in the order of the text."""
    for line in lines:
        yield line
        for block in line.blocks:
            yield from every(block)


# Neither an attribute, nor the name of an argument, nor a part of a number.
_VARIABLE = re.compile(r"(?<![\w.])[^\W\d]\w*(?!\w|=(?!=))")
_STRING = re.compile(r"""(?:\b[a-zA-Z])?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_BRACES = re.compile(r"\{([^{}]*)\}")


@functools.lru_cache(4096)
def words_in(text: str) -> tuple[str, ...]:
    """The words of a piece of source that may be variables, those in the braces of an f-string among them."""
    if '"' in text or "'" in text:
        text = _STRING.sub(lambda m: " ".join(_BRACES.findall(m[0])) if m[0][0] == "f" else " ", text)
    return tuple(_VARIABLE.findall(text))
