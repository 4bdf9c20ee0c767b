"""A Program in the terms that a library of arrays has: what it cannot call, it has the body of.

Calls of JAX's library become calls of it where its function does the same, which is tried and not believed; the others,
jitted functions and functions with rules for derivatives become functions of the text. Small ones go into their callers.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.calls import function_run, is_call, replaces
from untrace.ir.nodes import (
    Atom,
    Cond,
    Equation,
    Function,
    Library,
    Literal,
    Local,
    OverLeaves,
    Pack,
    Primitive,
    Program,
    Scan,
    SizeNumbers,
    TreeMap,
    Unpack,
    Value,
    While,
    functions_called,
)
from untrace.ir.structured import CustomRule, Map, Pullback
from untrace.ir.types import Origin
from untrace.lift.recognise.engine import Lifter
from untrace.targets.eager.library import ArrayLibrary
from untrace.targets.eager.numbers import folded, with_numbers
from untrace.targets.eager.spelling import spelled
from untrace.targets.implementations import implementation

# Reductions by a function that is their parameter `jaxpr`.
_REDUCTIONS = frozenset({"reduce", "reduce_window"})
# Passes of the lift whose findings JAX alone has words for: the others have the equations instead.
WITHOUT = frozenset(
    {
        "checkpoints",
        "checkpoints-in-the-forward-pass",
        "associative-scans",
        "solvers",
        "pullbacks",
        "equal-pullbacks",
        "flat-trees",
        "tree-maps",
        "residuals",
    }
)
_SMALL = 2  # equations, of which a function would say less than they do


def lowered(program: Program, library: ArrayLibrary) -> None:
    """Lowers a program in place; its notes say which of the author's rules for derivatives are not in it.

    Raises UnsupportedPrimitiveError for all primitives at once that the library has no rule for, and for all types that it
    has not, each with the author's line.
    """
    lowering = _Lowering(library, program.numbers)
    lowering.function(program.entry)
    for value in [*program.entry.params, *program.entry.results]:
        if not library.has_type(value.aval.dtype):
            lowering.missing.append(f"`{value.aval.dtype}`, of arguments or results")
    if lowering.missing:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(lowering.missing))
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for {library.title}, which has nothing for:\n{lines}\n"
            "Compute these parts outside of the function, or write it for JAX."
        )
    if lowering.ruled_by_author and library.other_derivatives:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(lowering.ruled_by_author))
        program.notes += (
            f"{library.title} differentiates what {names} computes: the derivative rule is not in the text",
        )


class _Lowering:
    def __init__(self, library: ArrayLibrary, sizes: SizeNumbers | None):
        self.library = library
        self.sizes = sizes
        self.done: set[Function] = set()
        self.missing: list[str] = []
        # Whether what was lowered so far had functions with rules for derivatives, which are gone.
        self.has_rules = False
        self.ruled: set[Function] = set()  # functions of which that is so
        self.around: list[str] = []  # the author's lines of the calls that it is inside of
        self.in_library: tuple[str, ...] = ()  # the library's calls whose bodies it is inside of
        self.ruled_by_author: list[str] = []  # names of functions with a rule

    def function(self, function: Function) -> Function:
        """The same function, with equations that the library has."""
        if function in self.done:
            self.has_rules = self.has_rules or function in self.ruled
            return function
        self.done.add(function)
        outer, self.has_rules = self.has_rules, False
        self._equations(function)
        if self.has_rules:
            self.ruled.add(function)
        self.has_rules = self.has_rules or outer
        function.results = [_strong(r) for r in function.results]
        return function

    def _equations(self, function: Function) -> None:
        found: list[Equation] = []
        new: dict[Value, Atom] = {}  # results of what went into this function -> what they are there
        factors = _for_solvers(function)
        for equation in function.equations:
            inputs = [_read(new, a) for a in equation.inputs]
            output = equation.outputs[0] if equation.outputs else None
            number = folded(equation, inputs, self.sizes) if self.in_library else None
            if equation.callee.name == "stop_gradient" and output in factors:
                new[output] = inputs[0]
            elif number is not None and output is not None:
                new[output] = number
            else:
                self._equation(equation, inputs, found, new)
        function.results = [_read(new, a) for a in function.results]
        function.equations = _read_later(found, function.results) if self.in_library else found

    def _equation(
        self, equation: Equation, inputs: Sequence[Atom], found: list[Equation], new: dict[Value, Atom]
    ) -> None:
        callee, origin = equation.callee, equation.origin
        outputs = equation.outputs
        if type(callee) is Library:
            own = spelled(self.library, callee, inputs, outputs)
            if own is None:
                outer, self.in_library = self.in_library, (*self.in_library, callee.name)
                if callee.body not in self.done and not any(map(_is_narrow, (*inputs, *outputs))):
                    Lifter(without=self.in_library).lift_function(callee.body)
                self._call(callee.body, callee.name, inputs, equation, found, new)
                self.in_library = outer
                return
            found.append(Equation(own, inputs, outputs, {}, origin))
        elif type(callee) is Local:
            self.function(callee.body)
            found.append(Equation(callee, [_strong(a) for a in inputs], outputs, equation.params, origin))
        elif type(callee) is TreeMap:
            for turn, (function, output) in enumerate(zip(callee.turns, outputs, strict=True)):
                one = Equation(callee, inputs, [output], {}, origin)
                self._call(function, callee.function, callee.arguments(inputs, turn), one, found, new)
        elif isinstance(callee, OverLeaves):
            for one in callee.equations:
                self._equation(one, [_read(new, a) for a in one.inputs], found, new)
        elif type(callee) is Pack or type(callee) is Unpack:
            found.append(Equation(callee, inputs, outputs, equation.params, origin))
        elif is_call(equation) and type(callee) is not Pullback:
            outer, self.has_rules = self.has_rules, False
            for body in functions_called(equation):
                self.function(body)
            known = self.library.rules.find(callee.name) is not None
            differs = self.has_rules or not self.library.other_derivatives.isdisjoint(_primitives(equation))
            if not known or differs and type(callee) is not Map:
                self._miss(callee.name, origin)
            self.has_rules = self.has_rules or outer
            found.append(Equation(callee, [_strong(a) for a in inputs], outputs, equation.params, origin))
        elif isinstance(callee, Scan | While | Cond):
            for body in callee.bodies:
                self.function(body)
            chosen = 1 if type(callee) is Cond else 0  # which branch is a number of Python's, if it is known
            given = [*inputs[:chosen], *[_strong(a) for a in inputs[chosen:]]]
            found.append(Equation(callee, given, outputs, equation.params, origin))
        elif (run := function_run(equation, inputs)) is not None:
            if type(callee) is CustomRule:
                self.has_rules = True
                self.ruled_by_author += [callee.function.name or callee.name] * (not self.in_library)
            self._call(run[0], run[0].name or callee.name, run[1], equation, found, new)
        elif not self._is_known(equation) and (own := implementation(equation)) is not None:
            self._call(own, callee.name, inputs, equation, found, new)
        else:
            if self.library.rules.find(callee.name) is None:
                self._miss(callee.name, origin)
            for output in outputs:
                if output is not None and not self.library.has_type(output.aval.dtype):
                    self._miss(str(output.aval.dtype), origin)
            if callee.name in _REDUCTIONS:
                self.function(equation.params["jaxpr"])
            # Each operand of a pullback is of the type of one result, not one beside another.
            is_pullback = type(callee) is Pullback
            given = [_strong(a) for a in inputs] if is_pullback else self._typed(callee.name, inputs)
            found.append(Equation(callee, given, outputs, equation.params, origin))

    def _call(
        self,
        body: Function,
        name: str,
        inputs: Sequence[Atom],
        equation: Equation,
        found: list[Equation],
        new: dict[Value, Atom],
    ) -> None:
        """A call of a body, or the body itself where that is small."""
        if self.in_library and body not in self.done:
            body, inputs = with_numbers(body, inputs, self.sizes)
        self.around.append(_line(equation.origin))
        self.function(body)
        self.around.pop()
        body.name = body.name or name
        if name.startswith(("jnp.", "jax.", "lax.", "method.", "at.", "attribute.", "operator.", "vmap.", "item.")):
            body.name = name.rpartition(".")[2]
        live = [o for o in equation.outputs if o is not None]
        inside_library = len(self.in_library) > 1  # whose own functions say no more than they do
        size = 0 if inside_library else len(body.equations)
        if size > _SMALL or any(type(e.callee) not in (Primitive, Local, Library) for e in body.equations):
            called = Equation(Local(body), [_strong(a) for a in inputs], equation.outputs, {}, equation.origin)
            found.append(called)
            return
        inside: dict[Value, Atom] = dict(zip(body.params, inputs, strict=True))
        for one in body.equations:
            outputs = [None if o is None else _like(o) for o in one.outputs]
            for old, made in zip(one.outputs, outputs, strict=True):
                if old is not None and made is not None:
                    inside[old] = made
            given = [_read(inside, a) for a in one.inputs]
            if type(one.callee) is Local:
                given = [_strong(a) for a in given]
            elif type(one.callee) is Primitive:
                given = self._typed(one.callee.name, given)
            found.append(Equation(one.callee, given, outputs, one.params, one.origin or equation.origin))
        for output, result in zip(equation.outputs, body.results, strict=True):
            if output is None:
                continue
            made = _read(inside, result)
            new[output] = made
            if type(made) is Value and made not in inputs and len(live) == 1:
                made.hint, made.named, made.named_inside = output.hint, output.named, output.named_inside

    def _is_known(self, equation: Equation) -> bool:
        """Whether the library's rules have a primitive; those of `scatter` know no function that makes the new elements."""
        name = equation.callee.name
        is_applied = name == "scatter" and not replaces(equation.params["update_jaxpr"])
        return not is_applied and self.library.rules.find(name) is not None

    def _miss(self, word: str, origin: Origin) -> None:
        where = next((line for line in (_line(origin), *self.around[::-1]) if line), "")
        self.missing.append(f"`{word}`{' from ' + where if where else ''}")

    def _typed(self, primitive: str, inputs: Sequence[Atom]) -> list[Atom]:
        """Operands of a primitive: Python's numbers only beside an array in whose type they are taken."""
        types = [a.aval.dtype for a in inputs if type(a) is not Literal]
        arrays = {t for t in types if isinstance(t, np.dtype) and self.library.takes_numbers(t)}
        if primitive in self.library.without_numbers:
            arrays = set()
        found = [_strong(a) if type(a) is Literal and a.aval.dtype not in arrays else a for a in inputs]
        return [bare(a) if a.aval.dtype in arrays else a for a in found] if self.library.bare else found


