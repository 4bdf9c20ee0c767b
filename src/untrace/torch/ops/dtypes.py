"""Types of PyTorch as JAX has them."""

from __future__ import annotations

from typing import Any

import jax

from untrace.torch.bridge import torchax


def dtype_of(dtype: Any) -> Any:
    return torchax().ops.mappings.t2j_dtype(dtype)


def default_dtype(dtype: Any) -> Any:
    import torch

    return jax.dtypes.canonicalize_dtype(dtype_of(dtype or torch.get_default_dtype()))
