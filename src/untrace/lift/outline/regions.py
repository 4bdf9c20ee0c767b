"""What `outline` works on: calls as pieces of a function's equations, and how far each value of that is needed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from types import CodeType
from typing import Any, Protocol

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.calls import is_transformed
from untrace.ir.nodes import (
    Atom,
    Equation,
    Function,
    Library,
    Passed,
    Primitive,
    Scan,
    Value,
    functions_called,
    walk_functions,
)
from untrace.ir.structured import CustomRule, Map, derivative_in
from untrace.lift.adjoint.addends import sums_outside
from untrace.lift.adjoint.pullbacks import is_derivative
from untrace.lift.outline import pieces
from untrace.lift.outline.activations import Call, call_tree
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance


class Saving(Protocol):
    """What a region asks of the pass that outlines it (`outline.Outliner`)."""

    slices: dict[Value, tuple[Region, Value]]
    provenance: Provenance

    def saved(self, shape: Shape) -> int: ...
    def residuals(self, piece: Piece, numbers: Sequence[int]) -> set[int]: ...


class Piece(pieces.Piece):
    """One call of a function that is outlined. `scan`: the function whose equations it is an interval of."""

    __slots__ = ("scan",)
    shape: Shape

    def __init__(self, call: Call, scan: Region):
        super().__init__(call)
        self.scan = scan


class Shape(pieces.Shape):
    """Pieces with equal bodies, and whether and how they are written as a function."""

    __slots__ = ("refused", "uses", "name")

    def __init__(self, piece: Piece):
        super().__init__(piece)
        self.refused = False
        self.uses = 0
        self.name = ""


class Region:
    """One function that is being outlined, and how far each of its values is needed.

    `backward`: whether it is the body of a backward loop. `saved`: results that only a backward loop needs. `sums`:
    equations that add up its carry. `around`: of the body of a loop, the functions that the loop stands in, the innermost first.
    """

    def __init__(
        self,
        function: Function,
        outliner: Saving,
        backward: bool = False,
        saved: Container[Value] = (),
        sums: Container[Equation] = (),
        around: Sequence[Function] = (),
    ):
        self.function = function
        self.backward = backward
        self.slices = outliner.slices
        self.equations = function.equations
        name = jax_compat.function_name(function.jaxpr) if around else ""
        self.root = call_tree(function.equations, outliner.provenance, backward, sums, name)
        self.equations = function.equations = sums_outside(self.root, function.equations)
        self.pieces: list[int | Piece] = []
        self.saved: dict[Value, Piece] | None = None
        self.makers_of: dict[Any, Equation] | None = None
        self.around = around
        self._saved_by_loops, self._provenance = saved, outliner.provenance
        self._note_uses()

    def add_to_calls(self, added: Mapping[Call, Sequence[Equation]], inputs: Mapping[Equation, Sequence[Atom]]) -> None:
        """Puts equations at the ends of calls. inputs: what others read from now on, where that is not what they read."""
        equations: list[Equation] = []

        def visit(call: Call) -> None:
            items: list[int | Call] = []
            for item in call.items:
                if isinstance(item, Call):
                    items.append(item)
                    visit(item)
                else:
                    items.append(len(equations))
                    old = self.equations[item]
                    new = None if old not in inputs else inputs[old]
                    equations.append(
                        old if new is None else Equation(old.callee, new, old.outputs, old.params, old.origin)
                    )
            for equation in added.get(call, ()):
                items.append(len(equations))
                equations.append(equation)
            call.items = items

        visit(self.root)
        self.equations = self.function.equations = equations
        self.makers_of = None
        self._note_uses()

    def _note_uses(self) -> None:
        end = len(self.equations)
        self.last_use: dict[Value, int] = {}
        self.last_forward: dict[Value, int] = {}
        self.read_backward: set[Value] = set()
        site_of = self._provenance.site
        for at, equation in enumerate(self.equations):
            forward = not self.backward and site_of(equation.origin).phase == "forward"
            for atom in equation.inputs:
                if type(atom) is Value:
                    self.last_use[atom] = at
                    if forward:
                        self.last_forward[atom] = at
                    else:
                        self.read_backward.add(atom)
        for atom in self.function.results:
            if type(atom) is Value:
                self.last_use[atom] = end
                if atom not in self._saved_by_loops:
                    self.last_forward[atom] = end

    def makers(self, outliner: Saving) -> dict[Value, Piece]:
        """{value that a kept forward part saves: which part}."""
        if self.saved is None:
            self.saved = {}
            stack = list(self.pieces)
            while stack:
                item = stack.pop()
                if type(item) is not Piece or item.call.backward:
                    continue
                if not item.shape.kept:
                    stack.extend(item.items)
                elif outliner.saved(item.shape) > 1:
                    self.saved.update((item.values[n], item) for n in outliner.residuals(item, item.shape.results))
            for param in self.function.params if self.backward else ():
                scan, value = self.slices.get(param, (None, param))
                maker = scan.makers(outliner).get(value) if scan is not None else None
                if maker is not None:
                    self.saved[param] = maker
        return self.saved

    def is_made_by(self, value: Passed, node: ast.AST, frame: Frame, provenance: Provenance) -> bool:
        """Whether `value` is what the expression `node` gives, in the function that `frame` runs."""
        maker = self._maker(value)
        if maker is None:
            return False
        inside = [f for f in provenance.site(maker.origin).frames if f.code is frame.code]
        return any(f.node is not None and _place(f.node) == _place(node) for f in inside)

    def _maker(self, value: Passed) -> Equation | None:
        if self.makers_of is None:
            self.makers_of = {o: e for e in self.equations for o in e.outputs if o is not None}
        return self.makers_of.get(value)

    def origin(self, value: Passed) -> tuple[Any, Any]:
        """(the variable of the jaxpr that a value was, the traceback of the equation that makes it); None for what is not
        known."""
        maker = self._maker(value)
        if maker is not None:
            if pieces.is_handed(maker):
                return self.origin(maker.inputs[0]) if type(maker.inputs[0]) is Value else (None, None)
            if maker.origin is None:
                return None, None
            pairs = zip(maker.outputs, maker.origin.outvars, strict=False)
            made = next((variable for output, variable in pairs if output is value), None)
            is_itself = len(maker.outputs) == len(maker.origin.outvars)
            return made if is_itself else None, jax_compat.equation_source(maker.origin)[0]
        place = next((i for i, param in enumerate(self.function.params) if param is value), None)
        if place is None or self.function.jaxpr is None:
            return None, None
        jaxpr, _ = jax_compat.open_jaxpr(self.function.jaxpr)
        inputs = [*jaxpr.constvars, *jaxpr.invars][-len(self.function.params) :]
        return inputs[place] if len(inputs) == len(self.function.params) else None, None

    def forward_part(self, piece: Piece) -> Piece | None:
        """The forward part that a backward one belongs to: of the same function, with the same values."""
        inside = set(piece.inputs)
        stack = list(self.pieces)
        for scan, value in [self.slices[a] for a in piece.inputs if a in self.slices]:
            inside.add(value)
            stack.extend(scan.pieces)
        while stack:
            item = stack.pop()
            if type(item) is Piece and not item.call.backward:
                if item.call.callee.code is piece.call.callee.code and not inside.isdisjoint(item.numbers):
                    return item
                stack.extend(item.items)
        return None

    def whole(self, value: Value) -> Value:
        """The value of a forward loop's body, for a slice of what it stacked."""
        return self.slices[value][1] if value in self.slices else value

    def saved_by_loop(self, equation: Equation) -> frozenset[Value]:
        """What a loop stacks for the backward pass alone: the results of its body."""
        at = next(place for place, other in enumerate(self.equations) if other is equation)
        loop = callee_of(equation, Scan)
        results, carries = loop.body.results, loop.carries
        pairs = zip(equation.outputs[carries:], results[carries:], strict=True)
        found = {r: o is not None and self.last_forward.get(o, -1) > at for o, r in pairs if type(r) is Value}
        carried = results[:carries]
        return frozenset(r for r, forward in found.items() if not forward and r not in carried)

    def needed(self, piece: Piece) -> list[int]:
        """Numbers of the values that something after the piece uses."""
        last, stop = self.last_use, piece.stop
        return [i for i, v in enumerate(piece.values) if last.get(v, -1) >= stop]


