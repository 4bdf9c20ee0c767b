"""Arrays that the author's module computes: `BETAS = jnp.linspace(BETA_MIN, BETA_MAX, STEPS)`, by that expression.

The expression is made of numbers and arrays of the module and of functions of `numpy` and `jax.numpy` that are named here; it
is computed once more, from what the module holds, and has to give the same bits. Nothing else of the author's is run.
"""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.said import Given, SaidComputed
from untrace.ir.types import Data
from untrace.lift.naming.number_reader import ARITHMETIC, NOTHING, NumberReader
from untrace.lift.naming.scopes import NoNumber, Scope, assigned
from untrace.provenance.arguments import last_name
from untrace.provenance.frames import Frame

SPELLED: Mapping[str, str] = {"numpy": "np", "jax.numpy": "jnp"}
OPERATORS: Mapping[type[ast.operator] | type[ast.cmpop], Callable[[Data, Data], Data]] = {
    **ARITHMETIC, ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_CALLED = frozenset(
    "abs add append arange arccos arcsin arctan arctan2 array asarray blackman broadcast_to ceil clip concatenate cos cosh "
    "cumprod cumsum deg2rad diag diff divide dot exp exp2 expand_dims expm1 eye fft.fftfreq fft.rfftfreq flip floor full "
    "float32 float64 full_like geomspace hamming hanning hstack hypot identity kaiser kron linspace log log10 log1p log2 logspace matmul "
    "max maximum mean min minimum mod moveaxis multiply ones ones_like outer pad power prod ravel repeat reshape roll round "
    "sign sin sinc sinh sqrt square squeeze stack std subtract sum swapaxes tan tanh tensordot tile trace transpose tri "
    "tril triu vander var vstack where zeros zeros_like".split()
)
_METHODS = frozenset(
    "astype cumprod cumsum dot flatten max mean min prod ravel repeat reshape squeeze sum swapaxes transpose".split()
)
_VALUES = frozenset(
    "T bfloat16 bool_ complex64 e float16 float32 float64 inf int16 int32 int64 int8 newaxis pi uint16 uint32 uint64 uint8".split()
)
_LARGEST = 10**7  # elements of an array that is computed once more
_TABLE = 64  # elements of an array of numbers in an expression
_MOST = 4  # names of equal arrays that are looked at


class ModuleArrays:
    """The arrays of the author's modules, of those whose functions have some of these frames."""

    def __init__(self, frames: Iterable[Frame]):
        by_file = {f.file: f for f in frames if not f.library}
        self._modules = [Scope.of((f,)) for f in by_file.values()]

    def said(self, called: Data, hint: str | None) -> SaidComputed | None:
        """The one that a function closes over, where its module computes it; `hint`: its name, if it is known."""
        named = [
            (name, value, scope)
            for scope in self._modules
            for name, value in scope.values.items()
            if value is called or is_array(value) and _same_values(value, called)
        ]
        here = [n for n in named if n[1] is called] or [n for n in named if n[0] == hint]
        found = [_of_module(name, value, Scope(scope.values, scope.file)) for name, value, scope in here[:_MOST]]
        made = [said for said in found if said.made is not None and _says_more(said.made)]
        return made[0] if len(made) == 1 else None


def said_inside(node: ast.expr, frames: tuple[Frame, ...], called: Data) -> SaidComputed | None:
    """An array that a function of the author's computes by NumPy: by the expression, there or where its name is given its
    value."""
    name, reader = "", _ArrayReader(Scope.of(frames))
    if isinstance(node, ast.Name):
        name = node.id
        try:
            node, reader.scope = reader.scope.meaning(name)
        except NoNumber:
            return None
    value, made = _computed(reader, node)
    is_it = made is not None and type(value) is np.ndarray and _same_values(value, called)
    return SaidComputed(name, value, made, reader.numbers, reader.arrays) if is_it and _says_more(made) else None


def is_array(value: Data) -> bool:
    """Whether it is an array of numbers of NumPy's, or of JAX's on one device."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiubc"
    if not jax_compat.is_jax_array(value) or value.is_deleted():
        return False
    return isinstance(value.dtype, np.dtype) and len(value.devices()) == 1


def _same_values(value: Data, called: Data) -> bool:
    """Whether JAX may have made the one of the other: a conversion to what it takes an array of NumPy's for."""
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if np.shape(value) != np.shape(called) or jax.dtypes.canonicalize_dtype(called.dtype) != dtype:
        return False
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype).tobytes() == np.asarray(called).astype(dtype).tobytes()


