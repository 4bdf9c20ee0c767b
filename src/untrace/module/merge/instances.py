"""Instances of one class that differ in constants, or in whether a part is there, share one function.

    def basic_block(params, buffers, x, stride=(1, 1)):
        ...
        shortcut = batch_norm2d(params["shortcut"]["1"], ...) if "shortcut" in params else x

The functions are written one by one first; here their trees become one. The proof is of the text that comes of it; where
it fails, the functions stay apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from untrace._identifiers import identifier
from untrace.ir.passes import is_strict
from untrace.lift.naming import words
from untrace.module.access_paths import Leaf
from untrace.module.merge.alignment import Aligned
from untrace.module.merge.choices import bound_in, free, parts_below
from untrace.module.merge.conditions import HasKey, attributes_with
from untrace.module.merge.parametric import author_s_parameter, size_of_argument
from untrace.module.merge.versions import kind_of, parameters_of, unite
from untrace.module.writer import ModuleWriter
from untrace.provenance.sites import Provenance
from untrace.python.anti_unify import Different, Position, get, places_of, put
from untrace.python.statements import Assign, Def, If, Lines, Parameter, Statement
from untrace.python.tree import WIDTH, Call, Dict, Expr, List, Name, Ternary, Text, Tuple, Unary
from untrace.python.types import Type
from untrace.python.walk import nodes_of

# A function with more parameters than this is harder to read than two.
_MOST_PARAMETERS = 4


class Spread(Expr):
    """`**new_shortcut` in a dict."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def flat(self) -> str:
        return f"**{self.name}"


class SpreadDict(Dict):
    """`{key: value, **rest}`."""

    __slots__ = ("rest",)

    def __init__(self, pairs: Sequence[tuple[Expr | None, Expr]], rest: str):
        super().__init__(pairs)
        self.rest = rest

    def flat(self) -> str:
        return "{" + ", ".join([*[f"{key}{value.flat()}" for key, value in self._parts()], f"**{self.rest}"]) + "}"

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str]:
        return "{", [*self._parts(), ("", Spread(self.rest))], "}"

    def _parts(self) -> list[tuple[str, Expr]]:
        return [(f"{key.flat()}: " if key is not None else "**", value) for key, value in self.pairs]


def share(module: ModuleWriter, entry: Sequence[Statement]) -> bool:
    """Makes one function of those with the same head, under conditions where it has to be; whether any were."""
    return _share(module, entry, True)


def share_alike(module: ModuleWriter, entry: Sequence[Statement]) -> bool:
    """The same for those that differ little: for where the text of `share` is not proven."""
    return _share(module, entry, False)


def _share(module: ModuleWriter, entry: Sequence[Statement], conditions: bool) -> bool:
    groups: dict[str, list[Def]] = {}
    for definition in module.definitions:
        if type(definition) is Def and definition.body and type(definition.body[0]) is Lines:
            groups.setdefault(definition.body[0].text, []).append(definition)
    shared = False
    known = Provenance()
    for group in groups.values():
        left: list[Def] = []
        while group:
            base = max(group, key=lambda d: len(d.body))
            others = [d for d in group if d is not base]
            made = _Shared(module, entry, base, others)
            if made.others:
                made.write()
                shared = True
            left.append(base)
            group = [d for d in others if d not in made.others]
        if conditions and len(left) > 1:
            try:
                shared = len(unite(module, entry, left, known)) < len(left) or shared
            except Exception:  # as in any lift: a fault costs readability, never the result
                if is_strict():
                    raise
    _without_defaults(module, entry, {d.name for g in groups.values() for d in g})
    return shared


def _without_defaults(module: ModuleWriter, entry: Sequence[Statement], own: set[str]) -> None:
    """Leaves out what a function has as its default, where it was made here."""
    for call in _calls(module, entry):
        definition = module.local_definitions.get(call.func) if call.func in own else None
        if definition is not None:
            same = {p.name: p.default.flat() for p in definition.params if p.default is not None}
            call.kwargs = [(k, v) for k, v in call.kwargs if same.get(k) != v.flat()]


def _calls(module: ModuleWriter, entry: Sequence[Statement]) -> list[Call]:
    return [n for n in nodes_of([*module.definitions, *entry]) if type(n) is Call and type(n.func) is str]


