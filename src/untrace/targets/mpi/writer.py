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


class _OfRanks(NumpyModule):
    """Collects what one module needs: as `ModuleWriter`. size: for how many ranks it is; words: what it says of them where
    there are others; made: the lines that make what they talk through."""

    rules = MPI

    def __init__(
        self, forced: frozenset[JaxprEqn], standalone: bool, idiomatic: bool, size: int, words: str, made: str
    ):
        super().__init__(forced, standalone, idiomatic)
        self.imports.add("from mpi4py import MPI")
        said = quoted(f"this is for {size} ranks{words}: run it with `mpirun -n {size}`")
        self.constants.append(Lines(f"if MPI.COMM_WORLD.Get_size() != {size}:\n    raise RuntimeError({said})\n{made}"))

    def writer(self) -> FunctionWriter:
        return MpiFunction(self, Scope(self.scope))

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


class RanksModule(_OfRanks):
    """Of ranks that have arguments of their own each. `size`: for how many it is."""

    claimed = (*NumpyModule.claimed, "MPI", "mpi4py", "comm", "rank")

    def __init__(
        self,
        forced: frozenset[JaxprEqn] = frozenset(),
        standalone: bool = False,
        idiomatic: bool = False,
        *,
        size: int,
    ):
        made = "comm = MPI.COMM_WORLD.Dup()  # no messages but ours\nrank = comm.Get_rank()"
        super().__init__(forced, standalone, idiomatic, size, "", made)


class MpiModule(_OfRanks):
    """Of the ranks of a mesh. `sharding`: the mesh that it is for."""

    claimed = (*NumpyModule.claimed, "MPI", "mpi4py", "mesh")

    def __init__(
        self,
        forced: frozenset[JaxprEqn] = frozenset(),
        standalone: bool = False,
        idiomatic: bool = False,
        *,
        sharding: Sharding,
    ):
        made = (
            f"mesh = MPI.COMM_WORLD.Create_cart({tuple(sharding.shape)}, reorder=False)  "
            "# the ranks row by row, no messages but ours"
        )
        super().__init__(forced, standalone, idiomatic, sharding.ranks, f", a mesh of {sharding.words}", made)
        self.sharding = sharding
        self._along: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], Expr] = {}
        for name in ("_handed_out", "_collected"):
            self.helper(name)

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


class MpiFunction(NumpyFunction):
    """Writes one function's body; this is the `w` that rules get."""

    title = "mpi4py"

    def along(self, axes: Sequence[int], groups: Sequence[Sequence[int]] | None = None) -> Expr:
        """The communicator of the ranks along some axes of the mesh."""
        assert isinstance(self.module, MpiModule)
        return self.module.along(tuple(axes), tuple([tuple(map(int, g)) for g in groups or ()]))
