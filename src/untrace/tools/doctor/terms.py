"""Equations read as terms, alike for all ways in which the same is written: `x - 1` and `x + -1`, `x * x` and `x ** 2`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Atom, Cond, Constant, Equation, Function, Literal, Local, Primitive, Scan, Value, While
from untrace.ir.structured import Checkpoint, CustomRule, Transformed
from untrace.tools.doctor.better import Better
from untrace.tools.doctor.tape import is_float

COMMUTE = frozenset({"add", "add_any", "mul", "max", "min"})
SUMS = ("add", "add_any", "sub")
PRODUCTS = ("mul", "div", "square", "integer_pow")
# What a number of the text may stand before or behind.
_LINEAR = frozenset({"broadcast_in_dim", "reshape", "reduce_sum", "squeeze"})
# What picks and places numbers, and changes none; whether there is a number for each place says `gather` by NaN.
_MOVES = frozenset(
    {"gather", "dynamic_slice", "slice", "squeeze", "reshape", "expand_dims", "transpose", "rev", "copy"}
)
_POINTWISE = frozenset(
    "add sub mul div neg exp log log1p expm1 sqrt rsqrt square integer_pow pow logistic tanh".split()
)
_POSITIVE = frozenset({"exp", "exp2", "sqrt", "square", "abs", "cosh", "logistic", "erfc"})
_MOST_PARTS = 8
_FEW = 4  # a power that may be written as a product
# Equations that are nothing but a call, whose body may stand in their place.
_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call"})


@dataclass(frozen=True, slots=True)
class Term:
    """`name(*args)`. `key`: the parameters that tell it from others. An argument that is a number is one of the text."""

    name: str
    args: tuple[Operand, ...]
    key: object = None


Operand: TypeAlias = "Atom | Term | float"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a sum, each with the number that it is multiplied by, and the number that is added; or those of a product,
    each with its power, and the number that is multiplied with."""

    items: Sequence[tuple[Operand, float]]
    number: float


