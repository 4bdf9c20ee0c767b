"""Equations that differ in sizes only: what the same Python gives for arrays of other shapes."""

from __future__ import annotations

from typing import Any

from untrace import jax_compat
from untrace.jaxprs.equal.comparer import Comparer
from untrace.jaxprs.equal.rules import RULE_PARAMS

# Parameters that hold sizes of arrays, or places in them. All others (axes, dimension numbers) must be equal.
_SIZES = frozenset(
    "shape new_sizes sizes slice_sizes start_indices limit_indices padding padding_config window_dimensions "
    "window_strides strides length".split()
)
_DEPTH = 8


def alike_params(comparer: Comparer, left: Any, right: Any, depth: int = 0) -> bool:
    """Whether two equations of one primitive have the same parameters but for sizes, also in jaxprs among them."""
    if left is right or not left.params or comparer.differing_param(left, right) is None:
        return True
    if left.params.keys() != right.params.keys():
        return False
    rules = RULE_PARAMS.get(left.primitive.name, ())
    for key, ours in left.params.items():
        theirs = right.params[key]
        if ours is theirs or comparer.values.same(ours, theirs):
            continue
        if key in _SIZES and _sizes(ours, theirs):
            continue
        if key in rules and key != "call_jaxpr":
            continue  # the derivative of what is alike
        if not (jax_compat.is_jaxpr(ours) and jax_compat.is_jaxpr(theirs) and depth < _DEPTH):
            return False
        if not _alike_jaxprs(comparer, ours, theirs, depth + 1):
            return False
    return True


def _sizes(left: Any, right: Any) -> bool:
    """Whether two values have the same form, with other integers."""
    if type(left) is tuple and type(right) is tuple:
        return len(left) == len(right) and all(_sizes(a, b) for a, b in zip(left, right, strict=True))
    return left == right or (_is_integer(left) and _is_integer(right))


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and type(value) is not bool


def _alike_jaxprs(comparer: Comparer, left: Any, right: Any, depth: int) -> bool:
    ours, our_constants = jax_compat.open_jaxpr(left)
    theirs, their_constants = jax_compat.open_jaxpr(right)
    if our_constants or their_constants or len(ours.eqns) != len(theirs.eqns):
        return False
    numbers: dict[Any, int] = {}
    others: dict[Any, int] = {}

    def bind(variables: Any, known: dict[Any, int]) -> list[tuple[Any, ...]]:
        for v in variables:
            known[v] = len(known)
        return [_kind(v.aval) for v in variables]

    def read(atoms: Any, known: dict[Any, int]) -> list[Any]:
        return [repr(a.val) if type(a) is jax_compat.LITERAL_TYPE else known.get(a) for a in atoms]

    if bind(ours.invars, numbers) != bind(theirs.invars, others):
        return False
    for a, b in zip(ours.eqns, theirs.eqns, strict=True):
        if a.primitive is not b.primitive or read(a.invars, numbers) != read(b.invars, others):
            return False
        if bind(a.outvars, numbers) != bind(b.outvars, others) or not alike_params(comparer, a, b, depth):
            return False
    return read(ours.outvars, numbers) == read(theirs.outvars, others)


def _kind(aval: Any) -> tuple[Any, ...]:
    return len(getattr(aval, "shape", ())), getattr(aval, "dtype", None), getattr(aval, "weak_type", None)