def make_calls_of_themselves(regions: Sequence[Region], provenance: Provenance) -> None:
    """Makes one call of all that a function does which is mapped or differentiated, where it is itself one that is called
    elsewhere: `jax.vjp(partial(f, z=z), x)` is of a function that closes over values, and calls `f`. So is what is mapped
    or differentiated twice, once closing over values, as two objects of one class do."""
    given: set[Function] = set()
    closing: set[Function] = set()  # over values, as one that is mapped of an object
    for equation in [e for region in regions for e in region.equations]:
        given_to = equation.callee if type(equation.callee) is Map else derivative_in(equation.callee)
        if given_to is not None:
            given.update(functions_called(equation))
        if given_to is not None and given_to.signature.closed:
            closing.update(functions_called(equation))
    called: set[CodeType] = set()
    stack = [region.root for region in regions] if given else []
    while stack:
        inner = [item for item in stack.pop().items if type(item) is Call]
        called.update(call.callee.code for call in inner if call.callee is not None)
        stack += inner
    every: list[tuple[Region, Frame]] = []
    for region in regions if given else ():
        frames = [frames[0] for e in region.equations if (frames := provenance.site(e.origin).frames)]
        if region.function in given and len({frame.code for frame in frames}) == 1:
            every.append((region, frames[0]))
    several = Counter(f.code for _, f in every if not f.code.co_freevars)
    closed = {f.code for region, f in every if region.function in closing}
    for region, frame in every:
        if frame.code in called or frame.code in closed and several[frame.code] > 1:
            whole, root = Call((), frame), region.root
            whole.items, root.items = root.items, []
            root.items.append(whole)


