"""The author's words for numbers: `GRAVITY` for 9.81 and `DT / 2` for 0.005, where an operand of the expression behind an
equation is made of numbers and of numbers of its module, and its value is the one that the equation takes. Those that an
object of the module holds (`CONFIG.rate`) are called after both (`CONFIG_RATE`).

Nothing of the author's is run for it: names are looked up in the module, and Python's arithmetic is done here.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from untrace.ir.said import Given, Number, Numbers, Rows, SaidArray, SaidNumber
from untrace.lift.naming.scopes import NoNumber, Scope, assigned
from untrace.provenance.arguments import arguments_by_parameter, last_name, own_parameters
from untrace.provenance.sites import Frame, Site

ARITHMETIC: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_LARGEST_POWER = 64
_MOST_LISTED = 128  # times that the elements of a list stand in it
_LARGEST = 6  # names and numbers in an expression, beyond which digits say more
_OF_MODULES = {"pi": math.pi, "e": math.e}
_MODULES = ("math", "numpy", "jax.numpy")
_FILLS = frozenset("zeros ones full full_like asarray array float32 float64".split())
_PYTHONS: Mapping[str, Callable[..., Number]] = {"max": max, "min": min, "abs": abs}
# Of one number, which give the same in `math` and in NumPy.
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "log", "sin", "cos")
}


NOTHING = (NoNumber, ArithmeticError, RecursionError)  # of two variables that are made of each other in a loop


def said_number(
    site: Site, called: str, avals: Sequence[object], value: float, times: int = 1, place: tuple[int, int] = (0, 0)
) -> SaidNumber | None:
    """The author's expression for a number that an equation takes, and the numbers of the module that are in it; None
    where there is no such operand, fewer than the `times` that the equation takes it, or it has digits only.

    called: the name of what the equation calls. avals: the types of what it takes and gives. place: where several operands
    have this value, which of how many that stand together it is.
    """
    frame = site.frames[-1] if site.frames else None
    node = frame.node if frame is not None else None
    if frame is None or node is None or not math.isfinite(value):
        return None
    parts = _operands(node, called)
    dtype = next((t for t in map(_dtype, avals) if t is not None), np.dtype(float))
    scope = Scope.of(site.frames)
    lengths = {n for aval in avals for n in getattr(aval, "shape", ())}
    equal: dict[str, list[tuple[ast.expr, Mapping[str, Given]]]] = {}
    for part in parts:
        names: dict[str, Given] = {}
        written = _that_is(value, dtype, part, scope, names, sorted(n for n in lengths if type(n) is int and n > 1))
        if written is not None:
            equal.setdefault(ast.dump(part), []).append((written, names))
    if not equal:
        made = [said for part in parts if (said := _multiple(value, dtype, part, scope)) is not None]
        return made[0] if len(made) == 1 else None
    if len(equal) > 1:  # of `jnp.clip(x, LOW, HIGH)` with equal numbers it tells nobody which one this is
        part = _at_place(node, *place)
        equal, times = {"": equal[ast.dump(part)]} if part is not None and ast.dump(part) in equal else {}, 1
    only = next(iter(equal.values()), ())
    return only[0] if only and _has_names(only[0][0]) and len(only) >= times else None


def _multiple(value: float, dtype: np.dtype, part: ast.expr, scope: Scope) -> SaidNumber | None:
    """A number of the module times one that Python computed of sizes, in digits: `RATE * 1.4142135`."""
    match part:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for known, other in ((left, right), (right, left)):
                names: dict[str, Given] = {}
                try:
                    number, written = NumberReader(names).value(known, scope)
                    factor = value / number
                except NOTHING:
                    continue
                if not names or not _is_of_sizes(other, scope):
                    continue
                for digits in range(1, 18):
                    short = float(f"{factor:.{digits}g}")
                    if np.asarray(number * short, dtype) == np.asarray(value, dtype):
                        return (written if short == 1.0 else ast.BinOp(written, ast.Mult(), ast.Constant(short))), names
    return None


def _is_of_sizes(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is made of sizes of arrays and of numbers, by Python."""
    match node:
        case ast.Constant(value=int() | float()) | ast.Attribute(attr="size" | "ndim"):
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape")) | ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Name(id=name) if not scope.has_global(name):
            try:
                meaning, where = scope.meaning(name)
            except NoNumber:
                return False
            return meaning is not node and _is_of_sizes(meaning, where)
        case ast.UnaryOp(operand=operand):
            return _is_of_sizes(operand, scope)
        case ast.BinOp(left=left, right=right):
            return _is_of_sizes(left, scope) and _is_of_sizes(right, scope)
        case ast.Call(func=ast.Name(id="max" | "min" | "abs" | "float" | "int"), args=args):
            return all(_is_of_sizes(arg, scope) for arg in args)
        case ast.Call(func=ast.Attribute(attr="sqrt" | "log" | "exp"), args=[arg]):
            return _is_of_sizes(arg, scope)
    return False


