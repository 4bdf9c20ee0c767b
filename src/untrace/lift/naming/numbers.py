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
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from untrace.ir.said import Given, Number, SaidArray, SaidNumber
from untrace.lift.naming.number_reader import LARGEST_POWER, NOTHING, NumberReader, Shapes, has_names
from untrace.lift.naming.scopes import NoNumber, Scope, assigned
from untrace.provenance.arguments import arguments_by_parameter, last_name
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Site

_LARGEST = 6  # names and numbers in an expression, beyond which digits say more


def said_number(
    site: Site,
    called: str,
    avals: Sequence[object],
    value: float,
    times: int = 1,
    place: tuple[int, int] = (0, 0),
    shapes: Shapes | None = None,
) -> SaidNumber | None:
    """The author's expression for a number that an equation takes, and the numbers of the module that are in it; None
    where there is no such operand, fewer than the `times` that the equation takes it, or it has digits only, and as many
    (`1 / 6` is shorter).

    called: the name of what the equation calls. avals: the types of what it takes and gives. place: where several operands
    have this value, which of how many that stand together it is. shapes: of the variables there, whose sizes may be said.
    """
    frame = site.frames[-1] if site.frames else None
    node = frame.node if frame is not None else None
    if frame is None or node is None or isinstance(value, complex) or not math.isfinite(value):
        return None
    parts = _operands(node, called)
    dtype = next((t for t in map(_dtype, avals) if t is not None), np.dtype(float))
    scope = Scope.of(site.frames, site.around)
    lengths = {n for aval in avals for n in getattr(aval, "shape", ())}
    equal: dict[str, list[tuple[ast.expr, Mapping[str, Given]]]] = {}
    for part in parts:
        names: dict[str, Given] = {}
        long = sorted(n for n in lengths if type(n) is int and n > 1)
        written = _that_is(value, dtype, part, scope, names, long, shapes)
        if written is not None:
            equal.setdefault(ast.dump(part), []).append((written, names))
    if not equal and type(value) is float:  # what is made of sizes is no float where it is one
        made = [said for part in parts if (said := _multiple(value, dtype, part, scope)) is not None]
        return made[0] if len(made) == 1 else None
    if len(equal) > 1:  # of `jnp.clip(x, LOW, HIGH)` with equal numbers it tells nobody which one this is
        part = _at_place(node, *place)
        equal, times = {"": equal[ast.dump(part)]} if part is not None and ast.dump(part) in equal else {}, 1
    only = next(iter(equal.values()), ())
    if not only or len(only) < times:
        return None
    said = only[0][0]
    is_shorter = isinstance(said, ast.BinOp) and len(ast.unparse(said)) < len(str(np.asarray(value, dtype)))
    return only[0] if has_names(said) or is_shorter else None


def _multiple(value: float, dtype: np.dtype, part: ast.expr, scope: Scope) -> SaidNumber | None:
    """A number of the module times one that Python computed of sizes, in digits: `RATE * 1.4142135`."""
    match part:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for known, other in ((left, right), (right, left)):
                names: dict[str, Given] = {}
                try:
                    number, written = NumberReader(names).value(known, scope)
                    factor, is_of_sizes = value / number, _is_of_sizes(other, scope)
                except NOTHING:
                    continue
                if not names or not is_of_sizes or _is_known(other, scope):
                    continue
                for digits in range(1, 18):
                    short = float(f"{factor:.{digits}g}")
                    if np.asarray(number * short, dtype) == np.asarray(value, dtype):
                        return (written if short == 1.0 else ast.BinOp(written, ast.Mult(), ast.Constant(short))), names
    return None


def _is_known(node: ast.expr, scope: Scope) -> bool:
    """Whether it is seen what number an expression is."""
    try:
        NumberReader({}).value(node, scope)
    except NOTHING:
        return False
    return True


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
    return rows[0][place] if len(rows) == 1 and 0 <= place < count else None


def _parts(node: ast.expr) -> Sequence[ast.expr]:
    """The elements of tuples and lists in each other; a node that is none by itself."""
    return [p for e in node.elts for p in _parts(e)] if isinstance(node, ast.Tuple | ast.List) else (node,)


