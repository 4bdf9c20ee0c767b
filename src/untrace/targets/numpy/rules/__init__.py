"""The rules of the NumPy target: one small function for each primitive."""

from untrace.targets.numpy.rules import elementwise, indexing, products, random, reductions, shapes, sorting  # noqa: F401
