"""C that is compiled and called: by the system's compiler, into a folder of this process, through ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from untrace._errors import UntraceError
from untrace.prove.execute import Endless
from untrace.targets.c import worker
from untrace.targets.c.narrow import in_memory
from untrace.targets.c.program import Argument, CProgram

STRICT = ("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wmissing-prototypes", "-Werror")
EXACT = ("-std=c11", "-O3", "-ffp-contract=off")
NATIVE = ("-std=gnu11", "-O3", "-march=native")
_TIMEOUT = 300  # seconds for the compiler


class CompilerError(UntraceError):
    """There is no C compiler, or it does not take the text."""


@functools.cache
def _folder(process: int) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="untrace_c_")


def compiler() -> str:
    """The system's C compiler. Raises CompilerError where there is none."""
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not found:
        raise CompilerError("there is no C compiler: install gcc or clang, or name one in CC")
    return found


def build(program: CProgram, flags: Sequence[str] = EXACT) -> Path:
    """The path of the shared library that the text compiles to. Raises CompilerError with what the compiler says."""
    key = hashlib.sha256("\0".join([program.source, program.header, program.data, *flags]).encode()).hexdigest()[:16]
    folder = Path(_folder(os.getpid()).name) / key
    library = folder / f"{program.name}.so"
    if library.exists():
        return library
    folder.mkdir(exist_ok=True)
    (folder / f"{program.name}.c").write_text(program.source)
    (folder / f"{program.name}.h").write_text(program.header)
    sources = [f"{program.name}.c"]
    if program.data:
        sources.append(f"{program.name}_data.c")
        (folder / sources[1]).write_text(program.data)
    command = [compiler(), *flags, "-shared", "-fPIC", *sources, "-o", f"{library.name}.part", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT)
    if done.returncode:
        raise CompilerError(f"the C compiler does not take the text of {program.name}:\n{done.stderr[:2000]}")
    os.replace(folder / f"{library.name}.part", library)
    return library


def c_value(dtype: np.dtype) -> Callable[..., object]:
    """ctypes' type of a number."""
    return worker.TYPES[dtype.name]


_LINE = 64  # bytes: where each block of memory begins
_AGAIN = 1.0  # seconds that a call may take of a program that did not come to an end on other numbers


