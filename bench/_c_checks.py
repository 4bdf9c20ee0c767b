"""Checks of a text in C beside its numbers: warnings of a compiler, what sanitizers find, which symbols it exports."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from untrace.driver.in_c import InC
from untrace.prove.sample import sample_inputs
from untrace.targets.c import project
from untrace.targets.c.compiled import STRICT
from untrace.targets.c.expressions import c_type
from untrace.targets.c.program import Argument, CProgram
from untrace.targets.c.structs import Leaf

SANITIZED = ("-std=c11", "-g", "-O1", "-ffp-contract=off", "-fsanitize=address,undefined,float-cast-overflow")
SAMPLES = 8  # inputs for the sanitizers: the case's own, zeros, ones, edge values, random ones
SECONDS = 120.0  # for all of them
COMPILING = 600.0


def checked(text: InC, args: Sequence[Any], kwargs: dict[str, Any], cc: str, sanitize: bool) -> dict[str, Any]:
    """What a compiler says of the saved text: `warnings` by kind with one line each, `exports` that nobody documents.

    With sanitize also `findings` by kind, `apart` (the largest distance, in units in the last place, from what the text
    gave on the same arguments as it was proven), and `endless` where the samples had no time to run.
    """
    with tempfile.TemporaryDirectory(prefix="untrace_c_") as work:
        folder = Path(work)
        files = project.files(text.program)
        for name, source in files.items():
            (folder / name).write_text(source)
        sources = [name for name in files if name.endswith(".c")]
        flags = [flag for flag in STRICT if flag != "-Werror"]  # all of them are counted
        done = _run([cc, *flags, "-O1", "-c", *sources], folder, COMPILING)
        row: dict[str, Any] = {"warnings": _kinds(r"(?:warning|error): (.*)", done.stderr), "exports": []}
        if done.returncode:
            return row
        objects = [name[:-1] + "o" for name in sources if name != "main.c"]
        symbols = _run(["nm", "-g", "--defined-only", *objects], folder, COMPILING).stdout
        names = [line.split()[-1] for line in symbols.splitlines() if len(line.split()) == 3]
        row["exports"] = [n for n in names if n != text.name and n not in _tables(text.program)]
        if sanitize:
            row |= _sanitized(text, args, kwargs, [cc, *SANITIZED], [n for n in sources if n != "main.c"], folder)
        return row


def _run(command: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)


def _tables(program: CProgram) -> frozenset[str]:
    """The large constants, which stand in a file of their own and are declared in the text."""
    return (
        frozenset(re.findall(r"^extern const .*?(\w+)\[", program.source, re.MULTILINE))
        if program.data
        else frozenset()
    )


def _kinds(pattern: str, said: str) -> dict[str, list[Any]]:
    """How often each kind of message is there, with the first one; its kind is the flag, or the text without what is its own."""
    found: Counter[str] = Counter()
    first: dict[str, str] = {}
    for message in re.findall(pattern, said):
        flag = re.search(r"\[(-W[\w=+-]+)\]$", message)
        kind = flag[1] if flag else re.sub(r"'[^']*'|0x[0-9a-f]+|-?\b(?:nan|inf|\d[\d.e+-]*)", "_", message)
        found[kind] += 1
        first.setdefault(kind, message)
    return {kind: [count, first[kind]] for kind, count in found.items()}


def _sanitized(
    text: InC,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    compile_: Sequence[str],
    sources: Sequence[str],
    folder: Path,
) -> dict[str, Any]:
    """Runs the text on the arguments and on samples; each array is a block of memory of its own, with nothing around it."""
    compiled = text.compile()
    compiled(*args, **kwargs)
    (folder / "driver.c").write_text(driver(text.program))
    done = _run([*compile_, "driver.c", *sources, "-o", "driver", "-lm"], folder, COMPILING)
    assert done.returncode == 0, done.stderr[:500]
    with open(folder / "given", "wb") as file:
        for inputs in sample_inputs(compiled.inputs, samples=SAMPLES):
            file.write(b"\n")  # there is one more
            file.writelines(_blocks(text.program, [np.asarray(x) for x in inputs]))
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    with (
        open(folder / "given", "rb") as given,
        open(folder / "gave", "wb") as gave,
        open(folder / "said", "wb") as said,
    ):
        process = subprocess.Popen([folder / "driver"], stdin=given, stdout=gave, stderr=said, env=environment)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    words = (folder / "said").read_text(errors="replace")
    findings = _kinds(r"(?:runtime error|ERROR: AddressSanitizer): (.*)", words)
    if status and not findings:
        findings[f"exit status {status}"] = [1, words[:300]]
    found = list(_given(text.program, (folder / "gave").read_bytes()))
    row: dict[str, Any] = {"findings": findings, "endless": status is None}
    if len(found) == len(compiled.outputs):
        from _target_check import ulps_apart

        row["apart"] = max([ulps_apart(a, b) for a, b in zip(compiled.outputs, found, strict=True)], default=0.0)
    return row


def _size(argument: Argument) -> int:
    return max([place.offset + place.size for place in argument.leaves], default=0)


def _blocks(program: CProgram, inputs: Sequence[np.ndarray]) -> Iterator[bytes]:
    """The bytes of each parameter, whose leaves these are."""
    leaves = iter(inputs)
    for argument in program.arguments:
        block = bytearray(_size(argument))
        for place in argument.leaves:
            block[place.offset : place.offset + place.size] = next(leaves).astype(place.leaf.dtype).tobytes()
        yield bytes(block)


def _given(program: CProgram, data: bytes) -> Iterator[np.ndarray]:
    """The leaves of the first result."""
    if program.result is not None and len(data) >= _size(program.result):
        for place in program.result.leaves:
            part = data[place.offset : place.offset + place.size]
            yield np.frombuffer(part, place.leaf.dtype).reshape(place.leaf.shape)


def _type(argument: Argument) -> str:
    """What an argument is, as `sizeof` takes it."""
    if not isinstance(argument.kind, Leaf):
        return f"struct {argument.kind.tag}"
    return c_type(argument.kind.dtype) + "".join([f"[{max(n, 1)}]" for n in argument.kind.shape])


_DRIVER = """#include "NAME.h"

