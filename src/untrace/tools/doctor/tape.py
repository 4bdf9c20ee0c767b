"""A program on many inputs at once, operation by operation, with the exact value beside each that was computed.

Loops run turn by turn and of a choice all branches, each sample with its own; what came of it is a flat list of steps, a
tape, which can be played again from any of them with other values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace._errors import CaptureError
from untrace.ir.calls import function_run
from untrace.ir.evaluate import run_equations
from untrace.ir.nodes import Cond, Equation, Function, Primitive, Scan, While
from untrace.ir.types import Aval, Data, DType
from untrace.tools.doctor import exact
from untrace.tools.doctor.better import Better

# Of values with more numbers than that, all samples together, the exact ones are float64's.
MOST_NUMBERS = 12_000
# What is followed of loops, in operations.
MOST_STEPS = 6_000
_MOST_OF_WHILE = 1_000  # where some samples may never end

# What only moves numbers, or leaves them as they are: done to their places.
_MOVES = frozenset(
    "reshape broadcast_in_dim squeeze expand_dims transpose rev slice concatenate pad gather dynamic_slice "
    "dynamic_update_slice split copy copy_p stop_gradient optimization_barrier tile".split()
)
Replay = Callable[[Sequence[np.ndarray], "slice | np.ndarray"], Sequence[np.ndarray]]


class Quantity:
    """A value of the program on all samples, which are the first axis.

    `computed`: what the program has in its own precision, `exact`: what it would be without rounding, of the same shape.
    Where nothing before it was a float the two are one object.
    """

    __slots__ = ("dtype", "computed", "exact", "structural")

    def __init__(self, dtype: DType, computed: Data, exact_values: Data, structural: bool = False):
        self.dtype = dtype
        self.computed = computed
        self.exact = exact_values
        self.structural = structural

    @property
    def is_float(self) -> bool:
        return is_float(self.dtype)


@dataclass(eq=False, slots=True)
class Step:
    """One operation. `name`: the primitive's. `calls`: the equations of the functions, loops and branches around it, the
    outermost first. `replay`: the exact results of exact operands of some of the samples."""

    name: str
    equation: Equation
    calls: tuple[Equation, ...]
    inputs: Sequence[Quantity]
    outputs: Sequence[Quantity]
    replay: Replay


@dataclass(slots=True)
class Tape:
    """All steps of one evaluation, in order, and the results."""

    samples: int
    inputs: Sequence[Quantity] = ()
    results: Sequence[Quantity] = ()
    steps: list[Step] = field(default_factory=list)
    constants: list[Quantity] = field(
        default_factory=list
    )  # arrays that the program closes over, and its rounded numbers
    unfinished: np.ndarray | None = None  # samples whose loops went on for longer than they were followed

    def replayed(
        self, changed: Mapping[Quantity, np.ndarray], rows: np.ndarray, start: int = 0
    ) -> Mapping[Quantity, np.ndarray]:
        """The exact values of the samples `rows` where some quantities have others, as far as they follow from these."""
        known = dict(changed)
        for step in self.steps[start:]:
            if not any(q in known for q in step.inputs):
                continue
            args = [known[q] if q in known else np.asarray(q.exact)[rows] for q in step.inputs]
            for quantity, values in zip(step.outputs, step.replay(args, rows), strict=True):
                if quantity not in changed:
                    known[quantity] = values
        return known


def is_float(dtype: DType) -> bool:
    return dtype is not None and not jax_compat.is_key_dtype(dtype) and jnp.issubdtype(dtype, jnp.floating)


Seen = Callable[[Equation, Sequence[Data], Sequence[Data]], None]


def computed(function: Function, args: Sequence[Data], samples: int, seen: Seen | None = None) -> list[np.ndarray]:
    """What a program gives in its own precision; arguments and results with the samples as their first axis. seen: is told of
    each operation, with its operands and results."""
    taped = _Evaluation(samples, exactly=False, seen=seen)
    inputs = [Quantity(p.aval.dtype, x, x) for p, x in zip(function.params, args, strict=True)]
    return [np.asarray(q.computed) for q in taped.run(function, inputs)]


def taped(function: Function, args: Sequence[Data], samples: int) -> Tape:
    """A program run on `args`, one array for each parameter, with the samples as the first axis."""
    evaluation = _Evaluation(samples)
    inputs = [evaluation.given(x, p.aval.dtype) for p, x in zip(function.params, args, strict=True)]
    tape = evaluation.tape
    tape.inputs, tape.results = inputs, evaluation.run(function, inputs)
    return tape


class _Evaluation:
    def __init__(self, samples: int, exactly: bool = True, seen: Seen | None = None) -> None:
        self._seen = seen
        self.tape = Tape(samples)
        self._samples = samples
        self._exactly = exactly
        self._count = 0
        self._calls: list[Equation] = []
        self._numbers: dict[tuple[DType, float], Quantity] = {}

    def given(self, values: Data, dtype: DType) -> Quantity:
        """An input. Only its floats are known more exactly than they are computed with: as real numbers."""
        if not self._exactly or not is_float(dtype) or np.size(values) > MOST_NUMBERS:
            wide = np.asarray(values, np.float64) if self._exactly and is_float(dtype) else values
            return Quantity(dtype, values, wide)
        return Quantity(dtype, values, exact.exact_of(values))

    def run(self, function: Function, args: Sequence[Data]) -> list[Quantity]:
        given = [self._quantity(a, p.aval) for a, p in zip(args, function.params, strict=True)]
        found = run_equations(function, given, self._step)
        return [self._quantity(x, aval) for x, aval in zip(found, function.result_avals, strict=True)]

    def _inside(self, equation: Equation, function: Function, args: Sequence[Data]) -> list[Quantity]:
        self._calls.append(equation)
        try:
            return self.run(function, args)
        finally:
            self._calls.pop()

    def _quantity(self, value: Data, aval: Aval) -> Quantity:
        """A constant or a number of the text as what it is on every sample."""
        if type(value) is Quantity:
            return value
        if jax_compat.is_key_dtype(aval.dtype):
            keys = jnp.broadcast_to(value, (self._samples, *value.shape))
            return Quantity(aval.dtype, keys, keys, True)
        array = np.asarray(value).astype(aval.dtype)
        many = np.broadcast_to(array, (self._samples, *array.shape))
        if not self._exactly or not is_float(aval.dtype):
            return Quantity(aval.dtype, many, many, True)
        if many.size > MOST_NUMBERS:
            return Quantity(aval.dtype, many, many.astype(np.float64), True)
        exacts = np.broadcast_to(exact.exact_of(array, True), many.shape)
        constant = Quantity(aval.dtype, many, exacts, True)
        if array.ndim:
            self.tape.constants.append(constant)
        elif _is_rounded(array):
            # The same number in two places is one: what is known of it no better than of an input moves both.
            known = self._numbers.setdefault((aval.dtype, float(array)), constant)
            self.tape.constants += [constant] if known is constant else []
            return known
        return constant

    # ---------------------------------------------------------------- one equation

    def _step(self, equation: Equation, raw: Sequence[Data]) -> Sequence[Quantity]:
        avals = [a.aval for a in equation.inputs]
        inputs = [self._quantity(x, aval) for x, aval in zip(raw, avals, strict=True)]
        callee = equation.callee
        if type(callee) is Scan and equation.params["length"]:
            return self._scan(callee, equation, inputs)
        if type(callee) is While:
            return self._while(callee, equation, inputs)
        if type(callee) is Cond:
            return self._cond(callee, equation, inputs)
        called = function_run(equation, inputs)
        if called is not None:
            return self._inside(equation, *called)
        if type(callee) is Primitive and type(callee.object) is Better:
            return self._inside(equation, callee.object.body, inputs)
        self._count += 1
        if self._count > MOST_STEPS:
            raise CaptureError(
                f"the program makes more than {MOST_STEPS} operations where its loops are followed turn by turn, which the"
                " doctor does not. Give it smaller arguments, or the body of the loop."
            )
        outs = _bound(equation, [q.computed for q in inputs], self._samples)
        dtypes = [v.dtype for v in outs]
        if self._seen is not None:
            self._seen(equation, [q.computed for q in inputs], outs)
        if not self._exactly:
            return [Quantity(d, v, v) for d, v in zip(dtypes, outs, strict=True)]
        replay = _replay(equation, inputs, outs)
        if replay is None:
            return [self._passed(v, d, equation) for d, v in zip(dtypes, outs, strict=True)]
        exacts = replay([q.exact for q in inputs], slice(None))
        found = [Quantity(d, v, e) for d, v, e in zip(dtypes, outs, exacts, strict=True)]
        self.tape.steps.append(Step(callee.name, equation, tuple(self._calls), inputs, found, replay))
        return found

    def _passed(self, values: Data, dtype: DType, equation: Equation) -> Quantity:
        """A result of an operation without floats before it: as it is computed."""
        if not is_float(dtype):
            return Quantity(dtype, values, values, True)
        if np.size(values) > MOST_NUMBERS:
            return Quantity(dtype, values, np.asarray(values, np.float64), True)
        # The zeros of a mask that became numbers.
        return Quantity(dtype, values, exact.exact_of(values, equation.callee.name == "convert_element_type"), True)

    # ---------------------------------------------------------------- loops and choices

    def _moved(self, equation: Equation, name: str, inputs: Sequence[Quantity], move: Callable[..., Data]) -> Quantity:
        """A step of our own that moves numbers; `move` takes arrays of all samples, or of some of them."""
        first = inputs[0]
        values = move(*[q.computed for q in inputs], slice(None))
        if not self._exactly or all(q.exact is q.computed for q in inputs):
            return Quantity(first.dtype, values, values)
        exacts = move(*_alike([q.exact for q in inputs]), slice(None))
        found = Quantity(first.dtype, values, exacts)

        def replay(args: Sequence[np.ndarray], rows: slice | np.ndarray) -> Sequence[np.ndarray]:
            return [move(*_alike(args), rows)]

        self.tape.steps.append(Step(name, equation, tuple(self._calls), inputs, [found], replay))
        return found

    def _scan(self, loop: Scan, equation: Equation, inputs: Sequence[Quantity]) -> Sequence[Quantity]:
        start, length = loop.consts + loop.carries, equation.params["length"]
        carry = list(inputs[loop.consts : start])
        turns = range(length)
        rows: list[list[Quantity]] = [[] for _ in loop.body.results[loop.carries :]]
        for turn in reversed(turns) if equation.params["reverse"] else turns:
            elements = [
                self._moved(equation, "element", [x], lambda xs, _, turn=turn: xs[:, turn]) for x in inputs[start:]
            ]
            results = self._inside(equation, loop.body, [*inputs[: loop.consts], *carry, *elements])
            carry = results[: loop.carries]
            for row, value in zip(rows, results[loop.carries :], strict=True):
                row.append(value)
        stacked = [
            self._moved(
                equation,
                "stack",
                row[::-1] if equation.params["reverse"] else row,
                lambda *xs: _stack(xs[:-1]),
            )
            for row in rows
        ]
        return [*carry, *stacked]

    def _while(self, loop: While, equation: Equation, inputs: Sequence[Quantity]) -> Sequence[Quantity]:
        ours, consts = inputs[: loop.condition_consts], inputs[loop.condition_consts : loop.consts]
        carry = list(inputs[loop.consts :])
        active = np.ones(self._samples, bool)
        while True:
            (goes,) = self._inside(equation, loop.condition, [*ours, *carry])
            going = np.asarray(goes.computed)
            active &= going.reshape(self._samples, -1).any(axis=1)
            if not active.any():
                return carry
            if self._count > _MOST_OF_WHILE:
                self.tape.unfinished = active.copy()
                return carry
            new = self._inside(equation, loop.body, [*consts, *carry])
            # What is done keeps its carry: of the samples, and in a loop that `jax.vmap` has batched.
            keeps = going & active.reshape(-1, *[1] * (going.ndim - 1))
            carry = [self._chosen(equation, keeps.astype(np.int32), [c, n]) for c, n in zip(carry, new, strict=True)]

    def _cond(self, choice: Cond, equation: Equation, inputs: Sequence[Quantity]) -> Sequence[Quantity]:
        number = np.clip(np.asarray(inputs[0].computed).astype(np.int32), 0, len(choice.branches) - 1)
        taken = sorted(set(number.tolist()))
        results = [self._inside(equation, choice.branches[n], inputs[1:]) for n in taken]
        place = np.searchsorted(taken, number)
        return [self._chosen(equation, place, list(values)) for values in zip(*results, strict=True)]

    def _chosen(self, equation: Equation, which: np.ndarray, cases: Sequence[Quantity]) -> Quantity:
        """Of each sample the value that the program took."""
        if len(cases) == 1:
            return cases[0]
        if jax_compat.is_key_dtype(cases[0].dtype):
            words = [np.asarray(jax_compat.key_data(c.computed)) for c in cases]
            kept = jax.random.wrap_key_data(
                jnp.asarray(_pick(which, words)), impl=jax_compat.key_impl_name(jax_compat.typeof(cases[0].computed))
            )
            return Quantity(cases[0].dtype, kept, kept)
        return self._moved(equation, "choice", cases, lambda *xs: _pick(which[xs[-1]], xs[:-1]))


def _pick(which: np.ndarray, cases: Sequence[Data]) -> np.ndarray:
    found = np.asarray(cases[0])
    for number, case in enumerate(cases[1:], 1):
        case = np.asarray(case)
        chosen = which.reshape(*which.shape, *[1] * (case.ndim - which.ndim))
        found = np.where(chosen == number, case, found)
    return found


def _stack(rows: Sequence[Data]) -> Data:
    if any(jax_compat.is_key_dtype(r.dtype) for r in rows):
        return jnp.stack(rows, axis=1)
    return np.stack([np.asarray(r) for r in rows], axis=1)


def _alike(arrays: Sequence[Data]) -> list[np.ndarray]:
    """Exact values that stand together: all of mpmath, or all float64."""
    every = [np.asarray(a) for a in arrays]
    if any(a.dtype == object for a in every):
        return [a if a.dtype == object or a.dtype.kind in "biu" else exact.exact_of(a) for a in every]
    return every


# ---------------------------------------------------------------- what a primitive gives


def _bound(equation: Equation, args: Sequence[Data], samples: int) -> list[Data]:
    """An equation on all samples in the program's own precision."""
    return [_array(x) for x in _mapped(equation.origin, args, samples)]


