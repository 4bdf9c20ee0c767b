"""One definition for functions whose texts differ in names and in a few numbers and arrays only.

    def block(params, x):  ...  jnp.ones((8,)) ... / 144.0          def block(params, x, count):
    def block_2(params, y):  ...  jnp.ones((16,)) ... / 576.0   ->      ... jnp.ones((x.shape[-1],)) ... / count

A number that is the size of an axis of an argument in each of them is written so, or as a part of that size, and the only size
that differs in a reshape as -1; what is left becomes an argument, which the calls pass, and so do arrays of the module. Python
evaluates all of it while it traces, so that the program stays the same.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import numpy as np

from untrace._identifiers import identifier
from untrace.ir.said import SaidNumber
from untrace.lift.naming.expressions import Expressions
from untrace.module.constants import Named
from untrace.module.def_use import bound_names, scope_of
from untrace.module.writer import ModuleWriter
from untrace.python.anti_unify import AntiUnifier, Different, Node, Position
from untrace.python.names import base_of
from untrace.python.statements import Def, Parameter, Statement
from untrace.python.tree import ATOM, UNARY, Attribute, Binary, Call, Expr, Leaf, Name, Subscript, Text
from untrace.python.types import Type, array_type
from untrace.python.walk import copied, nodes_of, rebuilt

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|True|False")
_TRUTHS = ("True", "False")
_WHOLE = re.compile(r"\d+\.0")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*")
# Strings in these slots, and the names of attributes, are no variables: names of keyword arguments, operators.
_PLAIN = frozenset({"kwargs", "kind", "op", "steps"})
_MOST_ARGUMENTS = 3  # numbers that a call passes
_FEWEST = 3  # one less than a size, or more, a part, or all of it: smaller numbers are of anything
_MOST_TIMES = 4  # a size
_MOST_ARRAYS = 6  # arrays that it passes

_Shape = tuple[int | None, ...]  # None for a size that a function has at some of its calls only


def share_definitions(module: ModuleWriter, others: Sequence[Statement]) -> None:
    """Makes one of the local functions of `module` that are alike, callees before callers, and changes their calls.

    others: the definitions of the module that are not in its list.
    """
    local = list(module.local_definitions.values())
    if len(local) < 2:
        return
    everything = [*module.definitions, *others]
    mentioned: dict[Statement, set[str]] = {}
    bound = {d: set(bound_names(d)) for d in local}
    outlines = {d: outline_of(d) for d in local}

    def common(definitions: Sequence[Def]) -> tuple[Def, Sequence[Varying]] | None:
        found = Alike([bound[d] for d in definitions], arrays=module.arrays)
        try:
            return found.definition(definitions), found.varying
        except Different:
            return None

    place = 0
    while place < len(local):
        first = local[place]
        # What its author gave two names is two, however alike.
        alike = [
            d for d in local[place + 1 :] if outlines[d] == outlines[first] and base_of(d.name) == base_of(first.name)
        ]
        alike = [d for d in alike if common([first, d]) is not None]
        place += 1
        found = common([first, *alike]) if alike else None
        if found is None:
            continue
        mentioned = mentioned or {s: mentioned_in(s) for s in everything}
        changed = _merge(module, [first, *alike], *found, everything, mentioned)
        if changed:
            local = [d for d in local if d not in alike]
            everything = [d for d in everything if d not in alike]
            module.definitions[:] = [d for d in module.definitions if d not in alike]
            for d in alike:
                del module.local_definitions[d.name]
            for d in changed:
                mentioned[d] = mentioned_in(d)
                if isinstance(d, Def) and d in outlines:
                    outlines[d], bound[d] = outline_of(d), set(bound_names(d))


def _merge(
    module: ModuleWriter,
    alike: Sequence[Def],
    made: Def,
    varying: Sequence[Varying],
    everything: Sequence[Statement],
    mentioned: Mapping[Statement, set[str]],
) -> list[Statement]:
    """The definitions that have other text now: the first of `alike`, and those that call one of them; [] if none.

    made, varying: what they have in common. mentioned: what may be names of functions in a statement.
    """
    first = alike[0]
    arrays = module.arrays
    found: dict[tuple[str, ...], Expr] = {}
    passed: list[tuple[str, ...]] = []
    parameters: list[str] = []  # the author's
    types = [module.described.types_of(d) or () for d in alike]
    scope = scope_of(first, module.scope)
    extra: list[Parameter] = []
    order = {text: place for place, text in enumerate(module.words)}
    varying = [v for v in varying if len(set(v.texts)) > 1]
    implied = _implied(varying)
    for number in sorted(varying, key=lambda v: order.get(v.texts[0], len(order))):
        column, word = number.texts, number.keyword
        if number in implied or column in found:
            continue
        sizes = _as_sizes(number)
        size = size_of_argument(first, sizes, types) if word != "axis" and sizes else None
        if size is None:
            said = next((module.words[text] for text in column if text in module.words), None)
            passed_for = _parameter_of(column, [module.passed.get(d.name, {}) for d in alike])
            computed = None if passed_for else _computed(module, column, alike)
            if computed is not None:
                (written, names), columns = computed
                for name, texts in columns.items():
                    if texts not in found:
                        extra.append(Parameter(scope.fresh(identifier(name, "size"))))
                        passed.append(texts)
                        parameters.append(name)
                        found[texts] = Name(extra[-1].name)
                found[column] = module.said(written, names, {name: found[texts] for name, texts in columns.items()})
                continue
            extra.append(Parameter(scope.fresh(passed_for or word or said or _otherwise(column, arrays))))
            passed.append(column)
            parameters.append(passed_for or "")
            size = Name(extra[-1].name)
        found[column] = size
    only = author_s_parameter(module, alike) if len(extra) == 1 else None
    if only is not None and extra[0].name != only:
        extra = [Parameter(scope.fresh(identifier(only, "size")))]
        found[passed[0]] = Name(extra[0].name)
        parameters = [only]
    given = [column for column in passed if column[0] in arrays]
    if len(passed) - len(given) > _MOST_ARGUMENTS or len(given) > _MOST_ARRAYS or given and first.decorators:
        return []
    kinds = [kind for column in passed if (kind := _type_of(column, arrays)) is not None]
    if len(kinds) < len(passed):
        return []
    names = {d.name: number for number, d in enumerate(alike)}
    calls: list[tuple[Call, int]] = []
    changed: list[Statement] = []
    for statement in everything:
        if names.keys().isdisjoint(mentioned[statement]):
            continue
        count = len(calls)
        if not calls_of(statement, names, calls):
            return []  # it is used as a value somewhere
        if len(calls) > count:
            changed.append(statement)
    for other in alike[1:]:
        module.described.shared(first, other)

    def decided(node: object) -> object:
        if type(node) is Varying:
            return Text("-1", UNARY) if node in implied else found.get(node.texts, node.own)
        return rebuilt(node, decided)

    made = rebuilt(made, decided)
    first.params, first.body, first.decorators = made.params, made.body, made.decorators
    said = [
        [_said(module, d.name, p, c[k]) for p, c in zip(parameters, passed, strict=True)] for k, d in enumerate(alike)
    ]
    for call, number in calls:
        call.func = first.name
        call.args = [*call.args, *said[number]]
    first.params = [*first.params, *extra]
    module.described.also(first, [(p.name, kind) for p, kind in zip(extra, kinds, strict=True)])
    return [first, *changed]


def _said(module: ModuleWriter, function: str, parameter: str, text: str) -> Expr:
    """An argument for what functions differ in: an array, a number by the author's expression where there is one."""
    if text in module.arrays:
        return Name(text)
    words = module.passed_as.get(function, {}).get(parameter)
    is_it = words is not None and repr(module.passed.get(function, {}).get(parameter)) == text
    return module.said(*words) if words is not None and is_it else _number(text)