def _says_more(made: ast.expr) -> bool:
    """Whether an expression is no list of digits."""
    calls = [last_name(n.func) for n in ast.walk(made) if isinstance(n, ast.Call)]
    names = [n for n in ast.walk(made) if isinstance(n, ast.Name) and n.id not in SPELLED.values()]
    return bool(names) or len(calls) > 1 or any(name not in ("array", "asarray") for name in calls)


def _of_module(name: str, value: Data, scope: Scope) -> SaidComputed:
    made = assigned("".join(linecache.getlines(scope.file))).get(name)
    if made is not None and made.lineno < scope.before and np.size(value) <= _LARGEST:
        reader = _ArrayReader(Scope(scope.values, scope.file, (), made.lineno))
        found, written = _computed(reader, made)
        if is_array(found) and _is_same(found, value):
            return SaidComputed(name, value, written, reader.numbers, reader.arrays)
    return SaidComputed(name, value, None, {}, {})


def _computed(reader: _ArrayReader, node: ast.expr) -> tuple[Data, ast.expr | None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return reader.value(node)
        except Exception:  # whatever NumPy or JAX say of these arguments, or an expression that is not to be computed
            return None, None


def _is_same(one: Data, other: Data) -> bool:
    if type(one) is not type(other) or one.dtype != other.dtype or one.shape != other.shape:
        return False
    weak = getattr(one, "weak_type", False), getattr(other, "weak_type", False)
    return weak[0] == weak[1] and np.asarray(one).tobytes() == np.asarray(other).tobytes()


class _ArrayReader:
    """Computes expressions of arrays, and says them in words of the module, which go to `numbers` and `arrays`."""

    def __init__(self, scope: Scope):
        self.scope = scope
        self.numbers: dict[str, Given] = {}
        self.arrays: dict[str, SaidComputed] = {}

    def value(self, node: ast.expr) -> tuple[Data, ast.expr]:
        """The value of an expression, and the expression in words of the text. Raises NoNumber for one that is not to be computed."""
        numbers: dict[str, Given] = {}
        try:
            found = NumberReader(numbers).value(node, self.scope)
        except NOTHING:
            return self._array(node)
        self.numbers.update(numbers)
        return found

    def _array(self, node: ast.expr) -> tuple[Data, ast.expr]:
        match node:
            case ast.Constant(value=str() | bool() | None as value):
                return value, node
            case ast.Name(id=name) if self.scope.has_global(name) and is_array(value := self.scope.values.get(name)):
                if name not in self.arrays:
                    self.arrays[name] = _of_module(name, value, self.scope)
                if self.arrays[name].made is None and (
                    np.asarray(value).size > _TABLE or getattr(value, "weak_type", False)
                ):
                    raise NoNumber  # what is computed of data says less than its numbers, and no table is weak
                return value, node
            case ast.Name(id=name) if not self.scope.has_global(name):
                return self._local(name)
            case ast.Name(id="float" | "int" | "bool" | "complex" as name) if name not in self.scope.values:
                return {"float": float, "int": int, "bool": bool, "complex": complex}[name], node
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values, written = self._each(parts)
                is_tuple = isinstance(node, ast.Tuple)
                return (tuple(values), ast.Tuple(written)) if is_tuple else (values, ast.List(written))
            case ast.Attribute():
                return self._attribute(node, _VALUES)
            case ast.Call(func=ast.Attribute() as called, args=args, keywords=keywords):
                if any(isinstance(a, ast.Starred) for a in args) or any(k.arg is None for k in keywords):
                    raise NoNumber
                function, written = self._attribute(called, _CALLED, _METHODS)
                (given, said), (named, words) = self._each(args), self._each([k.value for k in keywords])
                names = [k.arg for k in keywords if k.arg is not None]
                result = function(*given, **dict(zip(names, named, strict=True)))
                return result, ast.Call(written, said, [ast.keyword(n, w) for n, w in zip(names, words, strict=True)])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value, written = self._of_array(operand)
                return -value, ast.UnaryOp(ast.USub(), written)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return self._binary(left, op, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                return self._binary(left, op, right)
            case ast.Subscript(value=value, slice=index):
                of, written = self._of_array(value)
                at, place = self._index(index)
                return of[at], ast.Subscript(written, place)
        raise NoNumber

    def _local(self, name: str) -> tuple[Data, ast.expr]:
        """What a function computes and has a name for. Of JAX's functions it would be no array there."""
        if name not in self.arrays:
            made, scope = self.scope.meaning(name)
            reader = _ArrayReader(scope)
            value, written = reader.value(made)
            if type(value) is not np.ndarray:
                raise NoNumber
            self.arrays[name] = SaidComputed(name, value, written, reader.numbers, reader.arrays)
        return self.arrays[name].value, ast.Name(name)

    def _each(self, nodes: Sequence[ast.expr]) -> tuple[list[Data], list[ast.expr]]:
        found = [self.value(node) for node in nodes]
        return [value for value, _ in found], [written for _, written in found]

    def _of_array(self, node: ast.expr) -> tuple[Data, ast.expr]:
        value, written = self.value(node)
        if not is_array(value) and not isinstance(value, np.generic):
            raise NoNumber
        return value, written

    def _binary(self, left: ast.expr, op: ast.operator | ast.cmpop, right: ast.expr) -> tuple[Data, ast.expr]:
        (one, first), (other, second) = self.value(left), self.value(right)
        if not any(is_array(x) or isinstance(x, np.generic) for x in (one, other)):
            raise NoNumber  # of Python's numbers, without a bound
        result = OPERATORS[type(op)](one, other)
        written = ast.BinOp(first, op, second) if isinstance(op, ast.operator) else ast.Compare(first, [op], [second])
        return result, written

    def _index(self, node: ast.expr) -> tuple[Data, ast.expr]:
        match node:
            case ast.Tuple(elts=parts):
                found = [self._index(part) for part in parts]
                return tuple(at for at, _ in found), ast.Tuple([place for _, place in found])
            case ast.Slice(lower=lower, upper=upper, step=step):
                bounds = [(None, None) if b is None else self.value(b) for b in (lower, upper, step)]
                return slice(*[b for b, _ in bounds]), ast.Slice(*[w for _, w in bounds])
        return self.value(node)

    def _attribute(
        self, node: ast.Attribute, of_modules: frozenset[str], of_arrays: frozenset[str] = frozenset("T")
    ) -> tuple[Data, ast.expr]:
        """What a module of numbers or an array has under one of these names."""
        names = [node.attr]
        base: ast.expr = node.value
        while isinstance(base, ast.Attribute):
            names.insert(0, base.attr)
            base = base.value
        module = self.scope.values.get(base.id) if isinstance(base, ast.Name) else None
        if isinstance(module, ModuleType):
            whole = ".".join((module.__name__, *names))
            short = next((s for s in SPELLED if whole.startswith(s + ".")), "")
            path = whole.removeprefix(short + ".")
            if not short or path not in of_modules:
                raise NoNumber
            found = functools.reduce(getattr, path.split("."), np if short == "numpy" else jax.numpy)
            return found, functools.reduce(ast.Attribute, path.split("."), ast.Name(SPELLED[short]))
        if node.attr not in of_arrays:
            raise NoNumber
        value, written = self._of_array(node.value)
        return getattr(value, node.attr), ast.Attribute(written, node.attr)
