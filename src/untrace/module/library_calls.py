"""Calls of library functions as Python: `mean(x, axis=-1)`, `x @ w`, `x[..., 1:]`, `x.sum()`."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Library, Literal, Scan, Slot, Value
from untrace.ir.said import SaidNumber
from untrace.lift.naming.number_reader import Shapes
from untrace.lift.naming.numbers import said_number, said_numbers, says_rest
from untrace.lift.recognise.library import is_unpacked
from untrace.lift.recognise.patterns import Fixed
from untrace.module.constants import ConstantWriter
from untrace.module.interface.writing import Writer
from untrace.module.sizes import joined
from untrace.provenance.sites import Site, is_in_loop
from untrace.python.tree import (
    UNARY,
    Attribute,
    Binary,
    Call,
    Expr,
    Leaf,
    List,
    Name,
    Slice,
    Subscript,
    Text,
    Tuple,
    Unary,
)

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_OF_PYTHON = re.compile(r"-?[\d.]|(?:float|complex)\(|-?\w+\.(?:inf|nan)$")
_NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?")
_WORD = re.compile(r"\w+")
_UNARY = {"neg": "-", "invert": "~"}


def library_call(w: Writer, equation: Equation, operands: Sequence[Expr]) -> Expr:
    """The expression of an equation whose callee is a Library function of the target. Raises Unwritable."""
    operands = with_author_numbers(w, equation, operands)
    return spelled(w, callee_of(equation, Library).name, *arguments(w, equation, operands))


def arguments(w: Writer, equation: Equation, operands: Sequence[Expr]) -> tuple[list[Expr], list[tuple[str, Expr]]]:
    """What a Library function is called with, by place and by name."""
    callee = callee_of(equation, Library)
    given = callee.args
    if w.sizes is not None and callee.name == "method.reshape":
        given = [given[0], *_shape(w, equation, operands[0], given[1:])]
    if w.sizes is not None and type(given[0]) is Slot and callee.name.startswith(("operator.getitem", "at.")):
        given = [given[0], w.sizes.index(given[1], equation.inputs[given[0].index].aval.shape), *given[2:]]
    first = sum(type(a) is Slot for a in given[:1])
    args = [argument(w, a, operands, (n - first, len(given) - first)) for n, a in enumerate(given)]
    if w.sizes is not None and callee.name == "method.reshape":
        args = [args[0], *joined(args[1:])]
    kwargs: list[tuple[str, Expr]] = []
    if callee.kwargs:
        kwargs = [(k, argument(w, v, operands)) for k, v in callee.kwargs.items()]
        kwargs.sort(key=lambda pair: pair[0] != "axis")  # as everybody writes it
    return args, kwargs


def spelled(w: Writer, path: str, args: Sequence[Expr], kwargs: Sequence[tuple[str, Expr]]) -> Expr:
    """The expression of the function of a path (see `lift.recognise.library`) on these arguments."""
    kind, _, rest = path.partition(".")
    if kind == "operator":
        if rest == "getitem":
            return Subscript(args[0], _bare(args[1]))
        if rest in _UNARY:
            return Unary(_UNARY[rest], args[0])
        return Binary(args[0], _BINARY[rest], args[1])
    if kind == "attribute":
        return Attribute(args[0], rest)
    if kind == "item":
        place, _, path = rest.partition(".")
        return Subscript(spelled(w, path, args, kwargs), Text(place))
    if kind == "method" and _is_number(args[0]):  # Python's own numbers have no such methods
        w.module.modules.add(w.module.namespace)
        if rest == "astype" and args[1].flat() == f"{w.module.namespace}.float32" and "." in args[0].flat():
            return args[0]  # as the author passes it
        if rest in ("astype", "to"):
            return Call(f"{w.module.namespace}.asarray", args[:1], [("dtype", args[1]), *kwargs])
        return Call(f"{w.module.namespace}.{rest}", args, kwargs)
    if kind == "method":
        return Call(Attribute(args[0], rest), args[1:], kwargs)
    if is_unpacked(path):
        return args[0]
    w.module.modules.add(kind)
    return Call(path, args, kwargs)


def parts_of_all(equation: Equation, targets: Sequence[str]) -> tuple[Sequence[Value | None], list[str]]:
    """The outputs of an equation and what they are bound to; `_` for those parts of an array which no equation takes."""
    _, _, places = equation.callee.name.partition(".")
    if type(equation.callee) is not Library or not is_unpacked(equation.callee.name) or not places:
        return equation.outputs, list(targets)
    known = dict(zip(map(int, places.split(".")), zip(equation.outputs, targets, strict=True), strict=True))
    every = [known.get(place, (None, "_")) for place in range(equation.inputs[0].aval.shape[0])]
    return [output for output, _ in every], [target for _, target in every]


def _is_number(expr: Expr) -> bool:
    """Whether this is a number of Python's, which a caller passed for a value that is an array elsewhere."""
    return (
        _is_number(expr.value)
        if type(expr) is Unary
        else type(expr) is Text and _OF_PYTHON.match(expr.text) is not None
    )


