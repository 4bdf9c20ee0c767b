"""Which calls of JAX's library are calls in NumPy, by the same name: those that do the same there.

The two libraries differ where one does not expect it (sums of integers, NaN in a maximum, indices outside), so that each
call is tried on samples of its own types, edge values among them. What differs has a body that can be written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Atom, Constant, Library, Literal, Slot, Value
from untrace.lift.recognise.library import resolve
from untrace.lift.recognise.patterns import Fixed
from untrace.prove.run import ulps_apart
from untrace.prove.sample import CannotSample, LeafType, draw, sample_inputs

_LARGEST = 1 << 22  # elements of an operand, of which a trial would take too long
_LARGE = 1 << 13
_SAMPLES = 6
_FEW = 4
_SAMPLES_OF_ONE = 16
_PLAIN = 0  # the recipe of `draw` for common values
_EDGES = 3  # for edge values alone
_SOME_EDGES = 4  # the recipe of `draw` for values of which some are edge values
_CLOSE = 64  # units in the last place that two libraries' transcendental functions and sums are apart
_LEAST_PRECISE = 4  # bytes of a float in which sums are made
# Kinds of paths (`lift.recognise.library`) that mean the same for arrays of NumPy, if anything does.
_KINDS = ("jnp", "operator", "method", "attribute", "unpack")


def spelled(callee: Library, inputs: Sequence[Atom], outputs: Sequence[Value | None]) -> str | None:
    """The path of a library call in NumPy (`np.mean`, `operator.add`, `method.sum`); None where NumPy's gives something else,
    or has no such function."""
    kind, _, rest = callee.name.partition(".")
    if kind not in _KINDS or callee.function is not None:
        return None
    function = _numpy_function(rest) if kind == "jnp" else resolve(callee.name)
    if function is None or not _agree(callee, function, inputs, outputs):
        return None
    return f"np.{rest}" if kind == "jnp" else callee.name


def _numpy_function(path: str) -> Callable[..., Any] | None:
    found: Any = np
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if callable(found) else None


def _agree(
    callee: Library, function: Callable[..., Any], inputs: Sequence[Atom], outputs: Sequence[Value | None]
) -> bool:
    """Whether NumPy's function gives the types and, but for rounding, the values that the call has in JAX."""
    variables = [i for i, a in enumerate(inputs) if type(a) is Value]
    avals = [jax.ShapeDtypeStruct(inputs[i].aval.shape, inputs[i].aval.dtype) for i in variables]
    if any(np.prod(a.shape, initial=1) > _LARGEST for a in avals):
        return False
    arrays: list[Any] = [_value(a) for a in inputs]
    try:
        for sample in _samples(avals):
            for place, value in zip(variables, sample, strict=True):
                arrays[place] = np.asarray(value)[()]
            expected = evaluate(callee.body, *arrays)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = [_filled(a, arrays) for a in callee.args]
                found = function(*given, **{k: _filled(v, arrays) for k, v in callee.kwargs.items()})
            parts = [found] if len(outputs) == 1 and callee.name != "unpack" else list(found)
            if len(parts) != len(expected) or not all(map(_same, parts, expected)):
                return False
    except CannotSample:
        return False
    except Exception:  # whatever NumPy says to what it was not made for
        return False
    return True


def _samples(avals: Sequence[jax.ShapeDtypeStruct]) -> Iterator[Sequence[Any]]:
    """Operands to try a call on; of large ones a set of plain numbers, and one with edge values among the others."""
    if all(np.prod(a.shape, initial=1) <= _LARGE for a in avals):
        yield from sample_inputs(avals, samples=_SAMPLES, seed=1)
    generator = np.random.default_rng(1)
    recipes = (_PLAIN, _SOME_EDGES)
    if all(
        np.prod(a.shape, initial=1) <= _LARGE for a in avals
    ):  # of one number a few samples have hardly an edge value
        recipes = (_EDGES,) * (_SAMPLES_OF_ONE if any(np.prod(a.shape, initial=1) <= _FEW for a in avals) else 0)
    for recipe in recipes:
        yield [draw(LeafType.of(a), recipe, generator) for a in avals]


def _value(atom: Atom) -> Any:
    """What a number or an array is in the text; None for a variable."""
    if type(atom) is Literal:
        return np.asarray(atom.value).item() if atom.aval.weak_type else np.asarray(atom.value, atom.aval.dtype)[()]
    return np.asarray(atom.value) if type(atom) is Constant else None


def _filled(value: Any, arrays: Sequence[Any]) -> Any:
    """An argument with arrays in the place of its Slots."""
    if type(value) is Slot:
        return arrays[value.index]
    if type(value) is Fixed:
        return np.asarray(value.constant.value)
    if type(value) is tuple or type(value) is list:
        return type(value)([_filled(v, arrays) for v in value])
    if type(value) is slice:
        return slice(*[_filled(v, arrays) for v in (value.start, value.stop, value.step)])
    if isinstance(value, Mapping):
        return {k: _filled(v, arrays) for k, v in value.items()}
    return np.dtype(value) if isinstance(value, type) and hasattr(value, "dtype") else value


def _same(found: Any, expected: Any) -> bool:
    """Of one type, and as close as two libraries are."""
    if not isinstance(found, np.ndarray | np.generic):
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
        return (
            False  # NumPy makes sums of narrow floats in their own type: those of a few numbers are close all the same
        )
    return bool(np.all((ulps_apart(ones, others) <= _CLOSE) | (np.abs(ones - others) <= 1e-5 * scale)))
