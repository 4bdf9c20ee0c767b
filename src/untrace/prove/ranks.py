"""The ranks of an MPI program as threads of one process, with what they call of mpi4py: for the proof of a written text.

All of a communicator's ranks meet at each call, and what they bring is compared: MPI itself would take sizes and types that
do not match for numbers, and wait for ever where one rank calls something else. Here each is an error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
Array = np.ndarray
Key = tuple[object, ...]

PROC_NULL, ANY_TAG = -2, -1
# What MPI makes of what two ranks have; the greater and the less as C has them, where a NaN is neither.
_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": lambda one, other: np.where(other > one, other, one),
    "MIN": lambda one, other: np.where(other < one, other, one),
    "LAND": lambda one, other: ((one != 0) & (other != 0)).astype(one.dtype),
    "LOR": lambda one, other: ((one != 0) | (other != 0)).astype(one.dtype),
    "LXOR": lambda one, other: ((one != 0) ^ (other != 0)).astype(one.dtype),
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
_OURS = (__file__, threading.__file__)
_NARROWEST = 4  # bytes of a float that MPI can add
_SUMS = ("SUM", "PROD")  # which complex numbers have as well


class RanksDisagree(Exception):
    """Ranks do not make the same calls, or buffers do not fit: what MPI would answer with garbage, or not at all."""


class _Stopped(BaseException):
    """Another rank has ended them all."""


@dataclass(slots=True)
class _Meeting:
    """A call that the ranks of a communicator make together: what each calls it, and what it brings."""

    calls: dict[int, tuple[Key, Any]] = field(default_factory=dict)
    is_full: bool = False


@dataclass(slots=True, eq=False)
class _Request:
    """A send, or a receive, that one rank has begun: it is done when the other one has come. Ranks are the world's."""

    comm: Key
    source: int
    dest: int
    tag: int
    buffer: Array
    is_send: bool
    is_done: bool = False

    @property
    def rank(self) -> int:
        return self.source if self.is_send else self.dest


