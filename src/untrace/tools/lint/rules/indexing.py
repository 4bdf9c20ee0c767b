"""Indices: those that leave their array without a word, and gathers of what lies side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from untrace.ir.nodes import Cond, Equation, Function, Value
from untrace.ir.stepwise import Turn, evaluate_stepwise
from untrace.ir.types import Data
from untrace.prove.sample import is_concrete
from untrace.provenance.frames import Frame
from untrace.tools.lint.findings import LintFinding
from untrace.tools.lint.program import Linted, Scope, Seen, Values, bytes_of, call_at, typed

_LARGEST = 1 << 22  # elements of what an index is computed from
_MOST_STEPS = 4_000
_MOST_KINDS = 150  # of operations, each of which XLA compiles
# Is shown an equation with the values of its indices, by operand.
Look: TypeAlias = Callable[[Seen, Sequence[np.ndarray | None]], None]
# What the author calls to index, by the module that has it; of `x.at[i]` every method.
_INDEXING = {
    "operator": ("getitem",), "method": ("__getitem__", "take"), "jax.numpy": ("take", "take_along_axis"),
    "jax.lax": ("gather", "dynamic_slice", "dynamic_slice_in_dim", "dynamic_index_in_dim", "dynamic_update_slice",
                "dynamic_update_slice_in_dim", "dynamic_update_index_in_dim", "scatter", "scatter_add", "scatter_mul",
                "scatter_min", "scatter_max"),
}  # fmt: skip
_PRIMITIVES = ("gather", "scatter", "scatter-add", "scatter_add", "scatter_sub", "scatter-sub", "scatter_mul",
               "scatter-mul", "scatter_min", "scatter-min", "scatter_max", "scatter-max", "dynamic_slice",
               "dynamic_update_slice")  # fmt: skip
# What JAX does with an index that is none, by the start of the primitive's name.
_DOES = {"gather": "another element, or NaN, is what it gives", "scatter": "nothing is written there",
         "dynamic": "JAX moves it to the nearest place that is"}  # fmt: skip


# ---------------------------------------------------------------- indices out of bounds


def indices_out_of_bounds(linted: Linted) -> Iterator[LintFinding]:
    asked = {_key(s): s for s in linted.seen if _is_asked(s)}
    found: dict[tuple[str, int, int], tuple[Seen, Frame, int, int, int, int]] = {}

    def look(seen: Seen, inputs: Sequence[np.ndarray | None]) -> None:
        frame = seen.frame
        assert frame is not None  # what is asked for has one
        bad = _out_of_bounds(seen.equation, inputs)
        if bad is not None:
            key = frame.file, int(frame.line), int(frame.column or 0)
            before = found.get(key)
            count = bad[2] if before is None else before[4] + bad[2]
            first = bad if before is None else (*before[2:4], count, before[5])
            found[key] = seen, frame, first[0], first[1], count, first[3]

    are_given = all(is_concrete(leaf) for leaf in linted.leaves)
    args = {p: leaf for p, leaf in zip(linted.program.params, linted.leaves, strict=True) if is_concrete(leaf)}
    values = Values(args.get, _LARGEST)
    in_loops: dict[Equation, Seen] = {}
    for seen in asked.values():
        equation = seen.equation
        wanted = {n: values.of(a, seen.scope) for n, a in enumerate(equation.inputs) if _is_index(equation, n)}
        is_in_branch = any(type(e.callee) is Cond for e in seen.scope.around())  # which may not run
        if all(x is not None for x in wanted.values()) and not is_in_branch:
            look(seen, [wanted.get(n) for n in range(len(equation.inputs))])
        else:
            in_loops.setdefault(equation, seen)
    if in_loops and are_given:
        _with_arguments(linted, in_loops, look)
    elif in_loops:
        linted.notes.append("indices that depend on arguments were not looked at: they are given as types")
    for seen, frame, index, size, count, axis in found.values():
        kind = seen.equation.callee.name
        does = next(text for start, text in _DOES.items() if kind.startswith(start))
        array = typed(seen.equation.inputs[0].aval)
        if index < 0:  # JAX counts one that is less from the end
            index -= size
        yield linted.finding(
            "out-of-bounds",
            frame,
            f"index {index} is outside of axis {axis} of {array}, whose indices go from {-size} to {size - 1}; {does},"
            " and no error is raised",
            {"elements": count},
            "an index that is inside; or say what is meant:"
            + (' x.at[i].get(mode="fill", fill_value=...)' if kind == "gather" else
               ' mode="drop" or mode="clip" with x.at[i]' if kind.startswith("scatter") else " jnp.clip(i, 0, n - 1)"),
        )  # fmt: skip


def _key(seen: Seen) -> tuple[Equation, Scope]:
    return seen.equation, seen.scope


def _is_asked(seen: Seen) -> bool:
    """Whether an equation is an index of the author's, who has not said what becomes of one that is none."""
    frame, site = seen.frame, seen.site
    if frame is None or site.phase == "backward" or seen.equation.callee.name not in _PRIMITIVES:
        return False
    module, name = site.library or ("", "")
    if module != "at" and name not in _INDEXING.get(module, ()):
        return False
    call = call_at(frame)
    return call is None or all(k.arg != "mode" for k in call.keywords)


