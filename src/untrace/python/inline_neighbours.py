"""Statements that go into the one after them, where the two make one line that is read at once.

    scaled_t = solve(a, b)                   gain = solve(a, b).T
    gain = scaled_t.T               ->       x = x + attention(params, x)
    out = attention(params, x)
    x = x + out

What stands inside another expression while it is written is short (`folding`), for nobody knows yet how long the line
will be. Here the lines are known. A function that the author did not name, and only the statement below takes, goes into
that as a lambda. A value that the author bound to a name in a statement of its own keeps it, and so do
cotangents (`d_x`), by which a backward pass is read.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from untrace.ir.types import Origin
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance
from untrace.python.names import base_of
from untrace.python.statements import Assign, Def, Lines, Parameter, Return, Statement, Store, Unpack
from untrace.python.tree import (
    LAMBDA_WIDTH,
    WIDTH,
    Attribute,
    Binary,
    Call,
    Dict,
    Expr,
    Lambda,
    Leaf,
    List,
    Name,
    Star,
    Subscript,
    Tuple,
    Unary,
)
from untrace.python.walk import nodes_of

_MOST_OPERATIONS = 5  # of the line that two statements make
_DEEPEST = 3  # brackets in one another
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # no attribute
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_PARTS: dict[type, tuple[str, ...]] = {
    Attribute: ("value",), Call: ("func", "args", "kwargs"), Tuple: ("elements",), List: ("elements",),
    Dict: ("pairs",), Subscript: ("value", "index"), Unary: ("value",), Binary: ("left", "right"), Star: ("value",),
}  # fmt: skip
# A jaxpr equation -> those whose expressions stand in its own.
Folded: TypeAlias = dict[Origin, tuple[Origin, ...]]
_CONTAINERS = (Tuple, List, Dict, Lambda)


def fold_neighbours(
    definitions: Sequence[Statement], provenance: Provenance, folded: Folded, effects: bool, in_order: bool = False
) -> dict[Statement, Counter[str]]:
    """Folds such statements in functions, in place. folded: gets which equations stand in which; effects: whether what is
    called may do more than compute; in_order: whether all is computed in the order in which it was. Gives the `words_of` those
    that had to be known."""
    found: dict[Statement, Counter[str]] = {}
    for definition in definitions:
        if type(definition) is Def:
            folder = _Folder(definition, provenance, folded, effects, in_order)
            folder.fold(definition.body, "    ")
            if folder.known is not None:
                found[definition] = folder.known
    return found


class _Folder:
    def __init__(self, definition: Def, provenance: Provenance, folded: Folded, effects: bool, in_order: bool):
        self.provenance, self.folded, self.effects, self.in_order = provenance, folded, effects, in_order
        self.definition = self.inside = definition
        self.known: Counter[str] | None = None
        self.inner: dict[Def, Counter[str]] = {}  # of functions inside

    @property
    def counts(self) -> Counter[str]:
        """How often each word stands in the function; folding changes that for nothing that is left."""
        if self.known is None:
            self.known = words_of(self.definition)
        return self.known

    def fold(self, body: Sequence[Statement], indent: str) -> None:
        for statement in body:
            inner = getattr(statement, "body", None)
            if isinstance(inner, (list, tuple)):
                outer = self.inside
                self.inside = statement if type(statement) is Def else outer
                self.fold(inner, indent + "    ")
                self.inside = outer
        if type(body) is not list:
            return
        for statement in [s for s in body if type(s) is Def and not s.is_named]:
            self._put_as_lambda(body, body.index(statement), indent)
        place = len(body) - 1
        while place > 0:
            if not _is_one_of_several(body, place - 1) and self._folds(body[place - 1], body[place], indent):
                del body[place - 1]
            place -= 1

    def _put_as_lambda(self, body: list[Statement], place: int, indent: str) -> None:
        """Puts a function into the statement below it that takes it, where it is a short expression."""
        definition = body[place]
        second = next((s for s in body[place + 1 :] if not _is_blank(s) and type(s) is not Def), None)
        assert type(definition) is Def
        if second is None or not isinstance(second, (Assign, Unpack, Return)) or len(definition.body) != 1:
            return
        returned, params = definition.body[0], definition.params
        if not isinstance(returned, Return) or definition.decorators or any(p.text() != p.name for p in params):
            return
        found = _place_of(second, definition.name)
        called = [n.func if type(n) is Call else n.id if type(n) is Name else "" for n in nodes_of(self.definition)]
        if found is None or called.count(definition.name) != 1:
            return
        node, _, put = found
        call = next((n for n in nodes_of(second) if type(n) is Call and _whole(n.func) is node), None)
        if call is not None:
            if _is_bound(call, params, returned):
                self._drop(body, place)
            return
        expr = Lambda([p.name for p in params], returned.value)
        old = len([*definition.lines(indent), *second.lines(indent)])
        put(expr)
        lines = list(second.lines(indent))
        if len(expr.flat()) > LAMBDA_WIDTH or max(map(len, lines)) > WIDTH or len(lines) > old:
            put(node)
            return
        self._drop(body, place)

    def _drop(self, body: list[Statement], place: int) -> None:
        """Takes a function away whose only use stands for it now."""
        definition = body[place]
        assert type(definition) is Def
        if self.known is not None:
            self.known.subtract([definition.name] * 2)
        below = next(i for i in range(place + 1, len(body)) if not _is_blank(body[i]))
        keeps = type(body[below]) is Def or place > 1 and type(body[place - 2]) is Def  # a blank line
        del body[place - (place > 0 and _is_blank(body[place - 1]) and not keeps) : below]

    def _folds(self, first: Statement, second: Statement, indent: str) -> bool:
        """Puts the value of `first` into `second`, and whether it did."""
        if not isinstance(first, Assign) or len(first.targets) != 1 or type(first.targets[0]) is not str:
            return False
        if not isinstance(second, (Assign, Unpack, Return)) or first.comment or isinstance(first.value, _CONTAINERS):
            return False
        name = first.targets[0]
        if self.known is not None and not self._is_read_once(name):
            return False
        found = None if name.startswith("d_") else _place_of(second, name)
        if found is None:
            return False
        symbol = found[0].symbol
        if symbol.author == name or symbol.author and symbol.leaves:  # a tree may get its author's name yet
            return False
        if not self._is_read_once(name) or not self._are_alike(first, second):
            return False
        node, depth, put = found
        if self.in_order and not _is_first(getattr(second, "value", None), node):
            return False
        old = len(list(second.lines(indent)))
        put(first.value)
        operations, brackets = _size(second.value)
        new = list(second.lines(indent))
        keeps = type(second) is Assign and not second.targets  # and does no more: `xs.append(x)`
        line = second.value.value if type(second.value) is Unary else second.value  # with a sign before it
        is_all = line is first.value
        fits = len(new) <= (len(list(first.lines(indent))) if is_all else old) and max(map(len, new)) <= WIDTH
        if old > 1:  # its parts have lines of their own
            operations, _ = _size(first.value)
            operations += depth
        is_read_at_once = brackets - keeps <= _DEEPEST and operations - keeps <= _MOST_OPERATIONS
        if not fits or not (is_read_at_once or is_all or self._are_one_of_the_authors(first, second)):
            put(node)
            return False
        self.counts[name] -= 2
        if not self.counts[name]:
            del self.counts[name]
        self._note(first, second)
        return True

    def _is_read_once(self, name: str) -> bool:
        """Whether a variable is read once: a function inside this one may have another of that name."""
        if self.counts[name] == 2:
            return True
        if self.inside is not self.definition:
            return self._words_inside(self.inside)[name] == 2
        inside = [s for s in self.definition.body if type(s) is Def and _binds(s, name)]
        return self.counts[name] - sum(self._words_inside(s)[name] for s in inside) == 2

    def _words_inside(self, definition: Def) -> Counter[str]:
        if definition not in self.inner:
            self.inner[definition] = words_of(definition)
        return self.inner[definition]

    def _are_alike(self, first: Assign, second: Statement) -> bool:
        """Whether both belong to the forward pass, and do nothing but compute."""
        origins = [getattr(s, "origin", None) for s in (first, second)]
        if any(getattr(s, "is_backward", False) for s in (first, second)):
            return False
        if first.origin is None and self.effects:
            return False  # a function that is called may do more
        if type(second) is Store and origins[0] is not None:
            origins.pop()  # what is stored is computed before
        found = [o for o in origins if o is not None]
        return all(not getattr(o, "effects", None) and self.provenance.site(o).phase == "forward" for o in found)

    def _are_one_of_the_authors(self, first: Assign, second: Statement) -> bool:
        """Whether the author has both in one statement: so long a line he reads at once."""
        one, other = self._place(first), self._place(second)
        if one is None or other is None:  # what is returned says nothing of its place
            is_returned = type(second) is Return and one is not None and isinstance(one[1], ast.Return)
            return is_returned and one is not None and one[0][-1].name == base_of(self.inside.name)
        return one[1] is other[1] and one[0][:-1] == other[0][:-1]

    def _place(self, statement: Statement) -> tuple[Sequence[Frame], ast.AST] | None:
        """The statement of the author's that one is of, and the calls around that."""
        origin, value = getattr(statement, "origin", None), getattr(statement, "value", None)
        known = getattr(value, "frames", ()) if origin is None else self.provenance.site(origin).frames
        frames = [f for f in known if not f.library]
        node = frames[-1].node if frames else None
        while node is not None and not isinstance(node, ast.stmt):
            node = syntax.parent(frames[-1].code, node)[0]
        return None if node is None else (frames, node)

    def _note(self, first: Assign, second: Statement) -> None:
        """Which equations stand in the expression of another: a wrong one is looked for among them."""
        origin = getattr(second, "origin", None)
        if origin is not None and first.origin is not None:
            inside = (first.origin, *self.folded.get(first.origin, ()))
            self.folded[origin] = (*self.folded.get(origin, ()), *inside)


