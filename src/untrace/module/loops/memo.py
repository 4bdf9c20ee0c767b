"""What is found out of statements where repetition is looked for among them, once of each.

Loops are looked for again and again in statements most of which stay as they are: none is changed, others take its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from untrace.module.def_use import bound_names, read_by, renamed, substituted, targets_of
from untrace.module.loops.elements import is_zero
from untrace.python.statements import Assign, Return, Statement, Unpack
from untrace.python.tree import Binary, Call, Expr, Lambda, Leaf, Name, Subscript, Text, Tuple, Unary
from untrace.python.walk import nodes_of, parts_of

# Equal for expressions that say the same.
Key = tuple[Hashable, ...]
# What a call or an operation begins with.
Beginning = str | tuple[str | None, int]

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")  # may be another one in another turn
_TOKEN = re.compile(r"\w+|[^\w\s]")
# Statements that have no variables but those that they read and bind.
_PLAIN = frozenset((Assign, Unpack, Return))


class Known:
    """What is known of statements."""

    def __init__(self) -> None:
        self._read: dict[Statement, list[str]] = {}
        self._bound: dict[Statement, list[str]] = {}
        self._texts: dict[Statement, str] = {}
        self._keys: dict[Statement, tuple[Key, set[str]]] = {}
        self._heads: dict[Statement, set[Beginning]] = {}
        self._tokens: dict[str, int] = {}

    def read_by(self, statement: Statement) -> list[str]:
        """See `read_by`."""
        found = self._read.get(statement)
        if found is None:
            found = self._read[statement] = read_by(statement)
        return found

    def bound_by(self, statement: Statement) -> list[str]:
        """See `bound_names`."""
        found = self._bound.get(statement)
        if found is None:
            found = self._bound[statement] = list(bound_names(statement))
        return found

    def text(self, statement: Statement) -> str:
        """The lines of a statement."""
        found = self._texts.get(statement)
        if found is None:
            found = self._texts[statement] = "\n".join(statement.lines(""))
        return found

    def tokens(self, statements: Sequence[Statement], numbered: str = "") -> int:
        """How much there is to read. numbered: a pattern for lists whose elements count as one each."""
        texts = [self.text(s) for s in statements]
        if numbered:
            element = re.compile(rf"\b(?:{numbered})(?:\[\d+\])+")
            texts = [element.sub("x", text) for text in texts]
        known = self._tokens
        for text in texts:
            if text not in known:
                known[text] = count_tokens(text)
        return sum([known[text] for text in texts])

    def key(self, statement: Assign | Unpack, local: Collection[str]) -> Key:
        """`key_of` the value of a statement."""
        found = self._keys.get(statement)
        if found is None:
            called: set[str] = set()
            key = key_of(statement.value, (), called)
            found = self._keys[statement] = key, called
        return found[0] if found[1].isdisjoint(local) else key_of(statement.value, local)

    def heads_in(self, statement: Assign | Unpack | Return) -> set[Beginning]:
        """The `head_of` every call and operation in a statement that is not all that it binds a name to."""
        found = self._heads.get(statement)
        if found is None:
            own = None if isinstance(statement, Return) else statement.value
            inside = [n for n in nodes_of(statement) if (type(n) is Call or type(n) is Binary) and n is not own]
            heads = {head_of(n) for n in inside}
            found = self._heads[statement] = heads
        return found

    def substituted(self, statements: Sequence[Statement], new: Mapping[str, Expr]) -> list[Statement]:
        """Statements with expressions in the place of variables, none of which they bind."""
        if not new:
            return list(statements)
        kept = [type(s) in _PLAIN and new.keys().isdisjoint(self.read_by(s)) for s in statements]
        return [s if keep else substituted(s, new) for s, keep in zip(statements, kept, strict=True)]

    def renamed(self, statements: Sequence[Statement], old: str, new: str) -> list[Statement]:
        """Statements with another name for a variable that they read or bind."""
        kept = [type(s) in _PLAIN and old not in self.read_by(s) and old not in targets_of(s) for s in statements]
        return [s if keep else renamed(s, old, new) for s, keep in zip(statements, kept, strict=True)]


def count_tokens(text: str) -> int:
    """Words, numbers and signs of a text."""
    return len(_TOKEN.findall(text))


def head_of(node: Call | Binary) -> Beginning:
    """What a call or an operation begins with: equal for those whose keys are, but for calls of variables."""
    if isinstance(node, Binary):
        return node.op
    return node.func if type(node.func) is str else None, len(node.args)


def key_of(node: object, local: Collection[str], called: set[str] | None = None) -> Key:
    """What an expression says, without its variables; of a call of a function of the module, only which one it is.

    called: gets the names of what is called, which would not count where they are among `local`.
    """
    if type(node) is Call and type(node.func) is str and "." not in node.func and node.func not in local:
        if called is not None:
            called.add(node.func)
        return "call", node.func, len(node.args)
    found: list[Hashable] = []
    stack: list[Any] = [node]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is Name or isinstance(value, Leaf):
            found.append("")
        elif kind is Text:
            found.append("#" if NUMBER.fullmatch(value.text) else value.text)
        elif kind is Call:
            if type(value.func) is str:
                found.append("" if value.func in local else value.func)
                if called is not None:
                    called.add(value.func)
            else:
                stack.append(value.func)
            found.append((len(value.args), tuple([k for k, _ in value.kwargs])))
            stack.extend([v for _, v in value.kwargs])
            stack.extend(value.args)
        elif kind is Binary or kind is Unary:
            found.append(value.op)
            stack.extend([_begun(value), value.right] if kind is Binary else [value.value])
        elif kind is Lambda:
            found.append(value.flat())
        elif kind is Subscript:
            index = value.index.elements if type(value.index) is Tuple else [value.index]
            found.append("[]")
            stack.extend([*index, value.value])
        else:
            found.append(kind.__name__)
            for child in _children(value):
                if type(child) is str:
                    found.append(child)
                else:
                    stack.append(child)
    return tuple(found)


def _begun(sum_: Binary) -> Expr:
    """What is added to, where that may be a sum's beginning: `0.0 + x` is `total + x` in the turns that follow."""
    return Name("_") if sum_.op == "+" and is_zero(sum_.left) else sum_.left


def _children(node: object) -> Iterator[object]:
    stack = list(reversed(parts_of(node)))
    while stack:
        value = stack.pop()
        if type(value) is list or type(value) is tuple:
            stack.extend(reversed(value))
        elif value is not None:
            yield value if type(value) is str or hasattr(value, "flat") else repr(value)
