"""What the author's expressions of numbers and of lists of them are, and how they are said in words of the text.

Nothing of the author's is run for it: names are looked up in the module, and Python's arithmetic is done here.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

import numpy as np

from untrace.ir.said import Given, Number, Numbers, Rows
from untrace.lift.naming.scopes import NoNumber, Scope, assigned, replaced
from untrace.provenance.arguments import last_name, own_parameters

ARITHMETIC: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
LARGEST_POWER = 64
_MOST_LISTED = 128  # times that the elements of a list stand in it
_OF_MODULES = {"pi": math.pi, "e": math.e}
_MODULES = ("math", "numpy", "jax.numpy")
_FILLS = frozenset("zeros ones full full_like asarray array float32 float64".split())
_PYTHONS: Mapping[str, Callable[..., Number]] = {"max": max, "min": min, "abs": abs}
# Of one number, which give the same in `math` and in NumPy.
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "log", "sin", "cos")
}
NOTHING = (NoNumber, ArithmeticError, RecursionError)  # of two variables that are made of each other in a loop


def has_names(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) for n in ast.walk(node))


class Turn(NamedTuple):
    """What the variables of a loop are in one of its turns, in the function of so many frames, and those of loops inside of it,
    which stand in digits."""

    depth: int
    variables: Mapping[str, Numbers]
    fixed: Mapping[str, Numbers]


class Shapes(NamedTuple):
    """The shapes of the arrays that variables, or parts of them, are, in the function of so many frames, and what they are called
    in its text; of what is none there, None, as of a size that follows the inputs. `named`: gets the sizes that have names of the author's
    there, by these; None where such are to be said as what they are."""

    depth: int
    is_mapped: bool  # whether they may have an axis more than its author sees
    of: Callable[[str], tuple[Sequence[int | None], str] | None]
    named: dict[str, ast.expr] | None

    def is_of(self, written: ast.expr) -> bool:
        """Whether an expression is made of one of them."""
        return any(
            isinstance(n, ast.Attribute) and n.attr == "shape" or isinstance(n, ast.Name) and n.id in (self.named or ())
            for n in ast.walk(written)
        )


def root_of(node: ast.expr) -> str | None:
    """The variable that a part of it stands in: `params` of `params["kernel"]`; None of an expression that is no such way."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=whole) | ast.Subscript(value=whole, slice=ast.Constant()):
            return root_of(whole)
    return None


