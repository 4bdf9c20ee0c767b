"""What a library of arrays is to the shared part of the targets that compute at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from untrace.ir.nodes import Library, Slot
from untrace.module.rules import RuleTable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call that may be what a call of JAX's library is: the callee, and the function that it names."""

    callee: Library
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ArrayLibrary:
    """A library of arrays: its words, and what its values are to NumPy's.

    `title`: as people write it. `rules`: how primitives are written. `candidates`: calls of it that may do what a call of
    JAX's library does, the likeliest first; each is tried. `into`, `out_of`: NumPy's arrays as its own and back (None for
    what is no array); `typed`: a dtype as its functions take it. `has_type`: whether it has numbers of a dtype.
    `takes_numbers`: whether a Python number beside an array of a dtype has that type. `without_numbers`: primitives whose
    rules want arrays alone. `bare`: whether a number that has a type needs none beside an array of that type. `other_derivatives`:
    primitives whose derivatives are not JAX's everywhere: a call of a derivative with them is written out. `quietly`: in
    which its functions are tried: they say nothing of overflow, and what depends on a setting gives something else.
    `goes_back`: whether the library can go back through a call of its values, and map it, where it does such things.
    """

    title: str
    rules: RuleTable
    candidates: Callable[[Library], Iterator[Candidate]]
    into: Callable[[np.ndarray | np.generic], Any]
    out_of: Callable[[Any], np.ndarray | None]
    typed: Callable[[np.dtype], Any]
    has_type: Callable[[Any], bool]
    takes_numbers: Callable[[np.dtype], bool]
    without_numbers: frozenset[str]
    bare: bool = False
    other_derivatives: frozenset[str] = frozenset()
    quietly: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    goes_back: Callable[[Callable[[Sequence[Any]], Any], Sequence[Any]], bool] | None = None


def attribute(root: Any, path: Sequence[str]) -> Callable[..., Any] | None:
    """The function of a path below a module; None where there is none."""
    found = root
    for name in path:
        found = getattr(found, name, None)
    return found if callable(found) else None


def with_type(candidate: Candidate) -> Iterator[Candidate]:
    """A call, and where it makes an array of numbers alone, the same with that array's type: libraries have other ones of their
    own."""
    yield candidate
    callee = candidate.callee
    if "dtype" not in callee.kwargs and not any(type(v) is Slot for v in jax.tree.leaves((callee.args, callee.kwargs))):
        kwargs = {**callee.kwargs, "dtype": callee.body.results[0].aval.dtype}
        yield Candidate(Library(callee.name, callee.args, kwargs, callee.body), candidate.function)


# What `x.at[index].add(y)` may be told beside; of modes those that drop what lies outside, or promise that nothing does.
_PROMISES = frozenset({"indices_are_sorted", "unique_indices", "mode", "wrap_negative_indices"})
_DROPPING = frozenset({"drop", "fill", "promise_in_bounds"})


def is_basic_update(callee: Library) -> bool:
    """Whether `x.at[index].add(y)` has an index of slices and numbers of the text alone (of arrays some may lie outside, and
    others not), and changes nothing outside."""
    index, mode = callee.args[1], callee.kwargs.get("mode")
    parts = index if type(index) is tuple else (index,)
    is_basic = all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)
    return is_basic and _PROMISES.issuperset(callee.kwargs) and (mode is None or mode in _DROPPING)
