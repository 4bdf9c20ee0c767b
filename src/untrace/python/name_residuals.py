"""What a loop saves is called the same in its body and in that of the loop of the backward pass that takes it.

The two bodies are functions of their own, and what has a name in both is numbered by the order in which names are given
there: the `scaled_2` of one would be the `scaled` of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from untrace.ir.values import Value
from untrace.python.coalesce_names import functions_of, rename
from untrace.python.inline_neighbours import words_of
from untrace.python.names import base_of
from untrace.python.scope_index import own_nodes
from untrace.python.statements import Def, Statement


def match_residuals(definitions: Sequence[Statement], residuals: Mapping[Value, Value]) -> None:
    """Renames variables of `definitions`. residuals: what a loop takes of an earlier one -> what that one saves."""
    if not residuals:
        return
    functions = [f for d in definitions if type(d) is Def for f in functions_of(d)]
    standing = [own_nodes(f.body) for f in functions]
    written = {n.symbol.value: n for own in standing for n in own.names if n.symbol.value is not None}
    for function, own in zip(functions, standing, strict=True):
        taken = {n.id: residuals[v] for n in own.names if (v := n.symbol.value) is not None and v in residuals}
        wishes = {name: written[saved].id for name, saved in taken.items() if saved in written}
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
