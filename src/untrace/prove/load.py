"""Runs written text as a fresh module, registered with `linecache` so that debuggers and tracebacks show its lines."""

from __future__ import annotations

import itertools
import linecache
import os
import tempfile
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_COUNT = itertools.count(1)


class LoadedText(types.ModuleType):
    """A module made from text; its large constants live in a temporary folder as long as it does."""


def load_text(
    source: str, name: str, arrays: dict[str, np.ndarray], callables: Mapping[str, Callable[..., Any]] = {}  # noqa: B006
) -> LoadedText:
    """The module that `source` defines, executed once. `arrays` stand where the saved module has its `.npz`.

    `callables`: what the module's functions that stand for Python functions without text shall call.
    """
    module = LoadedText(name)
    if arrays:
        folder = tempfile.TemporaryDirectory(prefix="untrace_")
        weakref.finalize(module, folder.cleanup)
        path = os.path.join(folder.name, f"{name}.py")
        save_arrays(os.path.join(folder.name, f"{name}.npz"), arrays)
    else:
        path = f"<untrace {name} {next(_COUNT)}>"
    module.__file__ = path
    # No modification time: linecache then keeps the entry without asking the disk.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    weakref.finalize(module, linecache.cache.pop, path, None)
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    for stand_in, function in callables.items():
        getattr(module, stand_in).function = function
    return module


def save_arrays(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes an `.npz`; dtypes that NumPy does not know go as raw bytes of the same size and are viewed back."""
    with open(path, "wb") as file:
        np.savez(file, **{k: v if v.dtype.isbuiltin == 1 else v.view(f"V{v.dtype.itemsize}") for k, v in arrays.items()})
