"""Residuals: what a forward part saves for its backward part goes from one to the other as one tuple.

    out, mean, scaled = layer_norm(x, scale)                out, saved = layer_norm(x, scale)
    ...                                            ->       ...
    d_x = layer_norm_bwd(d_out, mean, scaled)               d_x = layer_norm_bwd(d_out, saved)

Which results of a function are residuals, the outliner knows (`facts.saved`: how many, the last ones). A
backward part takes a tuple where all its calls take their parts from one in the same way; whatever else needs a part
takes the tuple apart.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from untrace.ir.callees import callee_of
from untrace.ir.nodes import (
    Equation,
    Function,
    Local,
    Pack,
    Program,
    PullbackType,
    Scan,
    TupleType,
    Unpack,
    Value,
    walk_functions,
)
from untrace.lift.adjoint.residuals_of_loops import (
    Handover,
    Stack,
    arrange,
    hand_over,
    handovers,
    stack,
    stacks,
    take_stacked,
)

Path = tuple[int, ...]


def bundle_residuals(program: Program, refused: Container[JaxprEqn] = frozenset()) -> Program:
    """Makes tuples of residuals in `program`, in place. `refused`: ids of jaxpr equations to leave as they are."""
    functions = walk_functions(program.entry)
    loops = handovers(functions, refused)
    stacked, takers = stacks(functions, refused, loops)
    if loops or stacked:
        functions = walk_functions(program.entry)  # with the loops' new bodies
    if loops or any(f.facts.saved > 1 for f in functions):
        arrange(functions, loops)
        _Bundler(functions, loops, stacked, takers).bundle()
    return program


class _Scope:
    """One function: `parts` says of which tuple, and where in it, a value is a part; `inner` has tuples within tuples."""

    def __init__(self, function: Function):
        self.function = function
        self.parts: dict[Any, tuple[Value, Path]] = {}
        self.inner: dict[tuple[Value, Path], Value] = {}  # tuples within tuples

    def take(self, value: Value, whole: Value, path: Path) -> None:
        self.parts[value] = whole, path

    def whole(self, root: Value, path: Path) -> Value:
        """The tuple at `path` in the tuple `root`."""
        return root if not path else self.inner.setdefault((root, path), _named_tuple(root, path))


class _Bundler:
    def __init__(
        self,
        functions: Sequence[Function],
        loops: dict[Function, list[Handover]],
        stacked: dict[Function, list[Stack]],
        takers: Container[Equation],
    ):
        self.functions = functions  # callees before callers
        self.loops = loops  # by the id of the function that they are in
        self.stacked = stacked
        self.takers = takers
        self.scopes = {f: _Scope(f) for f in functions}
        self.ways: dict[Function, list[Path]] = {}  # a forward function -> where each of its residuals stands
        self.types: dict[Function, TupleType] = {}

    def bundle(self) -> None:
        for function in self.functions:
            self._take(function)
            for handover in self.loops.get(function, ()):
                forward, backward = [
                    self.scopes[callee_of(e, Scan).body] for e in (handover.forward, handover.backward)
                ]
                hand_over(handover, forward.parts, backward.take)
            for found in self.stacked.get(function, ()):
                inner = self.scopes[callee_of(found.forward, Scan).body]
                stack(found, inner.parts, self.scopes[function].take)
            if function.facts.saved > 1:
                self._give(function)
        sites: dict[Function, list[tuple[_Scope, Equation]]] = {}
        for function in reversed(self.functions):  # callers before callees
            if function.facts.backward and function in sites:
                self._pass(function, sites[function])
            scope = self.scopes[function]
            for equation in function.equations:
                if type(equation.callee) is Local:
                    sites.setdefault(equation.callee.body, []).append((scope, equation))
                elif equation in self.takers:
                    body = self.scopes[callee_of(equation, Scan).body]
                    take_stacked(equation, scope.parts, scope.whole, body.take)
        for scope in self.scopes.values():
            if scope.parts:
                _take_apart(scope)

    def _take(self, function: Function) -> None:
        """The calls in `function` give one tuple in place of their residuals."""
        scope = self.scopes[function]
        for equation in function.equations:
            ways = self.ways.get(equation.callee.body) if type(equation.callee) is Local else None
            if ways is None:
                continue
            count = len(equation.outputs) - len(ways)
            body = callee_of(equation, Local).body
            word = body.name.removesuffix("_fwd")
            saved = Value(self.types[body], f"{word}_saved")
            for value, way in zip(equation.outputs[count:], ways, strict=True):
                if value is not None:
                    scope.parts[value] = saved, way
            equation.outputs = [*equation.outputs[:count], saved]

    def _give(self, function: Function) -> None:
        """`function` returns one tuple in place of its residuals; what is in a tuple already stays in it."""
        count = len(function.results) - function.facts.saved
        parts = self.scopes[function].parts
        members: list[Any] = []
        ways: list[Path] = []
        for result in function.results[count:]:
            whole, rest = parts.get(result, (result, ()))
            if not any(whole is m for m in members):
                members.append(whole)
            ways.append((next(i for i, m in enumerate(members) if m is whole), *rest))
        saved = members[0]
        if len(members) > 1:
            saved = Value(TupleType([m.aval for m in members], [m.hint for m in members]), "saved")
            function.equations.append(Equation(Pack(), members, [saved], {}))
        else:
            ways = [way[1:] for way in ways]
        function.results = [*function.results[:count], saved]
        self.ways[function], self.types[function] = ways, saved.aval

    def _pass(self, function: Function, sites: Sequence[tuple[_Scope, Equation]]) -> None:
        """The calls of a backward part pass tuples, as far as all of them do it alike."""
        groups: dict[tuple[int, ...], tuple[Any, list[Path]]] = {}
        for whole in (True, False):  # what one call saved may be a part of what the call around it saved
            found = [_groups(scope, equation, whole) for scope, equation in sites]
            for places, key in found[0].items():
                free = not any(set(places) & set(others) for others in groups)
                if free and len(places) > 1 and all(other.get(places) == key for other in found):
                    groups[places] = key
        if not groups:
            return
        scope = self.scopes[function]
        dropped = {place for places in groups for place in places}
        params = [p for i, p in enumerate(function.params) if i not in dropped]
        passed = [[a for i, a in enumerate(e.inputs) if i not in dropped] for _, e in sites]
        for places in groups:
            _, ways = groups[places]
            tuples = [_whole(site, [site.parts[e.inputs[p]] for p in places]) for site, e in sites]
            saved = Value(_type_of(*tuples[0]), "saved" if len(groups) == 1 else tuples[0][0].hint)
            for place, way in zip(places, ways, strict=True):
                scope.parts[function.params[place]] = saved, way
            params.append(saved)
            for (site, _), whole, inputs in zip(sites, tuples, passed, strict=True):
                inputs.append(site.whole(*whole))
        function.params = params
        for (_, equation), inputs in zip(sites, passed, strict=True):
            equation.inputs = inputs


def _groups(scope: _Scope, equation: Equation, whole: bool) -> dict[tuple[int, ...], tuple[Any, list[Path]]]:
    """{places of inputs that are parts of one tuple: (its type, the ways to them)}. whole: of one that is no part itself."""
    by_root: dict[Any, list[int]] = {}
    for place, atom in enumerate(equation.inputs):
        part = scope.parts.get(atom) if type(atom) is Value else None
        if part is not None:
            by_root.setdefault(part[0] if whole else (part[0], part[1][:-1]), []).append(place)
    found = {}
    for places in by_root.values():
        parts = [scope.parts[equation.inputs[p]] for p in places]
        root, prefix = _whole(scope, parts)
        if not prefix and root in scope.function.params and len(places) < _count(root.aval):
            continue  # what the function around it saved is not what its own forward part did
        found[tuple(places)] = (_key(_type_of(root, prefix)), [way[len(prefix) :] for _, way in parts])
    return found


def _whole(scope: _Scope, parts: Sequence[tuple[Value, Path]]) -> tuple[Value, Path]:
    """The smallest tuple that holds all `parts`, which have one root."""
    ways = [way for _, way in parts]
    size = 0
    while all(len(w) > size + 1 and w[: size + 1] == ways[0][: size + 1] for w in ways):
        size += 1
    return parts[0][0], ways[0][:size]


def _type_of(root: Value, path: Path) -> Any:
    found: Any = root.aval
    for index in path:
        found = found.parts[index]
    return found


def _count(aval: Any) -> int:
    """How many values a tuple holds, also in tuples in it."""
    return sum(map(_count, aval.parts)) if type(aval) is TupleType else 1


def _key(aval: Any) -> Any:
    """Equal for equal types."""
    if type(aval) is TupleType:
        return tuple([_key(p) for p in aval.parts])
    if type(aval) is PullbackType:
        return aval.path, tuple([_key(p) for p in aval.parts])
    return getattr(aval, "shape", None), getattr(aval, "dtype", None), getattr(aval, "weak_type", None)


def _named_tuple(root: Value, path: Path) -> Value:
    return Value(_type_of(root, path), _type_of(root, path[:-1]).hints[path[-1]])


def _take_apart(scope: _Scope) -> None:
    """Adds the equations that take tuples apart, each just before its first part is needed."""
    function = scope.function
    wanted: dict[tuple[Value, Path], Value] = {part: value for value, part in scope.parts.items()}
    wanted.update(scope.inner)
    places = {value: part for part, value in wanted.items()}
    needed = {a for e in function.equations for a in e.inputs if a in places}
    needed.update(r for r in function.results if r in places)
    # The tuples on the way to a part are needed as well.
    for root, way in [places[v] for v in sorted(needed, key=lambda v: places[v][1])]:
        for size in range(1, len(way)):
            whole = (root, way[:size])
            if whole not in wanted:
                wanted[whole] = value = _named_tuple(*whole)
                places[value] = whole
            needed.add(wanted[whole])
    opened: set[tuple[Value, Path]] = set()

    def open_(root: Value, path: Path) -> Iterator[Equation]:
        if path:
            yield from open_(root, path[:-1])
        if (root, path) in opened:
            return
        opened.add((root, path))
        inside = [wanted.get((root, (*path, i))) for i in range(len(_type_of(root, path).parts))]
        outputs = [v if v in needed else None for v in inside]
        yield Equation(Unpack(), [wanted[root, path] if path else root], outputs, {})

    equations: list[Equation] = []
    for equation in function.equations:
        for atom in equation.inputs:
            if atom in places:
                root, way = places[atom]
                equations.extend(open_(root, way[:-1]))
        equations.append(equation)
    for atom in function.results:
        if atom in places:
            root, way = places[atom]
            equations.extend(open_(root, way[:-1]))
    function.equations = equations
