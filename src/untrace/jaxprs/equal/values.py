"""Equality of what equations hold: constants bit for bit, parameters by meaning.

`==` alone is not enough: it is undefined on arrays, says False for NaN and for two jaxprs, and
True for 0.0 and -0.0.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import struct
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from untrace import jax_compat

# `==` is right for these, between two values of one type.
_EXACT = frozenset({int, str, bool, bytes, type(None), np.int64, np.int32, np.bool_})
# Fields of parameter objects that say where something came from, or what it is called.
_LABELS = frozenset({"debug_info", "debug", "name_and_src_info", "origin", "src_info", "name_stack", "source_info"})
# Flags of code that tell functions apart by what calling them does.
_KINDS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
_KINDS |= inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
# Objects of JAX and its libraries are their attributes; other classes can hide state elsewhere.
_OPEN_MODULES = ("jax", "equinox", "lineax", "optimistix", "diffrax", "functools")


def same_array(left: Any, right: Any) -> bool:
    """Whether two array-like values have the same shape, dtype and bits (NaN payloads, -0.0).

    Typed PRNG keys are equal by implementation and key data. NumPy and JAX arrays may be mixed.
    """
    if left is right:
        return True
    if jax_compat.is_key(left) or jax_compat.is_key(right):
        if not (jax_compat.is_key(left) and jax_compat.is_key(right)) or left.dtype != right.dtype:
            return False
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == object:
        return bool(np.all(left == right))
    if left.ndim == 0 or left.nbytes < 4096:
        return left.tobytes() == right.tobytes()
    return np.array_equal(_as_bytes(left), _as_bytes(right))


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def same_constant(left: Any, left_aval: Any, right: Any, right_aval: Any) -> bool:
    """Whether two constants (values of Literals or of constvars) are the same array.

    The dtype is that of the aval: a Python scalar in a Literal has none of its own. Weak types need
    not agree: where one matters, it shows in the outputs of the equation that reads the constant.
    """
    if left_aval is not right_aval:
        if getattr(left_aval, "dtype", None) != getattr(right_aval, "dtype", None):
            return False
        if getattr(left_aval, "shape", None) != getattr(right_aval, "shape", None):
            return False
    if left is right:
        return True
    if type(left) is type(right) and isinstance(left, (int, float)) and left == right != 0:  # zeros have signs
        return True
    dtype = getattr(left_aval, "dtype", None)
    if isinstance(dtype, np.dtype) and left_aval.shape == ():
        return _with_dtype(left, dtype).tobytes() == _with_dtype(right, dtype).tobytes()
    if jax_compat.is_ref(left) or jax_compat.is_ref(right):
        return False  # two refs are two places
    if jax_compat.is_key(left) or jax_compat.is_key(right):
        return same_array(left, right)
    return same_array(_with_dtype(left, dtype), _with_dtype(right, dtype))


def _with_dtype(value: Any, dtype: Any) -> np.ndarray:
    array = np.asarray(value)
    if dtype is None or array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):  # out of range is the program's business
        return array.astype(dtype)


def same_float(left: float, right: float) -> bool:
    return struct.pack("<d", left) == struct.pack("<d", right)


@dataclasses.dataclass
class Values:
    """Compares parameter values; `same_jaxpr` is asked about every pair of jaxprs inside them."""

    same_jaxpr: Callable[[Any, Any], bool]
    # Pairs under comparison: objects may refer to themselves.
    _open: set[tuple[int, int]] = dataclasses.field(default_factory=set)

    def same(self, left: Any, right: Any) -> bool:
        """Whether two parameter values mean the same."""
        if left is right:
            return True
        kind = type(left)
        if kind is type(right):
            if kind in _EXACT:
                return bool(left == right)
            if kind is float:
                return same_float(left, right)
            if kind is dict:
                return left.keys() == right.keys() and all(self.same(v, right[k]) for k, v in left.items())
        if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
            return len(left) == len(right) and _name(left) == _name(right) and all(map(self.same, left, right))
        if jax_compat.is_jaxpr(left) and jax_compat.is_jaxpr(right):
            return self.same_jaxpr(left, right)
        if isinstance(left, (int, np.integer)) and isinstance(right, (int, np.integer)):
            return int(left) == int(right)
        if isinstance(left, (float, np.floating)) and isinstance(right, (float, np.floating)):
            return same_float(float(left), float(right))
        if isinstance(left, (complex, np.complexfloating)) and isinstance(right, (complex, np.complexfloating)):
            left, right = complex(left), complex(right)
            return same_float(left.real, right.real) and same_float(left.imag, right.imag)
        return self._same_object(left, right)

    def _same_object(self, left: Any, right: Any) -> bool:
        if isinstance(left, (np.ndarray, np.generic, jax.Array)):
            is_array = isinstance(right, (np.ndarray, np.generic, jax.Array))
            return is_array and same_array(left, right)
        if left is None or right is None:  # a sharding over no mesh at all asks for nothing
            return jax_compat.is_trivial_sharding(right if left is None else left)
        counts = jax_compat.leaf_counts(left)
        if counts is not None:
            return counts == jax_compat.leaf_counts(right)
        # Where something came from: no part of what it is.
        if type(left).__name__ in ("DebugInfo", "Traceback") and type(right) is type(left):
            return True
        # A stand-in calls what it was given, which is the original's own function here.
        right = getattr(right, "function", right) if type(right) is types.FunctionType else right
        try:
            if bool(left == right):
                return True
        except Exception:  # `==` of a foreign class may do anything
            pass
        pair = (id(left), id(right))
        if pair in self._open:
            return True
        self._open.add(pair)
        try:
            if isinstance(left, jax.tree_util.PyTreeDef):
                return isinstance(right, type(left)) and self._same_tree(left, right)
            if isinstance(left, types.FunctionType) and isinstance(right, types.FunctionType):
                return self._same_function(left, right)
            return self._same_attributes(left, right)
        finally:
            self._open.discard(pair)

    def _same_attributes(self, left: Any, right: Any) -> bool:
        kind = type(left)
        if kind is not type(right):
            return False
        if kind is functools.partial:
            return (
                self.same(left.func, right.func)
                and self.same(left.args, right.args)
                and self.same(left.keywords, right.keywords)
            )
        if kind is types.MethodType:
            same_self = self.same(left.__self__, right.__self__)
            return same_self and self.same(left.__func__, right.__func__)
        if dataclasses.is_dataclass(left):
            names = [f.name for f in dataclasses.fields(left)]
        elif kind.__module__.split(".")[0] in _OPEN_MODULES and getattr(left, "__dict__", None):
            if left.__dict__.keys() != right.__dict__.keys():
                return False
            names = list(left.__dict__)
        else:
            return False
        return all(self.same(getattr(left, n, None), getattr(right, n, None)) for n in names if n not in _LABELS)

    def _same_tree(self, left: Any, right: Any) -> bool:
        """Two structures that are not equal by `==` alone: metadata may hold places in the source."""
        a, b = left.node_data(), right.node_data()
        if a is None or b is None:
            return a is b and left == right
        children, others = left.children(), right.children()
        return (
            a[0] is b[0]
            and self.same(a[1], b[1])
            and len(children) == len(others)
            and all(map(self.same, children, others))
        )

    def _same_function(self, left: Any, right: Any) -> bool:
        """Two closures of one piece of code over the same things, reading the same globals."""
        a, b = left.__code__, right.__code__
        if a is not b and (
            a.co_code != b.co_code
            or a.co_names != b.co_names
            or a.co_freevars != b.co_freevars
            or _arguments(a) != _arguments(b)
            or not self._same_code_constants(a.co_consts, b.co_consts)
        ):
            return False
        if left.__globals__ is not right.__globals__:
            missing = object()
            for name in a.co_names:
                if left.__globals__.get(name, missing) is not right.__globals__.get(name, missing):
                    return False
        return (
            self.same(left.__defaults__, right.__defaults__)
            and self.same(left.__kwdefaults__, right.__kwdefaults__)
            and self.same(_cells(left), _cells(right))
        )

    def _same_code_constants(self, left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
        # Nested functions are code objects; `==` compares their line numbers too: "different" then.
        return len(left) == len(right) and all(map(self.same, left, right))


def _name(value: Any) -> str:
    """What a namedtuple is called; lists and tuples are alike."""
    return "" if type(value) in (tuple, list) else type(value).__qualname__


def _arguments(code: types.CodeType) -> tuple[Any, ...]:
    """How a function takes its arguments and what kind it is. Where it was defined has flags too: they mean nothing here."""
    count = code.co_argcount + code.co_kwonlyargcount
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    return *counts, code.co_varnames[:count], code.co_flags & _KINDS


def _cells(function: Any) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            cells.append(None)
    return cells