class NumberReader:
    """Computes expressions of numbers, and says them in words of the module, which go to `names`. `guess`: what the one part
    is taken for that is no number of the module; `guessed`: whether there is one. `turn`: that of a loop which all is of; `read`:
    the variables of it that were read. `fills`: whether an array of one number counts as that. `shapes`: by which sizes are said
    that nothing else says. `power`: the same as `guess` for the count of steps in `RATE**t`; `is_power_open`: whether there is one."""

    def __init__(
        self,
        names: dict[str, Given],
        guess: int | None = None,
        turn: Turn | None = None,
        fills: bool = False,
        shapes: Shapes | None = None,
        power: int | None = None,
        asked: frozenset[tuple[CodeType, str]] = frozenset(),
    ):
        self._asked = asked  # parameters of which it is asked what all calls give
        self.fills, self.shapes, self.power, self.is_power_open = fills, shapes, power, False
        self.names, self.guess, self.guessed, self.turn = names, guess, False, turn
        self.read: set[str] = set()
        self.passed = 0  # how often a number was read that this call passes and others do not

    def value(self, node: ast.expr, scope: Scope) -> tuple[Number, ast.expr]:
        """The value of an expression of numbers, none of them larger than a float. Raises NoNumber and ArithmeticError."""
        found, written = self._unbounded(node, scope)
        if not math.isfinite(float(found)):
            raise NoNumber
        return found, written

    def _unbounded(self, node: ast.expr, scope: Scope) -> tuple[Number, ast.expr]:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number, node
            case ast.Name(id=name) if scope.has_global(name):
                found = scope.values.get(name)
                if type(found) is int or type(found) is float:
                    self.names[name] = _given(name, found, scope)
                    return found, node
            case ast.Name(id=name):
                if self._varies(name, scope):
                    return self._one(self._of_turn(name, scope))
                if (number := scope.setting(name)) is not None:
                    return self._one(self._named(name, number, scope))
                try:
                    meaning = scope.meaning(name)
                except NoNumber:
                    return self._agreed(name, scope) or self._passed(name, scope)
                found, written, differs = self._differing(*meaning)
                made = meaning[1].returned(meaning[0])
                is_one = not differs and found not in (0, 1) and (made or isinstance(meaning[0], ast.Constant))
                if is_one and (word := scope.literal(name)) is not None:
                    given = None if made is None else Given(found, written, dict(self.names))
                    with contextlib.suppress(NoNumber):  # the module has another number by that name
                        return self._one(self._named(word, found, scope, given))
                named = None if self.shapes is None or not self.shapes.is_of(written) else self.shapes.named
                if named is not None and meaning[1] == scope:
                    named[name] = written
                    return found, ast.Name(name)
                return found, written
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if scope.has_global(name):
                if attribute in _OF_MODULES and scope.is_module(name, _MODULES):
                    return _OF_MODULES[attribute], ast.Attribute(ast.Name("math"), attribute)
                return self._one(self._of_settings(node, scope))
            case (
                ast.Attribute(value=ast.Name() | ast.Attribute() | ast.Subscript())
                | ast.Subscript(slice=ast.Constant(value=str()))
            ):
                if not isinstance(node, ast.Attribute) or node.attr not in ("size", "ndim"):
                    return self._one(self._of_settings(node, scope))
                return self._guessed()
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found, written = self.value(operand, scope)
                return -found, ast.UnaryOp(ast.USub(), written)
            case ast.BinOp(op=op) if type(op) in ARITHMETIC:
                left, one = self.value(node.left, scope)
                right, other = (
                    self._power(node.right, scope) if isinstance(op, ast.Pow) else self.value(node.right, scope)
                )
                if isinstance(op, ast.Pow) and (abs(right) > LARGEST_POWER or left < 0):
                    raise NoNumber
                return ARITHMETIC[type(op)](left, right), _operation(node, one, other)
            case ast.Subscript(value=ast.Attribute(value=array, attr="shape"), slice=index) if (
                root_of(array) is not None
            ):
                return self._size(array, index, scope)
            case ast.Attribute(attr="size" | "ndim") | ast.Subscript(value=ast.Attribute(attr="shape")):
                return self._guessed()
            case ast.Subscript(value=listed, slice=index):
                return self._one(self._element(listed, index, scope))
            case ast.Call(func=ast.Name(id="len"), args=args):
                if len(args) == 1 and isinstance(args[0], ast.Name):
                    with contextlib.suppress(NoNumber):
                        values, listed = self.elements(args[0], scope)
                        return len(values), ast.Call(node.func, [listed], [])
                    return self._size(args[0], ast.Constant(0), scope)
                return self._guessed()
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=called), args=[part], keywords=[]) if (
                called in _FUNCTIONS and scope.is_module(module, ("math", "numpy"))
            ):
                found, written = self.value(part, scope)
                function = ast.Attribute(ast.Name("python.math"), called)
                return _FUNCTIONS[called](found), ast.Call(function, [written], [])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=called), args=args) if (
                self.fills and called in _FILLS and scope.is_module(module, _MODULES)
            ):
                return self._filling(called, args, scope)
            case ast.Call(func=ast.Name(id="max" | "min" | "abs" as called), args=args, keywords=[]):
                found = [self.value(arg, scope) for arg in args]
                return _PYTHONS[called](*[value for value, _ in found]), ast.Call(node.func, [w for _, w in found], [])
            case ast.Call() if (made := scope.returned(node)) is not None:
                return self._returned(*made, scope)
        raise NoNumber

    def _returned(
        self, given: ast.expr, passed: Mapping[str, ast.expr], inside: Scope, scope: Scope
    ) -> tuple[Number, ast.expr]:
        """What a function of the module gives for what is passed: `math.exp(-DT / TAU)` for `decay(TAU)`."""
        found = {name: self._differing(part, scope) for name, part in passed.items()}
        if any(differs for _, _, differs in found.values()):
            raise NoNumber
        said = {name: written for name, (_, written, _) in found.items()}
        digits: dict[str, ast.expr] = {name: ast.Constant(value) for name, (value, _, _) in found.items()}
        try:
            return self.value(replaced(given, said), inside)
        except NoNumber:  # a word that the module does not have: `CONFIG_TAU`
            return self.value(replaced(given, digits), inside)

    def _differing(self, node: ast.expr, scope: Scope) -> tuple[Number, ast.expr, bool]:
        """What `value` gives, and whether it may be something else in another turn or call."""
        (before, self.read), passed = (self.read, set()), self.passed
        try:
            found, written = self.value(node, scope)
            return found, written, bool(self.read) or self.passed > passed
        finally:
            self.read |= before

    def _power(self, node: ast.expr, scope: Scope) -> tuple[Number, ast.expr]:
        """An exponent, of which only Python may know what it is: that of one of several steps."""
        try:
            return self.value(node, scope)
        except NOTHING:
            is_second, self.is_power_open = self.is_power_open, True
            if self.power is None or is_second:
                raise
            return self.power, ast.Constant(self.power)

    def _filling(self, called: str, args: Sequence[ast.expr], scope: Scope) -> tuple[Number, ast.expr]:
        """The number that all elements of an array are."""
        match called, args:
            case "zeros" | "ones", [_, *_]:
                return float(called == "ones"), ast.Constant(float(called == "ones"))
            case "full" | "full_like", [_, part, *_]:
                return self.value(part, scope)
            case "asarray" | "array" | "float32" | "float64", [part]:
                return self.value(part, scope)
        raise NoNumber

    def _of_settings(self, node: ast.Attribute | ast.Subscript, scope: Scope) -> tuple[Numbers, ast.expr]:
        """`CONFIG.rate` and `CONFIG["rate"]`, of an object that only holds values, as `CONFIG_RATE`; what a property gives."""
        given = scope.property_of(node) if isinstance(node, ast.Attribute) else None
        try:
            found, name = scope.held(node)
            made, plain = scope.made(node), _plain(found)
            said = None if made is None or plain is None else _given_as(made[0], plain, found, made[1])
            return self._named(name, found, scope, said)
        except NoNumber:
            if given is None or not isinstance(node, ast.Attribute):
                raise
        of: dict[str, Given] = {}
        # Of a config it is a number of its own: `CONFIG_DX = CONFIG_LENGTH / CONFIG_N`.
        with contextlib.suppress(*NOTHING):
            _, owner = scope.held(node.value)
            value, written = NumberReader(of).value(given, scope)
            return self._named(f"{owner}_{node.attr}", value, scope, Given(value, written, of))
        return self.value(given, scope)

    def _named(self, name: str, found: object, scope: Scope, given: Given | None = None) -> tuple[Numbers, ast.expr]:
        """A number, or a list of them, that has no name of the module, by one that is made for it."""
        name, plain = name.upper(), _plain(found)
        if plain is None or not name.isidentifier():
            raise NoNumber
        if name in scope.values:  # which may be what it was made of: `update = with_rate(RATE)`
            if type(scope.values[name]) is not type(found) or _plain(scope.values[name]) != plain:
                raise NoNumber
            given = _given(name, plain, scope)
        self.names[name] = given or Given(plain, _digits(found) if isinstance(plain, tuple) else None, {})
        return plain, ast.Name(name)

    def rows(self, node: ast.expr, scope: Scope, array: np.ndarray) -> Rows:
        """What a list of lists has for each element of an array."""
        if array.ndim:
            parts = self._elements(node, scope)
            if len(parts) != len(array):
                raise NoNumber
            return [self.rows(part, scope, row) for part, row in zip(parts, array, strict=True)]
        found, written = self.value(node, scope)
        with np.errstate(over="ignore"):
            if np.asarray(found).astype(array.dtype).tobytes() != array.tobytes():
                raise NoNumber
        return written

    def _elements(self, node: ast.expr, scope: Scope) -> Sequence[ast.expr]:
        """Those of a list, and of what lists are put together to: `[0.0] + [LEAST] * 2`."""
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return parts
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [*self._elements(left, scope), *self._elements(right, scope)]
            case ast.BinOp(left=ast.List() as left, op=ast.Mult(), right=times):
                count, _ = NumberReader({}).value(times, scope)
                if type(count) is int and count <= _MOST_LISTED:
                    return [*self._elements(left, scope)] * count
        raise NoNumber

    def _agreed(self, name: str, scope: Scope) -> tuple[Number, ast.expr] | None:
        """A parameter for which all calls give the same number of the module, each in its words: `epsilon`, `config.epsilon`."""
        asked = (scope.frames[-1].code, name) if scope.frames else None
        if asked is None or asked in self._asked:
            return None
        try:
            readers = [(NumberReader({}, asked=self._asked | {asked}), one) for one in scope.meanings(name)]
            found = [(reader.value(*one), reader.names) for reader, one in readers]
        except NOTHING:
            return None
        (first, names), *rest = found
        if not names or any(value != first[0] or ast.dump(said) != ast.dump(first[1]) for (value, said), _ in rest):
            return None
        self.names.update(names)
        return first

    def _passed(self, name: str, scope: Scope) -> tuple[Number, ast.expr]:
        """A parameter for which other calls give something else, in digits: `w * DT` of `cost(x, 0.1)` is `0.1 * DT`."""
        try:
            if not scope.frames or name not in own_parameters(scope.frames[-1]):
                raise NoNumber
            found, _ = NumberReader({}).value(scope.passed(name), scope.outwards(len(scope.frames) - 1))
            self.passed += 1
        except NOTHING:
            return self._guessed()
        return found, ast.Constant(found)

    def part(self, node: ast.expr, scope: Scope) -> tuple[Numbers, ast.expr]:
        """The same of a number or of a tuple of such. Raises NoNumber and ArithmeticError."""
        if isinstance(node, ast.Tuple | ast.List):
            return self.elements(node, scope)
        if isinstance(node, ast.Name) and not scope.has_global(node.id) and self._varies(node.id, scope):
            return self._of_turn(node.id, scope)
        if isinstance(node, ast.Subscript):
            with contextlib.suppress(NoNumber):
                return self.elements(node, scope)
        return self.value(node, scope)

    def elements(self, node: ast.expr, scope: Scope) -> tuple[tuple[Numbers, ...], ast.expr]:
        """The elements of a list of numbers, or of tuples of such. Raises NoNumber and ArithmeticError."""
        match node:
            case ast.Tuple() | ast.List() | ast.BinOp():
                found = [self.part(part, scope) for part in self._elements(node, scope)]
                written = [said for _, said in found]
                return tuple([value for value, _ in found]), ast.Tuple(written) if isinstance(
                    node, ast.Tuple
                ) else ast.List(written)
            case ast.Name(id=name) if scope.has_global(name):
                values = _plain(scope.values.get(name))
                if type(values) is tuple:
                    self.names[name] = _given(name, values, scope)
                    return values, node
            case ast.Name(id=name) if self._varies(name, scope):
                values, written = self._of_turn(name, scope)
                if type(values) is tuple:
                    return values, written
            case ast.Name(id=name):
                return self.elements(*scope.meaning(name))
            case ast.Attribute(value=ast.Name()) | ast.Subscript(value=ast.Name(), slice=ast.Constant(value=str())):
                values, written = self._of_settings(node, scope)
                if type(values) is tuple:
                    return values, written
            case ast.Subscript(value=whole, slice=ast.Slice() as part):
                values, written = self.elements(whole, scope)
                bounds = [None if b is None else self.value(b, scope) for b in (part.lower, part.upper, part.step)]
                numbers, said = zip(*[(None, None) if b is None else b for b in bounds], strict=True)
                return values[slice(*numbers)], ast.Subscript(written, ast.Slice(*said))
            case ast.Subscript(value=whole, slice=index):
                value, written = self._element(whole, index, scope)
                if type(value) is tuple:
                    return value, written
        raise NoNumber

    def _element(self, listed: ast.expr, index: ast.expr, scope: Scope) -> tuple[Numbers, ast.expr]:
        """An element of a list that has a name, or of an array. Raises NoNumber and ArithmeticError."""
        found, written = self.elements(listed, scope)
        places: list[ast.expr] = []
        if isinstance(written, ast.Tuple | ast.List):
            raise NoNumber
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            at, place = self.value(part, scope)
            if not isinstance(found, tuple) or type(at) is not int or not -len(found) <= at < len(found):
                raise NoNumber
            found = found[at]
            places.append(place)
        return found, ast.Subscript(written, ast.Tuple(places) if isinstance(index, ast.Tuple) else places[0])

    def _varies(self, name: str, scope: Scope) -> bool:
        """Whether it is a variable of a loop."""
        return scope.is_of_a_turn(name) or name in self._known(scope)

    def _known(self, scope: Scope) -> Mapping[str, Numbers]:
        of_turn = self.turn is not None and len(scope.frames) == self.turn.depth and not scope.is_around
        return {**self.turn.fixed, **self.turn.variables} if self.turn is not None and of_turn else {}

    def _of_turn(self, name: str, scope: Scope) -> tuple[Numbers, ast.expr]:
        found = self._known(scope).get(name)
        if found is None or self.turn is None:
            raise NoNumber
        self.read.add(name)
        return found, ast.Name(name) if name in self.turn.variables else _digits(found)

    @staticmethod
    def _one(read: tuple[Numbers, ast.expr]) -> tuple[Number, ast.expr]:
        found, written = read
        if isinstance(found, tuple):
            raise NoNumber
        return found, written

    def _size(self, array: ast.expr, index: ast.expr, scope: Scope) -> tuple[Number, ast.expr]:
        """`x.shape[-1]`, `state.x.shape[0]`, of an array that the text has."""
        is_there = self.shapes is not None and len(scope.frames) == self.shapes.depth and not scope.is_around
        if self.shapes is not None and is_there and not scope.has_global(root_of(array) or ""):
            name = ast.unparse(array)
            shape, word = self.shapes.of(name) or ((), name)
            with contextlib.suppress(ValueError):
                place = ast.literal_eval(index)
                is_within = type(place) is int and -len(shape) <= place < len(shape) * (not self.shapes.is_mapped)
                if is_within and (size := shape[place]) is not None:
                    at = ast.Constant(place % len(shape)) if isinstance(index, ast.Constant) else index
                    return size, ast.Subscript(ast.Attribute(ast.Name(word), "shape"), at)
        return self._guessed()

    def _guessed(self) -> tuple[Number, ast.expr]:
        is_second, self.guessed = self.guessed, True
        if self.guess is None or is_second:
            raise NoNumber
        return self.guess, ast.Constant(self.guess)