class World:
    """So many ranks. `run` may be called again: what the ranks have made of communicators stays."""

    def __init__(self, size: int):
        self.size = size
        self._changed = threading.Condition()
        self._meetings: dict[Key, _Meeting] = {}
        self._waiting: dict[int, str] = {}  # rank -> for what
        self._requests: list[_Request] = []  # in the order in which ranks began them
        self._ended: set[int] = set()
        self._error: BaseException | None = None

    def mpi(self, rank: int) -> ModuleType:
        """What `from mpi4py import MPI` gives one rank."""
        module = ModuleType("mpi4py.MPI")
        world = Comm(self, ("world",), tuple(range(self.size)), rank)
        module.__dict__.update({name: name for name in _OPERATIONS})
        module.__dict__.update(PROC_NULL=PROC_NULL, ANY_TAG=ANY_TAG, COMM_WORLD=world)
        return module

    def run(self, function: Callable[[int], T]) -> list[T]:
        """What a function gives on each rank; raises what the first rank raises that ends."""
        self._meetings, self._waiting, self._ended, self._error = {}, {}, set(), None
        self._requests = []
        found: dict[int, T] = {}
        counted = sys.gettrace()  # whoever counts the lines of the caller counts theirs too, but not how long they wait

        def trace(frame: FrameType, event: Any, arg: object) -> Any:
            return None if counted is None or frame.f_code.co_filename in _OURS else counted(frame, event, arg)

        def one(rank: int) -> None:
            sys.settrace(trace if counted is not None else None)
            try:
                found[rank] = function(rank)
            except _Stopped:
                sys.settrace(None)
            except BaseException as error:
                sys.settrace(None)
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

    def exchange(self, call: str, requests: Sequence[_Request]) -> None:
        """Begins what one rank sends and receives, and waits until all of it is done.

        A send is done when it is received: a program that counts on MPI keeping messages for it waits for ever here.
        """
        with self._changed:
            if self._error is not None:
                raise _Stopped
            for request in requests:
                self._requests.append(request)
            for request in requests:
                self._match(request)
            if requests and not all([r.is_done for r in requests]):
                self._waiting[requests[0].rank] = call
                self._look_for_deadlock()
            while self._error is None and not all([r.is_done for r in requests]):
                self._changed.wait()
            if self._error is not None:
                raise _Stopped

    def _match(self, new: _Request) -> None:
        for old in self._requests:
            send, receive = (new, old) if new.is_send else (old, new)
            ranks = (send.comm, send.source, send.dest) == (receive.comm, receive.source, receive.dest)
            if new.is_done or old.is_done or old.is_send == new.is_send or not ranks:
                continue
            if receive.tag not in (ANY_TAG, send.tag):
                continue
            one, other = send.buffer, receive.buffer
            if (one.dtype, one.size) != (other.dtype, other.size):
                types = f"{one.size} {one.dtype}, which takes {other.size} {other.dtype}"
                self._fail(f"rank {send.source} sends rank {send.dest} {types}")
                return
            other[...] = one.reshape(other.shape)
            send.is_done = receive.is_done = True
        self._requests = [r for r in self._requests if not r.is_done]
        for rank in {new.source, new.dest} - {r.rank for r in self._requests}:
            self._waiting.pop(rank, None)
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

    def Reduce(self, sendbuf: Array, recvbuf: Array | None, op: str = "SUM", root: int = 0) -> None:
        into = sendbuf.copy() if recvbuf is None else recvbuf
        if (recvbuf is not None) != (self.rank == root):
            raise RanksDisagree(f"Reduce to rank {root}, and rank {self.rank} has the wrong buffers for that")
        into[...] = self._reduced("Reduce", sendbuf, into, into.size, op, root)

    def Scan(self, sendbuf: Array, recvbuf: Array, op: str = "SUM") -> None:
        recvbuf[...] = self._reduced("Scan", sendbuf, recvbuf, recvbuf.size, op, upto=self.rank + 1)

    def Gather(self, sendbuf: Array, recvbuf: Array | None, root: int = 0) -> None:
        _check(sendbuf)
        if (recvbuf is not None) != (self.rank == root):
            raise RanksDisagree(f"Gather at rank {root}, and rank {self.rank} has the wrong buffers for that")
        given = self._meet(("Gather", sendbuf.dtype, sendbuf.size, root), sendbuf.copy())
        if recvbuf is not None:
            _check(sendbuf, recvbuf)
            recvbuf[...] = np.stack(given).reshape(recvbuf.shape)

    def Scatter(self, sendbuf: Array | None, recvbuf: Array, root: int = 0) -> None:
        _check(recvbuf)
        if (sendbuf is not None) != (self.rank == root):
            raise RanksDisagree(f"Scatter from rank {root}, and rank {self.rank} has the wrong buffers for that")
        if sendbuf is not None:
            _check(sendbuf, recvbuf)
            if sendbuf.size != recvbuf.size * self.size:
                raise RanksDisagree(f"Scatter of {sendbuf.size} numbers to {self.size} times {recvbuf.size}")
        given = self._meet(("Scatter", recvbuf.dtype, recvbuf.size, root), None if sendbuf is None else sendbuf.copy())
        recvbuf[...] = given[root].reshape(self.size, *recvbuf.shape)[self.rank]

    def Barrier(self) -> None:
        self._meet(("Barrier",), None)

    def Send(self, buf: Array, dest: int, tag: int = 0) -> None:
        _check(buf)
        self.world.exchange(f"Send to {dest}", self._requests(dest, tag, buf))

    def Recv(self, buf: Array, source: int, tag: int = ANY_TAG) -> None:
        _check(buf)
        self.world.exchange(f"Recv from {source}", self._requests(PROC_NULL, 0, buf, source, tag, buf))

    def Sendrecv(
        self,
        sendbuf: Array,
        dest: int,
        sendtag: int = 0,
        recvbuf: Array | None = None,
        source: int = PROC_NULL,
        recvtag: int = ANY_TAG,
    ) -> None:
        assert recvbuf is not None
        _check(sendbuf, recvbuf)
        requests = self._requests(dest, sendtag, sendbuf, source, recvtag, recvbuf)
        self.world.exchange(f"Sendrecv to {dest} and from {source}", requests)

    def _requests(
        self,
        dest: int,
        sendtag: int,
        sendbuf: Array,
        source: int = PROC_NULL,
        recvtag: int = ANY_TAG,
        recvbuf: Array | None = None,
    ) -> list[_Request]:
        """What is sent, as it is now, and what is received, but to and from nobody."""
        for rank in (dest, source):
            if rank != PROC_NULL and not 0 <= rank < self.size:
                raise RanksDisagree(f"there is no rank {rank} of {self.size}")
        mine, found = self.members[self.rank], []
        if dest != PROC_NULL:
            found.append(_Request(self.key, mine, self.members[dest], sendtag, sendbuf.copy(), True))
        if source != PROC_NULL and recvbuf is not None:
            found.append(_Request(self.key, self.members[source], mine, recvtag, recvbuf, False))
        return found

    def _reduced(
        self, name: str, sendbuf: Array, recvbuf: Array, count: int, op: str, root: int = 0, upto: int | None = None
    ) -> Array:
        """Of what the ranks have, or the first `upto` of them, the sum and the like."""
        _check(sendbuf, recvbuf)
        kind = sendbuf.dtype
        if kind == np.bool_ or kind.kind == "f" and kind.itemsize < _NARROWEST or kind.kind == "c" and op not in _SUMS:
            raise RanksDisagree(f"MPI has no {op} of {kind}")
        if kind.kind in "fc" and op not in (*_SUMS, "MAX", "MIN"):
            raise RanksDisagree(f"MPI has no {op} of {kind}")
        if sendbuf.size != count:
            raise RanksDisagree(f"{name} of {sendbuf.size} numbers into {recvbuf.size}")
        found, *others = self._meet((name, kind, sendbuf.size, op, root), sendbuf.copy())[:upto]
        for other in others:
            found = _OPERATIONS[op](found, other)
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