def _array(x: Data) -> Data:
    return x if jax_compat.is_key_dtype(x.dtype) else np.asarray(x)


def _mapped(eqn: Data, args: Sequence[Data], samples: int) -> Sequence[Data]:
    """An equation, or a function, on all samples."""

    def one(*xs: Data) -> Sequence[Data]:
        return tuple(eqn(*xs) if callable(eqn) else jax_compat.bind_equation(eqn, xs))

    if not args:
        return [jnp.broadcast_to(x, (samples, *x.shape)) for x in one()]
    try:
        return jax.vmap(one)(*args)
    except NotImplementedError:  # a primitive that has no rule for batches
        rows = [one(*[x[n] for x in args]) for n in range(samples)]
        return [jnp.stack(column) for column in zip(*rows, strict=True)]


def _replay(equation: Equation, inputs: Sequence[Quantity], outs: Sequence[Data]) -> Replay | None:
    """How the exact results follow from exact operands; None where no float goes in."""
    if all(q.exact is q.computed for q in inputs) or not any(q.is_float for q in inputs):
        if all(q.exact is q.computed for q in inputs):
            return None
    name, params = equation.callee.name, equation.params
    outputs = [out.dtype for out in outs]
    if name == "convert_element_type":
        return _converted(outputs[0])
    if name == "reduce_precision":
        return lambda args, rows: [args[0]]
    if name in _MOVES:
        return _Move(equation, inputs).replay
    size = max([np.size(out) for out in outs] + [np.size(q.computed) for q in inputs])
    floats = is_float(outputs[0]) or any(q.is_float for q in inputs)

    def replay(args: Sequence[np.ndarray], rows: slice | np.ndarray) -> Sequence[np.ndarray]:
        if size <= MOST_NUMBERS and floats and all(a.dtype.kind != "c" for a in args):
            with np.errstate(all="ignore"):
                found = exact.primitive(name, _alike(args), params)
            if found is not None:
                return [found]
        return _in_float64(equation, args, outputs, size <= MOST_NUMBERS)

    return replay


