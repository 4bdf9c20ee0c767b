"""Leaves that have a name which nothing reads any more, since the tree of them is written as a whole."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from untrace.python.statements import Assign, Def
from untrace.python.walk import nodes_of


def drop_unread(statements: Sequence[object], superseded: Container[str]) -> None:
    """Takes the assignments of those of these names that nothing reads out of their functions, in place."""
    for definition in [n for n in nodes_of(statements) if type(n) is Def]:
        own = {s: s.targets[0] for s in definition.body if type(s) is Assign and len(s.targets) == 1}
        named = {s: name for s, name in own.items() if type(name) is str and name in superseded}
        if named:
            text = "\n".join(definition.lines(""))
            unread = {s for s, name in named.items() if len(re.findall(rf"(?<![.\w]){re.escape(name)}\b", text)) == 1}
            definition.body = [s for s in definition.body if s not in unread]
