"""From the functions of a lifted Program to those of C, as `loops` has them.

What an equation computes stays an expression until it is read: by one reader it becomes a part of that, for several, or under
a name of the author's, it goes into a buffer of its own. Loops that belong together are made one later (`fuse`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import (
    Atom,
    Cond,
    Constant,
    Equation,
    Function,
    Literal,
    Local,
    OverLeaves,
    Pack,
    Primitive,
    Scan,
    TreeMap,
    Unpack,
    Value,
    While,
)
from untrace.ir.types import Aval, Origin
from untrace.targets.c import control
from untrace.targets.c.arrays import Array, bounds, int_of, narrowed, number, stored, widened
from untrace.targets.c.flat import Flat, flat
from untrace.targets.c.loops import (
    BOOL,
    Buffer,
    CFunction,
    Expr,
    Invoke,
    Loop,
    Num,
    Op,
    Read,
    Stmt,
    Var,
    Write,
    accesses,
)
from untrace.targets.c.narrow import NARROW
from untrace.targets.c.optimise import optimise
from untrace.targets.c.rules.table import C, Declined, Rule
from untrace.targets.c.types import TYPES, dtype_of, is_key, shape_of

# Primitives that take or give keys, and not only move them.
_OF_KEYS = frozenset(
    {"random_wrap", "random_unwrap", "random_clone", "random_seed", "random_bits", "random_split", "random_fold_in"}
)
# Those that move floats of 16 bits as they stand, and those for which it matters which ones there are.
_IN_ANY_TYPE = frozenset(
    {"bitcast_convert_type", "copy", "copy_p", "device_put", "stop_gradient", "optimization_barrier", "name", "pvary",
     "reshard", "sharding_constraint", "reduce_precision"}
)  # fmt: skip
_OF_NEIGHBOURS = frozenset({"nextafter", "random_bits"})
_WIDE = np.dtype(np.float32)
_LONG = 12  # operations in an expression, beyond which nobody reads it


class Unit:
    """The functions of one C file, those that are called first; its tables; and, in sentences, what could not be written
    (`missing`), and what is left out (`notes`)."""

    def __init__(self) -> None:
        self.functions: list[CFunction] = []
        self.missing: list[str] = []
        self.notes: list[str] = []
        self._tables: dict[Constant, Array] = {}
        self._by_body: dict[Function, CFunction] = {}
        self._around: list[str] = []  # the author's lines of the calls that are being written
        self._flat: dict[Function, Flat] = {}

    @contextmanager
    def inside(self, origin: Origin) -> Iterator[None]:
        """What is written within belongs to this equation, a call."""
        self._around.append(_line(origin))
        try:
            yield
        finally:
            self._around.pop()

    def flat(self, function: Function) -> Flat:
        """The function as it is written; the same object each time."""
        found = self._flat.get(function)
        if found is None:
            found = self._flat[function] = flat(function)
        return found

    def refuse(self, what: str, *origins: Origin) -> None:
        """Notes what cannot be written. origins: the equation's and those of the calls around it, the innermost first."""
        where = next((line for line in (*map(_line, origins), *self._around[::-1]) if line), "")
        self.missing.append(f"{what}{' from ' + where if where else ''}")

    def table(self, constant: Constant) -> Array:
        """An array that the program closes over; a number where all of it is one."""
        found = self._tables.get(constant)
        if found is None:
            value = np.asarray(jax_compat.as_numpy(constant.value))
            flat = np.ascontiguousarray(value).reshape(-1)
            if (
                value.size
                and all(one.tobytes() == flat[0].tobytes() for one in flat[: 1 << 20])
                and value.size <= 1 << 20
            ):
                found = number(flat[0], value.dtype, value.shape)
            else:
                found = stored(Buffer(constant.hint or "table", value.shape, value.dtype, "table", value=value))
            self._tables[constant] = found
        return found

    def function(self, body: Function, name: str) -> CFunction:
        """The C function of one of the program's."""
        found = self._by_body.get(body)
        if found is None:
            found = self._by_body[body] = self.build(body, name)
            optimise(found)  # before it is called: parameters that it does not need are not given
            self.functions.append(found)
        return found

    def build(self, body: Function, name: str) -> CFunction:
        params = [Buffer(p.hint or "x", shape_of(p.aval), dtype_of(p.aval), "in", p.named) for p in body.params]
        builder = Builder(self)
        results = builder.run(body, [stored(p) for p in params])
        made = CFunction(name, params, [], builder.block)
        if len(results) == 1 and not results[0].shape:
            made.returns = builder.result(results[0], body.results[0])
        else:
            for array, result in zip(results, body.results, strict=True):
                out = Buffer(_hint(result) or "result", array.shape, array.dtype, "out")
                builder.fill(Read(out, ()), array)
                made.outs.append(out)
        return made