#include <stdio.h>
#include <stdlib.h>

static void *block(size_t size)
{
    void *found = malloc(size);
    if (!found) {
        exit(3);
    }
    return found;
}

int main(void)
{
    while (getchar() != EOF) {
STATEMENTS
        fflush(stdout);
    }
    return 0;
}
"""


def driver(program: CProgram) -> str:
    """A `main` that reads arguments from its input until there are no more, and writes what the entry gives for each."""
    lines, given, blocks = [], [], []
    for k, argument in enumerate(program.arguments):
        size = _size(argument)
        if argument.by_value:
            lines.append(f"{_type(argument)} a{k};")
        else:
            lines.append(f"void *a{k} = block(sizeof({_type(argument)}));")
            blocks.append(f"a{k}")
        place = f"&a{k}" if argument.by_value else f"a{k}"
        lines += [f"if (fread({place}, 1, {size}, stdin) != {size}) {{ exit(4); }}"] if size else []
        given.append(f"a{k}")
    result = program.result
    if result is not None and not program.returns:
        lines.append(f"void *result = block(sizeof({_type(result)}));")
        given.append("result")
        blocks.append("result")
    if program.work_bytes:
        lines.append(f"void *work = block(sizeof(struct {program.name}_work));")
        given.append("work")
        blocks.append("work")
    call = f"{program.name}({', '.join(given)});"
    if result is None or not program.returns:
        lines.append(call)
        lines += [f"fwrite(result, 1, {_size(result)}, stdout);"] if result is not None else []
    else:
        lines += [f"{_type(result)} result = {call}", "fwrite(&result, sizeof result, 1, stdout);"]
    lines += [f"free({name});" for name in blocks]
    return _DRIVER.replace("NAME", program.name).replace("STATEMENTS", "\n".join(" " * 8 + line for line in lines))
