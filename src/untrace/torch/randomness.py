"""The random numbers that JAX drew, handed to PyTorch, so that a module in training can be compared with it.

Both sides run the same Python, so the n-th draw of one is the n-th of the other. A draw of JAX is written down where the
module is run on JAX arrays (`noted`, and the mask of a dropout); PyTorch gets it where it would draw (`replayed`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

_MASK = "bernoulli"  # what PyTorch's dropout draws


@dataclass(frozen=True)
class Draw:
    """One draw: the name of PyTorch's operation without the mark of one in place, and what came of it."""

    name: str
    value: np.ndarray


class Unaligned(Exception):
    """PyTorch draws something else at this place."""


_DRAWN: contextvars.ContextVar[list[Draw] | None] = contextvars.ContextVar("_DRAWN", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[list[Draw]]:
    """What is drawn inside, in order."""
    drawn: list[Draw] = []
    token = _DRAWN.set(drawn)
    try:
        yield drawn
    finally:
        _DRAWN.reset(token)


def note_mask(keep: Any) -> None:
    """Writes down which elements a dropout keeps."""
    _note(_MASK, keep)


def _note(name: str, value: Any) -> None:
    drawn = _DRAWN.get()
    if drawn is not None and not isinstance(value, jax.core.Tracer):
        drawn.append(Draw(name, np.asarray(value)))


@contextlib.contextmanager
def noted(function: Any, env: Any) -> Iterator[list[Any]]:
    """Writes down what an operation drew, which is put into the list; of operations inside each other the outermost."""
    drawn = _DRAWN.get()
    out: list[Any] = []
    key, before = (env.param.prng, len(drawn)) if drawn is not None else (None, 0)
    yield out
    if drawn is None or env.param.prng is key or any(d.name == _MASK for d in drawn[before:]):
        return
    del drawn[before:]
    array = getattr(out[0], "_elem", None) if out else None
    if array is not None:
        _note(_name(function), array)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function)).partition(".")[0].rstrip("_")


@contextlib.contextmanager
def replayed(draws: list[Draw]) -> Iterator[None]:
    """Inside, PyTorch draws `draws`. Raises Unaligned where it does not draw just these."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    left = iter(draws)

    class Replay(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if torch.Tag.nondeterministic_seeded not in func.tags:
                return func(*args, **kwargs)
            draw = next(left, None)
            if draw is None or draw.name != _name(func):
                raise Unaligned
            value = torch.from_numpy(np.array(draw.value))
            if func.__name__.partition(".")[0].endswith("_"):
                if value.numel() != args[0].numel():
                    raise Unaligned
                return args[0].copy_(value.reshape(args[0].shape))
            # Shape and dtype are PyTorch's own: JAX has no integers of 64 bits.
            like = torch.empty_like(func(*args, **kwargs))
            if like.shape != value.shape:
                raise Unaligned
            return like.copy_(value)

    with Replay():
        yield
    if next(left, None) is not None:
        raise Unaligned
