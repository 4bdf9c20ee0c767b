"""The author's words for numbers: `GRAVITY` for 9.81 and `DT / 2` for 0.005, where an operand of the expression behind an
equation is made of numbers and of numbers of its module, and its value is the one that the equation takes. Those that an
object of the module holds (`CONFIG.rate`) are called after both (`CONFIG_RATE`).

Nothing of the author's is run for it: names are looked up in the module, and Python's arithmetic is done here.
"""

from __future__ import annotations

import ast
import linecache
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from untrace.ir.said import Given, Number, Rows, SaidArray, SaidLoop, SaidNumber
from untrace.lift.naming.scope import NOTHING, NoNumber, Scope, assigned
from untrace.provenance import syntax
from untrace.provenance.arguments import arguments_by_parameter, last_name, own_parameters
from untrace.provenance.sites import Frame, Site

ARITHMETIC: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_LARGEST_POWER = 64
_MOST_TURNS = 64  # of a loop whose number is looked for
_MOST_LISTED = 64  # times that the elements of a list stand in it
_LARGEST = 6  # names and numbers in an expression, beyond which digits say more
_OF_MODULES = {"pi": math.pi, "e": math.e}
_MODULES = ("math", "numpy", "jax.numpy")
# Of one number, which give the same in `math` and in NumPy.
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "log", "sin", "cos")
}


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
        case ast.Name() | ast.Attribute() | ast.Subscript():
            names: dict[str, Given] = {}
            try:
                value, written = NumberReader(names).value(part, scope)
            except NOTHING:
                return Counter()
            words.setdefault(repr(value), {})[ast.dump(written)] = (written, names) if names else None
            return Counter([repr(value)])
    return Counter()


def said_loop(places: Iterable[Sequence[Frame]], count: int) -> SaidLoop | None:
    """The loop of the author's over a range of so many numbers, inside which all that has these frames was traced; where there
    are several, or it is not seen of how many, its length has digits. None where there is none."""
    common: dict[ast.For, tuple[Frame, ...]] | None = None
    for frames in places:
        known = [(k, f) for k, f in enumerate(frames, 1) if f.line is not None]
        loops = {n: tuple(frames[:k]) for k, f in known for n in syntax.loops_around(f.code, f.line)}
        common = loops if common is None else {n: f for n, f in common.items() if n in loops}
    digits = ((ast.Constant(count), {}),)
    found: dict[str, SaidLoop] = {}
    for loop, around in reversed((common or {}).items()):
        variable = loop.target.id if isinstance(loop.target, ast.Name) else ""
        match loop:
            case ast.For(ast.Tuple([ast.Name(id=number), _]), ast.Call(ast.Name(id="enumerate"), [_], [])):
                found[ast.dump(loop.iter)] = SaidLoop(number, 0, ())
                continue
        iterable, is_reversed = loop.iter, False
        match iterable:
            case ast.Call(ast.Name(id="reversed"), [inside], []):
                iterable, is_reversed = inside, True
        if not isinstance(iterable, ast.Call) or last_name(iterable.func) != "range":
            break
        try:
            turns, bounds = _range_of(iterable, Scope.of(around))
        except NOTHING:
            found.setdefault("", SaidLoop(variable, 0, digits))
            break
        if len(turns) == count:
            turns = turns[::-1] if is_reversed else turns
            found[ast.dump(loop.iter)] = SaidLoop(variable, turns.start, bounds, turns.step, is_reversed)
    return next(iter(found.values())) if len(found) == 1 else SaidLoop("", 0, digits) if found else None


def _range_of(iterable: ast.expr, scope: Scope) -> tuple[range, tuple[SaidNumber, ...]]:
    """What `range(stop)` is, and its arguments by the author's words. Raises NoNumber for what is no such call."""
    match iterable:
        case ast.Call(func=ast.Name(id="range"), args=[_, *_] as args, keywords=[]):
            found: list[tuple[int, SaidNumber]] = []
            for arg in args:
                names: dict[str, Given] = {}
                value, written = NumberReader(names).value(arg, scope)
                if type(value) is not int:
                    raise NoNumber
                found.append((value, (written if names else ast.Constant(value), names)))
            if len(found) == 3 and not found[2][0]:
                raise NoNumber
            return range(*[value for value, _ in found]), tuple([said for _, said in found])
    raise NoNumber


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
    return ()


