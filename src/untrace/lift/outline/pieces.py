"""What passes share that make local functions of calls: bodies that are equal, and the author's names around a call.

A Piece is one call with the equations of its body, one interval of its caller's. Pieces with equal bodies, up to the
names of their values, are one Shape, and share a function. Where a pass asks for it, so are pieces that differ in sizes
and in a few numbers and arrays only: each such variant has a function in the IR, and the printer writes one for all (`alike`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.evaluate import bound_again
from untrace.ir.nodes import Constant, Equation, Function, Library, Literal, Primitive, PullbackType, Value
from untrace.jaxprs.equal.comparer import Comparer
from untrace.lift.naming import words
from untrace.lift.outline.variants import alike_params
from untrace.provenance.frames import Frame
from untrace.provenance.sites import climbed

Way = tuple[Any, ...]
Equations = Sequence[Equation] | Mapping[int, Equation]  # by their places

_MOST_VARIANTS = 8  # of one Shape
_MOST_NUMBERS = 3  # pairs of numbers in which two variants may differ
_MOST_ARRAYS = 6  # the same of arrays that the function closes over, or that two calls pass

# What a call gives back as it came, while functions are outlined (`handed_fields`).
HANDED = jax.extend.core.Primitive("handed_on")


class Piece:
    """A call with what it reads and makes. Values made inside are numbered in order; `key` is equal for equal bodies,
    `outline` for those that may differ in sizes, numbers and arrays. `variant`: which of those of its Shape it is. `first`:
    what calls of one function share. `order`: the places of the inputs as they are read.
    """

    __slots__ = (
        "call", "items", "start", "stop", "inputs", "values", "numbers", "first", "key", "outline", "literals", "arrays",
        "shape", "variant", "order",
    )  # fmt: skip

    def __init__(self, call: Any):
        self.call = call
        self.items: list[Any] = []  # places of equations, and Pieces
        self.start = self.stop = 0  # the interval of equations
        self.inputs: list[Value | Constant] = []
        self.values: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.first: Sequence[Hashable] = ()
        self.key: Any = None
        self.outline: Any = None
        self.literals: list[Literal] = []
        self.arrays: list[Constant] = []
        self.shape: Any = None
        self.variant = 0
        self.order: list[int] = []

    def number(self, equations: Equations, first: Sequence[Hashable]) -> None:
        """Numbers what is read and made by `items`, and sets the key."""
        self._number(equations, first, None)

    def like(self, order: Sequence[int], equations: Equations) -> Piece | None:
        """This call with its inputs numbered as those of another of the same function, whose `order` is given: an array that
        it passes twice may be two inputs then. None where the inputs do not go so."""
        if len(order) != len(self.order):
            return None
        made = copy.copy(self)
        made.inputs, made.values, made.numbers, made.literals, made.arrays, made.order = [], [], {}, [], [], []
        return made if made._number(equations, self.first, order) else None

    def take(self, other: Piece) -> None:
        """Numbers what is read and made as in another of the same equations."""
        for slot in ("inputs", "values", "numbers", "literals", "arrays", "order", "key", "outline"):
            setattr(self, slot, getattr(other, slot))

    @property
    def is_distinct(self) -> bool:
        """Whether it passes nothing twice."""
        return len(set(self.inputs)) == len(self.inputs)

    def _number(self, equations: Equations, first: Sequence[Hashable], order: Sequence[int] | None) -> bool:
        """Whether inputs go in this order, where one is given."""
        numbers, values, inputs = self.numbers, self.values, self.inputs
        self.first, fits = first, True
        places: dict[Value | Constant, int] = {}
        keys: list[Any] = list(first)
        outline: list[Any] = list(first)

        def reference(atom: Any) -> Any:
            kind = type(atom)
            if kind is Value or kind is Constant and _may_be_passed(atom):
                number = numbers.get(atom)
                if number is not None:
                    return number
                place = places.get(atom, len(inputs)) if order is None else order[min(len(self.order), len(order) - 1)]
                self.order.append(place)
                if place == len(inputs):
                    places[atom] = place
                    inputs.append(atom)
                nonlocal fits
                fits = fits and place < len(inputs) and inputs[place] is atom
                return -1 - place
            if kind is Literal:
                self.literals.append(atom)
                return number_key(atom.value), atom.aval.dtype, getattr(atom.aval, "weak_type", None)
            self.arrays.append(atom)
            return atom, _rough(_type_key(atom.aval))

        def references(atoms: Sequence[Any]) -> tuple[Any, Any]:
            exact = tuple([reference(a) for a in atoms])
            return exact, tuple([r[1:] if type(r) is tuple else r for r in exact])

        def make(value: Value) -> None:
            numbers[value] = len(values)
            values.append(value)

        for item in self.items:
            if isinstance(item, Piece):
                exact, rough = references(item.passed())
                keys.append((item.shape, item.variant, exact))
                outline.append((item.shape, rough))
                for value in item.values:
                    make(value)
                continue
            equation = equations[item]
            outs = tuple([None if o is None else _type_key(o.aval) for o in equation.outputs])
            exact, rough = references(equation.inputs)
            callee = callee_key(equation.callee)
            keys.append((callee, exact, outs))
            outline.append((callee, rough, tuple([_rough(o) for o in outs])))
            for output in equation.outputs:
                if output is not None:
                    make(output)
        types = [_type_key(a.aval) for a in inputs]
        self.key = (tuple(keys), tuple(types))
        self.outline = (tuple(outline), tuple([_rough(t) for t in types]))
        return fits

    def passed(self) -> Sequence[Value | Constant]:
        """What the caller passes for `inputs`."""
        return self.inputs

    def maker(self, equations: Sequence[Equation], value: Value) -> Equation | None:
        """The equation of the body that makes `value`."""
        return next((e for e in reversed(equations[self.start : self.stop]) if value in e.outputs), None)


class Shape:
    """Pieces with equal bodies: one function, if it is to be one. `results`: numbers of the values that it gives back;
    `plain`: those of them that are no residuals, known when the function is called first.

    `variants`: the first piece of each that differs in sizes. `functions`: theirs.
    """

    __slots__ = ("pieces", "kept", "results", "plain", "variants", "functions")

    def __init__(self, piece: Piece):
        self.pieces: list[Any] = [piece]
        self.kept = True
        self.results: list[int] = []
        self.plain: frozenset[int] | None = None
        self.variants: list[Any] = [piece]
        self.functions: dict[int, Function] = {}

    @property
    def function(self) -> Function | None:
        """The function of a Shape without variants."""
        return self.functions.get(0)

    @function.setter
    def function(self, function: Function) -> None:
        self.functions[0] = function


class Shapes:
    """The Shapes of one program, by the keys of their pieces. `make`: a Shape from its first Piece. `rough`: whether
    pieces that differ in sizes have one Shape.

    `wider`: calls that pass different arrays where an earlier call of the function passes one twice. `known`: those of
    another run, whose inputs the earlier calls are numbered as.
    """

    def __init__(self, make: Callable[[Any], Any], rough: bool = False, known: Sequence[Any] = ()):
        self._make = make
        self._rough = rough
        self._buckets: dict[Any, list[Any]] = {}
        self._of_code: dict[Any, list[Any]] = {}
        self._comparer = Comparer()
        self.wider: list[Any] = []
        self._known = known

    def add(self, piece: Any, equations: Callable[[Any], Sequence[Equation]]) -> None:
        """Gives a piece its Shape. `equations`: the list that a piece's places count in."""
        for wide in self._known:
            made = piece.like(wide.order, equations(piece)) if wide.first == piece.first else None
            if made is not None:
                piece.take(made)
                break
        if self._joins(piece, equations):
            return
        for first in [v for shape in self._of_code.get(tuple(piece.first), ()) for v in shape.variants]:
            if len(first.inputs) > len(piece.inputs):
                before, made = copy.copy(piece), piece.like(first.order, equations(piece))
                if made is not None and made.key == first.key:
                    piece.take(made)
                    if self._joins(piece, equations):
                        return
                    piece.take(before)
            elif len(first.inputs) < len(piece.inputs):
                made = first.like(piece.order, equations(first))
                if made is not None and made.key == piece.key:
                    self.wider.append(piece)
        bucket = self._buckets.setdefault(piece.outline if self._rough else piece.key, [])
        for shape in bucket if self._rough else ():
            first = shape.pieces[0]
            if len(shape.variants) < _MOST_VARIANTS and self._alike(first, piece, equations(first), equations(piece)):
                piece.shape, piece.variant = shape, len(shape.variants)
                shape.pieces.append(piece)
                shape.variants.append(piece)
                return
        piece.shape = self._make(piece)
        bucket.append(piece.shape)
        self._of_code.setdefault(tuple(piece.first), []).append(piece.shape)

    def _joins(self, piece: Any, equations: Callable[[Any], Sequence[Equation]]) -> bool:
        """Whether a piece does the same as one of another Shape, which is its own then."""
        for shape in self._buckets.get(piece.outline if self._rough else piece.key, ()):
            for number, first in enumerate(shape.variants):
                if len(_differing(first, piece)) > _MOST_ARRAYS:
                    continue
                if same_bodies(self._comparer, first, piece, equations(first), equations(piece)):
                    shape.pieces.append(piece)
                    piece.shape, piece.variant = shape, number
                    if piece.is_distinct and not first.is_distinct:
                        shape.variants[number] = piece
                    return True
        return False

    def close_over(self) -> None:
        """Takes arrays that are the same at all calls of a function out of what these pass."""
        for shape in self.every():
            first = shape.pieces[0].inputs
            arrays = {i for i, a in enumerate(first) if type(a) is Constant}
            same = {i for i in arrays if all(_is_same_array(first[i], p.inputs[i]) for p in shape.pieces)}
            for piece in shape.pieces if same else ():
                piece.inputs = [a for i, a in enumerate(piece.inputs) if i not in same]

    def every(self) -> list[Any]:
        return [shape for bucket in self._buckets.values() for shape in bucket]

    @property
    def is_distinct(self) -> bool:
        """Whether each function is made of a call that passes nothing twice."""
        return all(first.is_distinct for shape in self.every() for first in shape.variants)

    def _alike(self, left: Piece, right: Piece, ours: Sequence[Equation], theirs: Sequence[Equation]) -> bool:
        """Whether two pieces with one outline differ in sizes and a few numbers only."""
        pairs = zip(left.literals, right.literals, strict=True)
        numbers = {(repr(a.value), repr(b.value)) for a, b in pairs if a.value != b.value}
        arrays = {(id(a), id(b)) for a, b in zip(left.arrays, right.arrays, strict=True) if a is not b}
        if len(numbers) > _MOST_NUMBERS or len(arrays) + len(_differing(left, right)) > _MOST_ARRAYS:
            return False
        for a, b in zip(left.items, right.items, strict=True):
            if type(a) is int and not alike_params(self._comparer, ours[a].origin, theirs[b].origin):
                return False
        return True


