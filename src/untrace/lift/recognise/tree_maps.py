"""Trees: equations that do the same for every leaf become one `jax.tree.map`.

A function that JAX was asked to map over trees was called once for each leaf, from one place. So in a run of equations
that were all called from one place, the same operations come again and again, on other leaves each time. That the
leaves are those of trees, and that one text serves all of them, the printer finds out: it knows what is where.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from untrace.ir.callees import callee_of, output_of
from untrace.ir.calls import is_call, trees_given
from untrace.ir.nodes import (
    Atom,
    Equation,
    Function,
    Library,
    Literal,
    Local,
    Primitive,
    Program,
    Slot,
    TreeMap,
    TreeSum,
    Value,
    functions_called,
)
from untrace.lift.naming.author_loops import goes_through_numbers
from untrace.lift.naming.names import period, provenance_of
from untrace.lift.outline.pieces import name_inside
from untrace.lift.recognise.masked_maps import complete_maps
from untrace.provenance.arguments import own_parameters
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance

_FEWEST = 3  # leaves: two are told apart better by their names,
_FEWEST_MAPPED = 2  # but for those of a tree that is mapped
_LONGEST = 12  # equations for one leaf
_MOST = 5_000  # equations in one run
_GONE: Any = object()
_TRIES = 8  # a run may begin with equations that are no part of the first turn


def map_trees(program: Program, refused: Any = ()) -> Program:
    """Puts TreeMaps into the entry of `program`, the functions that it calls, maps and loops over trees, in place:
    elsewhere there are few trees."""
    provenance = provenance_of(program)
    functions = {program.entry: False}  # and whether it is a call of the author's
    stack = [program.entry]
    while stack:
        function = stack.pop()
        for equation in function.equations:
            if type(equation.callee) is Local:
                inside = [equation.callee.body]
            else:
                every = functions_called(equation) if equation.may_hold_functions else ()
                inside = [f for f in every if is_call(equation) or f.facts.trees is not None]
            new = [f for f in inside if f not in functions]
            functions.update((f, type(equation.callee) is Local) for f in new)
            stack += new
    for function, is_local in functions.items():
        if len(function.equations) >= _FEWEST_MAPPED:
            equations = _in_one(_Mapper(function, is_local, provenance, refused).mapped(), function.results)
            function.equations = complete_maps(_in_order(equations, function), function.params)
    return program


def _in_order(equations: Sequence[Equation], function: Function) -> list[Equation]:
    """The equations, with maps whose leaves come in the order in which the function gives them, or a later map takes them.

    JAX adds up gradients in the order in which a backward pass computed them, which is not that of a tree's leaves.
    """
    found = list(equations)
    if not any(type(e.callee) is TreeMap for e in found):
        return found
    params = set(function.params)
    places: dict[Atom | None, int] = {r: i for i, r in reversed(list(enumerate(function.results)))}
    # Leaves -> the place of each among those that a map takes.
    taken: dict[frozenset[Atom | None], dict[Atom | None, int]] = {}
    for at in reversed(range(len(found))):
        equation = found[at]
        if type(equation.callee) is not TreeMap:
            continue
        count = len(equation.callee.turns)
        outputs = equation.outputs
        wanted = taken.get(frozenset(outputs)) or places
        columns = equation.callee.columns(equation.inputs)
        if all(o in wanted for o in outputs) and not any(params.issuperset(c) for c in columns):
            order = sorted(range(count), key=[wanted[o] for o in outputs].__getitem__)
            if order != list(range(count)):
                equation = found[at] = _permuted(equation, order)
                columns = [[c[i] for i in order] for c in columns]
        for column in columns:
            leaves: dict[Atom | None, int] = {a: i for i, a in enumerate(column)}
            taken.setdefault(frozenset(leaves), leaves)
    return found


def _permuted(equation: Equation, order: Sequence[int]) -> Equation:
    callee, count = callee_of(equation, TreeMap), len(order)
    columns = callee.columns(equation.inputs)
    turns = [callee.turns[i] for i in order]
    inputs = [*[c[i] for c in columns for i in order], *equation.inputs[callee.trees * count :]]
    return Equation(callee.with_turns(turns), inputs, [equation.outputs[i] for i in order], {}, equation.origin)


def _in_one(equations: Sequence[Equation], results: Sequence[Any]) -> list[Equation]:
    """The equations, with one map for two of which the second alone takes what the first gives.

    A step of an optimiser's chain that has a name of its own keeps it: `mu_hat`, but not the second and third `updates`.
    """
    found = list(equations)
    if not any(type(e.callee) is TreeMap for e in found):
        return found
    uses: Counter[Atom] = Counter(a for e in found for a in e.inputs if type(a) is Value)
    uses.update(r for r in results if type(r) is Value)
    maker: dict[Atom | None, Equation] = {e.outputs[0]: e for e in found if type(e.callee) is TreeMap}
    taken: set[str | None] = {None}
    numbered: set[Equation] = set()  # maps whose names others have already
    for equation in found:
        if type(equation.callee) is TreeMap:
            if equation.callee.result in taken:
                numbered.add(equation)
            taken.add(equation.callee.result)
    for place, equation in enumerate(found):
        joined = True
        while joined and type(equation.callee) is TreeMap:
            joined = False
            count = len(equation.callee.turns)
            for tree in range(equation.callee.trees):
                column = equation.inputs[tree * count : (tree + 1) * count]
                first = maker.get(column[0])
                if first is None or first not in numbered or list(first.outputs) != list(column):
                    continue
                if (
                    len(callee_of(first, TreeMap).turns[0].equations) + len(equation.callee.turns[0].equations)
                    > _LONGEST
                ):
                    continue
                if any(uses[a] != 1 for a in column) or callee_of(first, TreeMap).own or equation.callee.own:
                    continue
                again = equation in numbered
                equation = found[place] = _joined(first, equation, tree)
                numbered.update([equation] if again else [])
                maker[equation.outputs[0]] = equation
                found[next(i for i, e in enumerate(found) if e is first)] = _GONE
                joined = True
                break
    return [e for e in found if e is not _GONE]


def _joined(first: Equation, second: Equation, tree: int) -> Equation:
    """The map that does what `second` does to what `first` gives, which is its tree number `tree`."""
    one_map, other_map = callee_of(first, TreeMap), callee_of(second, TreeMap)
    count = len(other_map.turns)
    columns: list[Sequence[Any]] = []
    names: list[str | None] = []
    shared: list[Any] = []
    for equation, without in ((second, tree), (first, -1)):
        callee = callee_of(equation, TreeMap)
        for i, column in enumerate(callee.columns(equation.inputs)):
            if i != without and not any(all(map(operator.is_, column, c)) for c in columns):
                columns.append(column)
                names.append(callee.names[i] if i < len(callee.names) and callee.names[i] not in names else None)
        shared.extend(a for a in equation.inputs[callee.trees * count :] if not any(a is b for b in shared))
    turns = [
        Function("leaf", [*[c[i] for c in columns], *shared], [*one.equations, *two.equations], two.results)
        for i, (one, two) in enumerate(zip(one_map.turns, other_map.turns, strict=True))
    ]
    for place in range(len(first.outputs)):
        output_of(first, place).named = False
    result, of_author, is_called = other_map.result, other_map.own_result, other_map.is_called
    callee = TreeMap(turns, len(columns), names, "", result, own_result=of_author, is_called=is_called)
    return Equation(callee, [*[a for c in columns for a in c], *shared], second.outputs, {}, second.origin)


class _Mapper:
    def __init__(self, function: Function, is_local: bool, provenance: Provenance, refused: Any):
        self.function = function
        self.is_local = is_local
        self.refused = refused
        self.provenance = provenance

    @functools.cached_property
    def uses(self) -> Counter[Value]:
        """How often each value is read."""
        atoms = [a for e in self.function.equations for a in e.inputs] + [*self.function.results]
        return Counter(a for a in atoms if type(a) is Value)

    def mapped(self, alone: Collection[Equation] = frozenset()) -> list[Equation]:
        """The function's equations with maps and sums of trees. alone: additions that stay by themselves."""
        known = {e: () if e in alone else self._frames(e) for e in self.function.equations}
        equations = self._side_by_side(self._with_sums(self.function.equations, known), known)
        frames = [known.get(e, ()) for e in equations]
        if not any(frames):  # nothing was called
            return list(equations)
        # What an outlined function gives has a name of the caller's, which is none inside.
        outside = _shared([f for f in frames if f]) if self.is_local else 0
        found: list[Equation] = []
        failed: dict[tuple[int, int], int] = {}  # runs, by depth and end: how often one was tried in vain
        at = 0
        while at < len(equations):
            made = None
            for depth in range(_depth_of_run(frames, at), 0, -1):
                stop = _run(frames, at, depth)
                around, call = frames[at][max(0, depth - 2) : depth][0], frames[at][depth - 1]
                named = around.is_over_leaves and not call.maps_leaves and not around.library
                if named and _run(frames, at, depth - 1) == stop:
                    continue  # one operation is all that is done for a leaf: the call around it has the author's names
                tried = failed.get((depth, stop), 0)
                failed[depth, stop] = tried + 1
                fewest = _FEWEST_MAPPED if any(f.is_over_leaves for f in frames[at][:depth]) else _FEWEST
                if stop - at >= fewest and tried < _TRIES:
                    tails = [f[depth - 1 :] for f in frames[at:stop]]
                    backward = self.provenance.site(equations[at].origin).phase == "backward"
                    result = None if backward else name_inside(frames[at][outside:depth], None)
                    made = self._tree_maps(equations[at:stop], tails, result, fewest)
                if made is not None:
                    found.extend(made)
                    at = stop
                    break
            if made is None:
                found.append(equations[at])
                at += 1
        # What turns of a loop add up stays in them, where it is of no tree.
        vain = {a for e in found if type(e.callee) is TreeSum and _is_of_no_tree(e, found) for a in e.callee.equations}
        return self.mapped(vain | {*alone}) if vain else found

    def _side_by_side(
        self, equations: Sequence[Equation], frames: Mapping[Equation, Sequence[Frame]]
    ) -> Sequence[Equation]:
        """Casts of a backward pass that come from one place, one for each leaf, stand where the last of them stood.

        What was mapped over the parameters (`x.astype(jnp.bfloat16)`) is differentiated where each of them was used.
        """
        groups: dict[Any, list[int]] = {}
        for at, equation in enumerate(equations):
            own = frames.get(equation, ())
            if own and _is_cast(equation) and self.provenance.site(equation.origin).phase == "backward":
                groups.setdefault((tuple([f for f in own]), _kind(equation)), []).append(at)
        moved: dict[int, list[int]] = {}  # by the place of the last one
        for places in groups.values():
            outputs = {equations[at].outputs[0] for at in places}
            between = [a for e in equations[places[0] : places[-1] + 1] for a in e.inputs if type(a) is Value]
            if len(places) >= _FEWEST and outputs.isdisjoint(between):
                moved[places[-1]] = places
        if not moved:
            return equations
        gone = {at for places in moved.values() for at in places}
        order = [i for at in range(len(equations)) for i in moved.get(at, () if at in gone else (at,))]
        return [equations[i] for i in order]

    def _with_sums(
        self, equations: Sequence[Equation], frames: Mapping[Equation, Sequence[Frame]]
    ) -> Sequence[Equation]:
        """Additions of which each adds something else to the one before, and to that alone, are one TreeSum, which
        stands where the last one stood."""
        runs: list[list[Equation]] = []
        by_total: dict[Atom, list[Equation]] = {}  # the sum so far -> its additions
        for equation in equations:
            if equation.callee.name != "operator.add" or not frames[equation]:
                continue
            run = by_total.get(equation.inputs[0]) if len(equation.inputs) == 2 else None
            if run is not None and frames[run[0]] == frames[equation]:
                run.append(equation)
            elif len(equation.inputs) == 2 or _adds_to_zero(callee_of(equation, Library)):
                run = [equation]
                runs.append(run)
            else:
                continue
            if equation.outputs[0] is not None and self.uses.get(equation.outputs[0]) == 1:
                by_total[equation.outputs[0]] = run
        found: dict[Equation, Equation | None] = {}
        for run in runs:
            own = frames[run[0]]
            fewest = _FEWEST_MAPPED if own[-1].sums_leaves else _FEWEST
            if len(run) >= fewest and _are_apart(run, equations) and not goes_through_numbers(own):
                found.update((e, None) for e in run)
                found[run[-1]] = _tree_sum(run)
        if not found:
            return equations
        moved = [found.get(e, e) for e in equations]
        return [e for e in moved if e is not None]

    def _frames(self, equation: Equation) -> Sequence[Frame]:
        """Where an equation was called from; nothing for those that no leaf's function may hold."""
        if type(equation.callee) is Local:
            return () if equation.effects or len(equation.outputs) > 1 else equation.callee.frames
        frames = self.provenance.site(equation.origin).frames
        if not frames or not isinstance(equation.callee, (Library, Primitive)) or equation.effects:
            return ()
        return () if equation.origin in self.refused or functions_called(equation) else frames

    def _tree_maps(
        self, run: Sequence[Equation], tails: Sequence[Sequence[Frame]], result: str | None, fewest: int
    ) -> list[Equation] | None:
        """The run as one equation for each result of a leaf's function; None where it is no repetition.

        `tails`: the frames from the call inwards; `fewest`: how many leaves are a tree.
        """
        keys = [(tuple([f for f in tail]), _kind(e)) for e, tail in zip(run, tails, strict=True)]
        before = self._for_all(run, keys, fewest) if tails[0][0].maps_leaves else ()
        if before:
            rest = [i for i in range(len(run)) if i not in before]
            found = self._tree_maps([run[i] for i in rest], [tails[i] for i in rest], result, fewest)
            return None if found is None else [*[run[i] for i in sorted(before)], *found]
        size = period(keys)
        if len(run) // size < fewest:
            return self._unequal(run, keys, tails, result)
        if size > _LONGEST:
            return None
        turns = [run[i : i + size] for i in range(0, len(run), size)]
        return self._in_parts(turns, tails, result, {o for e in run for o in e.outputs})

    def _in_parts(
        self,
        turns: Sequence[Sequence[Equation]],
        tails: Sequence[Sequence[Frame]],
        result: str | None,
        made: set[Value | None],
    ) -> list[Equation] | None:
        """One equation for each value that a turn gives, which `made` loses. `tails`: those of the first turn's equations."""
        several = [own for turn in turns if (own := self._parts(turn))]  # of what nobody reads there is none
        if not several or any(own != several[0] for own in several[1:]):
            return None
        parts, found = several[0], []
        for part in parts:
            one = self._tree_map([[turn[i] for i in part] for turn in turns], tails[part[-1]], result, made)
            if one is None:
                return None
            found.append(one)
            made.difference_update(one.outputs)  # a tree, which the next may take
            result = None  # the author's name is the first one's
        return found

    def _unequal(
        self, run: Sequence[Equation], keys: Sequence[Hashable], tails: Sequence[Sequence[Frame]], result: str | None
    ) -> list[Equation] | None:
        """The run as maps, where some turns do more than the others: `if p.ndim > 1: update = update + decay * p`.

        What all do before that is one map, what some do is another, and what all do after it a third.
        """
        starts = [i for i, key in enumerate(keys) if key == keys[0]]
        if len(starts) < _FEWEST:
            return None
        turns = [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(run)], strict=True)]
        kinds = sorted({tuple([keys[i] for i in turn]) for turn in turns}, key=len)
        if len(kinds) != 2 or len(kinds[1]) > _LONGEST:
            return None
        short, long = kinds
        own = [i for i, key in enumerate(long) if key not in short]
        if not own or own != list(range(own[0], own[-1] + 1)) or long[: own[0]] + long[own[-1] + 1 :] != short:
            return None
        before, after = own[0], own[-1] + 1
        do_more = [turn for turn in turns if len(turn) == len(long)]
        sections = (
            [turn[:before] for turn in turns],
            [turn[before:after] for turn in do_more],
            [turn[after:] if len(turn) == len(long) else turn[before:] for turn in turns],
        )
        made = {o for e in run for o in e.outputs}
        found: list[Equation] = []
        for section in sections:
            if section[0]:
                word = result if section is sections[2] else None
                part = self._in_parts(
                    [[run[i] for i in t] for t in section], [tails[i] for i in section[0]], word, made
                )
                if part is None:
                    return None
                for equation in part:  # a part of the author's function, and not that
                    map_ = callee_of(equation, TreeMap)
                    map_.function, map_.own = "", False
                found += part
        return found

    def _tree_map(
        self, turns: Sequence[Sequence[Equation]], tail: Sequence[Frame], result: str | None, made: set[Value | None]
    ) -> Equation | None:
        """The equation that does what `turns` do; None where they are not alike. `made`: what all of the run makes."""
        read = [_Turn(turn) for turn in turns]
        if any(turn.wiring != read[0].wiring for turn in read):
            return None
        columns = list(zip(*[turn.inputs for turn in read], strict=True))
        trees = [c for c in columns if any(a is not c[0] for a in c)]
        shared = [c[0] for c in columns if all(a is c[0] for a in c)]
        if not trees or any(type(a) is not Value for c in trees for a in c):
            return None
        if any(len(set(c)) < len(turns) or any(a in made for a in c) for c in trees):
            return None
        names, order = _names(tail, len(trees))
        trees = [trees[i] for i in order]
        outputs = [output_of(turn[-1]) for turn in turns]
        functions = [
            Function("leaf", [*[c[i] for c in trees], *shared], list(turn), [output])
            for i, (turn, output) in enumerate(zip(turns, outputs, strict=True))
        ]
        name = tail[1].name if len(tail) > 1 else ""
        name = "" if name.startswith("<") else name
        own = bool(name) and not tail[1].library
        named = [names[i] for i in order]
        is_called = tail[0].library or any(f.maps_leaves for f in tail)
        callee = TreeMap(functions, len(trees), named, name, result, own, not tail[0].library, is_called=is_called)
        origin = next((e.origin for e in turns[0] if e.origin is not None), None)
        return Equation(callee, [*[a for c in trees for a in c], *shared], outputs, {}, origin)

    def _for_all(self, run: Sequence[Equation], keys: Sequence[Hashable], fewest: int) -> set[int]:
        """The places of equations that no leaf has for itself: what a leaf's function computes of no leaf, once for all of them.

        They can stand before the others, whose results they do not read, and which read each of theirs as often as there are
        leaves.
        """
        times = Counter(keys)
        made: set[Value | None] = set()  # by the others
        found: dict[int, Value | None] = {}
        for place, equation in enumerate(run):
            alone = times[keys[place]] < fewest and len(equation.outputs) == 1
            if alone and made.isdisjoint([a for a in equation.inputs if type(a) is Value]):
                found[place] = equation.outputs[0]
            else:
                made.update(equation.outputs)
        read = Counter(a for i, e in enumerate(run) if i not in found for a in e.inputs)
        own = Counter(a for i in found for a in run[i].inputs)
        for output in found.values():
            if output is None or self.uses[output] != read[output] + own[output] or 0 < read[output] < fewest:
                return set()
        return set(found) if len(found) < len(run) else set()

    def _parts(self, turn: Sequence[Equation]) -> list[list[int]] | None:
        """For each value that a turn gives back, the places of the equations that it takes beside those that another one
        takes; None where that cannot be told."""
        inside: dict[Value, int] = {}
        makers: dict[Value, int] = {}
        for at, equation in enumerate(turn):
            for atom in equation.inputs:
                if type(atom) is Value:
                    inside[atom] = inside.get(atom, 0) + 1
            for output in equation.outputs:
                if output is not None:
                    makers[output] = at
        given = [at for output, at in makers.items() if self.uses.get(output, 0) > inside.get(output, 0)]
        parts = []
        for last in given:
            part: set[int] = set()
            stack = [last]
            while stack:
                place = stack.pop()
                if place not in part and (place == last or place not in given):
                    part.add(place)
                    stack.extend([makers[a] for a in turn[place].inputs if a in makers])
            parts.append(sorted(part))
        places = [place for part in parts for place in part]
        several = any(len(turn[part[-1]].outputs) != 1 for part in parts)
        return None if several or len(places) != len(set(places)) or len(places) != len(turn) else parts


