"""What the command line names with `--torch`: a module, and tensors by their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace import _locate, _typestrings
from untrace._errors import OptionError
from untrace.torch.bridge import tensor_of, torchax


def load_module(target: str) -> Any:
    """`FILE.py:MODULE`: a module, or what makes one when it is called without arguments (then in eval mode)."""
    torchax()
    import torch

    found = _locate.load(target)
    if isinstance(found, torch.nn.Module):
        return found
    made = found() if callable(found) else None
    if not isinstance(made, torch.nn.Module):
        raise OptionError(f"{target} is no torch.nn.Module, and does not make one when it is called without arguments.")
    return made.eval() if isinstance(found, type) else made


def inputs(texts: Sequence[str], named: Sequence[tuple[str, str]]) -> tuple[list[Any], dict[str, Any]]:
    """Tensors of the types that ARGS and --kw give: normal random floats, small integers. `@FILE.py:FN` gives its own."""
    import numpy as np

    random = np.random.default_rng(0)

    def tensor(text: str) -> Any:
        kind = _typestrings.parse(text)
        shape, dtype = getattr(kind, "shape", None), getattr(kind, "dtype", None)
        if shape is None or dtype is None:
            raise OptionError(f"{text!r} is no type of one tensor, such as f32[2,8].")
        if np.dtype(dtype).kind in "iub":
            return tensor_of(random.integers(0, 2, shape).astype(dtype))
        return tensor_of(random.standard_normal(shape).astype(dtype))

    args: list[Any] = []
    for text in texts:
        if text.startswith("@"):
            args.extend(_locate.load_args(text[1:]))
        else:
            args.append(tensor(text))
    return args, {name: tensor(text) for name, text in named}
