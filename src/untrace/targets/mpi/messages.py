"""What mpi4jax calls as calls of mpi4py. Source: mpi4jax's documentation of its twelve functions; mpi4py's upper-case methods.

Where a rank has no result of its own, a helper gives back what it was passed, as mpi4jax does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from untrace.module.rules import DECLINE, Whole
from untrace.python.helpers import helper
from untrace.python.tree import Attribute, Call, Expr, Name, Ternary, Text
from untrace.targets.mpi.collectives import moved, reduced
from untrace.targets.mpi.ranks import CHOICE, NOBODY, NUMBER, POINT_TO_POINT, WORDS
from untrace.targets.mpi.table import rule

# ---------------------------------------------------------------- helpers of the text


@helper("np", last="_reduce")
def _reduce(comm, x, op, root):
    """On one rank the sum, maximum and so on of what the ranks have; on the others what they have."""
    x = np.asarray(x, order="C")
    if comm.Get_rank() != root:
        comm.Reduce(x, None, op, root)
        return x[()]
    out = np.empty_like(x)
    comm.Reduce(x, out, op, root)
    return out[()]


@helper("np", last="_scan")
def _scan(comm, x, op):
    """The sum, maximum and so on of what the ranks up to this one have."""
    x = np.asarray(x, order="C")
    out = np.empty_like(x)
    comm.Scan(x, out, op)
    return out[()]


@helper("np", last="_gather")
def _gather(comm, x, root):
    """On one rank what each rank has, along a new first axis; on the others what they have."""
    x = np.asarray(x, order="C")
    if comm.Get_rank() != root:
        comm.Gather(x, None, root)
        return x[()]
    out = np.empty((comm.Get_size(), *x.shape), x.dtype)
    comm.Gather(x, out, root)
    return out


@helper("np", last="_scatter")
def _scatter(comm, x, root):
    """This rank's part, along the first axis, of what one rank has; of the others' arrays the type counts."""
    x = np.asarray(x, order="C")
    if comm.Get_rank() != root:
        out = np.empty_like(x)
        comm.Scatter(None, out, root)
    else:
        out = np.empty(x.shape[1:], x.dtype)
        comm.Scatter(x, out, root)
    return out[()]


@helper("np", last="_send")
def _send(comm, x, dest, tag=0):
    """Sends an array to another rank; to nobody where that is MPI.PROC_NULL."""
    comm.Send(np.asarray(x, order="C"), dest, tag)


@helper("np", last="_receive")
def _receive(comm, x, source, tag=-1):
    """What another rank sends, in the type of an array; that array where it is from MPI.PROC_NULL."""
    out = np.array(x, order="C")
    comm.Recv(out, source, tag)
    return out[()]


@helper("np", last="_send_receive")
def _send_receive(comm, x, like, dest, source, sendtag=0, recvtag=-1):
    """Sends an array to one rank, and gives what another one sends, as `_send` and `_receive` do, at the same time."""
    out = np.array(like, order="C")
    comm.Sendrecv(np.asarray(x, order="C"), dest, sendtag, out, source, recvtag)
    return out[()]


# ---------------------------------------------------------------- numbers of the rank


def of_rank(values: Sequence[Any], size: int) -> Expr:
    """An expression of `rank` that gives these values, one for each: as an author would write it, or a table."""
    there = {rank: int(v) for rank, v in enumerate(values) if v != NOBODY}
    if not there:
        return Text("MPI.PROC_NULL")
    found = _formula(there, size)
    if found is None:
        words = ["MPI.PROC_NULL" if v == NOBODY else repr(int(v)) for v in values]
        return Text(f"({', '.join(words)})[rank]")
    if len(there) == size:
        return found
    return Ternary(found, Text(ranks_in(there, size)), Text("MPI.PROC_NULL"))


def ranks_in(ranks: Any, size: int) -> str:
    """A condition on `rank` that holds on these of the ranks, and on no other."""
    every, rest = sorted(ranks), sorted(set(range(size)) - set(ranks))
    if len(every) == 1:
        return f"rank == {every[0]}"
    if len(rest) == 1:
        return (
            f"rank < {rest[0]}" if rest[0] == size - 1 else f"rank > {rest[0]}" if not rest[0] else f"rank != {rest[0]}"
        )
    if every == list(range(len(every))):
        return f"rank < {len(every)}"
    if every == list(range(every[0], size)):
        return f"rank >= {every[0]}"
    if every[0] < 2 and every == list(range(every[0], size, 2)):
        return f"rank % 2 == {every[0]}"
    return f"rank in {tuple(every)}"


def _formula(values: Any, size: int) -> Expr | None:
    rank, first = min(values), values[min(values)]
    shift = first - rank
    formulas: list[tuple[Callable[[int], int], str]] = [
        (lambda r: first, repr(first)),
        (lambda r: r + shift, f"rank + {shift}" if shift > 0 else f"rank - {-shift}" if shift else "rank"),
        (lambda r: (r + 1) % size, f"(rank + 1) % {size}"),
        (lambda r: (r - 1) % size, f"(rank - 1) % {size}"),
        (lambda r: (r + shift) % size, f"(rank + {shift % size}) % {size}"),
        (lambda r: size - 1 - r, f"{size - 1} - rank"),
        (lambda r: r ^ (rank ^ first), f"rank ^ {rank ^ first}"),
        (lambda r: r // 2, "rank // 2"),
        (lambda r: r % 2, "rank % 2"),
    ]
    return next((Text(words) for f, words in formulas if all(f(r) == v for r, v in values.items())), None)


# ---------------------------------------------------------------- rules


@rule(NUMBER.name)
def rank_number(w: Any, *, values: Sequence[Any]) -> Any:
    kind = np.asarray(values[0]).dtype
    if kind == np.bool_:
        return Text(ranks_in([r for r, v in enumerate(values) if v], len(values)))
    whole = kind.kind in "iuf" and all(np.isfinite(v) and v == int(v) and v != NOBODY for v in values)
    found = _formula({r: int(v) for r, v in enumerate(values)}, len(values)) if whole else None
    words = [w.module.values.numpy_scalar(v).flat() if kind.kind not in "iuf" else repr(v.item()) for v in values]
    if found is None and kind.kind == "f" and not all(np.isfinite(values)):
        return DECLINE
    return Call(w.dtype(kind).flat(), [found or Text(f"({', '.join(words)})[rank]")])


@rule(CHOICE.name)
def rank_choice(w: Any, *operands: Expr, which: Sequence[int]) -> Any:
    found = operands[-1]
    for number in reversed(range(len(operands) - 1)):
        ranks = [r for r, w in enumerate(which) if w == number]
        found = Ternary(operands[number], Text(ranks_in(ranks, len(which))), found)
    return found


def _collective(name: str, made: Callable[..., Expr]) -> None:
    def collective(w: Any, x: Expr, *, op: str = "", root: int | None = None) -> Any:
        more = [Text(repr(root))] if root is not None else []
        if op:
            found = reduced(w, x, w.avals[0], op, lambda x: made(w, x, Text(f"MPI.{op}"), *more))
        else:
            found = moved(w, x, w.avals[0], lambda x: made(w, x, *more))
        return found if found is DECLINE else Whole(found)

    rule(name)(collective)


# By mpi4jax's function: the helper that is called, and what it is given behind the rest.
HELPERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "allreduce": ("_allreduce", ()),
    "reduce": ("_reduce", ()),
    "scan": ("_scan", ()),
    "bcast": ("_broadcast", ()),
    "gather": ("_gather", ()),
    "scatter": ("_scatter", ()),
    "allgather": ("_all_gather", ()),
    "alltoall": ("_all_to_all", (0, 0)),
    "send": ("_send", ()),
    "recv": ("_receive", ()),
    "sendrecv": ("_send_receive", ()),
}


def _by(helper: str, last: Sequence[int]) -> Callable[..., Expr]:
    return lambda w, x, *more: Call(w.helper(helper), [Name("comm"), x, *more, *[Text(repr(i)) for i in last]])


for _name, (_helper, _last) in HELPERS.items():
    if f"{_name}_mpi" not in POINT_TO_POINT:
        _collective(WORDS[f"{_name}_mpi"], _by(_helper, _last))


@rule("barrier")
def barrier(w: Any) -> Any:
    return Call(Attribute(Name("comm"), "Barrier"))


def _tags(**tags: tuple[Sequence[int], int]) -> dict[str, Expr]:
    """Those that are not what MPI takes where nobody says one."""
    return {k: of_rank(v, len(v)) for k, (v, default) in tags.items() if set(v) != {default}}


@rule("sent")
def send(w: Any, x: Expr, *, dest: Sequence[int], tag: Sequence[int]) -> Any:
    more = _tags(tag=(tag, 0))
    return moved(
        w, x, w.avals[0], lambda x: w.call(w.helper("_send"), Name("comm"), x, of_rank(dest, len(dest)), **more)
    )


@rule("received")
def receive(w: Any, x: Expr, *, source: Sequence[int], tag: Sequence[int]) -> Any:
    function, origin, more = w.helper("_receive"), of_rank(source, len(source)), _tags(tag=(tag, -1))
    return Whole(moved(w, x, w.avals[0], lambda x: w.call(function, Name("comm"), x, origin, **more)))


@rule("swapped")
def send_receive(
    w: Any,
    x: Expr,
    like: Expr,
    *,
    dest: Sequence[int],
    source: Sequence[int],
    sendtag: Sequence[int],
    recvtag: Sequence[int],
) -> Any:
    function, more = w.helper("_send_receive"), _tags(sendtag=(sendtag, 0), recvtag=(recvtag, -1))
    to, origin = of_rank(dest, len(dest)), of_rank(source, len(source))
    if w.avals[0].dtype != w.avals[1].dtype:
        return DECLINE
    return Whole(
        moved(w, x, w.avals[0], lambda x, like=like: w.call(function, Name("comm"), x, like, to, origin, **more))
    )
