"""Calls of one local function in a row that go through a list of parameters, which `reroll="scan"` makes a scan of; and such
lists, which loops of statements go through as well.

    x = block(params["blocks"][0], x)
    x = block(params["blocks"][1], x)      ->      x, _ = lax.scan(lambda x, layer: (block(layer, x), None), x, layers)

What a call gives back may only go into the next one; what else it is passed is the same every time, or stands at the same place
in the elements of one list (or at keys in a row).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Local, Value
from untrace.lift.naming.words import singular
from untrace.module.access_paths import Step
from untrace.python.tree import Call, Expr, Leaf, Name, Slice, Subscript, Text

_KEY_NUMBER = re.compile(r"\d+")


def run_length(equations: Sequence[Equation], start: int) -> int:
    """How many equations from `start` on call the same local function."""
    body = callee_of(equations[start], Local).body
    stop = start + 1
    while stop < len(equations) and type(callee := equations[stop].callee) is Local and callee.body is body:
        stop += 1
    return stop - start


class Uses:
    """Where the values of a function are used, by the place of the equation; results count as one more."""

    def __init__(self, equations: Sequence[Equation], results: Sequence[object]):
        self.equations = equations
        self.by_value: dict[Value, list[int]] = {}
        for at, equation in enumerate(equations):
            for atom in equation.inputs:
                if type(atom) is Value:
                    self.by_value.setdefault(atom, []).append(at)
        for atom in results:
            if type(atom) is Value:
                self.by_value.setdefault(atom, []).append(len(equations))

    def after(self, value: Value, place: int) -> bool:
        uses = self.by_value.get(value, ())
        return bool(uses) and uses[-1] > place


def carries_of(run: Sequence[Equation], start: int, uses: Uses) -> dict[int, int] | None:
    """{place of an input: the output of the call before that goes there}; None where the calls do anything else."""
    first, second = run[0], run[1]
    outputs = {o: i for i, o in enumerate(first.outputs) if o is not None}
    carries = {p: outputs[a] for p, a in enumerate(second.inputs) if a in outputs}
    if len(set(carries.values())) != len(carries):
        return None
    for turn, (before, after) in enumerate(zip(run, run[1:], strict=False)):
        for place, output in carries.items():
            if after.inputs[place] is not before.outputs[output] or before.outputs[output] is None:
                return None
        passed = set(carries.values())
        for i, output in enumerate(before.outputs):
            if output is None:
                continue
            if i not in passed or uses.by_value.get(output) != [start + turn + 1]:
                return None
    last = run[-1].outputs
    if any(o is not None and i not in set(carries.values()) for i, o in enumerate(last)):
        return None
    return carries


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
        if stop == length - 1:
            self.root.symbol.but_last.add(self.above)
        return Subscript(whole, Slice(Text(str(start)) if start else None, last))

    def word(self) -> str:
        """What one element is called: `layer` of `layers`."""
        for kind, text, _ in reversed(self.above):
            plain = text.strip("'\"") if kind == "item" else text
            if plain.isidentifier():
                return singular(plain)
        word = singular(self.root.id)
        return word if word != self.root.id else "layer"


@dataclass(frozen=True, slots=True)
class Turns:
    """Calls of `function` that are to be a scan, one turn for each element.

    `args`: its arguments, expressions or the place of a carry (None for an element). `elements`: (place among `args`, the
    element, whether it is an array and no tree). `carries`: the variable of each carry by its place. `targets`: those that
    the results of a call are given to. `start`: what the carries begin as.
    """

    function: str
    args: Sequence[Expr | int | None]
    elements: Sequence[tuple[int, Element, bool]]
    carries: Mapping[int, str]
    targets: Sequence[str]
    start: Sequence[Expr]
    length: int


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