def _differing(left: Piece, right: Piece) -> set[tuple[int, int]]:
    """The arrays in which what two calls pass differs, each pair once."""
    pairs = zip(left.inputs, right.inputs, strict=True)
    return {(id(a), id(b)) for a, b in pairs if Constant in (type(a), type(b)) and not _is_same_array(a, b)}


def same_bodies(comparer: Comparer, left: Piece, right: Piece, ours: Equations, theirs: Equations) -> bool:
    """Whether two pieces that are numbered do the same with their inputs. ours, theirs: what their places count in."""
    if left.key != right.key:
        return False
    for a, b in zip(left.items, right.items, strict=True):
        if type(a) is int:
            one, other = ours[a].origin, theirs[b].origin
            if one is not other and one.params and comparer.differing_param(one, other) is not None:
                return False
    return True


def by_way(numbers: Sequence[int], ways: Sequence[Way | None]) -> list[int] | None:
    """Results in the order in which the author returns them, the leaves of a tree as they are; None where that is known of
    none. Those of which it is not known are in the places that are left."""
    orders = [None if way is None else _order_of(way) for way in ways]
    taken = {order[0] for order in orders if order}
    if None in orders and (not taken or () in orders):
        return None
    left = (place for place in itertools.count() if place not in taken)
    places = [(next(left),) if order is None else order for order in orders]
    return [n for _, n in sorted(zip(places, numbers, strict=True), key=lambda pair: pair[0])]