def _place(node: ast.AST) -> tuple[Any, ...]:
    return tuple(getattr(node, a, None) for a in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def is_uneven(shape: Shape) -> bool:
    """Whether a variant splits an array into parts of different sizes: then the others write sizes as well."""
    return any(
        e.callee.name == "split" and len(set(e.origin.params["sizes"])) > 1
        for p in shape.variants
        for e in p.scan.equations[p.start : p.stop]
    )


def deep_functions(entry: Function) -> set[Function]:
    """The functions so deep inside rules that the rules of what they call are not captured any more: nothing there stands
    for the program's own."""
    found: set[Function] = set()
    for function in walk_functions(entry):  # callees first
        for equation in function.equations:
            rule = equation.callee if type(equation.callee) is CustomRule else None
            called = [rule.function] if rule is not None else functions_called(equation)
            if rule is not None and rule.is_deep or not found.isdisjoint(called):
                found.add(function)
                break
    return found


def is_captured(equation: Equation) -> bool:
    """Whether an equation is as it was captured, or one of those calls that are found before the functions are."""
    callee = equation.callee
    found_before = is_derivative(callee) or type(callee) is Library and callee.function is not None
    return found_before or isinstance(callee, Primitive)


def calls_around(scans: Sequence[Region]) -> dict[Piece, Piece]:
    """By call the one that it stands in."""
    found: dict[Piece, Piece] = {}
    stack = [i for scan in scans for i in scan.pieces if type(i) is Piece]
    while stack:
        piece = stack.pop()
        inner = [i for i in piece.items if type(i) is Piece]
        found.update((i, piece) for i in inner)
        stack.extend(inner)
    return found


def is_called_once(shape: Shape, results: Sequence[Value]) -> bool:
    """Whether one place in the text calls it, and needs each of its results once: bodies of mapped functions that say the
    same become one."""
    if len(set(results)) < len(results):
        return False
    frames = [p.call.frame for p in shape.pieces]
    scans = {p.scan for p in shape.pieces}
    if shape.uses == 1 or len(shape.variants) > 1 or len(scans) < len(frames) or None in frames:
        return shape.uses == 1
    return len(set(frames)) == 1  # one object for each place in the code


def names_a_transform(piece: Piece) -> bool:
    """Whether a call is the author's word for what he maps or differentiates: `def force(q): return -jax.grad(energy)(q)`."""
    own = [piece.scan.equations[i] for i in piece.items if type(i) is int]
    return not piece.call.callee.library and not piece.call.backward and any(map(is_transformed, own))


def only_call(piece: Piece) -> Piece | None:
    """The call that is all that a piece does."""
    only = piece.items[0] if len(piece.items) == 1 else None
    return only if type(only) is Piece else None


def taken_out_of_loops(shapes: Sequence[Shape], regions: Sequence[Region]) -> set[Shape]:
    """Shapes that are only what JAX takes out of a loop where it differentiates that: the part of a call in the loop that does
    not depend on its turns, and is not what the call does there."""
    every = [(shape, piece) for shape in shapes for piece in shape.pieces if not piece.call.backward]
    inside = {shape for shape, piece in every if piece.scan.around}
    sites = {(f, _site(piece.call)) for _, piece in every for f in piece.scan.around}
    bodies = {(f, jax_compat.function_name(region.function.jaxpr)) for region in regions for f in region.around}
    outside = [(shape, piece.scan.function, piece.call) for shape, piece in every if shape not in inside]
    return {s for s, f, call in outside if (f, _site(call)) in sites or (f, call.callee.name) in bodies}


def _site(call: Call) -> tuple[Any, ...]:
    """Where a call stands in the author's code, and what it calls."""
    frame = call.frame
    callee = call.callee
    assert callee is not None  # that is a function's own root
    return (id(callee.code), None if frame is None else (id(frame.code), frame.lasti))