def _bare(index: Expr) -> Expr:
    """`x[None]` for `x[None,]`."""
    if type(index) is Tuple and len(index.elements) == 1 and type(index.elements[0]) in (Text, Name):
        return index.elements[0]
    return index


def argument(w: Writer, value: object, operands: Sequence[Expr], place: tuple[int, int] = (0, 0)) -> Expr:
    """An argument of a call, in which operands stand in the place of slots. place: which it is of how many numbers."""
    if type(value) is Slot:
        return operands[value.index]
    if isinstance(value, Expr):
        return value
    if type(value) is Fixed:
        return w.module.numpy_constant(value.constant)
    if type(value) is tuple:
        shape = w.module.values.shape_of(value)
        if shape is None and w.sizes is not None:
            shape = w.sizes.shape(value)
        if shape is not None:
            return shape
        parts = [argument(w, v, operands, (n, len(value))) for n, v in enumerate(value)]
        return Tuple(parts if w.sizes is None else joined(parts))
    if type(value) is list:
        return List([argument(w, v, operands) for v in value])
    if type(value) is slice:
        parts = [None if v is None else argument(w, v, operands) for v in (value.start, value.stop, value.step)]
        return Slice(*parts)
    if type(value) is float:
        size = w.sizes.number(value) if w.sizes is not None and math.isfinite(value) else None
        if size is None:
            return author_number(w, w.equation, value) or number(w, value)
        return _size(w, w.equation, value, size)
    if type(value) is int and _is_rest(w.module, w.equation, place):
        return Text("-1", UNARY)
    if (
        type(value) is int
        and (said := author_number(w, w.equation, value, _times(w.equation, value), place)) is not None
    ):
        return said
    if value is Ellipsis:
        return Text("...")
    if isinstance(value, np.integer) and type(value) is not np.intp:  # of that type are NumPy's own sizes and axes
        return w.module.values.numpy_scalar(value)
    if isinstance(value, np.dtype):
        return Text("bool") if value == bool else w.module.values.dtype(value)  # noqa: E721
    found = w.source(value)
    return _size(w, w.equation, int(value), found) if type(value) is int else found


def _size(w: Writer, equation: Equation, value: float, found: Expr) -> Expr:
    """A number that follows sizes, for which there is an expression; by the author's, where that has fewer digits, or is the
    size of another array."""
    times = _times(equation, value) if type(value) is int else 1
    named = _with_names(w, equation, found, times)
    if not _numbers_in(named) and type(found) is not Subscript or type(found) is Text:  # which is no size
        return named
    made = _said(w, equation, value, times, is_any=True)
    if made is None:
        return named
    if type(found) is Subscript:
        return _in_words(w, *made) if _is_size(made[0][0]) else named
    sides = [side for n in ast.walk(made[0][0]) if isinstance(n, ast.BinOp) for side in (n.left, n.right)]
    is_shorter = sum(type(side) is ast.Constant for side in sides) < len(_numbers_in(named))
    return _in_words(w, *made) if is_shorter else named


