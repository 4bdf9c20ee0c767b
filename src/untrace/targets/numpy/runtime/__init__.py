"""Helpers that a written NumPy module carries: what JAX does where NumPy's own function does something else."""

from untrace.targets.numpy.runtime import arithmetic, indexing, linalg, random, windows  # noqa: F401
