"""The ranks of an MPI program as threads of one process, with what they call of mpi4py: for the proof of a written text.

All of a communicator's ranks meet at each call, and what they bring is compared: MPI itself would take sizes and types that
do not match for numbers, and wait for ever where one rank calls something else. Here each is an error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
Array = np.ndarray
Key = tuple[object, ...]

PROC_NULL = -2
_NARROWEST = 4  # bytes of a float that MPI can add


class RanksDisagree(Exception):
    """Ranks do not make the same calls, or buffers do not fit: what MPI would answer with garbage, or not at all."""


class _Stopped(BaseException):
    """Another rank has ended them all."""


@dataclass(slots=True)
class _Meeting:
    """A call that the ranks of a communicator make together: what each calls it, and what it brings."""

    calls: dict[int, tuple[Key, Any]] = field(default_factory=dict)
    is_full: bool = False


class World:
    """So many ranks. `run` may be called again: what the ranks have made of communicators stays."""

    def __init__(self, size: int):
        self.size = size
        self._changed = threading.Condition()
        self._meetings: dict[Key, _Meeting] = {}
        self._waiting: dict[int, str] = {}  # rank -> for what
        self._ended: set[int] = set()
        self._error: BaseException | None = None

    def mpi(self, rank: int) -> ModuleType:
        """What `from mpi4py import MPI` gives one rank."""
        module = ModuleType("mpi4py.MPI")
        world = Comm(self, ("world",), tuple(range(self.size)), rank)
        module.__dict__.update(SUM="SUM", MAX="MAX", MIN="MIN", PROC_NULL=PROC_NULL, COMM_WORLD=world)
        return module

    def run(self, function: Callable[[int], T]) -> list[T]:
        """What a function gives on each rank; raises what the first rank raises that ends."""
        self._meetings, self._waiting, self._ended, self._error = {}, {}, set(), None
        found: dict[int, T] = {}
        trace = sys.gettrace()  # whoever counts the lines of the caller counts theirs too

        def one(rank: int) -> None:
            sys.settrace(trace)
            try:
                found[rank] = function(rank)
            except _Stopped:
                pass
            except BaseException as error:
                self._stop(error)
            finally:
                sys.settrace(None)
                with self._changed:
                    self._ended.add(rank)
                    self._look_for_deadlock()

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return [found[rank] for rank in range(self.size)]

    def meet(
        self, comm: Comm, turn: int, call: Key, given: Any, check: Callable[[Sequence[Any]], str]
    ) -> Sequence[Any]:
        """What all ranks of a communicator bring to the same call. check: says what is wrong with that."""
        with self._changed:
            if self._error is not None:
                raise _Stopped
            meeting = self._meetings.setdefault((comm.key, turn), _Meeting())
            meeting.calls[comm.rank] = (call, given)
            if len(meeting.calls) == comm.size:
                del self._meetings[comm.key, turn]
                self._close(comm, meeting, check)
            else:
                self._waiting[comm.members[comm.rank]] = str(call[0])
                self._look_for_deadlock()
            while not meeting.is_full and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise _Stopped
            return [meeting.calls[rank][1] for rank in range(comm.size)]

    def _close(self, comm: Comm, meeting: _Meeting, check: Callable[[Sequence[Any]], str]) -> None:
        calls = {rank: call for rank, (call, _) in sorted(meeting.calls.items())}
        if len(set(calls.values())) > 1:
            said = "; ".join([f"rank {comm.members[rank]}: {_said(call)}" for rank, call in calls.items()])
            self._fail(f"the ranks of one communicator make different calls: {said}")
        elif wrong := check([meeting.calls[rank][1] for rank in range(comm.size)]):
            self._fail(wrong)
        meeting.is_full = True
        for member in comm.members:
            self._waiting.pop(member, None)
        self._changed.notify_all()

    def _look_for_deadlock(self) -> None:
        if self._waiting and len(self._waiting) + len(self._ended) == self.size:
            waiting = ", ".join([f"rank {rank} in {call}" for rank, call in sorted(self._waiting.items())])
            ended = f", and {len(self._ended)} ranks have ended" if self._ended else ""
            self._fail(f"ranks wait for ever: {waiting}{ended}")

    def _fail(self, why: str) -> None:
        if self._error is None:
            self._error = RanksDisagree(why)
        self._changed.notify_all()

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()


def _said(call: Key) -> str:
    return f"{call[0]}({', '.join(map(str, call[1:]))})"


def _fine(given: Sequence[Any]) -> str:
    return ""


class Comm:
    """A communicator as one of its ranks has it. `members`: its ranks in the world, in its order. `dims`: of a mesh."""

    def __init__(self, world: World, key: Key, members: tuple[int, ...], rank: int, dims: Sequence[int] = ()):
        self.world, self.key, self.members, self.rank, self.size = world, key, members, rank, len(members)
        self.dims = list(dims)
        self._turn = 0

    @property
    def coords(self) -> list[int]:
        return [int(i) for i in np.unravel_index(self.rank, self.dims)]

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Dup(self) -> Comm:
        return self._made(("Dup",), self.members, self.rank)

    def Create_cart(self, dims: Sequence[int], periods: object = None, reorder: bool = False) -> Comm:
        if int(np.prod(dims)) != self.size or reorder:
            raise RanksDisagree(f"a mesh {tuple(dims)} of {self.size} ranks")
        return self._made(("Create_cart", *dims), self.members, self.rank, dims)

    def Sub(self, remain_dims: Sequence[bool]) -> Comm:
        kept = [axis for axis, keep in enumerate(remain_dims) if keep]
        dims, mine = [self.dims[axis] for axis in kept], self.coords
        places = np.arange(self.size).reshape(self.dims)
        index = tuple([slice(None) if keep else mine[axis] for axis, keep in enumerate(remain_dims)])
        members = tuple([self.members[place] for place in places[index].flat])
        return self._made(("Sub", *remain_dims), members, members.index(self.members[self.rank]), dims)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        given = self._meet(("Split",), (color, key))
        inside = sorted([(k, place) for place, (c, k) in enumerate(given) if c == color])
        members = tuple([self.members[place] for _, place in inside])
        return self._made(("Split", color), members, members.index(self.members[self.rank]))

    def Allreduce(self, sendbuf: Array, recvbuf: Array, op: str = "SUM") -> None:
        given = self._reduced("Allreduce", sendbuf, recvbuf, recvbuf.size, op)
        recvbuf[...] = given

    def Reduce_scatter_block(self, sendbuf: Array, recvbuf: Array, op: str = "SUM") -> None:
        whole = self._reduced("Reduce_scatter_block", sendbuf, recvbuf, recvbuf.size * self.size, op)
        recvbuf[...] = whole.reshape(self.size, *recvbuf.shape)[self.rank]

    def Allgather(self, sendbuf: Array, recvbuf: Array) -> None:
        given = self._moved("Allgather", sendbuf, recvbuf, sendbuf.size * self.size)
        recvbuf[...] = np.stack(given).reshape(recvbuf.shape)

    def Alltoall(self, sendbuf: Array, recvbuf: Array) -> None:
        given = self._moved("Alltoall", sendbuf, recvbuf, sendbuf.size)
        if sendbuf.size % self.size:
            raise RanksDisagree(f"{sendbuf.size} numbers for {self.size} ranks")
        parts = [array.reshape(self.size, -1)[self.rank] for array in given]
        recvbuf[...] = np.stack(parts).reshape(recvbuf.shape)

    def Bcast(self, buf: Array, root: int = 0) -> None:
        _check(buf)
        given = self._meet(("Bcast", buf.dtype, buf.size, root), buf.copy())
        buf[...] = given[root].reshape(buf.shape)

    def Sendrecv(
        self, sendbuf: Array, dest: int, sendtag: int = 0, recvbuf: Array | None = None, source: int = PROC_NULL
    ) -> None:
        assert recvbuf is not None
        _check(sendbuf, recvbuf)
        call = ("Sendrecv", sendbuf.dtype, sendbuf.size)
        given = self._meet(call, (dest, source, sendbuf.copy()), _unmatched)
        if source != PROC_NULL:
            recvbuf[...] = given[source][2].reshape(recvbuf.shape)

    def _reduced(self, name: str, sendbuf: Array, recvbuf: Array, count: int, op: str) -> Array:
        _check(sendbuf, recvbuf)
        kind = sendbuf.dtype
        if kind == np.bool_ or kind.kind == "f" and kind.itemsize < _NARROWEST or kind.kind == "c" and op != "SUM":
            raise RanksDisagree(f"MPI has no {op} of {kind}")
        if sendbuf.size != count:
            raise RanksDisagree(f"{name} of {sendbuf.size} numbers into {recvbuf.size}")
        found, *others = self._meet((name, kind, sendbuf.size, op), sendbuf.copy())
        for other in others:
            if op == "SUM":
                found = found + other
            else:  # as C has it, where a NaN is neither less nor more
                found = np.where(other > found if op == "MAX" else other < found, other, found)
        return found

    def _moved(self, name: str, sendbuf: Array, recvbuf: Array, count: int) -> Sequence[Array]:
        _check(sendbuf, recvbuf)
        if recvbuf.size != count:
            raise RanksDisagree(f"{name} of {sendbuf.size} numbers into {recvbuf.size}")
        return self._meet((name, sendbuf.dtype, sendbuf.size), sendbuf.copy())

    def _made(self, call: Key, members: tuple[int, ...], rank: int, dims: Sequence[int] = ()) -> Comm:
        self._meet(call[:1] if call[0] == "Split" else call, None)
        return Comm(self.world, (self.key, self._turn, members), members, rank, dims)

    def _meet(self, call: Key, given: Any, check: Callable[[Sequence[Any]], str] = _fine) -> Sequence[Any]:
        self._turn += 1
        return self.world.meet(self, self._turn, call, given, check)


def _unmatched(given: Sequence[tuple[int, int, Array]]) -> str:
    """What is wrong with sends and receives."""
    for rank, (to, source, _) in enumerate(given):
        if to != PROC_NULL and given[to][1] != rank:
            return f"rank {rank} sends to {to}, which receives from {given[to][1]}"
        if source != PROC_NULL and given[source][0] != rank:
            return f"rank {rank} receives from {source}, which sends to {given[source][0]}"
    return ""


def _check(*buffers: Array) -> None:
    """Raises for buffers that MPI does not take, or takes for something else."""
    for buffer in buffers:
        if type(buffer) is not np.ndarray or not buffer.flags.c_contiguous:
            raise RanksDisagree("a buffer is no array in C's order")
        if buffer.dtype.isbuiltin != 1 or buffer.dtype == np.float16:
            raise RanksDisagree(f"MPI has no {buffer.dtype}")
    if not buffers[-1].flags.writeable:
        raise RanksDisagree("what is received into cannot be written to")
    if len({buffer.dtype for buffer in buffers}) > 1:
        raise RanksDisagree(f"buffers of two types: {', '.join([str(b.dtype) for b in buffers])}")
    if any(np.may_share_memory(buffers[0], other) for other in buffers[1:]):
        raise RanksDisagree("one buffer is both sent and received")
