"""The check of a PyTorch entry's arguments, which makes tensors of the right type of what JAX would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from untrace.python.helpers import helper
from untrace.targets.eager.guard import _compared, _in_words

if TYPE_CHECKING:
    import torch


@helper("torch", needs=("_in_words", "_compared"), last="_checked", target="torch")
def _checked(types, *values, least={}, most={}, multiples={}, x64=False):
    """The values, as tensors of JAX's types, where this was written for them: `x: f32[n,3]` is of any size `n` from 2 on."""
    narrow = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}

    def walk(value, leaf):
        if isinstance(value, dict):
            return {key: walk(part, leaf) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            make = getattr(value, "_make", type(value))
            return make([walk(part, leaf) for part in value])
        return None if value is None else leaf(value)

    def tensor(value):
        if not isinstance(value, torch.Tensor):  # whatever the default type is
            value = torch.as_tensor(value, dtype={float: torch.float64, complex: torch.complex128}.get(type(value)))
        return value if x64 else value.to(narrow.get(value.dtype, value.dtype))

    def word(value):
        kind = str(value.dtype)[6:]
        kind = kind.replace("uint", "u").replace("int", "i").replace("bfloat", "bf").replace("float", "f")
        return f"{kind.replace('complex', 'c')}[{','.join([str(int(n)) for n in value.shape])}]"

    values = [walk(value, tensor) for value in values]
    _compared(types, [_in_words(walk(value, word)) for value in values], least, most, multiples)
    return values[0] if len(values) == 1 else values
