"""Fields of records that an author's function gives back as they came, or as numbers.

    def move(walker, key):
        return Walker(walker.position + step, width=walker.width, tried=0)

No equation makes them: the program around the call reads the width that was there before. While functions are outlined, an
equation of the primitive HANDED stands for each at the end of the call, and what reads the whole record reads that.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

from untrace._trees import parts_by_name
from untrace.ir.calls import results_tree, trees_taken
from untrace.ir.nodes import Atom, Equation, Function, Literal, Primitive, Value, functions_called, walk_functions
from untrace.ir.structured import Map, derivative_in
from untrace.ir.trees import Tree
from untrace.ir.types import PyTree
from untrace.lift.outline.activations import Call
from untrace.lift.outline.pieces import HANDED, Way, is_handed, renamed
from untrace.lift.outline.regions import Piece, Region, Shape
from untrace.lift.outline.tree_roots import TreeRoots
from untrace.provenance import syntax
from untrace.provenance.arguments import own_parameters
from untrace.provenance.call_records import Access, CallRecord
from untrace.provenance.returns import Field, changes_tree, name_called, part_returned, record_returned
from untrace.provenance.sites import Provenance, climbed

# What a field is in a call: a number of the call's values, an input, a literal by its bits, or None for another value that was
# there before.
_Source: TypeAlias = Hashable


class Calls(Protocol):
    """What is known of the calls of a program."""

    provenance: Provenance
    trees: TreeRoots

    def returned(self, piece: Piece, value: Value) -> Way | None:
        """Where in what the function returns a value stands."""
        ...

    def seen(self, piece: Piece) -> CallRecord | None:
        """The call as it was seen while the program was traced."""
        ...


@dataclass(frozen=True, slots=True)
class _Read:
    """A record that something reads from the equation `at` on: the name of its class, and its leaves by name.

    reader: an equation, a function that gives it back, or a call. places: of the leaves among the inputs of the equation, or
    the results of the function; -1 for one that cannot be another there.
    """

    at: int
    reader: Equation | Function | Piece
    owner: str
    leaves: Mapping[str, Atom]
    places: Mapping[str, int]

    def has(self, made: Mapping[Field, Value]) -> bool:
        """Whether it has these values in these fields."""
        return all(
            field.owner in ("", self.owner) and self.leaves.get(_name(field, list(self.leaves))) is value
            for field, value in made.items()
        )


@dataclass(frozen=True, slots=True)
class _Given:
    """A record that a call gives: the names of its fields, those of its values that are made, and by name what it hands on, and
    what stands for that."""

    piece: Piece
    names: Sequence[str]
    made: frozenset[Value]
    atoms: dict[str, Atom]
    outputs: dict[str, Value]


class HandedFields:
    """Finds the fields that the calls of one program hand on. `ways`: of the values that stand for such, which call gives it,
    and where it stands in what that returns. `beside`: the fields of that record that are made.

    result: the tree of the results of `entry`; None where that is not known.
    """

    def __init__(self, calls: Calls, entry: Function, result: PyTree):
        self.ways: dict[Value, tuple[Call, Way]] = {}
        self.beside: dict[Value, frozenset[Value]] = {}
        self._calls = calls
        self._out: dict[Function, Tree] = {}
        self._note_result(entry, result)
        self._added: dict[Call, list[Equation]] = {}
        self._completed: set[Value] = set()
        self._given: list[_Given] = []
        self._read_now: dict[Equation, list[Atom]] = {}
        self._taken: dict[tuple[Call, Atom], Value] = {}  # what a call reads now for another value
        self._pieces: dict[Region, list[Piece]] = {}
        self._origins: dict[Region, list[tuple[Value, tuple[Any, Any]]]] = {}

    def find(self, regions: Sequence[Region], shapes: Sequence[Shape]) -> bool:
        """Puts the equations there, in place; whether there are any."""
        partial = {shape: parts for shape in shapes if (parts := self._parts(shape))}
        if not partial:
            return False
        for equation in [e for region in regions for e in region.equations]:
            called = equation.callee if type(equation.callee) is Map else derivative_in(equation.callee)
            if called is not None:
                self._note_result(functions_called(equation)[0], called.signature.out)
        concerned = {piece.scan for shape in partial for piece in shape.pieces}
        for piece in [piece for shape in shapes for piece in shape.pieces if not piece.call.backward]:
            self._pieces.setdefault(piece.scan, []).append(piece)
        reads = {region: list(self._reads(region)) for region in concerned}
        for shape in sorted(partial, key=lambda shape: -len(shape.pieces[0].call.frames)):  # the innermost calls first
            for way, fields in partial[shape].items():
                self._complete(shape, way, fields, reads)
        for region in concerned if self._added else ():
            self._read_alone(region)
            region.add_to_calls(self._added, self._read_now)
        return bool(self._added)

    def whole(self, piece: Piece, numbers: Sequence[int]) -> list[int]:
        """The numbers of values that a call gives, with those of what it hands on beside them."""
        given = {piece.values[number] for number in numbers}
        more = [piece.numbers[v] for v, made in self.beside.items() if v in piece.numbers and made <= given]
        return sorted({*numbers, *more})

    def _result(self, function: Function) -> Tree | None:
        """The tree that a function gives."""
        trees = function.facts.trees
        return self._out.get(function) or (None if trees is None else trees.out)

    def _note_result(self, function: Function, result: PyTree) -> None:
        if result is not None and len(jax.tree.leaves(result)) == len(function.results):
            self._out[function] = Tree(result, tuple(range(len(function.results))))

    def _parts(self, shape: Shape) -> Mapping[Way, Mapping[Field, int]]:
        """The fields of records among the results of a function, by where the record stands, with their numbers."""
        first = shape.pieces[0]
        if first.call.backward or first.call.callee is None or first.call.callee.library:
            return {}
        found: dict[Way, dict[Field, int]] = {}
        for number in sorted({n for piece in shape.pieces for n in piece.scan.needed(piece)}):
            way = self._calls.returned(first, first.values[number])
            if way and type(way[-1]) is Field:
                found.setdefault(way[:-1], {})[way[-1]] = number
        return found

    # ------------------------------------------------------------ what reads records

    def _reads(self, region: Region) -> Iterator[_Read]:
        for at, equation in enumerate(region.equations):
            for taken in trees_taken(equation):
                for owner, fields in _records(taken.example, taken.places):
                    yield _Read(at, equation, owner, {n: equation.inputs[p] for n, p in fields.items()}, fields)
        for piece in self._pieces[region]:
            record = self._calls.seen(piece)
            if record is not None and record.trees:
                had, known = self._had(piece, record)
                for _, structure, leaves in record.whole(known):
                    for owner, fields in _records(structure.unflatten(leaves), leaves):
                        yield _Read(piece.start, piece, owner, {n: had[p] for n, p in fields.items()}, fields)
        function, tree = region.function, self._result(region.function)
        for owner, fields in () if tree is None else _records(tree.example, tree.places):
            leaves = {n: function.results[p] if p >= 0 else function.params[-1 - p] for n, p in fields.items()}
            yield _Read(len(region.equations), function, owner, leaves, fields)

    def _had(self, piece: Piece, record: CallRecord) -> tuple[list[Value], list[Access | None]]:
        """The values that a call had, and as what."""
        region = piece.scan
        if region not in self._origins:
            values = [*region.function.params, *(o for e in region.equations for o in e.outputs if o is not None)]
            self._origins[region] = [(value, region.origin(value)) for value in values]
        had = [
            (value, origin)
            for value, origin in self._origins[region]
            if origin[0] in record.variables or origin[1] in record.makers
        ]
        own = own_parameters(piece.call.callee)
        return [v for v, _ in had], record.accesses([origin for _, origin in had], own, [None] * len(had))

    def _said(
        self, piece: Piece, way: Way, made: Collection[Value]
    ) -> tuple[str, list[str], dict[str, tuple[_Source, Atom]]]:
        """What the author's `return` says of a record, or a choice that gives it: its class, its fields, and which are what
        the function was given."""
        chosen = _chosen(piece, made)
        if chosen[1]:
            return chosen
        callee, record = piece.call.callee, self._calls.seen(piece)
        call = record_returned(callee.definition, way, syntax.classes_of(callee.code))
        if call is None or record is None:
            return "", [], {}
        if changes_tree(call):
            base = call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else call.func
            structure = record.trees.get(base.id) if isinstance(base, ast.Name) else None
            if structure is None:
                return "", [], {}
            tree = structure.unflatten(range(structure.num_leaves))
            owner, names = type(tree).__name__, list(parts_by_name(tree) or ())
            given = [(name, ast.Attribute(base, name)) for name in names]
        else:
            owner = name_called(call)
            names = self._calls.trees.fields_of(owner, len(call.args) + len(call.keywords))
            given = [*zip(names, call.args, strict=False), *((k.arg or "", k.value) for k in call.keywords)]
        had, known = self._had(piece, record)
        later = _made_later(piece)
        values = {access: v for v, access in zip(had, known, strict=True) if access is not None and v not in later}
        found: dict[str, tuple[_Source, Atom]] = {}
        for name, node in given:
            access = _access(node, callee.definition)
            value = None if access is None else values.get(access)
            if value is not None:
                found[name] = ("input", piece.inputs.index(value)) if value in piece.inputs else None, value
        return owner, names, found

    # ------------------------------------------------------------ what else the calls give

    def _complete(
        self, shape: Shape, way: Way, fields: Mapping[Field, int], reads: Mapping[Region, Sequence[_Read]]
    ) -> None:
        """Adds what the calls of a function hand on beside these fields, if what reads the records says that of each."""
        made = {p: {field: p.values[number] for field, number in fields.items()} for p in shape.pieces}
        if any(self._completed.issuperset(values.values()) for values in made.values()):
            return  # an inner call gives the record
        readers = {p: [r for r in reads[p.scan] if r.at >= p.stop and r.has(values)] for p, values in made.items()}
        said = {p: self._said(p, way, set(values.values())) for p, values in made.items()}
        first = next((some[0] for some in readers.values() if some), None)
        owner, names, _ = said[shape.pieces[0]] if first is None else (first.owner, list(first.leaves), {})
        if not names or any(piece.scan.equations[piece.stop - 1].origin is None for piece in readers):
            return
        readers = {p: [r for r in some if r.owner == owner and list(r.leaves) == names] for p, some in readers.items()}
        missing = [name for name in names if name not in [_name(field, names) for field in fields]]
        given = {p: {**said[p][2], **_given(p, missing, some)} for p, some in readers.items() if missing}
        sources = _agreed(given, missing)
        if sources is None:
            return
        taken: list[tuple[_Read, str, Value]] = []
        made_at, spare = {int(field[1:]) for field in fields}, itertools.count(len(names) + len(fields))
        places = {name: at if (at := names.index(name)) not in made_at else next(spare) for name in missing}
        for piece, some in readers.items():
            values = frozenset(made[piece].values())
            self._completed.update(values)
            self._given.append(record := _Given(piece, names, values, {}, {}))
            for name, at in places.items():
                atom = _in_call(piece, *sources[piece][name])
                field = Field(at, owner, name)
                output = self._handed(piece, (*way, field), atom)
                self.beside[output] = values
                record.atoms[name], record.outputs[name] = atom, output
                if atom not in values:
                    self._leave(piece, atom, output)
                for read in some:
                    if read.places[name] >= 0 and _is_same(read.leaves[name], atom):
                        taken.append((read, name, output))
        for read, name, output in taken:
            self._take(read, name, output)

    def _handed(self, piece: Piece, way: Way, atom: Atom) -> Value:
        output = Value(atom.aval, atom.hint if isinstance(atom, Value) and atom in piece.numbers else way[-1].name)
        origin = piece.scan.equations[piece.stop - 1].origin
        origin = origin.replace(primitive=HANDED, params={}, invars=[], outvars=[])
        read = self._taken.get((piece.call, atom), atom)
        self._added.setdefault(piece.call, []).append(Equation(Primitive(HANDED), [read], [output], {}, origin))
        self.ways[output] = piece.call, way
        return output

    def _take(self, read: _Read, name: str, output: Value) -> None:
        """Makes a reader read this for one of the leaves."""
        place, reader, known = read.places[name], read.reader, read.leaves[name]
        if isinstance(reader, Function):
            reader.results = [output if i == place else r for i, r in enumerate(reader.results)]
        elif isinstance(reader, Equation):
            self._inputs(reader)[place] = output
        else:
            self._replace(reader.scan.equations[reader.start : reader.stop], known, output)
            self._read_again(reader.call, known, output)
            self._taken[reader.call, known] = output

    def _inputs(self, equation: Equation) -> list[Atom]:
        """What an equation will read: equations themselves are shared by the attempts to write a program."""
        return self._read_now.setdefault(equation, list(equation.inputs))

    def _replace(self, equations: Sequence[Equation], known: Atom, output: Value) -> None:
        for equation in equations:
            if any(a is known for a in self._read_now.get(equation, equation.inputs)):
                self._inputs(equation)[:] = [output if a is known else a for a in self._inputs(equation)]

    def _leave(self, piece: Piece, atom: Atom, output: Value) -> None:
        """Lets what follows the call, or a function around it, read a value that is made in there from the record."""
        region = piece.scan
        at = next((i for i, e in enumerate(region.equations[: piece.stop]) if atom in e.outputs), None)
        ends = [p.stop for p in self._pieces[region] if at is not None and p.start <= at and p.stop >= piece.stop]
        if ends:
            self._replace(region.equations[min(ends) :], atom, output)
            region.function.results = [output if r is atom else r for r in region.function.results]

    def _read_alone(self, region: Region) -> None:
        """Lets single operations of the author's read from the record that he has there: `w.width` after `w = move(w)`, and
        what he does with each of its fields, in the order of these."""
        turns: dict[Hashable, list[Equation]] = {}
        keys: list[Hashable] = []
        for equation in region.equations:
            frames = self._calls.provenance.site(equation.origin).frames
            keys.append((getattr(equation.callee, "name", ""), *[(f.code, f.lasti) for f in frames]))
            turns.setdefault(keys[-1], []).append(equation)
        given = [record for record in self._given if record.piece.scan is region and record.atoms]
        given.sort(key=lambda record: -record.piece.stop)
        longest = max((len(record.names) for record in given), default=0)
        for at, (equation, key) in enumerate(zip(region.equations, keys, strict=True) if given else ()):
            row = turns[key] if len(turns[key]) <= longest else [equation]
            for place, atom in enumerate(self._read_now.get(equation, equation.inputs)):
                column = [e.inputs[place] if place < len(e.inputs) else None for e in row]
                for record in [r for r in given if r.piece.stop <= at]:
                    name = next((n for n, x in record.atoms.items() if x is atom), None)
                    if not record.made.isdisjoint(column):
                        in_order = len(row) == len(record.names)
                        name = record.names[row.index(equation)] if in_order else name
                        is_read = name in record.atoms and _is_same(record.atoms[name], atom)
                    else:
                        is_read = name is not None and self._is_read_of(equation, record.piece, record.outputs[name])
                    if is_read and name is not None:
                        self._inputs(equation)[place] = record.outputs[name]
                        break
        self._read_in_results(region, given)

    def _read_in_results(self, region: Region, given: Sequence[_Given]) -> None:
        """Lets a function around the calls give back what its author reads of a record there: `return state, (w.width, ...)`."""
        function, tree = region.function, self._result(region.function)
        results = list(function.results)
        for way, place in () if tree is None or not given else zip(_ways(tree.example), tree.places, strict=True):
            for record in given if place >= 0 else ():
                name = next((n for n, atom in record.atoms.items() if results[place] is atom), None)
                caller = record.piece.call.frame
                node = None if caller is None or name is None else part_returned(caller.definition, way)
                if name is not None and node is not None and self._has_read(node, record.piece, record.outputs[name]):
                    results[place] = record.outputs[name]
        function.results = results

    def _is_read_of(self, equation: Equation, piece: Piece, output: Value) -> bool:
        """Whether all fields of this name that stand in the author's expression are those of what he calls the record."""
        caller = piece.call.frame
        frames = self._calls.provenance.site(equation.origin).frames
        node = next((f.node for f in reversed(frames) if caller is not None and f.code is caller.code), None)
        return node is not None and self._has_read(node, piece, output)

    def _has_read(self, node: ast.AST, piece: Piece, output: Value) -> bool:
        """The same of an expression of the function that makes the call."""
        if piece.call.frame is None:
            return False
        way = self.ways[output][1]
        names = {t.name for t in climbed(piece.call.frame, way[:-1]).targets if t.kind == "assign" and not t.path}
        every = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == way[-1].name]
        return bool(every) and all(isinstance(n.value, ast.Name) and n.value.id in names for n in every)

    def _read_again(self, call: Call, known: Atom, output: Value) -> None:
        """Lets what a call hands on be what another call gave."""
        for item in call.items:
            if type(item) is Call:
                self._read_again(item, known, output)
        for equation in self._added.get(call, ()):
            equation.inputs = [output if a is known else a for a in equation.inputs]