def _given(name: str, value: Numbers, scope: Scope) -> Given:
    made = assigned("".join(linecache.getlines(scope.file))).get(name)
    if isinstance(array := scope.values.get(name), np.ndarray):
        return Given(value, *_of_array(array, made, scope))
    return _given_as(made, value, scope.values[name], scope)


def _given_as(made: ast.expr | None, value: Numbers, found: object, scope: Scope) -> Given:
    """A number or a list of the module by the expression that it is given there, where that still has its value and says more."""
    of: dict[str, Given] = {}
    is_list = type(value) is tuple
    if made is not None and made.lineno < scope.before and (is_list or has_names(made)):
        reader = NumberReader(of)
        try:
            before = Scope(scope.values, scope.file, (), made.lineno)
            again, made = reader.elements(made, before) if is_list else reader.value(made, before)
        except NOTHING:
            again = None
        if repr(again) == repr(value):
            return Given(value, made, of)
    return Given(value, _digits(found) if is_list else None, {})


def _of_array(array: np.ndarray, made: ast.expr | None, scope: Scope) -> tuple[ast.expr, Mapping[str, Given]]:
    """An array of NumPy's by the list that its author makes it of, where it still has those numbers."""
    of: dict[str, Given] = {}
    written: ast.expr = _digits(array.tolist())
    if (
        isinstance(made, ast.Call)
        and made.args
        and last_name(made.func) in ("array", "asarray")
        and made.lineno < scope.before
    ):
        with contextlib.suppress(*NOTHING, ValueError):
            found, said = NumberReader(of).elements(made.args[0], Scope(scope.values, scope.file, (), made.lineno))
            if np.array(found, array.dtype).tobytes() == array.tobytes():
                written = said
    is_usual = np.array(array.tolist()).dtype == array.dtype
    dtype = [] if is_usual else [ast.keyword("dtype", ast.Attribute(ast.Name("np"), array.dtype.name))]
    return ast.Call(ast.Attribute(ast.Name("np"), "array"), [written], dtype), of


