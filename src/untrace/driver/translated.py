"""A program written for another target than JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np

from untrace import _html, jax_compat
from untrace.ir.types import Data, PyTree
from untrace.prove.load import LoadedText, load_text
from untrace.prove.report import Proof
from untrace.prove.saving import save_module
from untrace.python import helpers
from untrace.targets.base import Company


@dataclass(eq=False)
class Translated:
    """A JAX function as the text of another target. Calling it runs the *text*, on the original's pytrees.

    `target`: "numpy", "torch" or "mpi4py". `source`: a whole importable module, `name` its entry. `proof`: `bits`, or `close` with how many units
    in the last place the two are apart on sampled inputs, and in which result. `arrays`: the constants over 1 KB, which
    `save` puts into an `.npz` beside the module. `notes`: sentences for the user.
    """

    target: str
    source: str
    name: str
    proof: Proof
    arrays: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    notes: tuple[str, ...] = ()
    _into: Callable[[Data], Data] = field(repr=False, default=lambda array: array)
    _load: Callable[[str, str, dict[str, np.ndarray]], LoadedText] = field(repr=False, default=load_text)
    _company: Company = field(repr=False, default_factory=Company)
    _module: LoadedText | None = field(repr=False, default=None)

    @property
    def rank(self) -> int:
        """Which of the processes that wrote the text together this one is; 0 where it was alone."""
        return self._company.rank

    @property
    def module(self) -> LoadedText:
        """The text as an executed module (compiled once)."""
        if self._module is None:
            self._module = self._load(self.source, self.name, self.arrays)
        return self._module

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs the text on the original's arguments; returns the original's pytree, of the target's arrays. (Typed keys, which
        the target has not, are taken for their words.)"""
        args, kwargs = jax.tree.map(self._given, (args, kwargs))
        return getattr(self.module, self.name)(*args, **kwargs)

    def _given(self, leaf: Data) -> Data:
        """A leaf of the original's arguments as the text takes it; what is no array of JAX's or NumPy's stays."""
        is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
        return self._into(jax_compat.as_numpy(leaf)) if is_array else leaf

    def _repr_html_(self) -> str:
        """For notebooks: what was proven, and the highlighted source."""
        return _html.written(
            f"{self.name} ({self.target})", [str(self.proof), *self.notes], *helpers.parted(self.source)
        )

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes the module to `path`, and its large constants to an `.npz` beside it; returns the path.

        Each file appears whole or not at all; of several processes that wrote the text together the first one does it, when
        all of them call this. Raises OutputExistsError where one exists, unless `overwrite`.
        """
        return self._company.by_first(lambda: save_module(path, self.source, self.arrays, overwrite))
