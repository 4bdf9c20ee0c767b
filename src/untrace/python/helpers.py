"""Helper routines that a written module may carry: ordinary source, tested here, emitted only where used.

Each is copied into the module as it stands (`text`), so it may use only what the target has, the standard library, and
other helpers named in its `@helper(...)` line.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import textwrap
import zipfile
from collections.abc import Callable
from types import FunctionType
from typing import TypeAlias

import numpy as np

from untrace.ir.types import Data

# A helper routine: it computes what the written program has it for.
_Helper: TypeAlias = Callable[..., Data]
_NEEDS: dict[str, tuple[str, ...]] = {}
_MODULES: dict[str, tuple[str, ...]] = {}
_FUNCTIONS: dict[str, FunctionType] = {}
_LAST: dict[str, str] = {}
_STATE: dict[str, tuple[str, ...]] = {}


def helper(
    *modules: str, needs: tuple[str, ...] = (), last: str = "", state: tuple[str, ...] = (), target: str = ""
) -> Callable[[_Helper], _Helper]:
    """Registers a helper: the modules that its text uses, and the helpers that it calls.

    last: what it is called where it stands at the end of a module, out of the reader's way; "" where it comes first. state:
    the lines of the module that hold what it remembers. target: whose helper it is, where several have one of that name; it
    is asked for as `key` says then. (All on one line, which is left out of its text.)
    """

    def register(function: _Helper) -> _Helper:
        own = inspect.unwrap(function)
        assert isinstance(own, FunctionType)
        name = key(own.__name__, target)
        if name in _FUNCTIONS:
            raise ValueError(f"a second helper {name!r}: {function.__module__}")
        _FUNCTIONS[name] = own
        _MODULES[name] = modules
        _NEEDS[name] = needs
        _STATE[name] = state
        if last:
            _LAST[name] = last
        return function

    return register


def key(name: str, target: str) -> str:
    """What the helper of a target is registered as."""
    return f"{target}.{name}" if target else name


def is_known(name: str) -> bool:
    return name in _FUNCTIONS


def needs(name: str) -> tuple[str, ...]:
    return _NEEDS[name]


def function(name: str) -> FunctionType:
    return _FUNCTIONS[name]


def name_at_end(name: str) -> str:
    """What a helper is called at the end of a module; "" for one that stands before the program."""
    return _LAST.get(name, "")


def names_at_end() -> list[str]:
    """What all helpers that may stand at the end of a module are called there."""
    return sorted(set(_LAST.values()))


def parted(source: str) -> tuple[str, str]:
    """The text of a module, and the helpers at its end, "" where it has none."""
    places = [source.find(f"\n\n\ndef {name}(") for name in names_at_end()]
    end = min([p for p in places if p >= 0], default=len(source))
    return source[:end].rstrip("\n") + "\n", source[end:].strip("\n")


def all_names() -> set[str]:
    """What helpers are called in texts, wherever they stand."""
    return {*_LAST.values(), *[function.__name__ for function in _FUNCTIONS.values()]}


def modules(name: str) -> tuple[str, ...]:
    return _MODULES[name]


@functools.cache
def text(name: str) -> str:
    """The helper's source, without its `@helper` line."""
    lines = textwrap.dedent(inspect.getsource(_FUNCTIONS[name])).splitlines()
    state = [*_STATE[name], "", ""] if _STATE[name] else []
    return "\n".join([*state, *[line for line in lines if not line.startswith("@helper")]])


@helper("functools", "io", "os", "zipfile", "np")
@functools.cache
def _constants(name, dtype):
    """An array of the .npz file beside this module, mapped into memory: what is used of it is read when it is used."""
    path = os.path.splitext(__file__)[0] + ".npz"
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(name + ".npy")
    if entry.compress_type != zipfile.ZIP_STORED:  # someone has saved it again, compressed
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name].view(dtype)
    whole = np.memmap(path, np.uint8, "r")
    start = entry.header_offset + 30  # behind it are a name and a field, and these are their lengths
    start += sum(int.from_bytes(whole[start - n : start - n + 2].tobytes(), "little") for n in (4, 2))
    header = io.BytesIO(whole[start : start + 65536].tobytes())
    version = np.lib.format.read_magic(header)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_fortran_order, stored = read_header(header)
    data = whole[start + header.tell() : start + entry.file_size].view(np.ndarray).view(stored)
    return data.reshape(shape, order="F" if in_fortran_order else "C").view(dtype)
