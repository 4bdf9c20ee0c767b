"""Calls a compiled function in a process of its own: memory is a file that both map, each line of input is a call.

python worker.py MEMORY LIBRARY FUNCTION TYPE_OF_RESULT TYPES_OF_PARAMETERS PLACES_OF_BLOCKS
"""

import ctypes
import mmap
import sys

_TYPES = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float, "float64": ctypes.c_double,
}  # fmt: skip


def main() -> None:
    path, library, name, result, kinds, starts = sys.argv[1:]
    types = kinds.split(",") if kinds else []
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = getattr(ctypes.CDLL(library), name)
    function.restype = _TYPES[result] if result else None
    function.argtypes = [ctypes.c_void_p if t == "-" else _TYPES[t] for t in types]
    blocks = [int(start) for start in starts.split(",")] if starts else []
    for line in sys.stdin:
        numbers = iter(line.split())
        places = iter(blocks)
        given = [base + next(places) if t == "-" else _number(next(numbers)) for t in types]
        print(repr(function(*given)), flush=True)


def _number(text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


if __name__ == "__main__":
    main()
