"""Numbers at the ends of names close up where a name is gone: `x_3` is `x_2` where that went into another line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from untrace.python.coalesce_names import functions_of, own_statements, rename
from untrace.python.inline_neighbours import words_of
from untrace.python.scope_index import EXPRESSIONS, Own
from untrace.python.statements import Assign, Def, Statement, Unpack

_NUMBER = re.compile(r"_(\d+)$")


def names_bound(definitions: Sequence[Statement]) -> dict[int, set[str]]:
    """The variables of every function, by its id."""
    return {id(d): set(_bound(own_statements(d.body))) for one in definitions for d in _functions(one)}


def count_again(
    definitions: Sequence[Statement],
    before: Mapping[int, set[str]],
    nodes: Mapping[int, Own],
    known: Mapping[int, Mapping[str, int]] = {},  # noqa: B006
) -> None:
    """Renames variables of `definitions`. before: what each bound when its names were given; nodes: the `own_nodes` of each,
    by its id; known: the `words_of` a definition, by its id, where they are."""
    for definition in definitions:
        functions = [d for d in _functions(definition) if len(before.get(id(d), ())) > 1]
        if not functions:
            continue
        now = {id(f): set(_bound(own_statements(f.body))) for f in functions}
        if all(before[id(f)] <= now[id(f)] for f in functions):
            continue
        assert isinstance(definition, Def)  # what has functions is one
        words = known.get(id(definition)) or words_of(definition)
        for function in functions:
            free = [name for name in before[id(function)] - now[id(function)] if name not in words]
            if free:
                _close_up(nodes[id(function)], now[id(function)], free, words)


def _close_up(own: Own, bound: Collection[str], free: Sequence[str], words: Mapping[str, int]) -> None:
    first: dict[str, int] = {}
    for base, number in map(_family, free):
        first[base] = min(number, first.get(base, number))
    later: dict[str, set[int]] = {}
    for name in bound:
        base, number = _family(name)
        # Those that a function inside reads as well keep their names.
        if number > first.get(base, number) and own.counts[name] == words[name]:
            later.setdefault(base, set()).add(number)
    new: dict[str, str] = {}
    for base, numbers in later.items():
        place = first[base]
        for number in sorted(numbers):
            new[f"{base}_{number}"] = f"{base}_{place}" if place > 1 else base
            place = number
    rename(own, new)


def _family(name: str) -> tuple[str, int]:
    """`x_3` is number 3 of the family `x`, and `x` its first."""
    found = _NUMBER.search(name)
    return (name[: found.start()], int(found[1])) if found else (name, 1)


def _bound(nodes: Iterable[Any]) -> list[str]:
    found: list[str] = []
    for node in nodes:
        if type(node) not in EXPRESSIONS and isinstance(node, (Assign, Unpack)):
            for target in node.targets:
                if type(target) is str:
                    found.append(target)
    return found


def _functions(statement: Statement) -> list[Def]:
    return list(functions_of(statement)) if type(statement) is Def else []
