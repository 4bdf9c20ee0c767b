"""One definition for functions whose texts differ in names and in a few numbers and arrays only.

    def block(params, x):  ...  jnp.ones((8,)) ... / 144.0          def block(params, x, count):
    def block_2(params, y):  ...  jnp.ones((16,)) ... / 576.0   ->      ... jnp.ones((x.shape[-1],)) ... / count

A number that is the size of an axis of an argument in each of them is written so; what is left becomes an argument, which
the calls pass, and so do arrays of the module. Python evaluates both while it traces, so that the program stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from untrace.module.constants import Named
from untrace.module.def_use import bound_names, scope_of
from untrace.python.statements import Def, Parameter, Statement
from untrace.python.tree import ATOM, UNARY, Attribute, Call, Expr, Name, Subscript, Text
from untrace.python.types import Type, array_type
from untrace.python.walk import is_node, nodes_of, rebuilt, slots_of

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_MOST_ARGUMENTS = 3  # numbers that a call passes
_MOST_ARRAYS = 6  # arrays that it passes


def share_definitions(module: Any, others: Sequence[Statement]) -> None:
    """Makes one of the local functions of `module` that are alike, callees before callers, and changes their calls.

    others: the definitions of the module that are not in its list.
    """
    local = list(module.local_definitions.values())
    if len(local) < 2:
        return
    everything = [*module.definitions, *others]
    forms: dict[int, _Form] = {}
    mentioned: dict[int, set[str]] = {}

    def form(definition: Def) -> _Form:
        if id(definition) not in forms:
            forms[id(definition)] = _Form(definition, module.arrays)
        return forms[id(definition)]

    outlines = {id(d): outline_of(d) for d in local}
    place = 0
    while place < len(local):
        first = local[place]
        alike = [d for d in local[place + 1 :] if outlines[id(d)] == outlines[id(first)]]
        alike = [d for d in alike if form(d).words == form(first).words]
        place += 1
        if alike and not mentioned:
            mentioned = {id(d): mentioned_in(d) for d in everything}
        changed = _merge(module, [first, *alike], forms, everything, mentioned) if alike else []
        if changed:
            gone = {id(d) for d in alike}
            local = [d for d in local if id(d) not in gone]
            everything = [d for d in everything if id(d) not in gone]
            module.definitions[:] = [d for d in module.definitions if id(d) not in gone]
            for d in alike:
                del module.local_definitions[d.name]
            for d in changed:
                mentioned[id(d)] = mentioned_in(d)
                forms.pop(id(d), None)
                if isinstance(d, Def) and id(d) in outlines:
                    outlines[id(d)] = outline_of(d)


def _merge(
    module: Any,
    alike: Sequence[Def],
    forms: dict[int, _Form],
    everything: Sequence[Statement],
    mentioned: dict[int, set[str]],
) -> list[Statement]:
    """The definitions that have other text now: the first of `alike`, and those that call one of them; [] if none.

    mentioned: by id of a statement what may be names of functions in it.
    """
    first = alike[0]
    columns = list(zip(*[forms[id(d)].numbers for d in alike], strict=True))
    words, arrays = forms[id(first)].keywords, module.arrays
    found: dict[tuple[str, ...], Expr] = {}
    passed: list[tuple[str, ...]] = []
    types = [module.described.types_of(d) for d in alike]
    scope = scope_of(first, module.scope)
    extra: list[Parameter] = []
    order = {text: place for place, text in enumerate(module.words)}
    for column, word in sorted(zip(columns, words, strict=True), key=lambda pair: order.get(pair[0][0], len(order))):
        if len(set(column)) == 1 or column in found:
            continue
        size = _size_of_argument(first, column, types) if word != "axis" else None
        if size is None:
            said = next((module.words[text] for text in column if text in module.words), None)
            extra.append(Parameter(scope.fresh(word or said or _otherwise(column, arrays))))
            passed.append(column)
            size = Name(extra[-1].name)
        found[column] = size
    given = [column for column in passed if column[0] in arrays]
    if len(passed) - len(given) > _MOST_ARGUMENTS or len(given) > _MOST_ARRAYS or given and first.decorators:
        return []
    kinds = [_type_of(column, arrays) for column in passed]
    if None in kinds:
        return []
    names = {d.name: number for number, d in enumerate(alike)}
    calls: list[tuple[Call, int]] = []
    changed: list[Statement] = []
    for statement in everything:
        if names.keys().isdisjoint(mentioned[id(statement)]):
            continue
        count = len(calls)
        if not calls_of(statement, names, calls):
            return []  # it is used as a value somewhere
        if len(calls) > count:
            changed.append(statement)
    for other in alike[1:]:
        module.described.shared(first, other)
    _put_numbers(first, [found.get(c) if len(set(c)) > 1 else None for c in columns], arrays)
    for call, number in calls:
        call.func = first.name
        texts = [column[number] for column in passed]
        call.args = [*call.args, *[Name(t) if t in arrays else _number(t) for t in texts]]
    first.params = [*first.params, *extra]
    module.described.also(first, [(p.name, kind) for p, kind in zip(extra, kinds, strict=True)])
    return [first, *changed]


def _is_integer(column: Sequence[str]) -> bool:
    return all("." not in text and "e" not in text for text in column)


def _otherwise(column: Sequence[str], arrays: Mapping[str, Any]) -> str:
    """The name of a parameter that nobody has a word for."""
    if column[0] not in arrays:
        return "size" if _is_integer(column) else "count"
    return "indices" if arrays[column[0]].dtype.kind in "iu" else "array"


def _type_of(column: Sequence[str], arrays: Mapping[str, Any]) -> Type | None:
    """The type of the parameter that stands for numbers or arrays; None where they are of several types."""
    if column[0] not in arrays:
        return Type("array", "int" if _is_integer(column) else "float")
    found: Type | None = array_type(jax.typeof(arrays[column[0]]))
    for name in column[1:]:
        found = found and found.merged(array_type(jax.typeof(arrays[name])))
    return found


def _number(text: str) -> Text:
    return Text(text, UNARY if text.startswith("-") else ATOM)


def _size_of_argument(first: Def, column: Sequence[str], types: Sequence[Any]) -> Expr | None:
    """`x.shape[k]` where that is the number in each of the functions."""
    if any(t is None for t in types) or not all(c.isdigit() for c in column):
        return None
    rebound = set(bound_names(Def("", (), first.body)))
    for place, parameter in enumerate(first.params):
        if parameter.name in rebound:
            continue
        kinds = [t[place][1] if place < len(t) else None for t in types]
        arrays = [k.aval for k in kinds if k is not None and k.kind == "array" and k.aval is not None]
        if len(arrays) < len(kinds):
            continue
        shapes = [aval.shape for aval in arrays]
        rank = len(shapes[0])
        for axis in range(rank):
            if all(len(s) == rank and s[axis] == int(c) for s, c in zip(shapes, column, strict=True)):
                last = axis == rank - 1
                return Subscript(Attribute(Name(parameter.name), "shape"), _number("-1" if last else str(axis)))
    return None


def outline_of(definition: Def) -> tuple[Any, ...]:
    """The same for definitions that say the same (`_Form`), and sooner known."""
    return len(definition.params), len(definition.decorators), tuple([type(s) for s in definition.body])


class _Form:
    """What a definition says: `words` without the names of its variables and without numbers and arrays of the module, and
    those apart, as they stand in the text.

    `keywords`: of which keyword argument a number is the value, "" for others.
    """

    def __init__(self, definition: Def, arrays: Mapping[str, Any]):
        names = set(bound_names(definition))
        self.numbers: list[str] = []
        self.keywords: list[str] = []
        order: dict[str, int] = {}
        words: list[Any] = []

        def variable(name: str) -> None:
            head, dot, rest = name.partition(".")
            words.append((order.setdefault(head, len(order)), rest) if head in names else name)

        keyword = ""
        for kind, value in tokens(definition, skip_name=True):
            if kind == "name" and value in arrays:
                self.numbers.append(value)
                self.keywords.append("")
                words.append("array")
            elif kind in ("variable", "name"):
                variable(value)
            elif kind == "number":
                self.numbers.append(value)
                self.keywords.append(keyword)
                words.append("number")
            else:
                words.append((kind, value))
            keyword = value if kind == "keyword" else keyword if (kind, value) == ("node", "Text") else ""
        self.words = tuple(words)


# Strings in these places are no variables: names of attributes and of keyword arguments, operators, comments.
_PLAIN = frozenset({(Attribute, "name"), (Parameter, "kind")})


def tokens(node: Any, skip_name: bool = False) -> Iterator[tuple[str, Any]]:
    yield "node", type(node).__name__
    if type(node) in (Name, Named):
        yield "name", node.flat()
        return
    if type(node) is Text:
        yield ("number", node.text) if _NUMBER.fullmatch(node.text) else ("text", node.text)
        return
    for slot in slots_of(node):
        if skip_name and slot == "name":
            continue
        value = getattr(node, slot, None)
        yield from _value_tokens(value, "plain" if (type(node), slot) in _PLAIN or slot == "op" else "variable", slot)


def _value_tokens(value: Any, kind: str, slot: str) -> Iterator[tuple[str, Any]]:
    if is_node(value):
        yield from tokens(value)
    elif type(value) in (list, tuple):
        yield "many", len(value)
        for item in value:
            if slot == "kwargs" and type(item) is tuple:
                yield "keyword", item[0]
                yield from _value_tokens(item[1], "variable", slot)
            else:
                yield from _value_tokens(item, "text" if slot == "steps" else kind, slot)
    elif type(value) is str:
        yield kind, value
    else:
        yield "value", repr(value)


def _put_numbers(definition: Def, numbers: Sequence[Expr | None], arrays: Mapping[str, Any]) -> None:
    """Puts other expressions in the place of the numbers and arrays of a function, in the order of `tokens`; None keeps one."""
    left = iter(numbers)

    def change(node: Any) -> Any:
        kind = type(node)
        if kind in (Name, Named):
            new = next(left) if node.flat() in arrays else None
        elif kind is Text:
            new = next(left) if _NUMBER.fullmatch(node.text) else None
        else:
            return rebuilt(node, change)
        return node if new is None else new

    made = rebuilt(definition, change)
    definition.params, definition.body, definition.decorators = made.params, made.body, made.decorators


def mentioned_in(statement: Statement) -> set[str]:
    """What may be names of functions in a statement."""
    found: set[str] = set()
    for node in nodes_of(statement):
        kind = type(node)
        if kind is Name:
            found.add(node.id)
        elif kind is Text:
            found.add(node.text)
        elif kind is Call and type(node.func) is str:
            found.add(node.func)
    return found


def calls_of(statement: Statement, names: dict[str, int], calls: list[tuple[Call, int]]) -> bool:
    """Collects the calls of functions of these names; False where one is named without being called."""
    seen: set[int] = set()
    for node in nodes_of(statement):
        if id(node) in seen:
            continue
        seen.add(id(node))
        if type(node) is Call and type(node.func) is str and node.func in names:
            calls.append((node, names[node.func]))
        elif type(node) is Name and node.id in names or type(node) is Text and node.text in names:
            return False
    return True