def _operation(node: ast.BinOp, left: ast.expr, right: ast.expr) -> ast.expr:
    """One of numbers; of an array of zeros or ones and a number what it gives."""
    neutral = "0.0" if isinstance(node.op, ast.Add) else "1.0" if isinstance(node.op, ast.Mult) else ""
    for before, written, other in ((node.left, left, right), (node.right, right, left)):
        if isinstance(before, ast.Call) and isinstance(written, ast.Constant) and ast.unparse(written) == neutral:
            return other
    return ast.BinOp(left, node.op, right)


def _digits(value: object) -> ast.expr:
    """A number, or a list or tuple of such, as Python writes it."""
    if isinstance(value, list | tuple):
        parts = [_digits(part) for part in value]
        return ast.Tuple(parts) if isinstance(value, tuple) else ast.List(parts)
    assert isinstance(value, int | float)
    return ast.Constant(value)


def _plain(value: object) -> Numbers | None:
    """A number, or a list or tuple of such, or of these, or an array of NumPy's; None for anything else."""
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "if" and value.size <= _MOST_LISTED:
        value = value.tolist()
    if isinstance(value, list | tuple) and type(value) in (list, tuple) and len(value) <= _MOST_LISTED:
        found = [plain for part in value if (plain := _plain(part)) is not None]
        return tuple(found) if len(found) == len(value) else None
    is_number = isinstance(value, int | float) and type(value) in (int, float) and math.isfinite(value)
    return value if is_number else None