class Builder:
    """Builds the body of one C function; this is the `b` that rules get. `block`: where statements go now."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.block: list[Stmt] = []
        self._outputs: list[Value | None] = []  # of the equation that is being written

    # ------------------------------------------------------------ for rules

    def new(self, shape: Sequence[int], dtype: np.dtype, output: int | None = 0, hint: str = "") -> Buffer:
        """A new local buffer, called as result number `output` of the equation, or by the hint."""
        value = self._outputs[output] if output is not None and output < len(self._outputs) else None
        if hint or value is None:
            return Buffer(hint or "value", tuple(shape), dtype)
        return Buffer(value.hint or "value", tuple(shape), dtype, authored=value.named)

    def type_of_result(self) -> np.dtype:
        """The type of the equation's first result, which has one."""
        value = self._outputs[0]
        assert value is not None
        return dtype_of(value.aval)

    def keep(self, array: Array, hint: str = "") -> Array:
        """The same, computed here once where it is no part of a buffer already."""
        if array.region is not None or array.number is not None:
            return array
        buffer = self.new(array.shape, array.dtype, None if hint else 0, hint)
        if array.dtype.kind in "iu":
            buffer.limits = bounds(array.at(tuple([Var(n) for n in array.shape])))
        self.fill(Read(buffer, ()), array)
        return stored(buffer)

    def often(self, array: Array, hint: str = "") -> Array:
        """The same, to be read as often as one likes."""
        return self.keep(array, hint) if array.cost else array

    def whole(self, array: Array, hint: str = "") -> Read:
        """The same as a part of a buffer, to be passed to a function."""
        if array.region is None:
            buffer = self.new(array.shape, array.dtype, None if hint else 0, hint)
            self.fill(Read(buffer, ()), array)
            return Read(buffer, ())
        return array.region

    def loops(self, shape: Sequence[int], write: Callable[[tuple[Expr, ...]], None]) -> None:
        """Nested loops over a shape, with what `write` writes inside; nothing where the shape has no elements."""
        if 0 in shape:
            return
        outer = self.block
        index: list[Expr] = []
        for extent in shape:
            if extent == 1:
                index.append(int_of(0))
                continue
            loop = Loop(Var(extent), [])
            self.block.append(loop)
            self.block = loop.body
            index.append(loop.var)
        write(tuple(index))
        self.block = outer

    def fill(self, place: Read, array: Array) -> None:
        """Writes an array to a part of a buffer."""
        if 0 in array.shape:
            return
        self.loops(array.shape, lambda index: self.write(place.buffer, (*place.index, *index), array.at(index)))

    def write(self, buffer: Buffer, index: tuple[Expr, ...], value: Expr) -> None:
        self.block.append(Write(buffer, index, value))

    @contextmanager
    def inside(self, block: list[Stmt]) -> Iterator[None]:
        """Statements go into `block` meanwhile."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    def scalar(self, array: Array, hint: str) -> Expr:
        """The value of an array without axes, computed here."""
        if array.number is not None:
            return array.at(())
        return self.often(array, hint).at(())

    # ------------------------------------------------------------ functions

    def result(self, array: Array, atom: Atom) -> Buffer:
        """The local in which the value stands that the function returns."""
        value = array.region
        if value is not None and value.buffer.kind == "local" and not value.buffer.shape:
            return value.buffer
        buffer = Buffer(_hint(atom) or "result", (), array.dtype)
        self.fill(Read(buffer, ()), array)
        return buffer

    def run(self, function: Function, args: Sequence[Array]) -> list[Array]:
        """The results of a function of the program, whose equations are written here."""
        made = self.unit.flat(function)
        function = made.function
        env: dict[Value, Array] = dict(zip(function.params, args, strict=True))
        uses = Counter(a for e in function.equations for a in e.inputs if type(a) is Value)
        uses.update(a for a in function.results if type(a) is Value)
        before = self._outputs
        for equation in function.equations:
            self._equation(equation, env, uses, made.around.get(equation, ()))
        self._outputs = before
        return [self._read(env, a) for a in function.results]

    def _equation(
        self, equation: Equation, env: dict[Value, Array], uses: Counter[Value], calls: Sequence[Origin]
    ) -> None:
        self._outputs = list(equation.outputs)
        try:
            inputs = [self._read(env, a) for a in equation.inputs]
            for output in equation.outputs:
                if output is not None:
                    dtype_of(output.aval)
            found = self._results(equation, inputs)
        except Declined as error:
            self.unit.refuse(str(error), equation.origin, *calls)
            found = [None if o is None else number(0, _some(o.aval), shape_of(o.aval)) for o in equation.outputs]
        self._outputs = list(equation.outputs)
        for place, (output, array) in enumerate(zip(equation.outputs, found, strict=True)):
            if output is None or array is None:
                continue
            kept = array
            if array.cost and (uses[output] > 1 or output.named or array.cost > _LONG):
                self._outputs = [output]
                kept = self.keep(array)
            elif array.region is not None and array.region.buffer.kind == "local" and place < len(found):
                _name(array.region, output)
            env[output] = kept

    def _results(self, equation: Equation, inputs: list[Array]) -> Sequence[Array | None]:
        callee = equation.callee
        if type(callee) is Local:
            return self._called(callee.body, inputs, equation)
        if type(callee) is TreeMap:
            return [
                self._inlined(function, callee.arguments(inputs, turn), equation)[0]
                for turn, function in enumerate(callee.turns)
            ]
        if isinstance(callee, OverLeaves) or type(callee) is Pack or type(callee) is Unpack:
            raise Declined(f"`{callee.name}`")
        if isinstance(callee, Scan):
            return control.scan(self, callee, equation, inputs)
        if isinstance(callee, While):
            return control.while_loop(self, callee, equation, inputs)
        if isinstance(callee, Cond):
            return control.cond(self, callee, equation, inputs)
        if type(callee) is not Primitive:
            raise Declined(f"`{callee.name}`")
        is_complex = any(_is_complex(a.aval) for a in (*equation.inputs, *equation.outputs) if a)
        rule = C.find(callee.name, is_complex)
        if rule is None:
            raise Declined(f"`{callee.name}`{' of complex numbers' if is_complex and C.find(callee.name) else ''}")
        try:
            if callee.name not in _OF_KEYS and any(is_key(a.aval) for a in (*equation.inputs, *equation.outputs) if a):
                return self._of_words(rule, equation, inputs)
            if any(getattr(a.aval, "dtype", None) in NARROW for a in (*equation.inputs, *equation.outputs) if a):
                return self._of_narrow(rule, callee.name, equation, inputs)
            found = rule(self, *inputs, **equation.params)
        except TypeError as error:
            if "keyword" in str(error):
                raise Declined(f"`{callee.name}` ({error})") from error
            raise
        return [found] if isinstance(found, Array) else found

    def _of_narrow(self, rule: Rule, name: str, equation: Equation, inputs: Sequence[Array]) -> Sequence[Array]:
        """What is computed with floats of 16 bits is computed with those of 32, and rounded, as XLA does."""
        if name in _IN_ANY_TYPE or rule.__module__.endswith(".shapes"):
            found = rule(self, *inputs, **equation.params)
            return [found] if isinstance(found, Array) else found
        if name in _OF_NEIGHBOURS:
            raise Declined(f"`{name}` of floats of 16 bits")
        params = {key: _WIDE if _is_narrow(value) else value for key, value in equation.params.items()}
        made = rule(self, *map(widened, inputs), **params)
        rounded: list[Array] = []
        for array, output in zip([made] if isinstance(made, Array) else made, equation.outputs, strict=True):
            dtype = array.dtype if output is None else dtype_of(output.aval)
            rounded.append(narrowed(array, dtype) if dtype in NARROW else array)
        return rounded

    def _of_words(self, rule: Rule, equation: Equation, inputs: Sequence[Array]) -> list[Array]:
        """What moves keys about moves the two words of each."""
        both: list[Sequence[Array]] = []
        for k in (0, 1):
            given = [
                Array(x.shape[:-1], x.dtype, lambda index, x=x, k=k: x.at((*index, int_of(k))), x.cost)
                if is_key(atom.aval)
                else x
                for x, atom in zip(inputs, equation.inputs, strict=True)
            ]
            found = rule(self, *given, **equation.params)
            both.append([found] if isinstance(found, Array) else found)
        return [_paired(one, other) for one, other in zip(*both, strict=True)]

    def _inlined(self, body: Function, inputs: Sequence[Array], equation: Equation) -> list[Array]:
        # A value that the body reads twice must not be computed twice.
        uses = Counter(a for e in body.equations for a in e.inputs if type(a) is Value)
        uses.update(a for a in body.results if type(a) is Value)
        given = [
            self.often(array, param.hint or "value") if uses[param] > 1 else array
            for param, array in zip(body.params, inputs, strict=True)
        ]
        with self.unit.inside(equation.origin):
            return self.run(body, given)

    def _called(self, body: Function, inputs: Sequence[Array], equation: Equation) -> Sequence[Array]:
        """A call of the author's function."""
        with self.unit.inside(equation.origin):
            callee = self.unit.function(body, body.name or "function")
        used = {access.buffer for stmt in callee.body for access in accesses(stmt)}
        args: list[Expr] = []
        for param, array in zip(callee.params, inputs, strict=True):
            if param in used:
                args.append(self.whole(array, param.name) if param.shape else array.at(()))
        if callee.returns is not None:
            made = self.new((), callee.returns.dtype)
            self.block.append(Invoke(callee.name, args, [], Read(made, ()), callee))
            return [stored(made)]
        made_all = [
            self.new(o.shape, o.dtype, place, "" if equation.outputs[place] else o.name)
            for place, o in enumerate(callee.outs)
        ]
        self.block.append(Invoke(callee.name, args, [Read(m, ()) for m in made_all], None, callee))
        return [stored(m) for m in made_all]

    def _read(self, env: dict[Value, Array], atom: Atom) -> Array:
        if type(atom) is Value:
            return env[atom]
        dtype = dtype_of(atom.aval)
        if type(atom) is Literal:
            return number(atom.value, dtype)
        assert type(atom) is Constant
        return self.unit.table(atom)


