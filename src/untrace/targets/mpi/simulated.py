"""A text for many ranks as a function of whole arrays: all ranks as threads of this process (`prove.ranks`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.types import PyTree
from untrace.prove.load import LoadedText, load_text
from untrace.prove.ranks import World
from untrace.targets.mpi.sharded import Sharding
from untrace.targets.mpi.shards import _cut, _joined


def simulated(
    source: str, name: str, arrays: Mapping[str, np.ndarray], sharding: Sharding, arguments: jax.tree_util.PyTreeDef
) -> LoadedText:
    """A module whose entry takes and gives whole arrays. arguments: the tree of all that it is called with."""
    ranks = _Ranks(source, name, dict(arrays), sharding)

    def entry(*args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != arguments:
            raise TypeError(f"the arguments are {tree}, but this was written for {arguments}")
        shape = sharding.shape
        cut = [_cut(jax_compat.as_numpy(x), s, shape) for x, s in zip(leaves, sharding.inputs, strict=True)]
        results = ranks.run([jax.tree.unflatten(tree, each) for each in zip(*cut, strict=True)])
        parts = zip(*[jax.tree.leaves(result) for result in results], strict=True)
        whole = [_joined([*map(np.asarray, p)], s, shape) for p, s in zip(parts, sharding.outputs, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(results[0]), [array[()] for array in whole])

    module = LoadedText(name)
    module.__dict__[name] = entry
    return module


class _Ranks:
    """The modules of all ranks, which make their communicators once."""

    def __init__(self, source: str, name: str, arrays: dict[str, np.ndarray], sharding: Sharding):
        self.source, self.name, self.arrays, self.size = source, name, arrays, sharding.ranks
        self.loaded: tuple[World, list[LoadedText]] | None = None

    def run(self, given: list[PyTree]) -> list[PyTree]:
        """What the entry gives on each rank; given: what each passes, (positional, keyword)."""
        if self.loaded is None:
            world = World(self.size)
            self.loaded = world, world.run(lambda rank: self._load(world.mpi(rank)))
        world, modules = self.loaded

        def one(rank: int) -> PyTree:
            args, kwargs = given[rank] if given else ((), {})
            return getattr(modules[rank], self.name)(*args, **kwargs)

        try:
            return world.run(one)
        except BaseException:
            self.loaded = None  # ranks that were stopped are at different places
            raise

    def _load(self, mpi: ModuleType) -> LoadedText:
        package = ModuleType("mpi4py")
        package.__dict__["MPI"] = mpi
        return load_text(self.source, self.name, self.arrays, modules={"mpi4py": package})
