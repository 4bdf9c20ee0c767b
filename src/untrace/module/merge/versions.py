"""Functions of one class that differ in more than constants become one, where a test tells each from the others.

`weave` lays them over each other, `conditions` writes what comes of it; here their calls are rewritten. What all calls pass
stays in its place, what only some pass is a keyword argument with the default None, and a result that only some
variants have is not looked at by the others' callers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from untrace import jax_compat
from untrace.ir.types import Origin
from untrace.lift.naming import words
from untrace.module.merge.choices import extent
from untrace.module.merge.conditions import Added, Conditions, Instance
from untrace.module.merge.emission import Emission
from untrace.module.merge.weave import woven
from untrace.module.merge.woven import Woven
from untrace.module.writer import ModuleWriter
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance, Site
from untrace.python.anti_unify import Different, get, places_of, put
from untrace.python.statements import Assign, Def, Parameter, Return, Statement, Unpack
from untrace.python.tree import Call, Expr, List, Name, Star, Subscript, Text, Tuple
from untrace.python.walk import nodes_of

# A function with more parameters of its own, beside the author's, is harder to read than two.
_MOST_FLAGS = 5
# How much longer than two functions one may be.
_LONGER = 12
# How many functions are tried as the first one, and as the next one.
_MOST_STARTS = 4
_MOST_TRIED = 8


def unite(module: ModuleWriter, entry: Sequence[Statement], group: Sequence[Def], provenance: Provenance) -> list[Def]:
    """Makes one function of those of `group` that fit each other best; those that are left."""
    if any(type(n) is Name and n.id in {d.name for d in group} for n in nodes_of([*module.definitions, *entry])):
        return list(group)  # more than called: handed to a scan, say
    ordered = sorted(group, key=lambda d: -extent(d.body))
    starts = []
    for base in ordered if len(ordered) <= _MOST_STARTS else ordered[:1]:
        made = _United(module, entry, provenance, base)
        if made.add([d for d in ordered if d is not base][:_MOST_TRIED]):
            starts.append((made.saved, len(starts), made))
    if not starts:
        return list(group)
    made = min(starts, key=lambda s: s[:2])[2]
    others = [d for d in ordered if d not in made.members]
    while others and made.add(others[:_MOST_TRIED]):
        others = [d for d in ordered if d not in made.members]
    made.write()
    return [d for d in group if d not in made.members]


# The statements of a function, the flags that it gets, and what variants pass for parameters that others have.
_Text = tuple[list[Statement], list[Added], dict[str, dict[str, Expr]]]


class _United:
    def __init__(self, module: ModuleWriter, entry: Sequence[Statement], provenance: Provenance, base: Def):
        self.module, self.entry, self.provenance = module, entry, provenance
        self.members = [base]
        try:
            self.woven: Woven | None = Woven(base)
        except Different:
            self.woven = None
        self.text: _Text | None = None

    def add(self, others: Sequence[Def]) -> bool:
        """Takes the one in that fits best; whether one did."""
        self.offers: list[tuple[tuple[bool, int], int, Def, Woven, _Text]] = []
        for other in others:
            self._offer(other)
        if not self.offers:
            return False
        self.saved, _, other, self.woven, self.text = min(self.offers, key=lambda o: o[:2])
        self.members = [*self.members, other]
        return True

    def _offer(self, other: Def) -> None:
        if self.woven is None:
            return
        members = [*self.members, other]
        try:
            found = woven(self.woven, other, self._defaults)
            conditions = Conditions(found, {d.name: self._instance(d) for d in members}, self._asked)
            text = Emission(found, conditions, self._role, self._word_for).statements()
            if len(conditions.added) > _MOST_FLAGS or any(not self._fits(c, found) for c in self._places(members)):
                return
        except Different:
            return
        before = extent(self.text[0] if self.text else self.members[0].body)
        growth = extent(text) - before
        most = extent(other.body) // 2 if conditions.is_weak else extent(other.body) + _LONGER
        if growth <= most:
            key = conditions.is_weak, growth - extent(other.body)
            made = text, conditions.added, conditions.filled
            self.offers.append((key, len(self.offers), other, found, made))

    # ------------------------------------------------------------ what is known of them

    def _defaults(self, function: str) -> Mapping[str, Expr]:
        """Of a function of the module: None for what a call may leave out."""
        own = self.module.local_definitions.get(function)
        return {p.name: p.default for p in own.params if p.default is not None} if own is not None else {}

    def _instance(self, definition: Def) -> Instance:
        parts = [p for p in self.module.parts.get(definition.name, ()) if p is not None]
        names = {p.name for p in definition.params}
        has = frozenset.intersection(*[p.every for p in parts]) if parts else frozenset()
        some = frozenset().union(*[p.some for p in parts])

        def lacks(root: str, keys: tuple[str, ...]) -> bool:
            return root in names and bool(parts) and (root, keys) not in some

        return Instance(
            frozenset(w for w in has if w[0] in names), lacks, self.module.attributes.get(definition.name, {})
        )

    def _role(self, call: Call, place: int | str) -> str:
        if isinstance(place, str):
            return place
        if type(call.func) is not str:
            return "size"
        names = parameters_of(call.func, self.module)
        return words.clean(names[place]) if place < len(names) else "size"

    def _asked(self, about: Sequence[object]) -> tuple[str, bool]:
        """The word for the author's `if` around statements, and whether they stand where it is true."""
        for statement in about:
            origin = getattr(statement, "origin", None)
            for frame in reversed(self._site(origin).user_frames) if origin is not None else ():
                for test, true in _ifs_around(frame):
                    word = _word(test)
                    if word[0]:
                        return word[0], word[1] is true
        return "", True

    def _word_for(self, names: set[str]) -> str:
        """What the author calls the one or the other of some values: `states = x if memory is None else memory`."""
        for definition in self.members:
            for statement in definition.body:
                origin = getattr(statement, "origin", None)
                for frame in self._site(origin).user_frames if origin is not None else ():
                    for node in ast.walk(frame.definition) if frame.definition is not None else ():
                        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
                            either = {w.id for w in (node.value.body, node.value.orelse) if isinstance(w, ast.Name)}
                            target = node.targets[0]
                            if either == names and isinstance(target, ast.Name):
                                return words.clean(target.id)
        return ""

    def _site(self, origin: Origin) -> Site:
        return origin.site if hasattr(origin, "site") else self.provenance.site(origin)

    # ------------------------------------------------------------ calls

    def _places(self, members: Sequence[Def]) -> list[tuple[Assign | Unpack | Return | None, Call]]:
        """(the statement that binds what a call gives, None where the call stands in an expression; the call)."""
        names = {d.name for d in members}
        bodies = [*self.module.definitions, *self.entry]
        whole = {s.value: s for s in nodes_of(bodies) if type(s) is Assign or type(s) is Unpack or type(s) is Return}
        calls = [n for n in nodes_of(bodies) if type(n) is Call and type(n.func) is str and n.func in names]
        return [(whole.get(call), call) for call in dict.fromkeys(calls)]

    def _order(self, name: str, found: Woven) -> list[int]:
        """Which results of all a variant gives."""
        return [i for i, (_, variants) in enumerate(found.results) if name in variants]

    def _fits(self, place: tuple[Assign | Unpack | Return | None, Call], found: Woven) -> bool:
        statement, call = place
        if any(type(a) is Star for a in call.args) or any(n == "**" for n, _ in call.kwargs):
            return False
        own = self._order(str(call.func), found)
        if not found.several or len(own) == len(found.results):
            return True
        if type(statement) is Assign or type(statement) is Unpack:
            return len(statement.targets) == len(own)
        return len(own) == 1

    def write(self) -> None:
        assert self.woven is not None and self.text is not None
        module, found = self.module, self.woven
        body, added, filled = self.text
        first = self.members[0]
        for definition in self.members:
            if len(definition.name) < len(first.name):
                first = definition
        every = found.variants
        required = [n for n, default, having in found.params if having == every and default is None]
        optional = {n: default or Text("None") for n, default, having in found.params if n not in required}
        places = self._places(self.members)
        common: dict[str, str] = {}
        for flag in added:
            counts: dict[str, int] = {}
            for _, call in places:
                text = flag.values.get(str(call.func), Text("None")).flat()
                counts[text] = counts.get(text, 0) + 1
            values = [v.flat() for v in flag.values.values()]
            common[flag.name] = (
                "False" if set(values) == {"True", "False"} else max(values, key=lambda v: counts.get(v, 0))
            )
        flags = [Parameter(f.name, next(v for v in f.values.values() if v.flat() == common[f.name])) for f in added]
        made = Def(first.name, [Parameter(n) for n in required], body)
        made.params = [*made.params, *[Parameter(n, d) for n, d in optional.items()], *flags]
        own = {d.name: d for d in self.members}
        for statement, call in places:
            variant = str(call.func)
            given = {p.name: p.default for p in own[variant].params if p.default is not None}
            given |= dict(zip([p.name for p in own[variant].params], call.args, strict=False)) | dict(call.kwargs)
            given |= {n: values[variant] for n, values in filled.items() if variant in values}
            call.args = [given[n] for n in required]
            kwargs = [(n, given[n]) for n in optional if n in given]
            kwargs += [(f.name, f.values[variant]) for f in added if variant in f.values]
            call.kwargs = kwargs  # those that are the defaults go at last: until then they stand beside those of others
            call.func = made.name
            self._take(statement, call, self._order(variant, found), len(found.results), found.several)
        module.described.joined(
            made, self.members, {f.name: kind_of(f.default) for f in flags if f.default is not None}
        )
        at = min(module.definitions.index(d) for d in self.members)
        module.definitions[at] = made
        module.definitions[:] = [d for d in module.definitions if d not in self.members]
        module.kept.append(self.members)  # ids of their parts are known elsewhere
        _before(module, made)
        parts = [p for d in self.members for p in module.parts.pop(d.name, ())]
        for definition in self.members:
            del module.local_definitions[definition.name]
        module.local_definitions[made.name] = made
        module.parts[made.name] = parts

    def _take(
        self,
        statement: Assign | Unpack | Return | None,
        call: Call,
        own: Sequence[int],
        count: int,
        several: bool,
    ) -> None:
        """Makes of what a call gives now what its statement needs."""
        if not several or len(own) == count:
            return
        if type(statement) is Assign or type(statement) is Unpack:
            targets: list[str | Tuple] = ["_"] * count
            for place, target in zip(own, statement.targets, strict=True):
                targets[place] = target
            statement.targets = targets
            return
        part = Subscript(Call(call.func, call.args, call.kwargs), Text(str(own[0])))
        for node in [n for n in nodes_of([*self.module.definitions, *self.entry]) if n is not part]:
            for place in places_of(node):
                if get(place) is call:
                    put(place, part)