def says_rest(site: Site, place: tuple[int, int]) -> bool:
    """Whether the author has -1, for what is left, at this place of a shape."""
    node = site.frames[-1].node if site.frames else None
    part = None if node is None else _at_place(node, *place)
    return isinstance(part, ast.UnaryOp) and ast.unparse(part) == "-1"


def _at_place(node: ast.AST, place: int, count: int) -> ast.expr | None:
    """The argument of a call, or the element of a tuple that is one, at a place of so many; None where that is not clear."""
    args = node.args if isinstance(node, ast.Call) else []
    rows = [row for row in (args, *[a.elts for a in args if isinstance(a, ast.Tuple)]) if len(row) == count]
    return rows[0][place] if len(rows) == 1 and place >= 0 else None


def _parts(node: ast.expr) -> Sequence[ast.expr]:
    """The elements of tuples and lists in each other; a node that is none by itself."""
    return [p for e in node.elts for p in _parts(e)] if isinstance(node, ast.Tuple | ast.List) else (node,)


def said_numbers(site: Site, called: str, numbers: Counter[str], times: int) -> Mapping[str, SaidNumber]:
    """The author's names for numbers (by their digits) that are, with sizes, the arithmetic of one thing that an equation takes: SWEEPS for the
    6 of `x / (SWEEPS * x.size)`. Nothing where he has others there, in another number, or two names for one, or them in fewer
    things than the `times` that the equation takes such a one."""
    frame = site.frames[-1] if site.frames else None
    if frame is None or frame.node is None:
        return {}
    scope = Scope.of(site.frames)
    found: dict[str, Mapping[str, SaidNumber]] = {}
    count = 0
    for part in _operands(frame.node, called):
        words: dict[str, dict[str, SaidNumber | None]] = {}
        if _numbers_in(part, scope, words) == numbers:
            count += 1
            alone = {value: said for value, (said, *more) in ((v, w.values()) for v, w in words.items()) if not more}
            named = {value: said for value, said in alone.items() if said is not None}
            found[repr({value: ast.dump(written) for value, (written, _) in named.items()})] = named
    return next(iter(found.values())) if len(found) == 1 and count >= times else {}


def _numbers_in(part: ast.expr, scope: Scope, words: dict[str, dict[str, SaidNumber | None]]) -> Counter[str]:
    """The digits of the numbers in some arithmetic, but for those of shapes; `words` gets what stands for each."""
    match part:
        case ast.BinOp(left=left, right=right):
            return _numbers_in(left, scope, words) + _numbers_in(right, scope, words)
        case ast.UnaryOp(operand=operand):
            return _numbers_in(operand, scope, words)
        case ast.Constant(value=int() | float() as value) if type(value) is not bool:
            words.setdefault(repr(value), {})[""] = None
            return Counter([repr(value)])
        case ast.Name(id=name) if not scope.has_global(name) and scope.is_of_a_turn(name):
            return Counter([name])
        case ast.Name() | ast.Attribute() | ast.Subscript():
            names: dict[str, Given] = {}
            try:
                value, written = NumberReader(names).value(part, scope)
            except NOTHING:
                return Counter()
            words.setdefault(repr(value), {})[ast.dump(written)] = (written, names) if names else None
            return Counter([repr(value)])
    return Counter()


