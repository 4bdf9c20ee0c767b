"""Functions: the equations of a call that the author made become a call of a local function.

Which calls there were is read off the frames (`calls`). Each is one interval of the equations of its caller, so taking
it out changes no order. Calls of the same code with the same body, up to names, share one function.

A call stays where it is ("folded back") where a function would not help a reader: very small ones, wrappers around one
other call, the whole of the caller, and those that need many values from around them or give many back. So is the
innermost call around an equation of `refused`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace._places import place_of
from untrace.ir.facts import FunctionFacts
from untrace.ir.nodes import (
    Equation,
    Function,
    Library,
    Local,
    Program,
    PullbackType,
    Value,
    functions_called,
    walk_functions,
)
from untrace.ir.structured import varied_in
from untrace.ir.trees import Tree
from untrace.lift.adjoint.addends import missing_addends
from untrace.lift.adjoint.pullbacks import is_derivative
from untrace.lift.naming import words
from untrace.lift.naming.names import provenance_of
from untrace.lift.outline import pieces
from untrace.lift.outline.activations import Call
from untrace.lift.outline.call_names import calls_another, is_module_call, owner_of, variadic_parameter
from untrace.lift.outline.handed_fields import HandedFields, taken_out
from untrace.lift.outline.leaf_calls import LEAVES, Turns
from untrace.lift.outline.loops import bodies_of_loops, put_sums_last, rename_in_loops, slices, weight
from untrace.lift.outline.parameter_kinds import may_be_numbers
from untrace.lift.outline.parameter_names import FunctionNames, own_parameters, with_accesses
from untrace.lift.outline.regions import (
    Piece,
    Region,
    Shape,
    calls_around,
    deep_functions,
    is_called_once,
    is_captured,
    is_uneven,
    make_calls_of_themselves,
    names_a_transform,
    only_call,
    taken_out_of_loops,
)
from untrace.lift.outline.tree_roots import TreeRoots
from untrace.provenance.call_records import Access
from untrace.provenance.returns import Field

# What a reader still takes in: values passed (a pytree counts once), values given back, residuals among those.
_MOST_INPUTS, _MOST_OUTPUTS, _MOST_RESIDUALS = 10, 8, 3
_MOST_SAVED = 40  # residuals of a function called several times, which go as one tuple to its backward part
_TINY, _SMALL = 1, 3  # equations: always folded back; folded back where called once
_BIG_LIBRARY, _SHARED_LIBRARY = 10, 6  # from which a library's own helper is a function: called once, several times


def outline(program: Program, refused: Iterable[JaxprEqn] = (), padding: Iterable[Any] = ()) -> Program:
    """Puts calls of local functions into the functions of `program`, in place.

    `refused`: ids of jaxpr equations that must not be in one. `padding`: those that make zeros which were added.
    """
    Outliner(program, refused, padding).outline()
    return program


class Outliner(FunctionNames):
    def __init__(self, program: Program, refused: Iterable[JaxprEqn], padding: Iterable[Any] = ()):
        self.program = program
        self.refused = frozenset(refused)
        self.trees = TreeRoots(program.entry, getattr(program.signature, "examples", list)())
        self.provenance = provenance_of(program)
        self.handed = HandedFields(self, program.entry, getattr(program.signature, "result", None))
        self.deep: set[Function] = set()
        self.differentiated = False
        self.taken_out: set[Shape] = set()
        self.marked: set[tuple[str, str]] = set()  # functions that are there anyway, for `jax.checkpoint` marked them
        self.turns = Turns(self.trees)
        # A parameter of a loop's body -> (where, what) the value is that an earlier loop stacked.
        self.slices: dict[Value, tuple[Region, Value]] = {}
        self.terms: dict[Value, Value] = {}  # what a loop adds up -> the sum
        self.accesses: dict[Piece, Sequence[Access | None]] = {}
        self.made_of: Counter[CodeType] = Counter()  # how many functions are made of the author's code
        added = set(padding)
        every = walk_functions(program.entry) if added else []
        self.padding = {e.outputs[0] for f in every for e in f.equations if e.origin in added}

    def outline(self) -> None:
        backward = self._backward()
        phases = {self.provenance.site(e.origin).phase for e in self.program.entry.equations}
        self.differentiated = bool(backward) or "backward" in phases
        self.deep = deep_functions(self.program.entry)
        scans = self._scans(backward)
        make_calls_of_themselves(scans, self.provenance)
        self._find_pieces(scans)
        if self.handed.find(scans, self.shapes.every()):
            self._find_pieces(scans)
        self.shapes.close_over()
        every = self.shapes.every()
        self._note_passed_trees(every)
        for shape in every:
            shape.results = self._results(shape)
            self._note_named_tuples(shape)
        self.trees.pass_on()
        called = Counter(p.call.callee.code for s in every for p in s.pieces if not p.call.backward)
        for scan in scans:
            self._fold_whole(scan, called)
            self.turns.find(scan.pieces)
        self.taken_out = taken_out_of_loops(every, scans)
        addends: Sequence[Any] = ()
        # Forward parts first: what they save goes to the backward ones as one value.
        for backward in (False, True):
            part = [s for s in every if s.pieces[0].call.backward is backward]
            for shape in part:
                shape.uses = 0
                shape.kept = shape.kept and self._is_readable(shape)
            if backward:
                addends = missing_addends([s for s in part if s.kept], calls_around(scans), self.provenance)
            for scan in scans:
                self._count(scan.pieces, set(), backward)
            for shape in part:
                shape.kept = shape.kept and self._is_worth_it(shape)
        taken = IdentityMap((s.pieces[0].call.callee.code, None) for s in every if s.kept and s.pieces[0].call.backward)
        for shape in every:
            if shape.kept and self.saved(shape) > _MOST_RESIDUALS:
                shape.kept = shape.pieces[0].call.callee.code in taken  # else it is taken apart where it is used
        self._name(every)
        forward = [s for s in every if s.kept and not s.pieces[0].call.backward]
        self.made_of = Counter(p.call.callee.code for s in forward for p in s.variants)
        self.accesses = {piece: known for s in forward for piece, known in self._accesses_of(s)}
        residuals = {param: value for param, (_, value) in self.slices.items()}
        self.program.facts = replace(self.program.facts, residuals=residuals, addends=addends)
        for scan in scans:
            if any(type(i) is Piece for i in scan.pieces):
                scan.function.equations = self._emit(scan.pieces, scan, {}, frozenset())
        if self.handed.ways:
            taken_out(self.program.entry)
        # Without these circles all of it goes without Python's collector, which takes longer.
        self.slices.clear()
        self.accesses.clear()
        for scan in scans:
            scan.pieces = []
        for shape in every:
            shape.pieces, shape.variants = [], []

    def _backward(self) -> set[Function]:
        """The functions that only transposed equations call: their own equations do not say so any more."""
        forward: set[Function] = {self.program.entry}
        every = walk_functions(self.program.entry)
        for function in reversed(every):  # callers first
            for equation in function.equations:
                if varied_in(equation.callee) is not None:  # the function itself, as it was before
                    forward.update(functions_called(equation))
                    block = functions_called(equation)[0].jaxpr
                    self.marked.add((jax_compat.function_name(block), jax_compat.function_source(block)))
                elif function not in forward:
                    continue
                elif type(equation.callee) is Local:
                    forward.add(equation.callee.body)
                elif equation.may_hold_functions and self.provenance.site(equation.origin).phase == "forward":
                    forward.update(functions_called(equation))
        return set(every) - forward

    def _scans(self, backward: set[Function]) -> list[Region]:
        """Every function with calls to be found in it, callees first. `backward`: those in a backward pass; of these
        only the bodies of loops are told apart."""
        every = walk_functions(self.program.entry)
        loops = bodies_of_loops(every)
        scans: dict[Function, Region] = {}
        for function in reversed(every):  # callers first
            # Where a pass was before (another attempt at a shared function), the calls have been found already.
            if not all(map(is_captured, function.equations)):
                continue
            outer, loop = loops.get(function, (None, None))
            caller = scans.get(outer) if outer is not None else None
            if function not in backward:
                saved = caller.saved_by_loop(loop) if caller is not None and loop is not None else frozenset()
                looped_in = caller if function.jaxpr is not None else None
                around = () if looped_in is None else (looped_in.function, *looped_in.around)
                scans[function] = Region(function, self, saved=saved, around=around)
            elif caller is not None and loop is not None:
                sums, terms = put_sums_last(function, loop)
                self.terms.update(terms)
                scans[function] = Region(function, self, True, sums=sums)
        for scan in scans.values():
            for param, value, body in slices(scan.function):
                if body in scans:
                    self.slices[param] = scans[body], value
        return list(scans.values())[::-1]

    # ------------------------------------------------------------ equal bodies

    def _find_pieces(self, scans: Sequence[Region]) -> None:
        self._number_pieces(scans)
        if wider := self.shapes.wider:
            self._number_pieces(scans, wider)
            if not self.shapes.is_distinct:
                self._number_pieces(scans)

    def _number_pieces(self, scans: Sequence[Region], wider: Sequence[Piece] = ()) -> None:
        self.shapes = pieces.Shapes(Shape, rough=True, known=wider)
        for scan in scans:
            scan.pieces, _ = self._pieces(scan.root, scan)

    def _pieces(self, call: Call, scan: Region) -> tuple[list[int | Piece], int]:
        items: list[int | Piece] = []
        stop = 0
        for item in call.items:
            if isinstance(item, Call):
                inner, stop = self._pieces(item, scan)
                items.append(self._piece(item, inner, scan, stop))
            else:
                items.append(item)
                stop = item + 1
        return items, stop

    def _piece(self, call: Call, items: list[int | Piece], scan: Region, stop: int) -> Piece:
        piece = Piece(call, scan)
        piece.items, piece.stop = items, stop
        first = items[0]
        piece.start = first if isinstance(first, int) else first.start
        within = scan.function if scan.function in self.deep else None
        assert call.callee is not None  # that is a function's own root
        piece.number(scan.equations, [id(call.callee.code), within, call.backward])
        self.shapes.add(piece, lambda p: p.scan.equations)
        return piece

    def _results(self, shape: Shape) -> list[int]:
        """What any of the calls needs, in the order in which the author returns it, as far as that is known; residuals
        come last."""
        numbers = sorted({n for p in shape.pieces for n in self.handed.whole(p, p.scan.needed(p))})
        saved = set(numbers).intersection(*[self.residuals(p, numbers) for p in shape.pieces])
        first = shape.pieces[0]
        whole = self._as_returned(first, numbers) if len(saved) < 2 else None
        if whole is not None:
            return whole
        plain = [n for n in numbers if n not in saved]
        return [*(self._as_returned(first, plain) or plain), *[n for n in numbers if n in saved]]

    def _note_named_tuples(self, shape: Shape) -> None:
        """What the author's function puts into a named tuple (`Gaussian(mean, cov)`) are the leaves of a tree."""
        for piece in shape.pieces:
            if piece.call.backward or piece.call.callee.library:
                return
            parts: dict[pieces.Way, dict[Field, Value]] = {}
            for value in [piece.values[n] for n in shape.results]:
                way = self.returned(piece, value)
                if way and type(way[-1]) is Field:
                    parts.setdefault(way[:-1], {})[way[-1]] = value
            for found in parts.values():
                self.trees.add_named(found)

    def _as_returned(self, piece: Piece, numbers: list[int]) -> list[int] | None:
        """Results in the order in which the author returns them; None where that is known of none."""
        ways = [] if piece.call.backward else [self.returned(piece, piece.values[n]) for n in numbers]
        apart = {way[:-1] if way and type(way[-1]) is Field else way for way in ways}
        return pieces.by_way(numbers, ways) if 0 < len(apart) <= _MOST_OUTPUTS else None

    # ------------------------------------------------------------ which of them are worth a function

    def _fold_whole(self, scan: Region, called: Mapping[CodeType, int]) -> None:
        """A call that is all that its caller does (but for a loop's counter) is folded back, with the wrappers of libraries;
        but not one that is made elsewhere as well, which would be written twice, nor one function of the author's in another.
        called: how often each function is."""
        items = scan.pieces
        while True:
            calls = [i for i in items if type(i) is Piece]
            if len(calls) != 1 or len(items) > 2:
                return
            callee = calls[0].call.callee
            others = len(calls[0].shape.pieces) if callee.library else called[callee.code]
            if others > 1 and (len(items) > 1 or only_call(calls[0]) is None):
                return
            if calls_another(calls[0].call.frame, callee, scan.function.name):
                return
            gives_more = len(scan.needed(calls[0])) < len(calls[0].shape.results)  # in another call
            if gives_more or any(type(i) is int and functions_called(scan.equations[i]) for i in items):
                return
            calls[0].shape.kept = False
            items = calls[0].items
            facts = scan.function.facts
            if not facts.whole and not callee.library and not callee.name.startswith("<"):
                scan.function.facts = replace(facts, whole=callee.name)

    def _is_worth_it(self, shape: Shape) -> bool:
        """Whether it hides more than it costs: a call with many results is only another way of writing an assignment."""
        first, saved = shape.pieces[0], self.saved(shape)
        call, weight = first.call, self._weight(first)
        results = self._given(shape) - max(0, saved - 1)
        gradients = self._gradients(shape) if call.backward else 0
        if sum(s.uses for s in self.turns.family(shape)) > 1:
            return results <= max(1, weight // 2) or gradients > 0 and results - gradients <= weight // 3
        code = call.callee.code
        is_marked = (code.co_name, place_of(code.co_filename, str(code.co_firstlineno))) in self.marked
        if is_marked and not saved or names_a_transform(first):
            return True
        # One forward part and one backward part read best in one place.
        if call.backward or saved > (0 if call.callee.library else _MOST_RESIDUALS):
            return False
        size = self._size(first) if call.callee.library or self.differentiated else weight
        gives_tree = self._given(shape) == 1 and len(shape.results) >= LEAVES
        return (size > _SMALL or gives_tree) and self._given(shape) <= max(1, size // 4)

    def saved(self, shape: Shape) -> int:
        """How many of the results are needed by the backward pass alone, whichever the call."""
        return len(self._only_saved(shape))

    def _only_saved(self, shape: Shape) -> set[int]:
        return set(shape.results).intersection(*[self.residuals(p, shape.results) for p in shape.pieces])

    def _is_readable(self, shape: Shape) -> bool:
        piece = shape.pieces[0]
        saved = self.saved(shape) if len(shape.pieces) > 1 else 0
        plain = self._given(shape) - saved if saved > 1 else self._given(shape)
        if piece.call.backward:
            plain -= self._gradients(shape)
        if plain > _MOST_OUTPUTS or not shape.results or self._is_tiny(piece) or saved > _MOST_SAVED:
            return False
        if not self._is_function(piece) or self._is_wrapper(piece):
            return False
        least = _BIG_LIBRARY if piece.call.callee.library else _SMALL + 1
        if not piece.inputs and self._size(piece) < least:
            return False  # constants
        if shape in self.taken_out or piece in self.turns.mapped:  # `jax.tree.map` says it better
            return False
        if len(shape.results) >= LEAVES and self.turns.maps(piece.items) and self._given(shape) == len(shape.results):
            return False
        if not piece.call.backward and saved <= 1:
            if any(len(self.residuals(one, one.scan.needed(one))) > _MOST_RESIDUALS for one in shape.pieces):
                return False
        for one in shape.pieces:
            if self._width(one) > _MOST_INPUTS:
                return False
            if self.refused and self._holds_refused(one):
                shape.refused = True
                return False
        return True

    def _given(self, shape: Shape) -> int:
        """How many things the calls give back: the leaves of one tree are one."""
        piece = shape.pieces[0]
        plain = piece.call.backward or piece.call.callee.library
        trees = [] if plain else self.trees.whole([piece.values[n] for n in shape.results])
        return len(shape.results) - sum(len(places) - 1 for _, places in trees)

    def _is_tiny(self, piece: Piece) -> bool:
        """Whether it is one operation; a library's product may be of a transposed matrix."""
        turned = [e for e in piece.scan.equations[piece.start : piece.stop] if e.callee.name == "transpose"]
        weight = self._weight(piece) - (len(turned) if piece.call.callee.library else 0)
        return weight <= _TINY and not names_a_transform(piece)

    def _gradients(self, shape: Shape) -> int:
        """How many results there are beyond the first that the backward pass is done with: for a reader, gradients are one
        tree."""
        piece = shape.pieces[0]
        return max(0, sum(piece.values[n] not in piece.scan.read_backward for n in shape.results) - 1)

    def _holds_refused(self, piece: Piece) -> bool:
        """Whether it is the innermost function around a refused equation."""
        for item in piece.items:
            if type(item) is int:
                if piece.scan.equations[item].origin in self.refused:
                    return True
            elif not item.shape.kept and not item.shape.refused and self._holds_refused(item):
                return True
        return False

    def _is_function(self, piece: Piece) -> bool:
        callee, caller = piece.call.callee, piece.call.frame
        name = callee.name
        if name.startswith("<"):
            return False
        if not callee.library or is_module_call(callee):
            return True
        big = self._size(piece) >= _BIG_LIBRARY
        if name.startswith("_") or "wrap" in name:  # the name is its caller's, who calls it again and again
            return big and caller is not None and not caller.library and len(piece.shape.pieces) > 1
        several = len(piece.shape.pieces) > 1 and self._size(piece) >= _SHARED_LIBRARY
        several = several or self.turns.together(piece) is not None and self._size(piece) > _SMALL
        return caller is None or not caller.library or big or several

    def _is_wrapper(self, piece: Piece) -> bool:
        """Whether it does nothing but make one other call, whose name says more."""
        inner = only_call(piece)
        while inner is not None and not self._is_function(inner):
            inner = only_call(inner)
        if inner is None:
            return False
        callee, other = piece.call.callee, inner.call.callee
        if not callee.library:
            # Called from elsewhere as well, it says by itself what its caller only hands on.
            inner.shape.kept = inner.shape.kept and len(inner.shape.pieces) > len(piece.shape.pieces)
            return inner.shape.kept and not other.library
        if not is_module_call(callee) or is_module_call(other) or not other.library:
            return True
        return owner_of(other) not in (None, owner_of(callee))  # an object that stands for another one's method

    def _width(self, piece: Piece) -> int:
        """How many things a call is passed: the leaves of one tree are one, and so is what one call saved."""
        roots: list[Any] = [self.trees.root.get(value) for value in piece.inputs]
        if piece.call.backward:
            makers: Mapping[Any, Piece] = piece.scan.makers(self)
            roots = [root or makers.get(value) for root, value in zip(roots, piece.inputs, strict=True)]
        return roots.count(None) + len(set(roots) - {None})

    def residuals(self, piece: Piece, numbers: Sequence[int]) -> set[int]:
        """Those values of a forward part that only the backward pass needs after it, if anything does."""
        if piece.call.backward:
            return set()
        last, stop, handed = piece.scan.last_forward, piece.stop, self.handed.ways
        return {n for n in numbers if last.get(piece.values[n], -1) < stop and piece.values[n] not in handed}

    def _size(self, piece: Piece) -> int:
        return piece.stop - piece.start

    def _weight(self, piece: Piece) -> int:
        """How many equations it has, with those that calls of `jax.vjp` stand for and those in loops."""
        inside = piece.scan.equations[piece.start : piece.stop]
        return sum(
            len(e.callee.body.equations) if type(e.callee) is Library and is_derivative(e.callee) else weight(e)
            for e in inside
        )

    def _count(self, items: Sequence[int | Piece], seen: set[Shape], backward: bool) -> None:
        """Counts calls as they will stand in the text, backward parts or others: those inside a shared function once."""
        for item in items:
            if type(item) is Piece:
                shape = item.shape
                shape.uses += item.call.backward is backward
                if not shape.kept:
                    self._count(item.items, seen, backward)
                elif shape not in seen:
                    seen.add(shape)
                    self._count(item.items, seen, backward)

    # ------------------------------------------------------------ the new equations

    def _emit(
        self, items: Sequence[int | Piece], scan: Region, known: dict[Any, Any], results: frozenset[Value]
    ) -> list[Equation]:
        """The equations of `items` in a function where `known` values go by other objects and `results` are returned."""
        new: list[Equation] = []
        for item in items:
            if isinstance(item, int):
                new.append(pieces.renamed(scan.equations[item], known))
            elif not item.shape.kept:
                new.extend(self._emit(item.items, scan, known, results))
            else:
                new.append(self._call(item, scan, known, results))
        return new

    def _call(self, piece: Piece, scan: Region, known: dict[Any, Any], results: frozenset[Value]) -> Equation:
        shape = piece.shape
        body = shape.functions.get(piece.variant) or self._define(shape, self._telling(shape, piece.variant))
        needed = set(scan.needed(piece))
        outputs: list[Value | None] = []
        if shape.plain is None:
            shape.plain = frozenset(shape.results) - self._only_saved(shape)
        ways = [self.returned(piece, piece.values[n]) for n in shape.results]
        for number, result, way in zip(shape.results, body.results, ways, strict=True):
            assert type(result) is Value  # of a function of ours
            value = piece.values[number]
            if number not in needed and value not in results:
                outputs.append(None)
                continue
            is_pullback = type(value.aval) is PullbackType  # which the author has no name for
            name = None if is_pullback else self._name_in_caller(piece, value)
            outer = known.get(value, value)
            if not is_pullback and not piece.call.backward:
                outer.whole = pieces.name_of_whole(piece.call.frame, way) or (name if ways.count(way) > 1 else None)
            if is_pullback or number not in shape.plain and not piece.call.backward and not outer.named:
                outer.hint = result.hint  # what is saved is called as where it comes from
                outputs.append(outer)
                continue
            frame = piece.call.frame
            library = frame is not None and frame.library and (piece.call.callee.library or name in words.STOCK)
            if outer.named and library:
                pass  # the author's own name, around what a library calls it
            elif name is not None:
                outer.hint = name
            elif outer.hint == shape.name or (
                {number} == shape.plain and outer.hint in words.STEPS and not outer.named
            ):
                # Nothing is called like the function that gives it, nor after the last step inside it.
                outer.hint = words.clean(f"{shape.name}_out")
            elif result.named_inside and self._is_last_step(piece, outer, value) or self._is_said(piece, outer, result):
                outer.hint = result.hint
            outer.named &= name is not None or library or piece.call.backward  # else it is so inside of what is called
            outputs.append(outer)
        inputs = [known.get(a, a) for a in piece.inputs]
        return Equation(Local(body, self._frames_of_call(piece)), inputs, outputs, {}, None)

    def _is_last_step(self, piece: Piece, outer: Value, value: Value) -> bool:
        """Whether a value is called after the last operation, or function of a library, that made it: `subtract`."""
        if outer.named or outer.named_inside:
            return False
        return outer.hint in words.STEPS or outer.hint in [f.name for f in self._frames_inside(piece, value)[1:]]

    def _is_said(self, piece: Piece, outer: Value, result: Value) -> bool:
        """Whether the author's function has a word for a result, and its caller none: a parameter that it is passed for."""
        is_named = outer.named or outer.named_inside or piece.call.callee.library or piece.call.backward
        return not is_named and result.hint not in (None, outer.hint) and outer.hint not in words.STEPS

    def _telling(self, shape: Shape, variant: int) -> Piece:
        """The call of a variant after which things are called in its function."""
        first = shape.variants[variant]
        if not first.call.backward:
            return first
        pieces = [p for p in shape.pieces if p.variant == variant]
        return max(
            pieces, key=lambda p: sum((a.hint or "").startswith("d_") and a not in self.padding for a in p.inputs)
        )

    def _define(self, shape: Shape, piece: Piece) -> Function:
        results, part = [piece.values[n] for n in shape.results], piece.scan.equations[piece.start : piece.stop]
        inner = [Value(r.aval, r.hint) for r in results]
        said: set[int] = set()
        known_as: Sequence[Access | None] = ()
        author_trees: Sequence[tuple[str, Tree]] = ()
        if piece.call.backward:
            own = self._own_words(piece.inputs)
            names, unmatched = self._backward_names(piece, dict(zip(results, inner, strict=True))), []
            changed = {r.hint: i.hint for r, i in zip(results, inner, strict=True) if r.hint != i.hint}
            rename_in_loops(part, changed)
        else:
            # Variants have the names of the one whose call tells most of them.
            found = [(self._parameter_names(p), p) for p in shape.variants]
            (names, unmatched), named = max(found, key=lambda f: len(f[0][0]) - f[0][0].count(None))
            known_as, author_trees = self.accesses[named], self._whole_trees(shape, named)
            names, unmatched = with_accesses(names, unmatched, known_as)
            said = {place for place, name in enumerate(names) if name is not None and piece.call.callee.library}
            own = [self._common_word(shape, i) or word for i, word in enumerate(self._own_words(named.inputs))]
            for i in [i for i, a in enumerate(named.inputs) if type(a) is not Value]:  # an array that one call passes
                values = [p.inputs[i] for p in shape.pieces if type(p.inputs[i]) is Value]
                own[i] = next((value.hint for value in values if value.hint), own[i])
            for value, result in list(zip(inner, results, strict=True))[: len(results) - self.saved(shape)]:
                if type(value.aval) is PullbackType:
                    continue  # the author has none
                value.hint = self._name_inside(piece, result)
                is_its_own = result.named or result.named_inside or value.hint != result.hint
                value.named_inside = piece.call.callee.library and value.hint is not None and is_its_own
                value.named = not piece.call.callee.library and result.named and pieces.is_read(part, result)
            self._forget_names_outside(piece)
        if piece.call.callee.library:  # what its author calls the result is not what is computed on the way
            for item in piece.items:
                for value in piece.scan.equations[item].outputs if type(item) is int else ():
                    if value is not None and value.named and value not in results:
                        value.named, value.named_inside = False, True
        params = [Value(a.aval, n or o) for a, n, o in zip(piece.inputs, names, own, strict=True)]
        self._rename_inside(piece, [p.hint for p in params], inner)
        known: dict[Any, Any] = dict(zip([*piece.inputs, *results], [*params, *inner], strict=True))
        equations = self._emit(piece.items, piece.scan, known, frozenset(results))
        function = shape.functions[piece.variant] = Function(shape.name, params, equations, inner)
        same = frozenset(i for i, v in enumerate(piece.inputs) if all(p.inputs[i] is v for p in shape.pieces))
        facts = FunctionFacts(
            calls=shape.uses,
            same=same,
            uneven=len(shape.variants) > 1 and is_uneven(shape),
            together=self.turns.together(piece),
            words=self._words_of_differing(shape, piece) if len(shape.variants) > 1 else (),
            backward=piece.call.backward,
        )
        if not piece.call.backward:
            saved, callee = self.saved(shape), piece.call.callee
            facts = replace(
                facts,
                saved=saved if saved > 1 else 0,
                definition=own_parameters(callee),
                numbers=may_be_numbers(callee),
                unmatched=unmatched,
                accesses=known_as,
                author_trees=author_trees,
                passed=self._passed_numbers(shape, piece.variant),
                passed_as=self._passed_as(shape, piece.variant),
                callee=callee,
                is_one_of_several=self.made_of[callee.code] > 1,
                said=frozenset(params[place] for place in said),
                variadic=variadic_parameter(callee),
                given=[(places, root.example) for root, places in self.trees.whole(results)],
                called_once=is_called_once(shape, results) and not saved,
            )
        function.facts = facts
        return function
