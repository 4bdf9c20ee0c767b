"""The statements of a written module, and their layout as text."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from untrace.python.tree import WIDTH, Call, Expr, Leaf, Name, Text, Tuple, filled, lines_of


class Statement:
    """A statement. `lines(indent)` yields its text lines; `origin` is the equation it stands for, if one.

    `is_backward`: set where it belongs to a backward pass and no equation says so.
    """

    __slots__ = ("origin", "is_backward")
    origin: Any
    is_backward: bool

    def lines(self, indent: str) -> Iterator[str]:
        raise NotImplementedError(type(self).__name__)


class Compound(Statement):
    """A statement with others below it. `blocks(indent)` yields (lines of a head, what stands below it)."""

    __slots__ = ()

    def blocks(self, indent: str) -> Iterator[tuple[list[str], Sequence[Statement]]]:
        raise NotImplementedError(type(self).__name__)

    def lines(self, indent: str) -> Iterator[str]:
        for head, body in self.blocks(indent):
            yield from head
            for statement in body:
                yield from statement.lines(indent + "    ")


class For(Compound):
    """`for target in iterable:` and its body."""

    __slots__ = ("target", "iterable", "body")

    def __init__(self, target: str, iterable: Expr, body: Sequence[Statement]):
        self.target, self.iterable, self.body, self.origin = target, iterable, body, None

    def blocks(self, indent: str) -> Iterator[tuple[list[str], Sequence[Statement]]]:
        yield list(lines_of(f"for {self.target} in ", self.iterable, ":", indent)), self.body


class Loop(Compound):
    """`while test:` and its body."""

    __slots__ = ("test", "body")

    def __init__(self, test: Expr, body: Sequence[Statement]):
        self.test, self.body, self.origin = test, body, None

    def blocks(self, indent: str) -> Iterator[tuple[list[str], Sequence[Statement]]]:
        yield list(lines_of("while ", self.test, ":", indent)), self.body


class If(Compound):
    """`if test:`, its body, and `else:` with another; an `If` alone in there is an `elif`."""

    __slots__ = ("test", "body", "otherwise")

    def __init__(self, test: Expr, body: Sequence[Statement], otherwise: Sequence[Statement], origin: object = None):
        self.test, self.body, self.otherwise, self.origin = test, body, otherwise, origin

    def blocks(self, indent: str) -> Iterator[tuple[list[str], Sequence[Statement]]]:
        branch: If = self
        word = "if "
        while True:
            yield list(lines_of(word, branch.test, ":", indent)), branch.body
            rest = branch.otherwise
            if len(rest) != 1 or not isinstance(rest[0], If):
                break
            branch, word = rest[0], "elif "
        if rest:
            yield [f"{indent}else:"], rest


_FEWEST_STARRED = 3


def _starred(targets: Sequence[str | Tuple]) -> Sequence[str | Tuple]:
    """`*_` for the most targets in a row that nobody reads; Python allows one star."""
    runs = [(len(list(run)), name) for name, run in itertools.groupby(targets, lambda t: t if type(t) is str else "")]
    longest = max((size for size, name in runs if name == "_"), default=0)
    if longest < _FEWEST_STARRED or longest == len(targets) or "*_" in targets:
        return targets
    place = 0
    for size, name in runs:
        if name == "_" and size == longest:
            return [*targets[:place], "*_", *targets[place + size :]]
        place += size
    return targets


class Assign(Statement):
    """`targets = value`; no targets make an expression statement. A target is a name, or a tuple of names.

    `comment` stands at the end of the statement; it must be one clean line.
    """

    __slots__ = ("targets", "value", "comment")

    def __init__(self, targets: Sequence[str | Tuple], value: Expr, origin: object = None, comment: str = ""):
        self.targets = targets
        self.value = value
        self.origin = origin
        self.comment = comment

    def lines(self, indent: str) -> Iterator[str]:
        if len(self.targets) == 1 and type(self.targets[0]) is str:  # most statements, each of which is laid out often
            line = f"{indent}{self.targets[0]} = {self.value.flat()}"
            if len(line) <= WIDTH:
                yield line
                return
        targets = _starred(self.targets)
        head = "".join([t if isinstance(t, str) else t.flat() for t in targets[:1]])
        if len(targets) > 1:
            head = ", ".join([t if isinstance(t, str) else t.flat() for t in targets])
        head = head + " = " if targets else ""
        if len(targets) > 1 and not self._fits(indent, head):
            whole = Tuple([Text(t) if isinstance(t, str) else t for t in targets])
            *first, last = lines_of("", whole, "", indent, len(indent) + 1)
            yield from first
            yield from lines_of(last[len(indent) :] + " = ", self.value, "", indent)
            return
        yield from lines_of(head, self.value, "", indent)

    def _fits(self, indent: str, head: str) -> bool:
        value = self.value
        while type(value) is Call and type(value.func) is Call:  # f(...)(x)
            value = value.func
        broken = value.items()
        opening = broken[0] if broken and broken[1] else value.flat()
        return len(indent) + len(head) + len(opening) <= WIDTH


class Unpack(Statement):
    """`(a,) = value`: several targets, or a single one in a tuple."""

    __slots__ = ("targets", "value")

    def __init__(self, targets: Sequence[str | Tuple], value: Expr, origin: object = None):
        self.targets, self.value, self.origin = targets, value, origin

    def lines(self, indent: str) -> Iterator[str]:
        if len(self.targets) == 1:
            target = self.targets[0]
            name = target if isinstance(target, str) else target.flat()
            yield from lines_of(f"({name},) = ", self.value, "", indent)
        else:
            yield from Assign(self.targets, self.value).lines(indent)


class Unpacked(Assign):
    """`a, b = f(x)`, where what the call gives is a tuple of that many: `return a, b` may be `return f(x)`."""

    __slots__ = ()


def returned(
    statements: list[Statement], value: Expr, functions: Container[object] = (), keeps_names: bool = False
) -> Expr:
    """What to return instead of `value`: the call that the last statement, which is taken away then, gave the names for.

    keeps_names: whether it stays where they are the author's, as he has them there and not where he calls the function.
    functions: names of those that give a tuple of as many as is bound of them.
    """
    last = statements[-1] if statements else None
    if not isinstance(last, (Assign, Unpack)) or type(last) is not Unpacked and len(last.targets) < 2:
        return value
    if type(last) is not Unpacked and not (type(last.value) is Call and last.value.func in functions):
        return value
    several = value.elements if type(value) is Tuple else [value]
    names = [t if isinstance(t, str) else t.flat() for t in last.targets]
    if [e.flat() for e in several] != names or (type(value) is Tuple) != (len(names) > 1):
        return value
    parts = [part for e in several for part in (e.elements if type(e) is Tuple else [e])]
    roots = [part.root if isinstance(part, Leaf) else part for part in parts]
    if keeps_names and any(type(root) is Name and root.symbol.author == root.id for root in roots):
        return value
    statements.pop()
    return last.value


class Return(Statement):
    __slots__ = ("value",)

    def __init__(self, value: Expr):
        self.value = value
        self.origin = None

    def lines(self, indent: str) -> Iterator[str]:
        text = self.value.flat()
        if type(self.value) is Tuple and len(self.value.elements) > 1 and len(indent) + 5 + len(text) <= WIDTH:
            text = text[1:-1]  # a tuple needs no brackets here
            yield f"{indent}return {text}"
            return
        yield from lines_of("return ", self.value, "", indent)


class Lines(Statement):
    """Fixed text of our own (a helper routine, a comment, a blank line): never made from anything outside."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text
        self.origin = None

    def lines(self, indent: str) -> Iterator[str]:
        for line in self.text.split("\n"):
            yield indent + line if line else ""


