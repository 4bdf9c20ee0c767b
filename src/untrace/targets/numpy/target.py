"""NumPy as a target."""

from __future__ import annotations

from untrace.ir.nodes import Program
from untrace.targets.base import Target
from untrace.targets.eager import guard as shared_guard  # noqa: F401  (registers helpers)
from untrace.targets.eager.lower import WITHOUT, lowered
from untrace.targets.numpy import control, guard, rules, runtime  # noqa: F401  (registers rules and helpers)
from untrace.targets.numpy.library import LIBRARY
from untrace.targets.numpy.writer import NumpyModule


def _lower(program: Program) -> None:
    lowered(program, LIBRARY)


TARGET = Target("numpy", "NumPy", NumpyModule, WITHOUT, _lower)
