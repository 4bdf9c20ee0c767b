"""Names of functions that are outlined, of their parameters and of what is inside them."""

from __future__ import annotations

import ast
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Atom, Constant, Literal, Passed, Program, Value
from untrace.ir.said import SaidNumber
from untrace.ir.trees import Tree
from untrace.lift.adjoint.cotangents import d
from untrace.lift.naming import inner, words
from untrace.lift.naming.numbers import said_argument
from untrace.lift.outline import pieces
from untrace.lift.outline.accesses import accesses
from untrace.lift.outline.call_names import function_name, owner_of_call, snake_case
from untrace.lift.outline.handed_fields import HandedFields, way_in_record
from untrace.lift.outline.operand_names import name_of_changed, names_of_operands
from untrace.lift.outline.parameter_kinds import no_arrays, no_trees
from untrace.lift.outline.regions import Piece, Shape
from untrace.lift.outline.tree_roots import Root, TreeRoots
from untrace.provenance.arguments import arguments_of, own_parameters
from untrace.provenance.call_records import Access, CallRecord
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance


class FunctionNames(ABC):
    """What an Outliner knows of names; the rest of it fills in what is declared here."""

    program: Program
    provenance: Provenance
    trees: TreeRoots
    terms: dict[Value, Value]
    handed: HandedFields

    def _frames_of_call(self, piece: Piece) -> Sequence[Frame]:
        """The frames from the outermost function to the one that makes the call; () of a backward part."""
        frames = self.provenance.site(piece.scan.equations[piece.start].origin).frames
        if piece.call.backward or piece.call.frame not in frames:
            return ()
        return frames[: frames.index(piece.call.frame) + 1]

    @abstractmethod
    def saved(self, shape: Shape) -> int:
        """How many of the results are needed by the backward pass alone, whichever the call."""

    def _name(self, shapes: Sequence[Shape]) -> None:
        """Names of the functions; of two with the same name, methods get that of their class in front."""
        kept = [s for s in shapes if s.kept]
        counts = Counter([self.program.entry.name])
        for shape in kept:
            shape.name = function_name(shape.pieces[0].call)
            equations = shape.pieces[0].scan.equations[shape.pieces[0].start : shape.pieces[0].stop]
            if any(self.provenance.site(e.origin).by_jvp for e in equations):
                shape.name += "_jvp"  # values and their tangents
            if shape.pieces[0].call.backward:
                shape.name += "_bwd"
            elif self.saved(shape) > 1 and any(self._is_plain(s, shape) for s in kept):
                shape.name += "_fwd"
            counts[shape.name] += 1
        for shape in kept:
            owner = owner_of_call(shape.pieces[0].call)
            if counts[shape.name] > 1 and owner is not None:
                longer = words.clean(f"{snake_case(owner)}_{shape.name}")
                shape.name = longer if not shape.name.startswith(snake_case(owner)) else shape.name

    def _is_plain(self, shape: Shape, other: Shape) -> bool:
        """Whether it is the same function as `other`, which saves something, without that."""
        call, code = shape.pieces[0].call, other.pieces[0].call.callee.code
        return call.callee.code is code and not call.backward and self.saved(shape) <= 1

    def _name_inside(self, piece: Piece, value: Value) -> str | None:
        """What the called function itself calls a value that it gives back: not the name that it has outside."""
        if piece.call.backward or value in self.handed.ways:
            return value.hint
        frames = self._frames_inside(piece, value)
        changed = name_of_changed(frames[0]) if frames and frames[0].library else None
        return changed or pieces.name_inside(frames, value.hint, self._part(piece, value))

    def _frames_inside(self, piece: Piece, value: Value) -> Sequence[Frame]:
        """The frames of the equation that makes `value`, from the called function inwards."""
        maker = piece.maker(piece.scan.equations, value)
        if maker is None or pieces.is_handed(maker):
            return ()
        frames = self.provenance.site(maker.origin).frames
        return frames[next((i for i, f in enumerate(frames) if f.code is piece.call.callee.code), len(frames)) :]

    def returned(self, piece: Piece, value: Value) -> pieces.Way | None:
        """Where in what the function of `piece` returns `value` stands; None where that is not known."""
        if value in self.handed.ways:
            call, way = self.handed.ways[value]
            frames = call.frames[len(piece.call.frames) :]
            return pieces.returned(frames, way) if frames else way
        maker = piece.maker(piece.scan.equations, value)
        way = None if maker is None else way_in_record(maker, value)
        return pieces.returned(self._frames_inside(piece, value), self._part(piece, value) if way is None else way)

    def _part(self, piece: Piece, value: Value) -> pieces.Way:
        """Where `value` stands in that of the expression that makes it: `()` where it is all of it, or nobody knows."""
        maker = piece.maker(piece.scan.equations, value)
        places = inner.places(maker) if maker is not None and len(maker.outputs) > 1 else None
        return () if maker is None or places is None else places[maker.outputs.index(value)] or ()

    def _name_in_caller(self, piece: Piece, value: Value) -> str | None:
        """What the caller calls a value that the call gives back."""
        if piece.call.backward:
            return None
        found = pieces.name_in_caller(piece.call.frame, self.returned(piece, value))
        return None if found is None else found[0]

    def _backward_names(self, piece: Piece, results: dict[Value, Value]) -> list[str | None]:
        """Names of the parameters of a backward part, and of the cotangents in it: after those in the forward part.

        `results`: what its results are inside it.
        """
        primal_of = self.program.facts.primal_of
        forward = piece.scan.forward_part(piece)
        if forward is None:
            return [None] * len(piece.inputs)
        given, _ = self._parameter_names(forward)
        given = [g or w for g, w in zip(given, self._own_words(forward.inputs), strict=True)]
        shape = forward.shape
        function = shape.functions.get(forward.variant)
        written: dict[int, Any] = (
            dict(zip(shape.results, function.results, strict=True)) if function is not None else {}
        )

        def name(value: Any) -> str | None:
            value = piece.scan.whole(value)
            number = forward.numbers.get(value)
            if number is None:
                return next((g for a, g in zip(forward.inputs, given, strict=True) if a is value), None)
            return written.get(number, shape.variants[forward.variant].values[number]).hint

        def cotangent(value: Any) -> str | None:
            primal = primal_of(self.terms.get(value, value))
            found = name(primal) if primal is not None else None
            if found is None and primal is not None and forward.numbers.get(piece.scan.whole(primal)) in shape.results:
                # The result has no name inside; if calls have several for it, none of them is the function's.
                outside = {one.values[forward.numbers[piece.scan.whole(primal)]].hint for one in shape.pieces}
                return d("out") if len(outside) > 1 else None
            return None if found is None else d(found)

        for value in piece.values:
            inside = results.get(value, value)
            inside.hint = cotangent(value) or inside.hint
        return [name(a) or cotangent(a) for a in piece.inputs]

    def _common_word(self, shape: Shape, place: int) -> str | None:
        """What the names of the leaves that the calls of a function pass here end in: `layer_0_scale`, `layer_1_scale`."""
        values = [piece.inputs[place] for piece in shape.pieces]
        hints = {value.hint or "" for value in values}
        if len(hints) < 2 or not all(value in self.trees.root for value in values):
            return None
        ends = zip(*[reversed(hint.split("_")) for hint in hints], strict=False)
        common = [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, ends)]
        while common and not common[-1].isidentifier():
            common.pop()
        return "_".join(reversed(common)) or None

    def _own_words(self, inputs: Sequence[Passed]) -> list[str | None]:
        """Names of a call's inputs; of those that are leaves of one tree, without what they have in common."""
        names = [a.hint for a in inputs]
        leaves: dict[Any, list[int]] = {}
        for i, value in enumerate(inputs):
            if value in self.trees.root:
                leaves.setdefault(self.trees.root[value], []).append(i)
        for places in leaves.values():
            parts = [(names[i] or "").split("_") for i in places]
            common = 0
            while all(len(p) > common + 1 and p[: common + 1] == parts[0][: common + 1] for p in parts):
                common += 1
            for i, part in zip(places, parts, strict=True):
                rest = "_".join(part[common:])
                if len(places) > 1 and rest.isidentifier():
                    names[i] = rest
        return names

    def _words_of_differing(self, shape: Shape, piece: Piece) -> list[tuple[Literal | Constant, str]]:
        """What the called function calls the numbers and arrays in which its variants differ, its parameters in order."""
        rows = zip(*[[*one.literals, *one.arrays] for one in shape.variants], strict=True)
        own_atoms = [*piece.literals, *piece.arrays]
        atoms = list(dict.fromkeys(a for a, row in zip(own_atoms, rows, strict=True) if len(set(map(_value, row))) > 1))
        inside = piece.scan.equations[piece.start : piece.stop]
        found = names_of_operands(piece.call.callee.code, inside, atoms, self.provenance)
        own = own_parameters(piece.call.callee)
        said = [(atom, word) for atom, word in zip(atoms, found, strict=True) if word is not None]
        return sorted(said, key=lambda pair: own.index(pair[1]) if pair[1] in own else len(own))

    def _forget_names_outside(self, piece: Piece) -> None:
        """Steps on the way to what the caller gave a name have names of their own."""
        results = {piece.values[n] for n in piece.shape.results}
        outside = {result.hint for result in results}
        for value in piece.values:
            if value.hint in outside and value not in results:
                inside = pieces.name_inside(self._frames_inside(piece, value), None, self._part(piece, value))
                if inside is not None and inside != value.hint:
                    maker = piece.maker(piece.scan.equations, value)
                    stock = inside in words.STOCK and maker is not None
                    value.hint = stock and words.derived(maker, ()) or inside
                    value.named = False

    def _rename_inside(self, piece: Piece, names: Sequence[str | None], inner: Sequence[Value]) -> None:
        """What got its name from an input's name outside gets it from the name inside."""
        changed = [(a.hint, n) for a, n in zip(piece.inputs, names, strict=True) if a.hint and n and a.hint != n]
        results = {piece.values[n] for n in piece.shape.results}
        for value in [*inner, *[v for v in piece.values if v not in results]]:
            for outside, inside in changed:
                if value.hint and not (value.named or value.named_inside) and value.hint.startswith(f"{outside}_"):
                    value.hint = inside + value.hint[len(outside) :]
                    break

    def _parameter_names(self, piece: Piece) -> tuple[list[str | None], list[str]]:
        """(the author's names of the parameters; the names of those that are none of these, and may be trees).

        They are known where the call passes a variable that an input is named after, and in a library's function from what
        it computes; the only one that is left stands for the only input that is left.
        """
        names, open_ = self._passed_names(piece)
        record = self.seen(piece)
        if record is not None:
            empty = {words.clean(n) for n in own_parameters(piece.call.callee) if not record.may_hold(n)}
            names = [None if name in empty else name for name in names]
            open_ = [name for name in open_ if words.clean(name) not in empty]
        closed = piece.call.callee.code.co_freevars  # what the author's function closes over is no argument of it
        left = [i for i, n in enumerate(names) if n is None and piece.inputs[i] not in self.trees.root]
        left = [i for i in left if piece.inputs[i].hint not in closed]
        only = (left[0], open_.pop()) if len(left) == 1 and len(open_) == 1 else None
        if piece.call.callee.library:
            inside = piece.scan.equations[piece.start : piece.stop]
            said = names_of_operands(piece.call.callee.code, inside, piece.inputs, self.provenance)
            own = own_parameters(piece.call.callee)  # which say more than what else the same value is called
            said = [None if a.hint in own and w not in own else w for a, w in zip(piece.inputs, said, strict=True)]
            names = [n or (word if word not in names else None) for n, word in zip(names, said, strict=True)]
        if only is not None and names[only[0]] is None:
            names[only[0]] = words.clean(only[1])
        matched = {n for n, a in zip(names, piece.inputs, strict=True) if a not in self.trees.root}
        others = [n for n in open_ if n not in no_trees(piece.call.callee.definition)]
        return names, [n for n in map(words.clean, others) if n not in matched]

    def _accesses_of(self, shape: Shape) -> Iterator[tuple[Piece, Sequence[Access | None]]]:
        """The variants of a function with what its code has the inputs of their calls as, as far as that is so in every
        call."""
        known = {piece: self._accesses(piece) for piece in shape.pieces}
        for piece in shape.variants:
            alike = [known[p] for p in shape.pieces if p.variant == piece.variant]
            yield piece, [common_access(column) for column in zip(known[piece], *alike, strict=True)]

    def _accesses(self, piece: Piece) -> Sequence[Access | None]:
        """What the code of the called function has the inputs of a call as."""
        callee = piece.call.callee
        inside = piece.scan.equations[piece.start : piece.stop]
        found = accesses(callee.code, inside, piece.inputs, self.provenance)
        roots = Counter([a.root for a in found if a is not None])
        read = [  # a tree of one leaf is that leaf
            Access(a.root)
            if a is not None and not a.steps and roots[a.root] == 1 and value not in self.trees.root
            else a
            for a, value in zip(found, piece.inputs, strict=True)
        ]
        record = self.seen(piece)
        if record is None:
            return read
        return record.accesses([piece.scan.origin(value) for value in piece.inputs], own_parameters(callee), read)

    def _whole_trees(self, shape: Shape, named: Piece) -> list[tuple[str, Tree]]:
        """The author's parameters that are trees of which every leaf is an input."""
        found: dict[str, tuple[Any, list[int]]] = {}
        every: list[list[Access | None]] = []
        for piece in [p for p in shape.pieces if p.variant == named.variant]:
            record, known = self._seen_accesses(piece)
            if record is not None:
                every.append(known)
                for name, structure, places in record.whole(known):
                    found.setdefault(name, (structure, places))
        return [  # a value that a rewrite made anew has no origin: the other calls say what it is
            (words.clean(name), Tree(structure.unflatten([named.inputs[p].aval for p in places]), tuple(places)))
            for name, (structure, places) in found.items()
            if all(len({row[p] for row in every} - {None}) == 1 for p in places)
        ]

    def _passed_numbers(self, shape: Shape, variant: int) -> dict[str, int | float]:
        """The plain numbers that the calls of a variant were passed, where all were passed the same."""
        records = [self.seen(piece) for piece in shape.pieces if piece.variant == variant]
        every = [record.numbers if record is not None else {} for record in records]
        return {words.clean(n): v for n, v in every[0].items() if all(other.get(n) == v for other in every[1:])}

    def _passed_as(self, shape: Shape, variant: int) -> dict[str, SaidNumber]:
        """The author's expressions for numbers that the calls of a variant were passed, where all have the same."""
        found: dict[str, SaidNumber] = {}
        for name, value in self._passed_numbers(shape, variant).items():
            every = [
                said_argument(p.call.frames, p.call.callee, name, value) if p.call.frames and p.call.callee else None
                for p in shape.pieces
                if p.variant == variant and not p.call.backward
            ]
            if every and every[0] is not None and len({said and ast.dump(said[0]) for said in every}) == 1:
                found[name] = every[0]
        return found

    def _note_passed_trees(self, shapes: Sequence[Shape]) -> None:
        """What the author passes as one tree is one, also where his functions give it: not a tuple, which a call puts together."""
        for piece in [p for shape in shapes for p in shape.pieces if not p.call.backward]:
            record, known = self._seen_accesses(piece)
            for _, structure, places in record.whole(known) if record is not None else ():
                leaves = [piece.inputs[p] for p in places]
                example = structure.unflatten([leaf.aval for leaf in leaves])
                if type(example) is not tuple and not any(leaf in self.trees.root for leaf in leaves):
                    self.trees.add(Root(example, 0), leaves)

    def _seen_accesses(self, piece: Piece) -> tuple[CallRecord | None, list[Access | None]]:
        """A call as it was seen, and what it had each of its inputs as."""
        record = self.seen(piece)
        if record is None:
            return None, []
        origins = [piece.scan.origin(value) for value in piece.inputs]
        return record, record.accesses(origins, own_parameters(piece.call.callee), [None] * len(origins))

    def seen(self, piece: Piece) -> CallRecord | None:
        """The call as it was seen while the program was traced."""
        inside = piece.scan.equations[piece.start : piece.stop]
        tracebacks = (jax_compat.equation_source(e.origin)[0] for e in inside if e.origin is not None)
        code = piece.call.callee.code
        return next(filter(None, (self.provenance.calls.find(t, code) for t in tracebacks)), None)

    def _passed_names(self, piece: Piece) -> tuple[list[str | None], list[str]]:
        """(the author's names of the parameters, where the call passes a variable that an input is named after; those of
        the others)."""
        names: list[str | None] = [None] * len(piece.inputs)
        frame = piece.call.frame
        node = frame.node if frame is not None else None
        definition = piece.call.callee.definition
        arguments = getattr(definition, "args", None)
        if not isinstance(node, ast.Call) or not isinstance(arguments, ast.arguments):
            return names, []
        own = own_parameters(piece.call.callee)
        starred = next((i for i, a in enumerate(node.args) if isinstance(a, ast.Starred)), len(node.args))
        after = node.args[starred + 1 :]
        spread: list[str] = []
        passed = dict(zip(own, arguments_of(node, piece.call.callee)[:starred], strict=False))
        if starred < len(node.args) and not node.keywords:
            # What comes after the spread arguments is told by its place from the end, if all are passed.
            whole = not (arguments.defaults or arguments.kwonlyargs or arguments.vararg)
            if not after or whole and not any(isinstance(a, ast.Starred) for a in after):
                spread = own[starred : len(own) - len(after)]
                passed.update(zip(own[len(own) - len(after) :], after, strict=False))
        passed.update({k.arg: k.value for k in node.keywords if k.arg is not None})
        left = list(range(len(piece.inputs)))
        open_ = []
        for name, value in passed.items():
            if isinstance(value, ast.Name):
                found = [i for i in left if piece.inputs[i].hint == value.id]
                if len(found) == 1:
                    names[found[0]] = words.clean(name)
                    left.remove(found[0])
                    continue
            else:
                found = [i for i in left if piece.scan.is_made_by(piece.inputs[i], value, frame, self.provenance)]
                if len(found) == 1:
                    names[found[0]] = words.clean(name)
                    left.remove(found[0])
                    continue
            if not isinstance(value, ast.Constant) and name not in no_arrays(definition):
                open_.append(name)
        leaves = sorted(
            [i for i in left if piece.inputs[i] in self.trees.root], key=lambda i: self.trees.number[piece.inputs[i]]
        )
        if spread and len(leaves) == len(spread):
            for i, name in zip(leaves, spread, strict=True):
                names[i] = words.clean(name)
        return names, open_


