"""What a language is to the printer that all targets share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jax.extend.core import JaxprEqn
from jax.tree_util import PyTreeDef

from untrace.ir.nodes import Program
from untrace.ir.types import Data
from untrace.module.writer import ModuleWriter
from untrace.prove.load import LoadedText, load_text


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

    `begin`: makes of a program, before its passes, what is written of it, and gives the target for that one (it gets the tree
    of the arguments too); None where what is written is the program itself. `load`: a text as a module whose entry takes what
    the original does. `below`: the end of the module, by the name of its entry. `words`: what its docstring says behind the
    name of the target. `any_size`: whether one text may hold for several sizes.
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
    begin: Callable[[Program, PyTreeDef], Target] | None = None
    load: Callable[[str, str, dict[str, np.ndarray]], LoadedText] = load_text
    below: Callable[[str], str] = _nothing
    words: str = ""
    any_size: bool = True
