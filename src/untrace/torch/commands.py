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
    args: list[Any] = []
    for text in texts:
        if text.startswith("@"):
            args.extend(_locate.load_args(text[1:]))
        else:
            args.append(_tensor(text, random))
    return args, {name: _tensor(text, random) for name, text in named}


def others(texts: Sequence[str]) -> list[Any]:
    """What `also=` of `from_torch` takes, of the types that each --also gives: `"i32[4,12] f32[4]"`, all by position or
    all by name (`"tokens=i32[4,12]"`)."""
    found: list[Any] = []
    for text in texts:
        words = text.split()
        named = [(w.partition("=")[0], w.partition("=")[2]) for w in words if "=" in w]
        if not words or named and len(named) < len(words):
            raise OptionError(
                f"--also {text!r} gives no inputs that can be passed: write the types of all inputs with spaces between "
                "them, or all of them by name (tokens=i32[4,12])."
            )
        args, kwargs = inputs([] if named else words, named)
        found.append(kwargs if named else tuple(args))
    return found


def _tensor(text: str, random: Any) -> Any:
    import numpy as np

    kind = _typestrings.parse(text)
    shape, dtype = getattr(kind, "shape", None), getattr(kind, "dtype", None)
    if shape is None or dtype is None:
        raise OptionError(f"{text!r} is no type of one tensor, such as f32[2,8].")
    if np.dtype(dtype).kind in "iub":
        return tensor_of(random.integers(0, 2, shape).astype(dtype))
    return tensor_of(random.standard_normal(shape).astype(dtype))
