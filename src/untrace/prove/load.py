"""Runs written text as a fresh module, registered with `linecache` so that debuggers and tracebacks show its lines.

The text is also a real file while the module lives: debuggers set breakpoints by file name and line in real files only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import itertools
import linecache
import os
import tempfile
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from untrace import jax_compat

_COUNT = itertools.count(1)


class LoadedText(types.ModuleType):
    """A module made from text; its file and its large constants are there as long as it is."""


def load_text(
    source: str,
    name: str,
    arrays: dict[str, np.ndarray],
    callables: Mapping[str, Callable[..., Any]] = {},  # noqa: B006
    final: bool = True,
    modules: Mapping[str, types.ModuleType] | None = None,
    run: ast.Module | None = None,
    names: Mapping[str, Callable[..., Any]] = {},  # noqa: B006
) -> LoadedText:
    """The module that `source` defines, executed once. `arrays` stand where the saved module has its `.npz`.

    `callables`: what the module's functions that stand for Python functions without text shall call. final: whether the
    text is a file at once; else `restate` makes it one. modules: what the text imports by these names, whatever is installed.
    run: what is executed in the text's place, with the same lines; names: what the module has beside what it defines.
    """
    module = LoadedText(name)
    module.__dict__.update(names)
    if modules:

        def found(wanted: str, *where: Any) -> types.ModuleType:
            return modules[wanted] if wanted in modules else builtins.__import__(wanted, *where)

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": found}
    try:
        path = _place(module, name, arrays)
        if final:
            _show(module, path, source)
    except OSError:
        if arrays:
            raise
        path = f"<untrace {name} {next(_COUNT)}>"  # no place for files: all but breakpoints by file name still works
    module.__file__ = path
    # No modification time: linecache then keeps the entry without asking the disk.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    weakref.finalize(module, linecache.cache.pop, path, None)
    code = compile(source if run is None else run, path, "exec", dont_inherit=True)
    with jax_compat.arrays_without_compiling():
        exec(code, module.__dict__)
    for stand_in, function in callables.items():
        getattr(module, stand_in).function = function
    return module


def restate(module: LoadedText, source: str) -> None:
    """Shows `source`, which differs in comments and docstrings only, as the text of a loaded module."""
    path = str(module.__file__)
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    if not path.startswith("<"):
        with contextlib.suppress(OSError):  # as where there is no place for files
            _show(module, path, source)


def _show(module: LoadedText, path: str, source: str) -> None:
    """Makes the text a file, which goes with the module."""
    with open(path, "wb") as file:
        file.write(source.encode())
    weakref.finalize(module, _remove, path)


@functools.cache
def _folder(process: int) -> tempfile.TemporaryDirectory[str]:
    """The folder of this process for the files of its modules; removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="untrace_")


def _place(module: LoadedText, name: str, arrays: dict[str, np.ndarray]) -> str:
    """The path of a new file for the text; the `.npz` is there beside it, and goes with the module."""
    stem = os.path.join(_folder(os.getpid()).name, f"{name}_{next(_COUNT)}")
    if arrays:
        save_arrays(stem + ".npz", arrays)
        weakref.finalize(module, _remove, stem + ".npz")
    return stem + ".py"


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # gone with its folder, or taken away by someone
        os.unlink(path)


def save_arrays(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes an `.npz`; dtypes that NumPy does not know go as raw bytes of the same size and are viewed back."""
    with open(path, "wb") as file:
        plain: Any = {k: v if v.dtype.isbuiltin == 1 else v.view(f"V{v.dtype.itemsize}") for k, v in arrays.items()}
        np.savez(file, **plain)