def _implied(varying: Sequence[Varying]) -> set[Varying]:
    """The numbers of which each is the only one that differs in the shape that `x.reshape(1, 1, 8)` asks for."""
    alone: dict[Call, list[Varying]] = {}
    for number in varying:
        call = number.call
        if call is not None and type(call.func) is Attribute and call.func.name == "reshape":
            alone.setdefault(call, []).append(number)
    return {
        numbers[0]
        for call, numbers in alone.items()
        if len(numbers) == 1 and all(a.flat().isdigit() and a.flat() != "0" for a in call.args)
    }


def _as_sizes(number: Varying) -> list[int] | None:
    """The numbers as sizes of arrays, or what is counted from them; None where they cannot be. One with a point is, where it
    is an operand of arithmetic with an array: JAX makes it a number of the array's type."""
    if all(text.isdigit() for text in number.texts):
        return [int(text) for text in number.texts]
    if number.is_operand and all(_WHOLE.fullmatch(text) for text in number.texts):
        return [int(float(text)) for text in number.texts]
    return None


def author_s_parameter(module: ModuleWriter, alike: Sequence[Def]) -> str | None:
    """The only one of the author's parameters that functions have not yet; None where there are several, or none."""
    left = {module.left.get(d.name, ()) for d in alike}
    words = left.pop() if len(left) == 1 else ()
    return words[0] if len(words) == 1 else None