class _Shared:
    """One function for `base` and those of `others` that fit it."""

    def __init__(self, module: ModuleWriter, entry: Sequence[Statement], base: Def, others: Sequence[Def]):
        self.module, self.entry, self.base = module, entry, base
        self.others: list[Def] = []
        self.added: list[Parameter] = []
        self.name = base.name
        self.values: dict[Position, tuple[Expr, dict[str, Expr]]] = {}
        self.aligned: dict[str, Aligned] = {}
        for other in others:
            found = self._laid(other)
            if found is None:
                continue
            if self._too_many(found) or self._missing_another(found) or self._passed_on(other):
                continue
            if found.residual is not None and any(self._adds_otherwise(a, found) for a in self.aligned.values()):
                continue
            if found.keys and self._endings([*self.aligned.values(), found]) is None:
                continue
            self.others.append(other)
            self.aligned[other.name] = found
            for place, mine, theirs in found.constants:
                self.values.setdefault(place, (mine, {}))[1][other.name] = theirs

    def _laid(self, other: Def) -> Aligned | None:
        """`other` beside the base: as it stands, or where values have names in one of the two only."""
        for folded in (False, True):
            try:
                found = Aligned(self.base, other, (self._shapes(self.base), self._shapes(other)), folded)
                self._test(found, other)
                return found
            except Different:
                continue
        return None

    @staticmethod
    def _adds_otherwise(before: Aligned, found: Aligned) -> bool:
        """Whether another residual is added than in a function before."""
        if before.residual is None or found.residual is None:
            return False
        (place, both, _, base), (place_2, both_2, _, base_2) = before.residual, found.residual
        return place[0] is not place_2[0] or place[1:] != place_2[1:] or both.flat() != both_2.flat() or base != base_2

    def _shapes(self, definition: Def) -> dict[str, tuple[int, ...]]:
        """The shapes of a function's parameters, with -1 for sizes that follow the inputs."""
        free = self.module.numbers.integers
        types = self.module.described.types_of(definition) or []
        return {n: tuple(-1 if k in free else k for k in getattr(t.aval, "shape", ())) for n, t in types}

    def _too_many(self, found: Aligned) -> bool:
        places = {p for p, _, _ in found.constants} | self.values.keys()
        return len(places) > 2 * _MOST_PARAMETERS

    def _missing_another(self, found: Aligned) -> bool:
        """Whether another part is left out than in the functions before."""
        before = [a for a in self.aligned.values() if a.missing]
        return bool(found.missing and before) and (
            before[0].missing != found.missing or _flat(before[0].instead) != _flat(found.instead)
        )

    def _passed_on(self, other: Def) -> bool:
        """Whether one of the functions is more than called: handed to a scan, say."""
        names = {self.base.name, other.name}
        return any(type(n) is Name and n.id in names for n in nodes_of([*self.module.definitions, *self.entry]))

    def _test(self, found: Aligned, other: Def) -> HasKey | None:
        """`"shortcut" in params`: what tells the two apart. Raises Different."""
        if not found.missing:
            return None
        own = {p.name: i for i, p in enumerate(self.base.params)}
        for node in nodes_of(found.missing):
            if isinstance(node, Leaf) and node.steps and node.root.id in own and node.steps[0][0] == "item":
                key, name = node.steps[0][1], other.params[own[node.root.id]].name
                theirs = {
                    n.steps[0][1] for n in nodes_of(other.body) if isinstance(n, Leaf) and n.root.id == name and n.steps
                }
                if key[:1] == '"' and key not in theirs:
                    return HasKey(key, node.root)
        raise Different

    def _endings(self, every: Sequence[Aligned]) -> dict[Leaf, tuple[Position, list[str]]] | None:
        """The leaves with other names in other functions, each with its names; None where these are not all
        `weight_ih_l0`, `weight_ih_l1` with the same endings.
        """
        leaves = {leaf: place for found in every for place, leaf, _ in found.keys}
        theirs = [{leaf: other for _, leaf, other in found.keys} for found in every]
        names: dict[Leaf, tuple[Position, list[str]]] = {}
        endings = set()
        for leaf, place in leaves.items():
            said = [leaf.steps[0][1], *[of.get(leaf, leaf).steps[0][1] for of in theirs]]
            if not all(re.fullmatch(r'"\w+"', n) for n in said):
                return None
            words_ = [n[1:-1] for n in said]
            start = os.path.commonprefix(words_).rpartition("_")[0]
            if not start:
                return None
            names[leaf] = place, [start, *[w[len(start) + 1 :] for w in words_]]
            endings.add(tuple(names[leaf][1][1:]))
        return names if len(endings) <= 1 else None

    def _named_by_layer(self, taken: set[str]) -> list[tuple[Parameter, Expr, dict[str, Expr]]]:
        """`params[f"weight_ih_{layer}"]` for leaves with other names, and the parameter that tells which."""
        found = self._endings(list(self.aligned.values())) or {}
        if not found:
            return []
        name = free("layer", taken)
        taken.add(name)
        roots = {leaf.root.id for leaf in found}
        places = [i for i, p in enumerate(self.base.params) if p.name in roots]
        for definition in (self.base, *self.others):
            self.module.described.in_words(definition, [definition.params[i].name for i in places], "a dict of arrays")
        for leaf, (place, (start, *_)) in found.items():
            put(place, Leaf(leaf.root, (("item", f'f"{start}_{{{name}}}"', 0),)))
        mine, *theirs = [Text(f'"{ending}"') for ending in next(iter(found.values()))[1][1:]]
        return [(Parameter(name), mine, dict(zip(self.aligned, theirs, strict=True)))]

    def _residual(self, taken: set[str]) -> list[tuple[Parameter, Expr, dict[str, Expr]]]:
        """`x + out if use_res_connect else out`, and the parameter that tells which."""
        found = {n: a.residual for n, a in self.aligned.items() if a.residual is not None}
        if not found:
            return []
        place, both, plain, base_adds = next(iter(found.values()))
        adds = {self.base.name: base_adds, **{o.name: base_adds != (o.name in found) for o in self.others}}
        texts: dict[str, Expr] = {n: Text(str(value)) for n, value in adds.items()}
        name = free(identifier(self._attribute(texts) or "residual", "size"), taken)
        taken.add(name)
        put(place, Ternary(both, Name(name), plain))
        return [(Parameter(name), texts.pop(self.base.name), texts)]

    # ------------------------------------------------------------ the new function

    def write(self) -> None:
        module, base = self.module, self.base
        names = {o.name for o in self.others}
        # Constants that differ together are one parameter.
        groups: dict[tuple[tuple[str, ...], str], list[tuple[Position, Expr, dict[str, Expr]]]] = {}
        for place, (mine, theirs) in self.values.items():
            values = (mine.flat(), *[theirs.get(o.name, mine).flat() for o in self.others])
            groups.setdefault((values, self._role(place)), []).append((place, mine, theirs))
        taken = {n.id for n in nodes_of(base.body) if type(n) is Name} | {p.name for p in base.params}
        taken |= {t for n in nodes_of(base.body) for t in bound_in(n)}
        added = [*self._named_by_layer(taken), *self._residual(taken)]
        only = author_s_parameter(module, [base, *self.others]) if len(groups) == 1 else None
        for (values, role), places in groups.items():
            axis = self._axis(values) if role == "size" else None
            if axis is not None:
                for place, _, _ in places:
                    put(place, axis)
                continue
            name = free(identifier(only or role, "size"), taken)
            taken.add(name)
            for place, _, _ in places:
                put(place, Name(name))
            added.append((Parameter(name), places[0][1], places[0][2]))
        used: dict[str, int] = {}
        for call in _calls(module, self.entry):
            used[str(call.func)] = used.get(str(call.func), 0) + 1
            if call.func == base.name:
                call.kwargs = [*call.kwargs, *[(p.name, mine) for p, mine, _ in added]]
            elif call.func in names:
                call.kwargs = [*call.kwargs, *[(p.name, theirs.get(call.func, mine)) for p, mine, theirs in added]]
                call.func = base.name
        for other in self.others:
            module.described.shared(base, other)
        first = min(self.others, key=module.definitions.index, default=base)
        plain = min(base.name, first.name, key=len)
        for parameter, mine, theirs in added:
            counts: dict[str, int] = {}
            every = {base.name: mine, **{o.name: theirs.get(o.name, mine) for o in self.others}}
            for name, value in every.items():
                counts[value.flat()] = counts.get(value.flat(), 0) + used.get(name, 0)
            common = max(counts, key=lambda k: counts[k])
            parameter.default = next(v for v in every.values() if v.flat() == common)
            base.params = [*base.params, parameter]
            self.added.append(parameter)
        defaults = [(p.name, p.default) for p in self.added if p.default is not None]  # all have one
        module.described.also(base, [(name, Type("array", kind_of(default))) for name, default in defaults])
        missing = next((a for a in self.aligned.values() if a.missing), None)
        if missing is not None:
            other = next(o for o in self.others if self.aligned[o.name] is missing)
            test = self._test(missing, other)
            assert test is not None  # as there are such statements
            self._conditional(missing, test)
        module.definitions[:] = [d for d in module.definitions if d not in self.others]
        for other in (base, *self.others):
            del module.local_definitions[other.name]
        if plain != base.name:
            for call in _calls(module, self.entry):
                if call.func == base.name:
                    call.func = plain
            base.name = plain
        self.name = base.name
        module.local_definitions[base.name] = base

    def _axis(self, values: Sequence[str]) -> Expr | None:
        """`x.shape[-1]`, where a number is that in each of the functions."""
        try:
            numbers = [float(v) for v in values]
        except ValueError:
            return None
        types = [self.module.described.types_of(d) or () for d in (self.base, *self.others)]
        return size_of_argument(self.base, numbers, types, from_last=True)

    def _conditional(self, found: Aligned, test: Expr) -> None:
        """Puts the statements that some instances lack under a condition."""
        base = self.base
        body = list(base.body)
        at = next(i for i, s in enumerate(body) if s is found.missing[0])
        del body[at : at + len(found.missing)]
        otherwise: list[Statement] = [Assign([name], value) for name, value in found.instead.items()]
        inside = list(found.missing)
        taken = {t for n in nodes_of(base.body) for t in bound_in(n)}
        for dictionary in dict.fromkeys(d for d, _ in found.pairs):
            numbers = [i for d, i in found.pairs if d is dictionary]
            key, _ = dictionary.pairs[numbers[0]]
            assert key is not None  # of `**part` none is found
            name = free("new_" + identifier(key.flat().strip('"'), "part"), taken)
            taken.add(name)
            inside.append(Assign([name], Dict([dictionary.pairs[i] for i in numbers])))
            otherwise.append(Assign([name], Dict([])))
            pairs = [p for i, p in enumerate(dictionary.pairs) if i not in numbers]
            for node in nodes_of(body):
                for place in places_of(node):
                    if get(place) is dictionary:
                        put(place, SpreadDict(pairs, name))
        only = inside[0]
        if len(inside) == 1 and type(only) is Assign and list(only.targets) == list(found.instead):
            ((name, instead),) = found.instead.items()
            whole = Ternary(only.value, test, instead)
            if len(whole.flat()) + len(name) < WIDTH - 8:
                only.value = whole
                inside = []
                body.insert(at, only)
        if inside:
            body.insert(at, If(test, inside, otherwise))
        base.body = body

    def _role(self, place: Position) -> str:
        """What a constant is: the keyword or the parameter that it is passed for."""
        node, slot, indices = place
        above = {c: n for n in nodes_of(self.base.body) for c in parts_below(n)}
        mine, theirs = self.values[place]
        attribute = self._attribute({self.base.name: mine, **{o.name: theirs.get(o.name, mine) for o in self.others}})
        if attribute:
            return attribute
        if type(node) is Call and slot == "args" and type(node.func) is not str:
            return "size"
        while node is not None:
            if type(node) is Call and slot == "kwargs":
                return words.clean(node.kwargs[indices[0]][0])
            if type(node) is Call and slot == "args" and type(node.func) is str:
                names = parameters_of(node.func, self.module)
                return words.clean(names[indices[0]]) if indices[0] < len(names) else "size"
            parent = above.get(node)
            if parent is None or type(node) not in (Text, Tuple, List, Unary) and node is not place[0]:
                break  # a part of something computed: what that is passed for says nothing of it
            slot, indices = next(((p[1], p[2]) for p in places_of(parent) if get(p) is node), ("", ()))
            node = parent
        return "size"

    def _attribute(self, values: Mapping[str, Expr]) -> str:
        """The name that the author's object has for what has these values in the functions."""
        fitting = attributes_with(getattr(self.module, "attributes", {}), values)
        return words.clean(fitting[0]) if fitting else ""


def _flat(values: Mapping[str, Expr]) -> dict[str, str]:
    return {k: v.flat() for k, v in values.items()}