@dataclass(slots=True)
class Parameter:
    """A parameter of a Def: `kind` is "plain", "keyword" (keyword-only), "positional" (positional-only), "*" or "**".

    is_own: whether the author's function takes it by itself, so that it is no part of what a tree of his holds.
    """

    name: str
    default: Expr | None = None
    kind: str = "plain"
    annotation: Expr | None = None
    is_own: bool = False

    def text(self) -> str:
        star = self.kind if self.kind in ("*", "**") else ""
        if self.annotation is None:
            return star + self.name + (f"={self.default.flat()}" if self.default else "")
        return f"{star}{self.name}: {self.annotation.flat()}" + (f" = {self.default.flat()}" if self.default else "")


class Def(Statement):
    """A function definition. Decorators are expressions; the docstring is data and is quoted here, safely.

    `returns`: the annotation of the result. is_named: whether its name is one of the author's, so that it is no lambda.
    """

    __slots__ = ("name", "params", "body", "decorators", "docstring", "returns", "is_named")

    def __init__(
        self,
        name: str,
        params: Sequence[Parameter],
        body: Sequence[Statement],
        decorators: Sequence[Expr] = (),
        docstring: str = "",
        returns: Expr | None = None,
        is_named: bool = True,
    ):
        self.name, self.params, self.body, self.is_named = name, params, body, is_named
        self.decorators, self.docstring, self.origin, self.returns = decorators, docstring, None, returns

    def signature(self) -> list[str]:
        out: list[str] = []
        kinds = [p.kind for p in self.params]
        last_positional = max((i for i, k in enumerate(kinds) if k == "positional"), default=-1)
        seen_star = False
        for i, p in enumerate(self.params):
            if p.kind == "keyword" and not seen_star:
                out.append("*")
                seen_star = True
            seen_star = seen_star or p.kind == "*"
            out.append(p.text())
            if i == last_positional:
                out.append("/")
        return out

    def lines(self, indent: str) -> Iterator[str]:
        for decorator in self.decorators:
            yield from lines_of("@", decorator, "", indent)
        signature = self.signature()
        returned = f" -> {self.returns.flat()}" if self.returns is not None else ""
        head = f"{indent}def {self.name}({', '.join(signature)}){returned}:"
        if len(head) <= WIDTH:
            yield head
        else:
            yield f"{indent}def {self.name}("
            # `*args` may take no trailing comma in front of `/`, so items are filled as they come.
            yield from filled(signature, indent + "    ", WIDTH)
            yield f"{indent}){returned}:"
        inner = indent + "    "
        if self.docstring:
            yield from docstring_lines(self.docstring, inner)
        if not self.body and not self.docstring:
            yield inner + "pass"
        for statement in self.body:
            yield from statement.lines(inner)


class Store(Assign):
    """`ref[i] = value`."""

    __slots__ = ("place",)

    def __init__(self, place: Expr, value: Expr, origin: object = None):
        super().__init__((), value, origin)
        self.place = place

    def lines(self, indent: str) -> Iterator[str]:
        yield from lines_of(f"{self.place.flat()} = ", self.value, "", indent)


def docstring_lines(text: str, indent: str) -> Iterator[str]:
    """A triple-quoted string whose value is `text`, whatever `text` holds."""
    safe = "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text.replace("\\", "\\\\"))
    safe = safe.replace('"""', '\\"\\"\\"')
    if safe.endswith('"'):
        safe = safe[:-1] + '\\"'
    first, *rest = safe.split("\n")
    if not rest:
        yield f'{indent}"""{first}"""'
        return
    yield f'{indent}"""{first}'
    for line in rest:
        yield indent + line if line.strip() else ""
    yield f'{indent}"""'
