"""Which calls of JAX's library are calls of another one: those that do the same there.

The two libraries differ where one does not expect it (sums of integers, NaN in a maximum, indices outside), so that each
call is tried on samples of its own types, edge values among them. What differs has a body that can be written.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Atom, Constant, Equation, Library, Literal, Slot, Value, functions_called, walk_functions
from untrace.lift.recognise.library import is_unpacked, resolve
from untrace.lift.recognise.patterns import Fixed
from untrace.prove.execute import has_extremes, may_not_end
from untrace.prove.run import ulps_apart
from untrace.prove.sample import CannotSample, LeafType, draw, sample_inputs
from untrace.targets.eager.library import ArrayLibrary, Candidate

_LARGEST = 1 << 22  # elements of an operand, of which a trial would take too long
_LARGE = 1 << 13
_SLOW = 1 << 24  # multiplications of integers, for which libraries have no fast product
_SLOW_FUNCTIONS = frozenset("igamma igammac igamma_grad_a regularized_incomplete_beta polygamma zeta".split())
_SHORT = 64
_LEASTS = (3, 4)  # sizes that are small, and no bound of broadcasting: a median is another one of an even number
_SAMPLES = 10
_PLAIN_SAMPLES = (0, 2, 6, 8, 9)  # recipes of `draw` without edge values
_FEW = 4
_SAMPLES_OF_ONE = 16
_PLAIN = 0  # the recipe of `draw` for common values
_EDGES = 3  # for edge values alone
_SOME_EDGES = 4  # the recipe of `draw` for values of which some are edge values
_CLOSE = 64  # units in the last place that two libraries' transcendental functions and sums are apart
_LEAST_PRECISE = 4  # bytes of a float in which sums are made


def spelled(
    library: ArrayLibrary, callee: Library, inputs: Sequence[Atom], outputs: Sequence[Value | None]
) -> Library | None:
    """The call of another library (`np.mean`, `operator.add`, `method.sum`) that does what a call of JAX's does; None where
    it has none."""
    if callee.function is not None:
        return None
    key = _key(library, callee, inputs, outputs)
    candidates = list(library.candidates(callee))
    found = _FOUND.get(key, -1)
    if found == -1:
        found = next((i for i, c in enumerate(candidates) if _agree(library, c, callee, inputs, outputs)), None)
        if key is not None:
            _FOUND[key] = found
    return None if found is None else candidates[found].callee


# What trials gave: which candidate it is. The same call stands in each attempt at a text, and often in it again.
_FOUND: dict[Hashable, int | None] = {}


def _key(
    library: ArrayLibrary, callee: Library, inputs: Sequence[Atom], outputs: Sequence[Value | None]
) -> Hashable | None:
    """All that a trial depends on; None where that is too much to remember."""
    arguments = repr((callee.args, sorted(callee.kwargs.items())))
    if " at 0x" in arguments or any(type(a) is Constant for a in inputs):
        return None
    every = [None if a is None else a.aval for a in (*inputs, *outputs)]
    types = [a and (tuple(a.shape), str(a.dtype), bool(getattr(a, "weak_type", False))) for a in every]
    numbers = [repr(a.value) for a in inputs if type(a) is Literal]
    return library.title, callee.name, arguments, tuple(types), tuple(numbers)


def _agree(
    library: ArrayLibrary,
    candidate: Candidate,
    called: Library,
    inputs: Sequence[Atom],
    outputs: Sequence[Value | None],
) -> bool:
    """Whether a call gives the types and, but for rounding, the values that the one that was called has in JAX.

    At its own sizes, and where one of those is large, at small ones: of a large array no sample has all the edge values, and
    `n - 1` of them are as good as `n`.
    """
    if is_unpacked(called.name):  # which Python does, of keys too
        return True
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in inputs if type(a) is Value]
    is_small = all(np.prod(a.shape, initial=1) <= _LARGEST for a in avals)
    original = resolve(called.name) if any(n > _SHORT for a in avals for n in a.shape) else None
    small = [sizes for least in _LEASTS if (sizes := _smallest(called, inputs, least))] if original is not None else []
    tried = functools.partial(_agree_at, library, candidate, called, inputs, len(outputs))
    found = [tried(sizes, original, is_plain=is_small) for sizes in small]
    if False in found or not is_small:
        return False not in found and True in found
    shorter = _shorter(called, inputs)
    slow = not shorter and any(_is_slow(e) for f in walk_functions(called.body) for e in f.equations)
    return True in found and slow or bool(tried(shorter, None))


def _agree_at(
    library: ArrayLibrary,
    candidate: Candidate,
    called: Library,
    inputs: Sequence[Atom],
    results: int,
    sizes: Mapping[int, int],
    original: Callable[..., Any] | None,
    is_plain: bool = False,
) -> bool | None:
    """The same with other sizes, of JAX's function itself (original), which may not take these (None), or of its body.

    is_plain: without edge values, of which sums of a few numbers overflow in one order and not in another.
    """
    callee = candidate.callee
    variables = [i for i, a in enumerate(inputs) if type(a) is Value]
    avals = [
        jax.ShapeDtypeStruct([sizes.get(n, n) for n in inputs[i].aval.shape], inputs[i].aval.dtype) for i in variables
    ]
    if any(np.prod(a.shape, initial=1) > _LARGEST for a in avals):
        return None
    arrays: list[Any] = [_value(a) for a in inputs]

    def run(own: Sequence[Any]) -> Any:
        return _called(candidate.function, callee, own, library.into, library.typed)

    is_tracked = False
    try:
        for sample in _samples(avals, is_plain):
            if has_extremes(sample) and may_not_end(callee.body):
                continue
            for place, value in zip(variables, sample, strict=True):
                arrays[place] = np.asarray(value)[()]
            if original is None:
                expected = evaluate(callee.body, *arrays)
            else:
                try:
                    expected = jax.tree.leaves(
                        _called(original, called, list(map(_of_jax, arrays)), jnp.asarray, np.dtype)
                    )
                except Exception:  # its sizes belong together, or it speaks of them in some way
                    return None
            own = [library.into(a) if isinstance(a, np.ndarray | np.generic) else a for a in arrays]
            with library.quietly(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for kind in (UserWarning, RuntimeWarning):  # a call that its library warns of is not how one writes it
                    warnings.simplefilter("error", kind)
                found = run(own)
                if library.goes_back is not None and not is_tracked:
                    is_tracked = library.goes_back(run, own)
                    if not is_tracked:
                        return False
            parts = [found] if results == 1 and not is_unpacked(callee.name) else list(found)
            if len(parts) != len(expected):
                return False
            wanted = [library.out_of(library.into(np.asarray(e))) for e in expected]
            if not all(map(_same, [library.out_of(p) for p in parts], wanted)):
                return False
    except CannotSample:
        return False
    except Exception:  # whatever the library says to what it was not made for
        return False
    return True


def _shorter(callee: Library, inputs: Sequence[Atom]) -> dict[int, int]:
    """Other sizes to try a call at, in the place of large ones: where it has a slow product of integers, which are exact at any
    size, or a slow function of each element, and nothing in it speaks of these sizes."""
    sizes = {n for a in inputs for n in getattr(a.aval, "shape", ())}
    large = sorted(n for n in sizes if n > _SHORT)
    equations = callee.body.equations
    if not any(map(_is_slow, equations)) or any(type(a) is Constant for a in inputs):
        return {}
    said = [callee.args, callee.kwargs, *[e.params for e in equations]]
    if any(functions_called(e) for e in equations) or not sizes.isdisjoint(filter(_is_integer, jax.tree.leaves(said))):
        return {}
    return {n: _SHORT + 1 + rank for rank, n in enumerate(large)}


def _smallest(callee: Library, inputs: Sequence[Atom], least: int) -> dict[int, int]:
    """Sizes to try a call at whose arrays are large, where its arguments speak of no size: it has no body for these, but the
    library's own function gives what it would."""
    sizes = sorted({n for a in inputs for n in getattr(a.aval, "shape", ()) if n > _SHORT})
    said = set(filter(_is_integer, jax.tree.leaves((callee.args, callee.kwargs))))
    return {} if said.intersection(sizes) else {n: least + rank for rank, n in enumerate(sizes)}


