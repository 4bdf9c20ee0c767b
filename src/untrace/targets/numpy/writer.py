"""The printer of the NumPy target: what it spells otherwise than the one for JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.nodes import Constant, Equation, Value
from untrace.module.writer import FunctionWriter, ModuleWriter
from untrace.python import helpers
from untrace.python.names import Scope
from untrace.python.statements import Assign
from untrace.python.tree import Call, Expr, Leaf, Name, Symbol, Text
from untrace.python.values import Values
from untrace.targets.numpy.rules.table import NUMPY

# What the printer asks for by the name of JAX's own helper, where NumPy's has another text.
_HELPERS = {"_checked": "_checked_arrays"}


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


class NumpyModule(ModuleWriter):
    """Collects what one module needs: as `ModuleWriter`."""

    rules = NUMPY
    namespace = "np"

    def __init__(self, forced: frozenset[JaxprEqn] = frozenset(), standalone: bool = False, idiomatic: bool = False):
        super().__init__(forced, standalone, idiomatic)
        self.values = NumpyValues(self.modules)
        self.modules.add("np")
        self.describes_types = "types_in_words"
        for name in ("scipy", "ml_dtypes", *helpers.names_at_end()):
            self.scope.claim_parameter(name)
        self.entry_decorators = [Call("np.errstate", [], [("all", Text('"ignore"'))])]

    def writer(self) -> FunctionWriter:
        return NumpyFunction(self, Scope(self.scope))

    def helper(self, name: str) -> Text:
        if name != self.describes_types:  # which is for us
            super().helper(_HELPERS.get(name, name))
        return Text(name)

    def _write_constant(self, value: Any, aval: Any, base: str) -> Expr:
        if jax_compat.is_ref(value) or jax_compat.is_tracer(value):
            return super()._write_constant(value, aval, base)  # which says what is wrong
        array = np.asarray(jax_compat.as_numpy(value))
        known = self._constants_by_bits.get((array.dtype.name, array.shape, array.tobytes(), False))
        return known or super()._write_constant(array, None, base)  # to NumPy equal arrays are one

    def _as_array(self, expr: Expr, array: np.ndarray) -> Expr:
        return expr

    def numpy_constant(self, constant: Constant) -> Expr:
        return self.constant(constant)


class NumpyFunction(FunctionWriter):
    """Writes one function's body; this is the `w` that rules get.

    `reused`: values that are bound to a variable which is there already, a loop's.
    """

    def __init__(self, module: ModuleWriter, scope: Scope):
        super().__init__(module, scope)
        self.reused: dict[Value, str] = {}

    def _target(self, output: Value, base: str) -> str:
        name = self.reused.get(output)
        if name is None:
            return super()._target(output, base)
        self.names[output] = Name(name, Symbol(output.hint if output.named else None))
        return name

    def in_block(self) -> NumpyFunction:
        """A writer for what stands below a `for` or an `if` of this function, whose variables are this function's."""
        made = NumpyFunction(self.module, self.scope)
        made.inside(self)
        made.names = dict(self.names)
        if made.sizes is not None:
            made.sizes = self.sizes
        return made

    def np(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """`np.name(*args, **kwargs)`; arguments that are not expressions are written as values."""
        self.module.modules.add("np")
        return self._call("np." + name, args, kwargs)

    def array(self, expr: Expr) -> Expr:
        return self.np("asarray", expr)

    def settled(self, equations: Sequence[Equation]) -> Sequence[Equation]:
        return equations  # maps over trees are not looked for

    def helper(self, name: str) -> Name:
        """The name of a helper that the module then has."""
        return Name(self.module.helper(name).flat())

    def dtype(self, dtype: Any) -> Expr:
        return self.module.values.dtype(dtype)

    def call(self, path: str | Expr, *args: Any, **kwargs: Any) -> Call:
        made = self._call("", args, kwargs)
        return Call(path, made.args, made.kwargs)

    def bind(self, equation: Equation, operands: Sequence[Expr]) -> Expr:
        """Raises: a primitive is not there to be bound."""
        name = equation.callee.name
        where = jax_compat.user_line(equation.origin) if equation.origin is not None else ""
        params = ", ".join(f"{k}={str(v)[:60]}" for k, v in equation.params.items())
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for NumPy, which has nothing for `{name}` [{params}]"
            f"{' from ' + where if where else ''}. Compute this part outside of the function, or write it for JAX."
        )

    def named_value(self, atom: Any, base: str) -> Expr:
        """A variable or a constant for a value that a loop reads at each turn: an expression is computed once, before it."""
        expr = self.atom(atom)
        if isinstance(expr, Name | Leaf | Text):
            return expr
        name = self.scope.fresh(base)
        self.statements.append(Assign([name], expr))
        return Name(name)
