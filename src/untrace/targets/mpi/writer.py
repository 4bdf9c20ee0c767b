"""The printer of the MPI target: NumPy's, and the communicators of the module."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from untrace._identifiers import identifier
from untrace.module.writer import FunctionWriter
from untrace.python.names import Scope
from untrace.python.statements import Assign, Lines
from untrace.python.tree import Call, Expr, Name, Text, quoted
from untrace.targets.mpi.sharded import Sharding
from untrace.targets.mpi.table import MPI
from untrace.targets.numpy.writer import NumpyFunction, NumpyModule


class MpiModule(NumpyModule):
    """Collects what one module needs: as `ModuleWriter`. `sharding`: the mesh that it is for."""

    rules = MPI
    claimed = (*NumpyModule.claimed, "MPI", "mpi4py", "mesh")

    def __init__(
        self,
        forced: frozenset[JaxprEqn] = frozenset(),
        standalone: bool = False,
        idiomatic: bool = False,
        *,
        sharding: Sharding,
    ):
        super().__init__(forced, standalone, idiomatic)
        self.sharding = sharding
        self.imports.add("from mpi4py import MPI")
        self._along: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], Expr] = {}
        count, shape = sharding.ranks, tuple(sharding.shape)
        said = quoted(f"this is for {count} ranks, a mesh of {sharding.words}: run it with `mpirun -n {count}`")
        self.constants.append(
            Lines(
                f"if MPI.COMM_WORLD.Get_size() != {count}:\n    raise RuntimeError({said})\n"
                f"mesh = MPI.COMM_WORLD.Create_cart({shape}, reorder=False)  # the ranks row by row, no messages but ours"
            )
        )
        for name in ("_handed_out", "_collected"):
            self.helper(name)

    def writer(self) -> FunctionWriter:
        return MpiFunction(self, Scope(self.scope))

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def along(self, axes: tuple[int, ...], groups: tuple[tuple[int, ...], ...]) -> Expr:
        """The module's name for the communicator of the ranks along some axes, or of their groups there."""
        found = self._along.get((axes, groups))
        if found is None:
            found = self._along[axes, groups] = self._communicator(axes, groups)
        return found

    def _communicator(self, axes: tuple[int, ...], groups: tuple[tuple[int, ...], ...]) -> Expr:
        shape, every = self.sharding.shape, tuple(range(len(self.sharding.names)))
        words = "_".join([self.sharding.names[a] for a in axes])
        if groups:
            whole = self.along(axes, ()).flat()
            members = sorted([(rank, number, place) for number, g in enumerate(groups) for place, rank in enumerate(g)])
            tables = [tuple([m[i] for m in members]) for i in (1, 2)]
            rank = f"{whole}.Get_rank()"
            return self._named(f"grouped_{words}", Call(f"{whole}.Split", [Text(f"{t}[{rank}]") for t in tables]))
        if axes == every:
            return Name("mesh")
        along = Call("mesh.Sub", [Text(str([a in axes for a in every]))])
        if list(axes) == sorted(axes):
            return self._named(f"along_{words}", along)
        place = f"mesh.coords[{axes[0]}]"
        for number, axis in enumerate(axes[1:]):
            place = f"({place})" if number else place
            place = f"{place} * {shape[axis]} + mesh.coords[{axis}]"
        return self._named(f"along_{words}", Call(f"{along.flat()}.Split", [Text("0"), Text(place)]))

    def _named(self, base: str, made: Expr) -> Name:
        name = self.scope.fresh(identifier(base, "ranks"))
        self.constants.append(Assign([name], made))
        return Name(name)


class RanksModule(NumpyModule):
    """Collects what one module needs: as `ModuleWriter`. `size`: for how many ranks it is, each with arguments of its own."""

    rules = MPI
    claimed = (*NumpyModule.claimed, "MPI", "mpi4py", "comm", "rank")

    def __init__(
        self,
        forced: frozenset[JaxprEqn] = frozenset(),
        standalone: bool = False,
        idiomatic: bool = False,
        *,
        size: int,
    ):
        super().__init__(forced, standalone, idiomatic)
        self.imports.add("from mpi4py import MPI")
        said = quoted(f"this is for {size} ranks: run it with `mpirun -n {size}`")
        self.constants.append(
            Lines(
                f"if MPI.COMM_WORLD.Get_size() != {size}:\n    raise RuntimeError({said})\n"
                "comm = MPI.COMM_WORLD.Dup()  # no messages but ours\nrank = comm.Get_rank()"
            )
        )

    def writer(self) -> FunctionWriter:
        return RankFunction(self, Scope(self.scope))

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


class RankFunction(NumpyFunction):
    """Writes one function's body; this is the `w` that rules get."""

    title = "mpi4py"


class MpiFunction(NumpyFunction):
    """Writes one function's body; this is the `w` that rules get."""

    title = "mpi4py"

    def along(self, axes: Sequence[int], groups: Sequence[Sequence[int]] | None = None) -> Expr:
        """The communicator of the ranks along some axes of the mesh."""
        assert isinstance(self.module, MpiModule)
        return self.module.along(tuple(axes), tuple([tuple(map(int, g)) for g in groups or ()]))