def common_access(accesses: Sequence[Access | None]) -> Access | None:
    """What several calls have a value as: the first one's, up to the step in which another differs from it."""
    first = accesses[0]
    for other in accesses[1:]:
        if first is None or other is None or other.root != first.root or other == first:
            continue
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first.steps, other.steps, strict=False))
        first = Access(first.root, tuple(step for step, _ in pairs), exact=False)
    return first


def with_accesses(
    names: Sequence[str | None], unmatched: Sequence[str], known: Sequence[Access | None]
) -> tuple[list[str | None], list[str]]:
    """Names of parameters, and the author's parameters that are none of these, with what the function's own code says."""
    plain = [words.clean(a.root) if a is not None and a.is_whole else None for a in known]
    roots = [words.clean(a.root) if a is not None else None for a in known]
    found = [
        p or (_last_key(known[i]) if n is not None and n in (*roots[:i], *roots[i + 1 :]) else n)
        for i, (n, p) in enumerate(zip(names, plain, strict=True))
    ]
    return found, [u for u in unmatched if u not in found]


def _last_key(access: Access | None) -> str | None:
    """The word for a part of a parameter: `mass` of `link.inertia.mass`."""
    key = access.steps[-1][1] if access is not None and access.exact and access.steps else None
    return words.clean(key) if isinstance(key, str) and key.isidentifier() else None


def _value(atom: Atom) -> Hashable:
    """What tells two numbers, or two arrays, apart."""
    return pieces.number_key(atom.value) if type(atom) is Literal else atom