def said_argument(caller: Frame, callee: Frame, name: str, value: Number) -> SaidNumber | None:
    """The same of a number that a call in `caller` passes for a parameter."""
    call = caller.node
    given = arguments_by_parameter(call, callee).get(name) if isinstance(call, ast.Call) else None
    if given is None:
        return None
    names: dict[str, Given] = {}
    try:
        found, written = NumberReader(names).value(given, Scope.of((caller,)))
    except NOTHING:
        return None
    return (written, names) if names and type(found) is type(value) and found == value else None


def said_array(node: ast.expr, frames: tuple[Frame, ...], array: np.ndarray) -> SaidArray | None:
    """The author's expressions for the numbers of an array, row by row, and the numbers of the module that are in them:
    where it is made of a list of such (`jnp.array([[1.0, DT], [0.0, 1.0]])`), there or where its name is given its value."""
    names: dict[str, Given] = {}
    try:
        made, scope = _made_of_a_list(node, Scope.of(frames))
        rows = NumberReader(names).rows(made, scope, array)
    except NOTHING:
        return None
    return (rows, names) if names else None


def _made_of_a_list(node: ast.expr, scope: Scope) -> tuple[ast.expr, Scope]:
    if isinstance(node, ast.Name) and scope.has_global(node.id):
        made = assigned("".join(linecache.getlines(scope.file))).get(node.id)
        if made is None:
            raise NoNumber
        node, scope = made, Scope(scope.values, scope.file, (), made.lineno)
    elif isinstance(node, ast.Name):
        node, scope = scope.meaning(node.id)
    if isinstance(node, ast.Call) and node.args and last_name(node.func) in ("array", "asarray"):
        return node.args[0], scope
    raise NoNumber


def _has_names(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) for n in ast.walk(node))


def _dtype(aval: object) -> np.dtype | None:
    dtype = getattr(aval, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.floating) else None


def _operands(node: ast.AST, called: str) -> Sequence[ast.expr]:
    """The operands of an operation, or of a call of the very function that the equation calls: one that is made of
    others has numbers of its own inside."""
    match node:
        case ast.BinOp():
            return node.left, node.right
        case ast.AugAssign():
            return (node.value,)
        case ast.Compare():
            return node.left, *node.comparators
        case ast.Subscript(slice=index) if called == "operator.getitem":
            return _of_index(index)
        case ast.Call(func=ast.Attribute(value=ast.Subscript(slice=index), attr=name)) if called == f"at.{name}":
            return *node.args, *_of_index(index)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _names_of(called):
            return [part for arg in (*node.args, *[k.value for k in node.keywords]) for part in _parts(arg)]
        case ast.Call() if called == "jnp.full":  # of `jnp.concatenate([jnp.full(1, LEAST), x])`
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and last_name(n.func) in _names_of(called)]
            return _operands(calls[0], called) if len({ast.dump(call) for call in calls}) == 1 else ()
    return ()


def _of_index(index: ast.expr) -> Sequence[ast.expr]:
    parts = index.elts if isinstance(index, ast.Tuple) else (index,)
    slices = [(p.lower, p.upper, p.step) if isinstance(p, ast.Slice) else (p,) for p in parts]
    return [part for bounds in slices for part in bounds if part is not None]


def _names_of(called: str) -> tuple[str, ...]:
    """What the author may call the function that an equation calls: a loop that counts is a scan."""
    alike = {
        "scan": ("scan", "fori_loop"),
        "while": ("while_loop", "fori_loop"),
        "jnp.full": ("full", "full_like"),
        "lax.dynamic_slice_in_dim": ("dynamic_slice_in_dim", "dynamic_slice"),
    }
    return alike.get(called, (called.rpartition(".")[2],))