def _converted(dtype: DType) -> Replay:
    def replay(args: Sequence[np.ndarray], rows: slice | np.ndarray) -> Sequence[np.ndarray]:
        (x,) = args
        if is_float(dtype):
            return [exact.exact_of(x, True) if x.dtype.kind in "biu" and x.size <= MOST_NUMBERS else x]
        if x.dtype.kind in "biu":
            return [x.astype(dtype)]
        if x.dtype.kind == "c":
            return [x]
        high, _ = exact.parts_of(x)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return [high.astype(np.complex128)]
        with np.errstate(all="ignore"):
            return [(high != 0) if dtype == np.bool_ else np.nan_to_num(np.trunc(high)).astype(dtype)]

    return replay


class _Move:
    """An operation that moves numbers, as where each of its results comes from."""

    def __init__(self, equation: Equation, inputs: Sequence[Quantity]) -> None:
        self._equation = equation
        self._is_data = [q.is_float or not _is_index(equation, i) for i, q in enumerate(inputs)]
        self._known: list[np.ndarray] | None = None  # where no index depends on the sample

    def replay(self, args: Sequence[np.ndarray], rows: slice | np.ndarray) -> Sequence[np.ndarray]:
        samples = len(args[0])
        data = _alike([a for a, is_data in zip(args, self._is_data, strict=True) if is_data])
        sizes = np.cumsum([0, *[math.prod(a.shape[1:]) for a in data]])
        if self._known is not None:
            places = [np.broadcast_to(p, (samples, *p.shape)) for p in self._known]
        else:
            offsets = iter(sizes)
            operands = [
                np.broadcast_to(_places(a.shape[1:], int(next(offsets))), a.shape) if is_data else a
                for a, is_data in zip(args, self._is_data, strict=True)
            ]
            places = [np.asarray(p) for p in _mapped(self._equation.origin, operands, samples)]
            if all(self._is_data):
                self._known = [p[0] for p in places]
        every = np.concatenate([a.reshape(samples, -1) for a in data], axis=1)
        number = np.arange(samples)[:, None]
        found = []
        for p in places:
            flat = p.reshape(samples, -1)
            inside = (flat >= 0) & (flat < every.shape[1])
            values = every[number, np.where(inside, flat, 0)]
            if not inside.all():  # what a gather fills in
                values = np.where(inside, values, exact.exact_of(np.float64("nan")) if every.dtype == object else 0)
            found.append(values.reshape(p.shape))
        return found


