"""The check of a NumPy entry's arguments, which makes arrays of the right type of what JAX would take."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper
from untrace.targets.eager.guard import _compared, _each, _in_words


@helper("np", needs=("_each", "_in_words", "_compared"), last="_checked", target="numpy")
def _checked(types, *values, least={}, most={}, multiples={}, sums={}, classes={}, x64=False):
    """The values, as arrays of JAX's types, where this was written for them: `x: f32[n,3]` is of any size `n` from 2 on."""
    import re

    short = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
    narrow = {} if x64 else {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}

    def array(value):
        made = np.asarray(value)
        return made.astype(narrow.get(made.dtype.name, made.dtype))[()]

    def word(value):
        kind = re.sub("[a-z]+(?=[0-9])", lambda m: short.get(m[0], m[0]), value.dtype.name)
        return f"{kind}[{','.join(map(str, value.shape))}]"

    values = [_each(value, array, classes) for value in values]
    words = [_in_words(_each(value, word, classes), classes) for value in values]
    _compared(types, words, least, most, multiples, sums)
    return values[0] if len(values) == 1 else values


_ = np  # the helper's text needs it
