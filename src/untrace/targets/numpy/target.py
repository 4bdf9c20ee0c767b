"""NumPy as a target."""

from __future__ import annotations

from untrace.ir.nodes import Program
from untrace.targets.base import Target
from untrace.targets.numpy import control, guard, lower, rules, runtime  # noqa: F401  (registers rules and helpers)
from untrace.targets.numpy.rules.table import NUMPY
from untrace.targets.numpy.writer import NumpyModule

# Of what these find NumPy knows nothing: it has the equations instead.
_WITHOUT = frozenset(
    {
        "checkpoints",
        "checkpoints-in-the-forward-pass",
        "associative-scans",
        "solvers",
        "pullbacks",
        "equal-pullbacks",
        "tree-maps",
        "residuals",
    }
)


def _lower(program: Program) -> None:
    lower.lowered(program, lambda name: NUMPY.find(name) is not None)


TARGET = Target("numpy", "NumPy", NumpyModule, _WITHOUT, _lower)
