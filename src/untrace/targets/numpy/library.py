"""NumPy as a library of arrays: which of its functions may be JAX's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from untrace.ir.nodes import Library
from untrace.lift.recognise.library import resolve
from untrace.targets.eager.library import ArrayLibrary, Candidate, attribute, is_basic_update, with_type
from untrace.targets.numpy.rules.table import NUMPY
from untrace.targets.numpy.runtime.indexing import _put

# Kinds of paths (`lift.recognise.library`) that mean the same for arrays of NumPy, if anything does.
_KINDS = frozenset({"operator", "method", "attribute", "unpack"})
# Functions of SciPy: beside a Python number they compute in float64.
_WITHOUT_NUMBERS = frozenset({"igamma", "igammac", "polygamma", "regularized_incomplete_beta", "zeta"})


# Functions that are not tried: zeros of either sign are equal, and keep their order in JAX alone.
_UNTRIED = frozenset({"jnp.sort"})


# What `x.at[index].add(y)` and its like do with both; "" where `y` takes the place of the other.
UPDATES = {
    "set": "", "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide", "power": "power",
    "min": "minimum", "max": "maximum",
}  # fmt: skip


def _candidates(callee: Library) -> Iterator[Candidate]:
    """The function of the same name; for an update of a part of an array ours, of the same name."""
    kind, _, rest = callee.name.partition(".")
    if kind == "at" and rest in UPDATES and is_basic_update(callee):
        combine = getattr(np, UPDATES[rest]) if UPDATES[rest] else None
        yield Candidate(Library(callee.name, callee.args, {}, callee.body), functools.partial(_put, combine=combine))
        return
    if callee.name in _UNTRIED:
        return
    function = attribute(np, rest.split(".")) if kind == "jnp" else resolve(callee.name) if kind in _KINDS else None
    if function is not None:
        name = f"np.{rest}" if kind == "jnp" else callee.name
        yield from with_type(Candidate(Library(name, callee.args, callee.kwargs, callee.body), function))


def _out_of(value: Any) -> np.ndarray | None:
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def _quietly() -> contextlib.AbstractContextManager[object]:
    return np.errstate(all="ignore")


LIBRARY = ArrayLibrary(
    "NumPy",
    NUMPY,
    _candidates,
    into=lambda array: np.asarray(array)[()],
    out_of=_out_of,
    typed=lambda dtype: dtype,
    has_type=lambda dtype: True,
    takes_numbers=lambda dtype: dtype.isbuiltin == 1,
    without_numbers=_WITHOUT_NUMBERS,
    quietly=_quietly,
)
