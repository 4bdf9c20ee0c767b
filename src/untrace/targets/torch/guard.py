"""The check of a PyTorch entry's arguments, which makes tensors of the right type of what JAX would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from untrace.python.helpers import helper
from untrace.targets.eager.guard import _compared, _each, _in_words

if TYPE_CHECKING:
    import torch


@helper("torch", needs=("_each", "_in_words", "_compared"), last="_checked", target="torch")
def _checked(types, *values, least={}, most={}, multiples={}, sums={}, classes={}, x64=False):
    """The values, as tensors of JAX's types, where this was written for them: `x: f32[n,3]` is of any size `n` from 2 on."""
    narrow = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}

    def tensor(value):
        if not isinstance(value, torch.Tensor):  # whatever the default type is
            value = torch.as_tensor(value, dtype={float: torch.float64, complex: torch.complex128}.get(type(value)))
        return value if x64 else value.to(narrow.get(value.dtype, value.dtype))

    def word(value):
        kind = str(value.dtype)[6:]
        kind = kind.replace("uint", "u").replace("int", "i").replace("bfloat", "bf").replace("float", "f")
        sizes = [str(len(range(n))) for n in value.shape]  # numbers also where `torch.compile` has symbols for them
        return f"{kind.replace('complex', 'c')}[{','.join(sizes)}]"

    values = [_each(value, tensor, classes) for value in values]
    words = [_in_words(_each(value, word, classes), classes) for value in values]
    _compared(types, words, least, most, multiples, sums)
    return values[0] if len(values) == 1 else values