def _is_size(node: ast.expr) -> bool:
    """Whether the author says `x.shape[0]` or `len(x)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len"
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def _shape(w: Writer, equation: Equation, operand: Expr, shape: Sequence[int]) -> Sequence[object]:
    """The shape that an array is given, with one -1: the author's, or where the text has no word for the others, of another size."""
    assert w.sizes is not None
    found = w.sizes.reshape(operand, tuple(equation.inputs[0].aval.shape), tuple(shape))
    rest = [i for i in range(len(shape)) if _is_rest(w.module, equation, (i, len(shape)))]
    left = [i for i, n in enumerate(found) if type(n) is int and n == -1]
    if not rest or not left or rest == left:
        return found
    size = shape[left[0]]
    if size not in w.sizes.variable or w.sizes.expression(size) is not None:
        return shape
    return [w.source(n) if i in rest else n for i, n in enumerate(found)]


def _is_rest(module: ConstantWriter, equation: Equation, place: tuple[int, int]) -> bool:
    """Whether a size is what is left, as the author says it."""
    is_shape = getattr(equation.callee, "name", "").endswith(".reshape") and equation.origin is not None
    return is_shape and says_rest(module.provenance.site(equation.origin), place)


def with_author_numbers(w: Writer, equation: Equation, operands: Sequence[Expr], called: str = "") -> Sequence[Expr]:
    """The operands of an equation, those that are numbers by their author's words. called: as for `author_number`."""
    found = list(operands)
    loop = equation.callee if type(equation.callee) is Scan else None
    consts, count = (0, len(found)) if loop is None else (loop.consts, loop.carries)
    for n, atom in enumerate(equation.inputs[: len(found)]):
        value = atom.value if type(atom) is Literal and _is_number(found[n]) else None
        if isinstance(value, int | float | np.number) and not isinstance(value, np.complexfloating):
            plain = int(value) if isinstance(value, int | np.integer) else float(value)
            place = (n - consts, count)
            found[n] = author_number(w, equation, plain, place=place, called=called) or found[n]
    return found


def _with_names(w: Writer, equation: Equation, expr: Expr, times: int = 1) -> Expr:
    """A number that an equation takes, so often, with the author's names for the numbers in it: `x.shape[0] * HEADS`."""
    numbers = Counter(_numbers_in(expr))
    site = None if equation.origin is None or not numbers else w.module.provenance.site(equation.origin)
    if site is None:
        return expr
    shapes, variables = _shapes(w, site)
    words = said_numbers(site, getattr(equation.callee, "name", ""), numbers, times, shapes)

    def named(part: Expr) -> Expr:
        if type(part) is Binary:
            return Binary(named(part.left), part.op, named(part.right))
        for value in _numbers_in(part):
            if value in words:
                name = _in_words(w, words[value], shapes, variables)
                return Unary("-", name) if part.flat().startswith("-") else name
        return part

    return named(expr) if words else expr


def _numbers_in(expr: Expr) -> list[str]:
    """The numbers in some arithmetic, without their signs, as Python has their digits."""
    if type(expr) is Binary:
        return [*_numbers_in(expr.left), *_numbers_in(expr.right)]
    digits = expr.flat().lstrip("-") if type(expr) is Text else ""
    return [repr(ast.literal_eval(digits))] if _NUMBER.fullmatch(digits) else []


def _times(equation: Equation, value: int) -> int:
    """How often a call is given an integer: `x.reshape(4, 2, 4)` of `x.reshape(length, 2, WIDTH)` has 4 twice."""
    callee = equation.callee
    return _count([*callee.args, *(callee.kwargs or {}).values()], value) if type(callee) is Library else 1


def _count(part: object, value: int) -> int:
    if type(part) is tuple or type(part) is list:
        return sum(_count(p, value) for p in part)
    return type(part) is int and part == value


def with_author_sizes(w: Writer, equation: Equation, called: str, given: Sequence[object]) -> Sequence[object]:
    """What a call is given, sizes and other integers by the author's words, where he has any."""

    def said(part: object) -> object:
        if type(part) is int:
            return author_number(w, equation, part, _count(given, part), called=called) or part
        if type(part) is not tuple:
            return part
        parts = [said(p) for p in part]
        found = [p if isinstance(p, Expr) else w.source(p) for p in parts]
        return Tuple(found) if any(isinstance(p, Expr) for p in parts) else part

    return [said(part) for part in given]