def _tree_sum(run: Sequence[Equation]) -> Equation:
    inputs = [*run[0].inputs, *[e.inputs[1] for e in run[1:]]]
    return Equation(TreeSum(run, len(run[0].inputs) == 1), inputs, run[-1].outputs, {}, run[0].origin)


def _is_of_no_tree(total: Equation, equations: Sequence[Equation]) -> bool:
    """Whether what is added up is computed one by one, by nothing that gives a tree."""
    makers = {o: e for e in equations for o in e.outputs if o is not None}
    made = [makers.get(a) if type(a) is Value else None for a in total.inputs]
    plain = [e for e in made if e is not None and type(e.callee) is not TreeMap and not any(trees_given(e))]
    return len(set(plain)) == len(made)


def _are_apart(run: Sequence[Equation], equations: Sequence[Equation]) -> bool:
    """Whether what is added since the first addition is computed for each by itself: what a turn of a loop hands to the next
    one is no leaf of a tree."""
    start, stop = (next(i for i, e in enumerate(equations) if e is end) for end in (run[0], run[-1]))
    made = {o: e for e in equations[start:stop] for o in e.outputs if o is not None}
    owner: dict[Equation, Equation] = dict.fromkeys(run, run[0])
    for addition in run[1:]:
        waiting = [addition.inputs[1]]
        while waiting:
            atom = waiting.pop()
            equation = made.get(atom) if type(atom) is Value else None
            if equation is None or owner.get(equation) is addition:
                continue
            if equation in owner:
                return False
            owner[equation] = addition
            waiting.extend(equation.inputs)
    return True