def way_in_record(equation: Equation, value: Value) -> Way | None:
    """Where what a loop or a choice gives stands in a record that it gives; None where it stands in none."""
    given = results_tree(equation)
    place = given[1].index(value) if given is not None and value in given[1] else -1
    if given is None or place not in given[0].places:
        return None
    node, number = given[0].example, given[0].places.index(place)
    way: list[int | Field] = []
    while not jax.tree_util.all_leaves([node]):
        named = parts_by_name(node)
        parts = list(named.values()) if named else list(node) if isinstance(node, tuple | list) else []
        starts = list(itertools.accumulate([len(jax.tree.leaves(part)) for part in parts], initial=0))
        at = next((i for i, end in enumerate(starts[1:]) if number < end), None)
        if at is None:
            return None
        way.append(at if named is None else Field(at, type(node).__name__, list(named)[at]))
        node, number = parts[at], number - starts[at]
    return tuple(way) if way and type(way[-1]) is Field else None


def taken_out(entry: Function) -> None:
    """Takes the equations out of a program again, in place."""
    for function in walk_functions(entry):
        known: dict[Any, Any] = {}
        left: list[Equation] = []
        for equation in function.equations:
            equation = renamed(equation, known)
            if is_handed(equation):
                known[equation.outputs[0]] = equation.inputs[0]
            else:
                left.append(equation)
        if known:
            function.equations, function.results = left, [known.get(r, r) for r in function.results]


