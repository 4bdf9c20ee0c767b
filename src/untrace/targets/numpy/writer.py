"""The printer of the NumPy target: what it spells otherwise than the other targets that compute at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Library
from untrace.module.library_calls import arguments
from untrace.module.rules import Groups
from untrace.module.writer import FunctionWriter
from untrace.python.names import Scope
from untrace.python.tree import Call, Expr, Slice, Subscript, Text, Tuple
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
        """`np.float32(0.1)`, also of infinities and NaN."""
        array = np.asarray(value)
        if array.dtype.kind == "f" and array.dtype.isbuiltin == 1 and not np.isfinite(array):
            word = "np.nan" if np.isnan(array) else "np.inf" if array > 0 else "-np.inf"
            self.modules.add("np")
            return Text(f"np.{array.dtype.name}({word})")
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

    def _as_array(self, expr: Expr, array: np.ndarray) -> Expr:
        return expr


class NumpyFunction(EagerFunction):
    """Writes one function's body; this is the `w` that rules get."""

    title = "NumPy"

    def np(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """`np.name(*args, **kwargs)`; arguments that are not expressions are written as values."""
        return self.array_call(name, *args, **kwargs)

    def library_call(self, equation: Equation, operands: Sequence[Expr]) -> Expr | Groups:
        """As there; `x.at[1:-1].add(y)` is `_put(x, np.s_[1:-1], y, np.add)`."""
        kind, _, name = callee_of(equation, Library).name.partition(".")
        if kind != "at":
            return super().library_call(equation, operands)
        (x, index, y), _ = arguments(self, equation, operands)
        parts = index.elements if type(index) is Tuple else [index]
        if any(type(part) is Slice or part.flat() == "..." for part in parts):
            index = Subscript(Text("np.s_"), index)
        combine = UPDATES[name]
        more = [] if combine is None else [Text(f"np.{combine.__name__}")]
        return self.call(self.helper("_put"), x, index, y, *more)

    def backwards(self, rows: Expr) -> Expr:
        return Subscript(rows, Slice(None, None, Text("-1")))
