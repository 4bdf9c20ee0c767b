"""What a language is to the printer that all targets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jax.extend.core import JaxprEqn
from jax.tree_util import PyTreeDef

from untrace.ir.nodes import Program
from untrace.ir.types import Data
from untrace.module.emit import Written
from untrace.module.writer import ModuleWriter
from untrace.prove.load import LoadedText, load_text
from untrace.python.pytrees import TreeCalls

T = TypeVar("T")
OfLeaves = Callable[..., Sequence[Data]]
Load = Callable[[str, str, dict[str, np.ndarray]], LoadedText]  # a text, its entry's name, its large constants


class Company:
    """The processes that write one text together, and what is run for its proof. This one: a process that is alone.

    `rank`: which of `size` this process is. In a company of several each method is called by all of them.
    """

    rank, size = 0, 1

    def agreed(self, make: Callable[[], T]) -> T:
        """What `make` gives here. Raises on every rank where it raises on one."""
        return make()

    def by_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on the first rank, on all of them."""
        return make()

    def leaves(self, own: Sequence[Data]) -> list[Data]:
        """The leaves of the arguments of all ranks, one rank's after the other's."""
        return list(own)

    def names(self, own: Sequence[str]) -> list[str]:
        """What the leaves of all results are called."""
        return list(own)

    def original(self, function: OfLeaves) -> OfLeaves:
        """What all ranks compute of the leaves of all, where each has its `function` of leaves."""
        return function

    def text(self, load: Load, written: Written, of_leaves: Callable[[LoadedText], OfLeaves]) -> OfLeaves:
        """What a text computes of the leaves of all ranks. of_leaves: of a module the entry, from leaves to leaves."""
        return of_leaves(load(written.source, written.name, written.arrays))


# JAX's own knows all classes of trees that a program may have. A text for another target that calls it is refused.
TREE_CALLS = TreeCalls(
    "jax", "jax.tree.leaves", "jax.tree.structure", "jax.tree.unflatten", "jax.tree_util.register_dataclass"
)


def _as_it_is(program: Program) -> None:
    """Nothing is to be lowered: the target has everything that a lifted program holds."""


def _as_array(array: Data) -> Data:
    return array


def _nothing(name: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Target:
    """A language that programs are written in: its words for what the shared printer decides.

    `name`: as the user says it ("numpy"). `title`: as people write it ("NumPy"). `writer`: makes what collects one module,
    from (jaxpr equations that are bound, standalone, idiomatic); its class holds the table of rules. `without`:
    passes of the lift whose findings the target has no words for. `lower`: leaves in a lifted program only what the target
    knows; raises UnsupportedPrimitiveError for all that it cannot express at once. `into`, `out_of`: an array as what its
    text takes, and what that gives as an array (None for what is none). `needs`: the module that has to be installed for it.
    `keeps_calls`: whether it has derivatives and maps of its own, so that those of the author's stay calls.
    `has_ranks`: whether it runs one process for each device of a mesh; others run everything on one.

    `company`: the processes that write a text together. `begin`: makes of a program, before its passes, what is written of
    it, and gives the target for that one (it gets the tree of the arguments and the company too); None where what is written
    is the program itself. `load`: a text as a module whose entry takes what the original does. `below`: the end of the module,
    by the name of its entry. `words`: what its docstring says behind the name of the target. `any_size`: whether one text may hold for several sizes.
    """

    name: str
    title: str
    writer: Callable[[frozenset[JaxprEqn], bool, bool], ModuleWriter]
    without: frozenset[str] = frozenset()
    lower: Callable[[Program], None] = _as_it_is
    into: Callable[[Data], Data] = _as_array
    out_of: Callable[[Data], np.ndarray | None] = np.asarray
    needs: str = ""
    keeps_calls: bool = False
    has_ranks: bool = False
    company: Callable[[], Company] = Company
    begin: Callable[[Program, PyTreeDef, Company], Target] | None = None
    load: Load = load_text
    below: Callable[[str], str] = _nothing
    words: str = ""
    any_size: bool = True
