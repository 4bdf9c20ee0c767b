"""The rules of the PyTorch target: one small function for each primitive."""

from untrace.targets.torch.rules import (  # noqa: F401
    control,
    differentiated,
    elementwise,
    indexing,
    integers,
    linalg,
    products,
    random,
    reductions,
    shapes,
)