def _access(node: ast.expr, function: ast.AST | None) -> Access | None:
    """What an expression is of a parameter that the function does not bind again."""
    steps: list[tuple[str, Hashable]] = []
    while isinstance(node, ast.Attribute):
        steps.append(("attribute", node.attr))
        node = node.value
    if not isinstance(node, ast.Name) or function is None:
        return None
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and type(n.ctx) is ast.Store}
    return None if node.id in stored else Access(node.id, tuple(steps[::-1]))


def _records(example: PyTree, places: Sequence[int]) -> Iterator[tuple[str, dict[str, int]]]:
    """(name of the class, places of the leaves by name) of the records of leaves in a tree whose leaves are at `places`."""
    named = parts_by_name(example)
    if named and jax.tree_util.all_leaves(named.values()):
        yield type(example).__name__, dict(zip(named, places, strict=True))
        return
    start = 0
    for _, part in jax.tree_util.tree_leaves_with_path(example, is_leaf=lambda node: node is not example):
        count = len(jax.tree.leaves(part))
        if count > 1:
            yield from _records(part, places[start : start + count])
        start += count


def _ways(example: PyTree) -> list[tuple[int, ...]]:
    """The way to each leaf through the tuples that it is in."""
    ways = [way for way, _ in jax.tree_util.tree_leaves_with_path(example)]
    return [tuple([k.idx for k in way if isinstance(k, jax.tree_util.SequenceKey)]) for way in ways]