class _Turn:
    """`inputs`: the values from outside, in order of use; `wiring`: how everything is connected, equal for equal turns."""

    def __init__(self, equations: Sequence[Equation]):
        self.inputs: list[Any] = []
        made: dict[Value, int] = {}
        places: dict[Any, int] = {}
        self.wiring: list[Any] = []
        for equation in equations:
            wires: list[Any] = []
            for atom in equation.inputs:
                if type(atom) is Literal:
                    wires.append((repr(atom.value), str(atom.aval.dtype), atom.aval.weak_type))
                elif atom in made:
                    wires.append(made[atom])
                else:
                    if atom not in places:
                        places[atom] = len(self.inputs)
                        self.inputs.append(atom)
                    wires.append(-1 - places[atom])
            self.wiring.append(wires)
            for output in equation.outputs:
                if output is not None:
                    made[output] = len(made)


def _adds_to_zero(callee: Library) -> bool:
    first, second = callee.args
    return type(first) in (int, float) and first == 0 and type(second) is Slot


def _depth_of_run(frames: Sequence[Sequence[Frame]], start: int) -> int:
    """How many of the outermost frames as many equations share, from the one at `start` on, as a map needs."""
    run = frames[start : start + _FEWEST_MAPPED]
    return _shared(run) if len(run) == _FEWEST_MAPPED else 0


