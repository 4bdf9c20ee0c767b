"""What stands beside the C of a program when it is saved: an example that calls it, and a CMakeLists."""

from __future__ import annotations

from collections.abc import Sequence

from untrace.targets.c.expressions import c_type
from untrace.targets.c.program import Argument, CProgram
from untrace.targets.c.structs import Leaf


def files(program: CProgram) -> dict[str, str]:
    """The files of a saved program, by name."""
    name = program.name
    found = {f"{name}.h": program.header, f"{name}.c": program.source}
    if program.data:
        found[f"{name}_data.c"] = program.data
    return {
        **found,
        "main.c": example(program),
        "CMakeLists.txt": cmake(name, list(found)[1:], "UNTRACE_BLAS" in program.source),
    }


def cmake(name: str, sources: Sequence[str], products: bool = False) -> str:
    """How a program is built; with large products a BLAS may compute them."""
    blas = f"""option(UNTRACE_BLAS "large products by the system's BLAS" OFF)
if(UNTRACE_BLAS)
  find_package(BLAS REQUIRED)
  target_compile_definitions({name} PRIVATE UNTRACE_BLAS)
  target_link_libraries({name} PUBLIC ${{BLAS_LIBRARIES}})
endif()
"""
    return f"""cmake_minimum_required(VERSION 3.10)
project({name} C)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
add_library({name} {" ".join(sources)})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({name} PUBLIC m)
{blas if products else ""}add_executable({name}_example main.c)
target_link_libraries({name}_example {name})
"""


def _variable(argument: Argument) -> str:
    if isinstance(argument.kind, Leaf):
        shape = "".join([f"[{max(n, 1)}]" for n in argument.kind.shape])
        return f"{c_type(argument.kind.dtype)} {argument.name}{shape}"
    return f"struct {argument.kind.tag} {argument.name}"


def _is_complex(argument: Argument) -> bool:
    """Whether the first number of an argument or a result is complex."""
    return bool(argument.leaves) and argument.leaves[0].leaf.dtype.kind == "c"


def _address(argument: Argument) -> str:
    return argument.name if isinstance(argument.kind, Leaf) else f"&{argument.name}"


def example(program: CProgram) -> str:
    """A program that calls the entry on zeros, and prints the first number that it gives."""
    lines = ["/* Calls the function on zeros. */", f'#include "{program.name}.h"', "", "#include <stdio.h>", ""]
    for argument in program.arguments:
        const = "const " if not argument.by_value else ""
        start = "0" if argument.by_value and not _is_complex(argument) else "{0}"
        lines.append(
            f"static {const}{_variable(argument)} = {start};" if const else f"static {_variable(argument)} = {start};"
        )
    result = program.result
    given = [_address(a) for a in program.arguments]
    if result is not None and not program.returns:
        lines.append(f"static {_variable(result)};")
        given.append(_address(result))
    if program.work_bytes:
        lines.append(f"static struct {program.name}_work work;")
        given.append("&work")
    lines += ["", "int main(void)", "{"]
    call = f"{program.name}({', '.join(given)})"
    part = ".re" if result is not None and _is_complex(result) else ""
    if result is None or program.returns:
        lines.append(f'    printf("%g\\n", (double){call}{part});')
    else:
        first = result.leaves[0]
        path = f"{result.name}.{first.path}" if first.path else result.name
        lines += [f"    {call};", f'    printf("%g\\n", (double){path}{"[0]" * len(first.leaf.shape)}{part});']
    return "\n".join([*lines, "    return 0;", "}", ""])