def _parameter_of(column: Sequence[str], passed: Sequence[Mapping[str, float]]) -> str | None:
    """The author's parameter for which each function was passed the number that it has; None where there is not just one."""
    names = [n for n in passed[0] if all(repr(of.get(n)) == text for of, text in zip(passed, column, strict=True))]
    return names[0] if len(names) == 1 else None


def _computed(
    module: ModuleWriter, column: Sequence[str], alike: Sequence[Def]
) -> tuple[SaidNumber, Mapping[str, tuple[str, ...]]] | None:
    """(the author's expression for a number that functions differ in, the numbers that they were passed for each of the
    parameters in it): `DECAY**i`; None where there is no such expression, or it is not certain which one."""
    callees = [module.callees.get(d.name) for d in alike]
    callee, passed = callees[0], [module.passed.get(d.name, {}) for d in alike]
    frames = module.called_from.get(alike[0].name)
    if callee is None or frames is None or any(c is None or c.code is not callee.code for c in callees):
        return None
    if not isinstance(callee.definition, ast.FunctionDef) or column[0] in module.arrays:
        return None
    places = [(callee.definition.body, (*frames, callee))]
    said = Expressions(places, passed, len(frames) + 1).said([ast.literal_eval(text) for text in column], (1,))
    if len(said) != 1:
        return None
    names = {n.id for n in ast.walk(said[0][0]) if isinstance(n, ast.Name)} & passed[0].keys()
    return said[0], {name: tuple([repr(of[name]) for of in passed]) for name in sorted(names)}


def _is_integer(column: Sequence[str]) -> bool:
    return all("." not in text and "e" not in text for text in column)


def _otherwise(column: Sequence[str], arrays: Mapping[str, np.ndarray]) -> str:
    """The name of a parameter that nobody has a word for."""
    if column[0] in _TRUTHS:
        return "flag"
    if column[0] not in arrays:
        return "size" if _is_integer(column) else "count"
    return "indices" if arrays[column[0]].dtype.kind in "iu" else "array"


def _type_of(column: Sequence[str], arrays: Mapping[str, object]) -> Type | None:
    """The type of the parameter that stands for numbers or arrays; None where they are of several types."""
    if column[0] not in arrays:
        return Type("array", "bool" if column[0] in _TRUTHS else "int" if _is_integer(column) else "float")
    found: Type | None = array_type(jax.typeof(arrays[column[0]]))
    for name in column[1:]:
        found = found and found.merged(array_type(jax.typeof(arrays[name])))
    return found


def _number(text: str) -> Text:
    return Text(text, UNARY if text.startswith("-") else ATOM)