def _parts(node: ast.expr) -> Sequence[ast.expr]:
    """The elements of tuples and lists in each other; a node that is none by itself."""
    return [p for e in node.elts for p in _parts(e)] if isinstance(node, ast.Tuple | ast.List) else (node,)


def _of_index(index: ast.expr) -> Sequence[ast.expr]:
    parts = index.elts if isinstance(index, ast.Tuple) else (index,)
    slices = [(p.lower, p.upper, p.step) if isinstance(p, ast.Slice) else (p,) for p in parts]
    return [part for bounds in slices for part in bounds if part is not None]


def _names_of(called: str) -> tuple[str, ...]:
    """What the author may call the function that an equation calls: a loop that counts is a scan."""
    alike = {"scan": ("scan", "fori_loop"), "while": ("while_loop", "fori_loop"), "jnp.full": ("full", "full_like")}
    return alike.get(called, (called.rpartition(".")[2],))


def _that_is(
    value: float, dtype: np.dtype, part: ast.expr, scope: Scope, names: dict[str, Given], lengths: Sequence[int]
) -> ast.expr | None:
    """An expression of the author's in words of the module, where it has a value; None where it has not. `lengths`: those of
    the arrays around it, of which one may stand for what is no number of the module (`SMOOTHING / x.shape[-1]`)."""
    found: list[tuple[ast.expr, dict[str, Given]]] = []
    tries: list[tuple[int | None, int | None]] = [(None, None), *[(length, None) for length in lengths]]
    for length, turn in tries:
        of: dict[str, Given] = {}
        reader = NumberReader(of, length, turn)
        try:
            number, written = reader.value(part, scope)
        except NOTHING:
            if reader.turns is not None and turn is None:
                tries[1:] = [(None, k) for k in reader.turns]
            continue
        with np.errstate(over="ignore"):
            if np.asarray(number, dtype) == np.asarray(value, dtype) and (of or length is None):
                found.append((written, of))
        if not reader.guessed and turn is None:
            break
    if len(found) != 1 or sum(isinstance(n, ast.Name | ast.Constant) for n in ast.walk(found[0][0])) > _LARGEST:
        return None
    names.update(found[0][1])
    return found[0][0]


def _turns(scope: Scope, name: str) -> Sequence[int] | None:
    """The numbers that a name goes through in a loop around what runs; None for what is no variable of a loop over a range."""
    frame = scope.frames[-1] if scope.frames else None
    for loop in reversed(syntax.loops_around(frame.code, frame.line)) if frame is not None and frame.line else ():
        if isinstance(loop.target, ast.Name) and loop.target.id == name:
            iterable = loop.iter
            match iterable:
                case ast.Call(ast.Name(id="reversed"), [inside], []):
                    iterable = inside
            try:
                return _range_of(iterable, scope)[0][:_MOST_TURNS]
            except NOTHING:
                return None
    return None


