"""Saves a written module and its arrays: each file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import numpy as np

from untrace._errors import OptionError, OutputExistsError
from untrace.prove.load import save_arrays


def save_module(path: str | os.PathLike[str], source: str, arrays: dict[str, np.ndarray], overwrite: bool) -> str:
    """Writes `source` to `path`, a `.py` file, and `arrays` to an `.npz` beside it; returns the path.

    Raises OutputExistsError where one exists, unless `overwrite`, and OptionError for a path that is none for a module.
    """
    path = os.fspath(path)
    if not path.endswith(".py"):
        raise OptionError(f"a module is saved as a .py file, not as {path!r}")
    data = path[:-3] + ".npz"
    targets = [path, data] if arrays else [path]
    if not overwrite:
        for target in targets:
            if os.path.exists(target):
                raise OutputExistsError(
                    f"{target} exists; pass overwrite=True (on the command line --force) to replace it"
                )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise OptionError(f"there is no folder {folder} to save into")
    if arrays:  # first the data: a module without its data is worse than data without a module
        _write_atomically(data, lambda temporary: save_arrays(temporary, arrays))
    _write_atomically(path, lambda temporary: _write_text(temporary, source))
    return path


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _write_atomically(path: str, write: Callable[[str], None]) -> None:
    """`write` fills a temporary file in the same folder, which then takes the place of `path` in one step."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".untrace_", suffix=".tmp")
    os.close(handle)
    try:
        write(temporary)
        mode = os.stat(path).st_mode if os.path.exists(path) else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
