"""The printer of the PyTorch target: what it spells otherwise than the other targets that compute at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace.ir.nodes import Literal
from untrace.ir.types import Aval
from untrace.module.writer import FunctionWriter
from untrace.python.names import Scope
from untrace.python.tree import UNARY, Attribute, Binary, Call, Expr, Slice, Text, Tuple
from untrace.python.values import Values, number_text
from untrace.targets.eager.writer import EagerFunction, EagerModule
from untrace.targets.torch.library import UPDATES
from untrace.targets.torch.rules.table import TORCH
from untrace.targets.torch.tensors import INSIDE, word_bits

# Constructors of NumPy, and what PyTorch calls them.
_CONSTRUCTORS = {f"np.{name}": f"torch.{name}" for name in ("zeros", "full", "arange", "eye")} | {
    "np.array": "torch.tensor"
}


class TorchValues(Values):
    """Values as source, with PyTorch's dtypes; unsigned integers of 16 and 32 bits are wider ones."""

    def dtype(self, dtype: Any) -> Expr:
        self.modules.add("torch")
        return Text(f"torch.{INSIDE[np.dtype(dtype).name]}")

    def scalar(self, value: Any, dtype: Any, weak: bool) -> Expr:
        """A number beside a tensor is Python's own, of whatever type the tensor is."""
        array = np.asarray(value, dtype)
        text = number_text(array[()]) if weak and array.dtype.kind != "c" else None
        if text is not None:
            return Text(text, UNARY if text.startswith("-") else 14)
        return super().scalar(value, dtype, weak)

    def numpy_scalar(self, value: Any) -> Expr:
        """`torch.tensor(0.1, dtype=torch.float32)`."""
        return self.array(np.asarray(value))

    def array(self, value: Any) -> Expr:
        array = np.array(value)
        if word_bits(array.dtype):
            array = array.astype(INSIDE[array.dtype.name])
        if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
            array[np.isnan(array)] = np.nan  # a text has one NaN
        made = super().array(array)
        assert isinstance(made, Call)
        if isinstance(made.func, str):
            return Call(_CONSTRUCTORS[made.func], made.args, made.kwargs)
        assert array.dtype.kind == "c"  # with parts that are not finite, which no literal gives
        return Call("torch.complex", [self.array(array.real), self.array(array.imag)])


class TorchModule(EagerModule):
    """Collects what one module needs: as `ModuleWriter`."""

    rules = TORCH
    namespace = "torch"
    target = "torch"
    claimed = ("torch", "math", "F")
    import_lines = {"torch": "import torch", "F": "import torch.nn.functional as F"}

    def __init__(self, forced: frozenset[JaxprEqn] = frozenset(), standalone: bool = False, idiomatic: bool = False):
        super().__init__(forced, standalone, idiomatic)
        self.values = TorchValues(self.modules)

    def writer(self) -> FunctionWriter:
        return TorchFunction(self, Scope(self.scope))

    def _as_array(self, expr: Expr, array: np.ndarray) -> Expr:
        """A tensor of what is read from the file beside the module."""
        if not isinstance(expr, Call) or expr.func != "_constants":
            return expr
        self.modules.update(("np", "torch"))
        stored = "int16" if array.dtype.name == "bfloat16" else "bool_" if array.dtype == np.bool_ else array.dtype.name
        read = Call("np.array", [Call("_constants", [expr.args[0], Text(f"np.{stored}")])])
        made = Call("torch.from_numpy", [read])
        if array.dtype.name == "bfloat16":
            return Call(Attribute(made, "view"), [Text("torch.bfloat16")])
        return Call(Attribute(made, "to"), [self.values.dtype(array.dtype)]) if word_bits(array.dtype) else made


class TorchFunction(EagerFunction):
    """Writes one function's body; this is the `w` that rules get."""

    title = "PyTorch"
    updates = UPDATES

    def torch(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """`torch.name(*args, **kwargs)`; arguments that are not expressions are written as values."""
        return self.array_call(name, *args, **kwargs)

    def functional(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """`F.name(*args, **kwargs)`, of `torch.nn.functional`."""
        self.module.modules.add("F")
        return self._call(f"F.{name}", args, kwargs)

    def method(self, x: Expr, name: str, *args: Any, **kwargs: Any) -> Call:
        """`x.name(*args, **kwargs)`."""
        return self.call(Attribute(x, name), *args, **kwargs)

    def cast(self, x: Expr, dtype: Any) -> Call:
        """`x.to(torch.float32)`."""
        return Call(Attribute(x, "to"), [self.dtype(dtype)])

    def wrapped(self, x: Expr, dtype: Any) -> Expr:
        """What arithmetic gives, without the bits that its type has not."""
        bits = word_bits(dtype)
        return x if bits is None else Binary(x, "&", Text(hex((1 << bits) - 1)))

    def number(self, place: int) -> float | int | None:
        """An operand that stands in the text as a Python number; None for a tensor."""
        atom = self.equation.inputs[place]
        return np.asarray(atom.value).item() if type(atom) is Literal and atom.aval.weak_type else None

    def tensor(self, place: int, operand: Expr) -> Expr:
        """An operand as a tensor, where it may be a number."""
        if self.number(place) is None:
            return operand
        return self.module.values.numpy_scalar(np.asarray(self.number(place), self.avals[place].dtype))

    def literal(self, literal: Literal) -> Expr:
        """A number that follows sizes, where it has a type, as a tensor."""
        found = super().literal(literal)
        is_typed = isinstance(found, Call) and str(found.func) == f"np.{literal.aval.dtype.name}"
        if not is_typed:
            return found
        assert isinstance(found, Call)
        return Call("torch.tensor", found.args, [("dtype", self.dtype(literal.aval.dtype))])

    def index(self, parts: Expr) -> Expr:
        """`(slice(1, -1), 0)`."""
        if type(parts) is Tuple:
            return Tuple([self.index(part) for part in parts.elements])
        if type(parts) is not Slice:
            return parts
        ends = [parts.start, parts.stop] if parts.step is None else [parts.start, parts.stop, parts.step]
        return Call("slice", [Text("None") if end is None else end for end in ends])

    def backwards(self, rows: Expr) -> Expr:
        return self.method(rows, "flip", 0)

    def count(self, expr: Expr) -> Expr:
        return Call(Attribute(expr, "numel"), [])

    def bound(self, value: float, aval: Aval) -> object:
        if not np.isinf(value):
            return super().bound(value, aval)
        return Text("torch.inf") if value > 0 else Text("-torch.inf", UNARY)