def _binds(definition: Def, name: str) -> bool:
    """Whether a variable is a parameter of a function, so that all that it says of that name is its own."""
    has_values = definition.decorators or any(p.default is not None for p in definition.params)
    return not has_values and any(p.name == name for p in definition.params)


def _is_blank(statement: Statement) -> bool:
    return type(statement) is Lines and not statement.text


def _is_one_of_several(body: Sequence[Statement], place: int) -> bool:
    """Whether the statement before calls the same function: what is alike is read alike (`q = f(x)`, `k = f(y)`)."""
    before, here = body[place - 1] if place else None, body[place]
    if type(before) is not Assign or type(here) is not Assign:
        return False
    functions = [getattr(s.value, "func", None) for s in (before, here)]
    if type(functions[0]) is not str or functions[0] != functions[1]:
        return False
    return not set(_WORD.findall(here.value.flat())).intersection(t for t in before.targets if type(t) is str)


def words_of(definition: Def) -> Counter[str]:
    """How often each word stands in a function."""
    head = Def(definition.name, definition.params, (), definition.decorators, definition.docstring, definition.returns)
    lines = list(head.lines(""))
    if not definition.docstring:
        lines.pop()  # the `pass` of an empty body
    for statement in definition.body:
        if type(statement) is Assign and len(statement.targets) == 1 and type(statement.targets[0]) is str:
            lines += [statement.targets[0], statement.value.flat()]  # how that is broken makes no word
        else:
            lines += statement.lines("    ")
    lines = [_STRING.sub("", line) if '"' in line or "'" in line else line for line in lines]
    return Counter(_WORD.findall("\n".join(lines)))


