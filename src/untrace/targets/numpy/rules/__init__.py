"""The rules of the NumPy target: one small function for each primitive."""

from untrace.targets.numpy.rules import (  # noqa: F401
    elementwise,
    indexing,
    linalg,
    products,
    random,
    reductions,
    shapes,
    sorting,
)
