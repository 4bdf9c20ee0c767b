"""The module tree as the call tree: the equations of a module's call become a call of its class's function.

The marks of `capture` say which equations belong to which call, so nothing is guessed: each call is one interval of
equations, and calls of one class with equal bodies share a function, which gets the sub-tree of parameters of its module.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable
from types import CodeType
from typing import Any

from untrace import jax_compat
from untrace.capture.provenance import Frame, Site, climbed
from untrace.ir.nodes import Constant, Equation, Function, Literal, Local, Program, Value
from untrace.lift import words
from untrace.lift.names import provenance_of
from untrace.print.tree import quoted
from untrace.prove.compare import Comparer
from untrace.torch import ops_parts, words_of_sizes
from untrace.torch.capture import Capture, ModuleCall, call_numbers, function_name
from untrace.torch.ops_parts import Part

Path = tuple[str, ...]


class CallOrigin:
    """Where a call of a module's function came from: the author's frames down to the call."""

    def __init__(self, site: Site, source_info: Any):
        self.site = site
        self.source_info = source_info
        self.outvars: tuple[Any, ...] = ()


def author_frame(site: Site) -> Frame | None:
    """The innermost frame of the author's: what we write for a layer of PyTorch's is not theirs."""
    return next((f for f in reversed(site.user_frames) if f.file != ops_parts.FILE), None)


def is_author(module: Any) -> bool:
    """Whether a module's class is the author's, and not one of PyTorch's layers (but those that are whole models)."""
    kind = type(module).__module__
    if type(module) is Part:
        return False
    if kind.startswith("torch.nn."):
        return kind.endswith((".transformer", ".activation")) and any(True for _ in module.children())
    return True


def is_function(module: Any) -> bool:
    """Whether a module's class may be written as a function: the author's, and PyTorch's layers with tensors."""
    if is_author(module) or type(module) is Part:
        return True
    state = [*module._parameters.values(), *module._buffers.values()]
    return any(v is not None for v in state)


# How the head of a function begins that is a layer of PyTorch's.
OF_PYTORCH = "PyTorch's "
# From so many calls of a class of convolutions on they share a function.
_CONVOLUTIONS = 3
# A layer of PyTorch of fewer equations (a product, a bias) stands where it is used.
_LAYER = 6


class HelperCall:
    """One call of a function of the author's inside a module's `forward`."""

    def __init__(self, code: CodeType, frame: Frame, path: Path, number: int):
        self.code = code
        self.frame = frame
        self.kind = code
        self.path = path
        self.number = number
        self.arguments: tuple[tuple[str, Any], ...] = ()


# A helper of fewer equations is read faster where it stands.
_SMALL = 3


class Piece:
    """One call of a module: its equations and inner calls, what they read from outside, what they make."""

    __slots__ = ("call", "items", "start", "stop", "inputs", "values", "numbers", "key", "shape", "callee", "frame")

    def __init__(self, call: ModuleCall | HelperCall):
        self.call = call
        self.items: list[int | Piece] = []
        self.start = self.stop = 0
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.key: Any = None
        self.shape: Shape = None  # type: ignore[assignment]
        self.callee: Frame | None = None
        self.frame: Frame | None = None


class Shape:
    """Calls with equal bodies: one function. `results`: numbers of the values that any of the calls gives back."""

    __slots__ = ("pieces", "results", "function", "kept")

    def __init__(self, piece: Piece):
        self.pieces = [piece]
        self.results: list[int] = []
        self.function: Function | None = None
        self.kept = True


class ModuleOutliner:
    """Outlines the module calls of one Program. Given to the pipeline in the place of `lift.outline`."""

    def __init__(self, capture: Capture):
        self.capture = capture
        self.missing: list[str] = []  # what could not become a function

    def __call__(self, program: Program, refused: Iterable[int] = (), paths: Any = None) -> Program:
        _Outlining(self, program, frozenset(refused)).run()
        return program


