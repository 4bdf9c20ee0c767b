"""Saves a written module and its arrays: each file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping

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
        write_atomically(data, lambda temporary: save_arrays(temporary, arrays))
    write_atomically(path, lambda temporary: _write_text(temporary, source))
    return path


def save_files(path: str | os.PathLike[str], texts: Mapping[str, str], overwrite: bool) -> str:
    """Writes texts into the folder `path`, by the names of their files, and makes it where its parent is there; returns the path.

    Raises OutputExistsError where one of the files exists, unless `overwrite`: then none is written.
    """
    path = os.fspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise OptionError(f"{path} is a file; a program in C is saved into a folder")
    if not overwrite:
        for name in texts:
            if os.path.exists(os.path.join(path, name)):
                raise OutputExistsError(
                    f"{os.path.join(path, name)} exists; pass overwrite=True (on the command line --force) to replace it"
                )
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise OptionError(f"there is no folder {parent} to save into")
    os.makedirs(path, exist_ok=True)
    for name, text in texts.items():
        write_atomically(os.path.join(path, name), lambda temporary, text=text: _write_text(temporary, text))
    return path


def save_page(path: str | os.PathLike[str], text: str, overwrite: bool) -> str:
    """Writes one text to `path`; returns the path. Raises OutputExistsError where it exists, unless `overwrite`, OptionError
    where the folder does not."""
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise OptionError(f"there is no folder {folder} to save into")
    if os.path.isdir(path):
        raise OptionError(f"{path} is a folder; name the file to write in it")
    if not overwrite and os.path.exists(path):
        raise OutputExistsError(f"{path} exists; pass overwrite=True (on the command line --force) to replace it")
    write_atomically(path, lambda temporary: _write_text(temporary, text))
    return path


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def write_atomically(path: str, write: Callable[[str], None]) -> None:
    """`write` fills a temporary file in the same folder, which then takes the place of `path` in one step."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".untrace_", suffix=".tmp")
    os.close(handle)
    try:
        write(temporary)
        mode = os.stat(path).st_mode if os.path.exists(path) else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # an interrupt may come after it has taken its place
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
