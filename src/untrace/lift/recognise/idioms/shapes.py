"""Shapes: reshape, transpose, new axes, broadcasting, joining, splitting, ranges and filled arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from untrace.ir.callees import output_of
from untrace.ir.nodes import Equation, Literal
from untrace.lift.naming.numbers import said_number
from untrace.lift.recognise.engine import Guess, Matcher, idiom
from untrace.lift.recognise.idioms.indexing import written_index


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


@idiom("reshape")
def _repeat(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`jnp.repeat`: a new axis after the one that is repeated, which is then one with it."""
    wide = m.producer(equation.inputs[0], "broadcast_in_dim")
    if wide is None or len(wide.inputs) != 1 or type(wide.inputs[0]) is Literal:
        return
    x = wide.inputs[0]
    shape, dims = wide.origin.params["shape"], [int(d) for d in wide.origin.params["broadcast_dimensions"]]
    new = [d for d in range(len(shape)) if d not in dims]
    if len(new) == 1 and new[0] and shape[new[0]] > 1:
        axis, rank = new[0] - 1, len(_shape(x))
        if rank == 1:
            yield Guess("jnp.repeat", (x, int(shape[new[0]])))
        yield Guess("jnp.repeat", (x, int(shape[new[0]])), {"axis": -1 if axis == rank - 1 else axis})


@idiom("tile", small=True)
def _tile(m: Matcher, equation: Equation) -> Iterator[Guess]:
    reps = tuple(int(n) for n in equation.origin.params["reps"])
    if len(reps) == 1:
        yield Guess("jnp.tile", (equation.inputs[0], reps[0]))
    yield Guess("jnp.tile", (equation.inputs[0], reps))


@idiom("reshape", small=True)
def _reshape(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0]
    if type(x) is Literal:
        return
    old, new = _shape(x), tuple(equation.origin.params["new_sizes"])
    if len(new) == 1 and len(old) > 1:
        yield Guess("method.ravel", (x,))
    yield Guess("method.reshape", (x, *new))


@idiom("transpose", small=True)
def _transpose(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0]
    order = tuple(int(i) for i in equation.origin.params["permutation"])
    rank = len(order)
    if rank >= 2 and order == tuple(reversed(range(rank))):
        yield Guess("attribute.T", (x,))
    if rank >= 2 and order == (*range(rank - 2), rank - 1, rank - 2):
        yield Guess("attribute.mT", (x,))
    moved = [i for i in range(rank) if order[i] != i]
    if len(moved) == 2:
        yield Guess("method.swapaxes", (x, *[a if a < 2 else a - rank for a in moved]))
    yield Guess("method.transpose", (x, *order))


