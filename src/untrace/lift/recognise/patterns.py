"""What calls of library functions trace to: the patterns of verified lifting, remembered for the whole process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Constant, Literal, Slot, Value
from untrace.lift.recognise import library
from untrace.lift.recognise.scalars import python_scalar
from untrace.lift.rewrite.simplify import IMPLICIT, simplified


@dataclass(slots=True)
class Pattern:
    """What a call traces to: its equations, by the variables that they bind, and its inputs and outputs."""

    inputs: dict[Any, int]
    consts: dict[Any, Any]
    made_by: dict[Any, tuple[Any, int]]
    outvars: Sequence[Any]
    size: int


class Fixed:
    """A constant that goes into a call as NumPy's array: JAX computes with such an index while it traces."""

    __slots__ = ("constant", "array")

    def __init__(self, constant: Constant):
        self.constant = constant
        self.array = np.asarray(constant.value)

    @property
    def aval(self) -> Any:
        return self.constant.aval


class NotAScalar(Exception):
    pass


def template(value: Any, inputs: list[Any], places: dict[Value | Constant, int]) -> Any:
    """`value` with a Slot for each atom; literals become plain numbers."""
    kind = type(value)
    if kind is Value or kind is Constant:
        place = places.get(value)
        if place is None:
            place = places[value] = len(inputs)
            inputs.append(value)
        return Slot(place)
    if kind is Literal:
        scalar = python_scalar(value.value, value.aval)
        if scalar is None:
            raise NotAScalar
        return scalar
    if kind is tuple or kind is list:
        return kind([template(v, inputs, places) for v in value])
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return slice(*[template(v, inputs, places) for v in parts])
    return value


def fill(value: Any, inputs: Sequence[Any]) -> Any:
    """A template with its Slots replaced by `inputs`."""
    kind = type(value)
    if kind is Slot:
        return inputs[value.index]
    if kind is Fixed:
        return value.array
    if kind is tuple or kind is list:
        return kind([fill(v, inputs) for v in value])
    if kind is slice:
        return slice(*[fill(v, inputs) for v in (value.start, value.stop, value.step)])
    return value


# By the settings of JAX under which they were traced.
PATTERNS: dict[Any, dict[Any, Pattern | None]] = {}
MOST_PATTERNS = 20_000
_MOST_EQUATIONS = 1000  # of one call: `jnp.diff(x, n=2003)`, as a size suggests, would be traced for a second


def _key(value: Any) -> Any:
    """A hashable stand-in for a template; 1, True and 1.0 differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind is Slot:
        return value.index, Slot
    if kind is Fixed:
        return Fixed, value.array.tobytes(), value.array.shape, value.array.dtype
    if kind is tuple or kind is list:
        return (kind, *[_key(v) for v in value])
    if kind is slice:
        return slice, _key(value.start), _key(value.stop), _key(value.step)
    return (kind, repr(value)) if kind is float or kind is complex else (kind, value)


def pattern_of(
    patterns: dict[Any, Pattern | None], path: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Any]
) -> Pattern | None:
    key = (path, _key(args), *[(k, _key(v)) for k, v in kwargs.items()], *[a.aval for a in inputs])
    try:
        found: Any = patterns.get(key, False)
    except TypeError:  # an argument that has no hash is no static argument of JAX either
        return None
    if found is False:
        found = patterns[key] = _trace(path, args, kwargs, [a.aval for a in inputs])
    return found


def _as_simplified(jaxpr: Any) -> Any:
    """A pattern in the form that programs have by then: without the casts that JAX makes inside shard_map."""
    return jax_compat.open_jaxpr(simplified(jaxpr, IMPLICIT)[0])[0]


def _trace(path: str, args: tuple[Any, ...], kwargs: dict[str, Any], avals: list[Any]) -> Pattern | None:
    function = library.resolve(path)
    if function is None or not all(jax_compat.is_shaped_array(a) for a in avals):
        return None

    def call(*inputs: Any) -> Any:
        return function(*fill(args, inputs), **{k: fill(v, inputs) for k, v in kwargs.items()})

    structure: list[Any] = []

    def flat(*inputs: Any) -> list[Any]:
        result = call(*inputs)
        structure.append(result)
        return jax.tree_util.tree_leaves(result)

    try:
        with warnings.catch_warnings(), jax_compat.unfiltered_tracebacks():
            warnings.simplefilter("error")  # nor do we write what JAX warns of
            with jax_compat.tracing_inside_mesh(avals), jax_compat.at_most_equations(_MOST_EQUATIONS):
                jaxpr, consts = jax_compat.traced_quickly(flat, [jax_compat.plain_aval(a) for a in avals])
            if any(jax_compat.has_typed_mesh(a) for a in avals):
                jaxpr = _as_simplified(jaxpr)
    except Exception:  # a guess need not even be a legal call
        return None
    result = structure[0]
    if isinstance(result, (tuple, list)):  # unpacked by one statement: no tuples in it, and more than one
        if len(result) < 2 or len(jax.tree_util.tree_leaves(result)) != len(result):
            return None
    elif len(jaxpr.outvars) != 1:
        return None
    if not jaxpr.eqns:
        return None
    return as_pattern(jaxpr, consts)


def as_pattern(jaxpr: Any, consts: Sequence[Any]) -> Pattern:
    """What was traced, to be laid over equations."""
    # What a transposed call leaves of the call itself gives nothing.
    eqns = [eqn for eqn in jaxpr.eqns if eqn.outvars or eqn.effects]
    made_by = {out: (eqn, i) for eqn in eqns for i, out in enumerate(eqn.outvars)}
    constvars, invars = jax_compat.constants_and_inputs(jaxpr, consts)
    inputs = {v: i for i, v in enumerate(invars)}
    return Pattern(inputs, dict(zip(constvars, consts, strict=True)), made_by, jaxpr.outvars, len(eqns))