def _is_slow(equation: Equation) -> bool:
    if equation.callee.name != "dot_general":
        return equation.callee.name in _SLOW_FUNCTIONS
    x, y = [a.aval for a in equation.inputs]
    ((contracted, _), (batch, _)) = equation.params["dimension_numbers"]
    once = np.prod([x.shape[axis] for axis in (*contracted, *batch)], initial=1)
    return not jax.dtypes.issubdtype(x.dtype, np.inexact) and np.prod(x.shape) * np.prod(y.shape) / once > _SLOW


def _is_integer(value: object) -> bool:
    return type(value) is int


def _samples(avals: Sequence[jax.ShapeDtypeStruct], is_plain: bool) -> Iterator[Sequence[Any]]:
    """Operands to try a call on; of large ones a set of plain numbers, and one with edge values among the others. Integers beside
    an array may be places in it, and are then outside of it as well."""
    if all(np.prod(a.shape, initial=1) <= _LARGE for a in avals) and not is_plain:
        yield from sample_inputs(avals, samples=_SAMPLES, seed=1)
    if all(jax.dtypes.issubdtype(a.dtype, np.integer) for a in avals):  # of common values a product has a 0
        yield [np.full(a.shape, jnp.iinfo(a.dtype).max, a.dtype) for a in avals]
    generator = np.random.default_rng(1)
    numbers = [a for a in avals if not a.shape and jax.dtypes.issubdtype(a.dtype, np.integer)]
    sizes = sorted({n for a in avals for n in a.shape}) if numbers else []
    for number in [k for n in sizes for k in (n, -n - 1)] + [2**31 - 1, -(2**31)] * bool(sizes):
        if all(jnp.iinfo(a.dtype).min <= number <= jnp.iinfo(a.dtype).max for a in numbers):
            drawn = [draw(LeafType.of(a), _PLAIN, generator) for a in avals]
            yield [np.asarray(number, a.dtype) if a in numbers else x for a, x in zip(avals, drawn, strict=True)]
    recipes = _PLAIN_SAMPLES if is_plain else (_PLAIN, _SOME_EDGES)
    if not is_plain and all(np.prod(a.shape, initial=1) <= _LARGE for a in avals):
        # of one number a few samples have hardly an edge value
        recipes = (_EDGES,) * (_SAMPLES_OF_ONE if any(np.prod(a.shape, initial=1) <= _FEW for a in avals) else 0)
    for recipe in recipes:
        yield [draw(LeafType.of(a), recipe, generator) for a in avals]


