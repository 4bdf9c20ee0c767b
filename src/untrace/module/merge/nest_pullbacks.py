"""The backward part of a function as a function inside it, which it returns beside its result, as `jax.vjp` does.

    def scale(params, x):                          def scale(params, x):
        width = jnp.exp(params["width"])               width = jnp.exp(params["width"])
        saved = (width, x > 0.0)
        return width * x, saved                        def scale_bwd(d_scale):
                                            ->             d_x = jnp.where(x > 0.0, d_scale, 0.0)
    def scale_bwd(d_scale, x, saved):                      return (x * d_scale).sum(), width * d_x
        width, mask = saved
        d_x = jnp.where(mask, d_scale, 0.0)            return width * x, scale_bwd
        return (x * d_scale).sum(), width * d_x

What it needs of the forward part it reads there, by the names that it has there: what was saved, and those arguments and
results of the forward part that every call passed on. Functions that loops or branches hand their residuals through stay
apart: only arrays can be stacked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from untrace.module.access_paths import Bare, Leaf, Step
from untrace.module.def_use import bound_names, reads, substituted, targets_of
from untrace.module.known_trees import leaf_behind
from untrace.module.merge.parametric import mentioned_in
from untrace.module.writer import ModuleWriter
from untrace.python.inline_neighbours import words_of
from untrace.python.names import base_of
from untrace.python.statements import Assign, Def, For, Parameter, Return, Statement, Unpack
from untrace.python.tree import Binary, Call, Expr, Lambda, Name, Text, Tuple, Unary
from untrace.python.types import Type, tuple_type
from untrace.python.walk import nodes_of

_WORD = re.compile(r"[A-Za-z_]\w*")
_SIMPLE = {Binary, Unary, Name, Text}
_MOST_OPERATIONS = 2
_PULLBACK = Type("array", "a pullback")


def nest_backward_parts(module: ModuleWriter, others: Sequence[Statement]) -> bool:
    """Puts backward parts into their forward parts, callers before callees; whether there were any. others: the
    definitions of `module` that are not in its list."""
    if not any(_is_backward(name) for name in module.local_definitions):
        return False
    everything = [*module.definitions, *others]
    mentioned = {s: mentioned_in(s) for s in everything}
    found = False
    for forward in reversed(list(module.local_definitions.values())):
        if _is_backward(forward.name):
            continue
        where = [s for s in everything if forward.name in mentioned[s]]
        try:
            sites = _sites(forward, where)
            backward = _backward_part(module, forward, sites)
            where = [s for s in everything if backward.name in mentioned[s]]
            nesting = _Nesting(module, forward, backward, sites, where)
        except _Stays:
            continue
        nesting.write()
        found = True
        everything = [s for s in everything if s is not backward]
        module.definitions[:] = [d for d in module.definitions if d is not backward]
        del module.local_definitions[backward.name]
        for statement in (forward, *[site.outer for site in sites]):
            mentioned[statement] = mentioned_in(statement)
    return found


def _is_backward(name: str) -> bool:
    return base_of(name).endswith("_bwd")


@dataclass(slots=True)
class _Site:
    """A call of a forward part: `outer` is the definition of the module that it stands in."""

    outer: Def
    statement: Assign | Unpack
    calls: list[Call] = field(default_factory=list)  # of the backward part, with what this one gave

    @property
    def args(self) -> Sequence[Expr]:
        call = self.statement.value
        assert type(call) is Call
        return call.args

    @property
    def targets(self) -> Sequence[str | Tuple]:
        return self.statement.targets

    @property
    def names(self) -> list[str]:
        """The same as text."""
        return [t if isinstance(t, str) else t.flat() for t in self.targets]


_Source = tuple[str, int, tuple[Step, ...]]


class _Stays(Exception):
    """The two parts stay apart."""


def _sites(forward: Def, where: Sequence[Statement]) -> list[_Site]:
    """The calls of `forward`, each a statement of its own."""
    results = _results(forward)
    found: list[_Site] = []
    mentions = 0
    for outer in where:
        for node in _nodes_once(outer):
            mentions += _says(node, forward.name)
            if isinstance(node, (Assign, Unpack)) and type(node.value) is Call and node.value.func == forward.name:
                if type(outer) is not Def or outer is forward or node.value.kwargs or len(node.targets) != len(results):
                    raise _Stays
                found.append(_Site(outer, node))
    if not found or mentions != len(found) or forward.decorators or any(p.kind != "plain" for p in forward.params):
        raise _Stays
    return found


def _nodes_once(outer: Statement) -> Iterator[Expr | Statement]:
    return iter(dict.fromkeys(n for n in nodes_of(outer) if not isinstance(n, Parameter)))


def _says(node: object, name: str) -> bool:
    """Whether a node says the name of a function."""
    return (
        (type(node) is Call and node.func == name)
        or (type(node) is Name and node.id == name)
        or (_is_code(node) and name in _WORD.findall(node.text))
    )


def _results(definition: Def) -> list[Expr]:
    last = definition.body[-1] if definition.body else None
    if type(last) is not Return:
        raise _Stays
    return list(last.value.elements) if type(last.value) is Tuple else [last.value]


def _backward_part(module: ModuleWriter, forward: Def, sites: Sequence[_Site]) -> Def:
    """The one function to which goes what `forward` gives and nothing else takes. Notes its calls in `sites`."""
    found: dict[str, list[tuple[_Site, Call]]] = {}
    known = {outer: _Passed(outer) for outer in dict.fromkeys(s.outer for s in sites)}
    for place in range(len(sites[0].targets)):
        takers: dict[str, list[tuple[_Site, Call]]] = {}
        for site in sites:
            name = site.targets[place]
            passed = known[site.outer]
            if type(name) is not str or name != "_" and passed.bound[name] != 1:
                raise _Stays
            calls = passed.calls.get(name, ())
            if passed.read[name] != len(calls):
                break
            for function, call in calls:
                takers.setdefault(function, []).append((site, call))
        else:
            for function, calls in takers.items():
                found.setdefault(function, []).extend(calls)
    backward = module.local_definitions.get(next(iter(found))) if len(found) == 1 else None
    if backward is None or backward is forward:
        raise _Stays
    for site, call in found[backward.name]:
        if not any(call is c for c in site.calls):
            site.calls.append(call)
    return backward


class _Passed:
    """Of a definition: how often each name is bound and read, and to which calls of backward parts it is passed."""

    def __init__(self, outer: Def):
        self.bound = Counter(bound_names(outer))
        self.read = _read(outer)
        self.calls: dict[str, list[tuple[str, Call]]] = {}  # with the function
        for node in _nodes_once(outer):
            if type(node) is Call and type(node.func) is str and _is_backward(node.func):
                for arg in node.args:
                    if type(arg) is Name:
                        self.calls.setdefault(arg.id, []).append((node.func, node))


def _read(outer: Def) -> Counter[str]:
    """How often each name is read in a definition and in those inside it."""
    return Counter(n.id for n in nodes_of(outer) if type(n) is Name)


class _Nesting:
    """How a backward part goes into its forward part. Raises _Stays where it does not; nothing is changed before `write`."""

    def __init__(
        self, module: ModuleWriter, forward: Def, backward: Def, sites: Sequence[_Site], where: Sequence[Statement]
    ):
        self.module, self.forward, self.backward, self.sites = module, forward, backward, sites
        calls = [(site, call) for site in sites for call in site.calls]
        mentions = sum(_says(n, backward.name) for s in where for n in _nodes_once(s))
        if mentions != len(calls) or len({c for _, c in calls}) != len(calls) or backward.decorators:
            raise _Stays
        if any(c.kwargs or len(c.args) != len(backward.params) for _, c in calls):
            raise _Stays
        if any(p.kind != "plain" or p.default is not None for p in backward.params):
            raise _Stays
        self.results = _results(forward)
        self.bound = Counter(bound_names(forward))
        self.given = self._given(calls)
        numbers = {number for kind, number, _ in self.given.values() if kind == "result"}
        # What nothing but the backward part takes is not returned any more.
        self.dropped = set(numbers)
        read = {outer: _read(outer) for outer in dict.fromkeys(s.outer for s in sites)}
        for site in sites:
            passed = Counter(a.id for c in site.calls for a in c.args if type(a) is Name)
            self.dropped -= {n for n in numbers if read[site.outer][site.names[n]] != passed[site.names[n]]}
        if not self.dropped or len(self.dropped) == len(self.results):
            raise _Stays
        self._plan()

    def _given(self, calls: Sequence[tuple[_Site, Call]]) -> dict[int, _Source]:
        """By number of a parameter of the backward part: which result, or part of an argument, of the forward part it
        always is."""
        found: dict[int, _Source] = {}
        for number in range(len(self.backward.params)):
            common: list[_Source] | None = None
            for site, call in calls:
                arg = call.args[number]
                same: list[_Source] = [
                    ("result", i, ()) for i, t in enumerate(site.targets) if type(arg) is Name and t == arg.id
                ]
                for i, (a, p) in enumerate(zip(site.args, self.forward.params, strict=False)):
                    steps = self._steps(a, arg) if self.bound[p.name] == 1 else None
                    if steps is not None:
                        same.append(("argument", i, steps))
                common = same if common is None else [s for s in common if s in same]
            if common:
                found[number] = common[0]
        return found

    def _steps(self, whole: Expr, part: Expr) -> tuple[Step, ...] | None:
        """The way from one argument to another that is a part of it; None where it is not."""
        if whole.flat() == part.flat():
            return ()
        (root, start), (other, way) = self._way(whole), self._way(part)
        return way[len(start) :] if root and root == other and way[: len(start)] == start else None

    def _way(self, expr: Expr) -> tuple[str, tuple[Step, ...]]:
        leaf = leaf_behind(expr)
        if leaf is not None:
            return leaf.root.id, leaf.steps
        return (expr.id, ()) if type(expr) is Name else ("", ())

    def _plan(self) -> None:
        """`new`: what stands for the names of the backward part; `before`: statements of the forward part that it needs;
        `gone`: statements that nothing needs."""
        forward, backward = self.forward, self.backward
        self.outside = set(words_of(forward))
        self.taken = self.outside | set(words_of(backward))
        self.new: dict[str, Expr] = {}
        self.before: list[Statement] = []
        self.gone: set[Statement] = set()
        read = Counter(n for s in backward.body for n in reads(s))
        for number, (kind, place, steps) in self.given.items():
            name = backward.params[number].name
            if kind == "argument":
                root = Name(forward.params[place].name)
                self.new[name] = Leaf(root, steps) if steps else root
            else:
                self._take_result(name, place, read)
        self._take_parts()
        kept = [p.name for i, p in enumerate(backward.params) if i not in self.given]
        gone = {*self.new, *[backward.params[i].name for i in self.given]}
        own = set(kept) | {n for n in bound_names(Def("", (), backward.body)) if n not in gone}
        if any(
            isinstance(n, (Def, Lambda)) and not gone.isdisjoint(_parameters(n))
            for s in backward.body
            for n in nodes_of(s)
        ):
            raise _Stays
        used = {name for expr in self.new.values() for name in reads(expr)}
        texts = {w for s in backward.body for n in nodes_of(s) if _is_code(n) for w in _WORD.findall(n.text)}
        free = set(read) - own - gone
        if not texts.isdisjoint(own | gone) or not free.isdisjoint(self.bound):
            raise _Stays
        self.renamed = {name: self._fresh(base_of(name)) for name in sorted(used & own)}

    def _take_parts(self) -> None:
        """Parts of arguments have the variables that the forward part has for them."""
        known: dict[str, str] = {}
        for statement in self.forward.body:
            known.update({value.flat(): name for name, value in _parts_bound(statement)})
        for statement in self.backward.body:
            names = {n: known.get(substituted(v, self.new).flat()) for n, v in _parts_bound(statement)}
            found = {n: name for n, name in names.items() if name is not None and self.bound[name] == 1}
            if found and len(found) == len(names):
                self.new.update({n: Name(name) for n, name in found.items()})
                self.gone.add(statement)

    def _take_result(self, name: str, place: int, read: Mapping[str, int]) -> None:
        """Finds what the parameter `name`, a result of the forward part, is there."""
        value = self.results[place]
        statement = next(
            (s for s in self.forward.body if type(value) is Name and targets_of(s) == [value.id] and type(s) is Assign),
            None,
        )
        parts = value if type(value) is Tuple else statement.value if statement is not None else None
        unpacked: Assign | Unpack | None = next((s for s in self.backward.body if _takes_apart(s, name)), None)
        if place in self.dropped and type(parts) is Tuple and unpacked is not None and read[name] == 1:
            targets = [t for t in unpacked.targets if isinstance(t, str)]
            if len(targets) < len(unpacked.targets) or len(targets) != len(parts.elements):
                raise _Stays
            if statement is not None:
                assert type(value) is Name
                if sum(n == value.id for s in self.forward.body for n in reads(s)) != 1:
                    raise _Stays
                self.gone.add(statement)
            self.gone.add(unpacked)
            for target, element in zip(targets, parts.elements, strict=True):
                if target != "_":
                    self._take(target, element, read)
            return
        self._take(name, value, read if place in self.dropped else {})
        if place not in self.dropped:
            self.results[place] = self.new[name]

    def _take(self, name: str, value: Expr, read: Mapping[str, int]) -> None:
        """`name` stands for a value of the forward part."""
        if type(value) is Name or read.get(name) == 1 and _is_short(value):
            self.new[name] = value
            return
        known = name if name not in self.outside else self._fresh(base_of(name))
        self.before.append(Assign([known], value))
        self.new[name] = Name(known)

    def _fresh(self, base: str) -> str:
        name, number = base, 1
        while name in self.taken or self.module.scope.taken_outside(name):
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    # ------------------------------------------------------------ writing

    def write(self) -> None:
        forward, backward, module = self.forward, self.backward, self.module
        words: dict[Def, set[str]] = {}  # of the definitions with calls
        for site in self.sites:
            if site.outer not in words:
                words[site.outer] = set(words_of(site.outer)) - {backward.name}
            self._change_calls(site, words[site.outer])
        body = [s for s in backward.body if s not in self.gone]
        backward.params = [p for i, p in enumerate(backward.params) if i not in self.given]
        backward.body = body
        _rename(backward, self.renamed)
        backward.body = [substituted(s, self.new) for s in body]
        documented = bool(backward.docstring)
        types = module.described.types_of(backward)
        if types is not None:
            kept = [t for i, t in enumerate(types) if i not in self.given]
            kept = [(p.name, kind) for p, (_, kind) in zip(backward.params, kept, strict=True)]
            module.described.describe(backward, kept, module.described.result_of(backward), documented=documented)
        results = [r for i, r in enumerate(self.results) if i not in self.dropped]
        value = Tuple([*results, Name(backward.name)]) if results else Name(backward.name)
        statements = [s for s in forward.body[:-1] if s not in self.gone]
        forward.body = [*statements, *self.before, backward, Return(value)]
        types = module.described.types_of(forward)
        if types is not None:
            known = module.described.result_of(forward)
            parts = [t for _, t in known.parts] if len(self.results) > 1 else [known]
            parts = [t for i, t in enumerate(parts) if i not in self.dropped]
            documented = bool(forward.docstring)
            module.described.describe(forward, types, tuple_type([*parts, _PULLBACK]), documented=documented)

    def _change_calls(self, site: _Site, words: set[str]) -> None:
        number, name = 1, self.backward.name
        while name in words:
            number += 1
            name = f"{self.backward.name}_{number}"
        words.add(name)
        kept = [t for i, t in enumerate(site.targets) if i not in self.dropped]
        site.statement.targets = [*kept, name if site.calls else "_"]
        for call in site.calls:
            call.func = Name(name)
            call.args = [a for i, a in enumerate(call.args) if i not in self.given]


def _parts_bound(statement: Statement) -> list[tuple[str, Expr]]:
    """(variable, part of an argument) that a statement binds, if it does nothing else."""
    if type(statement) is not Assign or any(type(t) is not str for t in statement.targets):
        return []
    values = statement.value.elements if type(statement.value) is Bare else [statement.value]
    if len(values) != len(statement.targets) or any(type(v) is not Leaf for v in values):
        return []
    return [(str(target), value) for target, value in zip(statement.targets, values, strict=True)]


def _takes_apart(statement: Statement, name: str) -> TypeGuard[Assign | Unpack]:
    return isinstance(statement, (Assign, Unpack)) and type(statement.value) is Name and statement.value.id == name


def _is_code(node: object) -> TypeGuard[Text]:
    """Whether a node is a piece of text that is no string."""
    return type(node) is Text and node.text[:1] not in ("'", '"')


def _is_short(value: Expr) -> bool:
    """Whether a value may stand in another expression, and says more there than its name."""
    nodes = list(nodes_of(value))
    return {type(n) for n in nodes} <= _SIMPLE and 0 < sum(
        type(n) in (Binary, Unary) for n in nodes
    ) <= _MOST_OPERATIONS


def _parameters(node: Def | Lambda) -> Iterator[str]:
    yield from node.params if isinstance(node, Lambda) else [p.name for p in node.params]


def _rename(definition: Def, names: Mapping[str, str]) -> None:
    """Other names for what a function binds, in it and in the functions inside it."""
    if not names:
        return

    def new(name: str) -> str:
        return names.get(name, name)

    for node in list(_nodes_once(definition)):
        if type(node) is Name:
            node.id = new(node.id)
        elif isinstance(node, (Assign, Unpack)):
            node.targets = [new(t) if isinstance(t, str) else t for t in node.targets]
        elif type(node) is Lambda:
            node.params = [new(p) for p in node.params]
        elif type(node) is Call:
            node.func = new(node.func) if isinstance(node.func, str) else node.func
        elif type(node) is Def:
            if node is not definition:
                node.name = new(node.name)
            for parameter in node.params:
                parameter.name = new(parameter.name)
        elif isinstance(node, For):
            node.target = _WORD.sub(lambda m: new(m[0]), node.target)