def _order_of(way: Way) -> tuple[int, ...] | None:
    """What tells which of two parts of a result comes first: indices, and places among the arguments of a class."""
    steps = [int(s[1:]) if isinstance(s, str) and s[:1] == "." and s[1:].isdecimal() else s for s in way]
    found = [s for s in steps if type(s) is int]
    return tuple(found) if len(found) == len(steps) else None


# ---------------------------------------------------------------- the author's names


def returned(frames: Sequence[Frame], way: Way = ()) -> Way | None:
    """Where in what the first frame's function returns a part of the value of the last frame stands; None where it does not.

    way: where the part stands in that value.
    """
    for frame in reversed(frames):
        climb = climbed(frame, way)
        if not climb.returned:
            return None
        way = climb.path
    return way if frames else None


def name_inside(frames: Sequence[Frame], otherwise: str | None, way: Way = ()) -> str | None:
    """What the first frame's function itself calls a value that it gives back: not the name that it has outside. way: as above."""
    for frame in reversed(frames):
        climb = climbed(frame, way)
        strong = [t for t in climb.targets if t.strong and not t.path and t.name.strip("_")]
        if strong:
            return words.clean(strong[0].name)
        if not climb.returned:
            return otherwise
        way = climb.path
    return None


def name_in_caller(frame: Frame | None, way: Way | None) -> tuple[str, bool] | None:
    """What the caller's frame calls a part of what a call gives back, and whether in a statement of its own."""
    if way is None or frame is None:
        return None
    strong = [t for t in climbed(frame, way).targets if t.strong and not t.path and t.name.strip("_")]
    return (words.clean(strong[0].name), strong[0].kind == "assign") if strong else None


