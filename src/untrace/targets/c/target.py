"""C as a target: what it does not want of the lift, and how a lifted program is written."""

from __future__ import annotations

from collections.abc import Sequence

from untrace.ir.nodes import Program
from untrace.ir.types import PyTree
from untrace.targets.c.program import CProgram, c_program

# Of what these find C knows nothing: it has the equations instead.
WITHOUT = frozenset(
    {
        "checkpoints",
        "checkpoints-in-the-forward-pass",
        "associative-scans",
        "solvers",
        "pullbacks",
        "equal-pullbacks",
        "library-calls",
        "sums-of-cotangents",
        "flat-trees",
        "tree-maps",
        "residuals",
    }
)


def write(program: Program, arguments: Sequence[tuple[str, PyTree]], result: PyTree, head: str) -> CProgram:
    """The lifted program in C; see `program.c_program`."""
    return c_program(program, arguments, result, head)
