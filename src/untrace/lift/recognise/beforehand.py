"""What is known of a guess before it is traced: one that cannot be right need not cost a trace.

Each reason is one for which the call raises, or leaves something else than the equations that it is to be laid over: other
arguments than the function takes, a result of another shape, another call than theirs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from untrace.ir.nodes import Constant, Equation, Value
from untrace.lift.recognise import library

_Shape = tuple[int, ...]


def is_possible(path: str, args: Sequence[Any], kwargs: Mapping[str, Any], anchors: Sequence[Equation]) -> bool:
    """Whether a call may be what ends in these equations, as far as that is known without a trace."""
    known = library.facts(path)
    last = anchors[0]
    if path.startswith("vmap."):
        inside, turns = path, 0
        while inside.startswith("vmap."):
            inside, turns = inside.removeprefix("vmap."), turns + 1
        if not takes(library.facts(inside), args[turns:], kwargs):
            return False
    if known.call is not None and (
        last.callee.name not in ("jit", "pjit") or last.origin.params.get("name") != known.call
    ):
        return False
    if known.bare and (len(anchors) > 1 or len(last.outputs) != 1):
        return False
    if known.several and len(anchors) == len(last.outputs) == 1 or not takes(known, args, kwargs):
        return False
    has_shape = _SHAPES.get(path)
    if has_shape is None:
        return True
    if len(anchors) > 1 or len(last.outputs) != 1:  # but for `jnp.where(x)` all of them give one array
        return has_shape is _chosen and len(args) == 1
    return has_shape(args, kwargs, tuple(last.origin.outvars[0].aval.shape))


def takes(known: library.Facts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function takes so many arguments, with these names, and arrays where there are some."""
    if len(args) + len(kwargs) < known.least or known.most is not None and len(args) > known.most:
        return False
    if kwargs and known.names is not None and not known.names.issuperset(kwargs):
        return False
    return not any(i < len(args) and type(args[i]) in (Value, Constant) for i in known.plain)


# ------------------------------------------------------------ shapes of results: whether they are what they should be


def _shape(atom: Any) -> _Shape:
    return tuple(getattr(getattr(atom, "aval", None), "shape", ()))


def _brought_together(args: Sequence[Any], kwargs: Mapping[str, Any], shape: _Shape) -> bool:
    shapes = [_shape(a) for a in args]
    if all(s == shape or not s for s in shapes) and (not shape or shape in shapes):  # most
        return True
    try:
        return tuple(np.broadcast_shapes(*shapes)) == shape
    except ValueError:
        return False


def _multiplied(args: Sequence[Any], kwargs: Mapping[str, Any], shape: _Shape) -> bool:
    return len(args) == 2 and is_matmul(_shape(args[0]), _shape(args[1]), shape)


def is_matmul(a: _Shape, b: _Shape, shape: _Shape) -> bool:
    """Whether `left @ right` of arrays of shapes `a` and `b` is legal and has this shape."""
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else 0]:
        return False
    inner = (*a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
    batch = itertools.zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1)
    whole = [n if m == 1 else m if n in (1, m) else None for m, n in batch]
    return (*reversed(whole), *inner) == shape


def _taken(args: Sequence[Any], kwargs: Mapping[str, Any], shape: _Shape) -> bool:
    if len(args) != 2:
        return True
    inside, picked = _shape(args[0]), _shape(args[1])
    axis = kwargs.get("axis")
    if axis is None:
        return picked == shape
    if not isinstance(axis, int) or not -len(inside) <= axis < len(inside):
        return False
    axis %= len(inside)
    return (*inside[:axis], *picked, *inside[axis + 1 :]) == shape


def _chosen(args: Sequence[Any], kwargs: Mapping[str, Any], shape: _Shape) -> bool:
    return len(args) == 1 or len(args) == 3 and not kwargs and _brought_together(args, kwargs, shape)


def _summed_by_letters(args: Sequence[Any], kwargs: Mapping[str, Any], shape: _Shape) -> bool:
    spec, *operands = args
    if type(spec) is not str or "->" not in spec:
        return True
    given, _, result = spec.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    batch: _Shape = ()
    for letters, operand in zip(given.split(","), operands, strict=False):
        inside = _shape(operand)
        first, dots, last = letters.partition("...")
        if len(first) + len(last) > len(inside) or not dots and len(first) != len(inside):
            return False
        end = len(inside) - len(last)
        if end - len(first) >= len(batch):
            batch = inside[len(first) : end]
        for letter, size in zip(first + last, inside[: len(first)] + inside[end:], strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    first, dots, last = result.partition("...")
    ends = [tuple([sizes.get(letter, 1) for letter in part]) for part in (first, last)]
    return (
        len(shape) == len(first) + len(last) + len(batch) * bool(dots)
        and shape[: len(first)] == ends[0]
        and (not last or shape[-len(last) :] == ends[1])
    )


_SHAPES: dict[str, Callable[[Sequence[Any], Mapping[str, Any], _Shape], bool]] = {
    **{f"operator.{name}": _brought_together for name in operator.__all__ if name != "getitem"},
    **{f"jnp.{name}": _brought_together for name in ("divide", "maximum", "minimum", "power", "fmod", "arctan2",
       "logical_and", "logical_or", "logical_xor", "nextafter", "right_shift", "add", "subtract", "multiply")},
    "operator.matmul": _multiplied, "jnp.matmul": _multiplied, "jnp.take": _taken, "jnp.where": _chosen,
    "jnp.einsum": _summed_by_letters,
}  # fmt: skip
