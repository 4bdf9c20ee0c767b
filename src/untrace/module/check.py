"""The check of the statements of a module: what they read is bound."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Sequence

from untrace._errors import UntraceError
from untrace.module.def_use import bound_names, reads, targets_of
from untrace.module.writer import ModuleWriter
from untrace.python import helpers
from untrace.python.statements import Assign, Compound, Def, Statement, Unpack
from untrace.python.walk import parts_of

_BINDING = re.compile(r"^(?:class|def)\s+(\w+)|^(\w+)\s*=", re.MULTILINE)
_BUILTINS = frozenset(dir(builtins))


class UnboundName(UntraceError):
    """A name in the statements of a module that nothing binds before it is read."""


def check_names(module: ModuleWriter, statements: Sequence[Statement]) -> None:
    """Raises UnboundName where a function reads what neither it, nor the module, nor Python binds, or binds it later only."""
    known = {*_BUILTINS, *outside_names(module, statements)}
    for statement in statements:
        if type(statement) is Def:
            _check_function(statement, known)


def outside_names(module: ModuleWriter, statements: Sequence[Statement]) -> Iterator[str]:
    """What the functions of a module may read beside their own variables."""
    for path in module.modules:
        yield path.partition(".")[0]
    for line in module.imports:
        yield re.split(r"\W+", line.strip())[-1]
    for name in module.helpers:
        yield name
        yield from _bound_in(helpers.text(name))
    for statement in [*module.constants, *statements]:
        if type(statement) is Def:
            yield statement.name
        elif isinstance(statement, (Assign, Unpack)):
            yield from targets_of(statement)
        else:
            yield from _bound_in("\n".join(statement.lines("")))


def _bound_in(text: str) -> Iterator[str]:
    for match in _BINDING.finditer(text):
        yield match[1] or match[2]


def _check_function(function: Def, outside: set[str]) -> None:
    """`outside`: the names that are bound around it, at any time before it is called."""
    for part in [*function.decorators, *[p.default for p in function.params if p.default is not None]]:
        _check_read(part, outside, function)
    bound = {p.name for p in function.params}
    own = {*bound, *bound_names(function)}
    _check_body(function.body, bound, outside, {*outside, *own}, function)


def _check_body(body: Sequence[Statement], bound: set[str], outside: set[str], inside: set[str], function: Def) -> None:
    """Adds to `bound` what the statements of a function bind. `inside`: what functions inside it may read."""
    own = inside - outside
    for statement in body:
        if type(statement) is Def:
            _check_function(statement, inside)
            bound.add(statement.name)
        elif isinstance(statement, Compound):
            for part in parts_of(statement):
                if type(part) is list or type(part) is tuple:
                    bound.update(_words(getattr(statement, "target", "")))
                    _check_body(part, bound, outside, inside, function)
                else:
                    _check_read(part, (outside - own) | bound, function)
        else:
            value = statement.value if isinstance(statement, (Assign, Unpack)) else statement
            _check_read(value, (outside - own) | bound | set(_bound_inside(value)), function)
            bound.update(targets_of(statement))


def _bound_inside(node: object) -> Iterator[str]:
    """What a statement binds that is no assignment."""
    if isinstance(node, Statement):
        yield from bound_names(node)


def _words(target: object) -> list[str]:
    return re.findall(r"\w+", target) if type(target) is str else []


def _check_read(node: object, known: set[str], function: Def) -> None:
    if type(node) is str or node is None:
        return
    missing = [name for name in reads(node) if name.partition(".")[0] not in known]
    if missing:
        raise UnboundName(f"`{function.name}` reads `{missing[0]}`, which nothing binds before it")