class NumberReader:
    """Computes expressions of numbers, and says them in words of the module, which go to `names`. `guess`: what the one part
    is taken for that is no number of the module; `guessed`: whether there is one. `turn`: what the variable of a loop is taken
    for; `turns`: what it goes through, where there is one."""

    def __init__(self, names: dict[str, Given], guess: int | None = None, turn: int | None = None):
        self.names, self.guess, self.guessed, self.turn = names, guess, False, turn
        self.turns: Sequence[int] | None = None

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
                turns = _turns(scope, name)
                if turns is not None:
                    return self._of_turn(turns)
                if (number := scope.setting(name)) is not None:
                    return self._named(name, number, scope)
                try:
                    meaning = scope.meaning(name)
                except NoNumber:
                    return self._passed(name, scope)
                return self.value(*meaning)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if scope.has_global(name):
                if attribute in _OF_MODULES and scope.is_module(name, _MODULES):
                    return _OF_MODULES[attribute], ast.Attribute(ast.Name("math"), attribute)
                return self._of_settings(node, scope)
            case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int())):
                return self._of_settings(node, scope)
            case (
                ast.Attribute(value=ast.Name() | ast.Attribute() | ast.Subscript())
                | ast.Subscript(slice=ast.Constant(value=str()))
            ):
                if not isinstance(node, ast.Attribute) or node.attr not in ("size", "ndim"):
                    return self._of_settings(node, scope)
                return self._guessed()
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found, written = self.value(operand, scope)
                return -found, ast.UnaryOp(ast.USub(), written)
            case ast.BinOp(op=op) if type(op) in ARITHMETIC:
                (left, one), (right, other) = self.value(node.left, scope), self.value(node.right, scope)
                if isinstance(op, ast.Pow) and (abs(right) > _LARGEST_POWER or left < 0):
                    raise NoNumber
                return ARITHMETIC[type(op)](left, right), ast.BinOp(one, op, other)
            case ast.Attribute(attr="size" | "ndim") | ast.Subscript(value=ast.Attribute(attr="shape")):
                return self._guessed()
            case ast.Call(func=ast.Name(id="len")):
                return self._guessed()
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=called), args=[part], keywords=[]) if (
                called in _FUNCTIONS and scope.is_module(module, ("math", "numpy"))
            ):
                found, written = self.value(part, scope)
                function = ast.Attribute(ast.Name("python.math"), called)
                return _FUNCTIONS[called](found), ast.Call(function, [written], [])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr="full" | "full_like"), args=[_, part]) if (
                scope.is_module(module, _MODULES)
            ):
                return self.value(part, scope)
        raise NoNumber

    def _of_settings(self, node: ast.Attribute | ast.Subscript, scope: Scope) -> tuple[Number, ast.expr]:
        """`CONFIG.rate` and `CONFIG["rate"]`, of an object that only holds values, as `CONFIG_RATE`."""
        found, name = scope.held(node)
        made = scope.made(node)
        is_number = isinstance(found, int | float) and made is not None
        return self._named(name, found, scope, _given_as(made[0], found, made[1]) if is_number else None)

    def _named(self, name: str, found: object, scope: Scope, given: Given | None = None) -> tuple[Number, ast.expr]:
        """A number that has no name of the module, by one that is made for it."""
        name = name.upper()
        if not isinstance(found, int | float) or type(found) not in (int, float) or not name.isidentifier():
            raise NoNumber
        if name in scope.values:  # which may be what it was made of: `update = with_rate(RATE)`
            if type(scope.values[name]) is not type(found) or scope.values[name] != found:
                raise NoNumber
            given = _given(name, found, scope)
        self.names[name] = given or Given(found, None, {})
        return found, ast.Name(name)

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

    def _of_turn(self, turns: Sequence[int]) -> tuple[Number, ast.expr]:
        """The variable of a loop: `DECAY**t` is `DECAY**2` in one of its turns."""
        self.turns = turns
        if self.turn is None or self.turn not in turns:
            raise NoNumber
        return self.turn, ast.Constant(self.turn)

    def _guessed(self) -> tuple[Number, ast.expr]:
        is_second, self.guessed = self.guessed, True
        if self.guess is None or is_second:
            raise NoNumber
        return self.guess, ast.Constant(self.guess)


def _given(name: str, value: Number, scope: Scope) -> Given:
    made = assigned("".join(linecache.getlines(scope.file))).get(name)
    return Given(value, None, {}) if made is None else _given_as(made, value, scope)


def _given_as(made: ast.expr, value: Number, scope: Scope) -> Given:
    """A number of the module by the expression that it is given there, where that has names, and its value."""
    of: dict[str, Given] = {}
    if made.lineno < scope.before and _has_names(made):
        try:
            found, _ = NumberReader(of).value(made, Scope(scope.values, scope.file, (), made.lineno))
        except NOTHING:
            found = None
        if type(found) is type(value) and found == value:
            return Given(value, made, of)
    return Given(value, None, {})
