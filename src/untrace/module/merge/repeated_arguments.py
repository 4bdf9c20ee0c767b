"""A function that is another one for two of its arguments the same, or a number for one: `kernel(params, x, x)`.

    def kernel_2(x1):                            def kernel(x1, x2):
        return jnp.exp(-(x1[:, None] - x1))          return jnp.exp(-(x1[:, None] - x2))
    def kernel(x1, x2): ...                ->
    kernel_2(x), kernel(x, y)                    kernel(x, x), kernel(x, y)

A jaxpr has each value once, whatever it is passed as, and no parameter for a number of Python's (`state_at(orbit, 0.0)`).
That two functions are one is seen from their texts, callees first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from untrace.module.merge.alpha_equivalent import renamed_functions
from untrace.module.merge.parametric import calls_of
from untrace.module.writer import ModuleWriter
from untrace.python.names import base_of
from untrace.python.statements import Def, Statement
from untrace.python.tree import UNARY, Call, Expr, Lambda, Leaf, Name, Text
from untrace.python.walk import rebuilt

_HERE = "\0"
_NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"


def repeat_arguments(module: ModuleWriter, others: Sequence[Statement]) -> None:
    """Drops definitions of `module` that others stand for in this way. others: those of its definitions that stay."""
    families: dict[str, list[Def]] = {}
    for statement in list(module.definitions):
        if type(statement) is not Def or module.local_definitions.get(statement.name) is not statement:
            continue
        family = families.setdefault(base_of(statement.name), [])
        family.append(statement)
        for one in [d for d in family if d is not statement]:
            fewer, more = sorted((one, statement), key=lambda d: len(d.params))
            passed = _passed(fewer, more)
            if passed is not None and _call_instead(module, others, fewer, more, passed):
                family.remove(fewer)
                break


def _passed(fewer: Def, more: Def) -> Mapping[str, str] | None:
    """{parameter of `more`: that of `fewer`, or the number, which is passed for it} where it is the same function then."""
    ours, theirs = [p.name for p in fewer.params], [p.name for p in more.params]
    new = [name for name in theirs if name not in ours]
    if len(new) != 1 or len(theirs) != len(ours) + 1 or not _are_plain(fewer) or not _are_plain(more):
        return None
    text = _text(fewer, {})
    same = next((name for name in ours if _text(more, {new[0]: name}) == text), None) or _number(more, new[0], text)
    return None if same is None else {name: same if name == new[0] else name for name in theirs}


def _number(definition: Def, parameter: str, text: str) -> str | None:
    """The number that stands in `text` wherever a parameter does in a function; None where they differ otherwise."""
    first, *others = map(re.escape, _text(definition, {parameter: _HERE}).split(_HERE))
    found = re.fullmatch(first + _NUMBER + r"\1".join(others), text) if others else None
    return None if found is None else found[1]


def _are_plain(definition: Def) -> bool:
    return all(p.kind == "plain" and p.default is None for p in definition.params) and not definition.decorators


def _text(definition: Def, names: Mapping[str, str]) -> str:
    """The body without layout, with other names for parameters."""

    def named(node: object) -> object:
        if type(node) is Name:
            return Name(names.get(node.id, node.id), node.symbol)
        made = rebuilt(node, named)
        return _mapped_once(made) if type(made) is Call else made

    body = [rebuilt(statement, named) for statement in definition.body]
    text = "\n".join([line.partition("  #")[0] for statement in body for line in statement.lines("")])
    for old, new in names.items():
        text = re.sub(rf"(?<![\w.\"']){re.escape(old)}(?![\w\"'])", new, text)
    return re.sub(r"\s+", "", text).replace(",)", ")")


def _mapped_once(call: Call) -> Call:
    """`map(lambda _0: _0 + _0, x)` for `map(lambda a, b: a + b, x, x)`."""
    if not call.args or type(call.args[0]) is not Lambda or len(call.args[0].params) != len(call.args) - 1:
        return call
    function, *mapped = call.args
    assert type(function) is Lambda
    once = {value.flat(): value for value in mapped}
    number = {text: f"_{place}" for place, text in enumerate(once)}
    new = {name: number[value.flat()] for name, value in zip(function.params, mapped, strict=True)}

    def named(node: object) -> object:
        return Name(new.get(node.id, node.id)) if type(node) is Name else rebuilt(node, named)

    body = named(function.body)
    assert isinstance(body, Expr)  # of an expression
    return Call(call.func, [Lambda([*number.values()], body), *once.values()], call.kwargs)


def _call_instead(
    module: ModuleWriter, others: Sequence[Statement], fewer: Def, more: Def, passed: Mapping[str, str]
) -> bool:
    """Lets all that call `fewer` call `more`; False where that cannot be: what is passed twice has a name."""
    calls: list[tuple[Call, int]] = []
    everything = [s for s in (*module.definitions, *others) if s is not fewer]
    if not all([calls_of(s, {fewer.name: 0}, calls) for s in everything]):
        return False
    places = {p.name: i for i, p in enumerate(fewer.params)}
    twice = [i for i in places.values() if list(passed.values()).count(fewer.params[i].name) > 1]
    for call, _ in calls:
        if call.kwargs or len(call.args) != len(places) or not all(_is_named(call.args[i]) for i in twice):
            return False
    for call, _ in calls:
        given = [passed[p.name] for p in more.params]
        call.args = [call.args[places[name]] if name in places else Text(name, UNARY) for name in given]
        call.func = more.name
    types = module.described.types_of(fewer)
    if types is not None and module.described.types_of(more) is not None:
        own, known = dict(module.described.types_of(more) or ()), dict(types)
        stand_in = Def("", more.params, [])
        kinds = [(p.name, known.get(passed[p.name]) or own.get(p.name)) for p in more.params]
        arguments = [(name, kind) for name, kind in kinds if kind is not None]
        module.described.describe(stand_in, arguments, module.described.result_of(fewer))
        module.described.shared(more, stand_in)
    kept = [s for s in module.definitions if s not in (fewer, more)]
    kept.insert(min(map(module.definitions.index, (fewer, more))), more)  # before all that call it
    module.definitions[:] = kept
    del module.local_definitions[fewer.name]
    if len(fewer.name) < len(more.name):
        module.local_definitions[fewer.name] = module.local_definitions.pop(more.name)
        for statement in everything:
            renamed_functions(statement, {more.name: fewer.name})
        more.name = fewer.name
    return True


def _is_named(value: Expr) -> bool:
    return type(value) in (Name, Leaf)