def _for_solvers(function: Function) -> set[Value]:
    """What nothing but solvers of linear equations read, to solve with: factors of a matrix, and the matrix before them.

    JAX takes derivatives of a solution by the product alone, so that it need not follow these, and stops there. Where the
    solver's body is all that is left of it, derivatives come by way of them.
    """
    other: set[Atom] = set(function.results)
    read: set[Value] = set()
    for equation in reversed(function.equations):
        solves = range(0)
        if equation.callee.name == "custom_linear_solve":
            counts = equation.params["const_lengths"]
            solves = range(counts.matvec + counts.vecmat, sum(counts))
        wanted = [o for o in equation.outputs if o is not None and (o in other or o in read)]
        passes = bool(wanted) and other.isdisjoint(wanted) and type(equation.callee) is Primitive
        for place, atom in enumerate(equation.inputs):
            if type(atom) is Value:
                (read if passes or place in solves else other).add(atom)
    return read - other


def _read_later(equations: Sequence[Equation], results: Sequence[Atom]) -> list[Equation]:
    """The equations without primitives of which nothing reads what they give: cases that a number did not choose."""
    read: set[Atom] = set(results)
    kept: list[Equation] = []
    for equation in reversed(equations):
        if (
            type(equation.callee) is not Primitive
            or equation.effects
            or not read.isdisjoint(filter(None, equation.outputs))
        ):
            kept.append(equation)
            read.update(equation.inputs)
    return kept[::-1]