def _shared(frames: Sequence[Sequence[Frame]]) -> int:
    """How many of the outermost frames all share."""
    columns = zip(*frames, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: all(f == column[0] for f in column), columns))


def _run(frames: Sequence[Sequence[Frame]], start: int, depth: int) -> int:
    """Where the equations end that share the outermost `depth` frames with the one at `start`."""
    common = frames[start][:depth]
    stop = start + 1
    most = min(len(frames), start + _MOST)
    while stop < most and frames[stop][:depth] == common:
        stop += 1
    return stop


def _is_cast(equation: Equation) -> bool:
    origin, one = equation.origin, len(equation.inputs) == len(equation.outputs) == 1
    return one and origin is not None and origin.primitive.name == "convert_element_type"


def _kind(equation: Equation) -> Any:
    """What an equation does, but for its types."""
    callee = equation.callee
    if type(callee) is Library:
        return callee.name, len(equation.inputs), tuple(sorted(callee.kwargs))
    if type(callee) is Local:
        return callee.body.name, len(equation.inputs)
    return callee.name, len(equation.inputs)


def _names(tail: Sequence[Frame], count: int) -> tuple[list[str | None], list[int]]:
    """The author's names for the leaves, in order of use; and the order in which the function takes them."""
    match tail[0].node:
        case ast.Call(args=[ast.GeneratorExp(generators=[clause]) | ast.ListComp(generators=[clause])]):
            if count == 1 and tail[0].sums_leaves and isinstance(clause.target, ast.Name):
                return [clause.target.id], [0]
    if len(tail) < 2 or tail[1].definition is None:
        return [None] * count, list(range(count))
    own = own_parameters(tail[1])
    places = list(dict.fromkeys([own.index(name) for name in _consumed(tail[1].definition) if name in own]))
    if len(places) != count:
        return [None] * count, list(range(count))
    return [own[p] for p in places], sorted(range(count), key=lambda i: places[i])


def _consumed(node: ast.AST) -> Iterator[str]:
    """Names in the order in which operations take them: `m` after `v` in `m / jnp.sqrt(v)`."""
    if isinstance(node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)):
        children: list[ast.AST] = [*node.body] if isinstance(node.body, list) else [node.body]
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        return  # no operation of the program
    for child in children:
        if not isinstance(child, ast.Name):
            yield from _consumed(child)
    for child in children:
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
            yield child.id