def _is_index(equation: Equation, number: int) -> bool:
    name = equation.callee.name
    if name.startswith("dynamic"):
        return number >= (1 if name == "dynamic_slice" else 2)
    return number == 1


def _out_of_bounds(equation: Equation, inputs: Sequence[np.ndarray | None]) -> tuple[int, int, int, int] | None:
    """(an index that is none, the size of the axis, how many there are, the axis); None where all are inside."""
    shape, name, params = equation.inputs[0].aval.shape, equation.callee.name, equation.params
    if name.startswith("dynamic"):
        first = 1 if name == "dynamic_slice" else 2
        windows = params["slice_sizes"] if name == "dynamic_slice" else equation.inputs[1].aval.shape
        columns = [(axis, np.asarray(inputs[first + axis]).reshape(-1)) for axis in range(len(shape))]
    else:
        numbers = params["dimension_numbers"]
        if name == "gather":
            axes, windows = numbers.start_index_map, params["slice_sizes"]
        else:
            axes, windows = numbers.scatter_dims_to_operand_dims, _windows(equation)
        indices = np.asarray(inputs[1])
        columns = [(axis, indices[..., i].reshape(-1)) for i, axis in enumerate(axes)]
    for axis, starts in columns:
        # A window that is an array's whole axis can only begin at 0.
        bad = (starts.astype(np.int64) < 0) | (starts.astype(np.int64) + windows[axis] > shape[axis])
        if bad.any():
            index = int(starts[np.argmax(bad)])
            last = index + windows[axis] - 1
            return index if index < 0 else last, shape[axis], int(bad.sum()), axis
    return None


def _windows(equation: Equation) -> Sequence[int]:
    """How large what a scatter writes at one index is, along each axis of the array."""
    operand, updates = equation.inputs[0].aval.shape, equation.inputs[2].aval.shape
    numbers = equation.params["dimension_numbers"]
    alone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = iter([updates[d] for d in numbers.update_window_dims])
    return [1 if axis in alone else next(sizes) for axis in range(len(operand))]


class _Enough(Exception):
    """As much was run as may be."""


class _Indices:
    """Looks at the indices while the program is run."""

    def __init__(self, cases: Mapping[Equation, Seen], look: Look) -> None:
        self._cases, self._look, self._steps = cases, look, 0
        self._kinds: set[tuple[object, ...]] = set()

    def enter(self, equation: Equation, function: Function, args: Sequence[Data], turn: Turn | None) -> None: ...

    def leave(self) -> None: ...

    def replaces(self, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data] | None:
        self._steps += 1
        seen = self._cases.get(equation)
        if seen is not None:
            self._look(seen, [np.asarray(x) if _is_index(equation, n) else None for n, x in enumerate(inputs)])
        if equation.callee.name.startswith("debug_"):
            return [None for _ in equation.outputs]
        self._kinds.add((equation.callee.name, *[(a.aval.shape, str(a.aval.dtype)) for a in equation.inputs]))
        if self._steps > _MOST_STEPS or len(self._kinds) > _MOST_KINDS or equation.effects:
            raise _Enough
        return None

    def computed(self, equation: Equation, outputs: Sequence[Data]) -> None: ...