def size_of_argument(
    first: Def, numbers: Sequence[float], types: Sequence[Sequence[tuple[str, Type]]], from_last: bool = False
) -> Expr | None:
    """`x.shape[k]`, one less or more, a part of it as `x.shape[k] // 4`, a few times that, or `x.size`, where that is the
    number in each of several functions, of whose parameters these are the types.

    from_last: whether the last axis is asked first.
    """
    rebound = set(bound_names(Def("", (), first.body)))
    arrays: list[tuple[Expr, list[_Shape]]] = []
    for place, parameter in enumerate(first.params):
        kinds = [t[place][1] if place < len(t) else None for t in types]
        if parameter.name not in rebound:
            arrays.extend(_arrays(Leaf(Name(parameter.name), ()), kinds))
    arrays.sort(key=lambda array: len(array[0].flat()) if type(array[0]) is Leaf else 0)
    of_axes: list[tuple[Expr, Sequence[int]]] = []
    for array, shapes in arrays:
        rank = len(shapes[0])
        for axis in sorted(range(rank), reverse=from_last):
            index = "-1" if axis == rank - 1 else str(axis)
            known = [n for s in shapes if (n := s[axis]) is not None]
            if len(known) == len(shapes):
                of_axes.append((Subscript(Attribute(array, "shape"), _number(index)), known))
    for size, sizes in of_axes:
        if sizes == list(numbers):
            return size
    if not all(isinstance(n, int) for n in numbers):
        return None
    for size, sizes in of_axes if min(numbers) >= _FEWEST else ():
        for operator, change in (("-", 1), ("+", -1)):
            if [n + change for n in numbers] == sizes:
                return Binary(size, operator, Text("1"))
    for size, sizes in of_axes if min(numbers) >= _FEWEST else ():
        ratio = sizes[0] // max(1, int(numbers[0]))
        if ratio > 1 and all(n * ratio == s for n, s in zip(numbers, sizes, strict=True)):
            return Binary(size, "//", Text(str(ratio)))
        times = int(numbers[0]) // max(1, sizes[0])
        if 1 < times <= _MOST_TIMES and all(n == s * times for n, s in zip(numbers, sizes, strict=True)):
            return Binary(Text(str(times)), "*", size)
    for array, shapes in arrays if min(numbers) >= _FEWEST else ():
        whole = [[n for n in s if n is not None] for s in shapes]
        if whole == list(map(list, shapes)) and [math.prod(s) for s in whole] == list(numbers):
            return Attribute(array, "size")
    return None


def _arrays(root: Leaf, kinds: Sequence[Type | None]) -> Iterator[tuple[Expr, list[_Shape]]]:
    """The arrays in a parameter that has these types, and their shapes in each of the functions."""
    known = [k for k in kinds if k is not None]
    first = known[0] if len(known) == len(kinds) else None
    if first is None or any(k.kind != first.kind or len(k.parts) != len(first.parts) for k in known):
        return
    if first.kind == "array":
        shapes = [k.sizes for k in known if hasattr(k.aval, "shape")]
        if len(shapes) == len(known) and len({len(s) for s in shapes}) == 1:
            yield root if root.steps else root.root, shapes
        return
    for place, (key, _) in enumerate(first.parts):
        if any(k.parts[place][0] != key for k in known):
            continue
        is_item = first.kind in ("dict", "list", "tuple")
        step = ("item" if is_item else "attribute", key or str(place), 0 if key else len(first.parts))
        yield from _arrays(Leaf(root.root, (*root.steps, step)), [k.parts[place][1] for k in known])


def outline_of(definition: Def) -> tuple[object, ...]:
    """The same for definitions that say the same, and sooner known."""
    return len(definition.params), len(definition.decorators), tuple([type(s) for s in definition.body])


