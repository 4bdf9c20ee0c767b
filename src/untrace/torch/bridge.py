"""torchax as the bridge from PyTorch to JAX.

torchax runs PyTorch's own Python code on JAX arrays, operation by operation, so that JAX traces the author's `forward`
itself and each equation knows the line and column that it came from. Only this file, `environment` and `ops` know torchax.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from untrace._errors import OptionError, UnsupportedPrimitiveError

_FRAGMENT: Any = None


@functools.cache
def torchax() -> Any:
    """torchax, imported. Raises OptionError where the extra is not installed."""
    try:
        import torch
    except ImportError as error:
        raise OptionError(f"from_torch needs PyTorch and torchax: pip install 'untrace[torch]' ({error}).") from error
    # Kept for good: PyTorch takes the overloads back with the object, and then trips over what is left of them.
    global _FRAGMENT
    _FRAGMENT = torch.library.Library("aten", "FRAGMENT")
    with _missing_overloads(torch, _FRAGMENT):
        try:
            import torchax
            import torchax.device_module
            import torchax.interop
            import torchax.tensor

            torchax.tensor.Environment()  # fills the tables
            # torchax calls its device an accelerator. PyTorch would ask such a one for a stream, which it hasn't,
            # before it compiles anything: with this, `torch.compile` works beside it.
            torchax.device_module.is_available = lambda: False
        except ImportError as error:
            raise OptionError(f"from_torch needs torchax: pip install 'untrace[torch]' ({error}).") from error
    return torchax


@contextlib.contextmanager
def _missing_overloads(torch: Any, library: Any) -> Iterator[None]:
    """PyTorch 2.13 has no overloads for named dimensions any more, which torchax 0.0.13 still names in its tables.

    While torchax is imported, each of those is defined, with a schema that nothing ever calls.
    """
    packet_class = type(torch.ops.aten.add)
    original = packet_class.__getattr__

    def get(packet: Any, name: str) -> Any:
        try:
            return original(packet, name)
        except AttributeError:
            if "dimname" not in name.lower() and "names" not in name.lower():
                raise
            library.define(f"{packet.__name__}.{name}(Tensor self) -> Tensor")
            packet._overload_names = [*packet._overload_names, name]
            return original(packet, name)

    packet_class.__getattr__ = get
    try:
        yield
    finally:
        packet_class.__getattr__ = original


def array_of(value: Any) -> Any:
    """A CPU tensor as a JAX array of the same dtype (64-bit ones as JAX keeps them)."""
    import jax.numpy as jnp

    return jnp.asarray(numpy_of(value))


def element(value: Any) -> Any:
    """The array of a tensor of torchax's, also of a view; anything else as it is."""
    if hasattr(value, "_elem"):
        return value.jax()
    return value.jax() if hasattr(value, "view_info") else value


def numpy_of(value: Any) -> Any:
    """A CPU tensor as a NumPy array; bfloat16 as ml_dtypes has it."""
    import ml_dtypes
    import torch

    value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def tensor_of(value: Any) -> Any:
    """An array as a tensor of PyTorch on the CPU."""
    import numpy as np
    import torch

    array = np.array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def missing(func: Any) -> str:
    """The sentence for an operation that torchax does not have."""
    name = str(func)
    place, statement = _author_line()
    where = f" in {place}: `{statement}`" if place else ""
    return (
        f"the PyTorch operation `{name}`{where} has no JAX form in torchax {torchax().__version__}.\n"
        "To teach untrace what it is, register a function of JAX arrays with the same arguments:\n"
        f"    @untrace.torch_op(torch.ops.{name})\n"
        f"    def {name.split('.')[1]}(*args, **kwargs): return jnp.some_function(*args)"
    )


def lacks(function: str, what: str) -> UnsupportedPrimitiveError:
    """The error for a use of an operation that has no JAX form here: `torch.nn.functional.pad`, `with this mode`."""
    place, statement = _author_line()
    where = f" in {place}: `{statement}`" if place else ""
    return UnsupportedPrimitiveError(
        f"`{function}`{where} has no JAX form {what}.\n"
        "To teach untrace what it is, register a function of JAX arrays with the same arguments:\n"
        f"    @untrace.torch_op({function})\n"
        f"    def {function.rpartition('.')[2]}(*args, **kwargs): return jnp.some_function(*args)"
    )


def author_place(error: BaseException) -> tuple[str, str]:
    """(`model.py:12`, its text) of the innermost line of the author's that an exception passed through."""
    import traceback

    return _place([(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)][::-1])


def _author_line() -> tuple[str, str]:
    """The same for what is running now."""
    import sys

    frames = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return _place(frames)


def _place(frames: list[tuple[str, int]]) -> tuple[str, str]:
    import linecache
    import os

    from untrace.provenance.whose import is_library_internal

    for file, line in frames:
        if not is_library_internal(file):
            return f"{os.path.basename(file)}:{line}", linecache.getline(file, line).strip()
    return "", ""