def _that_is(
    value: float, dtype: np.dtype, part: ast.expr, scope: Scope, names: dict[str, Given], lengths: Sequence[int]
) -> ast.expr | None:
    """An expression of the author's in words of the module, where it has a value; None where it has not. `lengths`: those of
    the arrays around it, of which one may stand for what is no number of the module (`SMOOTHING / x.shape[-1]`)."""
    found: list[tuple[ast.expr, dict[str, Given]]] = []
    for length in (None, *lengths):
        of: dict[str, Given] = {}
        reader = NumberReader(of, length, fills=True)
        try:
            number, written = reader.value(part, scope)
        except NOTHING:
            continue
        with np.errstate(over="ignore"):
            if np.asarray(number, dtype) == np.asarray(value, dtype) and (of or length is None):
                found.append((written, of))
        if not reader.guessed:
            break
    if len(found) != 1 or sum(isinstance(n, ast.Name | ast.Constant) for n in ast.walk(found[0][0])) > _LARGEST:
        return None
    names.update(found[0][1])
    return found[0][0]


class Turn(NamedTuple):
    """What the variables of a loop are in one of its turns, in the function of so many frames, and those of loops inside of it,
    which stand in digits."""

    depth: int
    variables: Mapping[str, Numbers]
    fixed: Mapping[str, Numbers]


class NumberReader:
    """Computes expressions of numbers, and says them in words of the module, which go to `names`. `guess`: what the one part
    is taken for that is no number of the module; `guessed`: whether there is one. `turn`: that of a loop which all is of; `read`:
    the variables of it that were read. `fills`: whether an array of one number counts as that."""

    def __init__(
        self, names: dict[str, Given], guess: int | None = None, turn: Turn | None = None, fills: bool = False
    ):
        self.fills = fills
        self.names, self.guess, self.guessed, self.turn = names, guess, False, turn
        self.read: set[str] = set()

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
                    return self._passed(name, scope)
                return self.value(*meaning)
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
                (left, one), (right, other) = self.value(node.left, scope), self.value(node.right, scope)
                if isinstance(op, ast.Pow) and (abs(right) > _LARGEST_POWER or left < 0):
                    raise NoNumber
                return ARITHMETIC[type(op)](left, right), _operation(node, one, other)
            case ast.Attribute(attr="size" | "ndim") | ast.Subscript(value=ast.Attribute(attr="shape")):
                return self._guessed()
            case ast.Subscript(value=listed, slice=index):
                return self._one(self._element(listed, index, scope))
            case ast.Call(func=ast.Name(id="len"), args=args):
                if len(args) == 1 and isinstance(args[0], ast.Name):
                    with contextlib.suppress(NoNumber):
                        values, listed = self.elements(args[0], scope)
                        return len(values), ast.Call(node.func, [listed], [])
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
        raise NoNumber

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
        """`CONFIG.rate` and `CONFIG["rate"]`, of an object that only holds values, as `CONFIG_RATE`."""
        found, name = scope.held(node)
        made, plain = scope.made(node), _plain(found)
        return self._named(
            name, found, scope, None if made is None or plain is None else _given_as(made[0], plain, found, made[1])
        )

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

    def _passed(self, name: str, scope: Scope) -> tuple[Number, ast.expr]:
        """A parameter for which other calls give something else, in digits: `w * DT` of `cost(x, 0.1)` is `0.1 * DT`."""
        try:
            if not scope.frames or name not in own_parameters(scope.frames[-1]):
                raise NoNumber
            found, _ = NumberReader({}).value(scope.passed(name), Scope.of(scope.frames[:-1]))
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
        of_turn = self.turn is not None and len(scope.frames) == self.turn.depth
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
    if made is not None and made.lineno < scope.before and (is_list or _has_names(made)):
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
