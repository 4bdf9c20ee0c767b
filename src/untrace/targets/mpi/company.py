"""The processes that `mpirun` started, as far as they write one text together: each traces what its own rank does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError, UntraceError
from untrace.ir.types import Data
from untrace.module.emit import Written
from untrace.prove.execute import Endless
from untrace.prove.load import LoadedText, load_text
from untrace.prove.ranks import RanksDisagree, World
from untrace.targets.base import Company, Load, OfLeaves
from untrace.targets.mpi.sharded import refuse

T = TypeVar("T")


def company() -> Company:
    """Those of MPI's world where this process computes with mpi4jax; this process alone otherwise."""
    if "mpi4jax" not in sys.modules:
        return Company()
    from mpi4py import MPI

    return Together(MPI.COMM_WORLD.Dup())  # no message of ours may be taken for one of the program's


class Together(Company):
    """All ranks of a communicator of mpi4py. Each method is a collective call."""

    def __init__(self, comm: Any):
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def gather(self, mine: T) -> list[T]:
        """What each rank has, from the first to the last; it has to be picklable."""
        return self._comm.allgather(mine)

    def agreed(self, make: Callable[[], T]) -> T:
        """What `make` gives here. Raises UntraceError on every rank where one of them raises."""
        made: list[T] = []
        error = None
        try:
            made.append(make())
        except Exception as caught:
            error = caught
        said = self.gather(None if error is None else (str(error), isinstance(error, UnsupportedPrimitiveError)))
        if error is not None:
            raise error
        for rank, words in enumerate(said):
            if words is not None:
                kind = UnsupportedPrimitiveError if words[1] else UntraceError
                raise kind(f"on rank {rank}: {words[0]}")
        return made[0]

    def by_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on the first rank, on all of them."""
        made = self.agreed(lambda: make() if self.rank == 0 else None)
        return self._comm.bcast(made)

    def leaves(self, own: Sequence[Data]) -> list[Data]:
        words = [jax_compat.as_numpy(x) if isinstance(x, jax.Array) else x for x in own]  # keys are their words
        return [
            jax.random.wrap_key_data(_native(x)) if jax_compat.is_key(example) else _native(x)
            for every in self.gather(words)
            for x, example in zip(every, own, strict=True)
        ]

    def names(self, own: Sequence[str]) -> list[str]:
        return [f"{name} on rank {rank}" for rank in range(self.size) for name in own]

    def original(self, function: OfLeaves) -> OfLeaves:
        def of_all(*leaves: Data) -> list[Data]:
            count = len(leaves) // self.size
            mine = leaves[self.rank * count : (self.rank + 1) * count]

            def run() -> list[np.ndarray]:
                return [jax_compat.as_numpy(y) for y in jax.block_until_ready(jax.tree.leaves(function(*mine)))]

            found = self.agreed(run)
            return [_native(y) for every in self.gather(found) for y in every]

        return of_all

    def text(self, load: Load, written: Written, of_leaves: Callable[[LoadedText], OfLeaves]) -> OfLeaves:
        """(On simulated ranks, each process for itself: where a text waits for ever, MPI would not say so.)"""

        def begun() -> tuple[World, list[OfLeaves]]:
            world = World(self.size)
            return world, world.run(lambda rank: one(world.mpi(rank)))

        def one(mpi: ModuleType) -> OfLeaves:
            package = ModuleType("mpi4py")
            package.__dict__["MPI"] = mpi
            return of_leaves(load_text(written.source, written.name, written.arrays, modules={"mpi4py": package}))

        world, functions = begun()
        is_whole = True  # whether all ranks of the last run came to their ends

        def of_all(*leaves: Data) -> list[Data]:
            nonlocal world, functions, is_whole
            # Whoever counts the lines that this takes may stop some processes and not others: they have to agree on that.
            sys._getframe().f_trace = None
            counted, found, outcome = sys.gettrace(), [], ""
            count = len(leaves) // self.size
            if not is_whole:  # ranks that were stopped are at different places
                sys.settrace(None)
                world, functions = begun()
                sys.settrace(counted)
            is_whole = False
            try:
                found = world.run(lambda rank: functions[rank](*leaves[rank * count : (rank + 1) * count]))
                is_whole = True
            except RanksDisagree as error:
                outcome = f"wrong {error}"
            except Exception as error:
                outcome = f"raises {type(error).__name__}: {error}"
            except BaseException:
                outcome = "endless"
            sys.settrace(None)
            outcomes = sorted({said for said in self.gather(outcome) if said}, reverse=True)  # "wrong" goes first
            if not outcomes:
                return [y for every in found for y in every]
            kind, _, words = outcomes[0].partition(" ")
            if kind == "wrong":
                refuse(f"{words}. (A send ends when it is received: no program may count on MPI to keep it.)")
            raise Endless(words) if kind == "endless" else UntraceError(words)

        return of_all


def _native(x: Data) -> Data:
    """An array that was pickled, in a type that is known to be the machine's own."""
    return x.view(np.dtype(x.dtype.name)) if isinstance(x, np.ndarray | np.generic) else x
