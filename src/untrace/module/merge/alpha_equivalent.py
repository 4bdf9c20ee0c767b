"""One definition for functions of the module whose texts are equal but for names.

JAX traces the body of a loop, or a rule, anew wherever it is used, and a rule brings its functions along: several
definitions then say the same. Here the first stands for all, with its decorators and rules; those that name
another name the first. (`parametric` merges functions that were outlined, and those that differ in numbers.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from untrace.module.def_use import bound_names
from untrace.module.merge.parametric import Alike, outline_of
from untrace.module.writer import ModuleWriter
from untrace.python.anti_unify import Different
from untrace.python.names import base_of
from untrace.python.statements import Def, Statement
from untrace.python.tree import Call, Name, Text
from untrace.python.walk import nodes_of

_WORD = re.compile(r"[A-Za-z_]\w*")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*")


def merge_equal(module: ModuleWriter, others: Sequence[Statement]) -> None:
    """Drops definitions of `module` that another one stands for. others: those of its definitions that stay."""
    if sum(type(s) is Def for s in module.definitions) < 2:
        return
    outlines = Counter(_outline(unit) for unit in _units(module))
    if all(count == 1 for count in outlines.values()):
        return
    fixed = in_longer_texts([*module.definitions, *others])
    first: dict[object, list[Sequence[Statement]]] = {}
    names: dict[str, str] = {}
    gone: set[Statement] = set()
    for unit in _units(module):
        for statement in unit:
            renamed_functions(statement, names)
        own = [s.name for s in unit if type(s) is Def]
        outline = _outline(unit)
        if not own or outlines[outline] == 1 or not fixed.isdisjoint(own):
            continue
        known = first.setdefault(outline, [])
        before = next((u for u in known if say_the_same(u, unit)), None)
        if before is None:
            known.append(unit)
            continue
        gone.update(unit)
        for ours, theirs in zip(before, unit, strict=True):
            if type(ours) is Def and type(theirs) is Def:
                names[theirs.name] = ours.name
                module.local_definitions.pop(theirs.name, None)
                if module.described.types_of(ours) is not None and module.described.types_of(theirs) is not None:
                    module.described.shared(ours, theirs)
    if gone:
        module.definitions[:] = [s for s in module.definitions if s not in gone]
        for statement in others:
            renamed_functions(statement, names)


def _units(module: ModuleWriter) -> Iterator[Sequence[Statement]]:
    """The definitions in order, a function together with its rules."""
    unit_of = {s: unit for unit in module.units for s in unit}
    there = set(module.definitions)
    done: set[Statement] = set()
    for statement in module.definitions:
        unit = unit_of.get(statement, [statement])
        if unit[0] not in done and there.issuperset(unit):
            done.add(unit[0])
            yield unit


def _outline(unit: Sequence[Statement]) -> tuple[object, ...]:
    """The same for definitions of one form."""
    return tuple([outline_of(s) if type(s) is Def else type(s) for s in unit])


def say_the_same(one: Sequence[Statement], other: Sequence[Statement]) -> bool:
    """Whether definitions do, but for the names that they bind, and are called the same: an author's `encode` and `decode` stay two."""
    own = [[s.name for s in unit if type(s) is Def] for unit in (one, other)]
    if base_of(own[0][0] if own[0] else "") != base_of(own[1][0] if own[1] else ""):  # rules are called after it
        return False
    try:
        for ours, theirs in zip(one, other, strict=True):
            if type(ours) is Def and type(theirs) is Def:
                Alike([set(bound_names(s)) for s in (ours, theirs)], own).definition([ours, theirs])
            else:
                Alike([(), ()], own).common([ours, theirs])
    except Different:
        return False
    return True


def in_longer_texts(statements: Sequence[Statement]) -> set[str]:
    """The names that stand in pieces of text which are more than a name: these are not renamed."""
    texts = {n.text for s in statements for n in nodes_of(s) if type(n) is Text and not _DOTTED.fullmatch(n.text)}
    return {word for text in texts for word in _WORD.findall(text)}


def renamed_functions(statement: Statement, names: Mapping[str, str]) -> None:
    """Names other functions in a definition, where it does not bind these names itself."""
    if not names:
        return
    bound = set(bound_names(statement)) if type(statement) is Def else set()
    known = {old: new for old, new in names.items() if old not in bound}
    if not known:
        return

    def renamed(text: str) -> str:
        head, dot, rest = text.partition(".")
        return known.get(head, head) + dot + rest

    for node in nodes_of(statement):
        if type(node) is Name:
            node.id = renamed(node.id)
        elif type(node) is Text and _DOTTED.fullmatch(node.text):
            node.text = renamed(node.text)
        elif type(node) is Call and type(node.func) is str:
            node.func = renamed(node.func)
