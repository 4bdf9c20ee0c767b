"""The module tree as the call tree: the equations of a module's call become a call of its class's function.

The marks of `capture` say which equations belong to which call, so nothing is guessed: each call is one interval of
equations, and calls of one class with equal bodies share a function, which gets the sub-tree of parameters of its module.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.facts import FunctionFacts, Grouping, ModuleParts, PackedResults
from untrace.ir.nodes import Equation, Function, Local, Passed, Program, Value
from untrace.lift.naming import size_words, words
from untrace.lift.naming.names import provenance_of
from untrace.lift.outline import pieces
from untrace.lift.outline.pieces import Shape
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Site
from untrace.python.tree import quoted
from untrace.torch.arguments import Aliases, Known
from untrace.torch.call_tree import CallTree, HelperCall, Path, Piece, author_frame, is_author
from untrace.torch.capture import Capture, ModuleCall, call_numbers, function_name
from untrace.torch.ops import parts
from untrace.torch.ops.parts import Part


class CallOrigin:
    """Where a call of a module's function came from: the author's frames down to the call."""

    def __init__(self, site: Site, source_info: Any):
        self.site = site
        self.source_info = source_info
        self.outvars: tuple[Any, ...] = ()


# How the head of a function begins that is a layer of PyTorch's.
OF_PYTORCH = "PyTorch's "
# From so many calls of a class of convolutions on they share a function.
_CONVOLUTIONS = 3
# A layer of PyTorch of fewer equations (a product, a bias) stands where it is used.
_LAYER = 6


# A helper that is called once is read faster where it stands, if it has no more equations than this.
_SMALL = 6


class ModuleOutliner:
    """Outlines the module calls of one Program. Given to the pipeline in the place of `lift.outline.outline`."""

    def __init__(self, capture: Capture):
        self.capture = capture
        self.silent: set[str] = set()  # heads of functions in which none of the author's statements stands

    def __call__(self, program: Program, refused: Iterable[JaxprEqn] = ()) -> Program:
        _Outlining(self, program, frozenset(refused)).run()
        return program


class _Outlining:
    def __init__(self, outliner: ModuleOutliner, program: Program, refused: frozenset[JaxprEqn]):
        self.capture = outliner.capture
        self.silent = outliner.silent
        self.program = program
        self.refused = refused
        self.equations = program.entry.equations
        self.provenance = provenance_of(program)
        self.shapes = pieces.Shapes(Shape)
        # How often each class of convolutions is called.
        convolutions = [c.kind for c in self.capture.calls if type(c.module).__module__ == "torch.nn.modules.conv"]
        self.convolutions = Counter(convolutions)
        self.parts = Counter(c.kind for c in self.capture.calls if type(c.module) is Part)
        self.leaves = self._leaves()
        self.new_buffers = self._new_buffers()
        self.by_var = self._vars()
        self.aliases = Aliases(self.capture.arguments.names)
        self.equations = [self._apart(e) for e in self.equations]

    def _apart(self, equation: Equation) -> Equation:
        scopes = self.provenance.site(equation.origin).scopes if equation.origin is not None else ()
        return self.aliases.apart(equation, scopes, self._argument_of) if scopes else equation

    def _argument_of(self, number: int, name: str) -> Value | None:
        given = dict(self.capture.calls[number].arguments)
        return self.by_var.get(given.get(name))

    # ------------------------------------------------------------ inputs

    def _leaves(self) -> dict[Passed, tuple[str, Path]]:
        """The entry's parameters that are the module's: ("params", ("layers", "0", "weight"))."""
        import jax

        found: dict[Passed, tuple[str, Path]] = {}
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

    def _packed(self, shape: Shape) -> PackedResults | None:
        """Puts new buffers behind the other results, with which they go in one dict."""
        found: dict[int, Path] = {}
        for number in shape.results:
            ways = {self._new_way(piece, piece.values[number]) for piece in shape.pieces}
            if len(ways) == 1 and (way := ways.pop()) is not None:
                found[number] = way
        if not found:
            return None
        others = [n for n in shape.results if n not in found]
        new = sorted(found, key=lambda n: found[n])
        shape.results = [*others, *new]
        return PackedResults(len(others), [tuple(("item", quoted(k), 0) for k in found[n]) for n in new])

    def _new_way(self, piece: Piece, value: Value) -> Path | None:
        way = self.new_buffers.get(value)
        prefix = piece.call.path
        returned = type(piece.call) is ModuleCall and value in self._results_of(piece.call)
        return None if way is None or way[: len(prefix)] != prefix or returned else way[len(prefix) :]

    def _vars(self) -> IdentityMap[Any, Value]:
        """Values by the variable of the jaxpr that they were."""
        found: IdentityMap[Any, Value] = IdentityMap()
        for equation in self.equations:
            if equation.origin is not None:
                for value, var in zip(equation.outputs, equation.origin.outvars, strict=True):
                    if value is not None:
                        found[var] = value
        jaxpr = getattr(self.program.entry, "jaxpr", None)
        if jaxpr is not None:
            invars = jax_compat.open_jaxpr(jaxpr)[0].invars
            found.update(IdentityMap(zip(invars, self.program.entry.params, strict=False)))
        return found

    # ------------------------------------------------------------ the call tree

    def run(self) -> None:
        items = CallTree(self.capture, self.equations, self.provenance).items()
        last: dict[Value, int] = {}
        for at, equation in enumerate(self.equations):
            for atom in equation.inputs:
                if type(atom) is Value:
                    last[self.aliases.root(atom)] = at
        for atom in self.program.entry.results:
            if type(atom) is Value:
                last[atom] = len(self.equations)
        self.last = last
        items = [self._piece(i) if type(i) is Piece else i for i in items]
        for shape in self.shapes.every():
            numbers = {n for p in shape.pieces for n in self._needed(p)}
            shape.results = self._ordered(shape.pieces[0], sorted(numbers))
        entry = self.program.entry
        entry.facts = replace(entry.facts, size_names=self._entry_size_names())
        if any(type(i) is Piece for i in items):
            self.program.entry.equations = self._emit(items, self._known(), (), frozenset())

    def _piece(self, piece: Piece) -> Piece:
        items: list[Any] = [self._piece(i) if type(i) is Piece else i for i in piece.items]
        piece.items = items
        piece.aliases = self.aliases
        first, last = items[0], items[-1]
        piece.start = first.start if type(first) is Piece else first
        piece.stop = last.stop if type(last) is Piece else last + 1
        self._find_frames(piece)
        piece.number(self.equations, [piece.call.kind])
        piece.key = (piece.key, tuple([self._way(a, piece.call.path) for a in piece.inputs]))
        self.shapes.add(piece, lambda _: self.equations)
        return piece

    def _way(self, value: Passed, prefix: Path) -> tuple[str, Path] | None:
        """Where in its module a tensor stands; None for what is no tensor of this module."""
        found = self.leaves.get(value)
        if found is None or found[1][: len(prefix)] != prefix:
            return None
        return found[0], found[1][len(prefix) :]

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
        known = pieces.by_way(numbers, ways)
        if known is not None:
            return known
        # New state was computed on the way: it stands behind what the module returns, which comes last.
        first = [n for n, way in zip(numbers, ways, strict=True) if way is not None] or numbers[-1:]
        return [*first, *[n for n in numbers if n not in first]]

    def _results_of(self, call: ModuleCall) -> dict[Value, tuple[Any, ...]]:
        """The values that a module's call returned, in order, each with its first place in the result."""
        found: dict[Value, tuple[Any, ...]] = {}
        for path, var in call.results:
            value = self.by_var.get(var)
            if value is not None:
                found.setdefault(value, path)
        return found

    def _returned(self, piece: Piece, value: Value) -> tuple[Any, ...] | None:
        """Where in what `forward` returns a value stands; None where that is not known."""
        if type(piece.call) is ModuleCall and piece.call.results:
            return self._results_of(piece.call).get(value)
        return pieces.returned(self._frames_inside(piece, value))

    def _frames_inside(self, piece: Piece, value: Value) -> Sequence[Frame]:
        """The frames of the equation that makes `value`, from the called function inwards."""
        maker = piece.maker(self.equations, value)
        if maker is None or piece.callee is None:
            return ()
        frames = self.provenance.site(maker.origin).frames
        return frames[next((i for i, f in enumerate(frames) if f.code is piece.callee.code), len(frames)) :]

    # ------------------------------------------------------------ the new equations

    def _emit(self, items: list[int | Piece], known: Known, prefix: Path, results: frozenset[Value]) -> list[Equation]:
        new: list[Equation] = []
        for item in items:
            if isinstance(item, int):
                new.append(known.renamed(self.equations[item]))
            elif not self._is_kept(item):
                new.extend(self._emit(item.items, known, prefix, results))
            else:
                new.append(self._call(item, known, results, prefix))
        return new

    def _known(self, *content: Any) -> Known:
        return Known(self.aliases, *content)

    def _is_kept(self, piece: Piece) -> bool:
        """Whether a call is written as one: module calls are, helpers where that is shorter."""
        shape = piece.shape
        if not shape.results:
            return False
        size = piece.stop - piece.start
        if type(piece.call) is ModuleCall:
            if type(piece.call.module) is Part:
                return not piece.call.module.repeated or self.parts[piece.call.kind] > 1
            if self.convolutions.get(piece.call.kind, 0) >= _CONVOLUTIONS:
                return True
            return is_author(piece.call.module) or size > _LAYER
        return len(shape.results) <= 4 and size > (1 if len(shape.pieces) > 1 else _SMALL)

    def _call(self, piece: Piece, known: Known, results: frozenset[Value], prefix: Path = ()) -> Equation:
        shape = piece.shape
        body = shape.function or self._define(shape)
        body.facts = replace(body.facts, calls=len(shape.pieces))
        needed = set(self._needed(piece))
        outputs: list[Value | None] = []
        for number in shape.results:
            value = piece.values[number]
            if number not in needed and value not in results:
                outputs.append(None)
                continue
            outer = known.of(value)
            if value in self.new_buffers:
                below = self.new_buffers[value][len(prefix) : len(piece.call.path)]
                outer.hint = words.clean("new_" + "_".join(below)) if below else "new_buffers"
            name = self._name_in_caller(piece, value)
            if name is not None:
                outer.hint, outer.named = name
            outputs.append(outer)
        inputs = [known.of(a) for a in piece.inputs]
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
        inner = [Value(r.aval, self._name_inside(piece, r)) for r in results]
        for made, value in zip(inner, results, strict=True):
            made.named = value.named and made.hint is not None
        known = self._known(zip([*piece.inputs, *results], [*params, *inner], strict=True))
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
        head = _head_of_code(piece.call.code) if helper else head_of(piece.call.kind)
        if not helper and not is_author(piece.call.module):
            part = type(piece.call.module) is Part
            head = OF_PYTORCH + (piece.call.module.about if part else head.removeprefix("class "))
        if piece.callee is None:  # a class that inherits `forward` from PyTorch: the statements are the caller's
            self.silent.add(head)
        size_names, size_words = self._size_names(piece)
        facts = FunctionFacts(
            grouping=Grouping([packs[n] for n in order], order),
            packed_results=packed,
            definition=self._author_parameters(piece),
            head=head,
            size_names=size_names,
            size_words=size_words,
        )
        if type(piece.call) is ModuleCall:
            own = vars(piece.call.module)
            numbers = {k: v for k, v in own.items() if _is_number(v) and k[0] != "_" and k != "training"}
            ways = [self._parts(p) for p in shape.pieces]
            every, some = frozenset.intersection(*ways), frozenset[tuple[str, Path]]().union(*ways)
            facts = replace(facts, attributes=numbers, parts=ModuleParts(every, some))
        function.facts = facts
        shape.function = function
        return function

    def _parts(self, piece: Piece) -> frozenset[tuple[str, Path]]:
        """All ways into the parameters and buffers of a call's module."""
        length = len(piece.call.path)
        ways = [(n, w[length:]) for n, w in self.leaves.values() if w[:length] == piece.call.path]
        return frozenset((name, tuple(map(quoted, w[:end]))) for name, w in ways for end in range(1, len(w) + 1))

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
        passed = size_words.words_for_sizes(self._author_parameters(piece), self._parameter_names(piece), call)
        return size_words.named_sizes(definition, shapes), passed

    def _entry_size_names(self) -> dict[int, str]:
        """The same for the whole model."""
        code = self.capture.calls[0].code
        shapes = _shapes_by_name([o for e in self.equations for o in e.outputs if o is not None])
        for name, var in self.capture.calls[0].arguments:
            shapes[name] = var.aval.shape
        for equation in self.equations:
            for frame in self.provenance.site(equation.origin).frames:
                if frame.code is code:
                    return size_words.named_sizes(frame.definition, shapes)
        return {}

    def _parameter_names(self, piece: Piece) -> list[str | None]:
        """The author's names for what the function gets, by what was passed to `forward`."""
        given: dict[Passed, str] = self._passed(piece) if type(piece.call) is HelperCall else {}
        for name, var in piece.call.arguments:
            value = self.by_var.get(var)
            if value is not None:
                given.setdefault(value, name)
        names: list[str | None] = []
        for value in piece.inputs:
            leaf = self.leaves.get(value)
            alias = self.aliases.named.get(value)
            if alias is not None and alias[0] == piece.call.number:
                names.append(words.clean(alias[1]))
                continue
            value = value if value in given else self.aliases.root(value)
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
        of_pytorch = type(piece.call) is ModuleCall and (piece.callee is None or not is_author(piece.call.module))
        if of_pytorch and "x" not in names:
            names = ["x" if n == "input_" else n for n in names]  # PyTorch's word, which is a builtin's
        return names

    def _passed(self, piece: Piece) -> dict[Passed, str]:
        """The parameters of a helper by the words of its call: `rotate(q, table)` passes the value that is called `q`."""
        node = piece.frame.node if piece.frame is not None else None
        own = list(self._author_parameters(piece))
        if not isinstance(node, ast.Call):
            return {}
        pairs = [*zip(own, node.args, strict=False), *[(k.arg, k.value) for k in node.keywords]]
        left = [a for a in piece.inputs if a not in self.leaves]
        found: dict[Passed, str] = {}
        open_ = []
        for name, value in pairs:
            fitting = [a for a in left if isinstance(value, ast.Name) and a.hint == value.id]
            if len(fitting) == 1 and name is not None:
                found[fitting[0]] = name
                left.remove(fitting[0])
            elif name is not None and not isinstance(value, ast.Constant):
                open_.append(name)
        computed = [n for n in open_ if not any(p == n and isinstance(v, ast.Name) for p, v in pairs)]
        if len(left) == 1 and (len(open_) == 1 or len(computed) == 1):
            found[left[0]] = open_[0] if len(open_) == 1 else computed[0]
        return found

    def _name_in_caller(self, piece: Piece, value: Value) -> tuple[str, bool] | None:
        """What the caller calls a value that the call gives back, and whether in a statement of its own."""
        return pieces.name_in_caller(piece.frame, self._returned(piece, value))

    def _name_inside(self, piece: Piece, value: Value) -> str | None:
        """What the module itself calls a value that it gives back."""
        frames = self._frames_inside(piece, value)
        return pieces.name_inside(frames, value.hint) if frames else value.hint


def _shapes_by_name(values: Iterable[Passed]) -> dict[str, tuple[int, ...]]:
    """The shapes of named values; of several with one name, the last one's."""
    return {v.hint: v.aval.shape for v in values if v.hint and hasattr(v.aval, "shape")}


def _is_number(value: Any) -> bool:
    """Also a short string: one of a few words that choose."""
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_number, value))
    return type(value) in (int, float, bool) or type(value) is str and value.isidentifier() and len(value) < 30


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
    if code.co_filename == parts.FILE:
        return OF_PYTORCH + (code.co_consts[0] if isinstance(code.co_consts[0], str) else code.co_name)
    text = f"{code.co_qualname}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return text if text.isprintable() and len(text) < 90 else ""