def _is_rounded(number: np.ndarray) -> bool:
    """Whether a number of the text has so many digits that it stands for one that the type does not have, as pi."""
    digits = jnp.finfo(number.dtype).nmant
    mantissa = np.frexp(np.float64(number))[0]
    return bool(digits > 16 and np.isfinite(mantissa) and (mantissa * 2.0 ** (digits // 2)) % 1)


def _places(shape: tuple[int, ...], first: int) -> np.ndarray:
    return np.arange(first, first + math.prod(shape), dtype=np.int32).reshape(shape)


def _is_index(equation: Equation, place: int) -> bool:
    """Whether an operand of integers says where numbers go."""
    name = equation.callee.name
    return name == "gather" and place == 1 or name.startswith("dynamic_") and place > name.count("update")


def _in_float64(
    equation: Equation, args: Sequence[np.ndarray], outputs: Sequence[DType], exactly: bool
) -> Sequence[np.ndarray]:
    """An operation without a rule: JAX's own, in float64."""
    floats = [a.dtype == object or a.dtype.kind == "f" for a in args]
    wide = [exact.parts_of(a)[0] if is_wide else a for a, is_wide in zip(args, floats, strict=True)]
    try:
        with jax.enable_x64(True):
            arrays = [_array(x) for x in _mapped(_widened(equation.origin), wide, len(args[0]))]
    except Exception:  # what says its types inside, or is a function of the author's: as it is computed
        avals = [a.aval for a in equation.inputs]
        near = [_typed(x, aval.dtype) if f else x for x, aval, f in zip(wide, avals, floats, strict=True)]
        arrays = [_array(x) for x in _mapped(equation.origin, near, len(args[0]))]
    found: list[np.ndarray] = []
    for x, dtype in zip(arrays, outputs, strict=True):
        if is_float(dtype):
            found.append(exact.exact_of(x) if exactly else np.asarray(x, np.float64))
        else:
            found.append(x if jax_compat.is_key_dtype(dtype) or x.dtype.kind == "c" else x.astype(dtype))
    return found


def _typed(x: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _widened(eqn: Data) -> Callable[..., Sequence[Data]]:
    """An equation in double precision; of a number's bits in its own, for another type has others."""
    if eqn.primitive.name == "bitcast_convert_type":
        return lambda x: jax_compat.bind_equation(eqn, (x.astype(eqn.invars[0].aval.dtype),))
    public = getattr(lax, eqn.primitive.name.replace("-", "_"), None)
    if eqn.primitive.name.startswith("scatter") and public is not None:  # whose sum is a jaxpr with types
        kept = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
        return lambda *xs: [public(*xs, **{key: eqn.params[key] for key in kept})]
    params = {
        key: np.dtype(np.float64) if isinstance(value, np.dtype) and is_float(value) else value
        for key, value in eqn.params.items()
    }
    return lambda *xs: jax_compat.bind_equation(eqn.replace(params=params), xs)