def _name(field: Field, names: Sequence[str]) -> str:
    """The name of a field of a class with these; "" where it has too few."""
    place = int(field[1:])
    return field.name or (names[place] if place < len(names) else "")


def _given(piece: Piece, missing: Sequence[str], readers: Sequence[_Read]) -> dict[str, tuple[_Source, Atom]]:
    """What the other fields of a record are, as far as what reads it says so."""
    later = _made_later(piece)
    known = [(name, _source_of(piece, read.leaves[name], later)) for name in missing for read in readers]
    return {name: source for name, source in reversed(known) if source is not None}


def _source_of(piece: Piece, atom: Atom, later: Container[Atom | None]) -> tuple[_Source, Atom] | None:
    """What a field is in a call; None for what is made later."""
    if type(atom) is Literal:
        return (_bits(atom), str(atom.aval.dtype)), atom
    if atom in piece.numbers:
        return piece.numbers[atom], atom
    if atom in piece.inputs:
        return ("input", piece.inputs.index(atom)), atom
    return None if atom in later else (None, atom)


def _chosen(piece: Piece, made: Collection[Value]) -> tuple[str, list[str], dict[str, tuple[_Source, Atom]]]:
    """The record of which a loop or a choice in a call makes these fields: its class, its fields, and which are handed on."""
    makers = {maker for value in made if (maker := piece.maker(piece.scan.equations, value)) is not None}
    maker = makers.pop() if len(makers) == 1 else None
    given = None if maker is None else results_tree(maker)
    if maker is None or given is None:
        return "", [], {}
    operands = maker.inputs[-len(functions_called(maker)[-1].params) :]
    tree, outputs = given
    for owner, fields in _records(tree.example, tree.places):
        if made == {outputs[p] for p in fields.values() if p >= 0}:
            sources = {name: _source_of(piece, operands[-1 - p], ()) for name, p in fields.items() if p < 0}
            return owner, list(fields), {name: source for name, source in sources.items() if source is not None}
    return "", [], {}