def _place_of(holder: Statement, name: str) -> tuple[Name, int, Callable[[Expr], None]] | None:
    """Where a variable stands in the value of a statement: (its node, how deep, what puts an expression there)."""
    stack: list[tuple[Any, int]] = [(holder, -1)]
    while stack:
        node, depth = stack.pop()
        for slot in _PARTS.get(type(node), ("value",) if depth < 0 else ()):
            part = _whole(getattr(node, slot))
            if type(part) is Name and part.id == name:
                return part, depth, partial(setattr, node, slot)
            if isinstance(part, (list, tuple)):
                for i, item in enumerate(part):
                    value = _whole(item[1] if type(item) is tuple else item)  # the value of a key
                    if type(value) is Name and value.id == name:
                        return value, depth, partial(_put, node, slot, i)
                    stack.append((value, depth + 1))
            elif isinstance(part, Expr):
                stack.append((part, depth + 1))
    return None


def _is_bound(call: Call, params: Sequence[Parameter], returned: Return) -> bool:
    """Whether the call of a function became what that returns, itself a call, where each parameter stands in it once."""
    own = {p.name for p in params}
    pairs = list(zip([p.name for p in params], call.args, strict=False))
    inner = returned.value
    words = Counter(_WORD.findall(inner.flat()))
    if type(inner) is not Call or call.kwargs or len(call.args) != len(params) or any(words[name] != 1 for name in own):
        return False
    if any(
        type(_whole(a)) is not Name or a.flat() in own - {name} or not _place_of(returned, name) for name, a in pairs
    ):
        return False
    for name, argument in pairs:
        found = _place_of(returned, name)
        assert found is not None
        found[2](argument)
    call.func, call.args, call.kwargs = inner.func, inner.args, inner.kwargs
    return True


def _is_first(value: object, node: Name) -> bool:
    """Whether nothing of an expression is computed before one of the names in it is read."""
    parts = [getattr(value, slot) for slot in _PARTS.get(type(value), ())]
    for part in itertools.chain.from_iterable(p if isinstance(p, (list, tuple)) else [p] for p in parts):
        own = part[1] if type(part) is tuple else part
        if _whole(own) is node:
            return True
        inside = list(nodes_of(own)) if isinstance(own, Expr) else []
        if any(_whole(n) is node for n in inside):
            return type(own) is not Subscript and _is_first(own, node)
        if any(isinstance(n, (Call, Binary, Unary, Subscript)) for n in inside):
            return False
    return False


def _whole(part: object) -> object:
    """A tree by its name, where all of it is taken."""
    return part.root if type(part) is Leaf and not part.steps else part


def _put(node: object, slot: str, place: int, expr: Expr) -> None:
    items = list(getattr(node, slot))
    items[place] = (items[place][0], expr) if type(items[place]) is tuple else expr
    setattr(node, slot, items)


def _size(value: Expr) -> tuple[int, int]:
    """(how many operations an expression has, how deep its brackets go)."""
    nodes = list(nodes_of(value))
    made = sum(type(n) is Call and type(n.func) is Call for n in nodes)  # `jax.grad(f)(x)` is one
    operations = sum(isinstance(n, (Call, Binary, Unary)) or type(n) is Subscript for n in nodes) - made
    depth = deepest = 0
    for letter in _STRING.sub("", value.flat()):
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return operations, deepest
