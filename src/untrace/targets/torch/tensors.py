"""NumPy's arrays as tensors, and back. PyTorch is imported where a tensor is made: nothing else of untrace needs it.

Of unsigned integers PyTorch computes with `uint8` alone. Inside a text those of 16 and 32 bits are the next wider signed
ones, which hold their values; what comes in and goes out has its own type.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from untrace import jax_compat

# What stands for a type inside a text.
INSIDE = {
    "bool": "bool", "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint16": "int32", "uint32": "int64", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32",
    "float64": "float64", "complex64": "complex64", "complex128": "complex128",
}  # fmt: skip


def word_bits(dtype: Any) -> int | None:
    """How many bits an unsigned integer has that a wider type stands for; None of other types."""
    return {"uint16": 16, "uint32": 32}.get(getattr(dtype, "name", ""))


def has_type(dtype: Any) -> bool:
    return jax_compat.is_key_dtype(dtype) or np.dtype(dtype).name in INSIDE


def tensor_of(array: Any) -> Any:
    """A tensor of the same type."""
    import torch

    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def inside(array: Any) -> Any:
    """A tensor as texts compute with it."""
    array = np.asarray(array)
    return tensor_of(array if word_bits(array.dtype) is None else array.astype(INSIDE[array.dtype.name]))


def array_of(tensor: Any) -> np.ndarray | None:
    """A tensor as an array; None for what is no tensor."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return None
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(jax.numpy.bfloat16)
    return tensor.numpy()