def _paired(one: Array, other: Array) -> Array:
    """Keys of their first and second words."""

    def at(index: tuple[Expr, ...]) -> Expr:
        last = index[-1]
        if isinstance(last, Num):
            return (other if last.value else one).at(index[:-1])
        is_first = Op("==", (last, int_of(0)), BOOL)
        return Op("?:", (is_first, one.at(index[:-1]), other.at(index[:-1])), one.dtype)

    return Array((*one.shape, 2), one.dtype, at, max(one.cost, other.cost))


def _name(region: Read, output: Value) -> None:
    """A buffer that a rule has made is called as the value that it holds."""
    if output.named and not region.buffer.authored and not region.index and output.hint:
        region.buffer.name, region.buffer.authored = output.hint, True


def _is_complex(aval: Aval) -> bool:
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind == "c"


def _is_narrow(value: object) -> bool:
    """Whether a parameter is a type of floats of 16 bits."""
    return isinstance(value, np.dtype) and value in NARROW or isinstance(value, type) and value in _NARROW_TYPES


_NARROW_TYPES = frozenset(dtype.type for dtype in NARROW)


def _hint(atom: Atom) -> str | None:
    return None if type(atom) is Literal else atom.hint


def _line(origin: Origin) -> str:
    return jax_compat.user_line(origin) if origin is not None else ""


def _some(aval: Aval) -> np.dtype:
    dtype = getattr(aval, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) and dtype in TYPES else np.dtype(np.float32)