def said_numbers(
    site: Site, called: str, numbers: Counter[str], times: int, shapes: Shapes | None = None
) -> Mapping[str, SaidNumber]:
    """The author's names for numbers (by their digits) that are, with sizes, the arithmetic of one thing that an equation takes: SWEEPS for the
    6 of `x / (SWEEPS * x.size)`. Nothing where he has others there, in another number, or two names for one, or them in fewer
    things than the `times` that the equation takes such a one."""
    frame = site.frames[-1] if site.frames else None
    if frame is None or frame.node is None:
        return {}
    scope = Scope.of(site.frames, site.around)
    found: dict[str, Mapping[str, SaidNumber]] = {}
    count = 0
    for part in _operands(frame.node, called):
        words: dict[str, dict[str, SaidNumber | None]] = {}
        if _numbers_in(part, scope, words, shapes) == numbers:
            count += 1
            alone = {value: said for value, (said, *more) in ((v, w.values()) for v, w in words.items()) if not more}
            named = {value: said for value, said in alone.items() if said is not None}
            found[repr({value: ast.dump(written) for value, (written, _) in named.items()})] = named
    return next(iter(found.values())) if len(found) == 1 and count >= times else {}


def _numbers_in(
    part: ast.expr, scope: Scope, words: dict[str, dict[str, SaidNumber | None]], shapes: Shapes | None
) -> Counter[str]:
    """The digits of the numbers in some arithmetic, but for those of shapes that follow the inputs; `words` gets what stands
    for each."""
    match part:
        case ast.BinOp(left=left, right=right):
            reader = NumberReader({}, shapes=shapes)
            with contextlib.suppress(*NOTHING):
                value, written = reader.value(part, scope)
                if shapes is not None and shapes.is_of(written):
                    words.setdefault(repr(value), {})[ast.dump(written)] = written, reader.names
                    return Counter([repr(value)])
            return _numbers_in(left, scope, words, shapes) + _numbers_in(right, scope, words, shapes)
        case ast.UnaryOp(operand=operand):
            return _numbers_in(operand, scope, words, shapes)
        case ast.Constant(value=int() | float() as value) if type(value) is not bool:
            words.setdefault(repr(value), {})[""] = None
            return Counter([repr(value)])
        case ast.Name(id=name) if not scope.has_global(name) and scope.is_of_a_turn(name):
            return Counter([name])
        case ast.Name() | ast.Attribute() | ast.Subscript():
            names: dict[str, Given] = {}
            try:
                value, written = NumberReader(names, shapes=shapes).value(part, scope)
            except NOTHING:
                return Counter()
            words.setdefault(repr(value), {})[ast.dump(written)] = (written, names) if has_names(written) else None
            return Counter([repr(value)])
    return Counter()


def said_argument(frames: tuple[Frame, ...], callee: Frame, name: str, value: Number) -> SaidNumber | None:
    """The same of a number that a call in the last of `frames` passes for a parameter."""
    call = frames[-1].node
    given = arguments_by_parameter(call, callee).get(name) if isinstance(call, ast.Call) else None
    if given is None:
        return None
    names: dict[str, Given] = {}
    try:
        found, written = NumberReader(names).value(given, Scope.of(frames))
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


def _dtype(aval: object) -> np.dtype | None:
    dtype = getattr(aval, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.floating) else None


def _operands(node: ast.AST, called: str) -> Sequence[ast.expr]:
    """The operands of an operation, or of a call of the very function that the equation calls: one that is made of
    others has numbers of its own inside."""
    match node:
        case ast.BinOp():
            return (node.left, node.right, *[node] * (called == "jnp.full"))  # `jnp.ones(WIDTH) / WIDTH`
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
        "min": ("min", "minimum"),
        "max": ("max", "maximum"),
    }
    return alike.get(called, (called.rpartition(".")[2],))


def _that_is(
    value: float,
    dtype: np.dtype,
    part: ast.expr,
    scope: Scope,
    names: dict[str, Given],
    lengths: Sequence[int],
    shapes: Shapes | None,
) -> ast.expr | None:
    """An expression of the author's in words of the module, where it has a value; None where it has not. `lengths`: those of
    the arrays around it, of which one may stand for what is no number of the module (`SMOOTHING / x.shape[-1]`)."""
    found: list[tuple[ast.expr, dict[str, Given]]] = []
    is_open = False
    for length, power in [*[(n, None) for n in (None, *lengths)], *[(None, n) for n in range(LARGEST_POWER)]]:
        if power is not None and not is_open:
            break
        of: dict[str, Given] = {}
        reader = NumberReader(of, length, fills=True, shapes=shapes, power=power)
        try:
            number, written = reader.value(part, scope)
        except NOTHING:
            is_open = reader.is_power_open
            continue
        with np.errstate(over="ignore"):
            is_other = type(value) is int and type(number) is float  # no size is a float
            if np.asarray(number, dtype) == np.asarray(value, dtype) and (of or length is None) and not is_other:
                found.append((written, of))
        if not reader.guessed and not is_open:
            break
    if len(found) != 1 or sum(isinstance(n, ast.Name | ast.Constant) for n in ast.walk(found[0][0])) > _LARGEST:
        return None
    names.update(found[0][1])
    return found[0][0]
