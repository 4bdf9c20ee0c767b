"""Calls a compiled function in a process of its own: memory is a file that both map, each line of input is a call.

python worker.py MEMORY LIBRARY FUNCTION TYPE_OF_RESULT TYPES_OF_PARAMETERS PLACES_OF_BLOCKS
"""

import ctypes
import mmap
import sys
from collections.abc import Callable


class _Complex64(ctypes.Structure):
    _fields_ = [("re", ctypes.c_float), ("im", ctypes.c_float)]


class _Complex128(ctypes.Structure):
    _fields_ = [("re", ctypes.c_double), ("im", ctypes.c_double)]


TYPES: dict[str, Callable[..., object]] = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float, "float64": ctypes.c_double, "complex64": _Complex64, "complex128": _Complex128,
}  # fmt: skip


def main() -> None:
    path, library, name, result, kinds, starts = sys.argv[1:]
    types = kinds.split(",") if kinds else []
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = getattr(ctypes.CDLL(library), name)
    function.restype = TYPES[result] if result else None
    function.argtypes = [ctypes.c_void_p if t == "-" else TYPES[t] for t in types]
    blocks = [int(start) for start in starts.split(",")] if starts else []
    for line in sys.stdin:
        numbers = iter(line.split())
        places = iter(blocks)
        given = [base + next(places) if t == "-" else passed(number(next(numbers)), t) for t in types]
        print(repr(returned(function(*given))), flush=True)


def passed(value: complex, kind: str) -> object:
    """A number of a type as ctypes takes it: a complex one is a struct."""
    return TYPES[kind](value.real, value.imag) if type(value) is complex else value


def returned(value: object) -> object:
    """What ctypes gives as a number."""
    return complex(value.re, value.im) if isinstance(value, (_Complex64, _Complex128)) else value


def number(text: str) -> complex:
    """The number that a `repr` is of."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return complex(text)


if __name__ == "__main__":
    main()
