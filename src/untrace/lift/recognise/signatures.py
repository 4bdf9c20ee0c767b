"""Calls to try of a library function of which only the name and the operands are known.

The function's own signature says which parameters are arrays and which are static; what a static one may have been is read
off the equations that the call left behind (`Facts`): axes that were reduced, small integers, shapes of results. A
parameter is known by its name, for JAX uses the same names throughout; what is not in `_VALUES` keeps its default.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Literal, Value
from untrace.lift.recognise import library
from untrace.lift.recognise.engine import Guess
from untrace.lift.recognise.scalars import python_scalar

# Of one function; each costs a trace, once per types of the operands.
_MOST_GUESSES = 24


class Facts:
    """What equations say about the static arguments of the call that made them.

    `eqns`: jaxpr equations, looked into where they hold jaxprs. `inputs`, `outputs`: avals of the call.
    """

    def __init__(self, eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]):
        self._eqns = eqns
        self.inputs = inputs
        self.outputs = outputs

    @cached_property
    def equations(self) -> list[Any]:
        found: list[Any] = []
        stack = list(reversed(self._eqns))
        while stack and len(found) < 300:
            eqn = stack.pop()
            found.append(eqn)
            for value in eqn.params.values():
                inner = value if type(value) in (tuple, list) else (value,)
                for jaxpr in inner:
                    if jax_compat.is_jaxpr(jaxpr):
                        stack.extend(reversed(jax_compat.open_jaxpr(jaxpr)[0].eqns))
        return found

    @property
    def rank(self) -> int:
        return max((len(a.shape) for a in self.inputs if hasattr(a, "shape")), default=0)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.outputs[0].shape)

    @cached_property
    def axes(self) -> list[Any]:
        """Axes, alone and together, last ones negative as people write them."""
        found: dict[Any, None] = {}
        for eqn in self.equations:
            rank = len(getattr(eqn.invars[0].aval, "shape", ())) if eqn.invars else 0
            for key in ("axes", "axis", "dimension", "dimensions", "concat_dimension"):
                value = eqn.params.get(key)
                if value is None:
                    continue
                axes = (value,) if isinstance(value, (int, np.integer)) else value
                if not isinstance(axes, (tuple, list)) or not all(isinstance(a, (int, np.integer)) for a in axes):
                    continue
                several = tuple(int(a) for a in axes)
                if len(several) == 1:
                    axis = several[0]
                    if axis == rank - 1:
                        found[-1] = None
                    found[axis] = None
                elif several:
                    if several == tuple(range(rank - len(several), rank)):
                        found[tuple(range(-len(several), 0))] = None
                    found[several] = None
        return list(found) or [-1, *range(self.rank)][: self.rank + 1]

    @cached_property
    def numbers(self) -> list[Any]:
        """Scalar literals in the equations, as Python numbers, by their first appearance."""
        found: dict[str, Any] = {}
        for eqn in self.equations:
            for atom in eqn.invars:
                if type(atom) is jax_compat.LITERAL_TYPE and not np.shape(atom.val):
                    number = python_scalar(atom.val, atom.aval)
                    if number is not None and type(number) in (int, float):
                        found.setdefault(repr(number), number)
        return list(found.values())[:12]

    @cached_property
    def integers(self) -> list[int]:
        found = [int(n) for n in self.numbers if n == n and abs(n) < 1e6 and int(n) == n]
        return list(dict.fromkeys([*found, *[n + 1 for n in found], 1, -1, 2]))

    @cached_property
    def floats(self) -> list[Any]:
        return [n for n in self.numbers if type(n) is float] or self.numbers

    @cached_property
    def divisors(self) -> list[Any]:
        return Facts([e for e in self.equations if e.primitive.name == "div"], self.inputs, self.outputs).numbers

    @cached_property
    def sizes(self) -> list[int]:
        return list(dict.fromkeys(int(n) for a in self.outputs for n in getattr(a, "shape", ())))

    @cached_property
    def ratios(self) -> list[int]:
        """How much longer the result is than the operand, over all and along each axis."""
        before, after = self.inputs[0].shape if self.inputs else (), self.shape
        pairs = list(zip(before, after, strict=False)) if len(before) == len(after) else []
        total = int(np.prod(after)) // max(int(np.prod(before)), 1)
        return list(dict.fromkeys([*[b // a for a, b in pairs if a and b != a], total]))

    @cached_property
    def widths(self) -> list[Any]:
        """What padding alike on both sides adds."""
        before = self.inputs[0].shape if self.inputs else ()
        if len(before) != len(self.shape):
            return []
        added = [(b - a, (b - a) // 2, b - a - (b - a) // 2) for a, b in zip(before, self.shape, strict=True)]
        pairs = tuple((half, rest) for _, half, rest in added)
        whole = [pairs[0][0]] if len({n for pair in pairs for n in pair}) == 1 else []
        sides = [tuple((0, n) for n, _, _ in added), tuple((n, 0) for n, _, _ in added)]
        return [*whole, pairs, *sides]

    def has(self, *primitives: str) -> bool:
        """Whether there is an equation of one of these primitives."""
        return any(e.primitive.name in primitives for e in self.equations)

    def params(self, name: str) -> list[Any]:
        """The values of one parameter in all equations."""
        found: list[Any] = []
        for eqn in self.equations:
            value = eqn.params.get(name)
            value = value[0] if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1] else value
            if value is not None and value not in found:
                found.append(value)
        return found


# Modes, by the default of the parameter: of padding, of convolutions, of decompositions, of indexing.
_MODES = {
    "constant": ("edge", "reflect", "wrap", "symmetric"), "full": ("same", "valid"), "reduced": ("complete", "r"),
    "raise": ("clip", "wrap"), None: ("fill", "clip", "wrap", "promise_in_bounds"),
}  # fmt: skip
_STRINGS = {
    "side": ("right",), "indexing": ("ij",), "norm": ("ortho", "forward"), "method": ("sort", "compare_all", "scan_unrolled",
    "nearest", "linear", "bilinear", "cubic", "lower", "higher", "midpoint", "gumbel"), "ord": (1, 2, np.inf, -np.inf, "fro", "nuc"),
    "UPLO": ("U",), "trans": (1, 2), "assume_a": ("pos", "sym", "her"), "decimals": (1, 2, 3, 4), "ddof": (1,),
}  # fmt: skip

_VALUES: dict[str, Callable[[Facts], Iterable[Any]]] = {
    "axis": lambda f: f.axes, "axes": lambda f: f.axes, "dimension": lambda f: f.axes, "shape": lambda f: [f.shape],
    "dtype": lambda f: [f.outputs[0].dtype], "num_classes": lambda f: f.sizes[::-1], "size": lambda f: f.sizes,
    "num": lambda f: f.sizes, "length": lambda f: f.sizes, "num_segments": lambda f: f.sizes, "N": lambda f: f.sizes,
    "M": lambda f: f.sizes[::-1], "k": lambda f: [*f.integers, *f.sizes[::-1]], "n": lambda f: [*f.sizes[::-1], *f.integers],
    "offset": lambda f: f.integers, "repeats": lambda f: f.ratios, "reps": lambda f: [*f.ratios, *f.params("reps")],
    "pad_width": lambda f: f.widths, "total_repeat_length": lambda f: f.sizes, "bins": lambda f: [n - 1 for n in f.sizes], "s": lambda f: [f.shape],
    "indices_or_sections": lambda f: [len(f.outputs)], "operand_axis": lambda f: f.axes, "shift": lambda f: f.integers,
    "d": lambda f: [x / n for n in f.sizes[:1] for x in f.divisors if n],  # the spacing of `fftfreq`, which divides by `n * d`
    "precision": lambda f: f.params("precision"), "preferred_element_type": lambda f: f.params("preferred_element_type"),
    **dict.fromkeys(
        ("epsilon", "eps", "negative_slope", "alpha", "rtol", "atol", "rcond", "fill_value", "constant_values", "initial",
         "lower", "upper", "minval", "maxval", "p", "q", "loc", "scale", "nan", "posinf", "neginf", "tol", "b"),
        lambda f: f.floats,
    ),
    **{name: (lambda values: lambda f: values)(values) for name, values in _STRINGS.items()},  # noqa: B023
}  # fmt: skip
# Static though a function may also take an array there, as long as there are operands enough for the others.
_ARRAYS_TOO = frozenset(
    {"fill_value", "initial", "minval", "maxval", "lower", "upper", "p", "q", "loc", "scale", "b", "alpha", "negative_slope",
     "shift", "k", "n", "epsilon", "eps", "rtol", "atol", "rcond", "repeats", "bins", "constant_values", "M", "N", "nan",
     "posinf", "neginf", "tol", "side", "s"}
)  # fmt: skip
# Arrays that go by name, last.
_NAMED_ARRAYS = frozenset(
    {"p", "where", "weights", "b", "mask", "bias", "initial", "fill_value", "fweights", "aweights"}
)
_LISTS = frozenset({"arrays", "tup", "seq", "operands", "coordinates"})
# What an option must be to leave the equations that there are, where they tell.
_TOLD: dict[str, Callable[[Facts], bool | None]] = {
    "approximate": lambda f: False if f.has("erf", "erfc") else True if f.has("tanh") else None
}
# Sizes that have to be said where an array says what would else tell them.
_NEEDED = {"segment_ids": "num_segments", "repeats": "total_repeat_length"}
# Options that stand in the equations under the same name.
_FLAGS = frozenset({"indices_are_sorted", "unique_indices"})
# Arrays of integers, everywhere.
_INTEGERS = frozenset({"indices", "segment_ids", "repeats"})


@cache
def parameters(path: str) -> tuple[inspect.Parameter, ...] | None:
    known = library.signature(path)
    return None if known is None else tuple(known.parameters.values())


def guesses(
    path: str, operands: Sequence[Any], facts: Facts, given: Mapping[str, Any] | None = None
) -> Iterator[Guess]:
    """Calls of the function at `path` with these operands (atoms), the shortest first.

    given: arguments that are known, by the name of the parameter.
    """
    known = parameters(path)
    if known is not None:
        several = itertools.islice(_guesses(path, known, operands, facts, dict(given or {})), _MOST_GUESSES)
        yield from [g for g in several if _has_shape(g, known, facts)] if _is_reduction(known) else several


_PLACE = re.compile(r"(\w+)((?:\[\d+\])*)")


def guesses_by_name(path: str, operands: Sequence[Any], names: Sequence[str], facts: Facts) -> Iterator[Guess]:
    """Calls of the function at `path` where the operands are these parameters, or elements of lists that are: `arrays[0][1]`."""
    known = parameters(path)
    found = [_PLACE.fullmatch(name) for name in names]
    if known is None or len(names) != len(operands) or not operands:
        return
    parts: dict[str, list[tuple[list[int], object]]] = {}
    for match, operand in zip(found, operands, strict=True):
        if match is None:
            return
        parts.setdefault(match[1], []).append(([int(n) for n in re.findall(r"\d+", match[2])], operand))
    given = {name: _nested(elements) for name, elements in parts.items()}
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    front = list(itertools.takewhile(lambda p: p.name in given and p.kind in plain, known))
    rest = [p for p in known if p.name not in given]
    if not given.keys() <= {p.name for p in known if p.kind not in _VARIABLE}:
        return
    if any(p.default is p.empty and p.kind not in _VARIABLE for p in rest):
        return
    arrays = {p.name: given[p.name] for p in known if p.name in given and p not in front}
    for options in itertools.islice(_options(rest, facts, {}), _MOST_GUESSES):
        yield Guess(path, tuple([given[p.name] for p in front]), {**arrays, **options})


def _nested(elements: Sequence[tuple[Sequence[int], object]]) -> object:
    """The lists in each other that have these elements, each with its place, in order; the only one where that has none."""
    if not elements[0][0]:
        return elements[0][1]
    rows = itertools.groupby(elements, lambda element: element[0][0])
    return [_nested([(place[1:], value) for place, value in row]) for _, row in rows]


def _is_reduction(parameters: Sequence[inspect.Parameter]) -> bool:
    """Whether a function takes away the axes that it is given, or all, as `jnp.sum` does, and quantiles do not."""
    names = {p.name: p.default for p in parameters}
    return names.get("axis", 0) is None and names.get("keepdims") is False and "q" not in names


def _has_shape(guess: Guess, parameters: Sequence[inspect.Parameter], facts: Facts) -> bool:
    """Whether a reduction of one array has a result of the right shape: most axes to try do not, and need no trace."""
    known = ("axis", "keepdims", "dtype", "promote_integers", "where", "ddof", "correction")
    mask = getattr(guess.kwargs.get("where"), "aval", None)
    if len(guess.args) != 1 or len(facts.outputs) != 1 or not all(k in known for k in guess.kwargs):
        return True
    if mask is not None and mask.shape or not hasattr(guess.args[0], "aval"):
        return True  # both are brought to one shape
    shape = guess.args[0].aval.shape
    axis = guess.kwargs.get("axis")
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    if not all(isinstance(a, int) and -len(shape) <= a < len(shape) for a in axes):
        return False
    gone = {a % len(shape) for a in axes}
    keep = guess.kwargs.get("keepdims") is True
    return facts.shape == tuple([1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone])


def _guesses(
    path: str, parameters: Sequence[inspect.Parameter], operands: Sequence[Any], facts: Facts, given: dict[str, Any]
) -> Iterator[Guess]:
    first = parameters[0] if parameters else None
    if first is not None and first.name == "subscripts":
        return  # einsum: its letters are read elsewhere
    if first is not None and (first.kind is first.VAR_POSITIONAL or first.name in _LISTS):
        several: tuple[Any, ...] = (list(operands),) if first.name in _LISTS else tuple(operands)
        for options in _options(parameters[1:], facts, given):
            yield Guess(path, several, options)
        return
    required = {p.name for p in parameters if p.default is p.empty}
    optional = {k: v for k, v in given.items() if k not in required}
    for count in _counts(operands):
        bound = _bound(parameters, operands[:count], facts, given)
        if bound is None:
            continue
        args, choices, rest, by_name = bound
        needed = {
            _NEEDED[p.name] for p, a in zip(parameters, args, strict=False) if p.name in _NEEDED and type(a) is Value
        }
        for values in itertools.product(*choices):
            filled = iter(values)
            positional = tuple([next(filled) if a is _CHOICE else a for a in args])
            for options in _options(rest, facts, {**optional, **by_name}):
                if needed and not needed.issubset(options) and any(p.name in needed for p in rest):
                    continue
                yield _in_place(path, positional, rest, options)


# Options that people write in their place and not by name.
_IN_PLACE = frozenset({"shape", "num", "num_segments", "M", "repeats"})


def _in_place(path: str, args: tuple[Any, ...], rest: Sequence[inspect.Parameter], options: dict[str, Any]) -> Guess:
    options = dict(options)
    for parameter in rest:
        if parameter.name not in options or parameter.name not in _IN_PLACE or parameter.kind is parameter.KEYWORD_ONLY:
            break
        args = (*args, options.pop(parameter.name))
    return Guess(path, args, options)


def _counts(operands: Sequence[Any]) -> Iterator[int]:
    """How many of the operands were written: literals at the end may be defaults."""
    written = len(operands)
    while written and type(operands[written - 1]) is Literal:
        written -= 1
    yield from range(written, len(operands) + 1)


_CHOICE = object()


def _bound(
    parameters: Sequence[inspect.Parameter], operands: Sequence[Any], facts: Facts, given: Mapping[str, Any]
) -> tuple[list[Any], list[list[Any]], list[inspect.Parameter], dict[str, Any]] | None:
    """(positional arguments, choices for those that are _CHOICE, parameters that are left, arrays by name); None where
    the operands do not fit."""
    args: list[Any] = []
    choices: list[list[Any]] = []
    left = list(operands)
    rest: list[inspect.Parameter] = []
    by_name: dict[str, Any] = {}
    named = False  # once a parameter is left out, the others go by name
    for parameter in parameters:
        name = parameter.name
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name in given and not required:
            named = True
            rest.append(parameter)
            continue
        if type(given.get(name)) in (int, float):  # a number in the author's call
            args.append(_CHOICE)
            choices.append([given[name]])
            continue
        static = name in _VALUES and (name not in _ARRAYS_TOO or not left)
        if (
            left
            and not static
            and not named
            and (required or name not in _NAMED_ARRAYS)
            and parameter.kind is not parameter.KEYWORD_ONLY
        ):
            if name in _LISTS:
                args.append(left)
                left = []
                continue
            if name in _INTEGERS and not jax.numpy.issubdtype(left[0].aval.dtype, np.integer):
                return None
            args.append(left.pop(0))
        elif required:
            if named or parameter.kind is parameter.KEYWORD_ONLY or name not in _VALUES and name not in given:
                return None
            values = [given[name]] if name in given else list(_VALUES[name](facts))[:6]
            args.append(_CHOICE)
            choices.append(values)
        elif left and name == "shape":
            args.append(_CHOICE)
            choices.append([facts.shape])
        else:
            rest.append(parameter)
            named = named or bool(left)
    places = [p.name for p in rest if p.name in _NAMED_ARRAYS and p.name not in given]
    for operand in list(left):
        masks = operand.aval.dtype == bool
        name = next((n for n in places if (n in ("where", "mask")) is masks and n not in by_name), None)
        if name is not None:
            by_name[name] = operand
            left.remove(operand)
    if left:
        return None
    return args, choices, [p for p in rest if p.name not in by_name], by_name


_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _options(
    parameters: Sequence[inspect.Parameter], facts: Facts, given: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Keyword arguments to try: none, then one, then two at a time."""
    fixed = {k: v for k, v in given.items() if any(p.name == k for p in parameters)}
    known = {p.name for p in parameters}
    fixed.update({k: v for k, v in given.items() if k not in known})
    told = {p.name: _TOLD[p.name](facts) for p in parameters if p.name in _TOLD and p.name not in fixed}
    fixed.update({p.name: told[p.name] for p in parameters if told.get(p.name, p.default) not in (None, p.default)})
    choices: list[list[tuple[str, Any]]] = []
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        if name in fixed or told.get(name) is not None or parameter.kind in _VARIABLE:
            continue
        if name == "axis" and default is None and facts.rank < 2:
            continue
        if default is True or default is False:
            if name == "keepdims" and default is (len(facts.shape) == facts.rank):
                continue
            if name in _FLAGS and True not in facts.params(name):
                continue
            choices.append([(name, not default)])
        elif name == "mode":
            choices.append([(name, v) for v in _MODES.get(default, ())])
        elif name in _VALUES:
            values = [
                v for v in _VALUES[name](facts) if v is not default and not (type(v) is type(default) and v == default)
            ]
            if values:
                choices.append([(name, v) for v in values[:6]])
    yield fixed
    for group in choices:
        for choice in group:
            yield {**fixed, **dict([choice])}
    for one, two in itertools.combinations(choices, 2):
        for pair in itertools.product(one, two):
            yield {**fixed, **dict(pair)}
