"""The printer of the targets that compute at once: what they spell otherwise than the one for JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Constant, Equation, Function, Library, Value
from untrace.ir.said import SaidArray, SaidComputed
from untrace.ir.types import Aval
from untrace.module.library_calls import arguments
from untrace.module.rules import Groups
from untrace.module.writer import FunctionWriter, ModuleWriter
from untrace.python import helpers
from untrace.python.names import Scope
from untrace.python.statements import Assign
from untrace.python.tree import Binary, Call, Expr, Leaf, Name, Slice, Symbol, Text, Tuple
from untrace.targets.base import TREE_CALLS
from untrace.targets.eager.rules.parts import is_float


class EagerModule(ModuleWriter):
    """Collects what one module needs: as `ModuleWriter`.

    `target`: whose helpers it has. `claimed`: modules that the text may import, whose names nothing else may have.
    """

    target: ClassVar[str]
    claimed: ClassVar[Sequence[str]]
    tree_calls = TREE_CALLS

    def __init__(self, forced: frozenset[JaxprEqn] = frozenset(), standalone: bool = False, idiomatic: bool = False):
        super().__init__(forced, standalone, idiomatic)
        self.modules.add(self.namespace)
        self.describes_types = "types_in_words"
        for name in (*self.claimed, *helpers.names_at_end()):
            self.scope.claim_parameter(name)

    def helper(self, name: str) -> Text:
        if name != self.describes_types:  # which is for us
            own = helpers.key(name, self.target)
            super().helper(own if helpers.is_known(own) else name)
        return Text(name)

    def _write_constant(
        self, value: object, aval: object, base: str, said: SaidArray | SaidComputed | None = None
    ) -> Expr:
        if jax_compat.why_no_constant(value):
            return super()._write_constant(value, aval, base)  # which says what is wrong
        array = np.asarray(jax_compat.as_numpy(value))
        listed = self._listed(array, said)
        key = (array.dtype.name, array.shape, array.tobytes(), False, None if listed is None else listed.flat())
        known = self._constants_by_bits.get(key)
        return known or super()._write_constant(array, None, base, said)  # equal arrays are one here

    def numpy_constant(self, constant: Constant) -> Expr:
        return self.constant(constant)


class EagerFunction(FunctionWriter):
    """Writes one function's body; this is the `w` that rules get.

    `title`: the target as people write it. `updates`: what `x.at[index].add(y)` and its like do with both, as functions of
    the target, "" where `y` takes the place of the other. `reused`: values that are bound to a variable which is there already, a loop's.
    """

    title: ClassVar[str]
    updates: ClassVar[Mapping[str, str]]

    def __init__(self, module: ModuleWriter, scope: Scope):
        super().__init__(module, scope)
        self.reused: dict[Value, str] = {}

    def _target(self, output: Value, base: str) -> str:
        name = self.reused.get(output)
        if name is None:
            return super()._target(output, base)
        self.names[output] = Name(name, Symbol(output.hint if output.named else None))
        return name

    def in_block(self) -> EagerFunction:
        """A writer for what stands below a `for` or an `if` of this function, whose variables are this function's."""
        made = type(self)(self.module, self.scope)
        made.inside(self)
        made.names = dict(self.names)
        if made.sizes is not None:
            made.sizes = self.sizes
        return made

    def library_call(self, equation: Equation, operands: Sequence[Expr]) -> Expr | Groups:
        """As there; `x.at[1:-1].add(y)` is `_put(x, np.s_[1:-1], y, np.add)`."""
        kind, _, name = callee_of(equation, Library).name.partition(".")
        if kind != "at":
            return super().library_call(equation, operands)
        (x, index, y), _ = arguments(self, equation, operands)
        parts = index.elements if type(index) is Tuple else [index]
        if any(type(part) is Slice or part.flat() == "..." for part in parts):
            index = self.index(index)
        combine = self.updates[name]
        more = [Text(f"{self.module.namespace}.{combine}")] if combine else []
        return self.call(self.helper("_put"), x, index, y, *more)

    def index(self, parts: Expr) -> Expr:
        """What stands in the brackets of `x[1:-1, 0]`, as an argument."""
        raise NotImplementedError

    def backwards(self, rows: Expr) -> Expr:
        """An array in the other order along its first axis."""
        raise NotImplementedError

    def array(self, expr: Expr) -> Expr:
        return self.array_call("asarray", expr)

    def settled(self, equations: Sequence[Equation], results: Sequence[Atom]) -> Sequence[Equation]:
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
        name, title = equation.callee.name, self.title
        where = jax_compat.user_line(equation.origin) if equation.origin is not None else ""
        said = {k: "..." if isinstance(v, Function) else str(v)[:60] for k, v in equation.params.items()}
        params = ", ".join(f"{k}={v}" for k, v in said.items())
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for {title}, which has nothing for `{name}` [{params}]"
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

    def tensor(self, place: int, operand: Expr) -> Expr:
        """An operand as an array, where it may be a number and a helper wants none."""
        return operand

    def bound(self, value: float, aval: Aval) -> object:
        """What a maximum or a minimum begins with, in the type of an array, as a rule writes it."""
        return float(value) if is_float(aval) else value

    def where(self, condition: Expr, new: Expr, old: Expr, aval: Aval) -> Expr:
        """`new` where a condition holds, else `old`; aval: of both."""
        return self.array_call("where", condition, new, old)

    def chosen(self, number: Expr, cases: Sequence[Expr]) -> Expr:
        """That one of several arrays whose number it is."""
        found = cases[-1]
        for place in range(len(cases) - 2, -1, -1):
            found = self.array_call("where", Binary(number, "==", Text(str(place))), cases[place], found)
        return found
