"""Functions that are left have the first name of theirs that is free: `encoder` for `encoder_2`, where that one is gone."""

from __future__ import annotations

from collections.abc import Sequence

from untrace._identifiers import RESERVED
from untrace.module.check import outside_names
from untrace.module.def_use import bound_names
from untrace.module.merge.alpha_equivalent import in_longer_texts, renamed_functions
from untrace.module.merge.parametric import mentioned_in
from untrace.module.writer import ModuleWriter
from untrace.python.names import base_of
from untrace.python.statements import Def, Statement


def number_again(module: ModuleWriter, others: Sequence[Statement]) -> None:
    """Renames definitions of `module`, in place. others: those of its definitions that stay."""
    everything = [*module.definitions, *others]
    numbered = [d for d in module.definitions if type(d) is Def and base_of(d.name) != d.name and not d.decorators]
    numbered = [d for d in numbered if module.local_definitions.get(d.name) is d and not _is_authors(module, d.name)]
    if not numbered:
        return
    fixed = in_longer_texts(everything)
    taken = {*RESERVED, *outside_names(module, everything)}
    for statement in everything:
        taken.update(bound_names(statement))
        taken.update([word.partition(".")[0] for word in mentioned_in(statement)])
    names: dict[str, str] = {}
    for definition in numbered:
        base, _, number = definition.name.rpartition("_")
        lower = [base, *[f"{base}_{k}" for k in range(2, int(number))]]
        name = next((n for n in lower if n not in taken), None)
        if name is None or definition.name in fixed:
            continue
        names[definition.name] = name
        taken = taken - {definition.name} | {name}
    for statement in everything:
        renamed_functions(statement, names)
    for definition in numbered:
        if definition.name in names:
            del module.local_definitions[definition.name]
            definition.name = names[definition.name]
            module.local_definitions[definition.name] = definition


def _is_authors(module: ModuleWriter, name: str) -> bool:
    """Whether the author's function has a number in its name."""
    callee = module.callees.get(name)
    return callee is not None and callee.name == name