@dataclass(frozen=True, slots=True)
class Gap:
    """A difference of values of the program: values, each times a number, and a number that is added."""

    items: Sequence[tuple[Atom, float]]
    number: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a jitted function that was inlined: its operands, its results and its equations there."""

    equation: Equation
    inputs: Sequence[Atom]
    results: Sequence[Atom]
    equations: Sequence[Equation]


def inlined(function: Function, calls: list[Call] | None = None) -> Function:
    """The same function with what its jitted functions do in the place of their calls, in the bodies of its loops and branches
    too. calls: is given what was inlined."""
    calls = [] if calls is None else calls
    params = [Value(p.aval) for p in function.params]
    equations: list[Equation] = []
    results = _inline(function, params, equations, (), calls)
    return Function(function.name, params, equations, results, function.jaxpr)


def restored(function: Function, calls: Sequence[Call]) -> Function:
    """The function with the calls that were inlined where they were, but for those that something was changed in."""
    for call in calls:
        own = [e for e in function.equations if e in call.equations]
        results = {r for r in call.results if type(r) is Value}
        made = {o for e in own for o in e.outputs if o is not None}
        rest = [e for e in function.equations if e not in own]
        used = {a for e in rest for a in e.inputs if type(a) is Value} | {
            r for r in function.results if type(r) is Value
        }
        if (
            not own
            or not used & made <= results
            or any(r in used and r not in made for r in results - set(call.inputs))
        ):
            continue
        given = {a for a in call.inputs if type(a) is Value}
        if not given <= {*function.params, *[o for e in rest for o in e.outputs]}:
            continue  # it is called with what the program no longer has
        outputs = [r if type(r) is Value and r in made and r not in given else None for r in call.results]
        if len(set(outputs) - {None}) != sum(o is not None for o in outputs):
            continue
        whole = Equation(call.equation.callee, call.inputs, outputs, call.equation.params, call.equation.origin)
        place = function.equations.index(own[0])
        kept = [whole if n == place else e for n, e in enumerate(function.equations) if n == place or e not in own]
        function = Function(function.name, function.params, kept, function.results, function.jaxpr)
    return function


def _inline(
    function: Function,
    args: Sequence[Atom],
    equations: list[Equation],
    around: tuple[Equation, ...],
    calls: list[Call],
) -> list[Atom]:
    """around: the calls of library functions around it, the outermost first, where what is in them is said to stand."""
    env: dict[Value, Atom] = dict(zip(function.params, args, strict=True))

    def read(atom: Atom) -> Atom:
        return env[atom] if type(atom) is Value else atom

    for equation in function.equations:
        callee, inputs = equation.callee, [read(a) for a in equation.inputs]
        body = callee.body if type(callee) is Local else None
        if type(callee) is Primitive and callee.name in _CALLS:
            body = equation.params["jaxpr" if "jaxpr" in equation.params else "call_jaxpr"]
        if type(callee) is Transformed and type(callee.how) is Checkpoint:
            body = callee.function
        if body is not None:
            is_library = body.jaxpr is not None and jax_compat.is_library_jaxpr(body.jaxpr)
            start = len(equations)
            place = len(calls)
            outs = _inline(body, inputs, equations, (*around, equation) if is_library else around, calls)
            calls.insert(place, Call(equation, inputs, outs, equations[start:]))  # before those inside
            env.update((o, x) for o, x in zip(equation.outputs, outs, strict=True) if o is not None)
            continue
        fresh = [None if o is None else Value(o.aval) for o in equation.outputs]
        env.update((o, x) for o, x in zip(equation.outputs, fresh, strict=True) if o is not None and x is not None)
        origin = equation.origin
        if around and origin is not None and around[0].origin is not None:
            origin = jax_compat.equation_inside(origin, around[0].origin, {})
        bodies = [inlined(b) for b in bodies_of(callee)]
        callee = with_bodies(callee, bodies) if bodies else callee
        equations.append(Equation(callee, inputs, fresh, equation.params, origin))
    return [read(r) for r in function.results]


Callee: TypeAlias = object


def bodies_of(callee: Callee) -> Sequence[Function]:
    """The functions of a loop or a choice that a repair may be in."""
    if type(callee) is Scan:
        return (callee.body,)
    if type(callee) is While:
        return (callee.body,)
    return callee.branches if type(callee) is Cond else ()


def with_bodies(callee: Callee, bodies: Sequence[Function]) -> Scan | While | Cond:
    """The same loop or choice with other functions."""
    if type(callee) is Scan:
        return callee.with_body(bodies[0])
    if type(callee) is While:
        condition, consts = callee.condition, callee.condition_consts
        return While(callee.object, condition, bodies[0], consts, callee.body_consts)
    assert type(callee) is Cond
    return Cond(callee.object, bodies)


class Terms:
    """The terms of a function whose calls are inlined."""

    def __init__(self, function: Function) -> None:
        self._made: dict[Value, tuple[Equation, int]] = {}
        self._terms: dict[Value, Operand] = {}
        self._numbers: dict[object, int] = {}
        self._number_of: dict[Value, int] = {}
        # What is inside a function with a rule for its derivative can be read, and is no value of the program.
        self.inner: set[Value] = set()
        self._same_as: dict[Value, Atom] = {}
        self._held: dict[object, tuple[float, Value]] | None = None
        self._unmoved: dict[Value, tuple[tuple[Equation, ...], Operand | None]] = {}
        for equation in function.equations:
            self._note(equation)

    def _note(self, equation: Equation) -> None:
        for i, out in enumerate(equation.outputs):
            if out is not None:
                self._made[out] = equation, i
        callee = equation.callee
        body = callee.function if type(callee) is CustomRule else None
        if type(callee) is Primitive and type(callee.object) is Better:
            body = callee.object.body
        if body is None:
            return
        inside: list[Equation] = []
        results = _inline(body, equation.inputs, inside, (), [])
        for inner in inside:
            self._note(inner)
            self.inner.update(o for o in inner.outputs if o is not None)
        self._same_as.update((o, r) for o, r in zip(equation.outputs, results, strict=True) if o is not None)

    # ---------------------------------------------------------------- the same value

    def same(self, a: Operand, b: Operand) -> bool:
        """Whether two operands are the same value, or are computed in the same way."""
        return self._number(a) == self._number(b)

    def once(self, equations: Sequence[Equation]) -> Mapping[Value, Equation]:
        """What computes each value, of operands of which those that are the same are one value: the first."""
        firsts: dict[object, Value] = {}
        found: dict[Value, Equation] = {}
        for e in equations:
            inputs = [firsts.setdefault(self._number(a), a) if type(a) is Value else a for a in e.inputs]
            if any(a is not b for a, b in zip(inputs, e.inputs, strict=True)):
                e = Equation(e.callee, inputs, e.outputs, e.params, e.origin)
            found.update((o, e) for o in e.outputs if o is not None)
        return found

    def _number(self, x: Operand) -> object:
        if isinstance(x, float):
            return x
        if type(x) is Term:
            return x.name, x.key, tuple([self._number(a) for a in x.args])
        if type(x) is Literal:
            return "literal", complex(x.value)
        if type(x) is Constant:
            return "constant", x
        assert type(x) is Value
        if x in self._same_as:
            return self._number(self._same_as[x])
        made = self._made.get(x)
        if made is not None and made[0].callee.name in ("convert_element_type", "copy"):
            (before,) = made[0].inputs
            if (before.aval.shape, before.aval.dtype) == (x.aval.shape, x.aval.dtype):
                return self._number(before)
        found = self._number_of.get(x)
        if found is None:
            found = self._number_of[x] = self._numbers.setdefault(self._key(x), len(self._numbers))
        return found

    def _key(self, value: Value) -> object:
        made = self._made.get(value)
        if made is None or made[0].effects:
            return value
        equation, place = made
        inputs = [self._number(a) for a in equation.inputs]
        if equation.callee.name in COMMUTE:
            inputs.sort(key=str)
        key = (equation.callee.name, _params_key(equation.params), tuple(inputs), place)
        try:
            hash(key)
        except TypeError:
            return value
        return key if type(equation.callee) is Primitive else value

    @property
    def operations(self) -> frozenset[str]:
        """The names of all operations, in the bodies of loops and choices too."""
        made = dict.fromkeys([e for e, _ in self._made.values()])
        found = {e.callee.name for e in made if type(e.callee) is Primitive}
        for body in [b for e in made for b in bodies_of(e.callee)]:
            found |= Terms(body).operations
        return frozenset(found)

    def held(self, term: Term) -> tuple[float, Value | None]:
        """A value of the program that is a term times a number, and the number; the first one, None where there is none."""
        if self._held is None:
            self._held = {}
            for value in [v for v in self._made if v not in self.inner and is_float(v.aval.dtype)]:
                factor, rest = self.factor(value)
                if rest is not None and factor:
                    self._held.setdefault(self._number(rest), (factor, value))
        return self._held.get(self._number(term), (1.0, None))

    def difference(self, parts: Sequence[tuple[Operand, float]]) -> Gap | None:
        """The sum of operands times numbers, without what they have in common: of x + h and x times -1 it is h. None where that
        is nothing, or what is left is no value of the program."""
        left: list[tuple[Operand, float]] = []
        number, sizes, is_less = 0.0, 0.0, False
        for x, times in parts:
            own = self.parts(x, True)
            number, sizes = number + times * own.number, sizes + abs(times * own.number)
            for part, count in own.items:
                place = next((n for n, (other, _) in enumerate(left) if self.same(part, other)), None)
                if place is None:
                    left.append((part, times * count))
                else:
                    left[place], is_less = (part, left[place][1] + times * count), True
        found: list[tuple[Atom, float]] = []
        for part, count in left:
            factor, value = (1.0, part) if type(part) is not Term else self.held(part)
            if count and (value is None or isinstance(value, float) or value in self.inner):
                return None
            found += (
                [(value, count / factor)]
                if count and value is not None and not isinstance(value, (float, Term))
                else []
            )
        return Gap(found, number) if is_less or sizes > abs(number) else None

    # ---------------------------------------------------------------- terms

    def term(self, x: Operand) -> Operand:
        """An operand as a term, a number of the text, or itself where it is neither."""
        if isinstance(x, float) or type(x) is Term:
            return x
        if type(x) is Literal:
            return float(x.value) if np.ndim(x.value) == 0 and _is_real(x.value) else x
        if type(x) is Constant:
            values = np.asarray(x.value) if hasattr(x.value, "dtype") and x.value.dtype.kind in "fiub" else None
            if values is not None and 0 < values.size <= 4096 and (values == values.reshape(-1)[0]).all():
                return float(values.reshape(-1)[0])
            return x
        assert type(x) is Value
        if x in self._same_as:
            return self.term(self._same_as[x])
        found = self._terms.get(x)
        if found is None:
            found = self._terms[x] = self._read(x)
        return found

    def _read(self, value: Value) -> Operand:
        made = self._made.get(value)
        if made is None or type(made[0].callee) is not Primitive:
            return value
        equation, place = made
        name, args, params = equation.callee.name, list(equation.inputs), equation.params
        if name in ("convert_element_type", "copy", "copy_p", "reduce_precision") or name == "reshape":
            inner = args[0]
            same_type = (
                inner.aval.dtype == value.aval.dtype or is_float(inner.aval.dtype) and is_float(value.aval.dtype)
            )
            if same_type and inner.aval.shape == value.aval.shape:
                return self.term(inner)
        if name in ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze"):
            number = self.term(args[0])
            if isinstance(number, float):
                return number
        if is_product_of_vectors(equation):
            return self.made("reduce_sum", [self._product(args[0], args[1], False)], {"axes": (0,)})
        return self.made(name, args, params, place)

    def made(self, name: str, args: Sequence[Operand], params: Mapping[str, object], place: int = 0) -> Operand:
        """The term of an operation, in its normal form."""
        if name == "neg":
            return self._negated(args[0], self.term(args[0]))
        if name in ("add", "add_any", "sub"):
            return self._sum(args[0], args[1], name == "sub")
        if name in ("mul", "div"):
            return self._product(args[0], args[1], name == "div")
        if name == "square":
            return self._product(args[0], args[0], False)
        if name == "integer_pow":
            return self._power(args[0], params["y"])
        if name == "abs" and self._is_positive(args[0]):
            return self.term(args[0])
        power = self.term(args[1]) if name == "pow" else None
        if power == 0.5:
            return self._root(args[0])
        if isinstance(power, float) and power in (1.0, 2.0, 3.0, 4.0, -1.0, -2.0):
            return self._power(args[0], int(power))
        if name == "rsqrt":
            return self._product(1.0, self._root(args[0]), True)
        if name == "sqrt":
            return self._root(args[0])
        if name in ("square", "max", "min", "exp", "log", "pow"):
            params = {}
        key = _params_key(params), place
        if name in _LINEAR:
            factor, rest = self.factor(args[0])
            if factor != 1.0 and rest is not None:
                return self._scaled(factor, Term(name, (rest, *args[1:]), key))
        return Term(name, tuple(args), key)

    def _is_positive(self, x: Operand) -> bool:
        """Whether a term is no negative number, whatever is in it."""
        term = self.term(x)
        if type(term) is not Term:
            return isinstance(term, float) and term >= 0
        if term.name in ("add", "add_any", "mul", "div"):
            return all(map(self._is_positive, term.args))
        is_even = term.name == "integer_pow" and isinstance(term.key, int) and term.key % 2 == 0
        return is_even or term.name in _POSITIVE

    def _root(self, x: Operand) -> Operand:
        """A square root, with the number in it in front."""
        factor, rest = self.factor(x)
        if rest is None or factor <= 0 or factor == 1.0:
            return Term("sqrt", (x,))
        return self._scaled(math.sqrt(factor), Term("sqrt", (rest,)))

    def _negated(self, x: Operand, term: Operand) -> Operand:
        if isinstance(term, float):
            return -term
        if type(term) is Term and term.name == "neg":
            return self.term(term.args[0])
        if type(term) is Term and term.name == "sub":
            return Term("sub", term.args[::-1])
        return Term("neg", (x,))

    def _sum(self, x: Operand, y: Operand, minus: bool) -> Operand:
        first, second = self.term(x), self.term(y)
        if isinstance(first, float) and isinstance(second, float):
            return first - second if minus else first + second
        if second == 0.0:
            return first
        if first == 0.0 and not minus:
            return second
        if minus and isinstance(second, float):
            return Term("add", (x, -second))
        if minus and first == 0.0:
            return self._negated(y, second)
        if type(second) is Term and second.name == "neg":
            return Term("add" if minus else "sub", (x, second.args[0]))
        if type(first) is Term and first.name == "neg" and not minus:
            return Term("sub", (y, first.args[0]))
        if self.same(x, y):
            return 0.0 if minus else self._product(2.0, x, False)
        return Term("sub" if minus else "add", (x, y))

    def unmoved(self, value: Value) -> tuple[tuple[Equation, ...], Operand | None]:
        """A value as what picks and places numbers, and the term before that: what is done to each number of `x[i]` could be
        done to `x`. No term where there is nothing of the kind."""
        found = self._unmoved.get(value)
        if found is None:
            found = self._unmoved[value] = self._find_unmoved(value)
        return found

    def _find_unmoved(self, value: Value) -> tuple[tuple[Equation, ...], Operand | None]:
        made = self._made.get(value)
        if made is None or type(made[0].callee) is not Primitive:
            return (), None
        equation = made[0]
        name, inputs = equation.callee.name, list(equation.inputs)
        if name in _MOVES and type(inputs[0]) is Value:
            moves, inner = self.unmoved(inputs[0])
            return (*moves, equation), inputs[0] if inner is None else inner
        places = [i for i, a in enumerate(inputs) if not isinstance(self.term(a), float)]
        if name not in _POINTWISE or len(places) != 1 or type(first := inputs[places[0]]) is not Value:
            return (), None
        moves, inner = self.unmoved(first)
        if inner is None or first.aval.shape != value.aval.shape or first.aval.dtype != value.aval.dtype:
            return (), None
        args = [inner if i in places else self.term(a) for i, a in enumerate(inputs)]
        return moves, self.made(name, args, equation.params)

    def factor(self, x: Operand) -> tuple[float, Operand | None]:
        """A term as a number of the text times the rest; no rest where it is a number itself."""
        term = self.term(x)
        if isinstance(term, float):
            return term, None
        if type(term) is Term and term.name == "neg":
            factor, rest = self.factor(term.args[0])
            return -factor, rest
        if type(term) is Term and term.name == "mul" and isinstance(term.args[0], float):
            return term.args[0], term.args[1]
        return 1.0, x

    def parts(self, x: Operand, is_sum: bool) -> Parts:
        """A sum or a product taken apart, whatever the order in which it is computed."""
        items: list[tuple[Operand, float]] = []
        number = self._addends(x, 1.0, items) if is_sum else self._factors(x, 1, items)
        return Parts(items, number)

    def _addends(self, x: Operand, times: float, items: list[tuple[Operand, float]]) -> float:
        factor, rest = self.factor(x)
        if rest is None:
            return times * factor
        term = self.term(rest)
        if type(term) is not Term or term.name not in SUMS or len(items) > _MOST_PARTS:
            items.append((rest, times * factor))
            return 0.0
        first, second = term.args
        second_times = -times if term.name == "sub" else times
        return self._addends(first, times * factor, items) + self._addends(second, second_times * factor, items)

    def _factors(self, x: Operand, power: int, items: list[tuple[Operand, float]]) -> float:
        factor, rest = self.factor(x)
        number = factor**power if factor or power > 0 else float("nan")
        term = self.term(rest) if rest is not None else None
        if rest is None:
            return number
        if type(term) is not Term or term.name not in PRODUCTS or len(items) > _MOST_PARTS:
            items.append((rest, power))
            return number
        if term.name in ("square", "integer_pow"):
            own = 2 if term.name == "square" else term.key
            return number * self._factors(term.args[0], power * own, items) if isinstance(own, int) else float("nan")
        first, second = term.args
        return (
            number
            * self._factors(first, power, items)
            * self._factors(second, -power if term.name == "div" else power, items)
        )

    def heads(self, x: Operand, is_sum: bool) -> frozenset[str]:
        """The operations of the parts of a sum or a product."""
        terms = [self.term(part) for part, _ in self.parts(x, is_sum).items]
        return frozenset(t.name for t in terms if type(t) is Term)

    def scaled(self, factor: float, x: Operand) -> Operand:
        """A term times a number."""
        own, rest = self.factor(x)
        return factor * own if rest is None else self._scaled(factor * own, rest)

    def _scaled(self, factor: float, x: Operand) -> Operand:
        if factor == 1.0:
            return self.term(x)
        return self._negated(x, self.term(x)) if factor == -1.0 else Term("mul", (factor, x))

    def _product(self, x: Operand, y: Operand, is_quotient: bool) -> Operand:
        """A product or a quotient, with the numbers in it in front."""
        (a, first), (b, second) = self.factor(x), self.factor(y)
        if is_quotient and b == 0:
            return Term("div", (x, y))
        factor = a / b if is_quotient else a * b
        if second is None:
            return factor if first is None else self._scaled(factor, first)
        if is_quotient:
            return self._scaled(factor, Term("div", (1.0 if first is None else first, second)))
        if first is None:
            return self._scaled(factor, second)
        if self.same(first, second):
            return self._scaled(factor, Term("square", (first,)))
        for one, other in ((first, second), (second, first)):
            term = self.term(one)
            if type(term) is Term and term.name == "div" and term.args[0] == 1.0:
                return self._scaled(factor, Term("div", (other, term.args[1])))
        return self._scaled(factor, Term("mul", (first, second)))

    def _power(self, x: Operand, power: object) -> Operand:
        if power == 1:
            return self.term(x)
        if power == 2:
            return self._product(x, x, False)
        if power == -1:
            return self._product(1.0, x, True)
        if isinstance(power, int) and abs(power) > _FEW:
            return Term("pow", (x, float(power)), ((), 0))
        return Term("integer_pow", (x,), power)


def is_widening(equation: Equation) -> bool:
    """Whether this makes floats longer, which changes none of them."""
    (out,) = equation.outputs if len(equation.outputs) == 1 else (None,)
    if equation.callee.name != "convert_element_type" or out is None:
        return False
    before = equation.inputs[0].aval.dtype
    return is_float(before) and is_float(out.aval.dtype) and before.itemsize < out.aval.dtype.itemsize


def is_product_of_vectors(equation: Equation) -> bool:
    """Whether this is the sum of the products of two rows of numbers."""
    if equation.callee.name != "dot_general" or any(len(a.aval.shape) != 1 for a in equation.inputs):
        return False
    first, second = equation.inputs
    return first.aval.dtype == second.aval.dtype == equation.outputs[0].aval.dtype if equation.outputs[0] else False


def _is_real(value: object) -> bool:
    return np.asarray(value).dtype.kind in "fiub" or str(np.asarray(value).dtype) == "bfloat16"


def _params_key(params: Mapping[str, object]) -> object:
    """Parameters that have a hash, without what says nothing of the values."""
    kept = [(k, v) for k, v in params.items() if k not in ("accuracy", "weak_type", "sharding", "out_sharding")]
    kept = [(k, str(v) if isinstance(v, np.dtype) else v) for k, v in kept]
    return tuple([(k, tuple(v) if isinstance(v, list) else v) for k, v in kept if type(v) is not Function])