def name_of_whole(frame: Frame | None, way: Way | None) -> str | None:
    """What the caller's frame calls the tree of which a part of what a call gives back is a leaf."""
    if way is None or frame is None:
        return None
    found = [t.name for t in climbed(frame, way).targets if t.kind == "container" and t.name.strip("_")]
    return words.clean(found[0]) if found else None


# ---------------------------------------------------------------- equations


def is_read(equations: Sequence[Equation], value: Value) -> bool:
    """Whether some of the equations read a value."""
    return any(value in equation.inputs for equation in equations)


def is_handed(equation: Equation) -> bool:
    """Whether an equation stands for what a call gives back as it came (`handed_fields`)."""
    return type(equation.callee) is Primitive and equation.callee.object is HANDED


def renamed(equation: Equation, known: Mapping[Any, Any]) -> Equation:
    """The equation with `known` values replaced; the very same object where it has none."""
    if not known or not any(a in known for a in equation.inputs) and not any(o in known for o in equation.outputs):
        return equation
    inputs = [known.get(a, a) for a in equation.inputs]
    outputs = [known.get(o, o) for o in equation.outputs]
    return Equation(equation.callee, inputs, outputs, equation.params, equation.origin)


def _rough(key: Any) -> Any:
    """A type without its sizes, and whether it is weak."""
    if type(key) is not tuple:
        return key
    if type(key[0]) is str:
        return key[0], tuple([_rough(k) for k in key[1]])
    return len(key[0]), key[1]


def callee_key(callee: Any) -> Any:
    """Equal for equal callees; what a library's call does is told by the equation that it was, and the function that it is
    called with."""
    if type(callee) is not Library:
        return callee.object
    function = callee.function
    if function is None:
        return callee.name
    avals = [jax_compat.plain_aval(p.aval) for p in function.params]
    return callee.name, repr(callee.kwargs), str(jax_compat.trace_on_avals(partial(bound_again, function), avals))


def _may_be_passed(constant: Constant) -> bool:
    """Whether an array may be an argument of a function: an index has to be known as it is, as NumPy's."""
    dtype = getattr(constant.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "fc" and not jax_compat.is_ref(constant.value)


def _is_same_array(left: Any, right: Any) -> bool:
    """Whether two of a call's inputs are one array, or two with the same bits."""
    if left is right or type(left) is not Constant or type(right) is not Constant:
        return left is right
    if any(jax_compat.is_tracer(one.value) for one in (left, right)) or _type_key(left.aval) != _type_key(right.aval):
        return False
    return np.asarray(left.value).tobytes() == np.asarray(right.value).tobytes()


def number_key(value: Any) -> Any:
    """Equal for literals that are written alike: NaN is NaN, and the zeros differ. (Their `repr` takes a hundred times as
    long where they are arrays.)"""
    array = np.asarray(value)
    return repr(value) if array.dtype.kind == "O" else (type(value), array.shape, array.tobytes())


def _type_key(aval: Any) -> Any:
    if type(aval) is PullbackType:
        return aval.path, tuple([_type_key(a) for a in aval.parts])
    shape = getattr(aval, "shape", None)
    return (shape, aval.dtype, getattr(aval, "weak_type", None)) if shape is not None else type(aval).__name__
