"""Python values as expressions that give them back: literals, arrays, dtypes, enums, shardings, trees.

`Values.source(value)` raises `Unwritable` for what has no source (a closure, a device buffer of unknown kind): the rule
that asked then declines, or the error names the primitive and the parameter.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.types import Data, DType
from untrace.python.tree import UNARY, Attribute, Call, Dict, Expr, List, Star, Subscript, Text, Tuple, quoted

SMALL_BYTES = 1024


class Unwritable(Exception):
    """A value that no Python source gives back. `str()` says which, in a person's words."""


Handler = Callable[["Values", Any], Expr]
_BY_TYPE: dict[type, Handler] = {}


def writes(*types: type) -> Callable[[Handler], Handler]:
    """Registers how values of these exact types are written."""

    def register(handler: Handler) -> Handler:
        for t in types:
            if t in _BY_TYPE:
                raise ValueError(f"a second writer for {t!r}")
            _BY_TYPE[t] = handler
        return handler

    return register


class Values:
    """Turns values into expressions; `modules` collects the module names that the text will need."""

    def __init__(self, modules: set[str]):
        self.modules = modules
        self.shapes: Sequence[tuple[tuple[int, ...], Expr]] = ()  # those that are written as the shape of a variable
        self._enums: dict[Any, Expr] = {}
        self.sizes: Any = None  # what knows the integers that follow the inputs' sizes, where one is written

    def source(self, value: object) -> Expr:
        if self.shapes and type(value) is tuple:
            shape = self.shape_of(value)
            if shape is not None:
                return shape
        handler = _BY_TYPE.get(type(value))
        if handler is not None:
            return handler(self, value)
        return self._other(value)

    @contextlib.contextmanager
    def in_words_of(self, shapes: Sequence[tuple[tuple[int, ...], Expr]]) -> Iterator[None]:
        """Writes these shapes, and no others, as those of variables."""
        before, self.shapes = self.shapes, shapes
        try:
            yield
        finally:
            self.shapes = before

    def shape_of(self, value: tuple[object, ...]) -> Expr | None:
        """`x.shape` for a tuple that is to be written so."""
        return next((Attribute(x, "shape") for shape, x in self.shapes if shape == value), None)

    def _other(self, value: object) -> Expr:
        if isinstance(value, jax.core.Tracer):
            raise Unwritable("a tracer that escaped from another trace")
        if isinstance(value, enum.Enum):
            if not (value.name or "").isidentifier():
                raise Unwritable(f"{value!r}, which is no single member of its enum")
            return self.path_to(type(value), f".{value.name}")
        if isinstance(value, np.integer):  # np.int64 in axes and dims: equal to, and hashed like, the Python int
            return self.source(int(value))
        if isinstance(value, np.generic):
            return self.numpy_scalar(value)
        if isinstance(value, np.dtype):
            return self.dtype(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kwargs = [(f, self.source(getattr(value, f))) for f in value._fields]
            return Call(self.path_to(type(value)), (), kwargs)
        for kind, handler in jax_compat.value_writers():
            if isinstance(value, kind):
                return handler(self, value)
        if isinstance(value, type):
            if issubclass(value, np.generic):
                return self.dtype(np.dtype(value))
            return self.path_to(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.dataclass(value)
        if isinstance(value, int):
            return Text(repr(int(value)), UNARY if value < 0 else 14)
        if isinstance(value, str):
            return Text(quoted(str(value)))
        if callable(value):
            return self.path_to(value)
        raise Unwritable(f"a {type(value).__module__}.{type(value).__qualname__} has no source form")

    def dataclass(self, value: object) -> Expr:
        """`Class(field=..., ...)`, the fields that have their defaults left out."""
        assert dataclasses.is_dataclass(value)
        kwargs = []
        for field in dataclasses.fields(value):
            given = getattr(value, field.name)
            if field.init and not (field.default is not dataclasses.MISSING and given is field.default):
                kwargs.append((field.name, self.source(given)))
        return Call(self.path_to(type(value)), (), kwargs)

    def path_to(self, value: object, suffix: str = "") -> Expr:
        """The public dotted path of a class or function, verified by looking it up."""
        path = jax_compat.public_path(value)
        if path is None:
            name = getattr(value, "__qualname__", None) or repr(value)
            raise Unwritable(f"{getattr(value, '__module__', '?')}.{name} has no public path")
        if "." not in path:
            return Text(path + suffix)  # a builtin
        self.modules.add(jax_compat.imported_for(path))
        return Text(path + suffix)

    def dtype(self, dtype: object) -> Expr:
        """`jnp.float32`, `np.dtype("float0")`, ...: something every dtype argument of JAX takes."""
        name = jax_compat.dtype_path(dtype)
        self.modules.add(name.split(".")[0])
        return Text(name)

    def numpy_scalar(self, value: object) -> Expr:
        """A NumPy scalar with its exact bits, as `np.float32(0.1)` and `np.float32(np.inf)`."""
        array = np.asarray(value)
        self.modules.add("np")
        kind = array.dtype.name
        if array.dtype.kind == "f" and array.dtype.isbuiltin == 1:
            for word, special in (("np.inf", np.inf), ("-np.inf", -np.inf), ("np.nan", np.nan), ("-np.nan", -np.nan)):
                if array.dtype.type(special).tobytes() == array.tobytes():
                    return Text(f"np.{kind}({word})")
        if array.dtype.type.__module__ == "numpy" and hasattr(np, kind if kind != "bool" else "bool_"):
            if kind == "bool":
                return Text(f"np.bool_({bool(array)})")
            text = number_text(array.reshape(())[()])
            if text is not None and np.dtype(kind).type(_parsed(text)).tobytes() == array.tobytes():
                return Text(f"np.{kind}({text})")
        return Subscript(self.array(array), Tuple(()))

    def scalar(self, value: Data, dtype: DType, weak: bool) -> Expr:
        """A literal of a jaxpr: a Python number where JAX would give it this dtype (weakly), else a NumPy scalar."""
        array = np.asarray(value)
        if weak:
            python = array.item()
            default = np.dtype(jax.dtypes.canonicalize_dtype(type(python)))
            if default == np.dtype(dtype):
                text = repr(python) if type(python) in (bool, int) else number_text(array.astype(dtype)[()])
                if text is not None and _finite(python):
                    return Text(text, UNARY if text.startswith("-") else 14)
                if type(python) is float:
                    # A NaN's sign and payload would not survive `float("nan")`: those go the exact way below.
                    plain = np.asarray(float("nan") if python != python else python, dtype)
                    if plain.tobytes() == array.astype(dtype).tobytes():
                        return Text(
                            {float("inf"): 'float("inf")', float("-inf"): 'float("-inf")'}.get(python, 'float("nan")')
                        )
                if type(python) is complex:  # `-0.0 + 0j` is no sum in Python
                    parts = [float("nan") if p != p else p for p in (python.real, python.imag)]
                    if np.asarray(complex(*parts), dtype).tobytes() == array.astype(dtype).tobytes():
                        words = [repr(p) if _finite(p) else f'float("{p}")' for p in parts]
                        return Text(f"complex({words[0]}, {words[1]})")
        return self.numpy_scalar(np.asarray(value, dtype)[()])

    def array(self, value: object) -> Expr:
        """A NumPy array with its exact bits, shape and dtype; as `np.zeros`, `np.full`, `np.arange`, `np.eye` when it is that."""
        array = np.asarray(value)
        self.modules.add("np")
        dtype = self.dtype(array.dtype)
        shape = Tuple([Text(str(n)) for n in array.shape])
        if array.dtype == jax.dtypes.float0:
            return Call("np.zeros", [shape], [("dtype", dtype)])
        data = array.tobytes()
        if not array.size and array.ndim > 1:
            return Call("np.zeros", [shape], [("dtype", dtype)])
        if array.size > 2 and not data.strip(b"\0"):
            return Call("np.zeros", [shape], [("dtype", dtype)])
        plain = array.dtype.isbuiltin == 1
        if plain and array.ndim == 1 and array.size > 3 and array.dtype.kind in "iu":
            step = int(array[1]) - int(array[0])
            start = int(array[0])
            if step and np.arange(start, start + step * array.size, step, dtype=array.dtype).tobytes() == data:
                bounds = [start, start + step * array.size, step]
                if step == 1:
                    bounds = [array.size] if start == 0 else bounds[:2]
                return Call("np.arange", [Text(str(b)) for b in bounds], [("dtype", dtype)])
        if (
            plain
            and array.ndim == 2
            and array.shape[0] > 1
            and np.eye(*array.shape, dtype=array.dtype).tobytes() == data
        ):
            sides = [array.shape[0]] if array.shape[0] == array.shape[1] else array.shape
            return Call("np.eye", [Text(str(n)) for n in sides], [("dtype", dtype)])
        if array.size > 2 and data == data[: array.itemsize] * array.size:
            fill = self._element(array.reshape(-1)[0], array.dtype)
            if fill is not None:
                return Call("np.full", [shape, fill], [("dtype", dtype)])
        items = self._items(array)
        if items is not None:
            return Call("np.array", [items], [("dtype", dtype)])
        # Bits that no decimal gives back (a NaN's payload, a custom float type): the bytes themselves.
        raw = Call("np.frombuffer", [Call("bytes.fromhex", [Text(quoted(data.hex()))])], [("dtype", dtype)])
        return Call(Text(raw.flat() + ".reshape"), [shape])

    def _items(self, array: np.ndarray) -> Expr | None:
        if array.ndim == 0:
            return self._element(array[()], array.dtype)
        parts = [part for a in array if (part := self._items(a)) is not None]
        return List(parts) if len(parts) == len(array) else None

    def _element(self, value: np.generic | np.ndarray, dtype: np.dtype) -> Expr | None:
        """One array element as a Python number, or None where `np.array([it], dtype)` would have other bits."""
        text = number_text(value)
        if text is None:
            if dtype.kind != "c" and _is_float(dtype):
                number = float(value)
                for candidate, source in ((np.nan, "np.nan"), (np.inf, "np.inf"), (-np.inf, "-np.inf")):
                    if np.asarray(candidate, dtype).tobytes() == np.asarray(value, dtype).tobytes():
                        return Text(source, UNARY if number < 0 else 14)
            return None
        if np.asarray(_parsed(text)).astype(dtype).tobytes() != np.asarray(value, dtype).tobytes():
            return None
        return Text(text, UNARY if text.startswith("-") else 14)


def _is_float(dtype: np.dtype) -> bool:
    return jax.dtypes.issubdtype(dtype, np.floating)


def _finite(value: object) -> bool:
    return value == value and value not in (float("inf"), float("-inf"))


def number_text(value: object) -> str | None:
    """The shortest decimal text of a finite number (NumPy scalar or Python number); None where there is none."""
    value = np.asarray(value)
    if value.dtype == bool:
        return str(bool(value))
    kind = value.dtype.kind
    if kind in "iu" or jax.dtypes.issubdtype(value.dtype, np.integer):
        return str(int(value))
    if kind == "c":
        number = complex(value)
        if not (np.isfinite(number.real) and np.isfinite(number.imag)):
            return None
        return complex_text(number)
    if _is_float(value.dtype):
        if not np.isfinite(float(value)):
            return None
        if kind == "f" and value.itemsize <= 8:
            text = str(value[()])
        else:
            text = repr(float(value))
        return text
    return None


def complex_text(number: complex) -> str | None:
    """A finite complex number as Python reads it back, the signs of its zeros included; None where no literal gives it.

    `-1j` is the negative of `1j`, so that its real part is -0.0, and `repr` does not say so.
    """
    real, imag = repr(number.real), repr(number.imag)
    exact = np.complex128(number).tobytes()
    for text in (
        repr(number),
        f"{imag}j".replace(".0j", "j"),
        f"({real.removesuffix('.0')}{imag}j)".replace(".0j", "j"),
    ):
        try:
            if np.complex128(ast.literal_eval(text)).tobytes() == exact:
                return text
        except (ValueError, SyntaxError):
            continue
    return None


def _parsed(text: str) -> complex:
    if text in ("True", "False"):
        return text == "True"
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return ast.literal_eval(text)


# ---------------------------------------------------------------- writers of exact types


@writes(type(None), bool)
def _constant(values: Values, value: object) -> Expr:
    return Text(repr(value))


@writes(int)
def _int(values: Values, value: int) -> Expr:
    if values.sizes is not None:
        found = values.sizes.expression(value)
        if found is not None:
            return found
    return Text(repr(value), UNARY if value < 0 else 14)


@writes(float, complex)
def _float(values: Values, value: complex) -> Expr:
    if not np.all(np.isfinite(value)):
        if type(value) is float:
            return Text('float("nan")' if value != value else f'float("{value}")')
        raise Unwritable("a complex parameter that is not finite")
    text = repr(value) if type(value) is float else complex_text(value)
    if text is None:
        return Text(f"complex({value.real!r}, {value.imag!r})")
    return Text(text, UNARY if text.startswith("-") else 14)


@writes(str)
def _string(values: Values, value: str) -> Expr:
    return Text(quoted(value))


@writes(bytes)
def _bytes(values: Values, value: bytes) -> Expr:
    return Text(ascii(value))


@writes(tuple)
def _tuple(values: Values, value: tuple) -> Expr:
    if values.sizes is None:
        return Tuple([values.source(v) for v in value])
    shape = values.sizes.shape(value)
    if shape is not None:
        return shape
    parts = values.sizes.joined([values.source(v) for v in value])
    return parts[0].value if len(parts) == 1 and type(parts[0]) is Star else Tuple(parts)  # `x.shape[:2]`


@writes(list)
def _list(values: Values, value: list) -> Expr:
    return List([values.source(v) for v in value])


@writes(dict)
def _dict(values: Values, value: dict) -> Expr:
    return Dict([(values.source(k), values.source(v)) for k, v in value.items()])


@writes(frozenset, set)
def _set(values: Values, value: frozenset) -> Expr:
    items = sorted((values.source(v) for v in value), key=lambda e: e.flat())  # order must not come from hashing
    return Call(type(value).__name__, [List(items)] if items else [])


@writes(slice)
def _slice(values: Values, value: slice) -> Expr:
    return Call("slice", [values.source(v) for v in (value.start, value.stop, value.step)])


@writes(type(Ellipsis))
def _ellipsis(values: Values, value: object) -> Expr:
    return Text("...")


@writes(np.ndarray)
def _array(values: Values, value: np.ndarray) -> Expr:
    if value.nbytes > 16 * SMALL_BYTES:
        raise Unwritable(f"an array parameter of {value.nbytes} bytes")
    return values.array(value)