class Varying(Expr):
    """What stands for a number, or an array of the module, of each of several functions until that is decided.

    `texts`: what each has; `own`: the first one's; `keyword`: of which keyword argument a number is the value, "" for others;
    `call`: the first one's call of which it is a positional argument; `is_operand`: whether it is one of arithmetic, the
    other operand of which is no number.
    """

    __slots__ = ("texts", "own", "keyword", "call", "is_operand")

    def __init__(self, texts: tuple[str, ...], own: Expr, keyword: str, call: Call | None, is_operand: bool):
        self.texts, self.own, self.keyword, self.call, self.is_operand = texts, own, keyword, call, is_operand

    def flat(self) -> str:
        return self.own.flat()


class Alike(AntiUnifier):
    """Definitions that say the same but for the names that they bind. Raises Different.

    bound: those of each. own: names that stand for each other from the beginning. arrays: where given, numbers and these
    arrays may differ as well; `varying` has them, as they stand in the text.
    """

    def __init__(
        self,
        bound: Sequence[Collection[str]],
        own: Sequence[Sequence[str]] | None = None,
        arrays: Collection[str] | None = None,
    ):
        self.bound, self.arrays = bound, arrays
        self.order = [{name: i for i, name in enumerate(names)} for names in own or [()] * len(bound)]
        self.varying: list[Varying] = []

    def definition(self, definitions: Sequence[Def]) -> Def:
        """The first with what they have in common; what they are called does not matter."""
        made = copied(definitions[0])
        for slot in ("params", "body", "decorators"):
            setattr(made, slot, self.value((made, slot, ()), [getattr(d, slot) for d in definitions]))
        return made

    def part(self, position: Position, nodes: Sequence[Node]) -> Node:
        leaves = [n for n in nodes if isinstance(n, (Name, Named, Text)) and type(n) is type(nodes[0])]
        if len(leaves) < len(nodes):
            return self.common(nodes)
        first = leaves[0]
        texts = tuple([n.flat() for n in leaves])
        if self.arrays is not None and all(
            _NUMBER.fullmatch(t) is not None if type(first) is Text else t in self.arrays for t in texts
        ):
            node, slot, way = position
            is_passed = type(first) is Text and slot == "kwargs" and len(way) == 2
            call = node if type(node) is Call and slot == "args" and len(way) == 1 else None
            is_operand = type(node) is Binary and {type(node.left), type(node.right)} != {Text}
            self.varying.append(Varying(texts, first, node.kwargs[way[0]][0] if is_passed else "", call, is_operand))
            return self.varying[-1]
        self.word((first, "id", ()), texts)
        return first

    def word(self, position: Position, words: Sequence[object]) -> object:
        if position[1] == "is_own":  # known of a parameter, and not said
            return words[0]
        if position[1] not in _PLAIN and (type(position[0]), position[1]) != (Attribute, "name"):
            super().word(position, [self._variable(k, w) if type(w) is str else w for k, w in enumerate(words)])
            return words[0]
        return super().word(position, words)

    def _variable(self, number: int, text: str) -> object:
        """A variable, or a way that begins at one, by where it was met first."""
        head, _, rest = text.partition(".")
        order = self.order[number]
        if not _DOTTED.fullmatch(text) or head not in self.bound[number] and head not in order:
            return text
        return order.setdefault(head, len(order)), rest


def mentioned_in(statement: Statement) -> set[str]:
    """What may be names of functions in a statement."""
    found: set[str] = set()
    for node in nodes_of(statement):
        if type(node) is Name:
            found.add(node.id)
        elif type(node) is Text:
            found.add(node.text)
        elif type(node) is Call and type(node.func) is str:
            found.add(node.func)
    return found


def calls_of(statement: Statement, names: dict[str, int], calls: list[tuple[Call, int]]) -> bool:
    """Collects the calls of functions of these names; False where one is named without being called."""
    found: dict[Call, int] = {}  # one may stand in several places
    for node in nodes_of(statement):
        if type(node) is Call and type(node.func) is str and node.func in names:
            found[node] = names[node.func]
        elif type(node) is Name and node.id in names or type(node) is Text and node.text in names:
            return False
    calls.extend(found.items())
    return True