class _Outlining:
    def __init__(self, outliner: ModuleOutliner, program: Program, refused: frozenset[int]):
        self.capture = outliner.capture
        self.program = program
        self.refused = refused
        self.equations = program.entry.equations
        self.provenance = provenance_of(program)
        self.comparer = Comparer()
        self.shapes: dict[Any, list[Shape]] = {}
        # How often each class of convolutions is called.
        convolutions = [c.kind for c in self.capture.calls if type(c.module).__module__ == "torch.nn.modules.conv"]
        self.convolutions = Counter(convolutions)
        self.leaves = self._leaves()
        self.new_buffers = self._new_buffers()
        self.by_var = self._vars()

    # ------------------------------------------------------------ inputs

    def _leaves(self) -> dict[Value, tuple[str, Path]]:
        """The entry's parameters that are the module's: ("params", ("layers", "0", "weight"))."""
        import jax

        found: dict[Value, tuple[str, Path]] = {}
        values = iter(self.program.entry.params)
        for name, tree in zip(self.capture.names, self.capture.args, strict=True):
            for way, _ in jax.tree_util.tree_leaves_with_path(tree):
                value = next(values)
                if name in ("params", "buffers"):
                    found[value] = (name, tuple(str(k.key) for k in way))
        return found

    def _new_buffers(self) -> dict[Value, Path]:
        """The values that come back as new buffers, each with its place in the module."""
        if not self.capture.changed:
            return {}
        import jax

        buffers = self.capture.args[self.capture.names.index("buffers")]
        ways = [tuple(str(k.key) for k in way) for way, _ in jax.tree_util.tree_leaves_with_path(buffers)]
        results = self.program.entry.results
        found: dict[Value, Path] = {}
        for value, way in zip(results[len(results) - len(ways) :], ways, strict=True):
            if type(value) is Value and value not in self.leaves:
                found.setdefault(value, way)
        return found

    def _packed(self, shape: Shape) -> tuple[int, list[Any]] | None:
        """Puts new buffers behind the other results; (how many those are, the ways to the buffers in one dict)."""
        found: dict[int, Path] = {}
        for number in shape.results:
            ways = {self._new_way(piece, piece.values[number]) for piece in shape.pieces}
            if len(ways) == 1 and None not in ways:
                found[number] = ways.pop()  # type: ignore[assignment]
        if not found:
            return None
        others = [n for n in shape.results if n not in found]
        new = sorted(found, key=lambda n: found[n])
        shape.results = [*others, *new]
        return len(others), [tuple(("item", quoted(k), 0) for k in found[n]) for n in new]

    def _new_way(self, piece: Piece, value: Value) -> Path | None:
        way = self.new_buffers.get(value)
        prefix = piece.call.path
        returned = type(piece.call) is ModuleCall and value in self._results_of(piece.call)
        return None if way is None or way[: len(prefix)] != prefix or returned else way[len(prefix) :]

    def _vars(self) -> dict[int, Value]:
        """Values by the id of the variable of the jaxpr that they were."""
        found: dict[int, Value] = {}
        for equation in self.equations:
            if equation.origin is not None:
                for value, var in zip(equation.outputs, equation.origin.outvars, strict=True):
                    if value is not None:
                        found[id(var)] = value
        jaxpr = getattr(self.program.entry, "jaxpr", None)
        if jaxpr is not None:
            invars = jax_compat.open_jaxpr(jaxpr)[0].invars
            found.update({id(v): p for v, p in zip(invars, self.program.entry.params, strict=False)})
        return found

    # ------------------------------------------------------------ the call tree

    def run(self) -> None:
        items = self._tree()
        last: dict[Value, int] = {}
        for at, equation in enumerate(self.equations):
            for atom in equation.inputs:
                if type(atom) is Value:
                    last[atom] = at
        for atom in self.program.entry.results:
            if type(atom) is Value:
                last[atom] = len(self.equations)
        self.last = last
        pieces = [self._piece(i) if type(i) is Piece else i for i in items]
        for bucket in self.shapes.values():
            for shape in bucket:
                numbers = {n for p in shape.pieces for n in self._needed(p)}
                shape.results = self._ordered(shape.pieces[0], sorted(numbers))
        self.program.entry.extra["size_names"] = self._entry_size_names()
        if any(type(i) is Piece for i in pieces):
            self.program.entry.equations = self._emit(pieces, {}, (), frozenset())

    def _tree(self) -> list[int | Piece]:
        """Items of the entry; a call whose equations do not follow each other is left where they are."""
        calls = self.capture.calls
        chains: list[list[Any]] = []
        current: list[Any] = []
        for equation in self.equations:
            site = self.provenance.site(equation.origin)
            every = call_numbers(site.scopes)
            if every:
                current = [n for n in every if n and is_function(calls[n].module)]
                current = [*current, *self._helpers(site, every, current)]
            chains.append(current)
        torn = self._torn(chains)
        items: list[int | Piece] = []
        stack: list[tuple[Any, Piece]] = []
        for at, chain in enumerate(chains):
            chain = [n for n in chain if n not in torn]
            depth = 0
            while depth < len(stack) and depth < len(chain) and stack[depth][0] == chain[depth]:
                depth += 1
            del stack[depth:]
            for number in chain[depth:]:
                if type(number) is int:
                    piece = Piece(calls[number])
                else:
                    path = stack[-1][1].call.path if stack else ()
                    piece = Piece(HelperCall(number[2], number[3], path, chain[0] if type(chain[0]) is int else 0))
                (stack[-1][1].items if stack else items).append(piece)
                stack.append((number, piece))
            (stack[-1][1].items if stack else items).append(at)
        return items

    def _helpers(self, site: Site, every: list[int], own: list[int]) -> list[tuple[Any, ...]]:
        """The author's functions entered inside the innermost module's `forward`, by where they were called from."""
        module = self.capture.calls[own[-1] if own else 0]
        before = sum(self.capture.calls[n].code is module.code for n in every if n < module.number)
        found = [i for i, f in enumerate(site.frames) if f.code is module.code]
        if len(found) <= before:
            return []
        inside = site.frames[found[before] :]
        chain: list[tuple[Any, ...]] = []
        for caller, callee in zip(inside, inside[1:], strict=False):
            if callee.library or callee.name.startswith("<") or callee.name == "forward":
                break
            chain.append((id(caller.code), caller.lasti, callee.code, caller, own[-1] if own else 0))
        return chain

    @staticmethod
    def _torn(chains: list[list[Any]]) -> set[Any]:
        spans: dict[Any, list[int]] = {}
        for at, chain in enumerate(chains):
            for number in chain:
                span = spans.setdefault(number, [at, at, 0])
                span[1] = at
                span[2] += 1
        # A helper that is called again from the same place (in a loop) after something else is several calls.
        return {n for n, (first, last, count) in spans.items() if last - first + 1 != count}

    def _piece(self, piece: Piece) -> Piece:
        items = [self._piece(i) if type(i) is Piece else i for i in piece.items]
        piece.items = items
        first, last = items[0], items[-1]
        piece.start = first.start if type(first) is Piece else first
        piece.stop = last.stop if type(last) is Piece else last + 1
        self._find_frames(piece)
        numbers, values, inputs = piece.numbers, piece.values, piece.inputs
        places: dict[Value, int] = {}
        prefix = piece.call.path

        def reference(atom: Any) -> Any:
            if type(atom) is Value:
                number = numbers.get(atom)
                if number is not None:
                    return number
                place = places.get(atom)
                if place is None:
                    place = places[atom] = len(inputs)
                    inputs.append(atom)
                return -1 - place
            if type(atom) is Literal:
                return repr(atom.value), atom.aval.dtype, getattr(atom.aval, "weak_type", None)
            return Constant, id(atom)

        def make(value: Value) -> None:
            numbers[value] = len(values)
            values.append(value)

        keys: list[Any] = [piece.call.kind]
        for item in items:
            if type(item) is Piece:
                keys.append((id(item.shape), tuple([reference(a) for a in item.inputs])))
                for value in item.values:
                    make(value)
                continue
            equation = self.equations[item]
            outs = tuple([None if o is None else _type_key(o.aval) for o in equation.outputs])
            keys.append((id(equation.callee.object), tuple([reference(a) for a in equation.inputs]), outs))
            for output in equation.outputs:
                if output is not None:
                    make(output)
        ways = tuple([self._way(a, prefix) for a in inputs])
        piece.key = (tuple(keys), tuple([_type_key(a.aval) for a in inputs]), ways)
        bucket = self.shapes.setdefault(piece.key, [])
        for shape in bucket:
            if self._same_params(shape.pieces[0], piece):
                shape.pieces.append(piece)
                piece.shape = shape
                return piece
        piece.shape = Shape(piece)
        bucket.append(piece.shape)
        return piece

    def _way(self, value: Value, prefix: Path) -> tuple[str, Path] | None:
        """Where in its module a tensor stands; None for what is no tensor of this module."""
        found = self.leaves.get(value)
        if found is None or found[1][: len(prefix)] != prefix:
            return None
        return found[0], found[1][len(prefix) :]

    def _same_params(self, left: Piece, right: Piece) -> bool:
        for a, b in zip(left.items, right.items, strict=True):
            if type(a) is int:
                ours, theirs = self.equations[a].origin, self.equations[b].origin  # type: ignore[index]
                if ours is not theirs and ours.params and self.comparer.differing_param(ours, theirs) is not None:
                    return False
        return True

    def _needed(self, piece: Piece) -> list[int]:
        last, stop = self.last, piece.stop
        return [i for i, v in enumerate(piece.values) if last.get(v, -1) >= stop]

    def _find_frames(self, piece: Piece) -> None:
        """The frame that runs the module's `forward`, and the author's frame that called it."""
        code = piece.call.code
        if type(piece.call) is HelperCall:
            frames = self.provenance.site(self.equations[piece.start].origin).frames
            at = next((i for i, f in enumerate(frames) if f is piece.call.frame), None)
            if at is not None and at + 1 < len(frames):
                piece.frame, piece.callee = frames[at], frames[at + 1]
            return
        for at in range(piece.start, piece.stop):
            frames = self.provenance.site(self.equations[at].origin).frames
            numbers = call_numbers(self.provenance.site(self.equations[at].origin).scopes)
            # The same class may be around itself: count how often its code was entered before this call.
            before = sum(self.capture.calls[n].code is code for n in numbers if n < piece.call.number)
            found = [i for i, f in enumerate(frames) if f.code is code]
            if len(found) > before:
                index = found[before]
                piece.callee = frames[index]
                piece.frame = next((f for f in reversed(frames[:index]) if not f.library), None)
                return
        if not is_author(piece.call.module):  # whose own frames are left out: the innermost is the one that calls it
            piece.frame = author_frame(self.provenance.site(self.equations[piece.start].origin))

    def _ordered(self, piece: Piece, numbers: list[int]) -> list[int]:
        """Results in the order in which the author returns them, as far as that is known."""
        if type(piece.call) is ModuleCall and piece.call.results:
            order = {value: i for i, value in enumerate(self._results_of(piece.call))}
            return sorted(numbers, key=lambda n: order.get(piece.values[n], len(order)))
        ways = [self._returned(piece, piece.values[n]) for n in numbers]
        if len(set(ways)) == len(ways) and all(w is not None and all(type(s) is int for s in w) for w in ways):
            return [n for _, n in sorted(zip(ways, numbers, strict=True))]  # type: ignore[type-var]
        # New state was computed on the way: it stands behind what the module returns, which comes last.
        first = [n for n, way in zip(numbers, ways, strict=True) if way is not None] or numbers[-1:]
        return [*first, *[n for n in numbers if n not in first]]

    def _results_of(self, call: ModuleCall) -> dict[Value, tuple[Any, ...]]:
        """The values that a module's call returned, in order, each with its first place in the result."""
        found: dict[Value, tuple[Any, ...]] = {}
        for path, var in call.results:
            value = self.by_var.get(id(var))
            if value is not None:
                found.setdefault(value, path)
        return found

    def _returned(self, piece: Piece, value: Value) -> tuple[Any, ...] | None:
        """Where in what `forward` returns a value stands; None where that is not known."""
        if type(piece.call) is ModuleCall and piece.call.results:
            return self._results_of(piece.call).get(value)
        maker = next((e for e in reversed(self.equations[piece.start : piece.stop]) if value in e.outputs), None)
        if maker is None or piece.callee is None:
            return None
        frames = self.provenance.site(maker.origin).frames
        inner = next((i for i, f in enumerate(frames) if f.code is piece.callee.code), len(frames))
        way: tuple[Any, ...] = ()
        for frame in reversed(frames[inner:]):
            climb = climbed(frame, way)
            if not climb.returned:
                return None
            way = climb.path
        return way if inner < len(frames) else None

    # ------------------------------------------------------------ the new equations

    def _emit(
        self, items: list[int | Piece], known: dict[Value, Value], prefix: Path, results: frozenset[Value]
    ) -> list[Equation]:
        new: list[Equation] = []
        for item in items:
            if type(item) is int:
                new.append(_renamed(self.equations[item], known))
            elif not self._is_kept(item):
                new.extend(self._emit(item.items, known, prefix, results))
            else:
                new.append(self._call(item, known, results, prefix))
        return new

    def _is_kept(self, piece: Piece) -> bool:
        """Whether a call is written as one: module calls are, helpers where that is shorter."""
        shape = piece.shape
        if not shape.results:
            return False
        size = piece.stop - piece.start
        if type(piece.call) is ModuleCall:
            if type(piece.call.module) is Part:
                return True
            if self.convolutions.get(piece.call.kind, 0) >= _CONVOLUTIONS:
                return True
            return size > (1 if is_author(piece.call.module) else _LAYER)
        return len(shape.results) <= 4 and size > (_SMALL if len(shape.pieces) > 1 else 2 * _SMALL)

    def _call(self, piece: Piece, known: dict[Value, Value], results: frozenset[Value], prefix: Path = ()) -> Equation:
        shape = piece.shape
        body = shape.function or self._define(shape)
        body.extra["calls"] = len(shape.pieces)
        needed = set(self._needed(piece))
        outputs: list[Value | None] = []
        for number in shape.results:
            value = piece.values[number]
            if number not in needed and value not in results:
                outputs.append(None)
                continue
            outer = known.get(value, value)
            if value in self.new_buffers:
                below = self.new_buffers[value][len(prefix) : len(piece.call.path)]
                outer.hint = words.clean("new_" + "_".join(below)) if below else "new_buffers"
            name = self._name_in_caller(piece, value)
            if name is not None:
                outer.hint, outer.named = name
            outputs.append(outer)
        inputs = [known.get(a, a) for a in piece.inputs]
        return Equation(Local(body), inputs, outputs, {}, self._origin(piece))

    def _origin(self, piece: Piece) -> CallOrigin | None:
        origin = self.equations[piece.start].origin
        if origin is None:
            return None
        site = self.provenance.site(origin)
        frames = site.frames
        if piece.frame is not None:
            frames = (
                frames[: next(i for i, f in enumerate(frames) if f is piece.frame) + 1]
                if piece.frame in frames
                else frames
            )
        return CallOrigin(Site(frames, (), site.scopes, False), origin.source_info)

    def _define(self, shape: Shape) -> Function:
        piece = shape.pieces[0]
        names = self._parameter_names(piece)
        params = [Value(a.aval, n or a.hint) for a, n in zip(piece.inputs, names, strict=True)]
        packed = self._packed(shape)
        results = [piece.values[n] for n in shape.results]
        inner = [Value(r.aval, r.hint) for r in results]
        for made, value in zip(inner, results, strict=True):
            made.named = value.named
        known = dict(zip([*piece.inputs, *results], [*params, *inner], strict=True))
        equations = self._emit(piece.items, known, piece.call.path, frozenset(results))
        helper = type(piece.call) is HelperCall
        name = words.clean(piece.call.code.co_name) if helper else function_name(piece.call.kind)
        function = Function(name, params, equations, inner)
        packs: dict[str, tuple[list[int], list[Any]]] = {}
        for place, value in enumerate(piece.inputs):
            way = self._way(value, piece.call.path)
            if way is not None:
                places, ways = packs.setdefault(way[0], ([], []))
                places.append(place)
                ways.append(tuple(("item", quoted(k), 0) for k in way[1]))  # a Leaf's steps
        order = sorted(packs, reverse=True)  # params before buffers
        function.extra["packs"] = [packs[n] for n in order]
        function.extra["pack_names"] = order
        function.extra["definition"] = self._author_parameters(piece)
        if packed is not None:
            function.extra["packed_results"] = packed
        function.extra["head"] = _head_of_code(piece.call.code) if helper else head_of(piece.call.kind)
        if not helper and not is_author(piece.call.module):
            part = type(piece.call.module) is Part
            about = piece.call.module.about if part else function.extra["head"].removeprefix("class ")
            function.extra["head"] = OF_PYTORCH + about
        function.extra["size_names"], function.extra["size_words"] = self._size_names(piece)
        shape.function = function
        return function

    # ------------------------------------------------------------ names

    def _author_parameters(self, piece: Piece) -> tuple[str, ...]:
        definition = piece.callee.definition if piece.callee is not None else None
        arguments = getattr(definition, "args", None)
        if not isinstance(arguments, ast.arguments):
            return ()
        return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg != "self")

    def _size_names(self, piece: Piece) -> tuple[dict[int, str], tuple[str, ...]]:
        """The author's words for sizes in the body of a call, and for those that are passed as numbers."""
        shapes = _shapes_by_name([*piece.values, *piece.inputs])
        for name, var in piece.call.arguments:
            shapes[name] = var.aval.shape
        definition = piece.callee.definition if piece.callee is not None else None
        call = piece.frame.node if piece.frame is not None else None
        passed = words_of_sizes.words_for_sizes(self._author_parameters(piece), self._parameter_names(piece), call)
        return words_of_sizes.named_sizes(definition, shapes), passed

    def _entry_size_names(self) -> dict[int, str]:
        """The same for the whole model."""
        code = self.capture.calls[0].code
        shapes = _shapes_by_name([o for e in self.equations for o in e.outputs if o is not None])
        for name, var in self.capture.calls[0].arguments:
            shapes[name] = var.aval.shape
        for equation in self.equations:
            for frame in self.provenance.site(equation.origin).frames:
                if frame.code is code:
                    return words_of_sizes.named_sizes(frame.definition, shapes)
        return {}

    def _parameter_names(self, piece: Piece) -> list[str | None]:
        """The author's names for what the function gets, by what was passed to `forward`."""
        given: dict[Value, str] = self._passed(piece) if type(piece.call) is HelperCall else {}
        for name, var in piece.call.arguments:
            value = self.by_var.get(id(var))
            if value is not None:
                given.setdefault(value, name)
        names: list[str | None] = []
        for value in piece.inputs:
            leaf = self.leaves.get(value)
            if value in given:
                names.append(words.clean(given[value]))
            elif leaf is not None and self._way(value, piece.call.path) is None:
                names.append(words.clean("_".join(leaf[1][-2:])))
            else:
                names.append(None)
        left = [n for n in self._author_parameters(piece) if n not in names]
        open_ = [i for i, n in enumerate(names) if n is None and piece.inputs[i] not in self.leaves]
        if len(open_) == 1 and len(left) == 1:
            names[open_[0]] = words.clean(left[0])
        return names

    def _passed(self, piece: Piece) -> dict[Value, str]:
        """The parameters of a helper by the words of its call: `rotate(q, table)` passes the value that is called `q`."""
        node = piece.frame.node if piece.frame is not None else None
        own = list(self._author_parameters(piece))
        if not isinstance(node, ast.Call):
            return {}
        pairs = [*zip(own, node.args, strict=False), *[(k.arg, k.value) for k in node.keywords]]
        left = [a for a in piece.inputs if a not in self.leaves]
        found: dict[Value, str] = {}
        open_ = []
        for name, value in pairs:
            fitting = [a for a in left if isinstance(value, ast.Name) and a.hint == value.id]
            if len(fitting) == 1 and name is not None:
                found[fitting[0]] = name
                left.remove(fitting[0])
            elif name is not None and not isinstance(value, ast.Constant):
                open_.append(name)
        if len(left) == 1 and len(open_) == 1:
            found[left[0]] = open_[0]
        return found

    def _name_in_caller(self, piece: Piece, value: Value) -> tuple[str, bool] | None:
        """What the caller calls a value that the call gives back, and whether in a statement of its own."""
        way = self._returned(piece, value)
        if way is None or piece.frame is None:
            return None
        strong = [t for t in climbed(piece.frame, way).targets if t.strong and not t.path and t.name.strip("_")]
        return (words.clean(strong[0].name), strong[0].kind == "assign") if strong else None