def _made_later(piece: Piece) -> set[Atom | None]:
    """What the call and what follows it make."""
    return {output for equation in piece.scan.equations[piece.start :] for output in equation.outputs}


def _agreed(
    given: Mapping[Piece, Mapping[str, tuple[_Source, Atom]]], missing: Sequence[str]
) -> Mapping[Piece, Mapping[str, tuple[_Source, Atom]]] | None:
    """The same for all calls of a function, of which some say what is a number in each; None where a field is not known."""
    same: dict[str, tuple[_Source, Atom]] = {}
    for sources in given.values():
        same = {**{name: source for name, source in sources.items() if source[0] is not None}, **same}
    found = {piece: {**sources, **same} for piece, sources in given.items()}
    return found if all(name in sources for sources in found.values() for name in missing) else None


def _in_call(piece: Piece, source: _Source, atom: Atom) -> Atom:
    match source:
        case int(number):
            return piece.values[number]
        case ("input", int(place)):
            return piece.inputs[place]
    return atom


def _is_same(one: Atom, other: Atom) -> bool:
    if type(one) is Literal and type(other) is Literal:
        is_weak = [getattr(literal.aval, "weak_type", False) for literal in (one, other)]
        return one.aval.dtype == other.aval.dtype and is_weak[0] == is_weak[1] and _bits(one) == _bits(other)
    return one is other


def _bits(literal: Literal) -> bytes:
    return np.asarray(literal.value, literal.aval.dtype).tobytes()