def _primitives(equation: Equation) -> set[str]:
    """The primitives that an equation runs, by name; of a call of the library, the last word of its path."""
    found: set[str] = set()
    stack = functions_called(equation)
    while stack:
        for one in stack.pop().equations:
            found.add(one.callee.name.rpartition(".")[2] if type(one.callee) is Library else one.callee.name)
            stack += functions_called(one) if type(one.callee) is not Local else [one.callee.body]
    return found


def _line(origin: Origin) -> str:
    return jax_compat.user_line(origin) if origin is not None else ""


def _is_narrow(value: Atom | None) -> bool:
    """Whether it is of floats in which no sum may be made, as some of the library's own calls do (`x.sum()`)."""
    dtype = None if value is None else getattr(value.aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.floating) and dtype.itemsize < 4


def _read(new: dict[Value, Atom], atom: Atom) -> Atom:
    return new.get(atom, atom) if type(atom) is Value else atom


def _like(value: Value) -> Value:
    made = Value(value.aval, value.hint)
    made.named, made.named_inside = value.named, value.named_inside
    return made


def _strong(atom: Atom) -> Atom:
    """A number with its type: a function, a loop or a caller may do with it what Python's own number does otherwise."""
    if type(atom) is not Literal or not atom.aval.weak_type:
        return atom
    return Literal(np.asarray(atom.value, atom.aval.dtype)[()], jax.core.ShapedArray(atom.aval.shape, atom.aval.dtype))


def bare(atom: Atom) -> Atom:
    """A number as Python's own."""
    if type(atom) is not Literal or atom.aval.weak_type or atom.aval.shape:
        return atom
    return Literal(atom.value, jax.core.ShapedArray((), atom.aval.dtype, weak_type=True))
