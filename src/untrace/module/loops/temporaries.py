"""Expressions that stand in others, as statements of their own, where the same one is a statement elsewhere.

Whether a value stands in the expression that uses it depends on what is around it: the last layer's `x + h` on the
statement after the loop. Where repetition is looked for, all turns must say the same in as many statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from untrace.ir.types import Origin
from untrace.module.def_use import substituted, targets_of
from untrace.module.loops.memo import Beginning, Key, Known, head_of, key_of
from untrace.python.names import base_of
from untrace.python.statements import Assign, Compound, Def, Return, Statement, Unpack
from untrace.python.tree import Binary, Call, Expr, Lambda, Name
from untrace.python.walk import is_node, rebuilt


def unfold(
    statements: Sequence[Statement], fresh: Callable[[str], str], known: Known
) -> tuple[list[Statement], set[str]]:
    """(the statements, the new variables among them), each that is read once right before the statement that reads it."""
    local = {name for s in statements for name in targets_of(s)}
    named: dict[Key, list[str]] = {}
    heads: set[Beginning] = set()
    for statement in statements:
        if type(statement) is Assign and len(statement.targets) == 1 and type(statement.targets[0]) is str:
            if type(statement.value) is Call or type(statement.value) is Binary:
                named.setdefault(known.key(statement, local), []).append(statement.targets[0])
                head = head_of(statement.value)
                heads.update(
                    [(name, head[1]) for name in local] if type(head) is tuple and head[0] in local else [head]
                )
    if not named:
        return list(statements), set()
    unfolder = _Unfolder(named, heads, local, fresh)
    found = [s for statement in statements for s in unfolder.statements(statement, known)]
    if not unfolder.temporary:
        return list(statements), set()
    readers: dict[str, list[Statement]] = {}
    for statement in statements:
        for name in known.read_by(statement):
            readers.setdefault(name, []).append(statement)
    alike = {
        name
        for name, keys in unfolder.moved.items()
        if len(own := readers.get(name, ())) == 1
        if isinstance(own[0], (Assign, Unpack)) and known.key(own[0], local) in keys
    }
    return _ordered(found, alike, known), unfolder.temporary


class _Unfolder:
    """Takes expressions out of statements: those of `heads` that are `named`, by their keys. `temporary`: the new variables;
    `moved`: the names of what is the same as what was taken out, with the keys of what reads that."""

    def __init__(
        self, named: Mapping[Key, Sequence[str]], heads: set[Beginning], local: set[str], fresh: Callable[[str], str]
    ):
        self.named, self.heads, self.local, self.fresh = named, heads, local, fresh
        self.temporary: set[str] = set()
        self.moved: dict[str, set[Key]] = {}
        self._alike: dict[str, Sequence[str]] = {}  # by new variable: the names of what is the same
        self._before: list[Statement] = []  # what is to stand before the statement
        self._origin: Origin = None

    def statements(self, statement: Statement, known: Known) -> list[Statement]:
        """A statement, and before it what is taken out of it."""
        if not isinstance(statement, (Assign, Return, Unpack)):
            return [statement]
        if self.heads.isdisjoint(known.heads_in(statement)):
            return [statement]
        self._before, self._origin = [], getattr(statement, "origin", None)
        if isinstance(statement, Return):
            made = rebuilt(statement, self._taken_out)
        else:
            made = rebuilt(statement, lambda n: rebuilt(n, self._taken_out))
        found = [*self._before, made]
        for reader in found:
            if not isinstance(reader, Return):
                for word in [w for name in known.read_by(reader) for w in self._alike.pop(name, ())]:
                    self.moved.setdefault(word, set()).add(known.key(reader, self.local))
        return found

    def _taken_out(self, node: object) -> object:
        if type(node) is Lambda or not is_node(node):
            return node
        made = rebuilt(node, self._taken_out)
        if (type(made) is Call or type(made) is Binary) and head_of(made) in self.heads:
            words = self.named.get(key_of(made, self.local), ())
            if not words and made is not node:
                words = self.named.get(key_of(node, self.local), ())
            if words:
                name = self.fresh(base_of(words[0]))
                self.temporary.add(name)
                self._alike[name] = words
                self._before.append(Assign([name], made, self._origin))
                return Name(name)
        return made


def _ordered(statements: Sequence[Statement], alike: set[str], known: Known) -> list[Statement]:
    """Statements that bind one of `alike` right before the one that reads it, as what was taken out stands."""
    waiting: dict[str, Statement] = {}
    found: list[Statement] = []
    for statement in statements:
        targets = targets_of(statement)
        if len(targets) == 1 and targets[0] in alike:
            waiting[targets[0]] = statement
            continue
        ready: list[Statement] = []
        stack = [statement]
        while stack:
            reader = stack.pop()
            for name in known.read_by(reader):
                if name in waiting:
                    ready.append(waiting.pop(name))
                    stack.append(ready[-1])
        found.extend(reversed(ready))
        found.append(statement)
    return [*found, *waiting.values()]


def fold_back(statements: Sequence[Statement], temporary: set[str], known: Known) -> list[Statement]:
    """The statements with the temporary variables that are read once in the place where they are."""
    if not temporary:
        return list(statements)
    read = Counter(n for s in statements for n in known.read_by(s))
    found: list[Statement] = []
    inside: dict[str, Expr] = {}
    folded = temporary.difference(*[known.read_by(s) for s in statements if isinstance(s, (Compound, Def))])
    for statement in statements:
        reads_one = inside and not inside.keys().isdisjoint(known.read_by(statement))
        made = substituted(statement, inside) if reads_one else statement
        targets = targets_of(made)
        if type(made) is Assign and len(targets) == 1 and targets[0] in folded and read[targets[0]] == 1:
            inside[targets[0]] = made.value
            continue
        found.append(made)
    return found
