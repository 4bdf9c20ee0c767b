"""Parts of a flat dict whose keys begin alike: a function takes the dict and how they begin.

    def batch_norm(running_mean, running_var, weight, bias, x):      def batch_norm(states, name, x):
        ... running_mean ...                                     ->      ... states[f"{name}.running_mean"] ...

    batch_norm(states["norm1.running_mean"], ..., x)                 batch_norm(states, "norm1", x)

State dicts of PyTorch are such dicts, and the parameters of Haiku's modules. Functions around others are looked at before
those inside, which are called with `f"{name}.attn"` then. Python makes the keys while it traces: the program stays the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from untrace.module.access_paths import Leaf, last_word
from untrace.module.def_use import bound_names, scope_of, substituted
from untrace.module.merge.parametric import calls_of, mentioned_in
from untrace.module.writer import ModuleWriter
from untrace.python.statements import Assign, Def, Parameter, Statement
from untrace.python.tree import Attribute, Call, Expr, Name, Subscript, Text
from untrace.python.types import Type
from untrace.python.walk import nodes_of

# What is taken apart: a plain string, or what a loop made of one, `f"layers.{i}.weight"`.
_KEY = re.compile(r'(f?)"([\w\-./~{} ]+)"')
_FEWEST = 2  # parameters


class Key(Expr):
    """`f"{name}.weight"`: a variable that holds how a key begins, and how it ends."""

    __slots__ = ("begin", "end")

    def __init__(self, begin: Name, end: str):
        self.begin = begin
        self.end = end

    def flat(self) -> str:
        return f'f"{{{self.begin.id}}}{self.end}"' if self.end else self.begin.id


@dataclass(slots=True)
class _Part:
    """An argument `dict_["key"]`: `begin` is the variable in front of `text`, which has braces if `formatted`."""

    dict_: Expr
    begin: Name | None
    text: str
    formatted: bool

    def key(self, count: int) -> Expr:
        """The first `count` characters of the key."""
        text = self.text[:count]
        if self.begin is not None:
            return Key(self.begin, text)
        if self.formatted and re.fullmatch(r"\{\w+\}", text):
            return Name(text[1:-1])
        return Text(f'f"{text}"' if self.formatted and "{" in text else f'"{text}"')


def share_prefixes(module: ModuleWriter, others: Sequence[Statement]) -> None:
    """Lets local functions take a dict and the beginning of keys, where that is shorter.

    others: the definitions of the module that are not in its list.
    """
    everything = [*module.definitions, *others]
    local = [d for d in module.local_definitions.values() if not d.decorators]
    if not local or not any(type(n) is Text and _KEY.fullmatch(n.text) for s in everything for n in _texts(s)):
        return
    changed = True
    while changed and local:
        changed = False
        mentioned = {s: mentioned_in(s) for s in everything}
        for definition in reversed(local):
            where = [s for s in everything if definition.name in mentioned[s]]
            if _shared(module, definition, where):
                local = [d for d in local if d is not definition]
                changed = True


def _texts(statement: Statement) -> list[Text]:
    found: list[Text] = []
    for node in nodes_of(statement):
        if type(node) is Leaf:
            found += [Text(text) for kind, text, _ in node.steps if kind == "item"]
        elif type(node) is Text:
            found.append(node)
    return found


def _shared(module: ModuleWriter, definition: Def, where: Sequence[Statement]) -> bool:
    """Whether `definition` takes a dict and the beginning of keys now. where: the definitions that name it."""
    calls: list[tuple[Call, int]] = []
    for statement in where:
        if not calls_of(statement, {definition.name: 0}, calls):
            return False  # it is used as a value somewhere
    count = len(definition.params)
    if not calls or any(len(c.args) != count or c.kwargs for c, _ in calls):
        return False
    if any(p.kind != "plain" or p.default is not None for p in definition.params):
        return False
    turns = [[_part(a) for a in call.args] for call, _ in calls]
    bound = Counter(bound_names(definition))
    free = [i for i, p in enumerate(definition.params) if bound[p.name] == 1 and not p.is_own]
    places = [i for i in free if all(t[i] is not None for t in turns)]
    places = _of_one_dict(turns, places)
    if len(places) < _FEWEST:
        return False
    rows = [[part for i in places if (part := t[i]) is not None] for t in turns]
    split = _split(rows)
    if split is None:
        return False
    counts, ends = split
    names = [definition.params[i].name for i in places]
    uses = Counter(n.id for s in definition.body for n in nodes_of(s) if type(n) is Name and n.id in names)
    prefix = any(counts)
    # Tokens: parameters, arguments `states["key"],` and what is read of them, before and after.
    before = 2 * len(places) + len(calls) * 5 * len(places)
    after = 2 * (1 + prefix) + len(calls) * 2 * (1 + prefix) + sum(3 + 3 * (uses[n] > 1) for n in names)
    if after > before or after == before and rows[0][0].begin is None:
        return False
    _rewrite(module, definition, calls, places, rows, counts, ends, uses)
    return True


def _part(expr: Expr) -> _Part | None:
    if type(expr) is Leaf and expr.steps and expr.steps[-1][0] == "item":
        dict_, key = expr.prefix(len(expr.steps) - 1), Text(expr.steps[-1][1])
    elif type(expr) is Subscript:
        dict_, key = expr.value, expr.index
    else:
        return None
    if type(key) is Key and _is_access(dict_):
        return _Part(dict_, key.begin, key.end, False)
    found = _KEY.fullmatch(key.text) if type(key) is Text else None
    if found is None or not _is_access(dict_) or not found[1] and "{" in found[2]:
        return None
    return _Part(dict_, None, found[2], bool(found[1]))


def _is_access(expr: Expr) -> bool:
    while type(expr) is Subscript or type(expr) is Attribute:
        expr = expr.value
    return type(expr) in (Name, Leaf)


def _of_one_dict(turns: Sequence[Sequence[_Part | None]], places: Sequence[int]) -> list[int]:
    """Those places whose arguments are of one dict in each call, the most there are."""
    groups: dict[Hashable, list[int]] = {}
    for place in places:
        parts = [part for t in turns if (part := t[place]) is not None]
        where = tuple((p.dict_.flat(), p.begin and p.begin.id) for p in parts)
        groups.setdefault(where, []).append(place)
    return max(groups.values(), key=len, default=[])


def _split(rows: Sequence[Sequence[_Part]]) -> tuple[list[int], list[str]] | None:
    """(for each call, how many characters its keys begin alike with; how the keys end, in every call)."""
    if len(rows) == 1 and rows[0][0].begin is None and not rows[0][0].formatted:
        return [0], [p.text for p in rows[0]]
    for marks in ("./", "./_"):
        counts = [_alike([p.text for p in row], marks) for row in rows]
        ends = [[p.text[n:] for p in row] for row, n in zip(rows, counts, strict=True)]
        named = all(n or row[0].begin is not None for row, n in zip(rows, counts, strict=True))
        same = all(e == ends[0] for e in ends) and len(set(ends[0])) == len(ends[0])
        if named and same and not any("{" in e for e in ends[0]):
            return counts, ends[0]
    return None


def _alike(texts: Sequence[str], marks: str) -> int:
    """How many characters all of them begin with, up to one of `marks`; braces stay whole."""
    shortest = min(texts, key=len)
    length = next((i for i, c in enumerate(shortest) if any(t[i] != c for t in texts)), len(shortest))
    ends = [i for i in range(length + 1) if all(t[i : i + 1] in ("", *marks) for t in texts)]
    ends = [i for i in ends if shortest[:i].count("{") == shortest[:i].count("}")]
    return max(ends, default=0)


def _rewrite(
    module: ModuleWriter,
    definition: Def,
    calls: Sequence[tuple[Call, int]],
    places: Sequence[int],
    rows: Sequence[Sequence[_Part]],
    counts: Sequence[int],
    ends: Sequence[str],
    uses: Counter[str],
) -> None:
    scope = scope_of(definition, module.scope)
    kept = [p for i, p in enumerate(definition.params) if i not in places]
    tree = scope.fresh(_word(rows[0][0].dict_))
    new = [Parameter(tree)]
    begin: Name | None = None
    if any(counts) or rows[0][0].begin is not None:
        begin = Name(scope.fresh("name"))
        new.append(Parameter(begin.id))
    parts: dict[str, Expr] = {}
    bound: list[Statement] = []
    for place, end in zip(places, ends, strict=True):
        name = definition.params[place].name
        part = Subscript(Name(tree), Text(f'"{end}"') if begin is None else Key(begin, end))
        if uses[name] > 1:
            bound.append(Assign([name], part))
        else:
            parts[name] = part
    for (call, _), row, count in zip(calls, rows, counts, strict=True):
        first = row[0]
        given = [first.dict_] if begin is None else [first.dict_, first.key(count)]
        call.args = [*given, *[a for i, a in enumerate(call.args) if i not in places]]
    definition.params = [*new, *kept]
    definition.body = [*bound, *[substituted(s, parts) for s in definition.body]]
    types = dict(module.described.types_of(definition) or ())
    told = [(tree, Type("array", "a dict of arrays"))] + ([] if begin is None else [(begin.id, Type("array", "str"))])
    module.described.retold(definition, [*told, *[(p.name, types[p.name]) for p in kept if p.name in types]])


def _word(dict_: Expr) -> str:
    """What a dict is called: by the last name on the way to it."""
    while type(dict_) is Subscript:
        dict_ = dict_.value
    if type(dict_) is Leaf:
        return last_word(dict_)
    if type(dict_) is Attribute:
        return dict_.name
    assert type(dict_) is Name
    return dict_.id
