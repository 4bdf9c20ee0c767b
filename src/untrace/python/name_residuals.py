"""What a loop saves is called the same in its body and in that of the loop of the backward pass that takes it.

The two bodies are functions of their own, and what has a name in both is numbered by the order in which names are given
there: the `scaled_2` of one would be the `scaled` of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from untrace.python.coalesce_names import functions_of, rename
from untrace.python.inline_neighbours import words_of
from untrace.python.names import base_of
from untrace.python.scope_index import own_nodes
from untrace.python.statements import Def, Statement
from untrace.python.tree import Name


def match_residuals(definitions: Sequence[Statement], pairs: Iterable[tuple[Name, Name]]) -> None:
    """Renames variables of `definitions`. pairs: (the variable of a loop's body, that of what a later loop takes of it)."""
    wanted = {id(taken): saved for saved, taken in pairs}
    if not wanted:
        return
    functions = [f for d in definitions if type(d) is Def for f in functions_of(d)]
    standing = {id(f): own_nodes(f.body) for f in functions}
    written = {id(n) for own in standing.values() for n in own.names}
    for function in functions:
        own = standing[id(function)]
        found = {n.id: wanted[id(n)] for n in own.names if id(n) in wanted}
        wishes = {name: saved.id for name, saved in found.items() if id(saved) in written}
        if any(name != wish for name, wish in wishes.items()):
            words = words_of(function)
            mine = {name for name, count in own.counts.items() if words[name] == count} & _bound(own.statements)
            rename(own, _exchanged(wishes, mine, words))


def _bound(statements: Sequence[Any]) -> set[str]:
    return {t for s in statements for t in s.targets if type(t) is str}


def _exchanged(wishes: Mapping[str, str], mine: set[str], words: Mapping[str, int]) -> dict[str, str]:
    """Old name -> new name. mine: variables that can have another one; words: all that stand in the function."""
    new = {name: wish for name, wish in wishes.items() if name in mine and (wish in mine or wish not in words)}
    new = {name: wish for name, wish in new.items() if list(new.values()).count(wish) == 1}
    # What has a wished name, and no wish itself, takes one of its own family that became free.
    while True:
        free = sorted(set(new) - set(new.values()), key=lambda name: (len(name), name))
        losing = [name for name in new.values() if name not in new and name in words]
        if not losing:
            return new
        name = losing[0]
        other = next((f for f in free if base_of(f) == base_of(name)), None)
        if other is not None:
            new[name] = other
        else:  # there is none: the wish is not granted
            new = {old: wish for old, wish in new.items() if wish != name}
