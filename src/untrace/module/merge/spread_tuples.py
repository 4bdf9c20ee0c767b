"""Arguments that are all the parts of one tuple, in order, are passed as its author passes them: `layer_norm(x, *block["norm"])`."""

from __future__ import annotations

from collections.abc import Sequence

from untrace.module.access_paths import tuple_around
from untrace.module.writer import ModuleWriter
from untrace.python.statements import Statement
from untrace.python.tree import Call, Expr, Star
from untrace.python.walk import nodes_of


def spread_tuples(module: ModuleWriter, statements: Sequence[Statement]) -> None:
    """Does so in the calls of functions of `module`, and of transformed ones, in place."""
    for node in nodes_of(statements):
        if type(node) is Call and (type(node.func) is Call or node.func in module.local_definitions):
            node.args = _spread(node.args)


def _spread(args: Sequence[Expr]) -> Sequence[Expr]:
    made: list[Expr] = []
    at = 0
    while at < len(args):
        found = tuple_around(args[at:])
        made.append(args[at] if found is None else Star(found[1]))
        at += 1 if found is None else found[0]
    return made if len(made) < len(args) else args