class Prepared:
    """The entry of a compiled program, with its memory: arguments and results stand in buffers that stay where they are.

    `inputs`, `outputs`: the leaves there, as arrays that one may fill and read; `call()` runs the function on them.
    """

    def __init__(self, program: CProgram, library: Path):
        self.inputs: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        self._program = program
        blocks = [a for a in program.arguments if not a.by_value]
        if program.result is not None and not program.returns:
            blocks.append(program.result)
        sizes = [max([p.offset + p.size for p in a.leaves], default=1) for a in blocks]
        sizes += [program.work_bytes] if program.work_bytes else []
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-(size + _LINE) // _LINE) * _LINE
        self._memory = self._allocated(max(end, 1))
        self._starts = starts
        self._types: list[str] = []
        self._values: list[tuple[int, np.ndarray]] = []
        places = iter(starts)
        for argument in program.arguments:
            if argument.by_value:
                leaf = argument.leaves[0].leaf
                self.inputs.append(np.zeros((), leaf.dtype))
                self._values.append((len(self._types), self.inputs[-1]))
                self._types.append(in_memory(leaf.dtype).name)
            else:
                self._types.append("")
                self._leaves(argument, next(places), self.inputs)
        self._returned: np.ndarray | None = None
        if program.result is not None and program.returns:
            self._returned = np.zeros((), program.result.leaves[0].leaf.dtype)
            self.outputs.append(self._returned)
        elif program.result is not None:
            self._types.append("")
            self._leaves(program.result, next(places), self.outputs)
        self._types += [""] * len(list(places))
        self._load(library)

    def _allocated(self, size: int) -> np.ndarray:
        raw = np.zeros(size + _LINE, np.uint8)
        return raw[-raw.ctypes.data % _LINE :][:size]

    def _leaves(self, argument: Argument, start: int, found: list[np.ndarray]) -> None:
        """The leaves of a parameter, as arrays over its memory."""
        for place in argument.leaves:
            part = self._memory[start + place.offset : start + place.offset + place.size]
            found.append(part.view(place.leaf.dtype).reshape(place.leaf.shape))

    def _load(self, library: Path) -> None:
        function = getattr(ctypes.CDLL(str(library)), self._program.name)
        function.restype = None if self._returned is None else c_value(in_memory(self._returned.dtype))
        function.argtypes = [c_value(np.dtype(t)) if t else ctypes.c_void_p for t in self._types]
        starts = iter(self._starts)
        base = self._memory.ctypes.data
        self._given: list[object] = [0 if t else ctypes.c_void_p(base + next(starts)) for t in self._types]
        self._function = function
        if not self._values and self._returned is None:
            self.call = functools.partial(function, *self._given)

    def call(self) -> None:
        """Runs the function on what is in `inputs`; what it gives is in `outputs`."""
        for place, array in self._values:
            self._given[place] = self._passed(array.view(in_memory(array.dtype)).item(), self._types[place])
        value = self._run()
        if self._returned is not None:
            self._returned.view(in_memory(self._returned.dtype))[()] = value

    def _passed(self, value: complex, kind: str) -> object:
        return worker.passed(value, kind)

    def _run(self) -> object:
        return worker.returned(self._function(*self._given))

    def __call__(self, *leaves: object) -> list[np.ndarray]:
        """The results for some leaves, as arrays of their own."""
        for place, leaf in zip(self.inputs, leaves, strict=True):
            place[...] = np.asarray(leaf)
        self.call()
        return [out.copy() for out in self.outputs]


class Apart(Prepared):
    """The same in a process of its own, so that a loop without end, or a fault of ours, does not take this one with it.

    Raises Endless where a call takes longer than `seconds`, and where that was so once, sooner.
    """

    def __init__(self, program: CProgram, library: Path, seconds: float):
        self._seconds = seconds
        self._file = tempfile.NamedTemporaryFile(prefix="untrace_c_")
        self._worker: subprocess.Popen[bytes] | None = None
        super().__init__(program, library)

    def _allocated(self, size: int) -> np.ndarray:
        self._file.truncate(size)
        return np.memmap(self._file.name, np.uint8, "r+", shape=(size,))

    def _load(self, library: Path) -> None:
        self._library = library
        self._given = [0] * len(self._types)

    def _passed(self, value: complex, kind: str) -> object:
        return value

    def _started(self) -> subprocess.Popen[bytes]:
        returned = "" if self._returned is None else in_memory(self._returned.dtype).name
        words = [
            self._file.name, str(self._library), self._program.name, returned, ",".join(t or "-" for t in self._types),
            ",".join(map(str, self._starts)),
        ]  # fmt: skip
        script = worker.__file__
        return subprocess.Popen(
            [sys.executable, "-I", "-S", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def _run(self) -> object:
        other = self._worker = self._worker or self._started()
        assert other.stdin is not None and other.stdout is not None
        numbers = [repr(self._given[k]) for k, _ in self._values]
        other.stdin.write((" ".join(numbers) + "\n").encode())
        ready, _, _ = select.select([other.stdout], [], [], self._seconds)
        if not ready:
            self.close()
            self._seconds = min(self._seconds, _AGAIN)
            raise Endless
        answer = other.stdout.readline().decode().strip()
        if not answer:
            self.close()
            raise CompilerError(f"the compiled text of {self._program.name} ends the process that calls it")
        return None if answer == "None" else worker.number(answer)

    def close(self) -> None:
        """Ends the other process."""
        other, self._worker = self._worker, None
        if other is not None:
            other.kill()
            other.communicate()