def _before(module: ModuleWriter, made: Def) -> None:
    """What a function calls stands before it."""
    for name in sorted(_called(made, module)):
        other = module.local_definitions[name]
        if module.definitions.index(other) > module.definitions.index(made):
            module.definitions.remove(other)
            module.definitions.insert(module.definitions.index(made), other)
            _before(module, other)


def _called(definition: Def, module: ModuleWriter) -> set[str]:
    calls = {n.func for n in nodes_of(definition.body) if type(n) is Call and type(n.func) is str}
    return (calls & module.local_definitions.keys()) - {definition.name}


def parameters_of(function: str, module: ModuleWriter) -> list[str]:
    """The parameters of a function that a text calls."""
    own = module.local_definitions.get(function)
    return [p.name for p in own.params] if own is not None else list(jax_compat.signature_of(function))


def kind_of(value: Expr) -> str:
    """The type of a constant, for a docstring."""
    if type(value) in (Tuple, List):
        return "a tuple" if type(value) is Tuple else "a list"
    text = value.flat()
    if text in ("True", "False"):
        return "bool"
    return "str" if text[:1] in "'\"" else "int" if text.lstrip("-").isdigit() else "float"


def _ifs_around(frame: Frame) -> list[tuple[ast.AST, bool]]:
    """The conditions of the `if`s around a call in its function, innermost first, and whether it stands where each holds."""
    definition, line = frame.definition, frame.line
    if not isinstance(definition, ast.FunctionDef) or line is None:
        return []
    first = min([definition.lineno, *[d.lineno for d in definition.decorator_list]])
    line -= frame.code.co_firstlineno - first  # nodes may count from the start of their function
    found: list[tuple[ast.AST, bool]] = []
    for node in ast.walk(definition):
        if isinstance(node, ast.If):
            for block, true in ((node.body, True), (node.orelse, False)):
                if block and block[0].lineno <= line <= (block[-1].end_lineno or line):
                    found.append((node.test, true))
    return found[::-1]


def _word(test: ast.AST) -> tuple[str, bool]:
    """(`is_decoder`, True) for `self.is_decoder`, (.., False) for `not self.is_decoder`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        word, true = _word(test.operand)
        return word, not true
    if isinstance(test, ast.Name):
        return words.clean(test.id), True
    if isinstance(test, ast.Attribute):
        return words.clean(test.attr), True
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        word, _ = _word(test.left)
        other = test.comparators[0]
        if isinstance(other, ast.Constant) and other.value is None:
            return (f"has_{word}" if word else "", isinstance(test.ops[0], (ast.IsNot, ast.NotEq)))
        if isinstance(other, ast.Constant) and other.value == 0 and isinstance(test.ops[0], ast.Gt):
            return word, True
    return "", True