def _shapes_by_name(values: Iterable[Value]) -> dict[str, tuple[int, ...]]:
    """The shapes of named values; of several with one name, the last one's."""
    return {v.hint: v.aval.shape for v in values if v.hint and hasattr(v.aval, "shape")}


def head_of(kind: type) -> str:
    """`class RMSNorm, llama.py:12`: fit to stand in a comment."""
    import inspect

    try:
        file = os.path.basename(inspect.getsourcefile(kind) or "")
        text = f"class {kind.__name__}, {file}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        text = f"class {kind.__name__}"
    return text if text.isprintable() and len(text) < 90 else ""


def _head_of_code(code: CodeType) -> str:
    text = f"{code.co_qualname}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return text if text.isprintable() and len(text) < 90 else ""


def _renamed(equation: Equation, known: dict[Value, Value]) -> Equation:
    if not known or not any(a in known for a in equation.inputs) and not any(o in known for o in equation.outputs):
        return equation
    inputs = [known.get(a, a) for a in equation.inputs]  # type: ignore[call-overload]
    outputs = [known.get(o, o) for o in equation.outputs]  # type: ignore[call-overload]
    return Equation(equation.callee, inputs, outputs, equation.params, equation.origin)


def _type_key(aval: Any) -> Any:
    shape = getattr(aval, "shape", None)
    return (shape, aval.dtype, getattr(aval, "weak_type", None)) if shape is not None else type(aval).__name__
