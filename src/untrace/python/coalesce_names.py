"""A value gets its author's name again, where the value that had it before is not read any more.

    x_2 = x + attention(x)             x = x + attention(x)
    x_3 = x_2 + mlp(x_2)       ->      x = x + mlp(x)
    return x_3 / 2                     return x / 2

This is the last step before the text is laid out, for expressions stand inside others by then: what is read where is
seen in the statements as they will be printed (by `ast`). A name that a function, a lambda or a comprehension inside
this function reads keeps its one value: Python looks it up when that runs.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from untrace.provenance.sites import Provenance, Site, binds_again
from untrace.python.scope_index import Own, Straight, own_nodes, straight_of
from untrace.python.statements import Assign, Def, Statement, Unpack
from untrace.python.tree import Expr
from untrace.python.walk import parts_of

_NUMBER = re.compile(r"_(\d+)$")


def rebind_names(
    definitions: Sequence[Statement],
    provenance: Provenance,
    words: dict[int, Counter[str]] = {},  # noqa: B006
) -> dict[int, Own]:
    """Renames variables of `definitions`. words: by its id, how often each word stands in a definition, where that is
    known: kept right, or forgotten. Gives the `own_nodes` of every function, by its id."""
    found: dict[int, Own] = {}
    for definition in definitions:
        for node in functions_of(definition) if type(definition) is Def else ():
            own, new = _rebind(node, provenance)
            found[id(node)] = own
            if id(definition) in words and new is not None:
                _rename_words(words[id(definition)], new)
            else:
                words.pop(id(definition), None)
    return found


def _rename_words(words: Counter[str], new: Mapping[str, tuple[str, int]]) -> None:
    """new: word -> (the one that stands for it now, how often it does)."""
    for name, (_, count) in new.items():
        words[name] -= count
        if not words[name]:
            del words[name]
    for name, count in new.values():
        words[name] += count


def _rebind(definition: Def, provenance: Provenance) -> tuple[Own, dict[str, tuple[str, int]] | None]:
    """(The `own_nodes` of a function; old name -> new name and how often it stands there, None where that is not known)."""
    found = own_nodes(definition.body)
    names, standing = found.names, found.counts
    wishes = {n.id: n.symbol.author for n in names if n.symbol.author is not None}
    parameters = {p.name for p in definition.params}  # most have names of ours, where a library's code is theirs
    parameters -= {n.id for n in names if n.symbol.library == n.id}
    for n in names:
        if n.symbol.library is not None and n.symbol.library not in parameters:
            wishes.setdefault(n.id, n.symbol.library)
    wishes = {name: wish for name, wish in wishes.items() if name == wish or _NUMBER.sub("", name) == wish}
    if all(name == wish for name, wish in wishes.items()):
        return found, {}
    sites: dict[str, Site] = {}
    for node in found.statements:
        if node.origin is not None:
            sites.update((t, provenance.site(node.origin)) for t in node.targets if type(t) is str and t in wishes)

    def follows(name: str, held: Sequence[str]) -> bool:
        before = next((sites[h] for h in reversed(held) if h in sites), None)
        return before is not None and name in sites and binds_again(before, sites[name], wishes[name])

    straight = straight_of(definition, found)
    function = straight or _parsed(definition)
    printed: Counter[str] = Counter()
    new = new_names(function, wishes, follows, printed)
    if not new:
        return found, {}
    # A name may stand in a text that is no Name here: what is printed is what was meant, or stays as it was.
    # Where as many of each are printed as stand in Names, there is no need to parse it again to see that.
    if not all(standing[name] == printed[name] for name in new):
        before = _parsed(definition) if isinstance(function, Straight) else function
        undo = rename(found, new)
        if not _same_tree(_parsed(definition), renamed(before, new)):
            for node, slot, value in undo:
                setattr(node, slot, value)
            return found, {}
        known = None
    else:
        rename(found, new)
        known = {name: (one, standing[name]) for name, one in new.items()}
    counts: Counter[str] = Counter()
    for name, count in standing.items():
        counts[new.get(name, name)] += count
    return Own(names, found.statements, counts), known


def functions_of(definition: Def) -> Iterator[Def]:
    """A function and those inside it, each before those that it holds."""
    stack: list[Any] = [definition]
    while stack:
        value = stack.pop()
        if type(value) is Def:
            yield value
        if type(value) is Assign or type(value) is Unpack:
            continue  # most statements, and no function stands in them
        if isinstance(value, Statement):
            stack.extend(reversed(parts_of(value)))
        elif type(value) in (list, tuple):
            stack.extend([v for v in reversed(value) if not isinstance(v, Expr)])


def _parsed(definition: Def) -> ast.FunctionDef:
    (function,) = ast.parse("\n".join(definition.lines(""))).body
    assert isinstance(function, ast.FunctionDef)
    return function


def _same_tree(left: ast.AST, right: ast.AST) -> bool:
    """Whether two syntax trees are the same but for where they stand."""
    stack: list[tuple[Any, Any]] = [(left, right)]
    while stack:
        one, other = stack.pop()
        if one is other:
            continue
        if type(one) is not type(other):
            return False
        if isinstance(one, ast.AST):
            stack.extend([(getattr(one, f, None), getattr(other, f, None)) for f in one._fields])
        elif type(one) is list:
            if len(one) != len(other):
                return False
            stack.extend(zip(one, other, strict=True))
        elif repr(one) != repr(other):  # 0.0 is not -0.0
            return False
    return True


# ------------------------------------------------------------------ the tree that is printed


def own_statements(body: Any) -> Iterator[Statement]:
    """The statements of a function, without those of the functions inside it."""
    stack = [body]
    while stack:
        value = stack.pop()
        if type(value) in (list, tuple):
            stack.extend(value)
        elif isinstance(value, Statement) and type(value) is not Def:
            yield value
            if type(value) is not Assign and type(value) is not Unpack:
                stack.extend(parts_of(value))


def rename(own: Own, new: Mapping[str, str]) -> list[tuple[Any, str, Any]]:
    """Gives variables their new names; what was there before, to undo it."""
    undo: list[tuple[Any, str, Any]] = []
    for name in own.names:
        if name.id in new:
            undo.append((name, "id", name.id))
            name.id = new[name.id]
    for statement in own.statements:
        targets = [new.get(t, t) if type(t) is str else t for t in statement.targets]
        if targets != list(statement.targets):
            undo.append((statement, "targets", statement.targets))
            statement.targets = targets
    return undo


def renamed(function: ast.FunctionDef, new: Mapping[str, str]) -> ast.FunctionDef:
    """`function`, as it was parsed, with other names for its own variables."""
    stack: list[ast.AST] = [*function.body]
    while stack:
        node = stack.pop()
        if type(node) is ast.Name:
            node.id = new.get(node.id, node.id)
        elif not _is_scope(node):
            stack.extend(_children(node))
    return function


def _children(node: ast.AST) -> list[ast.AST]:
    """What `ast.iter_child_nodes` gives but operators and contexts, in a third of the time."""
    found: list[ast.AST] = []
    for field in node._fields:
        if field in _WITHOUT_NAMES:
            continue
        value = getattr(node, field, None)
        if type(value) is list:
            found += [v for v in value if isinstance(v, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


_WITHOUT_NAMES = frozenset(("ctx", "op", "ops"))


# ------------------------------------------------------------------ which names are free again


def new_names(
    function: ast.FunctionDef | Straight,
    wishes: Mapping[str, str],
    follows: Callable[[str, Sequence[str]], bool],
    printed: Counter[str] | None = None,
) -> dict[str, str]:
    """Old name -> new name of the variables of `function` that can have another one.

    wishes: variable -> author's name. follows(variable, those that have the name so far): whether the author binds the
    same variable again; what is computed from the value before it counts as such without being asked for. printed: gets
    how often each variable stands in the function, without the functions inside it, at least.
    """
    bases = {wish for name, wish in wishes.items() if name != wish}
    watched = {name for name, wish in wishes.items() if wish in bases} | bases
    use = _Uses(watched)
    if isinstance(function, Straight):
        arguments = function.arguments
        at_entry = use.before_straight(function.statements)
        bound: Iterable[str] = [name for name, _ in function.statements if name is not None]
    else:
        arguments = [a.arg for a in _arguments(function.args)]
        try:
            at_entry = use.before(function.body, set())
        except _UnknownStatement:
            return {}
        bound = _bound_in_order(function.body, use.plain)
    if printed is not None:
        printed.update(use.printed)
    # What the function reads without having bound it belongs to the one around it, or to the module.
    fixed = use.closed_over | (at_entry - set(arguments))
    order = dict.fromkeys([*arguments, *bound])
    new: dict[str, str] = {}
    for base in sorted(bases):
        own = base in arguments or wishes.get(base) == base
        family = [n for n in order if n == base or wishes.get(n) == base and n not in arguments]
        if not own or base in fixed or family[:1] != [base]:
            continue
        held = [base]  # the variables that are the author's one so far
        for name in family[1:]:
            if name in fixed or not use.clashes.get(name, set()).isdisjoint(held):
                break
            if use.read_for.get(name, set()).isdisjoint(held) and not follows(name, held):
                break
            held.append(name)
            new[name] = base
        if len(held) > 1:
            new.update(_counted_again([n for n in family if n not in fixed], held))
    return new


def _counted_again(family: Sequence[str], held: Sequence[str]) -> dict[str, str]:
    """Lower numbers for those of a family that keep one, in the order in which they are bound."""
    numbered = sorted(family[1:], key=_number)
    return dict(zip([n for n in family if n not in held], numbered, strict=False))


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else 0


class _UnknownStatement(Exception):
    """A statement that no text of ours has."""


class _Uses:
    """Which of the watched variables hold a value that is still read where another one is bound."""

    def __init__(self, watched: set[str]):
        self.watched = watched
        self.printed: list[str] = []  # every variable as often as it stands in the function
        self.clashes: dict[str, set[str]] = {}
        self.read_for: dict[str, set[str]] = {}  # variable -> those in the expression that it is bound to
        self.closed_over: set[str] = set()
        self.plain: set[int] = set()  # ids of assignments to one name that bind nothing else
        self._scopes = 0  # how many were met so far

    def before(self, statements: Sequence[ast.stmt], live: set[str]) -> set[str]:
        """What is read later at the head of `statements`, where `live` is after them."""
        for statement in reversed(statements):
            live = self._before(statement, live)
        return live

    def before_straight(self, statements: Sequence[tuple[str | None, list[str]]]) -> set[str]:
        """The same for the whole of a function that needs no parsing."""
        live: set[str] = set()
        watched = self.watched
        for name, words in reversed(statements):
            read = watched.intersection(words)
            self.printed += words
            if name is None:
                live = read
                continue
            self.printed.append(name)
            self.read_for.setdefault(name, set()).update(read)
            live = (self._without([name], live) if name in watched else live) | read
        return live

    def _before(self, statement: ast.stmt, live: set[str]) -> set[str]:
        match statement:
            case ast.Assign():
                scopes = self._scopes
                read = self._read(statement.value)
                if scopes == self._scopes and len(statement.targets) == 1 and type(statement.targets[0]) is ast.Name:
                    name = statement.targets[0].id
                    self.plain.add(id(statement))
                    self.read_for.setdefault(name, set()).update(read)
                    self.printed.append(name)
                    return self._without([name], live) | read
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        self.read_for.setdefault(node.id, set()).update(read)
                return self._bind(statement.targets, live) | read
            case ast.Expr():
                return live | self._read(statement.value)
            case ast.Return() | ast.Raise():
                return self._read(statement)
            case ast.If():
                then, otherwise = self.before(statement.body, live), self.before(statement.orelse, live)
                return then | otherwise | self._read(statement.test)
            case ast.For(orelse=[]):
                head, last = set(live), None
                while head != last:
                    last = head
                    head = head | self._bind([statement.target], self.before(statement.body, head))
                return head | self._read(statement.iter)
            case ast.With():
                inside = self.before(statement.body, live)
                for item in statement.items:
                    inside = self._bind([item.optional_vars] if item.optional_vars else [], inside)
                return inside.union(*[self._read(item.context_expr) for item in statement.items])
            case ast.FunctionDef():
                return self._bind([ast.Name(statement.name, ast.Store())], live) | self._read(statement)
        raise _UnknownStatement

    def _bind(self, targets: Sequence[ast.expr], live: set[str]) -> set[str]:
        names = [n for t in targets for n in ([t] if type(t) is ast.Name else ast.walk(t)) if isinstance(n, ast.Name)]
        self.printed.extend([n.id for n in names])
        read = {n.id for n in names if isinstance(n.ctx, ast.Load)}  # `ref[...] = value`
        return self._without({n.id for n in names if isinstance(n.ctx, ast.Store)}, live) | read & self.watched

    def _without(self, names: Collection[str], live: set[str]) -> set[str]:
        """What is live before `names` are bound, which clash with what else is."""
        bound = self.watched.intersection(names)
        if not bound:
            return live
        for name in bound:
            others = (live | bound) - {name}
            self.clashes.setdefault(name, set()).update(others)
            for other in others:
                self.clashes.setdefault(other, set()).add(name)
        return live - bound

    def _read(self, node: ast.AST) -> set[str]:
        """The watched variables in an expression; those that functions in it read are noted as such."""
        words: list[str] = []
        inner: set[str] = set()
        stack = [node]
        while stack:
            node = stack.pop()
            kind = type(node)
            if isinstance(node, ast.Name):
                words.append(node.id)
            elif kind is ast.NamedExpr:
                raise _UnknownStatement
            elif kind in _SCOPES:
                self._scopes += 1
                inner |= _free_names(node) & self.watched
            elif kind is not ast.Constant:
                stack.extend(_children(node))
        self.closed_over |= inner
        self.printed.extend(words)
        return self.watched.intersection(words) | inner


def _bound_in_order(statements: Sequence[ast.stmt], plain: Collection[int]) -> Iterator[str]:
    """The variables of a function in the order in which its text binds them. plain: see `_Uses`."""
    for statement in statements:
        if id(statement) in plain:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            assert isinstance(target, ast.Name)
            yield target.id
            continue
        if isinstance(statement, ast.FunctionDef):
            yield statement.name
            continue
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.expr):
                stored = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
                yield from [n.id for n in sorted(stored, key=lambda n: (n.lineno, n.col_offset))]
        for part in ("body", "orelse"):
            yield from _bound_in_order(getattr(statement, part, ()), plain)


_SCOPES = frozenset((ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))


def _is_scope(node: ast.AST) -> bool:
    return type(node) in _SCOPES


def _free_names(scope: ast.AST) -> set[str]:
    """What a function, a lambda or a comprehension reads of the function around it."""
    bound: set[str] = set()
    read: set[str] = set()
    outside: set[str] = set()  # read where the function is defined
    stack: list[ast.AST] = list(ast.iter_child_nodes(scope))
    if isinstance(scope, (ast.FunctionDef, ast.Lambda)):
        bound = {a.arg for a in _arguments(scope.args)}
        stack = [*scope.body] if isinstance(scope, ast.FunctionDef) else [scope.body]
        around = [scope.args, *getattr(scope, "decorator_list", ()), getattr(scope, "returns", None)]
        outside = {n.id for a in around if a is not None for n in ast.walk(a) if isinstance(n, ast.Name)}
    while stack:
        node = stack.pop()
        if _is_scope(node):
            read |= _free_names(node)
            if isinstance(node, ast.FunctionDef):
                bound.add(node.name)
        elif isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        else:
            stack.extend(ast.iter_child_nodes(node))
    return read - bound | outside


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    more = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *more]
