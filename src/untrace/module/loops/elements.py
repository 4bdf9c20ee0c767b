"""What a loop goes through: the elements of lists and dicts of arguments, which differ from turn to turn."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from untrace.lift.naming.words import singular
from untrace.module.access_paths import Step
from untrace.python.statements import Statement
from untrace.python.tree import Binary, Call, Expr, Leaf, Name, Slice, Subscript, Text
from untrace.python.walk import nodes_of

_KEY_NUMBER = re.compile(r"\d+")


# The list that something is an element of: its variable, the way to it, the keys that are gone through.
Source = tuple[str, tuple[Step, ...], tuple[Step, ...]]


class Element:
    """A part of the arguments that differs from turn to turn: the list that it is an element of, the keys, the way on."""

    def __init__(self, root: Name, above: tuple[Step, ...], keys: list[Step], below: tuple[Step, ...]):
        self.root, self.above, self.keys, self.below = root, above, keys, below

    @property
    def texts(self) -> tuple[str, ...]:
        """The keys as source."""
        return tuple([text for _, text, _ in self.keys])

    @property
    def source(self) -> Source:
        return self.root.id, self.above, tuple(self.keys)

    @staticmethod
    def of(ways: Sequence[tuple[Name, tuple[Step, ...]]]) -> Element | None:
        """What a tree is in each turn, as elements of one list or dict; None where the ways differ in another manner."""
        root, first = ways[0]
        if any(r.id != root.id or len(s) != len(first) for r, s in ways):
            return None
        differing = [i for i in range(len(first)) if len({s[i] for _, s in ways}) > 1]
        if len(differing) != 1:
            return None
        at = differing[0]
        keys = [s[at] for _, s in ways]
        if any(kind != "item" for kind, _, _ in keys):
            return None
        return Element(root, first[:at], keys, first[at + 1 :])

    def iterable(self) -> Expr | None:
        """The list, or the part of it that is gone through; None for keys that are no numbers in a row."""
        if any(not count for _, _, count in self.keys):
            return None
        numbers = [int(text) for _, text, _ in self.keys]
        start, stop, length = numbers[0], numbers[-1] + 1, self.keys[0][2]
        whole = Leaf(self.root, self.above)
        if numbers == list(range(length)):
            return whole
        if numbers == list(range(length))[::-1]:
            return Call("reversed", [whole])
        if len(numbers) > 1 and numbers == list(range(stop - 1, start + 1))[::-1]:
            inner = Element(self.root, self.above, self.keys[::-1], self.below).iterable()
            assert inner is not None  # its keys are numbers in a row
            return Call("reversed", [inner])
        step = numbers[1] - start if len(numbers) > 1 else 1
        if step > 1 and numbers == list(range(start, length, step)):  # all of them, from the first on
            return Subscript(whole, Slice(Text(str(start)) if start else None, None, Text(str(step))))
        if numbers != list(range(start, stop)):
            return None
        last = None if stop == length else Text("-1") if stop == length - 1 else Text(str(stop))
        return Subscript(whole, Slice(Text(str(start)) if start else None, last))

    def word(self) -> str:
        """What one element is called: `layer` of `layers`."""
        for kind, text, _ in reversed(self.above):
            plain = text.strip("'\"") if kind == "item" else text
            if plain.isidentifier():
                return singular(plain)
        word = singular(self.root.id)
        return word if word != self.root.id else "layer"


def places_in_tuples(members: Sequence[Element], words: str | list[str]) -> list[int] | None:
    """Which part each member is of an element that is a tuple, for which the author has a variable for each part."""
    steps = [e.below[0] for e in members if e.below]
    if isinstance(words, str) or len(steps) < len(members):
        return None
    return [int(text) for _, text, _ in steps] if {s[::2] for s in steps} == {("item", len(words))} else None


def terms_of_sum(node: Binary, begun: Callable[[Name], Expr | None]) -> list[Expr] | None:
    """The terms of a chain of additions that begins with zero, as Python's `sum` does; None for another one.

    begun: the value of a variable that may hold the beginning; None where it has to stay.
    """
    terms: list[Expr] = []
    first: Expr | None = node
    while type(first) is Binary and first.op == "+":
        terms.append(first.right)
        first = begun(first.left) if type(first.left) is Name else first.left
    return terms[::-1] if is_zero(first) else None


def is_zero(node: object) -> bool:
    """Whether it is the number that Python's `sum` begins with."""
    return type(node) is Text and node.text in ("0", "0.0")


def note_but_last(written: Statement | Expr) -> None:
    """Notes of `layers[:-1]`, which a loop goes through, that the last one is `layers[-1]`."""
    for node in nodes_of(written):
        match node:
            case Subscript(value=Leaf() as whole, index=Slice(stop=Text(text="-1"), step=None)):
                whole.root.symbol.but_last.add(whole.steps)


def key_pattern(keys: Sequence[str]) -> tuple[str, str, list[int]] | None:
    """(before, after, the numbers) of keys that differ in one number: `"layers_0"`, `"layers_1"`; None for others."""
    texts: list[str] = []
    for key in keys:
        try:
            text = ast.literal_eval(key)
        except (ValueError, SyntaxError):
            return None
        if type(text) is not str or not text.isprintable() or not text.isascii() or set(text) & set("{}\\\"'"):
            return None
        texts.append(text)
    for found in _KEY_NUMBER.finditer(texts[0]):
        before, after = texts[0][: found.start()], texts[0][found.end() :]
        numbers = []
        for text in texts:
            middle = text[len(before) : len(text) - len(after)]
            if not (
                text.startswith(before) and text.endswith(after) and middle.isdigit() and str(int(middle)) == middle
            ):
                break
            numbers.append(int(middle))
        if len(numbers) == len(texts) and len(set(numbers)) == len(numbers):
            return before, after, numbers
    return None