def author_number(
    w: Writer, equation: Equation, value: float, times: int = 1, place: tuple[int, int] = (0, 0), called: str = ""
) -> Expr | None:
    """A number that an equation takes, so often, by the author's words, `GRAVITY` or `DT / 2`; None where he has digits for it.
    place: which it is of how many that stand together. called: what the text calls, where the equation does not say that."""
    made = _said(w, equation, value, times, place, called)
    return None if made is None else _in_words(w, *made)


def _said(
    w: Writer,
    equation: Equation,
    value: float,
    times: int = 1,
    place: tuple[int, int] = (0, 0),
    called: str = "",
    is_any: bool = False,
) -> tuple[SaidNumber, Shapes | None, Mapping[str, Expr]] | None:
    """The same, before anything of it is written. is_any: whether sizes that follow the inputs may be read off variables."""
    site = None if equation.origin is None else w.module.provenance.site(equation.origin)
    avals = [a.aval for a in (*equation.inputs, *equation.outputs) if a is not None]
    if site is None:
        return None
    shapes, variables = _shapes(w, site, is_any)
    called = called or getattr(equation.callee, "name", "")
    said = said_number(site, called, avals, value, times, place, shapes)
    return None if said is None else (said, shapes, variables)


def _shapes(w: Writer, site: Site, is_any: bool = False) -> tuple[Shapes | None, Mapping[str, Expr]]:
    """The shapes of the author's variables, and of parts of them, that stand in the text by now; the mapping gets those that are
    asked for, by their text."""
    called: dict[str, Expr] = {}
    if w.sizes is None:
        return None, called
    following = () if is_any else w.sizes.variable

    def shape_of(name: str) -> tuple[Sequence[int | None], str] | None:
        known = w.sized if is_in_loop(site.frames[-1:]) else w.names  # what a turn made, the turn before has not
        *whole, last = _WORD.findall(name)  # a part of a tree may have come as a parameter of its own
        for array in reversed([*known]):
            variable = w.names.get(array)
            if type(variable) is Leaf:
                is_it = bool(whole) and variable.flat().replace('"', "'") == name
            else:
                is_it = type(variable) is Name and array.hint == last
            if is_it and variable is not None:
                word = variable.flat()
                called[word] = Name(word) if type(variable) is Name else variable
                return [None if n in following else n for n in getattr(array.aval, "shape", ())], word
        return None

    return Shapes(len(site.frames), "vmap()" in site.scopes, shape_of, None if is_any else {}), called


def _in_words(w: Writer, said: SaidNumber, shapes: Shapes | None, variables: Mapping[str, Expr]) -> Expr:
    """An expression of the author's; the names that he gives sizes get their statements, once."""
    written, numbers = said
    named: dict[str, Expr] = {}
    for name in dict.fromkeys(n.id for n in ast.walk(written) if isinstance(n, ast.Name)):
        made = None if shapes is None or name in numbers else (shapes.named or {}).get(name)
        if made is not None and w.sizes is not None:
            made = _in_words(w, (made, numbers), shapes, variables)
            named[name] = Name(w.sizes.bound(name, made).id)
    return w.module.said(written, numbers, {**variables, **named})


def number(w: Writer, value: float) -> Expr:
    """A Python float as a person writes it; infinities and NaN by their names in the target's `jnp`."""
    if math.isfinite(value):
        text = repr(value)
        if len(text) > 6 and text.endswith(".0"):
            digits, zeros = text[:-2].rstrip("0"), len(text[:-2]) - len(text[:-2].rstrip("0"))
            text = f"{digits}e{zeros}" if zeros > 3 else text
        return Text(text, UNARY if text.startswith("-") else 14)
    w.module.modules.add(w.module.namespace)
    name = w.module.namespace
    if value != value:
        return Text(f"{name}.nan")
    return Text(f"{name}.inf") if value > 0 else Text(f"-{name}.inf", UNARY)