@idiom("broadcast_in_dim")
def _meshgrid(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`x, y = jnp.meshgrid(xs, ys)`: each of some vectors along an axis of its own; tried at the last."""
    shape = tuple(equation.origin.params["shape"])
    here = m.position(equation)
    if not 1 < len(shape) <= here + 1:
        return
    group = m.equations[here - len(shape) + 1 : here + 1]
    axes = []
    for e in group:
        if e.callee.name != "broadcast_in_dim" or tuple(e.origin.params["shape"]) != shape or len(e.inputs) != 1:
            return
        dims = [int(d) for d in e.origin.params["broadcast_dimensions"]]
        if len(dims) != 1 or type(e.inputs[0]) is Literal or _shape(e.inputs[0]) != (shape[dims[0]],):
            return
        if e.outputs[0] is None or not m.same_call(e, equation):
            return
        axes.append(dims[0])
    vectors = tuple([e.inputs[0] for e in group])
    if axes == [*range(len(shape))]:
        yield Guess("jnp.meshgrid", vectors, {"indexing": "ij"}, anchors=group)
    elif axes == [1, 0, *range(2, len(shape))]:
        yield Guess("jnp.meshgrid", vectors, anchors=group)


@idiom("broadcast_in_dim", small=True)
def _broadcast(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0] if equation.inputs else None
    params = equation.origin.params
    shape = tuple(params["shape"])
    dims = tuple(int(d) for d in params["broadcast_dimensions"])
    if x is None or len(equation.inputs) > 1:
        return
    if type(x) is Literal:
        dtype = x.aval.dtype
        if not np.ndim(x.value):
            aval = output_of(equation).aval
            said = said_number(m.site(equation), "jnp.full", [aval], np.asarray(x.value).item())
            yield from _filled(x, shape, dtype, aval, said is not None)
        return
    inside = _shape(x)
    if not inside:
        dtype = x.aval.dtype
        yield Guess("jnp.broadcast_to", (x, shape))
        yield Guess("jnp.full", (shape, x))
        return
    grown = [d for d in range(len(shape)) if d not in dims]
    if all(shape[d] == n for d, n in zip(dims, inside, strict=True)) and all(shape[d] == 1 for d in grown):
        written = written_index(m, equation)
        if written is not None and Ellipsis in written:  # of whichever number of axes
            yield Guess("operator.getitem", (x, written))
        yield Guess("operator.getitem", (x, _new_axes(dims, len(shape))))
        if len(grown) == 1:
            yield Guess("jnp.expand_dims", (x, grown[0]))
        yield Guess("jnp.expand_dims", (x, tuple(grown)))
    yield Guess("jnp.broadcast_to", (x, shape))
    yield Guess("lax.broadcast_in_dim", (x, shape, dims))


def _new_axes(dims: tuple[int, ...], rank: int) -> tuple[Any, ...]:
    """`[:, None]`, `[..., None, :]`: an index with None for each new axis, short where an ellipsis says it."""
    index: list[Any] = [slice(None) if d in dims else None for d in range(rank)]
    while index and index[-1] is not None:
        index.pop()
    lead = 0
    while lead < len(index) and index[lead] is not None:
        lead += 1
    if lead > 2 and len(index) == rank:
        index = [Ellipsis, *index[lead:]]
    return tuple(index)


def _filled(x: Literal, shape: tuple[int, ...], dtype: Any, aval: Any, is_named: bool) -> Iterator[Guess]:
    """is_named: whether the author has a name for the number."""
    value = np.asarray(x.value).astype(dtype) if isinstance(dtype, np.dtype) else None
    if value is None:
        return
    named = {} if dtype == jax.dtypes.canonicalize_dtype(float) else {"dtype": dtype}
    if value.tobytes() == np.zeros((), dtype).tobytes() and not is_named:
        yield Guess("jnp.zeros", (shape,), named)
        yield Guess("jnp.zeros", (shape,), {"dtype": dtype})
    if value.tobytes() == np.ones((), dtype).tobytes() and not is_named:
        yield Guess("jnp.ones", (shape,), named)
        yield Guess("jnp.ones", (shape,), {"dtype": dtype})
    if aval.weak_type:  # without its type a number has a weak one
        yield Guess("jnp.full", (shape, x))
    yield Guess("jnp.full", (shape, x), {"dtype": dtype})


@idiom("iota", small=True)
def _arange(m: Matcher, equation: Equation) -> Iterator[Guess]:
    params = equation.origin.params
    shape, dtype = tuple(params["shape"]), params["dtype"]
    if len(shape) == 1:
        if dtype == jax.dtypes.canonicalize_dtype(int):
            yield Guess("jnp.arange", (shape[0],))
        yield Guess("jnp.arange", (shape[0],), {"dtype": dtype})
    yield Guess("lax.broadcasted_iota", (dtype, shape, int(params["dimension"])))


@idiom("add")
def _arange_from(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`jnp.arange(1, n)` and `jnp.arange(1, n, 2)`, where the author calls it: JAX adds the first number to what it counts."""
    library = m.site(equation).library if equation.origin is not None else None
    first, rest = equation.inputs
    if library is None or library[1] != "arange" or type(first) is not Literal:
        return
    start, by, counted = np.asarray(first.value).item(), 1, rest
    scaled = m.producer(rest, "mul")
    if scaled is not None and type(step := scaled.inputs[0]) is Literal:
        by, counted = np.asarray(step.value).item(), scaled.inputs[1]
    count = m.producer(counted, "iota")
    if count is None:
        return
    args = (start, start + by * count.origin.params["shape"][0], *([by] if by != 1 else []))
    yield Guess("jnp.arange", args)
    yield Guess("jnp.arange", args, {"dtype": count.origin.params["dtype"]})


@idiom("convert_element_type")
def _eye(m: Matcher, equation: Equation) -> Iterator[Guess]:
    if m.producer(equation.inputs[0], "eq") is None:
        return
    shape = _shape(equation.outputs[0])
    dtype = equation.origin.params["new_dtype"]
    if len(shape) != 2:
        return
    sizes = (shape[0],) if shape[0] == shape[1] else shape
    yield Guess("jnp.eye", sizes)
    yield Guess("jnp.eye", sizes, {"dtype": dtype})


@idiom("ge", "eq")
def _triangle(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`jnp.tri(n, dtype=bool)`: the mask of a triangle, and that of a diagonal."""
    shape = _shape(equation.outputs[0])
    rows = m.producer(equation.inputs[0], "add")
    if len(shape) != 2 or rows is None or m.producer(equation.inputs[1], "iota") is None:
        return
    offset = next((int(a.value) for a in rows.inputs if type(a) is Literal), None)
    sizes = (shape[0],) if shape[0] == shape[1] else shape
    named = {"k": offset, "dtype": bool} if offset else {"dtype": bool}
    if offset is not None:
        yield Guess("jnp.tri" if equation.callee.name == "ge" else "jnp.eye", sizes, named)


@idiom("concatenate")
def _concatenate(m: Matcher, equation: Equation) -> Iterator[Guess]:
    axis = int(equation.origin.params["dimension"])
    arrays = list(equation.inputs)
    if any(type(a) is Literal for a in arrays):
        return
    rank = len(_shape(equation.outputs[0]))
    inner = [m.through(a, "broadcast_in_dim", "reshape") for a in arrays]
    if all(i is not None for i in inner):
        if rank <= 2 and not axis:
            rows = [_elements(m, i) for i in inner] if rank == 2 else [None]
            if None not in rows:
                yield Guess("jnp.array", (rows,))
            dtype = output_of(equation).aval.dtype
            for named in ({}, {"dtype": dtype}):
                yield Guess("jnp.array", (inner,), named)
        yield Guess("jnp.stack", (inner,), _axis(axis))
        if axis == rank - 1 and axis:
            yield Guess("jnp.stack", (inner,), {"axis": -1})
    if axis == rank - 1 and axis:
        yield Guess("jnp.concatenate", (arrays,), {"axis": -1})
    yield Guess("jnp.concatenate", (arrays,), _axis(axis))
    if rank == 1:
        yield Guess("jnp.append", tuple(arrays)) if len(arrays) == 2 else Guess("jnp.hstack", (arrays,))


def _elements(m: Matcher, atom: Any) -> list[Any] | None:
    """The scalars that a row of `jnp.array([[a, b], [c, d]])` is made of."""
    joined = m.producer(atom, "concatenate")
    inner = [] if joined is None else [m.through(a, "broadcast_in_dim", "reshape") for a in joined.inputs]
    return inner if inner and all(i is not None and not _shape(i) for i in inner) else None


def _axis(axis: int) -> dict[str, int]:
    return {"axis": axis} if axis else {}


@idiom("stack", small=True)
def _stack(m: Matcher, equation: Equation) -> Iterator[Guess]:
    axis = int(equation.origin.params["axis"])
    if axis == len(_shape(equation.outputs[0])) - 1 and axis:
        yield Guess("jnp.stack", (list(equation.inputs),), {"axis": -1})
    yield Guess("jnp.stack", (list(equation.inputs),), _axis(axis))


@idiom("split", small=True)
def _split(m: Matcher, equation: Equation) -> Iterator[Guess]:
    params = equation.origin.params
    sizes, axis = [int(s) for s in params["sizes"]], int(params["axis"])
    if len(sizes) == 1:  # a list of one: no call gives its only part bare
        return
    x = equation.inputs[0]
    named = {"axis": -1} if axis and axis == len(_shape(x)) - 1 else _axis(axis)
    if len(set(sizes)) == 1 and not m.uneven:
        yield Guess("jnp.split", (x, len(sizes)), named)
    yield Guess("jnp.split", (x, tuple(int(s) for s in np.cumsum(sizes)[:-1])), named)


@idiom("squeeze", small=True)
def _squeeze(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0]
    axes = tuple(int(d) for d in equation.origin.params["dimensions"])
    if len(axes) == len(_shape(x)):  # else an axis of the batch's would go as well where that is 1
        yield Guess("method.squeeze", (x,))
    if len(axes) == 1:
        yield Guess("method.squeeze", (x,), {"axis": axes[0]})
    yield Guess("method.squeeze", (x,), {"axis": axes})


@idiom("rev", small=True)
def _flip(m: Matcher, equation: Equation) -> Iterator[Guess]:
    axes = tuple(int(d) for d in equation.origin.params["dimensions"])
    if axes == (0,):
        yield Guess("operator.getitem", (equation.inputs[0], slice(None, None, -1)))
    yield Guess("jnp.flip", (equation.inputs[0],), {"axis": axes[0] if len(axes) == 1 else axes})
