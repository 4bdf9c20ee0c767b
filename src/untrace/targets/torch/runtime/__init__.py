"""Helpers that a PyTorch module may carry: ordinary source, copied where it is used. All are differentiable as far as what
they do is, and none writes into a tensor: `torch.func.vmap` takes them."""

from untrace.targets.torch.runtime import arithmetic, indexing, linalg, random, windows  # noqa: F401