def _value(atom: Atom) -> Any:
    """What a number or an array is in the text; None for a variable."""
    if type(atom) is Literal:
        return np.asarray(atom.value).item() if atom.aval.weak_type else np.asarray(atom.value, atom.aval.dtype)[()]
    return np.asarray(atom.value) if type(atom) is Constant else None


def _of_jax(value: Any) -> Any:
    """An array as JAX's, whose methods are other ones."""
    return jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def _called(
    function: Callable[..., Any],
    callee: Library,
    arrays: Sequence[Any],
    into: Callable[[np.ndarray], Any],
    typed: Callable[[np.dtype], Any],
) -> Any:
    """What a function gives for the arguments of a call."""
    given = [_filled(a, arrays, into, typed) for a in callee.args]
    return function(*given, **{k: _filled(v, arrays, into, typed) for k, v in callee.kwargs.items()})


def _filled(
    value: Any, arrays: Sequence[Any], into: Callable[[np.ndarray], Any], typed: Callable[[np.dtype], Any]
) -> Any:
    """An argument with arrays in the place of its Slots; `into` and `typed` make a library's own arrays and types."""
    if type(value) is Slot:
        return arrays[value.index]
    if type(value) is Fixed:
        return into(np.asarray(value.constant.value))
    if type(value) is tuple or type(value) is list:
        return type(value)([_filled(v, arrays, into, typed) for v in value])
    if type(value) is slice:
        return slice(*[_filled(v, arrays, into, typed) for v in (value.start, value.stop, value.step)])
    if isinstance(value, Mapping):
        return {k: _filled(v, arrays, into, typed) for k, v in value.items()}
    is_type = isinstance(value, np.dtype) or isinstance(value, type) and hasattr(value, "dtype")
    return typed(np.dtype(value)) if is_type else value


def _same(found: np.ndarray | None, expected: np.ndarray | None) -> bool:
    """Of one type, and as close as two libraries are."""
    if found is None or expected is None:
        return False
    wanted = np.asarray(expected)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not jax.dtypes.issubdtype(wanted.dtype, np.inexact):
        return bool(np.array_equal(found, wanted))
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)) or not np.array_equal(
        np.asarray(found)[~finite], wanted[~finite], equal_nan=True
    ):
        return False
    ones, others = np.asarray(found)[finite], wanted[finite]
    scale = np.abs(others).max(initial=0)
    if np.array_equal(ones, others):
        return True
    if wanted.dtype.itemsize < _LEAST_PRECISE:
        return False  # a library may make sums of narrow floats in their own type: those of a few numbers are close all the same
    far = np.abs(ones - others) > 1e-5 * scale
    return not far.any() or bool(np.all(ulps_apart(ones[far], others[far]) <= _CLOSE))
