"""The table of all operations that are written here, and those of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from untrace.torch.ops import attention, conv, functions, index, losses, math, norms, random, segments, state

ADDED: list[tuple[Any, Callable[..., Any], dict[str, Any]]] = []
"""Operations that users registered with `untrace.torch_op`."""


def table() -> list[tuple[Any, Callable[..., Any], dict[str, Any]]]:
    """(function of PyTorch, implementation, options) of every operation."""
    found: list[tuple[Any, Callable[..., Any], dict[str, Any]]] = []
    for part in (functions, attention, conv, index, losses, math, norms, random, segments, state):
        found += part.table()
    return [*found, *ADDED]
