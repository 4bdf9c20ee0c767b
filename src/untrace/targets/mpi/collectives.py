"""Collectives as calls of mpi4py. Source: jax/_src/lax/parallel.py; mpi4py's upper-case methods, on NumPy's buffers.

MPI takes buffers in memory order and believes what they are: each helper makes both of its buffers from one array, in C's
order, and never one from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from untrace.ir.types import Aval
from untrace.module.rules import DECLINE, Whole
from untrace.python.helpers import helper
from untrace.python.tree import Attribute, Call, Expr, Text, Tuple
from untrace.targets.mpi.sharded import refuse
from untrace.targets.mpi.table import rule

Groups = Sequence[Sequence[int]] | None

_LEAST_SUMMED = 4  # bytes of a float that MPI can add
_SUMS = "MPI may add what the ranks have in another order than the ranks of the proof, from the first to the last"
_ORDERS = "what MPI makes the maximum or minimum of a NaN depends on the ranks' order, as it does in XLA"


# ---------------------------------------------------------------- helpers of the text


@helper("np", last="_allreduce")
def _allreduce(comm, x, op):
    """The sum, maximum or minimum of what the ranks have."""
    x = np.asarray(x, order="C")
    out = np.empty_like(x)
    comm.Allreduce(x, out, op)
    return out[()]


@helper("np", last="_reduce_scatter")
def _reduce_scatter(comm, x, axis):
    """This rank's part, along an axis, of the sum of what the ranks have."""
    x = np.ascontiguousarray(np.moveaxis(x, axis, 0))
    out = np.empty((len(x) // comm.Get_size(), *x.shape[1:]), x.dtype)
    comm.Reduce_scatter_block(x, out)
    return np.moveaxis(out, 0, axis)


@helper("np", last="_all_gather")
def _all_gather(comm, x):
    """What each rank has, along a new first axis."""
    x = np.asarray(x, order="C")
    out = np.empty((comm.Get_size(), *x.shape), x.dtype)
    comm.Allgather(x, out)
    return out


@helper("np", last="_all_to_all")
def _all_to_all(comm, x, split, concatenated):
    """One part for each rank, along an axis, for one part from each, along another."""
    parts = np.ascontiguousarray(np.stack(np.split(x, comm.Get_size(), split)))
    out = np.empty_like(parts)
    comm.Alltoall(parts, out)
    return np.concatenate(out, concatenated)


@helper("np", last="_permuted")
def _permuted(comm, x, pairs):
    """What the one rank has that sends to this one, zeros where none does. pairs: from which rank to which."""
    to, origin = dict(pairs), {b: a for a, b in pairs}
    rank, nobody = comm.Get_rank(), MPI.PROC_NULL
    x = np.asarray(x, order="C")
    out = np.zeros_like(x)
    comm.Sendrecv(x, to.get(rank, nobody), recvbuf=out, source=origin.get(rank, nobody))
    return out[()]


@helper("np", last="_broadcast")
def _broadcast(comm, x, root):
    """What one rank has."""
    out = np.array(x, order="C")
    comm.Bcast(out, root)
    return out[()]


MPI: Any = None  # which the module has


# ---------------------------------------------------------------- rules


def _is_narrow(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, np.floating) and np.dtype(dtype).itemsize < _LEAST_SUMMED


def reduced(w: Any, x: Expr, aval: Aval, op: str, made: Callable[[Expr], Expr]) -> Expr:
    """A reduction in a type that MPI can add or compare: of narrow floats in float32, as XLA does, of truth values in bytes."""
    kind = np.dtype(aval.dtype)
    if jax.dtypes.issubdtype(kind, np.inexact):
        w.module.note(_SUMS if op == "SUM" else _ORDERS)
    wide = np.float32 if _is_narrow(kind) else np.uint8 if kind == np.bool_ and op != "SUM" else None
    if wide is None:
        return made(x) if kind.isbuiltin == 1 and kind != np.bool_ else DECLINE
    return w.call(Attribute(made(w.call(Attribute(x, "astype"), w.dtype(wide))), "astype"), w.dtype(kind))


def moved(w: Any, x: Expr, aval: Aval, made: Callable[[Expr], Expr]) -> Expr:
    """Something that only moves numbers: those that MPI has no type for as their bits."""
    kind = np.dtype(aval.dtype) if isinstance(aval.dtype, np.dtype) else np.dtype(np.uint32)  # a key is its words
    if kind.isbuiltin == 1 and kind != np.float16:
        return made(x)
    bits = w.call(Attribute(x, "view"), w.dtype(np.dtype(f"u{kind.itemsize}")))
    return w.call(Attribute(made(bits), "view"), w.dtype(kind))


def _reduction(name: str, op: str) -> None:
    def collective(w: Any, *operands: Any, axes: Any, axis_index_groups: Groups = None) -> Any:
        if any(isinstance(a, int) for a in axes):
            return DECLINE
        numbers = w.module.sharding.axes(axes)
        comm = w.along(numbers if axis_index_groups else sorted(numbers), axis_index_groups)
        function = w.helper("_allreduce")
        found = [
            reduced(w, x, aval, op, lambda x: Call(function, [comm, x, Text(f"MPI.{op}")]))
            for x, aval in zip(operands, w.avals, strict=True)
        ]
        if any(each is DECLINE for each in found):
            return DECLINE
        return Whole(found[0]) if len(found) == 1 else Tuple(found)

    rule(name)(collective)


for _name, _op in (("psum", "SUM"), ("psum_invariant", "SUM"), ("pmax", "MAX"), ("pmin", "MIN")):
    _reduction(_name, _op)


@rule("axis_index")
def axis_index(w: Any, *, axis_name: Any) -> Any:
    comm = w.along(w.module.sharding.axes(axis_name))
    return Call(w.dtype(np.int32).flat(), [w.call(Attribute(comm, "Get_rank"))])


@rule("all_gather", "all_gather_invariant")
def all_gather(
    w: Any,
    *operands: Any,
    all_gather_dimension: int,
    axis_name: Any,
    axis_index_groups: Groups = None,
    axis_size: int,
    tiled: bool,
) -> Any:
    comm, axis = w.along(w.module.sharding.axes(axis_name), axis_index_groups), all_gather_dimension
    function = w.helper("_all_gather")
    found = []
    for x, aval in zip(operands, w.avals, strict=True):
        made = moved(w, x, aval, lambda x: Call(function, [comm, x]))
        if tiled:
            made = w.np("concatenate", made, **({"axis": axis} if axis else {}))
        elif axis:
            made = w.np("moveaxis", made, 0, axis)
        found.append(made)
    return Whole(found[0]) if len(found) == 1 else Tuple(found)


@rule("reduce_scatter")
def reduce_scatter(
    w: Any, x: Any, *, axis_name: Any, scatter_dimension: int, axis_index_groups: Groups, axis_size: int, tiled: bool
) -> Any:
    comm = w.along(w.module.sharding.axes(axis_name), axis_index_groups)
    function = w.helper("_reduce_scatter")
    made = reduced(w, x, w.avals[0], "SUM", lambda x: w.call(function, comm, x, scatter_dimension))
    if made is DECLINE or tiled:
        return made if made is DECLINE else Whole(made)
    return Whole(w.call(Attribute(made, "squeeze"), scatter_dimension))


@rule("all_to_all")
def all_to_all(
    w: Any,
    x: Any,
    *,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    axis_index_groups: Groups,
    tiled: bool,
) -> Any:
    """(What is not tiled has an axis of its own for that, of the primitive's.)"""
    comm = w.along(w.module.sharding.axes(axis_name), axis_index_groups)
    function = w.helper("_all_to_all")
    return Whole(moved(w, x, w.avals[0], lambda x: w.call(function, comm, x, split_axis, concat_axis)))


@rule("ppermute")
def ppermute(w: Any, x: Any, *, axis_name: Any, perm: Iterable[Iterable[int]]) -> Any:
    axes = w.module.sharding.axes(axis_name)
    if list(axes) != sorted(axes):  # by which JAX 0.10 means the mesh's own order, and JAX 0.12 these
        refuse("a `ppermute` names axes in another order than the mesh, in which versions of JAX count otherwise")
    comm, size = w.along(axes), w.module.sharding.size(axes)
    pairs = tuple(tuple(int(place) % size for place in pair) for pair in perm)
    function = w.helper("_permuted")
    return moved(w, x, w.avals[0], lambda x: w.call(function, comm, x, pairs))


@rule("pbroadcast")
def pbroadcast(w: Any, x: Any, *, axis_name: Any, source: int) -> Any:
    axes = w.module.sharding.axes(axis_name)
    comm, root = w.along(axes), source % w.module.sharding.size(axes)
    function = w.helper("_broadcast")
    return moved(w, x, w.avals[0], lambda x: w.call(function, comm, x, root))
