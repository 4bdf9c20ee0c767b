"""What stands in one function, without the functions inside it, and what can be seen of its variables without parsing it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

from untrace.python.statements import Assign, Def, Return, Unpack
from untrace.python.tree import Attribute, Binary, Call, Lambda, Name, Subscript, Text, Tuple, Unary
from untrace.python.walk import slots_backwards

# Most of what stands in a function and is no statement.
EXPRESSIONS = frozenset((Name, Text, Call, Binary, Unary))
# Nodes that print what they are made of, and no variable besides, and have none of their own.
_PLAIN = frozenset((Name, Text, Call, Binary, Unary, Attribute, Subscript, Tuple))


class Own(NamedTuple):
    """What stands in a function, without the functions inside it.

    `names`: its variables, and `statements`: what binds them, each once; `counts`: how often each of its variables stands
    there. `bound`: where that is as much as a `Straight` needs, its statements, and `texts` the words that stand in no
    Name.
    """

    names: list[Name]
    statements: list[Any]
    counts: Counter[str]
    bound: list[tuple[str | None, list[str]]] | None = None
    texts: Collection[str] = ()


def own_nodes(body: Any) -> Own:
    """See Own."""
    names: list[Name] = []
    binding: list[Any] = []
    words: list[str] = []
    kinds: set[type] = set()
    texts: set[str] = set()
    starts: list[tuple[Any, int]] = []  # of each assignment and `return`, the last first: the first of its words
    again = False  # whether a part is met twice, whose words then count once
    stack, seen = [body], set()
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is list or kind is tuple:
            stack.extend(value)
        elif kind is Name:
            words.append(value.id)
            if id(value) not in seen:
                seen.add(id(value))
                names.append(value)
        elif kind is not Def and kind is not Lambda:
            slots = slots_backwards(value)
            if slots is None:
                continue
            if id(value) in seen:
                again = again or kind is not Text
                continue
            seen.add(id(value))
            if kind is Text:
                texts.add(value.text)
                continue
            if kind is Call:
                if type(value.func) is str:
                    texts.add(value.func)
                else:
                    stack.append(value.func)
                stack.append(value.args)
                stack.append(value.kwargs)
                continue
            if kind is Binary:
                stack.append(value.left)
                stack.append(value.right)
                continue
            if kind is Assign or kind is Return:
                starts.append((value, len(words)))
            else:
                kinds.add(kind)
            for slot in reversed(slots):
                part = getattr(value, slot, None)
                if type(part) is not str and part is not None:
                    stack.append(part)
            if kind not in EXPRESSIONS and isinstance(value, (Assign, Unpack)):
                binding.append(value)
                words += [t for t in value.targets if type(t) is str]
        else:
            kinds.add(kind)
    counts = Counter(words)
    if again or not kinds <= _PLAIN or any(map(_NOT_STRAIGHT.search, texts)):
        return Own(names, binding, counts)
    bound: list[tuple[str | None, list[str]]] = []
    end = len(words)
    for statement, start in reversed(starts):
        name: Any = None
        if type(statement) is Assign:
            name = statement.targets[0] if len(statement.targets) == 1 else None
            if type(name) is not str or not name.isidentifier():
                return Own(names, binding, counts)
            start += 1
        bound.append((name, words[start:end]))
        end = start - (name is not None)
    return Own(names, binding, counts, bound, {word for text in texts for word in _VARIABLE.findall(text)})


class Straight(NamedTuple):
    """A function of one assignment to one name after the other, and nothing with variables of its own in them.

    `statements`: the name that each binds, None of a `return`, and the words that it reads, its variables among them.
    """

    arguments: list[str]
    statements: list[tuple[str | None, list[str]]]


# Neither an attribute, nor the name of an argument, nor a part of a number.
_VARIABLE = re.compile(r"(?<![\w.])[^\W\d]\w*(?!\w|=(?!=))")
_NOT_STRAIGHT = re.compile(r"[\"'#{:]|\b(?:lambda|for)\b")


def straight_of(definition: Def, own: Own | None = None) -> Straight | None:
    """What can be seen in a function's text without parsing it; None where that is not enough. own: its `own_nodes`."""
    parameters = [p.name for p in definition.params]
    if own is not None and own.bound is not None and own.counts.keys().isdisjoint(own.texts):
        return Straight(parameters, own.bound)
    found: list[tuple[str | None, list[str]]] = []
    for statement in definition.body:
        name: Any = None
        if type(statement) is Assign and len(statement.targets) == 1:
            name = statement.targets[0]
            if type(name) is not str or not name.isidentifier():
                return None
        elif type(statement) is not Return:
            return None
        text = statement.value.flat()
        if _NOT_STRAIGHT.search(text):
            return None
        found.append((name, _VARIABLE.findall(text)))
    return Straight(parameters, found)
