"""The printer of the NumPy target: what it spells otherwise than the other targets that compute at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.said import SaidArray, SaidComputed
from untrace.module.writer import FunctionWriter
from untrace.python.names import Scope
from untrace.python.tree import Attribute, Call, Expr, Slice, Subscript, Text
from untrace.python.values import Values
from untrace.targets.eager.writer import EagerFunction, EagerModule
from untrace.targets.numpy.library import UPDATES
from untrace.targets.numpy.rules.table import NUMPY


class NumpyValues(Values):
    """Values as source, with NumPy's dtypes."""

    def dtype(self, dtype: Any) -> Expr:
        """`np.float32`; those of `ml_dtypes`, which NumPy has no names for, as `ml_dtypes.bfloat16`."""
        kind = np.dtype(dtype)
        if kind.isbuiltin == 1:
            self.modules.add("np")
            return Text(f"np.{'bool_' if kind == np.bool_ else kind.name}")
        self.modules.add("ml_dtypes")
        return Text(f"ml_dtypes.{kind.name}")

    def numpy_scalar(self, value: Any) -> Expr:
        """`np.float32(0.1)`, and `ml_dtypes.bfloat16(0.1)`."""
        array = np.asarray(value)
        if array.dtype.kind == "V" and np.isfinite(array.astype(np.float64)):  # a type of ml_dtypes
            return Call(self.dtype(array.dtype), [Text(repr(float(array)))])
        return super().numpy_scalar(value)


class NumpyModule(EagerModule):
    """Collects what one module needs: as `ModuleWriter`."""

    rules = NUMPY
    namespace = "np"
    target = "numpy"
    claimed = ("scipy", "ml_dtypes")

    def __init__(self, forced: frozenset[JaxprEqn] = frozenset(), standalone: bool = False, idiomatic: bool = False):
        super().__init__(forced, standalone, idiomatic)
        self.values = NumpyValues(self.modules)
        self.entry_decorators = [Call("np.errstate", [], [("all", Text('"ignore"'))])]

    def writer(self) -> FunctionWriter:
        return NumpyFunction(self, Scope(self.scope))

    def _write_constant(
        self, value: object, aval: object, base: str, said: SaidArray | SaidComputed | None = None
    ) -> Expr:
        if type(said) is not SaidComputed or not said.is_numpy:
            return super()._write_constant(value, aval, base, said)
        array = np.asarray(jax_compat.as_numpy(value))
        if array.dtype == said.value.dtype and said.name:
            return self.computed_named(said)
        dtype = self.values.dtype(array.dtype)
        return self.converted(said, base, array, lambda whole: Call(Attribute(whole, "astype"), [dtype]))


class NumpyFunction(EagerFunction):
    """Writes one function's body; this is the `w` that rules get."""

    title = "NumPy"
    updates = UPDATES

    def np(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """`np.name(*args, **kwargs)`; arguments that are not expressions are written as values."""
        return self.array_call(name, *args, **kwargs)

    def index(self, parts: Expr) -> Expr:
        """`np.s_[1:-1]`."""
        return Subscript(Text("np.s_"), parts)

    def backwards(self, rows: Expr) -> Expr:
        return Subscript(rows, Slice(None, None, Text("-1")))