def _with_arguments(linted: Linted, cases: Mapping[Equation, Seen], look: Look) -> None:
    """Runs what the indices depend on, with the arguments that were given."""
    part = _part_with(linted.program, cases)
    given = dict(zip(linted.program.params, linted.leaves, strict=True))
    try:
        evaluate_stepwise(part, [np.asarray(given[p]) if not hasattr(given[p], "dtype") else given[p] for p in part.params],
                          _Indices(cases, look))  # fmt: skip
    except _Enough:
        linted.notes.append(
            "indices in later parts of the program were not looked at: it runs for too long, or has effects"
        )
    except Exception as error:
        linted.notes.append(f"indices were not looked at any further: the program stops with {type(error).__name__}")


def _part_with(program: Function, cases: Mapping[Equation, Seen]) -> Function:
    """What of a program has to run for the indices of some equations in it; their arrays need not be."""
    wanted: set[Value] = set()
    kept = []
    for equation in reversed(program.equations):
        is_wanted = not wanted.isdisjoint([o for o in equation.outputs if o is not None])
        if is_wanted or equation in cases or _runs_one(equation, cases):
            kept.append(equation)
            wanted.update(a for a in equation.inputs if type(a) is Value)
    return Function(program.name, [p for p in program.params if p in wanted], kept[::-1], [], program.jaxpr)


def _runs_one(equation: Equation, cases: Mapping[Equation, Seen]) -> bool:
    return any(equation in seen.scope.around() for seen in cases.values())


# ---------------------------------------------------------------- gathers of what lies side by side


def gathers_of_slices(linted: Linted) -> Iterator[LintFinding]:
    constants = Values()
    for seen in linted.seen:
        frame, equation = seen.frame, seen.equation
        if frame is None or equation.callee.name != "gather" or not _is_asked(seen):
            continue
        axes = equation.params["dimension_numbers"].start_index_map
        count = int(np.prod(equation.inputs[1].aval.shape[:-1]))
        if len(axes) != 1 or count < 2 or equation.params["slice_sizes"][axes[0]] != 1:
            continue
        indices = constants.of(equation.inputs[1], seen.scope)
        if indices is not None:
            step = _step(indices)
            if step is None or abs(step) > 1 and count < 3:  # two numbers are always in a row
                continue
            first, last = int(indices.reshape(-1)[0]), int(indices.reshape(-1)[-1])
            stop = str(last + (1 if step > 0 else -1)) if last or step > 0 else ""
            text = f"{first}:{stop}" + (f":{step}" if step != 1 else "")
            before = ":, " * axes[0]
            change = f"a slice: x[{before}{text}]"
        elif _is_moving_slice(seen):
            change = f"jax.lax.dynamic_slice_in_dim(x, start, {count}, axis={axes[0]})"
        else:
            continue
        size = equation.outputs[0]
        yield linted.finding(
            "gather-slice",
            frame,
            f"{count} indices in a row: XLA gathers the elements one by one, where a slice is one copy",
            {"elements": count, **({"bytes": bytes_of(size.aval)} if size is not None else {})},
            change,
        )


def _step(indices: np.ndarray) -> int | None:
    """The distance between indices in a row; None where it is not the same, or they are a grid."""
    if np.count_nonzero(np.array(indices.shape) > 1) > 1:
        return None
    steps = set(np.diff(indices.reshape(-1).astype(np.int64)).tolist())
    return steps.pop() if len(steps) == 1 and 0 not in steps else None


def _is_moving_slice(seen: Seen) -> bool:
    """Whether indices are numbers in a row behind a start, whatever that is."""
    for one, other in ((0, 0), (1, 2), (3, 5)):
        free: dict[Value, int] = {}

        def number(value: Value, free: dict[Value, int] = free, pair: tuple[int, int] = (one, other)) -> int | None:
            if value.aval.shape or not np.issubdtype(value.aval.dtype, np.integer):
                return None
            return free.setdefault(value, pair[len(free) % 2])

        indices = Values(number).of(seen.equation.inputs[1], seen.scope)
        if indices is None or _step(indices) != 1 or not free:
            return False
    return True
