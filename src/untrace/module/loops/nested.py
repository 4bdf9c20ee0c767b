"""Loops inside the turns of another: what repeats in the body of a loop that was written becomes one too.

The body is looked at as a function: of what is handed to a turn, it gives what that hands on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from untrace.module.def_use import read_by, renamed, targets_of
from untrace.python.coalesce_names import is_idle
from untrace.python.statements import Assign, Compound, Def, For, Parameter, Return, Statement, Unpack
from untrace.python.tree import Name, Symbol, Tuple
from untrace.python.walk import copied


def roll_body(
    loop: For, later: Collection[str], roll: Callable[[Def], bool], fresh: Callable[[str], str], authors: dict[str, str]
) -> For:
    """The loop with loops in its body, where something repeats there; else itself. later: what is read after it. roll: makes
    loops of what repeats in a function; fresh: gives a new name; authors: what the author calls variables."""
    body = list(loop.body)
    bound = Counter(name for s in body for name in targets_of(s))
    if any(isinstance(s, (Compound, Def)) for s in body) or any(times > 1 for n, times in bound.items() if n != "_"):
        return loop
    place = {name: at for at, s in enumerate(body) for name in targets_of(s)}
    handed = list(dict.fromkeys(n for at, s in enumerate(body) for n in read_by(s) if place.get(n, -1) >= at))
    given = [*handed, *[n for n in place if n in later and n not in handed]]
    own: dict[str, str] = {}
    for name in handed:
        own[name], at = fresh(name), place[name]
        body[at] = _bound_as(body[at], name, own[name])
        body[at + 1 :] = [renamed(s, name, own[name]) for s in body[at + 1 :]]
    results = [Name(own.get(name, name), Symbol(author=authors.get(name, name))) for name in given]
    turn = Def("turn", [Parameter(name) for name in handed], [*body, Return(Tuple(results))])
    if not roll(turn):
        return loop
    *body, last = turn.body
    assert type(last) is Return and type(last.value) is Tuple
    for name, result in zip(given, last.value.elements, strict=True):
        if type(result) is not Name or result.id in given and result.id != name:
            return loop
        if result.id != name:
            body = _handed_on(body, result.id, name)
    made = copied(loop)
    made.body = body
    return made


def _bound_as(statement: Statement, old: str, new: str) -> Statement:
    """A statement that binds another name, but reads the old one."""
    made = renamed(statement, old, new)
    if isinstance(made, (Assign, Unpack)) and isinstance(statement, (Assign, Unpack)):
        made = copied(made)
        made.value = statement.value
    return made


def _handed_on(body: Sequence[Statement], name: str, wanted: str) -> list[Statement]:
    """The statements, after which a variable is called otherwise: from the first on that binds it, where nothing reads any more
    what had that name before."""
    first = next(at for at, s in enumerate(body) if name in _bound_in(s))
    read = [n for at, s in enumerate(body[first:]) if at or isinstance(s, Compound) for n in read_by(s)]
    if wanted in read:
        return [*body, Assign([wanted], Name(name))]
    made = [renamed(s, name, wanted) for s in body]
    return [s for s in made if not is_idle(s)]


def _bound_in(statement: Statement) -> set[str]:
    inside = statement.body if isinstance(statement, For) else [statement]
    return {name for s in inside for name in (_bound_in(s) if s is not statement else targets_of(s))}
